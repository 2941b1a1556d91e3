package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/device"
)

// quick measures little: one size that is no multiple of chunks, two numbers of SMs.
func quick(t *testing.T) Options {
	return Options{
		Bytes: []int64{2*storeChunk + 40}, SMs: []int{8, 2, 8}, Replays: 3,
		Timeout: 20 * time.Second, Cache: cache(t),
	}
}

func TestMeasure(t *testing.T) {
	for gpus, pats := range map[int][]Pattern{1: {Local}, 2: {AllToAll, Pair}, 4: {AllToAll, Pair, AllToOne}} {
		t.Run(fmt.Sprint(gpus), func(t *testing.T) {
			_, all := played(t, cudatest.Config{Devices: gpus})
			o, calls := quick(t), 0
			o.Each = func(_ Row, done, total int) {
				if calls++; done != calls || total != 7+9*len(pats) {
					t.Errorf("call %d: %d of %d", calls, done, total)
				}
			}
			c, err := Measure(t.Context(), all, o)
			if err != nil {
				t.Fatal(err)
			}
			if c.GPUs != gpus || c.Local() != (gpus == 1) || c.SMs != 132 || c.Device != "cudatest" || calls != len(c.Rows) {
				t.Errorf("%d calls, %+v", calls, c)
			}
			for _, r := range c.Rows {
				if !r.Verified || r.Wrong != 0 || r.Replays != 3 || r.Min > r.Micros || r.Micros > r.Max ||
					r.Op != "link" || r.GPUs != gpus {
					t.Errorf("%+v", r)
				}
			}
			small := c.Rows[:7]
			hop := map[bool]string{true: "hop/2", false: "hop/1"}[gpus == 1]
			if ways(small) != "empty/1 empty/132 empty-dependent/1 empty-dependent/132 barrier/1 barrier-dependent/1 "+hop {
				t.Errorf("small: %s", ways(small))
			}
			const size = 2*storeChunk + 48 // rounded up
			for i, p := range pats {
				rows := c.Rows[7+9*i:][:9]
				if ways(rows) != "store/2 store/8 load/2 load/8 bulk-store/2 bulk-store/8 bulk-load/2 bulk-load/8 copy-engine/0" {
					t.Errorf("%s: %s", p, ways(rows))
				}
				bytes := int64(size * map[Pattern]int{Local: 1, Pair: 1, AllToAll: gpus - 1, AllToOne: gpus - 1}[p])
				for _, r := range rows {
					if r.Pattern != p || r.Bytes != bytes || r.GBps <= 0 || r.Operations != 100 ||
						r.Threads == 0 != (r.Way == Engine) {
						t.Errorf("%+v", r)
					}
				}
			}
			if hop := c.Small(Hop); hop != 1500*time.Nanosecond {
				t.Errorf("a hop of %v; there and back took 3 us", hop)
			}
			if best := c.Best(); best.SMs == 0 || best.GBps < c.At(2).GBps || c.At(1) != (Rate{}) {
				t.Errorf("best %+v, at 2 %+v, at 1 %+v", best, c.At(2), c.At(1))
			}
		})
	}
}

func ways(rows []Row) string {
	var words []string
	for _, r := range rows {
		words = append(words, fmt.Sprintf("%s/%d", r.Way, r.SMs))
	}
	return strings.Join(words, " ")
}

func TestOlderGPUsHaveNoBulkCopies(t *testing.T) {
	_, all := played(t, cudatest.Config{Devices: 2, Attributes: map[cuda.Attribute]int{cuda.ComputeCapabilityMajor: 8}})
	c, err := Measure(t.Context(), all, quick(t))
	if err != nil {
		t.Fatal(err)
	}
	const move = "store/2 store/8 load/2 load/8 copy-engine/0"
	if got := ways(c.Rows); got != "empty/1 empty/132 barrier/1 hop/1 "+move+" "+move {
		t.Error(got)
	}
}

