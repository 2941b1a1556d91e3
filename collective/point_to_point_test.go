package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
)

// messageFor is n bytes that tell who sends them to whom, and as which message.
func messageFor(from, to, number, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(from)<<32|uint64(to), uint64(number)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestBatchDelivers: batches of any messages between any ranks arrive, in order, of any size, from
// windows and from other memory.
func TestBatchDelivers(t *testing.T) {
	sizes := []int{1, 2, 3, 5, 8}
	if testing.Short() {
		sizes = []int{1, 2, 3}
	}
	for _, ranks := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			const most = 200_000
			j := newJob(t, ranks)
			windows := make([]*weft.Window, ranks)
			j.must(t, func(ctx context.Context, r int) (err error) {
				windows[r], err = j.comms[r].Alloc(ctx, 1<<20)
				return err
			})
			variants := [][]*Group{j.group(t, Options{}), j.group(t, Options{Scratch: smallScratch})}
			rapid.Check(t, func(t *rapid.T) {
				type message struct {
					from, to, n int
					want, got   []byte
				}
				groups := variants[rapid.IntRange(0, 1).Draw(t, "variant")]
				used := make([]int, ranks) // bytes of windows
				var all []*message
				for range rapid.IntRange(0, 12*ranks).Draw(t, "messages") {
					m := &message{
						from: rapid.IntRange(0, ranks-1).Draw(t, "from"), to: rapid.IntRange(0, ranks-1).Draw(t, "to"),
						n: rapid.OneOf(rapid.IntRange(0, 41), rapid.IntRange(100, 110), rapid.IntRange(0, 3000),
							rapid.IntRange(0, most)).Draw(t, "bytes"),
					}
					m.want, m.got = messageFor(m.from, m.to, len(all), m.n), make([]byte, m.n)
					if w := windows[m.from].Bytes()[used[m.from]:]; rapid.Bool().Draw(t, "window") && m.n <= len(w) {
						m.want = w[:copy(w, m.want)]
						used[m.from] += m.n
					}
					all = append(all, m)
				}
				eachRank(t, j.all(), func(ctx context.Context, r int) error {
					return groups[r].Batch(ctx, nil, func(b *Batch) error {
						for _, m := range all {
							if m.from == r {
								b.Send(weft.TensorAt(m.want, weft.Uint8, m.n), m.to)
							}
						}
						for _, m := range all {
							if m.to == r {
								b.Recv(weft.TensorAt(m.got, weft.Uint8, m.n), m.from)
							}
						}
						return nil
					})
				})
				for i, m := range all {
					if !bytes.Equal(m.got, m.want) {
						t.Fatalf("message %d, of %d bytes from %d to %d, is another one", i, m.n, m.from, m.to)
					}
				}
			})
		})
	}
}

// TestSendRecv passes messages round a ring, in calls of their own, between barriers.
func TestSendRecv(t *testing.T) {
	const ranks = 3
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	for _, n := range []int{0, 1, 40, 41, 104, 105, 1000, 70_000, 3 << 20} {
		j.must(t, func(ctx context.Context, r int) error {
			g, to, from := groups[r], (r+1)%ranks, (r+ranks-1)%ranks
			for i := range 100 {
				out, got := messageFor(r, to, i, min(n, 100)), make([]byte, min(n, 100))
				if i == 0 {
					out, got = messageFor(r, to, i, n), make([]byte, n)
				}
				send := func() error { return g.Send(ctx, nil, weft.TensorOf(out), to) }
				recv := func() error { return g.Recv(ctx, nil, weft.TensorOf(got), from) }
				first, second := send, recv
				if r == 0 {
					first, second = recv, send
				}
				if err := errors.Join(first(), second()); err != nil {
					return err
				}
				if !bytes.Equal(got, messageFor(from, r, i, len(got))) {
					return fmt.Errorf("rank %d: message %d of %d bytes is another one", r, i, len(got))
				}
				if i%10 == 0 {
					if err := g.Barrier(ctx, nil); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
}

// TestBatchMeetsCalls: a rank's batch meets single calls of its peers.
func TestBatchMeetsCalls(t *testing.T) {
	j := newJob(t, 3)
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		x := make([]float32, 4)
		if r > 0 {
			for i := range x {
				x[i] = float32(10*r + i)
				if err := groups[r].Send(ctx, nil, weft.TensorOf(x[i:i+1]), 0); err != nil {
					return err
				}
			}
			return nil
		}
		y := make([]float32, 4)
		err := groups[0].Batch(ctx, nil, func(b *Batch) error {
			for i := range x {
				b.Recv(weft.TensorOf(x[i:i+1]), 2)
				b.Recv(weft.TensorOf(y[i:i+1]), 1)
			}
			return nil
		})
		if err == nil && (x[3] != 23 || y[3] != 13 || x[0] != 20 || y[0] != 10) {
			return fmt.Errorf("got %v and %v", x, y)
		}
		return err
	})
}

// TestMessagesDiffer: a message of another length or type is an error on both sides, which names both;
// what is behind it arrives.
func TestMessagesDiffer(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{Scratch: smallScratch})
	for _, n := range []int{1, 20, 5000} {
		for _, c := range []struct {
			receive weft.Tensor
			words   string
		}{
			{weft.TensorOf(make([]float32, n+1)), fmt.Sprintf("%d fp32", n+1)},
			{weft.TensorOf(make([]float32, 0)), "0 fp32"},
			{weft.TensorOf(make([]int32, n)), fmt.Sprintf("%d int32", n)},
		} {
			x, y, z := make([]float32, n), make([]float32, n), make([]float32, n)
			x[0] = 5
			errs := j.each(t, func(ctx context.Context, r int) error {
				return groups[r].Batch(ctx, nil, func(b *Batch) error {
					for _, to := range []weft.Tensor{c.receive, weft.TensorOf(y), weft.TensorOf(z)} {
						if r == 0 {
							b.Send(weft.TensorOf(x), 1)
						} else {
							b.Recv(to, 0)
						}
					}
					return nil
				})
			})
			for r, err := range errs {
				peer, ok := errors.AsType[*weft.PeerError](err)
				if !errors.Is(err, weft.ErrMismatch) || !ok || peer.Rank != 1-r ||
					!strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), fmt.Sprintf("%d fp32", n)) {
					t.Errorf("%d elements, receive of %s: rank %d returns %v", n, c.words, r, err)
				}
			}
			if y[0] != 5 {
				t.Errorf("%d elements, receive of %s: what follows has not arrived", n, c.words)
			}
		}
	}
	j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
}

