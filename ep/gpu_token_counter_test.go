package ep_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// countCase is what a TokenCounter is made for, and the size of what it counts.
type countCase struct {
	experts, ranks, perNode int
	tokens, topk            int
	wide                    bool
	off                     int               // where selections begin, in elements, and the table, in bytes
	pick                    func(i int) int64 // the expert of selection i
}

// counting is memory on the GPU for one case: selections, and behind each other, each with poison
// around it, what is counted.
type counting struct {
	countCase
	e       *eptest.Device
	comm    *weft.Comm
	ids     eptest.Memory
	out     eptest.Memory
	at, end [4]int // of the tensors, in out
}

// poison is in memory that nobody has written.
const poison = 0xA5

func newCounting(e *eptest.Device, comm *weft.Comm, c countCase) (*counting, error) {
	m := &counting{countCase: c, e: e, comm: comm}
	n := 16
	for i, size := range []int{4 * c.ranks, 4 * (c.ranks / c.perNode), 4 * c.experts, c.tokens * c.ranks} {
		m.at[i] = n
		if i == 3 {
			m.at[i] += c.off
		}
		m.end[i] = m.at[i] + size
		n = (m.end[i] + 19) &^ 3
	}
	var err error
	if m.ids, err = e.Alloc(comm, (c.tokens*c.topk+c.off)*m.width(), false); err != nil {
		return nil, err
	}
	if m.out, err = e.Alloc(comm, n, false); err != nil {
		return nil, err
	}
	return m, m.load(c.pick)
}

func (m *counting) free() error { return errors.Join(m.ids.Free(), m.out.Free()) }

// width is the size of an expert's number.
func (m *counting) width() int {
	if m.wide {
		return 8
	}
	return 4
}

// load puts selections into place, and poison where the results will be.
func (m *counting) load(pick func(i int) int64) error {
	m.pick = pick
	var raw []byte
	for i := range m.tokens * m.topk {
		if m.wide {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(pick(i)))
		} else {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(pick(i)))
		}
	}
	if len(raw) > 0 {
		if err := m.e.Upload(m.comm, m.topkTensor().Data, raw); err != nil {
			return err
		}
	}
	return m.e.Upload(m.comm, m.out.Data, bytes.Repeat([]byte{poison}, m.end[3]+1))
}

func (m *counting) topkTensor() weft.Tensor {
	t := weft.Tensor{Data: unsafe.Add(m.ids.Data, m.off*m.width()), DType: weft.Int32, Shape: []int{m.tokens, m.topk}}
	if m.wide {
		t.DType = weft.Int64
	}
	return t
}

// into is all tensors.
func (m *counting) into() ep.DeviceTokenCounts {
	at := func(i int, d weft.DType, shape ...int) weft.Tensor {
		return weft.Tensor{Data: unsafe.Add(m.out.Data, m.at[i]), DType: d, Shape: shape}
	}
	return ep.DeviceTokenCounts{
		RankTokens: at(0, weft.Int32, m.ranks), NodeTokens: at(1, weft.Int32, m.ranks/m.perNode),
		ExpertSelections: at(2, weft.Int32, m.experts), TokenInRank: at(3, weft.Uint8, m.tokens, m.ranks),
	}
}

// want is the memory as CountRouting would leave it; what is in no tensor that is wanted stays poison.
func (m *counting) want(wanted ep.DeviceTokenCounts) ([]byte, error) {
	ids := make([]int64, m.tokens*m.topk)
	for i := range ids {
		if ids[i] = m.pick(i); ids[i] < 0 || ids[i] >= int64(m.experts) {
			ids[i] = -1
		}
	}
	c, err := ep.CountRouting(weft.TensorOf(ids, m.tokens, m.topk), m.experts, m.ranks, m.perNode)
	if err != nil {
		return nil, err
	}
	raw := bytes.Repeat([]byte{poison}, m.end[3]+1)
	for i, of := range []struct {
		tensor weft.Tensor
		counts []int32
	}{{wanted.RankTokens, c.RankTokens}, {wanted.NodeTokens, c.NodeTokens}, {
		wanted.ExpertSelections,
		c.ExpertSelections,
	}} {
		for j, n := range of.counts {
			if !of.tensor.IsZero() {
				binary.LittleEndian.PutUint32(raw[m.at[i]+4*j:], uint32(n))
			}
		}
	}
	for i, in := range c.TokenInRank {
		if wanted.TokenInRank.IsZero() {
			break
		}
		raw[m.at[3]+i] = 0
		if in {
			raw[m.at[3]+i] = 1
		}
	}
	return raw, nil
}

