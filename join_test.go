package weft_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/ranktest"
)

// blame says how err differs from a PeerError that names the rank and wraps the cause.
func blame(err error, rank int, cause error) error {
	peer, ok := errors.AsType[*weft.PeerError](err)
	if !ok || peer.Rank != rank || !errors.Is(err, cause) || peer.Op == "" {
		return fmt.Errorf("%w: %v, want one that names rank %d and says %q", errUnexpected, err, rank, cause)
	}
	return nil
}

var errUnexpected = errors.New("unexpected error")

func TestJoin(t *testing.T) {
	for _, n := range []int{1, 2, 5, 64, 65} {
		group := join(t, n, weft.WithDeadline(7*time.Second))
		for r, c := range group {
			if c.Rank() != r || c.Size() != n || c.LocalSize() != n || c.Deadline() != 7*time.Second ||
				!c.Mask().Empty() || c.Operations().Generation() != 0 || c.Err() != nil {
				t.Errorf("rank %d of %d: %d of %d, %d here, deadline %v, mask %#x, generation %d, %v",
					r, n, c.Rank(), c.Size(), c.LocalSize(), c.Deadline(), c.Mask(), c.Operations().Generation(), c.Err())
			}
		}
	}
}

func TestJoinAlone(t *testing.T) {
	environment(t, nil)
	c, err := weft.Join(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Size() != 1 || c.Rank() != 0 {
		t.Errorf("rank %d of %d", c.Rank(), c.Size())
	}
	w, err := c.Alloc(testContext(t), 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Bytes()) != 100 || len(w.Peer(0)) != 100 {
		t.Errorf("window of %d bytes", len(w.Bytes()))
	}
	if err := errors.Join(c.SetMask(testContext(t)), c.Err()); err != nil {
		t.Error(err)
	}
}

func TestJoinRefuses(t *testing.T) {
	if _, err := ranktest.Join(1, weft.WithDeadline(0)); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("without a deadline: %v", err)
	}
	if _, err := ranktest.Join(weft.MaxRanks + 1); !errors.Is(err, weft.ErrUnsupported) {
		t.Errorf("with too many ranks: %v", err)
	}
}