// TestSomeMessagesDiffer: of many messages, more than there are lines for, those arrive that are alike.
func TestSomeMessagesDiffer(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{Scratch: smallScratch})
	rapid.Check(t, func(t *rapid.T) {
		var sends, receives []weft.Tensor
		differs := make([]bool, rapid.IntRange(1, 300).Draw(t, "messages"))
		seldom := rapid.IntRange(1, 20).Draw(t, "seldom")
		any := false
		for i := range differs {
			n := rapid.OneOf(rapid.IntRange(0, 41), rapid.IntRange(100, 110), rapid.IntRange(0, 1000)).Draw(t, "bytes")
			differs[i] = rapid.IntRange(0, seldom).Draw(t, "differs") == 0
			any = any || differs[i]
			sends = append(sends, weft.TensorOf(messageFor(0, 1, i, n)))
			receives = append(receives, weft.TensorOf(make([]byte, n)))
			if differs[i] {
				receives[i] = weft.TensorOf(make([]byte, n+1))
			}
		}
		var errs [2]error
		eachRank(t, j.all(), func(ctx context.Context, r int) error {
			errs[r] = groups[r].Batch(ctx, nil, func(b *Batch) error {
				for i := range differs {
					if r == 0 {
						b.Send(sends[i], 1)
					} else {
						b.Recv(receives[i], 0)
					}
				}
				return nil
			})
			return j.comms[r].Err()
		})
		for r, err := range errs {
			if any != errors.Is(err, weft.ErrMismatch) {
				t.Fatalf("rank %d returns %v", r, err)
			}
		}
		for i, x := range receives {
			want := sends[i].Raw()
			if differs[i] {
				want = make([]byte, x.Bytes())
			}
			if !bytes.Equal(x.Raw(), want) {
				t.Fatalf("message %d of %d bytes, differs %t, is another one", i, len(want), differs[i])
			}
		}
	})
}

