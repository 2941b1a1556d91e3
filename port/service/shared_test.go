package service_test

import (
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

// opened are the domains that the ranks of a test have opened.
type opened struct {
	network *fabrictest.Network

	mu      sync.Mutex
	domains [][]*fabric.Domain // by rank
}

func (o *opened) open(ctx context.Context, f fabric.Options) (*fabric.Domain, error) {
	d, err := o.network.Open(ctx, f)
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.domains[f.Rank] = append(o.domains[f.Rank], d)
	}
	return d, err
}

// count is how many a rank has opened, and how many of these are open.
func (o *opened) count(rank int) (all, open int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.domains[rank] {
		if r, err := d.Register(make([]byte, 8), 0); err == nil {
			_ = r.Close()
			open++
		}
	}
	return len(o.domains[rank]), open
}

// TestShared: services that share have one domain, whatever order they are made and closed in, until one leaves with
// something underway, ranks are masked, or its signals are used up. Then the next one opens another.
func TestShared(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			o := opened{network: fabrictest.New(class, 1), domains: make([][]*fabric.Domain, 3)}
			err := ranktest.Run(3, func(rank int) []weft.Option {
				return []weft.Option{
					weft.WithDeadline(time.Minute), weft.WithHostID("abc"[rank:][:1]), weft.WithFabric(o.open),
				}
			}, o.run)
			if err != nil {
				t.Error(err)
			}
			for rank := range o.domains {
				if _, open := o.count(rank); open > 0 {
					t.Errorf("rank %d: %d domains are open at the end", rank, open)
				}
			}
		})
	}
}

// sharing is a service with a channel to each other rank.
type sharing struct {
	*service.Service
	memory   []byte
	channels []*service.Channel
}

func share(ctx context.Context, c *weft.Comm, channels int) (*sharing, error) {
	s, err := service.New(ctx, c, service.Options{Shared: true, Channels: channels})
	if err != nil {
		return nil, err
	}
	x := &sharing{s, make([]byte, 8+4*slot), make([]*service.Channel, c.Size())}
	m, err := s.Register(ctx, x.memory)
	if err != nil {
		return nil, err
	}
	for a := range c.Size() {
		for b := range a {
			if c.Rank() != a && c.Rank() != b {
				continue
			}
			peer, o := a+b-c.Rank(), service.ChannelOptions{Kind: service.PortChannel}
			if x.channels[peer], err = s.Connect(ctx, peer, o, m, m); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

// exchange has each two ranks exchange, one pair after the other: all have the same memory.
func (x *sharing) exchange(ctx context.Context, c *weft.Comm) error {
	for a := range c.Size() {
		for b := range a {
			var err error
			if c.Rank() == a || c.Rank() == b {
				err = exchange(ctx, x.channels[a+b-c.Rank()], c.Rank(), x.memory, 3, false)
			}
			if err := errors.Join(err, c.Operations().VerifySame(ctx, "pair", "", nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *opened) run(ctx context.Context, c *weft.Comm) error {
	before, _ := o.count(c.Rank())
	// rails checks how many domains services have opened in all, and how many of them are open.
	rails := func(when string, all, open int) error {
		a, n := o.count(c.Rank())
		windows := 1 // the communicator's own, for the services' windows
		if a-before != all+windows || n != open+windows {
			return fmt.Errorf("%s: services have opened %d domains, of which %d are open; want %d and %d", when,
				a-before-windows, n-windows, all, open)
		}
		return nil
	}
	first, err := share(ctx, c, 4)
	if err != nil {
		return err
	}
	second, err := share(ctx, c, 7)
	if err != nil {
		return err
	}
	if err := errors.Join(rails("two services", 1, 1), first.exchange(ctx, c), second.exchange(ctx, c),
		first.exchange(ctx, c)); err != nil {
		return err
	}
	// Ranks close in orders of their own.
	if c.Rank() == 0 {
		err = errors.Join(first.Close(), second.exchange(ctx, c))
	} else {
		err = errors.Join(second.exchange(ctx, c), first.Close())
	}
	if err := errors.Join(err, rails("one of two is closed", 1, 1), second.exchange(ctx, c)); err != nil {
		return err
	}
	if c.Rank() == 0 { // the last one, of this rank alone
		if err := second.Close(); err != nil {
			return err
		}
	}
	third, err := share(ctx, c, 4)
	if err != nil {
		return err
	}
	if c.Rank() != 0 {
		err = second.Close()
	}
	if err := errors.Join(err, third.exchange(ctx, c), rails("closed and made anew", 2, 1)); err != nil {
		return err
	}
	// Signals are used once.
	const many = 1000
	for range 4 {
		again, err := share(ctx, c, many)
		if err != nil {
			return err
		}
		if err := errors.Join(again.exchange(ctx, c), again.Close()); err != nil {
			return err
		}
	}
	fourth, err := share(ctx, c, many)
	if err != nil {
		return err
	}
	if err := errors.Join(fourth.exchange(ctx, c), third.exchange(ctx, c)); err != nil {
		return err
	}
	// Services of before ranks were masked are not gone on with.
	if err := errors.Join(rails("signals are used up", 3, 2), c.SetMask(ctx)); err != nil {
		return err
	}
	fifth, err := share(ctx, c, 4)
	if err != nil {
		return err
	}
	if err := errors.Join(rails("ranks were masked", 4, 3), third.Close(), fourth.Close(), fifth.exchange(ctx, c),
		rails("those of before are closed", 4, 1)); err != nil {
		return err
	}
	if _, err := service.New(ctx, c, service.Options{Shared: true, Depth: 16}); !errors.Is(err, weft.ErrInvalid) {
		return fmt.Errorf("Shared with a depth: %w", err)
	}
	return errors.Join(fifth.Close(), rails("all are closed", 4, 0))
}

// TestSharedFailure: after a failure a service that closes ends what it shares with others, though nothing of its own
// is underway: something may be to its memory.
func TestSharedFailure(t *testing.T) {
	o := opened{network: fabrictest.New(fabrictest.TCP(), 1), domains: make([][]*fabric.Domain, 2)}
	var made sync.WaitGroup
	made.Add(2)
	if err := ranktest.Run(2, func(rank int) []weft.Option {
		return []weft.Option{weft.WithHostID("ab"[rank:][:1]), weft.WithFabric(o.open)}
	}, func(ctx context.Context, c *weft.Comm) error {
		var services [2]*service.Service
		for i := range services {
			var err error
			if services[i], err = service.New(ctx, c, service.Options{Shared: true, Channels: 1}); err != nil {
				made.Done()
				return err
			}
		}
		made.Done()
		made.Wait()
		c.Abort()
		_, before := o.count(c.Rank())
		if err := services[0].Close(); err != nil {
			return err
		}
		if _, open := o.count(c.Rank()); open != before-1 {
			return fmt.Errorf("of %d domains %d are open", before, open)
		}
		return services[1].Close()
	}); err != nil {
		t.Error(err)
	}
}
