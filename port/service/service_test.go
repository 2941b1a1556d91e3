package service_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/port/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// twin are the options of ranks on networks of a class, two rails.
func twin(t testing.TB, class fabrictest.Class, seed uint64) func(rank int) service.Options {
	var networks []*fabrictest.Network
	for rail := range 2 {
		n := fabrictest.New(class, 2*seed+uint64(rail))
		networks = append(networks, n)
		t.Cleanup(func() {
			if err := n.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	return func(int) service.Options {
		return service.Options{
			Sources: []string{"", ""}, Depth: 16, Spread: 300, Channels: 5,
			Open: func(ctx context.Context, rail int, o fabric.Options) (*fabric.Domain, error) {
				return networks[rail].Open(ctx, o)
			},
		}
	}
}

// libfabric are the options of ranks on libfabric, or the test is skipped.
func libfabric(t testing.TB) func(rank int) service.Options {
	return func(int) service.Options {
		return service.Options{Open: func(ctx context.Context, _ int, o fabric.Options) (*fabric.Domain, error) {
			o.Provider, o.Source = "tcp", "127.0.0.1"
			return fabrictest.Libfabric(ctx, t, o), nil
		}}
	}
}

func none(int) service.Options {
	return service.Options{Open: func(context.Context, int, fabric.Options) (*fabric.Domain, error) {
		return nil, fmt.Errorf("%w: no network today", fabric.ErrUnsupported)
	}}
}

// onRanks runs a body on ranks with a service each.
func onRanks(t *testing.T, ranks int, options func(rank int) service.Options,
	body func(ctx context.Context, c *weft.Comm, s *service.Service) error,
) {
	t.Helper()
	err := ranktest.Run(ranks, func(int) []weft.Option { return []weft.Option{weft.WithDeadline(time.Minute)} },
		func(ctx context.Context, c *weft.Comm) error {
			s, err := service.New(ctx, c, options(c.Rank()))
			if err != nil {
				return err
			}
			return errors.Join(body(ctx, c, s), s.Close())
		})
	if err != nil {
		t.Error(err)
	}
}

// onNetworks runs a test on twins of every class, and on libfabric.
func onNetworks(t *testing.T, test func(*testing.T, func(rank int) service.Options)) {
	for _, class := range fabrictest.Classes() {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("twin/%s/%d", class.Name, seed), func(t *testing.T) { test(t, twin(t, class, seed)) })
		}
	}
	t.Run("libfabric", func(t *testing.T) {
		probe, err := fabric.Open(t.Context(), fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"})
		if err == nil {
			probe.Close()
		} else {
			fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"})
		}
		test(t, libfabric(t))
	})
}

const slot = 500

// pattern fills bytes by a seed.
func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*(2*seed+1) + seed + i>>8)
	}
}

// exchange puts to the peer and takes what it puts, round by round, into two slots by parity and from two.
func exchange(ctx context.Context, c *service.Channel, rank int, memory []byte, rounds int, adds bool) error {
	for round := range rounds {
		from, to := 8+(2+round%2)*slot, 8+round%2*slot
		pattern(memory[from:][:slot], round+rank)
		var err error
		if adds {
			err = c.AtomicAdd(ctx, 0, 3)
		}
		err = errors.Join(err, c.Put(ctx, to, from, slot/2))
		if round%3 == 0 {
			err = errors.Join(err, c.PutWithSignalAndFlush(ctx, to+slot/2, from+slot/2, slot/2))
		} else {
			err = errors.Join(err, c.PutWithSignal(ctx, to+slot/2, from+slot/2, slot/2), c.Flush(ctx))
		}
		if err = errors.Join(err, c.Wait(ctx)); err != nil {
			return err
		}
		want := make([]byte, slot)
		pattern(want, round+c.Peer())
		if got := memory[to:][:slot]; !bytes.Equal(got, want) {
			return fmt.Errorf("round %d: the signal came before its bytes", round)
		}
		// The peer's next add may be landing.
		if got := (*atomic.Uint64)(unsafe.Pointer(&memory[0])).Load(); adds && got < uint64(3*(round+1)) {
			return fmt.Errorf("round %d: the signal came before its add: %d", round, got)
		}
	}
	return errors.Join(c.Signal(ctx), c.Wait(ctx))
}