// TestMessagesRefused: what is wrong with a rank's messages is returned there and on the peers that they
// name, and the group goes on.
func TestMessagesRefused(t *testing.T) {
	const ranks = 3
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	x := weft.TensorOf(make([]float32, 8))
	absent := weft.Absent("it is not contiguous")
	for name, c := range map[string]struct {
		wrong func(*Batch)
		peers []int // that the messages name
	}{
		"no memory": {func(b *Batch) { b.Send(weft.Tensor{DType: weft.Float32, Shape: []int{8}}, 1) }, []int{1}},
		"absent":    {func(b *Batch) { b.Send(absent, 2) }, []int{2}},
		"no rank":   {func(b *Batch) { b.Send(x, 1); b.Send(x, ranks) }, []int{1}},
		"itself":    {func(b *Batch) { b.Send(x, 0); b.Send(x, 2) }, []int{2}},
		"unlike":    {func(b *Batch) { b.Send(x, 0); b.Recv(weft.TensorOf(make([]float32, 7)), 0) }, nil},
	} {
		for _, receive := range []bool{false, true} {
			errs := j.each(t, func(ctx context.Context, r int) error {
				if r == 0 {
					return groups[0].Batch(ctx, nil, func(b *Batch) error {
						c.wrong(b)
						if receive {
							for i := range b.transfers {
								b.transfers[i].Receive = !b.transfers[i].Receive
							}
						}
						return nil
					})
				}
				for _, p := range c.peers {
					if p == r && receive {
						return groups[r].Send(ctx, nil, x, 0)
					} else if p == r {
						return groups[r].Recv(ctx, nil, x, 0)
					}
				}
				return nil
			})
			for r, err := range errs {
				named := r == 0
				for _, p := range c.peers {
					named = named || p == r
				}
				if named != errors.Is(err, weft.ErrInvalid) || r > 0 && named && !strings.Contains(err.Error(), "refused there") {
					t.Errorf("%s, receive %t: rank %d returns %v", name, receive, r, err)
				}
			}
		}
	}
	for name, wrong := range map[string]func(*Call){
		"algorithm": func(c *Call) { c.Algorithm = "all-reduce/eager" },
		"norm":      func(c *Call) { c.Norm = &Norm{Gamma: x} },
		"words":     func(c *Call) { c.Words.Progress = weft.TensorOf(make([]uint64, 1)) },
		"blocks":    func(c *Call) { c.Blocks = 1 },
		"threads":   func(c *Call) { c.Threads = 1 },
		"extras":    func(c *Call) { c.Extras = map[string]uintptr{"x": 0} },
		"symmetric": func(c *Call) { c.Symmetric = true },
	} {
		c := Call{Collective: PointToPoint, Transfers: []Transfer{{Tensor: x, Peer: 1}}}
		wrong(&c)
		if err := c.Check(0, ranks); !errors.Is(err, weft.ErrInvalid) || !strings.HasPrefix(err.Error(), "invalid") ||
			!strings.Contains(err.Error(), "send: ") || !strings.Contains(err.Error(), name) {
			t.Errorf("messages with %s: %v", name, err)
		}
	}
	j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
	wrong := errors.New("wrong")
	if err := groups[0].Batch(t.Context(), nil, func(b *Batch) error { b.Send(x, 1); return wrong }); err != wrong {
		t.Errorf("a batch that is not filled returns %v", err)
	}
	if err := groups[0].Batch(t.Context(), nil, func(*Batch) error { return nil }); err != nil {
		t.Errorf("an empty batch returns %v", err)
	}
}

