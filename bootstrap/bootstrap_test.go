package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// implementations makes jobs of every kind. All pass the same tests.
var implementations = []struct {
	name string
	make func(t testing.TB, size int) []Bootstrap
}{
	{"in-process", func(t testing.TB, size int) []Bootstrap {
		ranks, err := NewInProcess(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeAll(ranks) })
		return ranks
	}},
	{"tcp", func(t testing.TB, size int) []Bootstrap {
		addr := freeAddress(t)
		return mustDialAll(t, size, func(rank int) (Bootstrap, error) {
			return DialTCP(testContext(t), TCPConfig{Rank: rank, Size: size, Address: addr, Secret: []byte("s3cret")})
		})
	}},
	{"tcp without a secret", func(t testing.TB, size int) []Bootstrap {
		addr := freeAddress(t)
		return mustDialAll(t, size, func(rank int) (Bootstrap, error) {
			return DialTCP(testContext(t), TCPConfig{Rank: rank, Size: size, Address: addr})
		})
	}},
	{"unique id", func(t testing.TB, size int) []Bootstrap {
		id, err := NewID()
		if err != nil {
			t.Fatal(err)
		}
		return mustDialAll(t, size, func(rank int) (Bootstrap, error) { return id.Dial(testContext(t), rank, size) })
	}},
	{"tcpstore", func(t testing.TB, size int) []Bootstrap {
		store := startStore(t)
		return mustDialAll(t, size, func(rank int) (Bootstrap, error) {
			return DialTCPStore(testContext(t), StoreConfig{Rank: rank, Size: size, Address: store, Prefix: "test/"})
		})
	}},
}

func forEachImplementation(t *testing.T, size int, f func(t *testing.T, ranks []Bootstrap)) {
	for _, impl := range implementations {
		t.Run(impl.name, func(t *testing.T) { f(t, impl.make(t, size)) })
	}
}

func TestCollectives(t *testing.T) {
	for _, size := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			forEachImplementation(t, size, func(t *testing.T, ranks []Bootstrap) {
				ctx := testContext(t)
				for round := range 20 {
					// Lengths differ by rank and round, nothing included.
					want := make([][]byte, size)
					for r := range want {
						want[r] = bytes.Repeat([]byte{byte(r), byte(round)}, (r*7+round)%5*round)
					}
					for r, err := range onAll(ranks, func(b Bootstrap) error {
						if b.Size() != size {
							return fmt.Errorf("size %d", b.Size())
						}
						got, err := b.AllGather(ctx, want[b.Rank()])
						if err != nil {
							return err
						}
						if d := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); d != "" {
							return errors.New(d)
						}
						clear(got[0]) // it is the caller's
						return b.Barrier(ctx)
					}) {
						if err != nil {
							t.Fatalf("round %d, rank %d: %v", round, r, err)
						}
					}
				}
			})
		})
	}
}

