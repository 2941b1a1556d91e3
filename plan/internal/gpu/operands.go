package gpu

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/spec"
)

// Operands that peers reach lie in windows, at the same place on every rank, or they are staged: copied to the
// context's window before the launch and from it after. Input and output that share memory are one region. Those that
// some ranks do not have are always staged, for these ranks know no place.

// region is memory that peers reach: in a window of the caller's, or staged.
type region struct {
	window *weft.Window // nil: it is staged
	offset int
}

// operands are those of a launch as all ranks find them.
type operands struct {
	in, out []int // by rank, where in the regions they begin
	regions []region
	one     bool // region has both
}

// placement is where operands lie, in the words that ranks compare.
type placement string

// defined says whether a collective writes all of its output.
func defined(f *spec.File) bool {
	switch f.Collective {
	case spec.AllReduce, spec.AllGather, spec.ReduceScatter, spec.AllToAll:
		return true
	}
	return false
}

// arrange finds the regions of a launch's operands.
func (l *loaded) arrange(x *launch.Launch) operands {
	n := len(l.plan.File.Ranks)
	o := operands{in: make([]int, n), out: make([]int, n)}
	in, out := uint64(x.In.Pointer()), uint64(x.Out.Pointer())
	ins, outs := bytesOf(x.In), bytesOf(x.Out)
	if f := l.plan.File; f.InPlace && defined(f) && ins > 0 && outs > 0 {
		for r := range n {
			switch f.Collective {
			case spec.AllGather:
				o.in[r] = r * ins
			case spec.ReduceScatter:
				o.out[r] = r * outs
			}
		}
		o.regions, o.one = []region{l.find(lower(x), max(ins, outs))}, true
		return o
	}
	if !l.partial[0] && !l.partial[1] && in < out+uint64(outs) && out < in+uint64(ins) {
		base := min(in, out)
		for r := range n {
			o.in[r], o.out[r] = int(in-base), int(out-base)
		}
		o.regions, o.one = []region{l.find(lower(x), int(max(in+uint64(ins), out+uint64(outs))-base))}, true
		return o
	}
	o.regions = make([]region, 2)
	if !l.partial[0] {
		o.regions[0] = l.find(x.In.Data, ins)
	}
	if !l.partial[1] {
		o.regions[1] = l.find(x.Out.Data, outs)
	}
	return o
}

// lower is where the first of both operands begins.
func lower(x *launch.Launch) unsafe.Pointer {
	if x.In.Pointer() < x.Out.Pointer() {
		return x.In.Data
	}
	return x.Out.Data
}

// find finds the window that has memory.
func (l *loaded) find(p unsafe.Pointer, n int) (r region) {
	if n > 0 {
		if w, offset, ok := l.e.comm.Operations().Find(p, n); ok {
			r.window, r.offset = w, offset
		}
	}
	return r
}

func bytesOf(t weft.Tensor) int {
	if t.IsZero() {
		return 0
	}
	return t.Bytes()
}

// reachedBy says whether some rank reaches the input, or the output, of another one of its host.
func reachedBy(f *spec.File, host func(rank int) int) (inputs, outputs bool) {
	for at, op := range f.All() {
		rank := &f.Ranks[at.Rank]
		for _, p := range slices.Concat(op.Src, op.Dst) {
			for _, o := range owners(rank, &rank.Blocks[at.Block], op, p, at.Rank) {
				if (p.At == spec.RemoteBuffer || p.At == spec.Members) && host(o.rank) == host(at.Rank) {
					inputs, outputs = inputs || o.buffer == spec.Input, outputs || o.buffer == spec.Output
				}
			}
		}
	}
	return inputs, outputs
}

// reached says whether peers reach the i-th region.
func (l *loaded) reached(o *operands, i int) bool {
	if o.one {
		return l.inputs || l.outputs
	}
	return i == 0 && l.inputs || i == 1 && l.outputs
}

// staged says whether the i-th region is staged.
func (l *loaded) staged(o *operands, i int) bool {
	return l.reached(o, i) && o.regions[i].window == nil
}

// mostPlaces is how many placements are known at a time.
const mostPlaces = 4096

