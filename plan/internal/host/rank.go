package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/weftgo/weft"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/plan/internal/launch"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// rank is this rank's part of a plan at one size of message.
type rank struct {
	*Loaded
	program  *program.Program
	self     int
	all      []*block
	barriers []barrier

	// Kinds are input and output, numbered as a rank's memories are. Both may be parts of one.
	input, output int
	reached       [2]bool // peers reach it
	defined       bool    // the collective is: an output is written whole, an input only read
	stream        bool    // the output is too large to stay in a cache
	shared        []operand

	// Of a launch.
	dtype    weft.DType
	operands [2][]byte // this rank's, by kind
	memories [][]byte  // of all ranks of this host, by their numbers in the program
	places   []place   // between hosts: of this rank and of ranks of other hosts
	staged   [2]bool
	flag     uint32
}

// operand is the bytes of one of a rank's that others reach.
type operand struct{ rank, kind, bytes int }

type barrier struct{ here, turn int }

func newRank(l *Loaded, chunk int) *rank {
	f := l.plan.File
	r := &rank{Loaded: l, self: l.engine.comm.Rank()}
	r.program = program.OfRank(f, program.Shape{Chunk: chunk, Align: f.Alignment}, r.self)
	r.memories = make([][]byte, len(r.program.Memories))
	r.input = r.program.Whole(r.self, spec.Input).Memory % program.Buffers
	r.output = r.program.Whole(r.self, spec.Output).Memory % program.Buffers
	far := l.engine.far != nil
	r.reached[r.input] = l.plan.Inputs || far && l.plan.Pushes[spec.Input]
	r.reached[r.output] = r.reached[r.output] || l.plan.Outputs || far && l.plan.Pushes[spec.Output]
	if far {
		r.places = make([]place, len(r.program.Memories))
	}
	r.defined = slices.Contains([]string{spec.AllReduce, spec.AllGather, spec.ReduceScatter, spec.AllToAll}, f.Collective)
	r.stream = r.bytes(r.self, r.output) >= enginehost.StreamBytes
	var ranges pool[program.Range]
	var counters pool[int]
	numbers := make(map[int]int)
	for i := range r.program.Blocks {
		steps := r.program.Blocks[i].Steps
		steps = steps[l.openings[i] : len(steps)-l.closings[i]]
		b := &block{rank: r, steps: make([]step, len(steps))}
		for k := range b.steps {
			s := &steps[k]
			to := &b.steps[k]
			*to = step{
				kind: s.Op.Kind, paired: s.Paired(), op: launch.Operator(s.Op.Reduce), src: ranges.keep(s.Src),
				dst: ranges.keep(s.Dst), counters: counters.keep(s.Counters), pushes: r.pushes(s), whole: s,
			}
			to.far = to.pushes != nil
			if s.Op.Kind.Reduces() {
				to.folds = ranges.keep(s.Folds())
			}
			first := l.first
			switch s.Op.Kind {
			case spec.SemAcquire, spec.SemRelease:
				first = l.before
			case spec.Barrier:
				if _, known := numbers[s.Op.Barrier]; !known {
					numbers[s.Op.Barrier] = len(numbers)
				}
				to.barrier = numbers[s.Op.Barrier]
			}
			for j := range to.counters {
				to.counters[j] -= first
			}
		}
		r.all = append(r.all, b)
	}
	r.barriers = make([]barrier, len(numbers))
	for kind := range r.operands {
		if !r.reached[kind] {
			continue
		}
		for q := range l.engine.comm.Size() {
			if n := r.bytes(q, kind); n > 0 {
				r.shared = append(r.shared, operand{q, kind, n})
			}
		}
	}
	return r
}

// pool has lists of all steps behind each other.
type pool[T any] []T

// keep puts a list there.
func (p *pool[T]) keep(all []T) []T {
	if len(*p)+len(all) > cap(*p) {
		*p = make([]T, 0, max(len(all), poolLength))
	}
	at := len(*p)
	*p = append(*p, all...)
	return (*p)[at:len(*p):len(*p)]
}

