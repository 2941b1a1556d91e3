package program

import (
	"math"
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// MostAhead is the largest lead of pipelines at which plans are looked at.
const MostAhead = 510

// Shapes are the sizes at which plans are looked at. Groups of blocks split chunks evenly, with remainders, and not at
// all: of all sizes of chunks those are there that bring parts together which meet at no other. Pipelines have one,
// two and three windows, and as many that the farthest lead is used up, and one more. Windows of one length are alike
// from there on. Where pipelines that share a counter have different shares of a chunk, the least size is there at
// which their numbers of windows differ.
func Shapes(files ...*spec.File) []Shape {
	shapes, _ := Sizes(files...)
	return shapes
}

// Sizes is [Shapes], and whether they are all that differ: of large plans whose groups split chunks in many ways, the
// likely ones are there.
func Sizes(files ...*spec.File) (shapes []Shape, all bool) {
	x := newExtent(files)
	all = true
	for _, n := range x.windows() {
		seen := make(map[uint64]bool)
		chunks, period, capped := x.chunks(n)
		most, last := max(leastShapes, mostWork/max(1, x.ops)), 0
		for i, c := range chunks {
			shape := x.shape(c, n)
			if i > 0 && n > 0 && x.count(shape) != n || !x.meets(shape, seen) {
				continue
			}
			if last = i; most == 0 {
				all = false
				break
			}
			most--
			shapes = append(shapes, shape)
		}
		all = all && !(capped && last > len(chunks)-period)
	}
	for _, f := range files {
		for _, chunk := range LeadsOf(f).Uneven {
			if windows := math.Ceil(float64(chunk) * x.largest); windows > float64(x.most(f)) {
				continue // no message is so large
			} else if windows > MostAhead+2 {
				all = false
				continue
			}
			g := divisor(uint64(chunk), x.step)
			shapes = append(shapes, Shape{
				Chunk: chunk / int(g), Align: 1, Window: func(unit uint64) int { return int(unit / g) },
			})
		}
	}
	return shapes, all
}

// Bounds of what is looked at.
const (
	leastShapes  = 4       // of a number of windows
	mostWork     = 1 << 16 // operations, of all shapes
	mostChunk    = 1 << 10
	mostInWindow = 64
	mostForms    = 1 << 16 // parts of chunks, of all sizes
)

// count is how many windows the longest pipeline has.
func (x *extent) count(s Shape) int {
	window := s.Window(x.step)
	return int(math.Ceil(float64(s.Chunk) * x.largest * float64(x.step) / float64(window)))
}

// Pipelined is a size at which the longest pipeline has n windows, or as many as the largest message has.
func Pipelined(f *spec.File, n int) Shape {
	x := newExtent([]*spec.File{f})
	return x.shape(3, min(n, x.most(f)))
}

// Any is any size that a message may have, within reason, as a source of random numbers below others chooses. [Shapes]
// stand for all of them.
func Any(f *spec.File, random func(below int) int) Shape {
	x := newExtent([]*spec.File{f})
	if x.groups == nil && x.units == nil {
		return Shape{Chunk: 1, Align: 1}
	}
	g := 1
	for _, k := range x.groups {
		g = min(max(g, k), 16)
	}
	c := 1 + random(3*g)
	if x.units == nil {
		return x.shape(c, 0)
	}
	most := 5
	if random(2) == 0 {
		leads := LeadsOf(f)
		most = min(max(leads.Sum+leads.Behind, leads.Most())+5, 32)
	}
	n := min(1+random(most), x.possible(f))
	return x.shape(c, n)
}

// MostWindows is how many windows the longest pipeline has in the largest message.
func MostWindows(f *spec.File) int { return newExtent([]*spec.File{f}).most(f) }

// extent is what decides at which sizes plans are looked at.
type extent struct {
	files  []*spec.File
	ops    int
	groups []int    // sizes, each once, ascending
	units  []uint64 // of pipelines
	step   uint64   // divides them all
	// largest is how many chunks a unit has at most, and longest the chunks of the longest pipeline.
	largest float64
	longest int
	forms   []form
	packets bool
}

// form is a part of chunks that some operation touches.
type form struct {
	chunks int
	group  spec.Group
	unit   uint64 // of the pipeline, or 0
	over   int    // and its chunks
	whole  bool   // in every window
}

func newExtent(files []*spec.File) *extent {
	x := &extent{files: files}
	x.each(func(op, outer *spec.Op) {
		if g := op.Group.Size; g > 1 && !slices.Contains(x.groups, g) {
			x.groups = append(x.groups, g)
		}
		x.packets = x.packets || op.Kind.Packets()
		x.ops++
		if op.Kind == spec.Pipeline {
			x.units = append(x.units, op.Unit)
			x.largest = max(x.largest, float64(op.Chunks)/float64(op.Unit))
			x.longest = max(x.longest, op.Chunks)
		}
	})
	if x.groups == nil && x.units == nil {
		return x // all sizes are alike
	}
	slices.Sort(x.groups)
	for _, u := range x.units {
		x.step = divisor(u, x.step)
	}
	seen := make(map[form]bool)
	x.each(func(op, outer *spec.Op) {
		for _, list := range [][]spec.Place{op.Src, op.Dst} {
			for i, place := range list {
				if i > 0 && place.Size == list[i-1].Size {
					continue
				}
				f := form{chunks: place.Size, group: op.Group, whole: op.Kind.Packets()}
				if outer != nil {
					f.unit, f.over = outer.Unit, outer.Chunks
				}
				if !seen[f] {
					seen[f] = true
					x.forms = append(x.forms, f)
				}
			}
		}
	})
	return x
}

// each visits all operations, and those of pipelines with the pipeline.
func (x *extent) each(visit func(op, outer *spec.Op)) {
	for _, f := range x.files {
		for r := range f.Ranks {
			for b := range f.Ranks[r].Blocks {
				for i := range f.Ranks[r].Blocks[b].Ops {
					op := &f.Ranks[r].Blocks[b].Ops[i]
					visit(op, nil)
					for k := range op.Ops {
						visit(&op.Ops[k], op)
					}
				}
			}
		}
	}
}

// windows are numbers of windows of the longest pipeline: 0 where there is none.
func (x *extent) windows() []int {
	if x.units == nil {
		return []int{0}
	}
	all, most := []int{1, 2, 3}, 1
	for _, f := range x.files {
		most = max(most, x.possible(f))
		leads := LeadsOf(f)
		for _, n := range leads.Windows {
			n = min(n, MostAhead)
			all = append(all, n+1, n+2)
		}
		if leads.Behind > 0 {
			n := min(leads.Behind, MostAhead)
			all = append(all, n+2, min(x.longest*(n+1)+1, MostAhead+2))
		}
	}
	for i := range all {
		all[i] = min(all[i], most)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// possible is how many windows the largest message has, or enough.
func (x *extent) possible(f *spec.File) int { return min(x.most(f), MostAhead+2) }

// most is how many windows the largest message has.
func (x *extent) most(f *spec.File) int {
	chunks := 1
	if len(f.Ranks) > 0 {
		chunks = max(f.Ranks[0].Input, 1)
		if f.Collective == spec.AllGather || f.Ranks[0].Input == 0 {
			chunks = max(f.Ranks[0].Output, 1)
		}
	}
	return int(max(1, min(math.Ceil(float64(f.MaxBytes)/float64(chunks)*x.largest), math.MaxInt32)))
}

// chunks are the sizes of chunks to look at, the likely ones first. Parts of a group of g blocks are like those of g
// units less, but for what rounding does to parts of other groups: that ends at half of g times the common multiple,
// the period. If there are too many sizes, they are capped.
func (x *extent) chunks(n int) (all []int, period int, capped bool) {
	if x.groups == nil && x.units == nil {
		return []int{1}, 1, false
	}
	least := 1
	if n > 0 {
		least = max(3, int(math.Ceil(float64(n)/(x.largest*float64(x.step)))))
	}
	all = append(all, least)
	period = 1
	for _, g := range x.groups {
		period = min(period/int(divisor(uint64(period), uint64(g)))*g, mostChunk)
		all = append(all, g, g+1, 2*g-1)
	}
	slices.Sort(all)
	last := period
	if x.groups != nil {
		last += period * x.groups[len(x.groups)-1] / 2
	}
	most := mostChunk
	if n > 0 {
		last, most = max(last, least+2*n), max(mostInWindow, 2*least)
	}
	if most = min(most, mostForms/max(1, len(x.forms)*max(1, n))); last > most {
		last, capped = most, true
	}
	for c := least; c <= last; c++ {
		all = append(all, c)
	}
	seen := make(map[int]bool)
	return slices.DeleteFunc(all, func(c int) bool {
		drop := c < least || seen[c]
		seen[c] = true
		return drop
	}), period, capped
}

// shape has chunks of c units or more, and pipelines of which the longest has n windows.
func (x *extent) shape(c, n int) Shape {
	if n == 0 {
		return Shape{Chunk: c, Align: 1}
	}
	ratio := x.largest * float64(x.step) // windows, of step units each, of a chunk
	c = max(c, int(math.Ceil(float64(n)/ratio)))
	scale := int(ratio*float64(c)/float64(n) + 0.999999)
	for n > 1 && float64(c)*ratio <= float64((n-1)*scale) {
		scale-- // a window that is rounded up may leave none for the last
	}
	scale = max(scale, 1)
	step := x.step
	return Shape{Chunk: c, Align: 1, Window: func(unit uint64) int { return int(unit/step) * scale }}
}

// piece is where in a chunk what a form touches of it begins, or ends.
type piece struct {
	at   int
	mark uint64
}

// meets says whether parts of chunks meet in a shape as they do in none that was seen before, and notes how they meet.
// At every offset in a chunk, some parts of some of the operations' chunks are there. Those decide alone which
// operations touch the same bytes, and which begin at the same; of packets also those that are empty.
func (x *extent) meets(shape Shape, seen map[uint64]bool) (brings bool) {
	c := shape.Chunk
	see := func(mark uint64) {
		if !seen[mark] {
			seen[mark] = true
			brings = true
		}
	}
	type span struct{ form, from, to int }
	var spans []span
	begins := make(map[int]int) // the first form that begins at an offset
	for i, f := range x.forms {
		from, to := f.group.Part(f.chunks * c)
		window, last := to-from, 1
		if f.unit > 0 && !f.whole {
			window = shape.Window(f.unit)
			last = (f.over*c + window - 1) / window
		}
		for t := range last {
			at := min(from+t*window, to)
			end := min(at+window, to)
			id := i + t*len(x.forms)
			if at == end {
				if x.packets {
					see(mix(uint64(id)))
				}
				continue
			}
			spans = append(spans, span{id, at, end})
			if _, there := begins[at%c]; !there {
				begins[at%c] = id
			}
		}
	}
	var pieces []piece
	for _, s := range spans {
		for k := s.from / c; k*c < s.to; k++ {
			mark := mix(mix(mix(uint64(s.form)+1)^uint64(k)) ^ uint64(begins[s.from%c])<<20 ^ uint64(s.from/c)<<1)
			from, to := max(s.from-k*c, 0), min(s.to-k*c, c)
			pieces = append(pieces, piece{from, mark}, piece{to, -mark})
		}
	}
	slices.SortFunc(pieces, func(a, b piece) int { return a.at - b.at })
	var here uint64 // the sum of what is there
	for i, p := range pieces {
		here += p.mark
		if i+1 == len(pieces) || pieces[i+1].at > p.at {
			see(here)
		}
	}
	return brings || len(seen) == 0
}

// mix spreads the bits of a number.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

func divisor(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
