package timing

import (
	"context"
	"errors"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/closer"
)

// GPU is a rank that times operations on its GPU, by events. Every rank calls its methods in the
// same order.
type GPU struct {
	*GPUs
	*Team
	Me      int
	Context *cuda.Context
	Comm    *weft.Comm
	Stream  *cuda.Stream // where operations are enqueued
	Work    *weft.Stream // the same

	gate   *gate
	door   *door
	turn   uint32
	starts []*cuda.Event // of the operations that are enqueued together
	ends   []*cuda.Event
	flood  *cuda.Memory // more than caches hold
}

// serve joins the others and does body with them.
func (m *GPU) serve(ctx context.Context, b bootstrap.Bootstrap,
	body func(ctx context.Context, m *GPU) error,
) (err error) {
	var c closer.Stack
	defer func() {
		if err != nil {
			m.Fail(m.Me, err) // before the others can fail for it, and be blamed
			if m.Comm != nil {
				m.Comm.Abort() // the others' waits on their GPUs end
			}
		}
		err = errors.Join(err, c.Close())
	}()
	if err := m.open(ctx, b, &c); err != nil {
		return err
	}
	if err := body(ctx, m); err != nil {
		return err
	}
	return m.Meet(nil) // a rank that leaves first must not spoil the others' last operation
}

// open joins the others and makes the objects that all measurements use.
func (m *GPU) open(ctx context.Context, b bootstrap.Bootstrap, c *closer.Stack) (err error) {
	options := []weft.Option{
		weft.WithBootstrap(b), weft.WithDevice(m.Context), weft.WithDeadline(m.Deadline),
		weft.WithKernels(m.Cache),
	}
	if m.Comm, err = weft.Join(ctx, options...); err != nil {
		return err
	}
	c.Add(m.Comm.Close)
	stream, err := m.Context.NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	c.Add(stream.Close)
	m.Use(stream)
	if m.door, err = m.gate.door(ctx, m.Context, m.Cache); err != nil {
		return err
	}
	c.Add(m.door.Close)
	for range max(2, min(together, m.Samples)) {
		for _, list := range []*[]*cuda.Event{&m.starts, &m.ends} {
			e, err := m.Context.NewEvent(cuda.EventOptions{Timing: true})
			if err != nil {
				return err
			}
			c.Add(e.Close)
			*list = append(*list, e)
		}
	}
	cache, err := m.Context.Device().Attribute(cuda.L2CacheSize)
	if err != nil {
		return err
	}
	if m.flood, err = m.Context.Alloc(2 * max(cache, 4096)); err != nil {
		return err
	}
	c.Add(m.flood.Close)
	return nil
}

// Use has operations enqueued on another stream.
func (m *GPU) Use(s *cuda.Stream) { m.Stream, m.Work = s, weft.StreamOf(s) }

// wait waits until the work of a stream has ended.
func (m *GPU) wait(ctx context.Context, s *cuda.Stream) error {
	if s == m.Stream {
		return m.Comm.Wait(ctx, m.Work)
	}
	return s.Wait(ctx)
}

// Empty is a launch of a kernel that does nothing: the least that any can take.
func (m *GPU) Empty(c cuda.LaunchConfig) (*cuda.Launch, error) { return m.door.empty.Prepare(c) }
