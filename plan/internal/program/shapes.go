package program

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// Shapes are the sizes at which a plan is looked at: those at which groups split chunks evenly, with remainders, and
// not at all, and pipelines of one, two and three windows. Windows of one length are alike from the second on.
func Shapes(f *spec.File) (shapes []Shape) {
	chunks := []int{1}
	var units []uint64
	largest := 0.0 // chunks of a unit, at most
	for r := range f.Ranks {
		for b := range f.Ranks[r].Blocks {
			for i := range f.Ranks[r].Blocks[b].Ops {
				op := &f.Ranks[r].Blocks[b].Ops[i]
				if op.Kind == spec.Pipeline {
					units = append(units, op.Unit)
					largest = max(largest, float64(op.Chunks)/float64(op.Unit))
				}
				for _, o := range append(slices.Clone(op.Ops), *op) {
					if g := o.Group.Size; g > 1 {
						chunks = append(chunks, g, g+1, 2*g-1)
					}
				}
			}
		}
	}
	slices.Sort(chunks)
	chunks = slices.Compact(chunks)
	if units == nil {
		for _, c := range chunks {
			shapes = append(shapes, Shape{Chunk: c, Align: 1})
		}
		return shapes
	}
	step := units[0]
	for _, u := range units {
		step = divisor(step, u)
	}
	most := windowsOf(f, largest)
	for _, c := range chunks {
		c = max(c, 3)
		for n := 1; n <= most; n++ {
			// The longest pipeline has n windows.
			scale := int(largest*float64(step)*float64(c)/float64(n) + 0.999999)
			for n > 1 && float64(c)*largest*float64(step) <= float64((n-1)*scale) {
				scale-- // a window that is rounded up may leave none for the last
			}
			scale = max(scale, 1)
			shapes = append(shapes, Shape{Chunk: c, Align: 1, Window: func(unit uint64) int {
				return int(unit/step) * scale
			}})
		}
	}
	return shapes
}

// windowsOf is how many windows of a pipeline are looked at: fewer than three where no message has three.
func windowsOf(f *spec.File, largest float64) int {
	rank := &f.Ranks[0]
	chunks := max(rank.Input, 1)
	if f.Collective == spec.AllGather || rank.Input == 0 {
		chunks = max(rank.Output, 1)
	}
	n := float64(f.MaxBytes) / float64(chunks) * largest
	switch {
	case n <= 1:
		return 1
	case n <= 2:
		return 2
	}
	return 3
}

func divisor(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
