package ep

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/routing"
	"github.com/weftgo/weft/ep"
)

// hostRank measures one shape on one rank of the host's.
type hostRank struct {
	*timing.Host
	expected
	handle  *ep.Handle
	gen     *routing.Generator
	input   weft.DType // of the rows that the caller passes
	x       ep.Rows
	y       []byte // the experts' rows, unless they take the place of the received ones
	out     []byte
	sets    []batch
	traffic routing.Traffic // sums over the batches

	// Of the round that is under way.
	rounds   int
	batch    *batch
	routed   *ep.Routing
	received *ep.Received
	rows     weft.Tensor // of the experts
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

// Measure measures one shape: dispatch, combine, and prepare if routings are not prepared before.
func Measure(h *timing.Host, cfg Shape) (_ []timing.Series, err error) {
	m := &hostRank{Host: h, expected: expected{cfg: cfg}}
	if err := m.setUp(); err != nil {
		return nil, err
	}
	defer func() {
		m.release()
		if e := m.handle.Close(); err == nil {
			err = e
		}
	}()
	warmup := cfg.Warmup
	if warmup == 0 {
		// Every routing with both of the handle's receive blocks.
		warmup = 2*len(m.sets) + 2
	}
	rehearsal := 8
	if cfg.Tokens < 64 {
		rehearsal = 256 // short ones take a while to reach their pace
	}
	series, err := m.Time(cfg.Effort, timing.Rounds{
		Operations: m.operations(), Warmup: warmup, Rehearsal: rehearsal, Checked: m.checked,
	})
	if err == nil && !cfg.Cached {
		series = append(series[1:], series[0]) // prepare is printed last
	}
	return series, err
}

// checked says whether iteration i of n is checked: three times in a row through all
// routings, so that all but the first of each find their rows poisoned by the one
// before, and the last iteration is among them.
func (m *hostRank) checked(i, n int) bool {
	span := len(m.sets) + 1
	for _, end := range [...]int{n / 3, 2 * n / 3, n} {
		if i < end && i >= end-span {
			return true
		}
	}
	return false
}

func (m *hostRank) setUp() (err error) {
	me, ranks, cfg := m.Comm.Rank(), m.Comm.Size(), m.cfg
	m.me, m.ranks = me, ranks
	for r := range ranks {
		m.hosts = append(m.hosts, m.Comm.Host(r))
	}
	if m.spec, err = cfg.Spec(ranks); err != nil {
		return err
	}
	if m.handle, err = ep.NewHandle(m.Context, m.Comm, m.spec); err != nil {
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
	x, _, err := m.Operand(cfg.Tokens*rowBytes, cfg.Heap)
	if err != nil {
		return err
	}
	m.x.Data = weft.TensorAt(x, m.input, cfg.Tokens, cfg.Hidden)
	m.writeTokens()
	m.out = make([]byte, cfg.Tokens*rowBytes)
	if !cfg.InPlace || cfg.Heap {
		if m.y, _, err = m.Operand(m.handle.Capacity()*rowBytes, cfg.Heap); err != nil {
			return err
		}
	}
	if cfg.Cached {
		for i := range m.sets {
			b := &m.sets[i]
			if b.prepared, err = m.handle.Prepare(m.Context, nil, b.topk, b.weight); err != nil {
				return err
			}
		}
	}
	return nil
}

// operations are a round: prepare, dispatch and combine.
func (m *hostRank) operations() []timing.Operation {
	there, back := m.bytes()
	sums := weft.TensorAt(m.out, m.spec.Output, m.cfg.Tokens, m.cfg.Hidden)
	dispatch := timing.Operation{
		Name: "dispatch", Bytes: there,
		Run: func(bool) (err error) {
			m.received, err = m.send()
			return err
		},
		Check: func() error {
			m.checkReceived(m.batch, m.received)
			timing.Poison(m.out)
			return m.verdict(nil)
		},
	}
	combine := timing.Operation{
		Name: "combine", Bytes: back,
		Renew: func(checked bool) error {
			m.rows = m.expertRows()
			m.runExperts(m.batch, m.received, m.rows, checked)
			return nil
		},
		Run: func(bool) error { return m.bringHome(sums) },
		Check: func() error {
			m.checkHome(m.batch, m.out, m.rounds)
			// The rows that arrive here next must not find the right ones in memory already. Peers
			// have finished reading: combine has returned.
			m.eachRow(m.batch, func(row, _, _, _ int) {
				if row < m.received.Rows() {
					timing.Poison(m.at(m.received.Data, row))
				}
			})
			return m.verdict(nil)
		},
	}
	if m.cfg.Cached {
		dispatch.Renew = m.begin
		return []timing.Operation{dispatch, combine}
	}
	prepare := timing.Operation{
		Name: "prepare", Renew: m.begin,
		Run: func(bool) (err error) {
			m.routed, err = m.handle.Prepare(m.Context, nil, m.batch.topk, m.batch.weight)
			return err
		},
	}
	return []timing.Operation{prepare, dispatch, combine}
}

// begin begins a round with the next routing.
func (m *hostRank) begin(bool) error {
	m.release()
	m.batch = &m.sets[m.rounds%len(m.sets)]
	m.routed = m.batch.prepared
	m.rounds++
	if m.cfg.Fresh {
		m.writeTokens()
	}
	return nil
}

// release releases the results of the last round.
func (m *hostRank) release() {
	if m.received != nil {
		m.received.Release()
	}
	if m.routed != nil && m.batch.prepared == nil {
		m.routed.Release()
	}
	m.received, m.routed = nil, nil
}

// writeTokens fills the rows of this rank's tokens.
func (m *hostRank) writeTokens() {
	for t := range m.cfg.Tokens {
		copy(m.at(m.x.Data, t), m.row(m.input, m.me, t, 0))
	}
}

func (m *hostRank) send() (*ep.Received, error) {
	if !m.cfg.Phases {
		return m.handle.Dispatch(m.Context, nil, ep.DispatchArgs{Routing: m.routed, Rows: m.x})
	}
	pending, err := m.handle.SendDispatch(m.Context, nil, ep.DispatchArgs{Routing: m.routed, Rows: m.x})
	if err != nil {
		return nil, err
	}
	return pending.Receive(m.Context)
}

func (m *hostRank) bringHome(out weft.Tensor) error {
	if !m.cfg.Phases {
		return m.handle.Combine(m.Context, nil, ep.CombineArgs{Routing: m.routed, Rows: m.rows, Out: out})
	}
	work, err := m.handle.SendCombine(m.Context, nil, ep.CombineArgs{Routing: m.routed, Rows: m.rows, Out: out})
	if err != nil {
		return err
	}
	return work.Wait(m.Context)
}

// expertRows is the tensor that the experts leave their rows in.
func (m *hostRank) expertRows() weft.Tensor {
	if m.y == nil {
		return m.received.Data
	}
	return weft.TensorAt(m.y, m.spec.Output, m.received.Data.Shape...)
}

// bytes are those of a dispatch and a combine, in the mean over the routings.
func (m *hostRank) bytes() (there, back timing.Bytes) {
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
	there = timing.Bytes{
		Wire: float64(t.RemoteRankRows) * row / n, Logical: float64(t.RankRows) * row / n,
		DeepEP: float64(t.Selections) * row / n,
		Moved:  (float64(t.Tokens)*float64(m.cfg.Hidden*m.input.Size()) + float64(received)*row) / n,
	}
	back = timing.Bytes{
		Wire: float64(returning) * home / n, Logical: float64(t.RankRows) * home / n,
		DeepEP: float64(t.Selections) * home / n,
		Moved:  float64(received+t.Tokens) * home / n,
	}
	return there, back
}
