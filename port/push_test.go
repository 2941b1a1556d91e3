package port_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/port"
)

// timing has the kernels that time pushes. A launch has one block, whose clock counts cycles.
const timing = `
struct Timed {
	u64 before, host, after; // the host's clock, which a thread of the host stores all the time, between two of here
	u64 begun, ended;        // a push
};

// pushes times pushes from before they begin until the answer is seen, one at a time. BARE is a store of 16 bytes,
// which a thread of the host awaits and answers without a proxy.
extern "C" __global__ void pushes(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, PING)) return;
	Wait wait(a.group, a.state, PING, o.epoch);
	Timed *all = (Timed *)a.result;
	for (u64 i = 0; i < a.rounds; i++) {
		bool on = true;
		Timed t;
		for (u64 idle = nanoseconds() + PAUSE; nanoseconds() < idle;) {}
		if (threadIdx.x == 0) {
			do {
				t.before = (u64)clock64();
				t.host = load_relaxed_sys_u64(a.memory + CLOCK_AT);
			} while (t.host == 0);
			t.after = (u64)clock64();
		}
		for (u32 at = 16 * threadIdx.x; at < a.slot; at += 16 * blockDim.x)
			store_relaxed_sys16(a.memory + SOURCE_AT + at, make_uint4((u32)i, at, 0, 0));
		__syncthreads();
		if (threadIdx.x == 0) {
			t.begun = (u64)clock64();
			if (a.mode == BARE) {
				store_relaxed_sys16(a.memory + BARE_AT, make_uint4((u32)i + 1, 0, 0, 0));
				while (load_relaxed_sys4(a.memory + ANSWER_AT) != (u32)i + 1 && (on = wait.more(0, i, 0))) {}
			} else if (a.mode == FLUSH || a.mode == RELEASE) {
				if (a.mode == RELEASE) fence_sys();
				on = a.channel.flush(wait);
			} else {
				on = a.channel.put_with_signal_and_flush(wait, 0, SOURCE_AT, a.slot);
			}
			t.ended = (u64)clock64();
			all[i] = t;
		}
		if (__syncthreads_or(!on)) break;
	}
	o.end(a.state);
}

// rush pushes signals from all threads of a block, and a flush behind them.
extern "C" __global__ void rush(const __grid_constant__ Arguments a) {
	Operation o;
	if (!o.begin(a.group, a.state, 0, PING)) return;
	Wait wait(a.group, a.state, PING, o.epoch);
	u64 begun = nanoseconds();
	bool on = true;
	for (u64 i = 0; on && i < a.rounds; i++) on = a.channel.signal(wait);
	__syncthreads();
	if (threadIdx.x == 0) {
		a.channel.flush(wait);
		a.result[0] = begun;
		a.result[1] = nanoseconds();
	}
	o.end(a.state);
}
`

// Where things are in a rank's memory: the host's clock, what a bare push stores and the answer, each in lines of
// their own, and what is put.
const (
	clockAt, bareAt, answerAt, sourceAt = 0, 256, 512, 4096
	sourceBytes                         = 4096
)

// What is pushed.
const (
	pushBare = iota
	pushFlush
	pushRelease // a flush behind a fence, as the trigger of a put is
	pushPut
)

// pushRows are what is timed.
var pushRows = []struct {
	name    string
	mode    uint64
	threads uint32
	bytes   uint64
}{
	{"floor", pushBare, 1, 0},
	{"flush", pushFlush, 1, 0},
	{"flush behind 16 bytes and a fence", pushRelease, 1, 16},
	{"put of 16 bytes and signal", pushPut, 1, 16},
	{"put of 4096 bytes of a warp and signal", pushPut, 32, 4096},
}

// timed is Timed.
type timed struct{ Before, Host, After, Begun, Ended uint64 }

const timedBytes = 5 * 8

