package ranktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// Groups are the ranks that a suite runs on, by their number. Those that are goroutines are made
// when they are first asked for, and kept until Close.
type Groups struct {
	name     string
	borrowed bool // the communicators are the caller's
	sizes    []int
	options  func(rank int) []weft.Option

	mu   sync.Mutex
	made map[int][]*weft.Comm // by size
}

// Goroutines are ranks of this process, in several sizes. options are those of each rank.
func Goroutines(name string, options func(rank int) []weft.Option) *Groups {
	return &Groups{name: name, sizes: []int{1, 2, 3, 4, 8}, options: options, made: map[int][]*weft.Comm{}}
}

// Process is this process as one rank of several. The communicator stays the caller's.
func Process(name string, c *weft.Comm) *Groups {
	return &Groups{
		name: name, borrowed: true, sizes: []int{c.Size()},
		made: map[int][]*weft.Comm{c.Size(): {c}},
	}
}

// Name says what the ranks are.
func (g *Groups) Name() string { return g.name }

// Sizes are the numbers of ranks that there can be, ascending.
func (g *Groups) Sizes() []int { return g.sizes }

// Ranks runs body on n ranks, side by side. Ranks of which one fails are closed, and others made
// when they are asked for again.
func (g *Groups) Ranks(n int, body func(c *weft.Comm) error) error {
	group, err := g.group(n)
	if err != nil {
		return err
	}
	err = Each(group, body)
	if err != nil && !g.borrowed {
		g.mu.Lock()
		delete(g.made, n)
		g.mu.Unlock()
		err = errors.Join(err, Close(group))
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

func (g *Groups) group(n int) ([]*weft.Comm, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if group := g.made[n]; group != nil {
		return group, nil
	}
	group, err := JoinEach(n, g.options)
	if err == nil {
		g.made[n] = group
	}
	return group, err
}

// Run runs body on n goroutine ranks, side by side, and closes them. The context ends after a while.
func Run(n int, options func(rank int) []weft.Option, body func(ctx context.Context, c *weft.Comm) error) error {
	group, err := JoinEach(n, options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err = Each(group, func(c *weft.Comm) error { return body(ctx, c) })
	return errors.Join(err, Close(group))
}

// timeout bounds what ranks do together; nothing comes near it unless something hangs.
const timeout = 2 * time.Minute

// OnHost are the options of ranks that want none.
func OnHost(int) []weft.Option { return nil }

// Join makes a communicator of n goroutine ranks.
func Join(n int, options ...weft.Option) ([]*weft.Comm, error) {
	return JoinEach(n, func(int) []weft.Option { return options })
}

// New makes a communicator of n goroutine ranks that leave when the test ends.
func New(t testing.TB, n int, options ...weft.Option) []*weft.Comm {
	t.Helper()
	group, err := Join(n, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Close(group); err != nil {
			t.Error(err)
		}
	})
	return group
}

// JoinEach is Join where each rank has options of its own.
func JoinEach(n int, options func(rank int) []weft.Option) ([]*weft.Comm, error) {
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
		return nil, errors.Join(err, Close(group))
	}
	return group, nil
}

// Close closes communicators; nil is none.
func Close(group []*weft.Comm) error {
	var errs []error
	for _, c := range group {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Borrowed says that the communicators are the caller's.
func (g *Groups) Borrowed() bool { return g.borrowed }

// OfSizes makes the suite run with these numbers of ranks only, ascending.
func (g *Groups) OfSizes(sizes ...int) { g.sizes = sizes }

// Close closes the communicators that were made.
func (g *Groups) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for n, group := range g.made {
		if !g.borrowed {
			errs = append(errs, Close(group))
		}
		delete(g.made, n)
	}
	return errors.Join(errs...)
}
