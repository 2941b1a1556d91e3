package bench

import (
	"fmt"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/ep"
)

// Spec translates a shape for package ep, and says what is wrong with it.
func (e EP) Spec(ranks int) (ep.Spec, error) {
	s := ep.Spec{
		Experts: e.Experts, TopK: e.TopK, Hidden: e.Hidden, MaxTokens: max(e.Tokens, e.Capacity, 1),
		SMs: e.SMs, Tuning: e.Tuning,
	}
	var err error
	if s.Layout, err = ep.ParseLayout(e.Layout); err != nil {
		return s, err
	}
	if s.Reduction, err = ep.ParseReduction(e.Reduction); err != nil {
		return s, err
	}
	if s.Weighting, err = ep.ParseWeighting(e.Weighting); err != nil {
		return s, err
	}
	if s.Counts, err = ep.ParseCounts(e.Counts); err != nil {
		return s, err
	}
	if s.Payload, err = ep.ParsePayload(e.DType); err != nil {
		return s, err
	}
	if e.Scales != "" {
		if s.ScaleOrder, err = ep.ParseScaleOrder(e.Scales); err != nil {
			return s, err
		}
	}
	switch s.Payload {
	case ep.FP8, ep.FP8UE8M0:
		if s.Output = weft.BFloat16; !e.Given {
			s.Quantize = weft.BFloat16
		}
		if e.InPlace {
			return s, fmt.Errorf("experts cannot overwrite %v rows with theirs, which are %v; leave "+
				"in-place out", s.Payload, s.Output)
		}
	case ep.Opaque:
		return s, fmt.Errorf("opaque rows are not measured: nothing says what combining them means")
	case ep.BF16:
		s.Output = weft.BFloat16
	case ep.FP16:
		s.Output = weft.Float16
	default:
		s.Output = weft.Float32
	}
	untuned := s // which Validate is not for
	untuned.Tuning = ep.Tuning{}
	return s, untuned.Validate(ranks)
}

// epRank measures one shape on one rank.
type epRank struct {
	*rank
	expected
	handle   *ep.Handle
	gen      *routing.Generator
	input    weft.DType // of the rows that the caller passes
	x        ep.Rows
	y        []byte // the experts' rows, unless they take the place of the received ones
	out      []byte
	sets     []batch
	dispatch *timings
	prepare  *timings
	combine  *timings
	traffic  routing.Traffic // sums over the batches
}

// batch is one routing of all ranks.
type batch struct {
	ids     [][]int32   // by rank
	weights []float32   // this rank's
	all     [][]float32 // on GPUs: every rank's
	topk    weft.Tensor
	weight  weft.Tensor
	// prepared holds the routing that is used again and again, if it is.
	prepared *ep.Routing
}

func (r *rank) measureEP(cfg EP) (_ []Series, err error) {
	m := &epRank{rank: r, expected: expected{cfg: cfg}}
	if err := m.setUp(); err != nil {
		return nil, err
	}
	defer func() {
		if e := m.handle.Close(); err == nil {
			err = e
		}
	}()
	warmup := cfg.Warmup
	if warmup == 0 {
		// Every routing with both of the handle's receive blocks.
		warmup = 2*len(m.sets) + 2
	}
	m.restart(warmup)
	for i := range warmup {
		if err := m.iterate(i, true); err != nil {
			return nil, err
		}
	}
	rehearsal := 8
	if cfg.Tokens < 64 {
		rehearsal = 256 // short ones take a while to reach their pace
	}
	began := time.Now()
	for i := range rehearsal {
		if err := m.iterate(i, false); err != nil {
			return nil, err
		}
	}
	n, err := m.iterations(cfg.Effort, rehearsal, time.Since(began))
	if err != nil {
		return nil, err
	}
	m.restart(n)
	for i := range n {
		if err := m.iterate(i, m.checked(i, n)); err != nil {
			return nil, err
		}
		if err := m.progress(i, n); err != nil {
			return nil, err
		}
	}
	return m.series(), nil
}

// restart forgets what was timed and makes room for n iterations.
func (m *epRank) restart(n int) {
	m.dispatch, m.prepare, m.combine = newTimings(n), newTimings(n), newTimings(n)
}

// checked says whether iteration i of n is checked: three times in a row through all
// routings, so that all but the first of each find their rows poisoned by the one
// before, and the last iteration is among them.
func (m *epRank) checked(i, n int) bool {
	span := len(m.sets) + 1
	for _, end := range [...]int{n / 3, 2 * n / 3, n} {
		if i < end && i >= end-span {
			return true
		}
	}
	return false
}