// check compares the memory with what it should be.
func (m *counting) check(wanted ep.DeviceTokenCounts) error {
	want, err := m.want(wanted)
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if err := m.e.Download(m.comm, got, m.out.Data); err != nil {
		return err
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of memory is %#x, want %#x; tensors are at %v to %v", i, got[i], want[i], m.at, m.end)
		}
	}
	return nil
}

// run counts a case in the communicator's own stream, and looks at what comes out.
func (c countCase) run(ctx context.Context, e *eptest.Device, comm *weft.Comm) (err error) {
	counter, err := ep.NewTokenCounter(ctx, comm, c.experts, c.ranks, c.perNode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, counter.Close()) }()
	m, err := newCounting(e, comm, c)
	if err != nil {
		return err
	}
	into := m.into()
	return errors.Join(counter.Count(ctx, nil, m.topkTensor(), into), m.check(into), m.free())
}

// onOneGPU runs body on a communicator of one rank.
func (m *gpuMachine) onOneGPU(t *testing.T, body func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error) {
	t.Helper()
	ctx := testContext(t)
	e := m.engine(t, 1, gpuDeadline)
	if err := e.Ranks(1, func(c *weft.Comm) error { return body(ctx, e, c) }); err != nil {
		t.Fatal(err)
	}
}

// scattered picks experts at random, and sometimes none.
func scattered(seed uint64, experts int) func(i int) int64 {
	return func(i int) int64 { return rand.New(rand.NewPCG(seed, uint64(i))).Int64N(int64(experts)+1) - 1 }
}

// TestTokenCounterOnGPUs counts on GPUs, and on the host.
func TestTokenCounterOnGPUs(t *testing.T) {
	first := func(int) int64 { return 0 }
	none := func(int) int64 { return -1 }
	wild := []int64{-1, 0, math.MaxInt32, -2, 7, 8, math.MinInt32, 3, 1 << 30}
	wider := append([]int64{1 << 32, 1<<32 + 3, math.MinInt64, math.MaxInt64, -1 << 32, 1 << 31}, wild...)
	of := func(values []int64) func(int) int64 { return func(i int) int64 { return values[i%len(values)] } }
	cases := map[string]countCase{
		"no token":                {8, 4, 2, 0, 3, false, 0, none},
		"no token, wide":          {ep.MaxExperts, 64, 8, 0, 32, true, 0, none},
		"one token":               {8, 4, 2, 1, 1, false, 0, first},
		"one token of many":       {256, 64, 8, 1, 32, true, 0, scattered(1, 256)},
		"one expert":              {1, 1, 1, 5, 1, false, 0, first},
		"one rank":                {64, 1, 1, 77, 8, true, 0, scattered(2, 64)},
		"all to one rank":         {64, 8, 4, 300, 8, false, 0, func(i int) int64 { return int64(40 + i%8) }},
		"one selection for all":   {64, 8, 4, 300, 8, false, 0, first},
		"nobody goes":             {64, 8, 4, 9, 8, true, 0, none},
		"odd":                     {3 * 7, 7, 7, 131, 5, false, 0, scattered(3, 21)},
		"odd ranks a node":        {5 * 63, 63, 21, 67, 9, true, 0, scattered(4, 315)},
		"a node of 64":            {640, 64, 64, 40, 6, false, 0, scattered(5, 640)},
		"nodes of one":            {128, 64, 1, 40, 10, true, 0, scattered(6, 128)},
		"33 ranks":                {66, 33, 11, 40, 17, true, 0, scattered(7, 66)},
		"as many as there may be": {ep.MaxExperts, 64, 8, 200, 32, false, 0, scattered(8, ep.MaxExperts)},
		"most experts, wide":      {ep.MaxExperts, 2, 1, 90, 8, true, 0, scattered(9, ep.MaxExperts)},
		"most experts of a rank":  {ep.MaxExperts, 1, 1, 90, 31, true, 0, scattered(10, ep.MaxExperts)},
		"local no power of two":   {64 * 511, 64, 4, 90, 8, false, 0, scattered(11, 64*511)},
		"several rounds":          {256, 8, 8, 1500, 8, true, 0, scattered(12, 256)},
		"several rounds of 32":    {256, 64, 8, 300, 32, false, 0, scattered(13, 256)},
		"several rounds of one":   {16, 16, 4, 5000, 1, false, 0, scattered(14, 16)},
		"off by one":              {24, 12, 3, 50, 3, false, 1, scattered(15, 24)},
		"off by one, wide":        {24, 12, 3, 50, 3, true, 1, scattered(16, 24)},
		"off by three":            {24, 12, 3, 50, 3, true, 3, scattered(17, 24)},
		"wild":                    {8, 4, 2, 30, 3, false, 0, of(wild)},
		"wild, wide":              {8, 4, 2, 30, 4, true, 0, of(wider)},
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			for name, c := range cases {
				if err := c.run(ctx, e, comm); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			return nil
		})
	})
}

