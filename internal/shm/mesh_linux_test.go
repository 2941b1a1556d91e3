package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// patience bounds waits that end at once unless something is broken.
const patience = 20 * time.Second

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// rank is one rank of a test.
type rank struct {
	*Mesh
	events chan Event
}

func (r *rank) next(t testing.TB) Event {
	t.Helper()
	select {
	case e := <-r.events:
		return e
	case <-time.After(patience):
		t.Fatal("no event")
		panic("unreachable")
	}
}

// listen opens n listeners. Rank i takes itself to be in process of(i): ranks that believe they are
// in different processes use sockets, whatever the truth.
func listen(t testing.TB, n int, of func(i int) int) ([]*Listener, []Address) {
	t.Helper()
	processes := make(map[int][16]byte)
	listeners, addrs := make([]*Listener, n), make([]Address, n)
	for i := range n {
		l, err := Listen()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		id, ok := processes[of(i)]
		if !ok {
			id = random()
			processes[of(i)] = id
		}
		l.address.Process = id
		listeners[i], addrs[i] = l, l.Address()
	}
	return listeners, addrs
}

func apart(i int) int   { return i }
func together(int) int  { return 0 }
func inPairs(i int) int { return i / 2 }

// each runs f for all ranks at once.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

func mesh(t testing.TB, n int, of func(i int) int) []*rank {
	t.Helper()
	listeners, addrs := listen(t, n, of)
	ctx := within(t, patience)
	ranks := make([]*rank, n)
	each(n, func(i int) {
		r := &rank{events: make(chan Event, 4096)}
		var err error
		if r.Mesh, err = listeners[i].Connect(ctx, i, addrs, func(e Event) { r.events <- e }); err != nil {
			t.Errorf("rank %d: %v", i, err)
			return
		}
		ranks[i] = r
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, r := range ranks {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return ranks
}

// layouts are the ways in which ranks reach each other.
func layouts(t *testing.T, f func(t *testing.T, of func(i int) int)) {
	for name, of := range map[string]func(int) int{"sockets": apart, "goroutines": together, "mixed": inPairs} {
		t.Run(name, func(t *testing.T) {
			checkFDs(t)
			f(t, of)
		})
	}
}

func TestExchange(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n, size = 5, 8192
		ranks := mesh(t, n, of)
		ctx := within(t, patience)
		views := make([][]*Region, n)
		for id := range uint64(3) {
			each(n, func(i int) {
				own := create(t, size, Options{Populate: id == 1})
				own.Bytes()[0] = byte(1 + i)
				got, err := ranks[i].Exchange(ctx, id, own, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if got[i] != own {
					t.Error("own entry is another region")
				}
				views[i] = got
				for p, r := range got {
					if r.Size() != size || r.Bytes()[0] != byte(1+p) {
						t.Errorf("rank %d sees %d from rank %d, size %d", i, r.Bytes()[0], p, r.Size())
					}
					r.Bytes()[64*(1+i)] = byte(100 + i)
				}
			})
			if t.Failed() {
				return
			}
			for i, got := range views {
				for w := range n {
					if got[i].Bytes()[64*(1+w)] != byte(100+w) {
						t.Errorf("rank %d misses what rank %d wrote", i, w)
					}
				}
				for p, r := range got {
					if same := of(p) == of(i); same != (&r.Bytes()[0] == &views[p][p].Bytes()[0]) {
						t.Errorf("rank %d and rank %d, same process %v: mapped twice or not at all", i, p, same)
					}
				}
			}
			for _, got := range views {
				release(t, got...)
			}
			for _, got := range views {
				for _, r := range got {
					if err := r.Release(); !errors.Is(err, ErrReleased) {
						t.Errorf("a reference is left: %v", err)
					}
				}
			}
		}
	})
}

func TestExchangeOrderDoesNotMatter(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n, exchanges = 4, 24
		ranks := mesh(t, n, of)
		ctx := within(t, patience)
		each(n, func(i int) {
			each(exchanges, func(id int) {
				own := create(t, 4096, Options{})
				own.Bytes()[0], own.Bytes()[1] = byte(i), byte(id)
				got, err := ranks[i].Exchange(ctx, uint64(id), own, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for p, r := range got {
					if r.Bytes()[0] != byte(p) || r.Bytes()[1] != byte(id) {
						t.Errorf("exchange %d: rank %d got exchange %d of %d for %d", id, i, r.Bytes()[1], r.Bytes()[0], p)
					}
				}
				release(t, got...)
			})
		})
	})
}

func TestExchangeSkips(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n, out = 4, 2
		ranks := mesh(t, n, of)
		for id := range uint64(3 * maxOffers) { // more than a peer may leave lying about
			each(n, func(i int) {
				if i == out {
					return
				}
				own := create(t, 4096, Options{})
				got, err := ranks[i].Exchange(within(t, patience), id, own, func(p int) bool { return p == out })
				if err != nil {
					t.Error(err)
					return
				}
				for p, r := range got {
					if (r == nil) != (p == out) {
						t.Errorf("rank %d: entry %d is %v", i, p, r)
					}
					if r != nil {
						release(t, r)
					}
				}
			})
			if t.Failed() {
				return
			}
		}
	})
}

