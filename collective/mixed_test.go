package collective

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

var (
	soakOps  = flag.Int("soak.ops", 2000, "operations of TestSoak and TestSoakOnGPUs, each one checked")
	soakSeed = flag.Uint64("soak.seed", 1, "seed of TestSoak")

	soakReplays = flag.Int("soak.replays", 500, "rounds of one to three replays of each graph of TestGraphsOnGPUs")
)

// plan is a program of operations in an order that its seed gives.
type plan struct {
	seed     uint64
	ops      int // at least
	messages int // of three operations, so many are rounds of messages
	graphs   bool
	types    []weft.DType // that are reduced and moved
}

// A turn is a call, or a round of messages, with its operands.
type turn struct {
	*gpuRank
	at     cuda.Pointer
	c      gpuCase
	call   *gpuOperands // nil: it is a round
	round  *gpuMessages
	inCall int // how this rank makes the calls of the round
}

// next draws the next turn of a plan, whose operands lie from at on. A graph's are read again and again, and
// a scalar of the host's is a part of it.
func (p *plan) next(order *rand.Rand, r *gpuRank, at cuda.Pointer, captured bool) (s *turn, err error) {
	me, ranks := r.comm.Rank(), r.comm.Size()
	s = &turn{gpuRank: r, at: at}
	if order.IntN(3) < p.messages {
		s.round, err = r.place(anyMessages(order, ranks, 3*ranks), at)
		s.inCall = ofRound(order, me, ranks)
		return s, err
	}
	s.c = anyCase(order, ranks, p.types)
	s.c.marks = []string{"", "", "ones", "zeros"}[order.IntN(4)]
	s.c.inPlace = order.IntN(3) == 0 && !captured
	switch order.IntN(4) {
	case 0:
		switch {
		case r.memory != nil && s.c.kind == AllReduce:
			s.c.name = "all-reduce/two-shot"
		case r.comm.Operations().Spans() && s.c.kind.Reduces() && (isFloat(s.c.dtype) || s.c.op != weft.Avg):
			s.c.name = s.c.kind.String() + "/hierarchical-exact"
		}
	case 1:
		if s.c.kind.Reduces() && !captured && spec.Reducible(s.c.kind, weft.PreMulSum, s.c.dtype) == nil {
			s.c.op, s.c.onDevice = weft.PreMulSum, r.memory != nil && order.IntN(2) == 0
		}
	}
	return s, nil
}

func (s *turn) String() string {
	if s.round != nil {
		return fmt.Sprintf("messages %v", s.round.all)
	}
	return s.c.String()
}

// put makes the operands anew.
func (s *turn) put() (err error) {
	if s.round == nil {
		s.call, err = s.gpuRank.put(s.c, s.at)
		return err
	}
	for i := range s.round.all {
		s.round.all[i].number++
	}
	return s.upload(s.round)
}

func (s *turn) enqueue(ctx context.Context, stream *weft.Stream) error {
	if s.round == nil {
		return s.Do(ctx, stream, s.call.call)
	}
	return s.exchange(ctx, stream, s.round, s.inCall)
}

func (s *turn) verify(ctx context.Context) error {
	if s.round == nil {
		return s.gpuRank.verify(ctx, s.call)
	}
	return s.arrived(s.round)
}

// turnBytes is the room of a turn of a graph.
const turnBytes = 512 << 10

// mixed runs a plan on this rank's group and others: calls one by one, and graphs of 1, 2, 3, 5 and 7
// operations among them, which are replayed. The result of each operation is compared.
func mixed(p plan, others ...*gpuRank) func(ctx context.Context, r *gpuRank) error {
	return func(ctx context.Context, r *gpuRank) error {
		m := &mix{
			plan: p, on: append([]*gpuRank{r}, others...), order: rand.New(rand.NewPCG(p.seed, 0)),
			own: rand.New(rand.NewPCG(p.seed, uint64(1+r.comm.Rank()))),
		}
		for m.done < p.ops {
			err := m.eager(ctx)
			if err == nil && p.graphs && m.order.IntN(8) == 0 {
				err = m.graph(ctx, []int{1, 2, 3, 5, 7}[m.order.IntN(5)])
			}
			if err != nil {
				return fmt.Errorf("seed %d, operation %d: %w", p.seed, m.done, err)
			}
		}
		return nil
	}
}

// mix is a plan that is run.
type mix struct {
	plan
	on    []*gpuRank // this rank's groups
	order *rand.Rand // the same on every rank
	own   *rand.Rand
	done  int
}

func (m *mix) rank() *gpuRank { return m.on[m.order.IntN(len(m.on))] }

// eager makes one call, or one round of messages.
func (m *mix) eager(ctx context.Context) error {
	r := m.rank()
	s, err := m.next(m.order, r, r.base(), false)
	if err != nil {
		return err
	}
	if m.own.IntN(8) == 0 {
		time.Sleep(time.Duration(m.own.IntN(1000)) * time.Microsecond)
	}
	m.done++
	if err := errors.Join(s.put(), s.enqueue(ctx, nil)); err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	if err := s.verify(ctx); err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	return nil
}

