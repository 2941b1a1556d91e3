package channel

// generationShift leaves a generation 2^40 numbers.
const generationShift = 40

// Sequence numbers the operations that every rank of a communicator makes in the same order, for
// its Counters to publish. Numbers only grow: those of a generation are larger than all those of
// the generations before it. A rank therefore never takes a value from before a failure for one
// from after it.
//
// The zero value is ready for generation 0, whose first number is 1.
type Sequence struct{ last uint64 }

// Begin follows the communicator to a generation, and reports whether that is a new one.
func (s *Sequence) Begin(generation uint64) bool {
	if first := generation << generationShift; s.last < first {
		s.last = first
		return true
	}
	return false
}

// Generation is the generation that the numbers belong to.
func (s *Sequence) Generation() uint64 { return s.last >> generationShift }

// Covers reports whether n is a number of the generation that the sequence has reached.
func (s *Sequence) Covers(n uint64) bool { return n>>generationShift == s.Generation() }

// Next returns the next number.
func (s *Sequence) Next() uint64 {
	s.last++
	return s.last
}

// Last returns the number that Next returned last, or the generation's own, which no operation has.
func (s *Sequence) Last() uint64 { return s.last }