const poolLength = 128

// begin takes a launch.
func (r *rank) begin(given *launch.Launch) {
	r.dtype = given.DType
	for kind, t := range []*weft.Tensor{&given.In, &given.Out} {
		r.operands[kind] = nil
		if n := r.bytes(r.self, kind); n > 0 {
			r.operands[kind] = unsafe.Slice((*byte)(t.Data), n)
		}
	}
}

// end forgets the launch's memory, which is the caller's.
func (r *rank) end() {
	clear(r.operands[:])
	clear(r.memories)
	clear(r.places)
}

// bytes is the length of an operand of a rank.
func (r *rank) bytes(of, kind int) int { return r.program.Memories[program.Buffers*of+kind] }

// refer says where this rank's operands lie, as far as peers reach them.
func (r *rank) refer() (in, out enginehost.OperandRef) {
	var refs [2]enginehost.OperandRef
	for kind, mem := range r.operands {
		if r.reached[kind] && len(mem) > 0 {
			refs[kind] = r.find(mem)
		}
	}
	return refs[0], refs[1]
}

// find refers to an operand that lies in a window which all ranks reach.
func (r *rank) find(mem []byte) enginehost.OperandRef {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if r.engine.far == nil {
		ref, _ := r.engine.rounds.Find(p, len(mem), 0)
		return ref
	}
	w, offset, ok := r.engine.comm.Operations().Find(p, len(mem))
	for q := range r.engine.comm.Size() {
		ok = ok && (w.Peer(q) != nil || w.Remote(q).Bytes() > 0)
	}
	if !ok {
		return enginehost.OperandRef{}
	}
	return enginehost.In(w, uint64(offset), 0)
}

// prepare finds all memory of a launch that opened in a round.
func (r *rank) prepare(ctx context.Context, round uint64) error {
	e, name := r.engine, r.plan.Name
	if r.flag = uint32(round); r.flag == 0 {
		r.flag = ^r.flag
	}
	fresh, meet, err := r.scratch.claim(ctx, e.comm, r.plan, r.program.Shape.Chunk, round)
	if err != nil {
		return err
	}
	if w := r.scratch.window; w != nil {
		for q := range e.comm.Size() {
			r.lies(w, q, int(spec.Scratch), 0, w.Size())
		}
	}
	if r.mail != nil {
		more, err := r.mail.landing.claim(ctx, e.comm, r.plan.Scratch(r.program.Shape.Chunk), round)
		if err != nil {
			return err
		}
		fresh = fresh || more
		clear(r.mail.sent)
		clear(r.mail.took)
	}
	most := 0
	var last found
	for kind := range r.operands {
		r.memories[program.Buffers*r.self+kind], r.staged[kind] = r.operands[kind], false
	}
	for _, o := range r.shared {
		ref := e.rounds.Operand(o.rank, round, o.kind)
		switch {
		case ref.Window == 0:
			most = max(most, o.bytes)
			r.staged[o.kind] = r.staged[o.kind] || o.rank == r.self
		default:
			if err := r.peer(o.rank, ref, o.kind, o.bytes, &last); err != nil {
				return err
			}
		}
	}
	if most > 0 {
		if _, err := e.stage.claim(ctx, e.comm, 2*((most+63)&^63), round); err != nil {
			return err
		}
		r.copyIn(round)
		meet = true
	}
	// Who pushes into a window that a failure has kept from another rank would lose that rank for good.
	if !meet && (e.far == nil || !fresh) {
		// Scratch is made zeros, and operands are copied, on all ranks or on none.
		return nil
	}
	return e.rounds.Await(ctx, name, e.rounds.Publish())
}

// lies takes note of where n bytes of a rank's memory lie in a window.
func (r *rank) lies(w *weft.Window, q, kind, at, n int) {
	if mem := w.Peer(q); mem != nil {
		r.memories[program.Buffers*q+kind] = mem[at:][:n:n]
	}
	if r.places != nil {
		r.places[program.Buffers*q+kind] = r.placeIn(w, q, at)
	}
}