// graph captures operations, and replays them with other data, among calls.
func (m *mix) graph(ctx context.Context, n int) error {
	r := m.rank()
	turns := make([]*turn, n)
	for i := range turns {
		s, err := m.next(m.order, r, r.base().Add((n-i)*turnBytes), true)
		if err == nil {
			err = s.put()
		}
		if err != nil {
			return err
		}
		turns[i] = s
	}
	enqueue := func(s *weft.Stream) error {
		for _, one := range turns {
			if err := one.enqueue(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
	return r.capture(enqueue, func(s *cuda.Stream, g *cuda.GraphExec) error {
		for replay := range 1 + m.order.IntN(6) {
			for _, one := range turns {
				if err := one.put(); err != nil {
					return err
				}
			}
			for range 1 + m.order.IntN(3) { // the same again
				m.done += n
				if err := g.Launch(s); err != nil {
					return err
				}
			}
			if err := r.comm.Wait(ctx, weft.StreamOf(s)); err != nil {
				return fmt.Errorf("graph of %d, replay %d: %w", n, replay, err)
			}
			for i, one := range turns {
				if err := one.verify(ctx); err != nil {
					return fmt.Errorf("graph of %d, replay %d, operation %d, %v: %w", n, replay, i, one, err)
				}
			}
			for range m.order.IntN(3) {
				if err := m.eager(ctx); err != nil {
					return fmt.Errorf("after replay %d: %w", replay, err)
				}
			}
		}
		return nil
	})
}

// soak runs a plan on two communicators of the same ranks, on GPUs or, without any, on the host.
func soak(t *testing.T, g *ranktest.GPUs, ranks int, p plan) {
	t.Helper()
	options := func(rank int) []weft.Option {
		o := []weft.Option{weft.WithDeadline(30 * time.Second)}
		if g != nil {
			o = append(o, g.Options(rank)...)
		}
		return o
	}
	var comms [2][]*weft.Comm
	for i := range comms {
		var err error
		if comms[i], err = ranktest.JoinEach(ranks, options); err != nil {
			t.Fatal(err)
		}
	}
	err := ranktest.Each(comms[0], func(c *weft.Comm) (err error) {
		ctx, on := context.Background(), []*gpuRank(nil)
		defer func() {
			for _, r := range on {
				err = errors.Join(err, r.close())
			}
		}()
		for i, comm := range []*weft.Comm{c, comms[1][c.Rank()]} {
			r, err := soakRank(ctx, comm, p.types, i == 0)
			if err != nil {
				return err
			}
			on = append(on, r)
		}
		return mixed(p, on[1:]...)(ctx, on[0])
	})
	if err := errors.Join(err, ranktest.Close(comms[0]), ranktest.Close(comms[1])); err != nil {
		t.Error(err)
	}
}

// soakRank is a rank of a communicator. On the host its operands lie in a window or not.
func soakRank(ctx context.Context, comm *weft.Comm, types []weft.DType, inWindow bool) (r *gpuRank, err error) {
	r = &gpuRank{comm: comm}
	switch {
	case comm.Device() != nil:
		r.memory, err = comm.Device().Context().Alloc(gpuMemory)
	case inWindow:
		var w *weft.Window
		if w, err = comm.Alloc(ctx, gpuMemory); err == nil {
			r.heap = w.Bytes()
		}
	default:
		r.heap = make([]byte, gpuMemory)
	}
	if err != nil {
		return nil, err
	}
	sms := max(2, comm.Size())
	r.Group, err = New(ctx, comm, Options{Staging: gpuStaging, SMs: sms, Scratch: smallScratch, DTypes: types})
	return r, err
}

// close gives back what soakRank has taken.
func (r *gpuRank) close() error {
	err := r.Group.Close()
	if r.memory != nil {
		err = errors.Join(err, r.memory.Close())
	}
	return err
}

// TestSoak mixes collectives, messages and graphs, of any type, size and place, on the host and on emulated
// GPUs.
func TestSoak(t *testing.T) {
	ops := *soakOps
	if testing.Short() {
		ops = min(ops, 300)
	}
	t.Run("host", func(t *testing.T) {
		soak(t, nil, 4, plan{seed: *soakSeed, ops: ops, messages: 1, types: dtypes})
	})
	t.Run("emulated", func(t *testing.T) {
		p := plan{seed: *soakSeed, ops: ops / 16, messages: 1, graphs: true, types: mixedTypes}
		if emulate.Everything() {
			p.types = dtypes
		}
		soak(t, emulatedGPUs(t, 3), 3, p)
	})
}

// TestSoakOnGPUs is the same on real ones.
func TestSoakOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			soak(t, g, ranks, plan{seed: *soakSeed, ops: *soakOps, messages: 1, graphs: true, types: dtypes})
		})
	}
}