// timingSource is source with timing. A pause of 3 us lets all come to rest between pushes.
func timingSource() string {
	return source + fmt.Sprintf("enum { CLOCK_AT = %d, BARE_AT = %d, ANSWER_AT = %d, SOURCE_AT = %d };\n"+
		"enum { BARE = %d, FLUSH = %d, RELEASE = %d, PAUSE = 3000 };\n",
		clockAt, bareAt, answerAt, sourceAt, pushBare, pushFlush, pushRelease) + timing
}

// A timer times pushes of a rank's kernels.
type timer struct {
	*gpu
	base   time.Time
	rounds int
	times  *cuda.Memory
	mu     sync.Mutex      // guards seen
	seen   []time.Duration // pushes, by the proxy or by the thread in its place
}

// newTimer makes ranks of which the first pushes. The network has no delay, and the second rank's proxy sleeps.
func newTimer(t testing.TB, d *cuda.Driver, cache *kernel.Cache, rounds int) *timer {
	t.Helper()
	class := fabrictest.Class{
		Name: "prompt", Ordered: true, Words: true, Delivered: true, Prompt: true, KeyBytes: 8, DataBytes: 8,
		MaxWrite: 1 << 30, Depth: 256,
	}
	all := gpus(t, d, cache, backend{
		networks: []*fabrictest.Network{fabrictest.New(class, 1)}, rails: 1, options: port.Options{Spin: time.Minute},
		others: &port.Options{Spin: 1},
	}, sourceAt+sourceBytes)
	x := &timer{gpu: all[0], base: time.Now(), rounds: rounds, seen: make([]time.Duration, 0, rounds)}
	var err error
	if x.times, err = x.context.Alloc(timedBytes * rounds); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.times.Close(); err != nil {
			t.Error(err)
		}
	})
	x.argument.Result = x.times.Pointer()
	x.kernels.Sights(x.see)
	return x
}

func (x *timer) see(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.seen) < cap(x.seen) {
		x.seen = append(x.seen, now.Sub(x.base))
	}
}

// run runs a kernel while threads of this process spin, and gets what it stored.
func (x *timer) run(t testing.TB, name string, threads uint32, into any, spins ...func()) {
	t.Helper()
	var over atomic.Bool
	var group sync.WaitGroup
	for _, spin := range spins {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for !over.Load() {
				spin()
			}
		})
	}
	err := x.gpu.run(t, name, 1, threads)
	over.Store(true)
	group.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if cause, _ := x.record(); cause != 0 {
		t.Fatalf("%s: a wait ended with cause %d", name, cause)
	}
	b := make([]byte, binary.Size(into))
	if err := x.context.Download(b, x.times.Pointer()); err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Decode(b, binary.LittleEndian, into); err != nil {
		t.Fatal(err)
	}
}

// A pushed is what pushes take, in ns: until they were seen, and until the kernel saw the answer; and how long the GPU
// reads a word of the host, at best.
type pushed struct {
	seen, back []float64
	read       float64
}

// push times pushes. The two clocks are compared before each, by a word that the GPU reads when half of its read is
// over, as far as anyone knows.
func (x *timer) push(t testing.TB, mode uint64, threads uint32, bytes uint64) (p pushed) {
	t.Helper()
	x.argument.Mode, x.argument.Slot, x.argument.Rounds = mode, bytes, uint64(x.rounds)
	x.mu.Lock()
	x.seen = x.seen[:0]
	x.mu.Unlock()
	now, asked, answer := word(x.memory, clockAt), word(x.memory, bareAt), word(x.memory, answerAt)
	asked.Store(0)
	answer.Store(0)
	spins := []func(){func() { now.Store(uint64(time.Since(x.base))) }}
	if next := uint64(1); mode == pushBare {
		spins = append(spins, func() {
			if asked.Load()&0xffffffff == next {
				at := time.Now()
				answer.Store(next)
				next++
				x.see(at)
			}
		})
	}
	all := make([]timed, x.rounds)
	x.run(t, "pushes", threads, all, spins...)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.seen) != x.rounds {
		t.Fatalf("%d pushes were seen of %d", len(x.seen), x.rounds)
	}
	first, last := all[x.rounds/10], all[x.rounds-1]
	cycle := float64(last.Host-first.Host) / float64(last.Before-first.Before)
	p.read = 1e18
	for i, a := range all[x.rounds/10:] {
		read := float64(a.After-a.Before) * cycle
		begun := float64(a.Host) + float64(a.Begun-a.Before)*cycle - read/2
		p.seen = append(p.seen, float64(x.seen[x.rounds/10+i])-begun)
		p.back = append(p.back, float64(a.Ended-a.Begun)*cycle)
		p.read = min(p.read, read)
	}
	return p
}