// TestChannels: all pairs of ranks exchange on channels of each kind, which they ask for alike.
func TestChannels(t *testing.T) {
	onNetworks(t, func(t *testing.T, options func(int) service.Options) {
		onRanks(t, 3, options, func(ctx context.Context, c *weft.Comm, s *service.Service) error {
			for _, o := range []service.ChannelOptions{
				{},
				{Kind: service.MemoryChannel},
				{Kind: service.PortChannel},
				{Kind: service.PortChannel, Spread: true},
				{Spread: true},
			} {
				if err := pairs(ctx, c, s, o); err != nil {
					return fmt.Errorf("%+v: %w", o, err)
				}
			}
			return nil
		})
	})
}

// pairs has each two ranks exchange through a window.
func pairs(ctx context.Context, c *weft.Comm, s *service.Service, o service.ChannelOptions) error {
	w, err := c.Alloc(ctx, 8+4*slot)
	if err != nil {
		return err
	}
	defer w.Close()
	m, err := s.Register(ctx, w.Bytes())
	if err != nil {
		return err
	}
	defer m.Close()
	want := service.PortChannel
	if o.Kind == service.MemoryChannel || o.Kind == service.Auto && !o.Spread {
		want = service.MemoryChannel
	}
	first := errors.New("no channel")
	for a := range c.Size() {
		for b := range a {
			if c.Rank() != a && c.Rank() != b {
				continue
			}
			peer := a + b - c.Rank()
			// The pairs go on one after the other, on the same bytes.
			clear(w.Bytes())
			ch, err := s.Connect(ctx, peer, o, m, m)
			if err != nil {
				return err
			}
			if dst, src := ch.Bytes(); ch.Kind() != want || ch.Peer() != peer || dst != src || ch.Err() != nil {
				return fmt.Errorf("%v channel to %d of %d and %d bytes: %v", ch.Kind(), ch.Peer(), dst, src, ch.Err())
			}
			if err := exchange(ctx, ch, c.Rank(), w.Bytes(), 20, want == service.MemoryChannel || !o.Spread); err != nil {
				return err
			}
			if ch.Poll() {
				return errors.New("a signal too many")
			}
			first = nil
		}
		if err := c.Operations().VerifySame(ctx, "test", "pair", nil); err != nil {
			return err
		}
	}
	return first
}

// TestPlainMemory: memory of any length that lies in no window, and a channel between other memories.
func TestPlainMemory(t *testing.T) {
	onNetworks(t, func(t *testing.T, options func(int) service.Options) {
		onRanks(t, 2, options, func(ctx context.Context, c *weft.Comm, s *service.Service) error {
			peer := 1 - c.Rank()
			own := bytes.Repeat([]byte{byte(10 + c.Rank())}, 1000*(1-c.Rank())+3) // 1003 and 3 bytes
			m, err := s.Register(ctx, own)
			if err != nil {
				return err
			}
			nothing, err := s.Register(ctx, nil)
			if err != nil {
				return err
			}
			ch, err := s.Connect(ctx, peer, service.ChannelOptions{}, m, m)
			if err != nil {
				return err
			}
			if ch.Kind() != service.PortChannel || m.Bytes(peer) != 1000*c.Rank()+3 || nothing.Bytes(peer) != 0 {
				return fmt.Errorf("%v channel, %d and %d bytes", ch.Kind(), m.Bytes(peer), nothing.Bytes(peer))
			}
			other, err := ch.With(m, nothing)
			if err != nil {
				return err
			}
			err = errors.Join(ch.Put(ctx, 0, 2, 1), ch.Put(ctx, 3, 3, 0), other.PutWithSignal(ctx, 1, 0, 0),
				ch.Wait(ctx), other.Flush(ctx))
			if err != nil || own[0] != byte(10+peer) || own[1] != own[2] || own[2] != byte(10+c.Rank()) {
				return fmt.Errorf("%v, %v", err, own[:3])
			}
			for _, err := range []error{
				ch.Put(ctx, -1, 0, 1), ch.Put(ctx, 0, -1, 1), ch.Put(ctx, 0, 0, -1), ch.Put(ctx, 1003, 0, 3),
				ch.Put(ctx, 0, 0, 1003), ch.PutWithSignal(ctx, 1<<62, 1<<62, 1<<62), other.Put(ctx, 0, 0, 1),
				ch.AtomicAdd(ctx, 4, 1), ch.AtomicAdd(ctx, -8, 1), ch.AtomicAdd(ctx, 1000, 1),
			} {
				if !errors.Is(err, weft.ErrInvalid) {
					return fmt.Errorf("what lies outside: %v", err)
				}
			}
			return errors.Join(ch.Err(), ch.Signal(ctx), ch.Wait(ctx), nothing.Close(), m.Close(), m.Close())
		})
	})
}

