package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/engine/gpu/proxy"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 30 * time.Second

var words = &device.Words{Operation: func(op uint32) string { return fmt.Sprintf("errand %d", op) }}

// rank is a rank of a test, with memory of its GPU and of the host.
type rank struct {
	*proxy.Proxy
	comm   *weft.Comm
	gpu    *cuda.Memory
	pinned *cuda.HostMemory
}

const memory = 1 << 20

// onHosts runs a rank on each of two hosts.
func onHosts(t *testing.T, deadline time.Duration, body func(ctx context.Context, r *rank) error) {
	t.Helper()
	t.Setenv("WEFT_HEARTBEAT", "60s")
	g := ranktest.Emulated(t, cudatest.Config{Devices: 2}, emulate.Options{Seed: 1, Tear: true})
	network := fabrictest.New(fabrictest.TCP(), 1)
	err := ranktest.Run(2, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithHostID(fmt.Sprint(rank)), weft.WithFabric(network.Open),
			weft.WithDeadline(deadline))
	}, func(ctx context.Context, comm *weft.Comm) (err error) {
		r := &rank{comm: comm}
		if r.gpu, err = comm.Device().Context().Alloc(memory); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.gpu.Close()) }()
		if r.pinned, err = comm.Device().Context().AllocHost(memory, cuda.HostOptions{}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.pinned.Close()) }()
		s := proxy.Spec{Op: "new errands", Owner: "errands", Words: words, SMs: 4}
		if r.Proxy, err = proxy.New(ctx, comm, s); err != nil {
			return err
		}
		defer func() {
			_, again := r.Close()
			err = errors.Join(err, again)
		}()
		return body(ctx, r)
	})
	if err != nil {
		t.Error(err)
	}
}

// call makes one call.
func (r *rank) call(ctx context.Context, s *weft.Stream, do func(*proxy.Hand) error) error {
	stream, err := r.Enter(ctx, "errand", s)
	if err != nil {
		return err
	}
	return errors.Join(r.Start(stream, 3, "errand", do), r.Finish(ctx, s))
}

// echo copies n bytes to pinned memory, turns them over there, and copies them back.
func (r *rank) echo(from, to, place, n int) func(*proxy.Hand) error {
	return func(h *proxy.Hand) error {
		m, err := h.Copy(r.pinned.Pointer().Add(place), r.gpu.Pointer().Add(from), n)
		if err == nil {
			err = h.Await(m)
		}
		if err != nil {
			return err
		}
		for i, b := range r.pinned.Bytes()[place : place+n] {
			r.pinned.Bytes()[place+i] = ^b
		}
		_, err = h.Copy(r.gpu.Pointer().Add(to), r.pinned.Pointer().Add(place), n)
		return err
	}
}

