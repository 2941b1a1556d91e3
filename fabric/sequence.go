package fabric

// span is how far numbers may run ahead of the first that is missing.
const span = 4096

// A sequence records consecutive numbers that come in any order, each once.
type sequence struct {
	next uint64 // the first that is missing
	seen [span / 64]uint64
}

// mark records a number. It reports false of one that was recorded before or is too far ahead.
func (s *sequence) mark(n uint64) bool {
	if n < s.next || n-s.next >= span {
		return false
	}
	word, bit := &s.seen[n%span/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	for {
		word, bit := &s.seen[s.next%span/64], uint64(1)<<(s.next%64)
		if *word&bit == 0 {
			return true
		}
		*word &^= bit
		s.next++
	}
}

// nearest is the number next to base whose low bits are given.
func nearest(base uint64, low uint32, bits uint) uint64 {
	size := uint64(1) << bits
	n := base&^(size-1) | uint64(low)&(size-1)
	switch {
	case n+size/2 < base:
		n += size
	case n > base+size/2 && n >= size:
		n -= size
	}
	return n
}