// TestOpen: ranks that have connected bring each other cards and numbers, and make memories and channels of them, in
// any order.
func TestOpen(t *testing.T) {
	onNetworks(t, func(t *testing.T, options func(int) service.Options) {
		onRanks(t, 2, options, func(ctx context.Context, c *weft.Comm, s *service.Service) error {
			rank, peer := c.Rank(), 1-c.Rank()
			board := make([]byte, 2*slot)
			m, err := s.Register(ctx, board)
			if err != nil {
				return err
			}
			fabricOnly := service.ChannelOptions{Kind: service.PortChannel}
			if _, err := s.Open(peer, 2, fabricOnly, m, m); !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("before they have connected: %v", err)
			}
			first, err := s.Connect(ctx, peer, fabricOnly, m, m)
			if err != nil {
				return err
			}
			memory := make([]byte, 8+4*slot)
			mine, err := s.Expose(memory)
			if err != nil {
				return err
			}
			card := mine.Card()
			board[slot] = byte(len(card))
			copy(board[slot+1:], card)
			if err := errors.Join(first.PutWithSignal(ctx, 0, slot, slot), first.Wait(ctx), first.Flush(ctx)); err != nil {
				return err
			}
			theirs, err := s.Import(board[1:][:board[0]])
			if err != nil {
				return err
			}
			if theirs.Bytes(peer) != len(memory) || theirs.Bytes(rank) != 0 || theirs.Card() != nil {
				return fmt.Errorf("%d and %d bytes, card %x", theirs.Bytes(peer), theirs.Bytes(rank), theirs.Card())
			}
			opened := map[int]*service.Channel{}
			for i := range 2 {
				number := 3 + (i+rank)%2
				if opened[number], err = s.Open(peer, number, fabricOnly, theirs, mine); err != nil {
					return err
				}
			}
			for number := 3; number <= 4; number++ {
				clear(memory)
				if err := errors.Join(first.Signal(ctx), first.Wait(ctx)); err != nil {
					return err
				}
				if err := exchange(ctx, opened[number], rank, memory, 10, true); err != nil {
					return fmt.Errorf("channel %d: %w", number, err)
				}
			}
			next, err := s.Connect(ctx, peer, fabricOnly, m, m) // number 2
			if err != nil {
				return err
			}
			for i, try := range []struct {
				number   int
				o        service.ChannelOptions
				dst, src *service.Memory
			}{
				{-1, fabricOnly, theirs, mine},
				{0, fabricOnly, theirs, mine},
				{1, fabricOnly, theirs, mine},
				{2, fabricOnly, theirs, mine},
				{3, fabricOnly, theirs, mine},
				{s.Channels() + 1, fabricOnly, theirs, mine},
				{5, service.ChannelOptions{}, theirs, mine},
				{5, service.ChannelOptions{Kind: 7}, theirs, mine},
				{5, fabricOnly, mine, mine},
				{5, fabricOnly, theirs, theirs},
				{5, fabricOnly, theirs, nil},
			} {
				if _, err := s.Open(peer, try.number, try.o, try.dst, try.src); !errors.Is(err, weft.ErrInvalid) {
					return fmt.Errorf("wrong arguments %d: %v", i, err)
				}
			}
			for _, card := range [][]byte{nil, card, card[:7], append([]byte{1}, card...), board[1:10]} {
				if _, err := s.Import(card); !errors.Is(err, weft.ErrInvalid) && !errors.Is(err, weft.ErrMismatch) {
					return fmt.Errorf("card %x: %v", card, err)
				}
			}
			return errors.Join(next.Signal(ctx), next.Wait(ctx), theirs.Close(), mine.Close())
		})
	})
}