// A rank that is skipped by another, and does not know, gives it regions all the same. They must
// not pile up.
func TestUnwantedOffersAreDropped(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		ranks := mesh(t, 3, of)
		expired, cancel := context.WithCancel(context.Background())
		cancel()
		for id := range uint64(2 * maxOffers) {
			own := create(t, 4096, Options{})
			if _, err := ranks[0].Exchange(within(t, patience), id, own, func(int) bool { return true }); err != nil {
				t.Fatal(err)
			}
			// Rank 1 gives up at once; it has given to rank 0 all the same, or not at all.
			if _, err := ranks[1].Exchange(expired, id, own,
				func(p int) bool { return p == 2 }); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			release(t, own)
		}
		if err := ranks[1].Send(0, []byte("behind the offers")); err != nil {
			t.Fatal(err)
		}
		if e := ranks[0].next(t); e.Kind != Message {
			t.Fatalf("%v: %v", e.Kind, e.Err)
		}
		ranks[0].mu.Lock()
		defer ranks[0].mu.Unlock()
		if n := len(ranks[0].peers[1].offers); n != 0 {
			t.Errorf("%d offers kept", n)
		}
	})
}

func TestExchangeFD(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n = 4
		ranks := mesh(t, n, of)
		each(n, func(i int) {
			var pipe [2]int
			if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(pipe[0])
			got, err := ranks[i].ExchangeFD(within(t, patience), 9, pipe[1], func(p int) bool { return p+i == n-1 })
			if err != nil {
				t.Error(err)
				unix.Close(pipe[1])
				return
			}
			for p, fd := range got {
				if (fd == -1) != (p+i == n-1) || (fd == pipe[1]) != (p == i) {
					t.Errorf("rank %d: entry %d is %d", i, p, fd)
				}
				if fd < 0 {
					continue
				}
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("flags %#x, %v: survives exec", flags, err)
				}
				if _, err := unix.Write(fd, []byte{byte(i)}); err != nil {
					t.Error(err)
				}
				unix.Close(fd)
			}
			var from []byte
			for len(from) < n-1 {
				b := make([]byte, n)
				k, err := unix.Read(pipe[0], b)
				if err != nil || k == 0 {
					t.Errorf("rank %d: %d bytes, %v", i, k, err)
					return
				}
				from = append(from, b[:k]...)
			}
			if bytes.IndexByte(from, byte(n-1-i)) >= 0 {
				t.Errorf("rank %d was written to by %v", i, from)
			}
		})
	})
}

func TestExchangeMemory(t *testing.T) {
	checkFDs(t)
	const n = 4
	ranks := mesh(t, n, together)
	memory := make([][]byte, n)
	for i := range memory {
		memory[i] = make([]byte, 16+i)
	}
	each(n, func(i int) {
		got, err := ranks[i].ExchangeMemory(within(t, patience), 1, memory[i], nil)
		if err != nil {
			t.Error(err)
			return
		}
		for p, b := range got {
			if &b[0] != &memory[p][0] || len(b) != 16+p {
				t.Errorf("rank %d got other memory for %d", i, p)
			}
		}
	})

	ranks = mesh(t, n, inPairs)
	each(n, func(i int) {
		_, err := ranks[i].ExchangeMemory(within(t, patience), 1, memory[i], nil)
		p, ok := errors.AsType[*PeerError](err)
		if !ok || !errors.Is(err, ErrOtherProcess) || p.Peer != []int{2, 2, 0, 0}[i] {
			t.Errorf("rank %d: %v", i, err)
		}
		got, err := ranks[i].ExchangeMemory(within(t, patience), 2, memory[i], func(p int) bool { return p/2 != i/2 })
		if err != nil || &got[i^1][0] != &memory[i^1][0] || got[3-i] != nil {
			t.Errorf("rank %d among its own: %v", i, err)
		}
	})
}