// found is a window by its number: operands are mostly in the same one.
type found struct {
	id     uint64
	window *weft.Window
}

// peer finds n bytes of an operand of a rank.
func (r *rank) peer(q int, ref enginehost.OperandRef, kind, n int, last *found) error {
	if last.id != ref.Window {
		last.id = ref.Window
		last.window, _ = r.engine.comm.Operations().Window(ref.Window)
	}
	w := last.window
	switch {
	case w == nil:
		_, err := r.engine.rounds.Resolve(q, ref, r.plan.Name)
		return err
	case ref.Offset > uint64(w.Size()) || uint64(n) > uint64(w.Size())-ref.Offset:
		return r.engine.rounds.Broken(&weft.PeerError{
			Rank: q, Op: r.plan.Name,
			Err: fmt.Errorf("its operand of %d bytes at %d of window %d ends behind it", n, ref.Offset, ref.Window),
		})
	}
	r.lies(w, q, kind, int(ref.Offset), n)
	return nil
}

// copyIn gives operands that lie in no window a place on the stage, those of peers too.
func (r *rank) copyIn(round uint64) {
	e := r.engine
	for _, o := range r.shared {
		if e.rounds.Operand(o.rank, round, o.kind).Window == 0 {
			r.lies(e.stage.window, o.rank, o.kind, e.stage.at(o.kind), o.bytes)
		}
	}
	for kind := range r.operands {
		if r.staged[kind] && (kind == r.input || !r.defined) {
			e.moves.Stage(r.memories[program.Buffers*r.self+kind], r.operands[kind])
		}
	}
}

// finish brings results from the stage.
func (r *rank) finish() {
	for kind, staged := range r.staged {
		if staged && (kind == r.output || !r.defined) {
			r.engine.moves.Copy(r.operands[kind], r.memories[program.Buffers*r.self+kind], r.stream)
		}
	}
}

// at is the memory of a range.
func (r *rank) at(x program.Range) []byte {
	from, to := x.Bytes()
	return r.memories[x.Memory][from:to:to]
}

// run runs all blocks.
func (r *rank) run(ctx context.Context) error {
	clear(r.barriers)
	for _, b := range r.all {
		b.begin()
	}
	for {
		if err := r.take(); err != nil {
			return err
		}
		moved, left := false, false
		for _, b := range r.all {
			moved = b.advance() || moved
			left = left || b.pc < len(b.steps)
		}
		switch {
		case !left:
			return nil
		case moved:
		default:
			if err := r.wait(ctx); err != nil {
				return r.engine.comm.Operations().Fail(err)
			}
		}
	}
}

// wait waits until a block can go on. The first that waits for a peer is what a failure tells of.
func (r *rank) wait(ctx context.Context) error {
	waiter := r.engine.rounds.Waiter()
	var first, local *block
	alone := true
	for _, b := range r.all {
		switch {
		case b.pc == len(b.steps):
		case b.peer() == r.self:
			local = b
		case first == nil:
			first = b
		default:
			alone = false
		}
	}
	switch {
	case first == nil:
		return &weft.PeerError{
			Rank: r.self, Op: local.name(), Err: fmt.Errorf("%w: no block of the rank can go on", weft.ErrInvalid),
		}
	case r.engine.far != nil:
		var broken error
		err := r.engine.rounds.AwaitFar(ctx, first.name(), first.peer(), func() bool {
			broken = r.take()
			return broken != nil || slices.ContainsFunc(r.all, (*block).ready)
		})
		return cmp.Or(broken, err)
	case alone && first.stop == onEnd:
		return first.hear(ctx, waiter)
	}
	return waiter.Until(ctx, first.name(), first.peer(), func() bool {
		return slices.ContainsFunc(r.all, (*block).ready)
	})
}