// TestRefusals: what one rank gets wrong is an error on both, and the next connection works.
func TestRefusals(t *testing.T) {
	onRanks(t, 2, twin(t, fabrictest.TCP(), 1), func(ctx context.Context, c *weft.Comm, s *service.Service) error {
		rank, peer := c.Rank(), 1-c.Rank()
		m, err := s.Register(ctx, make([]byte, 100))
		if err != nil {
			return err
		}
		type arguments struct {
			o        service.ChannelOptions
			dst, src *service.Memory
		}
		for _, try := range []struct {
			ranks [2]arguments
			kind  error
			words string
		}{
			{[2]arguments{{}, {dst: m, src: m}}, weft.ErrInvalid, "no memory"},
			{[2]arguments{{dst: m, src: m, o: service.ChannelOptions{Kind: 9}}, {dst: m, src: m}}, weft.ErrInvalid, "kind 9"},
			{
				[2]arguments{{dst: m, src: m, o: service.ChannelOptions{Spread: true}}, {dst: m, src: m}},
				weft.ErrMismatch, "Spread",
			},
			{
				[2]arguments{{dst: m, src: m, o: service.ChannelOptions{Kind: service.PortChannel}}, {dst: m, src: m}},
				weft.ErrMismatch, "Kind",
			},
			{[2]arguments{
				{dst: m, src: m, o: service.ChannelOptions{Kind: service.MemoryChannel}},
				{dst: m, src: m, o: service.ChannelOptions{Kind: service.MemoryChannel}},
			}, weft.ErrUnsupported, "window"},
		} {
			a := try.ranks[rank]
			_, err := s.Connect(ctx, peer, a.o, a.dst, a.src)
			if !errors.Is(err, try.kind) || !strings.Contains(err.Error(), try.words) {
				return fmt.Errorf("%v, want %v and %q", err, try.kind, try.words)
			}
		}
		for _, wrong := range []int{-1, 2, rank} {
			if _, err := s.Connect(ctx, wrong, service.ChannelOptions{}, m, m); !errors.Is(err, weft.ErrInvalid) {
				return fmt.Errorf("rank %d: %v", wrong, err)
			}
		}
		var ch *service.Channel
		for range s.Channels() {
			if ch, err = s.Connect(ctx, peer, service.ChannelOptions{}, m, m); err != nil {
				return err
			}
		}
		if _, err = s.Connect(ctx, peer, service.ChannelOptions{}, m, m); err == nil ||
			!strings.Contains(err.Error(), "more Channels") {
			return fmt.Errorf("a channel too many: %w", err)
		}
		if _, err := ch.Kernel(); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("kernels of the host: %w", err)
		}
		return errors.Join(ch.PutWithSignal(ctx, 0, 0, 100), ch.Wait(ctx))
	})
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		o := none(0)
		o.Channels = 3 + c.Rank()
		if _, err := service.New(ctx, c, o); !errors.Is(err, weft.ErrMismatch) {
			return fmt.Errorf("different numbers of channels: %w", err)
		}
		o.Channels, o.Depth = 3, 5*c.Rank()
		if _, err := service.New(ctx, c, o); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a wrong depth: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWithoutFabric: one rank lacks libfabric. Memory channels work, port channels are refused on both.
func TestWithoutFabric(t *testing.T) {
	with := twin(t, fabrictest.TCP(), 1)
	onRanks(t, 2, func(rank int) service.Options {
		o := with(rank)
		if rank == 1 {
			o.Open = none(1).Open
		}
		return o
	}, func(ctx context.Context, c *weft.Comm, s *service.Service) error {
		if err := pairs(ctx, c, s, service.ChannelOptions{}); err != nil {
			return err
		}
		m, err := s.Register(ctx, make([]byte, 8))
		if err != nil {
			return err
		}
		_, err = s.Connect(ctx, 1-c.Rank(), service.ChannelOptions{}, m, m)
		failed, _ := errors.AsType[*weft.PeerError](err)
		if _, ok := s.Fabric(); ok || failed == nil || failed.Rank != 1 || !errors.Is(err, weft.ErrUnsupported) ||
			!strings.Contains(err.Error(), "no network today") {
			return fmt.Errorf("without a fabric: %w", err)
		}
		return nil
	})
}

