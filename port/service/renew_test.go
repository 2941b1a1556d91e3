package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/port/service"
)

// TestLate: a rank is lost with puts on their way, or is well and puts on. When the others have masked it nothing more
// of it lands in their memories, and they go on by the same channels, also to memories that they learned of before. One
// that is well is taken back; new services lead to it, and channels of before do not.
func TestLate(t *testing.T) {
	t.Setenv("WEFT_HEARTBEAT", "60s")
	for _, class := range fabrictest.Classes() {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("%s/%d", class.Name, seed), func(t *testing.T) {
				l := late{
					well:    seed%2 > 0,
					windows: fabrictest.New(class, 100+seed), network: fabrictest.New(class, seed),
					cut: make(chan struct{}), over: make(chan struct{}),
				}
				err := ranktest.Run(3, func(rank int) []weft.Option {
					return []weft.Option{
						weft.WithDeadline(time.Minute), weft.WithHostID("abc"[rank:][:1]), weft.WithFabric(l.windows.Open),
					}
				}, l.run)
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

type late struct {
	well             bool
	windows, network *fabrictest.Network
	cut, over        chan struct{}
}

const lateRank = 2

func (l *late) run(ctx context.Context, c *weft.Comm) (err error) {
	me := c.Rank()
	var over sync.Once
	end := func() {
		if me == 0 {
			over.Do(func() { close(l.over) })
		}
	}
	defer end()
	open := func(ctx context.Context, _ int, o fabric.Options) (*fabric.Domain, error) {
		return l.network.Open(ctx, o)
	}
	s, err := service.New(ctx, c, service.Options{Open: open})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	memory := make([]byte, 64<<10)
	m, err := s.Register(ctx, memory)
	if err != nil {
		return err
	}
	spare, err := s.Register(ctx, make([]byte, slot))
	if err != nil {
		return err
	}
	to := make([]*service.Channel, 3)
	for _, pair := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
		for i, rank := range pair {
			if rank != me {
				continue
			}
			peer := pair[1-i]
			if to[peer], err = s.Connect(ctx, peer, service.ChannelOptions{}, m, m); err != nil {
				return err
			}
		}
	}
	if me == lateRank {
		if err := l.flood(ctx, to[0], memory); err != nil || !l.well {
			return err
		}
		return l.back(ctx, c, to[0])
	}
	switch {
	case me == 0 && l.well:
		err = to[lateRank].Wait(ctx)
		close(l.cut)
	case me == 0:
		if err := to[lateRank].Wait(ctx); err != nil {
			return err
		}
		l.network.Cut(0, lateRank)
		err = errors.Join(to[lateRank].PutWithSignal(ctx, 0, 0, 100))
		time.Sleep(5 * time.Millisecond) // more is pushed meanwhile
		l.network.Reset(0, lateRank)
		for to[lateRank].Err() == nil {
			time.Sleep(time.Millisecond)
		}
		close(l.cut)
	}
	<-l.cut
	if err := errors.Join(err, c.SetMask(ctx, lateRank)); err != nil {
		return err
	}
	clear(memory)
	if err := errors.Join(to[1-me].Signal(ctx), to[1-me].Wait(ctx)); err != nil { // both have
		return err
	}
	// What these put lies where the lost rank puts nothing.
	if err := exchange(ctx, to[1-me], me, memory, 30, true); err != nil {
		return err
	}
	again, err := to[1-me].With(spare, m) // a memory that no channel led to before
	if err != nil {
		return err
	}
	if err := errors.Join(again.PutWithSignalAndFlush(ctx, 0, 0, slot), again.Wait(ctx)); err != nil {
		return err
	}
	if at := bytes.IndexByte(memory[len(memory)/2:], 0xFF); at >= 0 {
		return fmt.Errorf("rank %d: byte %d of the lost rank has landed in memory that is used anew", me, len(memory)/2+at)
	}
	if end(); !l.well {
		return nil
	}
	return l.back(ctx, c, to[lateRank])
}

// back takes the rank back that was well. old is a channel from before, of ranks 0 and 1 to that one.
func (l *late) back(ctx context.Context, c *weft.Comm, old *service.Channel) (err error) {
	if err := c.SetMask(ctx); err != nil {
		return err
	}
	if err := old.Signal(ctx); !errors.Is(err, weft.ErrClosed) && !errors.Is(err, weft.ErrDied) {
		return fmt.Errorf("rank %d: a channel of before: %w", c.Rank(), err)
	}
	s, err := service.New(ctx, c, service.Options{Open: func(ctx context.Context, _ int, o fabric.Options) (
		*fabric.Domain, error,
	) {
		return l.windows.Open(ctx, o)
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	m, err := s.Register(ctx, make([]byte, slot))
	if err != nil || c.Rank() == 1 {
		return err
	}
	to, err := s.Connect(ctx, lateRank-c.Rank(), service.ChannelOptions{}, m, m)
	if err != nil {
		return err
	}
	return errors.Join(to.Signal(ctx), to.Wait(ctx))
}

// flood puts until the channel fails.
func (l *late) flood(ctx context.Context, c *service.Channel, memory []byte) error {
	for i := range memory {
		memory[i] = 0xFF
	}
	half := len(memory) / 2
	for {
		err := c.PutWithSignal(ctx, half, half, half)
		switch {
		case errors.Is(err, weft.ErrDied), errors.Is(err, weft.ErrMasked):
			<-l.over
			return nil
		case err != nil:
			return fmt.Errorf("a put of the lost rank: %w", err)
		}
	}
}