// Whatever arrives wrong, is missing, or is counted wrong is seen in its row and in no other.
func TestWhatIsWrongIsSeen(t *testing.T) {
	spoilt := map[Way]func(m *cudatest.Machine){
		Store: func(m *cudatest.Machine) { // the last piece is missing
			m.Kernel("link_store", func(c *cudatest.Call, t targets, pieces uint64, seed uint32) {
				for k := range t.Count {
					for i, w := 0, cudatest.Slice[uint32](c, t.At[k], int(4*pieces-4)); i < len(w); i++ {
						w[i] = wordAt(seed, i)
					}
				}
			})
		},
		Load: func(m *cudatest.Machine) { // reads one piece twice
			m.Kernel("link_load", func(c *cudatest.Call, t targets, pieces uint64, sum cuda.Pointer) {
				for k := range t.Count {
					w := cudatest.Slice[uint32](c, t.At[k], int(4*pieces))
					for i := range w {
						cudatest.Slice[uint64](c, sum, 1)[0] += uint64(w[max(i, 4)])
					}
				}
			})
		},
		BulkStore: func(m *cudatest.Machine) { // chunks are swapped
			m.Kernel("link_bulk_store", func(c *cudatest.Call, t targets, bytes uint64, chunk, seed uint32) {
				for k := range t.Count {
					w := cudatest.Slice[uint32](c, t.At[k], int(bytes/4))
					for i := range w {
						index := i % (int(chunk) / 4)
						if index < 4 {
							index = i ^ int(chunk)/4
						}
						w[i] = wordAt(seed, index)
					}
				}
			})
		},
		BulkLoad: func(m *cudatest.Machine) { // reads nothing
			m.Kernel("link_bulk_load", func(*cudatest.Call, targets, uint64, uint32, cuda.Pointer, cuda.Pointer,
				device.Group, cuda.Pointer) {
			})
		},
		Barrier: func(m *cudatest.Machine) { // is not counted everywhere
			m.Kernel("link_barrier", func(c *cudatest.Call, _ device.Group, _, done cuda.Pointer) {
				if c.Device == 0 {
					cudatest.Slice[uint64](c, done, 1)[0]++
				}
			})
		},
		Hop: func(m *cudatest.Machine) { // one side ends early
			m.Kernel("link_ping", func(c *cudatest.Call, _ device.Group, _ cuda.Pointer, side, rounds, _ uint32,
				_, seen cuda.Pointer,
			) {
				cudatest.Slice[uint32](c, seen, 2)[side] = rounds - side
			})
		},
	}
	for way, spoil := range spoilt {
		if testing.Short() && way != Barrier && way != Hop {
			continue // each measures all
		}
		t.Run(string(way), func(t *testing.T) {
			m, all := played(t, cudatest.Config{Devices: 3})
			spoil(m)
			c, err := Measure(t.Context(), all, quick(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.Rows {
				mine := r.Way == way || r.Way == way+"-dependent"
				if r.Verified == mine || (r.Wrong != 0) != mine {
					t.Errorf("%+v", r)
				}
			}
			if c.Best().Way == way || c.Small(way) != 0 {
				t.Errorf("what is wrong counts: %+v, %v", c.Best(), c.Small(way))
			}
		})
	}
}

// A graph that writes right once and wrong later is seen, although only the first replay is checked
// by itself.
func TestTheLastReplayIsChecked(t *testing.T) {
	m, all := played(t, cudatest.Config{})
	calls := 0
	m.Kernel("link_store", func(c *cudatest.Call, t targets, pieces uint64, seed uint32) {
		calls++
		for i, w := 0, cudatest.Slice[uint32](c, t.At[0], int(4*pieces)); i < len(w); i++ {
			w[i] = wordAt(seed, i+calls/101)
		}
	})
	o := quick(t)
	o.Movers, o.SMs = []Way{Store}, []int{4}
	c, err := Measure(t.Context(), all, o)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Rows[len(c.Rows)-1]; r.Way != Store || r.Verified {
		t.Errorf("%+v", r)
	}
}

func TestRefusals(t *testing.T) {
	_, all := played(t, cudatest.Config{Devices: 2})
	for want, bad := range map[string]func(*Options){
		"-1 bytes":       func(o *Options) { o.Bytes = []int64{-1} },
		"1 to 132":       func(o *Options) { o.SMs = []int{0, 3} },
		"132, which":     func(o *Options) { o.SMs = []int{133} },
		`"hop" moves no`: func(o *Options) { o.Movers = []Way{Hop} },
		"-2 replays":     func(o *Options) { o.Replays = -2 },
		"a window of":    func(o *Options) { o.Bytes = []int64{1 << 30} },
	} {
		o := quick(t)
		bad(&o)
		if _, err := Measure(t.Context(), all, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Measure(t.Context(), nil, quick(t)); err == nil {
		t.Error("no GPUs: no error")
	}
	if _, err := Measure(t.Context(), []*cuda.Context{all[0], all[0]}, quick(t)); err == nil ||
		!strings.Contains(err.Error(), "same device") {
		t.Error(err)
	}
	_, apart := played(t, cudatest.Config{Devices: 2, NoPeers: true})
	if _, err := Measure(t.Context(), apart, quick(t)); !errors.Is(err, cuda.ErrUnsupported) ||
		!strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
		t.Error(err)
	}
	_, old := played(t, cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.VirtualMemory: 0}})
	if _, err := Measure(t.Context(), old, quick(t)); !errors.Is(err, cuda.ErrUnsupported) {
		t.Error(err)
	}
}

// Whichever call of the driver fails, Measure says so, nobody waits for those who failed, and
// nothing is left behind.
func TestFailuresLeaveNothingBehind(t *testing.T) {
	for call, skips := range map[string][]int{
		"cuMemHostAlloc": {0}, "cuMemCreate": {0, 1}, "cuMemMap": {1}, "cuMemSetAccess": {1},
		"cuStreamCreateWithPriority": {0, 5},
		"cuEventCreate":              {0, 7}, "cuModuleLoadDataEx": {0, 5}, "cuModuleGetFunction": {3},
		"cuFuncSetAttribute": {1}, "cuMemsetD8Async": {0, 9},
		"cuMemcpyHtoD": {1}, "cuMemcpyDtoH": {0, 12, 40}, "cuLaunchKernelEx": {0, 450, 2000}, "cuStreamBeginCapture": {1},
		"cuGraphInstantiateWithFlags": {1, 9}, "cuGraphUpload": {2}, "cuGraphLaunch": {0, 36, 50, 64, 80},
		"cuEventRecord": {1, 150}, "cuEventElapsedTime": {3},
		"cuStreamQuery": {1, 50}, "cuMemcpyDtoDAsync": {1, 150}, "cuMemsetD32Async": {2},
	} {
		if testing.Short() && call != "cuGraphLaunch" {
			skips = skips[:1]
		}
		for _, skip := range skips {
			t.Run(fmt.Sprintf("%s/%d", call, skip), func(t *testing.T) {
				gpus := 3
				if call == "cuMemcpyDtoDAsync" || call == "cuEventRecord" {
					gpus = 2 // with more, copies are in streams that a capture which fails half-way leaves unjoined, as it must
				}
				m, all := played(t, cudatest.Config{Devices: gpus})
				m.Fail(call, skip, cuda.ErrNotPermitted)
				o := quick(t)
				o.Movers, o.SMs, o.Timeout = []Way{Store, Load, Engine}, []int{4}, time.Minute
				began := time.Now()
				// What a rank gives up in a step that all take together, the others may say first: by its text.
				if _, err := Measure(t.Context(), all, o); err == nil ||
					!strings.HasPrefix(err.Error(), "link: ") || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_PERMITTED") {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took > o.Timeout/2 {
					t.Errorf("took %v: somebody waited for the deadline", took)
				}
			})
		}
	}
}