// place finds where operands lie, and compares it among the ranks when it is new.
func (l *loaded) place(ctx context.Context, x *launch.Launch) (o operands, err error) {
	if !l.inputs && !l.outputs {
		return o, nil
	}
	o = l.arrange(x)
	text := ""
	for i := range o.regions {
		switch r := &o.regions[i]; {
		case !l.reached(&o, i):
		case r.window == nil:
			text += fmt.Sprintf("operand %d: in no window, ", i)
		default:
			text += fmt.Sprintf("operand %d: in window %d at %d, ", i, r.window.ID(), r.offset)
		}
	}
	key := placement(text)
	if l.places[key] {
		return o, nil
	}
	if err := l.e.comm.Operations().VerifySame(ctx, l.plan.Name, text, nil); err != nil {
		return o, err
	}
	if len(l.places) == mostPlaces {
		clear(l.places)
	}
	l.places[key] = true
	return o, nil
}

// layOutStage lays out memory for operands that are staged.
func (c *launchContext) layOutStage(window *enginegpu.Workspace) {
	in, out := 0, 0
	for i := range c.l.plan.File.Ranks {
		r := &c.l.plan.File.Ranks[i]
		in, out = max(in, r.Input), max(out, r.Output)
	}
	c.stagedIn = window.Raw(int64(in) * int64(c.chunk))
	c.stagedOut = window.Raw(int64(out) * int64(c.chunk))
}

// copies are those of a launch, before it and after.
type copies struct{ before, after []transfer }

type transfer struct {
	to, from uint64
	n        int
}

func enqueue(stream *cuda.Stream, all []transfer) error {
	for _, t := range all {
		if err := stream.Copy(cuda.Pointer(t.to), cuda.Pointer(t.from), t.n); err != nil {
			return err
		}
	}
	return nil
}

// point sets the addresses of a launch's operands, and says what is to be copied.
func (c *launchContext) point(a *planArgs, x *launch.Launch, o *operands) (all copies) {
	me := c.l.e.comm.Rank()
	clear(a.in[:])
	clear(a.out[:])
	a.allIn, a.allOut, a.allWindow = 0, 0, uint64(c.lane.Window().Multicast())
	a.in[me], a.out[me] = uint64(x.In.Pointer()), uint64(x.Out.Pointer())
	if o.regions == nil {
		return all
	}
	window := c.lane.Window()
	for i := range o.regions {
		if !c.l.reached(o, i) {
			continue
		}
		region, from, offset := &o.regions[i], o.regions[i].window, o.regions[i].offset
		if from == nil {
			from, offset = window, int(c.stagedIn)
			if i == 1 {
				offset = int(c.stagedOut)
			}
		}
		if all := uint64(from.Multicast()) + uint64(offset); from.Multicast() != 0 {
			if (o.one || i == 0) && samePlace(o.in) {
				a.allIn = all + uint64(o.in[0])
			}
			if (o.one || i == 1) && samePlace(o.out) {
				a.allOut = all + uint64(o.out[0])
			}
		}
		for r := range o.in {
			if c.l.e.comm.Host(r) != c.l.e.comm.Host(me) {
				continue
			}
			at := uint64(from.PeerPointer(r).Add(offset))
			if o.one || i == 0 {
				a.in[r] = at + uint64(o.in[r])
			}
			if o.one || i == 1 {
				a.out[r] = at + uint64(o.out[r])
			}
		}
		if region.window == nil {
			all.stage(c.l.plan.File, a, x, o.one || i == 0, o.one || i == 1, me)
		}
	}
	return all
}

// samePlace says whether all ranks' operands begin at one.
func samePlace(at []int) bool {
	return !slices.ContainsFunc(at, func(n int) bool { return n != at[0] })
}

// stage adds the copies of operands whose addresses are staged.
func (t *copies) stage(f *spec.File, a *planArgs, x *launch.Launch, in, out bool, me int) {
	if n := bytesOf(x.Out); out && n > 0 {
		if !defined(f) { // what it does not write stays
			t.before = append(t.before, transfer{a.out[me], uint64(x.Out.Pointer()), n})
		}
		t.after = append(t.after, transfer{uint64(x.Out.Pointer()), a.out[me], n})
	}
	if n := bytesOf(x.In); in && n > 0 {
		t.before = append(t.before, transfer{a.in[me], uint64(x.In.Pointer()), n})
	}
}
