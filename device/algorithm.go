package device

// Values is how many values a launch hook may set, and the most extras of an algorithm: the VALUES of
// algorithm.cuh. Phases is how many phases an operation has.
const (
	Values = 8
	Phases = 8
)

// AlgorithmArgs are the parameter of the kernel of a user's algorithm: those of algorithm.cuh, field by
// field.
type AlgorithmArgs struct {
	State, In, Out        uint64
	Scalar, ScalarBits    uint64
	Count, Bytes          uint64
	Scratch, ScratchBytes uint64
	Local, LocalBytes     uint64
	Signals               uint64
	Values, Extras        [Values]uint64
	Collective, Dtype     uint32
	Op, Root              uint32
	Ins, Outs             Operands
	Counts, Record        uint32
	Group                 Group
}

// Operands are addresses by rank, of as many ranks in any domain.
type Operands [MaxRanks]uint64
