package kernel

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// An entry is a cubin in a file. Numbers are little-endian.
//
//	magic     8 bytes
//	format    uint32
//	key       32 bytes
//	name, arch, library, compiler, log, symbols, image: each a uint32 length, then as many bytes
//	SHA-256 of all that precedes
const (
	magic       = "WEFTCUBN"
	entryFormat = 2
	// maxEntry bounds the bytes that are read into memory; cubins are far smaller.
	maxEntry = 64 << 20
)

const minEntry = len(magic) + 4 + len(Key{}) + 7*4 + sha256.Size

var (
	errTooLarge = fmt.Errorf("larger than %d MiB", maxEntry>>20)
	errTooShort = errors.New("truncated: shorter than any entry")
	errMagic    = errors.New("not an entry of a kernel cache")
	errSum      = errors.New("truncated or corrupt: its checksum does not match")
	errLengths  = errors.New("its lengths contradict each other")
	errOtherKey = errors.New("the entry of another key")
)

// encode makes the entry of a cubin.
func encode(c Cubin) ([]byte, error) {
	fields := c.fields()
	size := minEntry
	for _, field := range fields {
		size += len(*field)
	}
	if size > maxEntry {
		return nil, errTooLarge
	}
	b := make([]byte, 0, size)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, entryFormat)
	b = append(b, c.Key[:]...)
	for _, field := range fields {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(*field)))
		b = append(b, *field...)
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// decode reads an entry. It accepts nothing that encode does not make.
func decode(b []byte) (Cubin, error) {
	switch {
	case len(b) > maxEntry:
		return Cubin{}, errTooLarge
	case len(b) < minEntry:
		return Cubin{}, errTooShort
	case string(b[:len(magic)]) != magic:
		return Cubin{}, errMagic
	}
	body, sum := b[:len(b)-sha256.Size], [sha256.Size]byte(b[len(b)-sha256.Size:])
	rest := body[len(magic):]
	if format := binary.LittleEndian.Uint32(rest); format != entryFormat {
		return Cubin{}, fmt.Errorf("its format is %d, this library reads %d", format, entryFormat)
	}
	if sha256.Sum256(body) != sum {
		return Cubin{}, errSum
	}
	rest = rest[4:]
	var c Cubin
	c.Key, rest = Key(rest), rest[len(Key{}):]
	for _, field := range c.fields() {
		if len(rest) < 4 {
			return Cubin{}, errLengths
		}
		n := uint64(binary.LittleEndian.Uint32(rest))
		if rest = rest[4:]; n > uint64(len(rest)) {
			return Cubin{}, errLengths
		}
		*field, rest = string(rest[:n]), rest[n:]
	}
	if len(rest) != 0 || c.image == "" {
		return Cubin{}, errLengths
	}
	return c, nil
}

// fields are an entry's fields after its key, in order.
func (c *Cubin) fields() []*string {
	return []*string{&c.Name, &c.Arch, &c.Library, &c.Compiler, &c.Log, &c.symbols, &c.image}
}
