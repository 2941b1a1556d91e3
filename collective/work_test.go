package collective

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/weftgo/weft"
)

// closeGroups closes groups of which calls were started.
func closeGroups(t testing.TB, groups []*Group) {
	t.Helper()
	for r, g := range groups {
		if err := g.Close(); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// sumCall is an all-reduce in place of one number.
func sumCall(x []float32) Call {
	return Call{Collective: AllReduce, Op: weft.Sum, In: weft.TensorOf(x), Out: weft.TensorOf(x)}
}

// TestStartInOrder: calls that are started run in their order, others between them, messages among them.
func TestStartInOrder(t *testing.T) {
	const ranks, times = 3, 50
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		g, to, from := groups[r], (r+1)%ranks, (r+ranks-1)%ranks
		works := make([]*Work, 0, times)
		xs := make([][]float32, times)
		got := make([]float32, 1)
		for i := range xs {
			xs[i] = []float32{float32(r)}
			w, err := g.Start(ctx, nil, sumCall(xs[i]))
			if err != nil {
				return err
			}
			works = append(works, w)
			switch i % 10 {
			case 3: // sees the result of what was started
				y := make([]float32, 1)
				if err := g.AllReduce(ctx, nil, weft.TensorOf(y), weft.TensorOf(xs[i]), weft.Max); err != nil {
					return err
				}
				if y[0] != 3 || !w.Done() || g.Algorithm() != "all-reduce/eager" {
					return fmt.Errorf("after call %d: %v, done %t, by %q", i, y, w.Done(), g.Algorithm())
				}
			case 7: // sends the result
				w, err := g.Start(ctx, nil, Call{Collective: PointToPoint, Transfers: []Transfer{
					{Tensor: weft.TensorOf(xs[i]), Peer: to}, {Tensor: weft.TensorOf(got), Peer: from, Receive: true},
				}})
				if err == nil {
					err = errors.Join(w.Wait(ctx), w.Err(), w.Close())
				}
				if err != nil || got[0] != 3 {
					return fmt.Errorf("a message of %v: %w", got, err)
				}
			}
		}
		for i, w := range works {
			if err := errors.Join(w.Wait(ctx), w.Wait(ctx), w.Err()); err != nil {
				return err
			}
			if !w.Done() || xs[i][0] != 3 || w.Algorithm() != "all-reduce/eager" {
				return fmt.Errorf("call %d: %v, done %t, by %q", i, xs[i], w.Done(), w.Algorithm())
			}
			if err := w.WaitOn(nil); !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("a stream waits on the host: %w", err)
			}
			if err := w.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	closeGroups(t, groups)
	if _, err := groups[0].Start(t.Context(), nil, sumCall(make([]float32, 1))); !errors.Is(err, weft.ErrClosed) {
		t.Errorf("a group that is closed starts: %v", err)
	}
}

// TestStartPending: a call whose peers have not come is not done; waits end with their context, and the
// call goes on.
func TestStartPending(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	x := [2][]float32{{1}, {2}}
	w, err := groups[0].Start(t.Context(), nil, sumCall(x[0]))
	if err != nil {
		t.Fatal(err)
	}
	dropped, err := groups[0].Start(t.Context(), nil, Call{Collective: Barrier})
	if err != nil {
		t.Fatal(err)
	}
	if err := dropped.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || w.Done() || w.Err() != nil {
		t.Errorf("it has not ended: %v, done %t, error %v", err, w.Done(), w.Err())
	}
	waited := make(chan error, 2)
	for range cap(waited) {
		go func() { waited <- w.Wait(t.Context()) }()
	}
	if err := errors.Join(groups[1].Do(t.Context(), nil, sumCall(x[1])), groups[1].Barrier(t.Context(), nil)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(<-waited, <-waited, w.Wait(t.Context()), w.Close()); err != nil || x[0][0] != 3 {
		t.Errorf("%v, %v", x, err)
	}
	closeGroups(t, groups)
}

// TestStartRefused: what is wrong with a rank's arguments is returned there at once, and by the Works of
// its peers.
func TestStartRefused(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	x := make([]float32, 2)
	for _, wrong := range []Call{
		{Collective: AllReduce, In: weft.TensorOf(x), Out: weft.TensorOf(x[:1])},
		{Collective: Broadcast, Root: 2, In: weft.TensorOf(x)},
	} {
		if w, err := groups[0].Start(t.Context(), nil, wrong); w != nil || !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("got %v, %v", w, err)
		}
		w, err := groups[1].Start(t.Context(), nil, sumCall(x))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(t.Context()); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "refused there") ||
			w.Err() != err {
			t.Errorf("the peer's Work returns %v, %v", err, w.Err())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
	closeGroups(t, groups)
}

// TestStartFails: the communicator's failure ends what was started, and the group goes on after SetMask.
func TestStartFails(t *testing.T) {
	j := newJob(t, 3, weft.WithDeadline(300*time.Millisecond))
	groups := j.group(t, Options{})
	errs := j.each(t, func(ctx context.Context, r int) error {
		if r == 2 {
			return nil
		}
		g := groups[r]
		var works []*Work
		for range 3 {
			w, err := g.Start(ctx, nil, sumCall([]float32{1}))
			if err != nil {
				return err
			}
			works = append(works, w)
		}
		if r == 1 {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if err := g.Barrier(short, nil); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a call behind those that were started: %w", err)
			}
		}
		for _, w := range works {
			if err := w.Wait(ctx); err == nil || w.Err() == nil || !w.Done() {
				return fmt.Errorf("it ends with %w, %w", err, w.Err())
			}
			if err := w.Close(); err != nil {
				return err
			}
		}
		if err := j.comms[r].SetMask(ctx, 2); err != nil {
			return err
		}
		x := []float32{1}
		w, err := g.Start(ctx, nil, sumCall(x))
		if err == nil {
			err = errors.Join(w.Wait(ctx), w.Close())
		}
		if err != nil || x[0] != 2 {
			return fmt.Errorf("after the failure: %v: %w", x, err)
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	closeGroups(t, groups)
}

// TestStartAllocatesNothing counts allocations of a call that is started, on both ranks.
func TestStartAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const times = 200
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	ctx := testContext(t)
	calls := [2]Call{sumCall([]float32{1}), sumCall([]float32{1})}
	message := func(r int) []Transfer {
		return []Transfer{
			{Tensor: calls[r].In, Peer: 1 - r},
			{Tensor: weft.TensorOf(make([]float32, 1)), Peer: 1 - r, Receive: true},
		}
	}
	messages := [2]Call{
		{Collective: PointToPoint, Transfers: message(0)}, {Collective: PointToPoint, Transfers: message(1)},
	}
	one := func(r int) {
		a, err := groups[r].Start(ctx, nil, calls[r])
		if err != nil {
			t.Error(err)
			return
		}
		b, err := groups[r].Start(ctx, nil, messages[r])
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(a.Wait(ctx), b.Wait(ctx), a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range times + 1 {
			one(1)
		}
	}()
	if a := testing.AllocsPerRun(times, func() { one(0) }); a > 0 {
		t.Errorf("%v allocations", a)
	}
	<-done
	closeGroups(t, groups)
}

// TestNamedAlgorithm: a call runs by the algorithm that it names, or is refused on every rank before
// anything moves.
func TestNamedAlgorithm(t *testing.T) {
	const n = 1000
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	windows := make([]*weft.Window, 2)
	j.must(t, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, 8*n)
		return err
	})
	run := func(names [2]string, window bool, n int) ([]error, [2]float32) {
		var out [2]float32
		errs := j.each(t, func(ctx context.Context, r int) error {
			mem := make([]byte, 8*n)
			if window {
				mem = windows[r].Bytes()[:8*n]
			}
			in, sum := weft.TensorAt(mem[:4*n], weft.Float32, n), weft.TensorAt(mem[4*n:], weft.Float32, n)
			x, y := weft.SliceOf[float32](in), weft.SliceOf[float32](sum)
			for i := range x {
				x[i], y[i] = float32(1+r), -1
			}
			err := groups[r].Do(ctx, nil, Call{
				Collective: AllReduce, In: in, Out: sum, Op: weft.Sum, Algorithm: names[r],
			})
			out[r] = y[n-1]
			if err == nil && groups[r].Algorithm() != names[r] {
				return fmt.Errorf("it ran by %q", groups[r].Algorithm())
			}
			if err != nil && groups[r].Algorithm() != "" {
				return fmt.Errorf("%q ran: %w", groups[r].Algorithm(), err)
			}
			return err
		})
		return errs, out
	}
	for _, a := range Algorithms() {
		if a.Collective != AllReduce || betweenHosts(a) {
			continue
		}
		for _, window := range []bool{false, true} {
			errs, out := run([2]string{a.Name, a.Name}, window, n)
			for r, err := range errs {
				needs := !window && (a.Name == "all-reduce/window" || a.Name == "all-reduce/pull")
				switch {
				case needs && !errors.Is(err, weft.ErrUnsupported), !needs && err != nil:
					t.Errorf("%s, window %t: rank %d returns %v", a.Name, window, r, err)
				case needs && out[r] != -1, !needs && out[r] != 3:
					t.Errorf("%s, window %t: rank %d has %v", a.Name, window, r, out[r])
				}
			}
		}
	}
	for _, c := range []struct {
		names [2]string
		n     int
		want  error
		words string
	}{
		{[2]string{"all-reduce/none", "all-reduce/none"}, n, weft.ErrInvalid, "no algorithm"},
		{[2]string{"barrier/eager", "barrier/eager"}, n, weft.ErrInvalid, "is an algorithm of barrier"},
		{[2]string{"all-reduce/eager", "all-reduce/eager"}, 1 << 20, weft.ErrUnsupported, "name another"},
		{[2]string{"all-reduce/eager", "all-reduce/none"}, n, weft.ErrInvalid, "no algorithm"},
		{[2]string{"all-reduce/eager", "all-reduce/two-shot"}, n, weft.ErrMismatch, "names all-reduce/"},
		{[2]string{"", "all-reduce/eager"}, n, weft.ErrMismatch, "no algorithm"},
		{[2]string{"all-reduce/pull", ""}, n, weft.ErrMismatch, "names"},
	} {
		errs, out := run(c.names, false, c.n)
		for r, err := range errs {
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) || out[r] != -1 {
				t.Errorf("%v: rank %d returns %v and has %v", c.names, r, err, out[r])
			}
		}
	}
	err := groups[0].Do(t.Context(), nil, Call{Collective: PointToPoint, Algorithm: "x"})
	if !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("messages by an algorithm: %v", err)
	}
	j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
}

// TestWorkForgetsItsOperands: a group keeps the operands of a call that has ended no longer, whether or not its Work
// is closed. That of the last call may stay.
func TestWorkForgetsItsOperands(t *testing.T) {
	const ranks = 2
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		var works []*Work
		start := func() (weak.Pointer[float32], error) {
			x := make([]float32, 1000)
			w, err := groups[r].Start(ctx, nil, sumCall(x))
			if err != nil {
				return weak.Pointer[float32]{}, err
			}
			works = append(works, w)
			return weak.Make(&x[0]), w.Wait(ctx)
		}
		first, err := start()
		if err != nil {
			return err
		}
		if _, err := start(); err != nil {
			return err
		}
		for range 3 {
			runtime.GC()
		}
		if first.Value() != nil {
			return errors.New("the operands of a call that has ended are still there")
		}
		for _, w := range works {
			if err := errors.Join(w.Err(), w.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	closeGroups(t, groups)
}