func TestExchangeMismatch(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		ranks := mesh(t, 2, of)
		own := create(t, 4096, Options{})
		defer release(t, own)
		each(2, func(i int) {
			var err error
			if i == 0 {
				_, err = ranks[0].Exchange(within(t, patience), 1, own, nil)
			} else {
				_, err = ranks[1].ExchangeFD(within(t, patience), 1, own.FD(), nil)
			}
			if p, ok := errors.AsType[*PeerError](err); !ok || !errors.Is(err, ErrMismatch) || p.Peer != 1-i {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	})
}

func TestExchangeRefusesUnsealedRegion(t *testing.T) {
	checkFDs(t)
	ranks := mesh(t, 2, apart)
	own := create(t, 4096, Options{})
	defer release(t, own)
	fd, err := unix.MemfdCreate("shrinks", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	each(2, func(i int) {
		r := own
		if i == 1 {
			r = &Region{fd: fd, size: 4096}
		}
		got, err := ranks[i].Exchange(within(t, patience), 1, r, nil)
		if i == 0 {
			if p, ok := errors.AsType[*PeerError](err); !ok || p.Peer != 1 || !errors.Is(err, ErrNotSealed) {
				t.Errorf("took it: %v", err)
			}
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		release(t, got[0])
	})
}

func TestExchangeTimeoutNamesTheSilent(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		ranks := mesh(t, 4, of)
		each(4, func(i int) {
			if i == 1 || i == 3 {
				return
			}
			own := create(t, 4096, Options{})
			defer release(t, own)
			_, err := ranks[i].Exchange(within(t, 50*time.Millisecond), 1, own, nil)
			p, ok := errors.AsType[*PeerError](err)
			if !ok || p.Peer != 1 || !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "nor from peers [3]") {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	})
}

func TestExchangeEndsWhenPeerLeaves(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n = 4
		ranks := mesh(t, n, of)
		started := make(chan struct{}, n)
		each(n, func(i int) {
			if i == 2 {
				for range n - 1 {
					<-started
				}
				if err := ranks[2].Close(); err != nil {
					t.Error(err)
				}
				return
			}
			own := create(t, 4096, Options{})
			defer release(t, own)
			_, err := ranks[i].Exchange(within(t, patience), 1, own, func(p int) bool {
				if p == n-1 || p == n-2 && i == n-1 {
					started <- struct{}{}
				}
				return false
			})
			if p, ok := errors.AsType[*PeerError](err); !ok || p.Peer != 2 || !errors.Is(err, ErrLeft) {
				t.Errorf("rank %d: %v", i, err)
			}
			if e := ranks[i].next(t); e.Kind != Left || e.Peer != 2 || !errors.Is(e.Err, ErrLeft) {
				t.Errorf("rank %d: %v", i, e)
			}
			if err := ranks[i].Send(2, nil); !errors.Is(err, ErrLeft) {
				t.Errorf("rank %d sends to one that left: %v", i, err)
			}
			// Without it, the others go on.
			got, err := ranks[i].Exchange(within(t, patience), 2, own, func(p int) bool { return p == 2 })
			if err != nil {
				t.Errorf("rank %d: %v", i, err)
				return
			}
			for p, r := range got {
				if p != i && r != nil {
					release(t, r)
				}
			}
		})
	})
}

// A rank may leave as soon as its own part is done. The others still get what it gave.
func TestExchangeOutlivesItsRanks(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n = 4
		for round := range 20 {
			ranks := mesh(t, n, of)
			each(n, func(i int) {
				own := create(t, 4096, Options{})
				own.Bytes()[0] = byte(i + round)
				got, err := ranks[i].Exchange(within(t, patience), 1, own, nil)
				if err != nil {
					t.Errorf("rank %d: %v", i, err)
					return
				}
				if err := ranks[i].Close(); err != nil {
					t.Error(err)
				}
				for p, r := range got {
					if r.Bytes()[0] != byte(p+round) {
						t.Errorf("rank %d: region of %d shows %d", i, p, r.Bytes()[0])
					}
				}
				release(t, got...)
			})
		}
	})
}

func TestMessages(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		const n, count = 4, 200
		ranks := mesh(t, n, of)
		each(n, func(i int) {
			for k := range count {
				for p := range n {
					if p == i {
						continue
					}
					data := bytes.Repeat([]byte{byte(i)}, k*MaxMessage/(count-1))
					if err := ranks[i].Send(p, append(data, byte(k))[:max(len(data), 1)]); err != nil {
						t.Error(err)
						return
					}
					clear(data)
				}
			}
		})
		each(n, func(i int) {
			next := make([]int, n)
			for range count * (n - 1) {
				e := ranks[i].next(t)
				k := next[e.Peer]
				next[e.Peer]++
				want := k * MaxMessage / (count - 1)
				if e.Kind != Message || len(e.Data) != max(want, 1) ||
					(want > 0 && (e.Data[0] != byte(e.Peer) || e.Data[want-1] != byte(e.Peer))) {
					t.Errorf("rank %d: message %d from %d is %v of %d bytes", i, k, e.Peer, e.Kind, len(e.Data))
					return
				}
			}
		})
	})
}