// TestTokenCounterAtRandomOnGPUs counts selections at random, of anything that a TokenCounter takes.
func TestTokenCounterAtRandomOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			for seed := range uint64(m.times(30, 300)) {
				r := rand.New(rand.NewPCG(seed, 0))
				c := countCase{
					perNode: 1 + r.IntN(8), tokens: r.IntN(200), topk: 1 + r.IntN(ep.MaxTopK),
					wide: r.IntN(2) == 0, off: r.IntN(4),
				}
				c.ranks = c.perNode * (1 + r.IntN(device.MaxRanks/c.perNode))
				c.experts = c.ranks * (1 + r.IntN(1<<r.IntN(10)))
				c.experts = min(c.experts, ep.MaxExperts/c.ranks*c.ranks)
				c.pick = scattered(seed, c.experts)
				if err := c.run(ctx, e, comm); err != nil {
					return fmt.Errorf("seed %d, %+v: %w", seed, c, err)
				}
			}
			return nil
		})
	})
}

// TestTokenCounterPartsOnGPUs asks for some of what there is, and what nobody asks for is not written.
func TestTokenCounterPartsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			counter, err := ep.NewTokenCounter(ctx, comm, 64, 8, 4)
			if err != nil {
				return err
			}
			counting, err := newCounting(e, comm, countCase{
				experts: 64, ranks: 8, perNode: 4, tokens: 33, topk: 4,
				pick: scattered(1, 64),
			})
			if err != nil {
				return err
			}
			for parts := 1; parts < 16; parts++ {
				if err := counting.load(counting.pick); err != nil {
					return err
				}
				into := counting.into()
				for i, tensor := range []*weft.Tensor{
					&into.RankTokens, &into.NodeTokens,
					&into.ExpertSelections, &into.TokenInRank,
				} {
					if parts>>i&1 == 0 {
						*tensor = weft.Tensor{}
					}
				}
				if err := errors.Join(counter.Count(ctx, nil, counting.topkTensor(), into), counting.check(into)); err != nil {
					return fmt.Errorf("parts %#b: %w", parts, err)
				}
			}
			return errors.Join(counting.free(), counter.Close())
		})
	})
}

// TestTokenCounterStreamsOnGPUs has one TokenCounter at work in several streams at once, with nothing in
// between: each counts its own.
func TestTokenCounterStreamsOnGPUs(t *testing.T) {
	const streams, experts, ranks = 4, 3000, 12
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			counter, err := ep.NewTokenCounter(ctx, comm, experts, ranks, 3)
			if err != nil {
				return err
			}
			var all []*counting
			var queues []*cuda.Stream
			for i := range streams {
				s, err := comm.Device().Context().NewStream(cuda.StreamOptions{})
				if err != nil {
					return err
				}
				c, err := newCounting(e, comm, countCase{
					experts: experts, ranks: ranks, perNode: 3, tokens: 7 + 400*i, topk: 1 + 3*i,
					wide: i%2 == 1, pick: scattered(uint64(i), experts),
				})
				if err != nil {
					return err
				}
				queues, all = append(queues, s), append(all, c)
			}
			for range m.times(2, 50) {
				for i, s := range queues {
					if err := counter.Count(ctx, weft.StreamOf(s), all[i].topkTensor(), all[i].into()); err != nil {
						return err
					}
				}
			}
			for i, s := range queues {
				if err := errors.Join(s.Wait(ctx), all[i].check(all[i].into()), all[i].free(), s.Close()); err != nil {
					return fmt.Errorf("stream %d: %w", i, err)
				}
			}
			return counter.Close()
		})
	})
}