// TestEnds: waits end with their context, which changes nothing, and by an abort; masked ranks are refused, the others
// go on; a rank that leaves is named.
func TestEnds(t *testing.T) {
	for _, kind := range []service.Kind{service.MemoryChannel, service.PortChannel} {
		t.Run(kind.String(), func(t *testing.T) {
			options := twin(t, fabrictest.EFA(), 3)
			var ready, left sync.WaitGroup
			ready.Add(3)
			left.Add(1)
			onRanks(t, 3, options, func(ctx context.Context, c *weft.Comm, s *service.Service) error {
				if c.Rank() == 0 {
					defer left.Done()
				}
				w, err := c.Alloc(ctx, 64)
				if err != nil {
					return err
				}
				m, err := s.Register(ctx, w.Bytes())
				if err != nil {
					return err
				}
				all := make([]*service.Channel, 3)
				for k := 1; k < 3; k++ { // 0-1, 0-2, 1-2, in an order that all can keep
					for a := range 3 {
						b := (a + k) % 3
						if a > b || c.Rank() != a && c.Rank() != b {
							continue
						}
						peer := a + b - c.Rank()
						if all[peer], err = s.Connect(ctx, peer, service.ChannelOptions{Kind: kind}, m, m); err != nil {
							return err
						}
					}
				}
				next := all[(c.Rank()+1)%3]
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				if err := next.Wait(short); !errors.Is(err, context.DeadlineExceeded) || next.Err() != nil {
					return fmt.Errorf("a wait with a deadline: %w, and then %w", err, next.Err())
				}
				ready.Done()
				if c.Rank() == 2 {
					ready.Wait()
					c.Abort()
				}
				err = next.Wait(ctx)
				failed, _ := errors.AsType[*weft.PeerError](err)
				if !errors.Is(err, weft.ErrAborted) || failed == nil || failed.Rank != 2 {
					return fmt.Errorf("a wait amid an abort: %w", err)
				}
				if err := next.Put(ctx, 0, 0, 1); !errors.Is(err, weft.ErrAborted) {
					return fmt.Errorf("a put after an abort: %w", err)
				}
				if c.Rank() == 2 {
					left.Wait()
					return nil
				}
				if err := c.SetMask(ctx, 2); err != nil {
					return err
				}
				for range 3 {
					err := errors.Join(all[1-c.Rank()].PutWithSignalAndFlush(ctx, 0, 0, 8), all[1-c.Rank()].Wait(ctx))
					if err != nil {
						return fmt.Errorf("after the mask: %w", err)
					}
				}
				if err := errors.Join(all[2].Signal(ctx), all[2].Flush(ctx)); !errors.Is(err, weft.ErrMasked) {
					return fmt.Errorf("to a masked rank: %w", err)
				}
				if err := all[2].Wait(ctx); !errors.Is(err, weft.ErrMasked) {
					return fmt.Errorf("of a masked rank: %w", err)
				}
				if c.Rank() == 0 { // leaves, with something to be received
					return all[1].PutWithSignal(ctx, 8, 8, 8)
				}
				if err := all[0].Wait(ctx); err != nil {
					return fmt.Errorf("the last signal: %w", err)
				}
				return nil
			})
		})
	}
}