func TestSendRefuses(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		ranks := mesh(t, 2, of)
		if err := ranks[0].Send(1, make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		for _, p := range []int{-1, 0, 2} {
			if err := ranks[0].Send(p, nil); err == nil {
				t.Errorf("sent to %d", p)
			}
		}
		if ranks[0].Size() != 2 || ranks[1].Self() != 1 {
			t.Errorf("size %d, self %d", ranks[0].Size(), ranks[1].Self())
		}
		if err := ranks[0].Close(); err != nil {
			t.Fatal(err)
		}
		if err := ranks[0].Send(1, nil); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		own := create(t, 4096, Options{})
		defer release(t, own)
		if _, err := ranks[0].Exchange(within(t, patience), 1, own, nil); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// A peer whose handler is stuck stops neither a sender for good nor the end of a mesh.
func TestSendToPeerThatDoesNotRead(t *testing.T) {
	for name, of := range map[string]func(int) int{"sockets": apart, "goroutines": together} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listeners, addrs := listen(t, 2, of)
			stuck := make(chan struct{})
			var meshes [2]*Mesh
			each(2, func(i int) {
				var err error
				if meshes[i], err = listeners[i].Connect(within(t, patience), i, addrs, func(Event) { <-stuck }); err != nil {
					t.Error(err)
				}
			})
			if t.Failed() {
				return
			}
			var err error
			sent := 0
			for ; err == nil && sent < 10000; sent++ {
				err = meshes[0].Send(1, make([]byte, MaxMessage))
			}
			if p, ok := errors.AsType[*PeerError](err); !ok || p.Peer != 1 || !errors.Is(err, ErrBusy) {
				t.Errorf("after %d messages: %v", sent, err)
			}
			if err := meshes[0].Close(); err != nil {
				t.Error(err)
			}
			close(stuck)
			if err := meshes[1].Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Ranks that close at the same time must each see the others leave, not die: a socket closed with
// unread packets resets its peer.
func TestCloseTogether(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		for range 30 {
			const n = 4
			ranks := mesh(t, n, of)
			each(n, func(i int) {
				for p := range n {
					if p != i {
						if err := ranks[i].Send(p, []byte("unread")); err != nil && !errors.Is(err, ErrLeft) {
							t.Error(err)
						}
					}
				}
				if err := ranks[i].Close(); err != nil {
					t.Error(err)
				}
				close(ranks[i].events)
				for e := range ranks[i].events {
					if e.Kind == Died {
						t.Errorf("rank %d: %v", i, e.Err)
					}
				}
			})
		}
	})
}

func TestLeftComesLast(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		for range 20 {
			ranks := mesh(t, 2, of)
			if err := ranks[1].Send(0, []byte("to you")); err != nil {
				t.Fatal(err)
			}
			if err := ranks[0].Send(1, []byte("left unread, perhaps")); err != nil {
				t.Fatal(err)
			}
			if err := ranks[1].Close(); err != nil {
				t.Fatal(err)
			}
			got := []EventKind{ranks[0].next(t).Kind, ranks[0].next(t).Kind}
			if diff := cmp.Diff([]EventKind{Message, Left}, got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestOneRank(t *testing.T) {
	checkFDs(t)
	r := mesh(t, 1, apart)[0]
	own := create(t, 4096, Options{})
	defer release(t, own)
	got, err := r.Exchange(within(t, patience), 1, own, nil)
	if err != nil || len(got) != 1 || got[0] != own {
		t.Error(got, err)
	}
}

func TestManyGoroutineRanks(t *testing.T) {
	n := 64
	if testing.Short() {
		n = 16
	}
	checkFDs(t)
	ranks := mesh(t, n, together)
	each(n, func(i int) {
		own := create(t, 4096, Options{})
		own.Bytes()[0] = byte(i)
		got, err := ranks[i].Exchange(within(t, patience), 1, own, nil)
		if err != nil {
			t.Error(err)
			return
		}
		for p, r := range got {
			if r.Bytes()[0] != byte(p) {
				t.Errorf("rank %d got a region of %d for %d", i, r.Bytes()[0], p)
			}
		}
		release(t, got...)
	})
}

func TestPeerErrorText(t *testing.T) {
	err := fmt.Errorf("exchange 7: %w", &PeerError{Peer: 3, Err: ErrLeft})
	if err.Error() != "exchange 7: peer 3: left" {
		t.Error(err)
	}
	var kinds []string
	for k := range EventKind(5) {
		kinds = append(kinds, k.String())
	}
	if diff := cmp.Diff([]string{"EventKind(0)", "left", "died", "message", "EventKind(4)"}, kinds); diff != "" {
		t.Error(diff)
	}
}