// TestTokenCounterInGraphOnGPUs replays a graph of counts, each time with other selections in the same
// memory, some of them between counts outside of it.
func TestTokenCounterInGraphOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			const experts, ranks, perNode = 96, 16, 8
			counter, err := ep.NewTokenCounter(ctx, comm, experts, ranks, perNode)
			if err != nil {
				return err
			}
			var all []*counting
			for i, tokens := range []int{5, 130, 0, 64} { // the last one is outside
				c, err := newCounting(e, comm, countCase{
					experts: experts, ranks: ranks, perNode: perNode,
					tokens: tokens, topk: 6, wide: i%2 == 0, pick: scattered(0, experts),
				})
				if err != nil {
					return err
				}
				all = append(all, c)
			}
			inside, outside := all[:3], all[3]
			stream := e.Stream(comm)
			graph, err := stream.CUDA().Capture(func() error {
				for _, c := range inside {
					if err := counter.Count(ctx, stream, c.topkTensor(), c.into()); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			exec, err := graph.Instantiate()
			if err := errors.Join(err, graph.Close()); err != nil {
				return err
			}
			for i := range m.times(6, 200) {
				for j, c := range all {
					if err := c.load(scattered(uint64(10*i+j), experts)); err != nil {
						return err
					}
				}
				enqueue := []func() error{
					func() error { return exec.Launch(stream.CUDA()) },
					func() error { return counter.Count(ctx, stream, outside.topkTensor(), outside.into()) },
				}
				if i%2 == 1 {
					slices.Reverse(enqueue)
				}
				if err := errors.Join(enqueue[0](), enqueue[1](), comm.Wait(ctx, stream)); err != nil {
					return err
				}
				for j, c := range all {
					if err := c.check(c.into()); err != nil {
						return fmt.Errorf("replay %d, counting %d: %w", i, j, err)
					}
				}
			}
			err = exec.Close()
			for _, c := range all {
				err = errors.Join(err, c.free())
			}
			return errors.Join(err, counter.Close())
		})
	})
}

