package eptest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// groups are the ranks of an engine. Those that are goroutines are made when they are first asked
// for, and kept until Close.
type groups struct {
	name     string
	borrowed bool // the communicators are somebody else's
	sizes    []int
	options  func(rank int) []weft.Option

	mu   sync.Mutex
	made map[int][]*weft.Comm // by size
}

func goroutines(name string, options func(rank int) []weft.Option) groups {
	return groups{name: name, sizes: []int{1, 2, 3, 4, 8}, options: options, made: map[int][]*weft.Comm{}}
}

func process(name string, c *weft.Comm) groups {
	return groups{name: name, borrowed: true, sizes: []int{c.Size()}, made: map[int][]*weft.Comm{c.Size(): {c}}}
}

// Name implements [Engine].
func (g *groups) Name() string { return g.name }

// Sizes implements [Engine].
func (g *groups) Sizes() []int { return g.sizes }

// Ranks implements [Engine].
func (g *groups) Ranks(n int, body func(c *weft.Comm) error) error {
	group, err := g.group(n)
	if err != nil {
		return err
	}
	err = Each(group, body)
	if err != nil && !g.borrowed {
		g.mu.Lock()
		delete(g.made, n)
		g.mu.Unlock()
		err = errors.Join(err, closeAll(group))
	}
	return err
}

// Each runs body for each communicator, side by side. A body that fails aborts the operations of
// the others.
func Each(group []*weft.Comm, body func(c *weft.Comm) error) error {
	errs := make([]error, len(group))
	var running sync.WaitGroup
	for i, c := range group {
		running.Go(func() {
			if err := body(c); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", c.Rank(), err)
				c.Abort()
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (g *groups) group(n int) ([]*weft.Comm, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if group := g.made[n]; group != nil {
		return group, nil
	}
	group, err := join(n, g.options)
	if err == nil {
		g.made[n] = group
	}
	return group, err
}

// Join makes a communicator of n goroutine ranks.
func Join(n int, options ...weft.Option) ([]*weft.Comm, error) {
	return join(n, func(int) []weft.Option { return options })
}

func join(n int, options func(rank int) []weft.Option) ([]*weft.Comm, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ranks, err := bootstrap.NewInProcess(n)
	if err != nil {
		return nil, err
	}
	group, errs := make([]*weft.Comm, n), make([]error, n)
	var joining sync.WaitGroup
	for r, b := range ranks {
		joining.Go(func() {
			group[r], errs[r] = weft.Join(ctx, append(slices.Clone(options(r)), weft.WithBootstrap(b))...)
		})
	}
	joining.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, closeAll(group))
	}
	return group, nil
}

// closeAll closes communicators; nil is none.
func closeAll(group []*weft.Comm) error {
	var errs []error
	for _, c := range group {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Close closes the communicators that the engine has made.
func (g *groups) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for n, group := range g.made {
		if !g.borrowed {
			errs = append(errs, closeAll(group))
		}
		delete(g.made, n)
	}
	return errors.Join(errs...)
}