func TestSendRecv(t *testing.T) {
	const size, count = 4, 50
	forEachImplementation(t, size, func(t *testing.T, ranks []Bootstrap) {
		ctx := testContext(t)
		for r, err := range onAll(ranks, func(b Bootstrap) error {
			// Every message to everyone, self included, before any is received.
			buf := make([]byte, 2)
			for i := range count {
				for peer := range size {
					buf[0], buf[1] = byte(b.Rank()), byte(i)
					if err := b.Send(ctx, peer, buf); err != nil {
						return err
					}
				}
			}
			for peer := range size {
				for i := range count {
					got, err := b.Recv(ctx, peer)
					if err != nil {
						return err
					}
					if !bytes.Equal(got, []byte{byte(peer), byte(i)}) {
						return fmt.Errorf("message %d from %d is %v", i, peer, got)
					}
				}
			}
			return b.Barrier(ctx)
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

func TestLongMessages(t *testing.T) {
	for _, impl := range implementations[:2] {
		t.Run(impl.name, func(t *testing.T) { testLongMessages(t, impl.make(t, 3)) })
	}
}

func testLongMessages(t *testing.T, ranks []Bootstrap) {
	ctx, length := testContext(t), MaxMessage
	if testing.Short() {
		length = 1 << 20
	}
	long := bytes.Repeat([]byte("0123456789abcdef"), length/16)
	for r, err := range onAll(ranks, func(b Bootstrap) error {
		next, previous := (b.Rank()+1)%3, (b.Rank()+2)%3
		if err := b.Send(ctx, next, long); err != nil {
			return err
		}
		if got, err := b.Recv(ctx, previous); err != nil || !bytes.Equal(got, long) {
			return fmt.Errorf("received %d bytes, %v", len(got), err)
		}
		all, err := b.AllGather(ctx, long[:length/4*(b.Rank()+2)])
		if err != nil {
			return err
		}
		for r, got := range all {
			if !bytes.Equal(got, long[:length/4*(r+2)]) {
				return fmt.Errorf("gathered %d bytes of rank %d", len(got), r)
			}
		}
		longer := make([]byte, MaxMessage+1)
		if err := b.Send(ctx, next, longer); !errors.Is(err, ErrTooLong) {
			return fmt.Errorf("send of %d bytes: %v", len(longer), err)
		}
		if _, err := b.AllGather(ctx, longer); !errors.Is(err, ErrTooLong) {
			return fmt.Errorf("all-gather of %d bytes: %v", len(longer), err)
		}
		return b.Barrier(ctx)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestRandomProgram runs the same random program of collectives and messages on every rank.
func TestRandomProgram(t *testing.T) {
	const size = 4
	for _, impl := range implementations[:2] {
		t.Run(impl.name, func(t *testing.T) {
			ranks := impl.make(t, size)
			ctx := testContext(t)
			rapid.Check(t, func(rt *rapid.T) {
				type step struct{ Kind, From, To, Len int }
				program := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
					return step{
						Kind: rapid.IntRange(0, 2).Draw(rt, "kind"),
						From: rapid.IntRange(0, size-1).Draw(rt, "from"), To: rapid.IntRange(0, size-1).Draw(rt, "to"),
						Len: rapid.IntRange(0, 300).Draw(rt, "len"),
					}
				}), 1, 12).Draw(rt, "program")
				content := func(i, rank, n int) []byte { return bytes.Repeat([]byte{byte(i*size + rank)}, n) }
				for r, err := range onAll(ranks, func(b Bootstrap) error {
					for i, s := range program {
						switch s.Kind {
						case 0:
							if err := b.Barrier(ctx); err != nil {
								return err
							}
						case 1:
							all, err := b.AllGather(ctx, content(i, b.Rank(), s.Len*b.Rank()))
							if err != nil {
								return err
							}
							for r, got := range all {
								if !bytes.Equal(got, content(i, r, s.Len*r)) {
									return fmt.Errorf("step %d: rank %d's part is wrong", i, r)
								}
							}
						case 2:
							if b.Rank() == s.From {
								if err := b.Send(ctx, s.To, content(i, s.From, s.Len)); err != nil {
									return err
								}
							}
							if b.Rank() == s.To {
								got, err := b.Recv(ctx, s.From)
								if err != nil || !bytes.Equal(got, content(i, s.From, s.Len)) {
									return fmt.Errorf("step %d: received %d bytes, %v", i, len(got), err)
								}
							}
						}
					}
					return nil
				}) {
					if err != nil {
						rt.Fatalf("rank %d: %v", r, err)
					}
				}
			})
		})
	}
}

func TestCloseDeliversAndIsLeft(t *testing.T) {
	forEachImplementation(t, 3, func(t *testing.T, ranks []Bootstrap) {
		ctx := testContext(t)
		for i := range 100 {
			if err := ranks[2].Send(ctx, 1, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := ranks[2].Close(); err != nil {
			t.Fatal(err)
		}
		if err := ranks[2].Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := ranks[2].Barrier(ctx); !errors.Is(err, ErrClosed) {
			t.Errorf("barrier after Close: %v", err)
		}
		if err := ranks[2].Send(ctx, 1, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("send after Close: %v", err)
		}
		if _, err := ranks[2].Recv(ctx, 1); !errors.Is(err, ErrClosed) {
			t.Errorf("recv after Close: %v", err)
		}
		for i := range 100 {
			got, err := ranks[1].Recv(ctx, 2)
			if err != nil || got[0] != byte(i) {
				t.Fatalf("message %d: %v, %v", i, got, err)
			}
		}
		for r, err := range onAll(ranks[:2], func(b Bootstrap) error {
			_, err := b.Recv(ctx, 2)
			wantPeer(t, err, 2, ErrLeft)
			return b.Barrier(ctx)
		}) {
			wantPeer(t, err, 2, ErrLeft)
			if pe, ok := err.(*PeerError); !ok || pe.Op != "barrier" || !strings.HasPrefix(err.Error(), "barrier: rank 2:") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		wantPeer(t, ranks[0].Send(ctx, 2, nil), 2, ErrLeft)
		// The others still reach each other.
		if err := ranks[0].Send(ctx, 1, []byte("hello")); err != nil {
			t.Error(err)
		}
		if got, err := ranks[1].Recv(ctx, 0); string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestRankZeroLeaves(t *testing.T) {
	forEachImplementation(t, 3, func(t *testing.T, ranks []Bootstrap) {
		ctx := testContext(t)
		entered := make(chan error, 2)
		for _, b := range ranks[1:] {
			go func() { entered <- b.Barrier(ctx) }()
		}
		ranks[0].Close()
		for range ranks[1:] {
			wantPeer(t, <-entered, 0, ErrLeft)
		}
		if err := ranks[1].Send(ctx, 2, []byte("still here")); err != nil {
			t.Fatal(err)
		}
		if got, err := ranks[2].Recv(ctx, 1); string(got) != "still here" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestRecvWithoutRankZero: rank 0, which would tell of it, has gone before a rank that another one
// waits for goes too.
func TestRecvWithoutRankZero(t *testing.T) {
	forEachImplementation(t, 4, func(t *testing.T, ranks []Bootstrap) {
		ctx := testContext(t)
		ended := make(chan error, 2)
		go func() { _, err := ranks[1].Recv(ctx, 2); ended <- err }()
		ranks[0].Close()
		// Rank 3 waits for a message, which does arrive.
		go func() { ended <- ranks[2].Send(ctx, 3, []byte("hello")) }()
		if got, err := ranks[3].Recv(ctx, 2); string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ranks[2].Close()
		// Rank 1 may have come too late to hear a farewell.
		err := <-ended
		if pe, ok := errors.AsType[*PeerError](err); !ok || pe.Rank != 2 || !errors.Is(err, ErrLeft) &&
			!errors.Is(err, ErrDied) {
			t.Errorf("got %v", err)
		}
	})
}

// TestLastBarrier closes every rank right after a barrier: those who are still on their way out of
// it must not trip over those who have gone.
func TestLastBarrier(t *testing.T) {
	for range 20 {
		forEachImplementation(t, 4, func(t *testing.T, ranks []Bootstrap) {
			ctx := testContext(t)
			for r, err := range onAll(ranks, func(b Bootstrap) error {
				err := b.Barrier(ctx)
				b.Close()
				return err
			}) {
				if err != nil {
					t.Fatalf("rank %d: %v", r, err)
				}
			}
		})
	}
}

func TestCloseWakesOwnCalls(t *testing.T) {
	forEachImplementation(t, 2, func(t *testing.T, ranks []Bootstrap) {
		ctx := testContext(t)
		errs := make(chan error, 2)
		go func() { errs <- ranks[1].Barrier(ctx) }()
		go func() { _, err := ranks[1].Recv(ctx, 0); errs <- err }()
		if err := ranks[1].Send(ctx, 0, nil); err != nil {
			t.Fatal(err)
		}
		ranks[1].Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want %v", err, ErrClosed)
			}
		}
	})
}

// TestMismatch has one rank make another call than the others: that one is named, whichever it is.
func TestMismatch(t *testing.T) {
	for odd, words := range []string{
		"rank 0 calls barrier, ranks 1-2 all-gather", "rank 1 calls barrier, ranks 0, 2 all-gather",
		"rank 2 calls barrier, ranks 0-1 all-gather",
	} {
		forEachImplementation(t, 3, func(t *testing.T, ranks []Bootstrap) {
			ctx := testContext(t)
			for _, err := range onAll(ranks, func(b Bootstrap) error {
				if b.Rank() == odd {
					return b.Barrier(ctx)
				}
				_, err := b.AllGather(ctx, nil)
				return err
			}) {
				wantPeer(t, err, odd, ErrMismatch)
				if err != nil && !strings.HasSuffix(err.Error(), words) {
					t.Errorf("%v does not say %q", err, words)
				}
			}
		})
	}
}

// TestDeadline leaves one rank out of a collective. Every other rank's error names it, wherever
// rank 0 is.
func TestDeadline(t *testing.T) {
	for absent := range 3 {
		t.Run(fmt.Sprint("without ", absent), func(t *testing.T) {
			forEachImplementation(t, 3, func(t *testing.T, ranks []Bootstrap) {
				ctx, cancel := context.WithTimeout(t.Context(), 50_000_000)
				defer cancel()
				present := append(append([]Bootstrap(nil), ranks[:absent]...), ranks[absent+1:]...)
				for _, err := range onAll(present, func(b Bootstrap) error { return b.Barrier(ctx) }) {
					wantPeer(t, err, absent, ErrTimeout)
					// Whose own deadline it was is told what set it, in an error of that type.
					says := errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "which the context sets")
					if _, ok := errors.AsType[*LimitError](err); ok != says {
						t.Errorf("%v: a LimitError: %t, want %t", err, ok, says)
					}
				}
				// A collective that was given up stays given up, and nobody gets further. Rank 0
				// may complete this one, which everyone has entered; not the next.
				for r, err := range onAll(ranks, func(b Bootstrap) error {
					if err := b.Barrier(testContext(t)); err != nil || b.Rank() != 0 || absent != 0 {
						return err
					}
					return b.Barrier(testContext(t))
				}) {
					if err == nil {
						t.Errorf("rank %d passes a barrier that others gave up", r)
					}
				}
				// Messages still pass.
				_, err := ranks[1].Recv(ctx, 2)
				wantPeer(t, err, 2, ErrTimeout)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v is no %v", err, context.DeadlineExceeded)
				}
				if err := ranks[2].Send(testContext(t), 1, []byte("late")); err != nil {
					t.Error(err)
				}
				if got, err := ranks[1].Recv(testContext(t), 2); string(got) != "late" {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	forEachImplementation(t, 3, func(t *testing.T, ranks []Bootstrap) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- ranks[1].Barrier(ctx) }()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := ranks[1].Barrier(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("with a dead context: %v", err)
		}
	})
}

func TestArguments(t *testing.T) {
	for _, size := range []int{-1, 0, MaxSize + 1, 1 << 40} {
		want := fmt.Sprintf("size %d", size)
		for rank := range 2 {
			_, inProcess := NewInProcess(size)
			_, tcp := DialTCP(testContext(t), TCPConfig{Rank: rank, Size: size, Address: freeAddress(t)})
			_, store := DialTCPStore(testContext(t), StoreConfig{Rank: rank, Size: size, Address: freeAddress(t)})
			for _, err := range []error{inProcess, tcp, store} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want an error about %s", err, want)
				}
			}
		}
	}
	for _, c := range []TCPConfig{
		{Size: 0},
		{Rank: 2, Size: 2},
		{Rank: -1, Size: 2},
		{Size: 2},
		{Rank: 1, Size: 2},
		{Size: 2, Address: "127.0.0.1"},
		{Size: 2, Address: "127.0.0.1:0"},
		{Size: 2, Address: "127.0.0.1:http!"},
		{Size: 2, Address: ":99"},
		{Size: 2, Address: "127.0.0.1:99999"},
	} {
		if _, err := DialTCP(testContext(t), c); err == nil {
			t.Errorf("%+v joins", c)
		}
	}
	forEachImplementation(t, 2, func(t *testing.T, ranks []Bootstrap) {
		for _, peer := range []int{-1, 2} {
			if err := ranks[0].Send(testContext(t), peer, nil); err == nil {
				t.Errorf("sent to rank %d", peer)
			}
			if _, err := ranks[0].Recv(testContext(t), peer); err == nil {
				t.Errorf("received from rank %d", peer)
			}
		}
	})
}