// TestTokenCounterRefusesOnGPUs: what makes no sense is refused by its name, and nothing has been
// enqueued.
func TestTokenCounterRefusesOnGPUs(t *testing.T) {
	const experts, ranks, perNode = 12, 4, 2
	type operands struct {
		topk weft.Tensor
		into ep.DeviceTokenCounts
	}
	reshape := func(t *weft.Tensor, shape ...int) { t.Shape = shape }
	shift := func(t *weft.Tensor, by int) { t.Data = unsafe.Add(t.Data, by) }
	tests := []struct {
		name, words string
		kind        error
		spoil       func(o *operands)
	}{
		{"type", "want int32 or int64", weft.ErrInvalid, func(o *operands) { o.topk.DType = weft.Float32 }},
		{"dimensions", "want int32 or int64 [tokens top-k]", weft.ErrInvalid, func(o *operands) { reshape(&o.topk, 15) }},
		{"top-k", "1 to 32 selections", weft.ErrInvalid, func(o *operands) { reshape(&o.topk, 1, 33) }},
		{"no selections", "1 to 32 selections", weft.ErrInvalid, func(o *operands) { reshape(&o.topk, 5, 0) }},
		{"negative", "1 to 32 selections", weft.ErrInvalid, func(o *operands) { reshape(&o.topk, -1, 3) }},
		{"many", "tokens", weft.ErrInvalid, func(o *operands) { reshape(&o.topk, 1<<24+1, 3) }},
		{"no memory", "experts have no memory", weft.ErrInvalid, func(o *operands) { o.topk.Data = nil }},
		{"alignment", "experts begin at", weft.ErrUnsupported, func(o *operands) { shift(&o.topk, 2) }},
		{"nothing", "give at least one", weft.ErrInvalid, func(o *operands) { o.into = ep.DeviceTokenCounts{} }},
		{"ranks", "tokens of ranks are", weft.ErrInvalid, func(o *operands) { reshape(&o.into.RankTokens, ranks+1) }},
		{"ranks' type", "want int32[4]", weft.ErrInvalid, func(o *operands) { o.into.RankTokens.DType = weft.Int64 }},
		{
			"ranks' alignment", "tokens of ranks begin at", weft.ErrUnsupported,
			func(o *operands) { shift(&o.into.RankTokens, 1) },
		},
		{"nodes", "tokens of nodes are", weft.ErrInvalid, func(o *operands) { reshape(&o.into.NodeTokens, ranks) }},
		{
			"nodes' memory", "tokens of nodes have no memory", weft.ErrInvalid,
			func(o *operands) { o.into.NodeTokens.Data = nil },
		},
		{
			"experts", "selections of experts are", weft.ErrInvalid,
			func(o *operands) { reshape(&o.into.ExpertSelections, experts, 1) },
		},
		{"table", "the ranks of tokens are", weft.ErrInvalid, func(o *operands) { reshape(&o.into.TokenInRank, ranks, 5) }},
		{"table's type", "want uint8[5 4]", weft.ErrInvalid, func(o *operands) { o.into.TokenInRank.DType = weft.Int32 }},
		{
			"table's memory", "the ranks of tokens have no memory", weft.ErrInvalid,
			func(o *operands) { o.into.TokenInRank.Data = nil },
		},
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			for _, bad := range [][3]int{
				{0, 1, 1},
				{ep.MaxExperts + 1, 1, 1},
				{4, 0, 1},
				{device.MaxRanks + 1, device.MaxRanks + 1, 1},
				{5, 2, 1},
				{4, 4, 3},
				{4, 4, 0},
			} {
				if _, err := ep.NewTokenCounter(ctx, comm, bad[0], bad[1], bad[2]); !errors.Is(err, weft.ErrInvalid) {
					t.Errorf("%v: %v", bad, err)
				}
			}
			counter, err := ep.NewTokenCounter(ctx, comm, experts, ranks, perNode)
			if err != nil {
				return err
			}
			counting, err := newCounting(e, comm, countCase{
				experts: experts, ranks: ranks, perNode: perNode,
				tokens: 5, topk: 3, pick: scattered(1, experts),
			})
			if err != nil {
				return err
			}
			good := operands{counting.topkTensor(), counting.into()}
			for _, tt := range tests {
				o := good
				tt.spoil(&o)
				if err := counter.Count(ctx, nil, o.topk, o.into); !errors.Is(err, tt.kind) ||
					!strings.Contains(err.Error(), tt.words) {
					t.Errorf("%s: %v", tt.name, err)
				}
			}
			if err := counting.check(ep.DeviceTokenCounts{}); err != nil {
				t.Errorf("after calls that were refused: %v", err)
			}
			if err := errors.Join(counter.Count(ctx, nil, good.topk, good.into), counting.check(good.into)); err != nil {
				return err
			}
			if err := errors.Join(counter.Close(), counter.Close()); err != nil {
				return err
			}
			if err := counter.Count(ctx, nil, good.topk, good.into); !errors.Is(err, weft.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			return counting.free()
		})
	})
}

// TestCounterNeedsGPU: on the host there is CountRouting.
func TestCounterNeedsGPU(t *testing.T) {
	if _, err := ep.NewTokenCounter(testContext(t), join(t, 1)[0], 4, 2, 1); !errors.Is(err, weft.ErrUnsupported) ||
		!strings.Contains(err.Error(), "count on the host") {
		t.Error(err)
	}
}

// TestTokenCounterAllocatesNothingOnGPUs counts what a call allocates on the host. Emulated launches
// allocate themselves.
func TestTokenCounterAllocatesNothingOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.onOneGPU(t, func(ctx context.Context, e *eptest.Device, comm *weft.Comm) error {
			counter, err := ep.NewTokenCounter(ctx, comm, 256, 8, 8)
			if err != nil {
				return err
			}
			counting, err := newCounting(e, comm, countCase{
				experts: 256, ranks: 8, perNode: 8, tokens: 128,
				topk: 8, wide: true, pick: scattered(1, 256),
			})
			if err != nil {
				return err
			}
			stream, topk, into := e.Stream(comm), counting.topkTensor(), counting.into()
			allocs := testing.AllocsPerRun(m.times(5, 400), func() {
				if err := counter.Count(ctx, stream, topk, into); err != nil {
					t.Error(err)
				}
			})
			if !m.emulated && allocs > 0 {
				t.Errorf("a count allocates %v times", allocs)
			}
			return errors.Join(comm.Wait(ctx, stream), counting.check(into), counting.free(), counter.Close())
		})
	})
}