// rush is how long a push takes where many threads push at once, in ns.
func (x *timer) rush(t testing.TB, threads uint32) float64 {
	const each = 16
	x.argument.Rounds = each
	var all [2]uint64
	x.run(t, "rush", threads, &all)
	return float64(all[1]-all[0]) / float64(each*threads)
}

// TestPushTimes: what times pushes works, on emulated GPUs.
func TestPushTimes(t *testing.T) {
	emulate.Need(t)
	machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{})
	d, err := machine.Open()
	if err != nil {
		t.Fatal(err)
	}
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: kernelDir, ReadOnly: []string{}})
	x := newTimer(t, d, cache, 20)
	for _, r := range pushRows {
		if p := x.push(t, r.mode, r.threads, r.bytes); len(p.seen) == 0 || len(p.back) != len(p.seen) {
			t.Errorf("%s: %d times and %d", r.name, len(p.seen), len(p.back))
		}
	}
	if took := x.rush(t, 40); took <= 0 {
		t.Errorf("a push takes %v ns", took)
	}
}

// BenchmarkPushOnGPU times a kernel's pushes until the proxy has seen them and done what they ask for, and until the
// kernel sees the answer, which is a word in host memory that it polls. The floor is a store of 16 bytes to host memory
// on which a thread spins. What is seen is wrong by half of read-ns at most, since two clocks are compared.
func BenchmarkPushOnGPU(b *testing.B) {
	d := openGPU(b)
	cudatest.NVRTC(b)
	cache := kernel.New(kernel.Options{Dir: kernelDir, ReadOnly: []string{}})
	for _, device := range d.Devices()[:min(2, len(d.Devices()))] { // made once, and not for each row
		c, err := device.Primary()
		if err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := c.Close(); err != nil {
				b.Error(err)
			}
		}()
	}
	for _, r := range pushRows {
		b.Run(r.name, func(b *testing.B) {
			x := newTimer(b, d, cache, 1000)
			for range 20 { // until the GPU's clock is up
				x.push(b, r.mode, r.threads, r.bytes)
			}
			var all pushed
			all.read = 1e18
			for b.Loop() {
				p := x.push(b, r.mode, r.threads, r.bytes)
				all = pushed{append(all.seen, p.seen...), append(all.back, p.back...), min(all.read, p.read)}
			}
			for what, times := range map[string][]float64{"seen": all.seen, "back": all.back} {
				slices.Sort(times)
				b.ReportMetric(times[0], what+"-best-ns")
				b.ReportMetric(times[len(times)/2], what+"-p50-ns")
				b.ReportMetric(times[len(times)*99/100], what+"-p99-ns")
			}
			b.ReportMetric(all.read, "read-ns")
		})
	}
	for _, threads := range []uint32{1, 32, 256} {
		b.Run(fmt.Sprintf("%d threads push", threads), func(b *testing.B) {
			x := newTimer(b, d, cache, 100)
			best := 1e18
			for b.Loop() {
				best = min(best, x.rush(b, threads))
			}
			b.ReportMetric(best, "push-ns")
		})
	}
}
