package device

import (
	"embed"
	"maps"
	"math"
)

//go:embed *.cuh
var files embed.FS

var headers = func() map[string]string {
	all := map[string]string{}
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			panic(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}()

// Headers are the device headers by the names under which kernels include them: for kernel.Spec.
func Headers() map[string]string { return maps.Clone(headers) }

// DomainDefine is the preprocessor's name for the size of the domain that a kernel is compiled for:
// the most ranks that its [Group] has room for. Without it a domain has [WordRanks].
const DomainDefine = "WEFT_DOMAIN_RANKS"

// LaneRanks is the most ranks of a domain of which a warp has one a lane, WordRanks of one whose sets of ranks
// are one word, and MaxRanks the most of any domain.
const (
	LaneRanks = 32
	WordRanks = 64
	MaxRanks  = 72
)

// Domain is the size of the domain that kernels for so many ranks are compiled for, unless they are for one of
// [LaneRanks] and there are no more.
func Domain(ranks int) int {
	if ranks <= WordRanks {
		return WordRanks
	}
	return MaxRanks
}

// Group is a communicator as a kernel sees it: the Group of comm.cuh, field by field, in the largest
// domain. Its windows come last, and it is the last field of a struct of arguments: such a struct
// differs between domains in its length alone, and a kernel of a smaller one takes the beginning.
type Group struct {
	Abort  uint64
	Record uint64
	Claim  uint64 // a word of this GPU's memory, 0 until a wait writes the record
	// of 8 bytes for each rank, in this GPU's memory: the nanoseconds that it was waited for, if a
	// kernel counts them; or 0
	Waits       uint64
	Ranks, Rank uint32
	Lane        uint32 // the lane's number, for its records
	_           uint32
	Window      Windows // each rank's part of one window, as this GPU reaches it
}

// Windows are addresses by rank.
type Windows [MaxRanks]uint64

// Least is how many a kernel has at the least: see [github.com/weftgo/weft/cuda.Function.Prepare].
func (Windows) Least() int { return LaneRanks }

// StateBytes and CountBytes are the sizes of a [State] and of the [Count] of each block behind it.
const (
	StateBytes = 32
	CountBytes = 16
)

// OpeningBytes is the size of a rank's opening, of which a region has 3 turns x ranks, and
// PacketBytes that of a packet, which carries 4 bytes.
const (
	OpeningBytes = 16
	PacketBytes  = 8
)

// State is a lane of operations in a GPU's memory: the State of comm.cuh, field by field. The host
// writes it when nothing of the lane runs.
type State struct {
	Masked  [2]uint64 // ranks that are left out: bit r of word r/64 is rank r
	Timeout uint64    // of a wait, in nanoseconds
	Stopped uint32
	Trace   uint32 // 0, or how the ring of a traced lane is laid out: TraceRing.Word
}

// Count is a block's counters: the Count of comm.cuh.
type Count struct {
	Epoch uint64
	Turn  uint32 // Epoch modulo 3
	Left  uint32 // what the last operation left to the next: the owner's
}

// Divisor lets a kernel divide by a number that the host knows: the Divisor of walk.cuh.
type Divisor struct {
	By, Inverse uint32
}

// NewDivisor makes the Divisor of a number that is not 0.
func NewDivisor(by int) Divisor {
	return Divisor{By: uint32(by), Inverse: math.MaxUint32 / uint32(by)}
}
