package collective

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/choice"
	"github.com/weftgo/weft/collective/internal/gpu"
	"github.com/weftgo/weft/collective/internal/host"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
)

// Range is sizes of a request that have the same algorithm: see [Choices].
type Range = choice.Range

// Choices says which algorithms a group chooses that is made with such options, on GPUs or on the host, where
// the machine is as a table says: for requests like one, of every size. Sizes are [Request.Sent]. What GPUs can do
// is what the request says.
func Choices(onGPUs bool, o Options, t *tuning.Table, q Request) []Range {
	all := Algorithms()
	q.Slot = host.Room(defaulted(o.Scratch, DefaultScratch), q.Ranks)
	if onGPUs {
		all = GPUAlgorithms()
		q.Slot = gpu.Turn(defaulted(o.Staging, DefaultStaging))
	}
	list := make([]*spec.Algorithm, len(all))
	for i := range all {
		list[i] = &all[i]
	}
	return choice.New(list, o.Force, t.Model()).Ranges(q)
}

// GPUCaps are the most bytes that one launch takes on GPUs: the operand of an all-reduce in one shot, that of
// one in two, and a part that is moved or reduced otherwise. What is longer takes several launches. They
// depend on the type, [Options.Staging] and the number of ranks alone.
func GPUCaps(t weft.DType, o Options, ranks int) (oneShot, twoShot, part int) {
	return gpu.Caps(t, defaulted(o.Staging, DefaultStaging), ranks)
}

func defaulted(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}