// TestLeft: a rank that has left is named by who waits for it, and by who puts to it.
func TestLeft(t *testing.T) {
	for _, kind := range []service.Kind{service.MemoryChannel, service.PortChannel} {
		t.Run(kind.String(), func(t *testing.T) {
			group, err := ranktest.Join(2)
			if err != nil {
				t.Fatal(err)
			}
			options := twin(t, fabrictest.Verbs(), 3)
			services, channels := make([]*service.Service, 2), make([]*service.Channel, 2)
			err = ranktest.Each(group, func(c *weft.Comm) error {
				ctx := t.Context()
				s, err := service.New(ctx, c, options(c.Rank()))
				if err != nil {
					return err
				}
				services[c.Rank()] = s
				w, err := c.Alloc(ctx, 64)
				if err != nil {
					return err
				}
				m, err := s.Register(ctx, w.Bytes())
				if err != nil {
					return err
				}
				channels[c.Rank()], err = s.Connect(ctx, 1-c.Rank(), service.ChannelOptions{Kind: kind}, m, m)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(channels[1].Signal(t.Context()), services[1].Close(), group[1].Close()); err != nil {
				t.Fatal(err)
			}
			if err := channels[1].Signal(t.Context()); !errors.Is(err, weft.ErrClosed) {
				t.Errorf("a channel of a service that was closed: %v", err)
			}
			if err := channels[0].Wait(t.Context()); err != nil {
				t.Errorf("the signal before the end: %v", err)
			}
			for what, err := range map[string]error{ // the first waits until the news has come
				"wait": channels[0].Wait(t.Context()), "put": channels[0].Put(t.Context(), 0, 0, 8),
				"flush": channels[0].Flush(t.Context()),
			} {
				failed, _ := errors.AsType[*weft.PeerError](err)
				if !errors.Is(err, weft.ErrLeft) || failed == nil || failed.Rank != 1 {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := errors.Join(services[0].Close(), services[0].Close(), group[0].Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestThreads: goroutines signal and wait on one channel together.
func TestThreads(t *testing.T) {
	for _, kind := range []service.Kind{service.MemoryChannel, service.PortChannel} {
		t.Run(kind.String(), func(t *testing.T) {
			onRanks(t, 2, twin(t, fabrictest.TCP(), 3), func(ctx context.Context, c *weft.Comm, s *service.Service) error {
				w, err := c.Alloc(ctx, 64)
				if err != nil {
					return err
				}
				m, err := s.Register(ctx, w.Bytes())
				if err != nil {
					return err
				}
				ch, err := s.Connect(ctx, 1-c.Rank(), service.ChannelOptions{Kind: kind}, m, m)
				if err != nil {
					return err
				}
				const threads, each = 4, 50
				errs := make(chan error, 2*threads)
				for range threads {
					for _, f := range []func(context.Context) error{ch.Signal, ch.Wait} {
						go func() {
							var err error
							for range each {
								err = errors.Join(err, f(ctx), ch.AtomicAdd(ctx, 8, 1))
							}
							errs <- err
						}()
					}
				}
				for range 2 * threads {
					err = errors.Join(err, <-errs)
				}
				err = errors.Join(err, ch.Flush(ctx), ch.Signal(ctx), ch.Wait(ctx))
				if got := binary.LittleEndian.Uint64(w.Bytes()[8:]); err != nil || got != 2*threads*each || ch.Poll() {
					return fmt.Errorf("%d adds: %w", got, err)
				}
				return nil
			})
		})
	}
}

// TestKernels: channels of ranks on GPUs have a form for kernels, and memory of a GPU is refused.
func TestKernels(t *testing.T) {
	gpus := ranktest.Fake(t, cudatest.Config{Devices: 2})
	options := twin(t, fabrictest.TCP(), 1)
	err := ranktest.Run(2, gpus.Options, func(ctx context.Context, c *weft.Comm) (err error) {
		s, err := service.New(ctx, c, options(c.Rank()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		w, err := c.Alloc(ctx, 64)
		if err != nil {
			return err
		}
		defer w.Close()
		on := weft.DeviceTensor(w.Pointer(), weft.Uint8, 64)
		_, err = s.Register(ctx, bytesAt(on.Data, 64))
		if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "pinned memory of the host") {
			return fmt.Errorf("memory of a GPU: %w", err)
		}
		m, err := s.Register(ctx, make([]byte, 64))
		if err != nil {
			return err
		}
		ch, err := s.Connect(ctx, 1-c.Rank(), service.ChannelOptions{}, m, m)
		if err != nil {
			return err
		}
		d, err := ch.Kernel()
		if err != nil {
			return err
		}
		if d.Peer != uint32(1-c.Rank()) || d.DstBytes != 64 || d.Slots == 0 {
			return fmt.Errorf("a channel of kernels: %+v", d)
		}
		return errors.Join(ch.PutWithSignal(ctx, 0, 0, 64), ch.Wait(ctx))
	})
	if err != nil {
		t.Error(err)
	}
}
