package bootstrap

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// reports gathers what a rank reports.
type reports struct {
	sync.Mutex
	all []Wait
}

func (r *reports) context(ctx context.Context, after time.Duration) context.Context {
	return context.WithValue(ctx, reportKey{}, reporter{func(w Wait) {
		r.Lock()
		defer r.Unlock()
		r.all = append(r.all, w)
	}, after})
}

func (r *reports) taken() []Wait {
	r.Lock()
	defer r.Unlock()
	return slices.Clone(r.all)
}

func TestWaitInWords(t *testing.T) {
	for _, c := range []struct {
		w    Wait
		want string
	}{
		{
			Wait{Ranks: []int{2}, Size: 4, Address: "10.0.0.1:29411", Waited: 10 * time.Second},
			"waiting for rank 2 of 4 at 10.0.0.1:29411 for 10 s",
		},
		{
			Wait{Ranks: []int{1, 3, 4, 5}, Size: 8, Waited: 20*time.Second + 3*time.Millisecond},
			"waiting for ranks 1, 3-5 of 8 for 20 s",
		},
		{
			Wait{Ranks: []int{1}, Size: 2, Waited: 30 * time.Second, Refused: []string{"10.0.0.2:81: wrong secret"}},
			"waiting for rank 1 of 2 for 30 s; turned away 10.0.0.2:81: wrong secret",
		},
		{Wait{Size: 3, Waited: 250 * time.Millisecond}, "waiting for the other ranks of 3 for 0.25 s"},
	} {
		if got := c.w.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// Ranks that wait in a join, or in a collective, report which rank is missing and where they meet.
func TestWaitsAreReported(t *testing.T) {
	id, err := NewID(OnLoopback())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var heard [3]reports
	var ranks [3]Bootstrap
	var joining sync.WaitGroup
	join := func(r int) {
		joining.Go(func() {
			var err error
			if ranks[r], err = id.Dial(heard[r].context(ctx, 20*time.Millisecond), r, 3); err != nil {
				t.Error(err)
			}
		})
	}
	missing := func(r int, op string, want ...int) {
		t.Helper()
		for ctx.Err() == nil {
			for _, w := range heard[r].taken() {
				if w.Op == op && slices.Equal(w.Ranks, want) {
					if w.Size != 3 || w.Address != id.targets()[0] || w.Waited < 20*time.Millisecond {
						t.Errorf("rank %d reports %+v", r, w)
					}
					return
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Fatalf("rank %d reports no wait of a %s for ranks %v, but %v", r, op, want, heard[r].taken())
	}
	join(1)
	missing(1, "join", 0)
	join(0)
	missing(0, "join", 2)
	missing(1, "join", 2)
	join(2)
	joining.Wait()
	if t.Failed() {
		return
	}
	var inside sync.WaitGroup
	for r := range 2 {
		inside.Go(func() {
			if err := ranks[r].Barrier(heard[r].context(ctx, 20*time.Millisecond)); err != nil {
				t.Error(err)
			}
		})
	}
	missing(0, "barrier", 2)
	missing(1, "barrier", 2)
	if err := ranks[2].Barrier(ctx); err != nil {
		t.Error(err)
	}
	inside.Wait()
	for _, b := range ranks {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A rank that waits in a join says whom it has turned away, and why, long before its time is up.
func TestWaitsNameThoseTurnedAway(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	addr := freeAddress(t)
	var heard reports
	ended := make(chan error, 1)
	waiting, stop := context.WithCancel(heard.context(ctx, 20*time.Millisecond))
	go func() {
		b, err := DialTCP(waiting, TCPConfig{Rank: 0, Size: 2, Address: addr, Secret: []byte("right")})
		if err == nil {
			err = errors.Join(errors.New("it has joined"), b.Close())
		}
		ended <- err
	}()
	_, err := DialTCP(ctx, TCPConfig{Rank: 1, Size: 2, Address: addr, Secret: []byte("wrong")})
	if !errors.Is(err, ErrSecret) {
		t.Errorf("rank 1: %v", err)
	}
	said := func(w Wait) bool {
		return strings.Contains(w.String(), "turned away") && strings.Contains(w.String(), "rank 1")
	}
	for !slices.ContainsFunc(heard.taken(), said) {
		if ctx.Err() != nil {
			t.Fatalf("nobody says it: %v", heard.taken())
		}
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("rank 0: %v", err)
	}
}