func (m *epRank) setUp() (err error) {
	me, ranks, cfg := m.comm.Rank(), m.comm.Size(), m.cfg
	m.me, m.ranks = me, ranks
	if m.spec, err = cfg.Spec(ranks); err != nil {
		return err
	}
	if m.handle, err = ep.NewHandle(m.ctx, m.comm, m.spec); err != nil {
		return err
	}
	m.input = m.spec.Output
	if err := m.makeRows(); err != nil {
		return err
	}
	if m.gen, err = routing.New(routing.Config{
		Kind: cfg.Routing, Seed: cfg.Seed, Ranks: ranks, Experts: cfg.Experts, TopK: cfg.TopK,
	}); err != nil {
		return err
	}
	for i := range cfg.Batches {
		b := batch{ids: make([][]int32, ranks)}
		for r := range ranks {
			ids, weights := m.gen.Route(r+i*ranks, cfg.Tokens) // a rank of its own for each batch
			b.ids[r] = ids
			if r == me {
				b.weights = weights
			}
		}
		b.topk = weft.TensorOf(b.ids[me], cfg.Tokens, cfg.TopK)
		b.weight = weft.TensorOf(b.weights, cfg.Tokens, cfg.TopK)
		m.traffic = m.traffic.Add(routing.Count(b.ids[me], cfg.TopK, me, cfg.Experts/ranks))
		m.sets = append(m.sets, b)
	}
	rowBytes := cfg.Hidden * m.input.Size()
	x, _, err := m.operand(cfg.Tokens*rowBytes, cfg.Heap)
	if err != nil {
		return err
	}
	m.x.Data = weft.TensorAt(x, m.input, cfg.Tokens, cfg.Hidden)
	m.writeTokens()
	m.out = make([]byte, cfg.Tokens*rowBytes)
	if !cfg.InPlace || cfg.Heap {
		if m.y, _, err = m.operand(m.handle.Capacity()*rowBytes, cfg.Heap); err != nil {
			return err
		}
	}
	if cfg.Cached {
		for i := range m.sets {
			b := &m.sets[i]
			if b.prepared, err = m.handle.Prepare(m.ctx, nil, b.topk, b.weight); err != nil {
				return err
			}
		}
	}
	return nil
}

// iterate does one round trip and times it.
func (m *epRank) iterate(i int, check bool) error {
	b := &m.sets[i%len(m.sets)]
	if m.cfg.Fresh {
		m.writeTokens()
	}
	if err := m.barrier(); err != nil {
		return err
	}
	routed := b.prepared
	began := time.Now()
	if routed == nil {
		var err error
		if routed, err = m.handle.Prepare(m.ctx, nil, b.topk, b.weight); err != nil {
			return err
		}
		m.prepare.add(time.Since(began))
		if err := m.barrier(); err != nil {
			return err
		}
		began = time.Now()
	}
	received, err := m.send(routed)
	if err != nil {
		return err
	}
	m.dispatch.add(time.Since(began))

	y := m.expertRows(received)
	out := weft.TensorAt(m.out, m.spec.Output, m.cfg.Tokens, m.cfg.Hidden)
	if check {
		m.checkReceived(b, received)
		fill(m.out)
	}
	m.runExperts(b, received, y, check)
	if err := m.barrier(); err != nil {
		return err
	}
	began = time.Now()
	if err := m.bringHome(routed, y, out); err != nil {
		return err
	}
	m.combine.add(time.Since(began))
	if check {
		m.checkHome(b, m.out, i)
		// Whoever receives here next must not find the right rows lying about. Peers have
		// finished reading: combine has returned.
		m.eachRow(b, func(row, _, _, _ int) {
			if row < received.Rows() {
				fill(m.at(received.Data, row))
			}
		})
	}
	received.Release()
	if b.prepared == nil {
		routed.Release()
	}
	return nil
}

// writeTokens fills the rows of this rank's tokens.
func (m *epRank) writeTokens() {
	for t := range m.cfg.Tokens {
		copy(m.at(m.x.Data, t), m.row(m.input, m.me, t, 0))
	}
}

func (m *epRank) send(routed *ep.Routing) (*ep.Received, error) {
	if !m.cfg.Phases {
		return m.handle.Dispatch(m.ctx, nil, routed, m.x)
	}
	pending, err := m.handle.SendDispatch(m.ctx, nil, routed, m.x)
	if err != nil {
		return nil, err
	}
	return pending.Receive(m.ctx)
}

func (m *epRank) bringHome(routed *ep.Routing, y, out weft.Tensor) error {
	if !m.cfg.Phases {
		return m.handle.Combine(m.ctx, nil, routed, y, out)
	}
	work, err := m.handle.SendCombine(m.ctx, nil, routed, y, out)
	if err != nil {
		return err
	}
	return work.Wait(m.ctx)
}

// expertRows is the tensor that the experts leave their rows in.
func (m *epRank) expertRows(received *ep.Received) weft.Tensor {
	if m.y == nil {
		return received.Data
	}
	return weft.TensorAt(m.y, m.spec.Output, received.Data.Shape...)
}

// series sums up what was measured.
func (m *epRank) series() []Series {
	n := float64(len(m.sets))
	t := m.traffic
	row := float64(m.cfg.Hidden*m.payload.Size() + m.scaleBytes())
	home := float64(m.cfg.Hidden * m.spec.Output.Size())
	received := t.Selections // rows written for this rank's tokens, by all ranks
	if !m.byExpert() {
		received = t.RankRows
	}
	returning := t.RemoteSelections
	if m.spec.Reduction != ep.Exact {
		returning = t.RemoteRankRows
	}
	there := Series{
		Op: "dispatch", Times: m.dispatch.pack(), Problem: m.problem,
		Wire: float64(t.RemoteRankRows) * row / n, Logical: float64(t.RankRows) * row / n,
		DeepEP: float64(t.Selections) * row / n,
		Moved:  (float64(t.Tokens)*float64(m.cfg.Hidden*m.input.Size()) + float64(received)*row) / n,
	}
	back := Series{
		Op: "combine", Times: m.combine.pack(), Problem: m.problem,
		Wire: float64(returning) * home / n, Logical: float64(t.RankRows) * home / n,
		DeepEP: float64(t.Selections) * home / n,
		Moved:  float64(received+t.Tokens) * home / n,
	}
	out := []Series{there, back}
	if !m.cfg.Cached {
		out = append(out, Series{Op: "prepare", Times: m.prepare.pack(), Problem: m.problem})
	}
	return out
}