func TestAWaitInVain(t *testing.T) {
	m, all := played(t, cudatest.Config{Devices: 2})
	waited := false
	m.Kernel("link_barrier", func(c *cudatest.Call, g device.Group, state, _ cuda.Pointer) {
		if c.Device == 0 && !waited { // GPU 1 never comes
			waited = true // the others of the graph end at once
			await(c, g, &cudatest.Slice[device.State](c, state, 1)[0], 1, cuda.Pointer(g.Window[0]).Add(lineBytes), 1)
		}
	})
	o := quick(t)
	o.Timeout = time.Second
	_, err := Measure(t.Context(), all, o)
	if p, ok := errors.AsType[*weft.PeerError](err); !ok || p.Rank != 1 || !errors.Is(err, weft.ErrTimeout) {
		t.Error(err)
	}
}

func TestTheContextEndsIt(t *testing.T) {
	stop := errors.New("enough")
	_, all := played(t, cudatest.Config{Devices: 2})
	ctx, cancel := context.WithCancelCause(t.Context())
	seen := 0
	o := quick(t)
	o.Each = func(Row, int, int) {
		if seen++; seen == 5 {
			cancel(stop)
		}
	}
	_, err := Measure(ctx, all, o)
	if !errors.Is(err, stop) || seen != 5 {
		t.Errorf("after %d rows: %v", seen, err)
	}
}

func TestFlows(t *testing.T) {
	for _, c := range []struct {
		pattern Pattern
		gpus    int
		to      [][]int
		most    int
	}{
		{Local, 1, [][]int{{0}}, 1},
		{Pair, 3, [][]int{{1}, nil, nil}, 1},
		{AllToOne, 4, [][]int{nil, {0}, {0}, {0}}, 3},
		{AllToAll, 3, [][]int{{1, 2}, {2, 0}, {0, 1}}, 2},
	} {
		to := flows(c.pattern, c.gpus)
		if d := cmp.Diff(c.to, to); d != "" {
			t.Errorf("%s: %s", c.pattern, d)
		}
		from := turned(to)
		for sender, all := range to {
			for _, receiver := range all {
				if !slices.Contains(from[receiver], sender) {
					t.Errorf("%s: %d does not receive from %d", c.pattern, receiver, sender)
				}
			}
		}
		if most(to) != c.most {
			t.Errorf("%s: %d", c.pattern, most(to))
		}
	}
}

func TestGraphsTakeSomeMilliseconds(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		sms   int
		want  int
	}{{192 << 20, 1, 2}, {192 << 20, 132, 19}, {64 << 20, 4, 23}, {64 << 20, 0, 59}, {4096, 1, 100}, {1 << 40, 132, 2}} {
		if got := operations(c.bytes, c.sms); got != c.want {
			t.Errorf("%d bytes with %d SMs: %d, want %d", c.bytes, c.sms, got, c.want)
		}
	}
}