// TestCopies copies ranges of every alignment and of many sizes there and back.
func TestCopies(t *testing.T) {
	onHosts(t, deadline, func(ctx context.Context, r *rank) error {
		random := rand.New(rand.NewPCG(1, uint64(r.comm.Rank())))
		gpu := r.comm.Device().Context()
		content := make([]byte, memory)
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		if err := gpu.Upload(r.gpu.Pointer(), content); err != nil {
			return err
		}
		for _, n := range []int{0, 1, 2, 3, 15, 16, 17, 63, 1000, 4096, 8191, 100_003} {
			for range 3 {
				from, to, place := random.IntN(40), memory/2+random.IntN(40), random.IntN(40)
				if random.IntN(2) == 0 {
					to, place = memory/2+from, from // all alike
				}
				if err := r.call(ctx, nil, r.echo(from, to, place, n)); err != nil {
					return err
				}
				want := append([]byte(nil), content[to-20:to+n+20]...)
				for i := range n {
					want[20+i] = ^content[from+i]
				}
				got := make([]byte, len(want))
				if err := gpu.Download(got, r.gpu.Pointer().Add(to-20)); err != nil {
					return err
				}
				if !bytes.Equal(got, want) {
					return fmt.Errorf("%d bytes from %d to %d by %d: other bytes", n, from, to, place)
				}
				copy(content[to-20:], got)
			}
		}
		// More copies than there are slots, in order.
		over := make(chan struct{})
		if err := r.call(ctx, nil, func(h *proxy.Hand) error {
			defer close(over)
			for i := range 200 {
				if _, err := h.Copy(r.pinned.Pointer().Add(i), r.gpu.Pointer().Add(3*i), 1); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		<-over // the kernel has ordered all this, which the race detector does not see
		for i := range 200 {
			if got := r.pinned.Bytes()[i]; got != content[3*i] {
				return fmt.Errorf("copy %d: %d, want %d", i, got, content[3*i])
			}
		}
		return nil
	})
}

// TestGraph replays calls among others.
func TestGraph(t *testing.T) {
	onHosts(t, deadline, func(ctx context.Context, r *rank) error {
		gpu := r.comm.Device().Context()
		stream, err := gpu.NewStream(cuda.StreamOptions{})
		if err != nil {
			return err
		}
		defer stream.Close()
		s := weft.StreamOf(stream)
		var calls atomic.Int64 // the kernel orders the goroutines, which the race detector does not see
		count := func(*proxy.Hand) error { calls.Add(1); return nil }
		graph, err := stream.Capture(func() error {
			return errors.Join(r.call(ctx, s, r.echo(0, 100, 0, 100)), r.call(ctx, s, count),
				r.call(ctx, s, r.echo(100, 200, 0, 100)))
		})
		if err != nil {
			return err
		}
		defer graph.Close()
		exec, err := graph.Instantiate()
		if err != nil {
			return err
		}
		defer exec.Close()
		for i := range 5 {
			content := bytes.Repeat([]byte{byte(i + 1)}, 100)
			if err := errors.Join(gpu.Upload(r.gpu.Pointer(), content), exec.Launch(stream), r.call(ctx, s, count),
				r.comm.Wait(ctx, s)); err != nil {
				return err
			}
			got := make([]byte, 100)
			if err := gpu.Download(got, r.gpu.Pointer().Add(200)); err != nil {
				return err
			}
			if n := calls.Load(); !bytes.Equal(got, content) || n != int64(2*(i+1)) {
				return fmt.Errorf("replay %d: %d calls, %d for %d", i, n, got[0], content[0])
			}
		}
		return nil
	})
}

// TestFailure: what a call returns is the communicator's failure, in its own words, and others are told. A mask goes
// on.
func TestFailure(t *testing.T) {
	onHosts(t, 4*time.Second, func(ctx context.Context, r *rank) error {
		other := 1 - r.comm.Rank()
		refusal := &weft.PeerError{Rank: other, Op: "errand", Err: fmt.Errorf("%w: of the test", weft.ErrMismatch)}
		ok := func(*proxy.Hand) error { return nil }
		for range 2 {
			do := ok
			if r.comm.Rank() == 0 {
				do = func(*proxy.Hand) error { return refusal }
			}
			err := r.call(ctx, nil, do)
			if r.comm.Rank() == 0 && (!errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "of the test")) {
				return fmt.Errorf("the call that fails: %w", err)
			}
			for end := time.Now().Add(deadline); r.comm.Err() == nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					return errors.New("it was not told")
				}
			}
			if err := r.call(ctx, nil, ok); err == nil {
				return errors.New("a call after the failure")
			}
			if err := r.comm.SetMask(ctx); err != nil {
				return err
			}
			if err := r.call(ctx, nil, ok); err != nil {
				return fmt.Errorf("after the mask: %w", err)
			}
		}
		return nil
	})
}

// TestSilence: a kernel whose host gets on is not given up, and one whose host does nothing is.
func TestSilence(t *testing.T) {
	const deadline = 2 * time.Second
	onHosts(t, deadline, func(ctx context.Context, r *rank) error {
		if err := r.call(ctx, nil, func(h *proxy.Hand) error {
			for range 12 {
				time.Sleep(deadline / 2)
				h.Beat()
			}
			return nil
		}); err != nil {
			return err
		}
		stop := make(chan struct{})
		err := r.call(ctx, nil, func(*proxy.Hand) error {
			<-stop
			return nil
		})
		close(stop)
		if !errors.Is(err, weft.ErrTimeout) || !strings.Contains(err.Error(), "errand 3") {
			return fmt.Errorf("of a host that does nothing: %w", err)
		}
		return nil
	})
}
