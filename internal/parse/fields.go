// Package parse takes messages apart that may be anything: peers write them.
package parse

import "encoding/binary"

// Fields are what is left of a message, little-endian. Taking more than there is sets Bad and yields zeros, so one look
// at Bad after the last field is enough.
type Fields struct {
	Rest []byte
	Bad  bool
}

// Take takes n bytes, which are the message's own memory.
func (f *Fields) Take(n int) []byte {
	if f.Bad || n < 0 || n > len(f.Rest) {
		f.Bad = true
		return nil
	}
	v := f.Rest[:n:n]
	f.Rest = f.Rest[n:]
	return v
}

// U8 takes a byte.
func (f *Fields) U8() uint8 {
	if v := f.Take(1); v != nil {
		return v[0]
	}
	return 0
}

// U16 takes a number of two bytes.
func (f *Fields) U16() uint16 {
	if v := f.Take(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

// U32 takes a number of four bytes.
func (f *Fields) U32() uint32 {
	if v := f.Take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

// U64 takes a number of eight bytes.
func (f *Fields) U64() uint64 {
	if v := f.Take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}
