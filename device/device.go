package device

import (
	"embed"
	"maps"
	"math"
)

//go:embed ptx.cuh weft.cuh
var files embed.FS

var headers = func() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"ptx.cuh", "weft.cuh"} {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		all[name] = string(text)
	}
	return all
}()

// Headers are the device headers by the names under which kernels include them: for kernel.Spec.
func Headers() map[string]string { return maps.Clone(headers) }

// MaxRanks is the most ranks that a Group has.
const MaxRanks = 64

// Group is a communicator as a kernel sees it: the Group of weft.cuh, field by field.
type Group struct {
	Window [MaxRanks]uint64 // every rank's part of one window, as this GPU reaches it
	Abort  uint64
	Record uint64
	Claim  uint64 // a word of this GPU's memory, 0 until a wait writes the record
	// of 8 bytes for each rank, in this GPU's memory: the nanoseconds that it was waited for, if a
	// kernel counts them; or 0
	Waits       uint64
	Ranks, Rank uint32
}

// StateBytes and CountBytes are the sizes of a [State] and of the [Count] of each block behind it.
const (
	StateBytes = 32
	CountBytes = 16
)

// State is a lane of operations in a GPU's memory: the State of weft.cuh, field by field. The host
// writes it when nothing of the lane runs.
type State struct {
	Mask    uint64 // ranks that are left out
	Timeout uint64 // of a wait, in nanoseconds
	Stopped uint32
	_       uint32
	_       uint64
}

// Count is what a block has counted: the Count of weft.cuh.
type Count struct {
	Epoch uint64
	Turn  uint32 // Epoch modulo 3
	_     uint32
}

// Divisor lets a kernel divide by a number that the host knows: the Divisor of weft.cuh.
type Divisor struct {
	By, Inverse uint32
}

// NewDivisor makes the Divisor of a number that is not 0.
func NewDivisor(by int) Divisor {
	return Divisor{By: uint32(by), Inverse: math.MaxUint32 / uint32(by)}
}
