package channel

import (
	"encoding/binary"
	"math/bits"
)

// CPUs is a set of processors, up to 1024 of them.
type CPUs [16]uint64

// Count is the number of processors in the set.
func (s *CPUs) Count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Add puts the processors of o into the set.
func (s *CPUs) Add(o CPUs) {
	for i := range s {
		s[i] |= o[i]
	}
}

// CPUBytes is the size of an encoded set.
const CPUBytes = 16 * 8

// Append encodes the set.
func (s *CPUs) Append(b []byte) []byte {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// ParseCPUs decodes a set from the first [CPUBytes] of b.
func ParseCPUs(b []byte) CPUs {
	var s CPUs
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return s
}

// firstCPUs is the set of the first n processors, for systems that do not say which ones a process
// may use.
func firstCPUs(n int) CPUs {
	var s CPUs
	for i := range min(n, 64*len(s)) {
		s[i/64] |= 1 << uint(i%64)
	}
	return s
}