// environment makes this process a rank of a job that a launcher has started, as far as variables
// tell.
func environment(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, name := range os.Environ() {
		name, _, _ = strings.Cut(name, "=")
		for _, launcher := range []string{"WEFT_", "RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "LWS_", "JOB_"} {
			if strings.HasPrefix(name, launcher) {
				t.Setenv(name, "")
			}
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

// TestJoinRefusesTooManyRanks has a rank of a job that is too large, whose other ranks nobody
// started. It does not wait for them.
func TestJoinRefusesTooManyRanks(t *testing.T) {
	for _, c := range []struct{ rank, size int }{
		{0, weft.MaxRanks + 1},
		{1, weft.MaxRanks + 1},
		{weft.MaxRanks, weft.MaxRanks + 1},
		{0, 70000},
	} {
		environment(t, map[string]string{
			"WEFT_RANK": fmt.Sprint(c.rank), "WEFT_SIZE": fmt.Sprint(c.size), "WEFT_ADDRESS": "127.0.0.1:9",
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := weft.Join(ctx)
		if !errors.Is(err, weft.ErrUnsupported) ||
			!strings.Contains(err.Error(), fmt.Sprintf("at most %d:", weft.MaxRanks)) || ctx.Err() != nil {
			t.Errorf("rank %d of %d: %v", c.rank, c.size, err)
		}
		cancel()
	}
}

// TestJoinSaysSoOnce fails to join in several ways, each of which names the operation once.
func TestJoinSaysSoOnce(t *testing.T) {
	once := func(t *testing.T, err error) {
		t.Helper()
		if err == nil || strings.Count(err.Error(), "join:") != 1 || !strings.Contains(err.Error(), "join: ") {
			t.Errorf("%v", err)
		}
	}
	for name, variables := range map[string]map[string]string{
		"no variable":     {"WEFT_RANK": "0", "WEFT_SIZE": "1", "WEFT_NO_PEER": "bogus"},
		"no heartbeat":    {"WEFT_RANK": "0", "WEFT_SIZE": "1", "WEFT_HEARTBEAT": "bogus"},
		"no code":         {"WEFT_RANK": "0", "WEFT_SIZE": "1", "WEFT_SIMD": "bogus"},
		"no multicast":    {"WEFT_RANK": "0", "WEFT_SIZE": "1", "WEFT_MULTICAST": "bogus"},
		"no trace":        {"WEFT_RANK": "0", "WEFT_SIZE": "1", "WEFT_TRACE": "/dev/null/traces"},
		"nobody there":    {"WEFT_RANK": "1", "WEFT_SIZE": "2", "WEFT_ADDRESS": "127.0.0.1:9"},
		"nobody comes":    {"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_ADDRESS": "127.0.0.1:29417"},
		"no port":         {"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_ADDRESS": "127.0.0.1:0"},
		"no address":      {"WEFT_RANK": "1", "WEFT_SIZE": "2"},
		"no store":        {"WEFT_RANK": "1", "WEFT_SIZE": "2", "WEFT_STORE": "127.0.0.1:9"},
		"no interface":    {"WEFT_RANK": "1", "WEFT_SIZE": "2", "WEFT_ADDRESS": "127.0.0.1:9", "WEFT_INTERFACE": "nosuch0"},
		"no size":         {"WEFT_RANK": "1"},
		"no secret":       {"WEFT_RANK": "1", "WEFT_SIZE": "2", "WEFT_ADDRESS": "192.0.2.1:9"},
		"too many":        {"WEFT_RANK": "1", "WEFT_SIZE": "99", "WEFT_ADDRESS": "127.0.0.1:9"},
		"process manager": {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, variables)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := weft.Join(ctx)
			once(t, err)
		})
	}
	t.Run("a rank without its GPU", func(t *testing.T) {
		meeting, err := bootstrap.NewInProcess(2)
		if err != nil {
			t.Fatal(err)
		}
		other := make(chan error)
		go func() {
			_, err := weft.Join(testContext(t), weft.WithBootstrap(meeting[1]))
			other <- err
		}()
		_, err = weft.Join(testContext(t), weft.WithBootstrap(meeting[0]), weft.WithDevice(nil))
		once(t, err)
		once(t, <-other)
	})
}

// edited is a bootstrap through which a rank tells the others something else than it means to, and
// hears something else.
type edited struct {
	bootstrap.Bootstrap
	edit func(info []byte)
}

func (e edited) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	e.edit(data)
	all, err := e.Bootstrap.AllGather(ctx, data)
	for r := range all {
		e.edit(all[r])
	}
	if err == nil {
		e.edit(all[e.Rank()]) // the rank is of its own version
	}
	return all, err
}

// TestJoinOtherVersion joins ranks of which one runs another version, by what it tells of itself
// and of how it is reached through shared memory. Both sides say at once which versions do not go
// together.
func TestJoinOtherVersion(t *testing.T) {
	const address = 4 + channel.CPUBytes + 2 // of a info
	for name, at := range map[string]int{"info": 0, "shared memory": address} {
		t.Run(name, func(t *testing.T) {
			meeting, err := bootstrap.NewInProcess(3)
			if err != nil {
				t.Fatal(err)
			}
			errs := make(chan error, 3)
			versions := make(chan byte, 9)
			for r, b := range meeting {
				if r == 2 {
					b = edited{b, func(info []byte) {
						versions <- info[at]
						info[at] ^= 64
					}}
				}
				go func() {
					_, err := weft.Join(testContext(t), weft.WithBootstrap(b))
					if err != nil {
						err = fmt.Errorf("rank %d: %w", r, err)
					}
					errs <- err
				}()
			}
			for range 3 {
				err := <-errs
				peer, ok := errors.AsType[*weft.PeerError](err)
				if !ok || !errors.Is(err, weft.ErrMismatch) || strings.HasPrefix(err.Error(), "rank 2") != (peer.Rank == 0) {
					t.Fatal(err)
				}
				ours := <-versions
				versions <- ours
				for _, v := range []byte{ours, ours ^ 64} {
					if !strings.Contains(err.Error(), fmt.Sprintf("version %d", v)) {
						t.Errorf("no version %d: %v", v, err)
					}
				}
			}
		})
	}
}

// TestJoinEnds joins while another rank never comes.
func TestJoinEnds(t *testing.T) {
	for name, end := range map[string]func() (context.Context, context.CancelFunc, []weft.Option){
		"context": func() (context.Context, context.CancelFunc, []weft.Option) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			return ctx, cancel, nil
		},
		"deadline": func() (context.Context, context.CancelFunc, []weft.Option) {
			return context.Background(), func() {}, []weft.Option{weft.WithDeadline(20 * time.Millisecond)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			meeting, err := bootstrap.NewInProcess(2)
			if err != nil {
				t.Fatal(err)
			}
			defer meeting[1].Close()
			ctx, cancel, options := end()
			defer cancel()
			c, err := weft.Join(ctx, append(options, weft.WithBootstrap(meeting[0]))...)
			if err == nil {
				c.Close()
				t.Fatal("joined alone")
			}
			blames(t, 0, err, 1, weft.ErrTimeout)
		})
	}
}

// slow is a bootstrap of a rank that takes its time when it knows the others.
type slow struct {
	bootstrap.Bootstrap
	bootstrap.Witness
	there, goOn chan struct{}
}

func (s slow) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	all, err := s.Bootstrap.AllGather(ctx, data)
	close(s.there)
	<-s.goOn
	return all, err
}

