package eptest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// Host is the engine of ranks on the host.
type Host struct {
	name     string
	borrowed bool
	sizes    []int
	options  []weft.Option

	mu     sync.Mutex
	groups map[int][]*weft.Comm
}

// NewHost makes an engine whose ranks are goroutines. Communicators are kept between calls of Ranks until Close.
func NewHost(options ...weft.Option) *Host {
	return &Host{name: "goroutines", sizes: []int{1, 2, 3, 4, 8}, options: options, groups: map[int][]*weft.Comm{}}
}

// NewHostRank makes the engine of a process that is one rank of several. The communicator stays the caller's.
func NewHostRank(c *weft.Comm) *Host {
	return &Host{name: "processes", borrowed: true, sizes: []int{c.Size()}, groups: map[int][]*weft.Comm{c.Size(): {c}}}
}

// Name implements [Engine].
func (h *Host) Name() string { return h.name }

// Sizes implements [Engine].
func (h *Host) Sizes() []int { return h.sizes }

// Ranks implements [Engine].
func (h *Host) Ranks(n int, body func(c *weft.Comm) error) error {
	group, err := h.group(n)
	if err != nil {
		return err
	}
	err = Each(group, body)
	if err != nil && !h.borrowed {
		h.mu.Lock()
		delete(h.groups, n)
		h.mu.Unlock()
		for _, c := range group {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// Each runs body for each communicator, side by side. A body that fails aborts the operations of the others.
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

func (h *Host) group(n int) ([]*weft.Comm, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g := h.groups[n]; g != nil {
		return g, nil
	}
	g, err := Join(n, h.options...)
	if err == nil {
		h.groups[n] = g
	}
	return g, err
}

// Join makes a communicator of n goroutine ranks.
func Join(n int, options ...weft.Option) ([]*weft.Comm, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ranks, err := bootstrap.NewInProcess(n)
	if err != nil {
		return nil, err
	}
	group, errs := make([]*weft.Comm, n), make([]error, n)
	var joining sync.WaitGroup
	for r, b := range ranks {
		joining.Go(func() {
			group[r], errs[r] = weft.Join(ctx, append(options[:len(options):len(options)], weft.WithBootstrap(b))...)
		})
	}
	joining.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, c := range group {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, err
	}
	return group, nil
}

// Close closes the communicators that the engine has made.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for n, g := range h.groups {
		for _, c := range g {
			errs = append(errs, c.Close())
		}
		delete(h.groups, n)
	}
	return errors.Join(errs...)
}

// Alloc implements [Engine].
func (h *Host) Alloc(c *weft.Comm, size int, window bool) (Memory, error) {
	if !window {
		mem := make([]byte, size+64)
		return Memory{Data: unsafe.Pointer(unsafe.SliceData(mem)), Free: func() error { return nil }}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := c.Alloc(ctx, size)
	if err != nil {
		return Memory{}, err
	}
	return Memory{Data: unsafe.Pointer(unsafe.SliceData(w.Bytes())), Free: w.Close}, nil
}

// Stream implements [Engine]: the host has none.
func (h *Host) Stream(*weft.Comm) *weft.Stream { return nil }

// Sync implements [Engine].
func (h *Host) Sync(*weft.Comm) error { return nil }

// Upload implements [Engine].
func (h *Host) Upload(_ *weft.Comm, dst unsafe.Pointer, src []byte) error {
	copy(unsafe.Slice((*byte)(dst), len(src)), src)
	return nil
}

// Download implements [Engine].
func (h *Host) Download(_ *weft.Comm, dst []byte, src unsafe.Pointer) error {
	copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	return nil
}