// TestMessageWithoutPeer: waits end at the deadline, with the context and when the peer leaves, and the
// survivors go on with the group.
func TestMessageWithoutPeer(t *testing.T) {
	x, y := weft.TensorOf(make([]float32, 100_000)), weft.TensorOf(make([]float32, 100_000))
	one := weft.TensorOf(make([]float32, 1))
	for name, call := range map[string]func(context.Context, *Group) error{
		"send":  func(ctx context.Context, g *Group) error { return g.Send(ctx, nil, one, 2) },
		"chunk": func(ctx context.Context, g *Group) error { return g.Send(ctx, nil, x, 2) },
		"recv":  func(ctx context.Context, g *Group) error { return g.Recv(ctx, nil, x, 2) },
		"batch": func(ctx context.Context, g *Group) error {
			return g.Batch(ctx, nil, func(b *Batch) error { b.Send(x, 2); b.Send(one, 2); b.Recv(y, 2); return nil })
		},
	} {
		for _, end := range []string{"deadline", "context", "left"} {
			t.Run(name+"/"+end, func(t *testing.T) {
				options := []weft.Option{}
				if end == "deadline" {
					options = append(options, weft.WithDeadline(200*time.Millisecond))
				}
				j := newJob(t, 3, options...)
				groups := j.group(t, Options{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(50*time.Millisecond, func() {
					switch end {
					case "context":
						cancel()
					case "left":
						if err := j.comms[2].Close(); err != nil {
							t.Error(err)
						}
					}
				})
				err := call(ctx, groups[0])
				want := map[string]error{"deadline": weft.ErrTimeout, "context": context.Canceled, "left": weft.ErrLeft}[end]
				if !errors.Is(err, want) || !strings.Contains(err.Error(), "rank 2") {
					t.Fatalf("got %v, want %v of rank 2", err, want)
				}
				if err := call(t.Context(), groups[0]); end != "context" && err == nil {
					t.Error("the failure does not last")
				}
				// Rank 2 is left out, and the others' messages begin anew.
				errs := j.each(t, func(ctx context.Context, r int) error {
					if r == 2 {
						return nil
					}
					if err := j.comms[r].SetMask(ctx, 2); err != nil {
						return err
					}
					if err := call(ctx, groups[r]); !errors.Is(err, weft.ErrMasked) || !errors.Is(err, weft.ErrInvalid) {
						return fmt.Errorf("a message of a masked rank: %w", err)
					}
					y := make([]float32, 100_000)
					return groups[r].Batch(ctx, nil, func(b *Batch) error {
						b.Send(x, 1-r)
						b.Recv(weft.TensorOf(y), 1-r)
						return nil
					})
				})
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestSendersWaitForEachOther: two ranks that both send first are found out, whatever the size.
func TestSendersWaitForEachOther(t *testing.T) {
	for _, n := range []int{1, 100_000} {
		j := newJob(t, 2, weft.WithDeadline(200*time.Millisecond))
		groups := j.group(t, Options{})
		for r, err := range j.each(t, func(ctx context.Context, r int) error {
			return groups[r].Send(ctx, nil, weft.TensorOf(make([]float32, n)), 1-r)
		}) {
			if !errors.Is(err, weft.ErrTimeout) {
				t.Errorf("%d elements: rank %d returns %v", n, r, err)
			}
		}
	}
}

// TestMessagesAllocateNothing counts allocations of a message on both ranks.
func TestMessagesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const times = 200
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	for _, n := range []int{1, 1000, 100_000} {
		for _, batch := range []bool{false, true} {
			ctx := testContext(t)
			x := [2]weft.Tensor{weft.TensorOf(make([]float32, n)), weft.TensorOf(make([]float32, n))}
			y := [2]weft.Tensor{weft.TensorOf(make([]float32, n)), weft.TensorOf(make([]float32, n))}
			var add [2]func(*Batch) error
			for r := range add {
				add[r] = func(b *Batch) error { b.Send(x[r], 1-r); b.Recv(y[r], 1-r); return nil }
			}
			call := func(r int) {
				var err error
				switch {
				case batch:
					err = groups[r].Batch(ctx, nil, add[r])
				case r == 0:
					err = errors.Join(groups[0].Send(ctx, nil, x[0], 1), groups[0].Recv(ctx, nil, y[0], 1))
				default:
					err = errors.Join(groups[1].Recv(ctx, nil, y[1], 0), groups[1].Send(ctx, nil, x[1], 0))
				}
				if err != nil {
					t.Error(err)
				}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range times + 1 {
					call(1)
				}
			}()
			if a := testing.AllocsPerRun(times, func() { call(0) }); a > 0 {
				t.Errorf("%d elements, batch %t: %v allocations", n, batch, a)
			}
			<-done
		}
	}
	runtime.KeepAlive(groups)
}

// TestBatchRefused: a batch inside a batch's function, which would lose messages, and receives that overlap.
func TestBatchRefused(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	x := make([]float32, 8)
	send := func(from, to int) Transfer { return Transfer{Tensor: weft.TensorOf(x[from:to]), Peer: 1} }
	receive := func(from, to int) Transfer {
		return Transfer{Tensor: weft.TensorOf(x[from:to]), Peer: 1, Receive: true}
	}
	j.must(t, func(ctx context.Context, r int) error {
		g, peer := groups[r], 1-r
		var inner []error
		y := make([]int32, 4)
		if err := g.Batch(ctx, nil, func(b *Batch) error {
			b.Send(weft.TensorOf(y[:2]), peer)
			inner = []error{
				g.Batch(ctx, nil, func(*Batch) error { return nil }), g.Send(ctx, nil, weft.TensorOf(y), peer),
				g.Recv(ctx, nil, weft.TensorOf(y), peer),
			}
			b.Recv(weft.TensorOf(y[2:]), peer)
			return nil
		}); err != nil {
			return err
		}
		for _, err := range inner {
			if !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("a call inside a batch's function: %w", err)
			}
		}
		return g.Barrier(ctx, nil)
	})
	for name, c := range map[string]struct {
		transfers []Transfer
		refused   bool
	}{
		"receives":            {[]Transfer{receive(0, 4), receive(3, 5)}, true},
		"a send in a receive": {[]Transfer{send(2, 3), receive(0, 8)}, true},
		"behind a short one":  {[]Transfer{receive(0, 8), send(1, 2), send(6, 7)}, true},
		"sends":               {[]Transfer{send(0, 4), send(2, 6), receive(6, 8)}, false},
		"apart":               {[]Transfer{receive(4, 8), receive(0, 4)}, false},
		"nothing":             {[]Transfer{receive(0, 4), receive(2, 2)}, false},
	} {
		call := Call{Collective: PointToPoint, Transfers: c.transfers}
		if err := call.Check(0, 2); errors.Is(err, weft.ErrInvalid) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