// TestJoinCancelled cancels the join of a rank that waits for a slow one. All others learn at once
// that it has given up: none waits for its deadline, and none blames the slow one.
func TestJoinCancelled(t *testing.T) {
	meeting, err := bootstrap.NewInProcess(3)
	if err != nil {
		t.Fatal(err)
	}
	s := slow{meeting[2], meeting[2].(bootstrap.Witness), make(chan struct{}), make(chan struct{})}
	meeting[2] = s
	cancelled, cancel := context.WithCancel(testContext(t))
	var errs [3]chan error
	for r, b := range meeting {
		ctx := testContext(t)
		if r == 1 {
			ctx = cancelled
		}
		errs[r] = make(chan error, 1)
		go func() {
			_, err := weft.Join(ctx, weft.WithBootstrap(b), weft.WithDeadline(30*time.Second))
			errs[r] <- err
		}()
	}
	<-s.there
	cancel()
	if err := <-errs[1]; !errors.Is(err, context.Canceled) && !errors.Is(err, weft.ErrAborted) {
		t.Errorf("rank 1: %v", err)
	}
	blames(t, 0, <-errs[0], 1, weft.ErrAborted)
	close(s.goOn)
	blames(t, 2, <-errs[2], 1, weft.ErrAborted)
}

// TestJoinTwice joins several communicators of the same process, side by side, of different sizes,
// over and over.
func TestJoinTwice(t *testing.T) {
	for range 10 {
		a, b := join(t, 3), join(t, 2)
		must(t, append(a[:3:3], b...), func(c *weft.Comm) error {
			w, err := c.Alloc(testContext(t), 64)
			if err != nil {
				return err
			}
			w.Bytes()[0] = byte(c.Size())
			if err := c.Operations().VerifySame(testContext(t), "test", "written", nil); err != nil {
				return err
			}
			for r := range c.Size() {
				if got := w.Peer(r)[0]; int(got) != c.Size() {
					return fmt.Errorf("rank %d of a communicator of %d shows %d", r, c.Size(), got)
				}
			}
			return nil
		})
	}
}

// TestWaitPolicies runs agreements under every way of waiting.
func TestWaitPolicies(t *testing.T) {
	for _, p := range []channel.Policy{
		{}, {Spin: 1000}, {Yield: 10}, {Goroutines: true}, {Spin: 10, Yield: 10, Goroutines: true},
	} {
		group := join(t, 3, weft.WithWaitPolicy(p))
		must(t, group, func(c *weft.Comm) error {
			for i := range 50 {
				if err := c.Operations().VerifySame(testContext(t), "test", fmt.Sprint(i), nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// TestVariables: a value that means nothing is refused also where it has no effect, as on the host of one machine.
func TestVariables(t *testing.T) {
	for _, v := range [][2]string{{"WEFT_SIMD", "foo"}, {"WEFT_MULTICAST", "2"}, {"WEFT_HEARTBEAT", "x"}} {
		t.Run(v[0], func(t *testing.T) {
			t.Setenv(v[0], v[1])
			_, err := ranktest.JoinEach(2, func(int) []weft.Option { return nil })
			if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), v[0]+"="+v[1]+": it is ") {
				t.Errorf("%v, want a refusal of %s=%s", err, v[0], v[1])
			}
		})
	}
}
