//go:build cgo && linux

package main

// #include "internal.h"
// #include <string.h>
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/refusal"
)

// comm is the object of a weft_comm. Its gate is that of the calls that are collective.
type comm struct {
	weft *weft.Comm
	ops  sync.Mutex
	life sync.RWMutex // read-locked by threads that wait for a stream, of which there may be several
	log  *logger

	context *cuda.Context // of the thread that joins on a GPU, while it does
}

var comms = handle.NewTable[comm](handle.Comm)

// beside runs f on a communicator whatever other calls are in progress: f makes calls that a
// weft.Comm allows at any time, also while it is closed.
func beside(id C.uint64_t, f func(*comm) error) C.int {
	return local(func() error {
		c, err := comms.Get(uint64(id))
		if err != nil {
			return err
		}
		return f(c)
	})
}

// join makes a communicator of C's options. Without a bootstrap the environment says which rank
// this is.
func join(options *C.weft_comm_options, out *C.weft_comm, ms C.int64_t,
	meet func(context.Context, func(func())) (bootstrap.Bootstrap, error),
) C.int {
	return local(func() error {
		if err := result(unsafe.Pointer(out), "weft_comm"); err != nil {
			return err
		}
		adoptEnvironment()
		o, c, err := optionsOf(options)
		if err != nil {
			return err
		}
		if c.context != nil {
			defer c.context.Close()
			defer keepContext(c.context)()
		}
		c.log.warnOfSignals()
		if err := limited(ms, func(ctx context.Context) error { return c.joinUnlessInterrupted(ctx, o, meet) }); err != nil {
			return err
		}
		return own(comms, c, &c.ops, unsafe.Pointer(out), c.weft)
	})
}

// joinUnlessInterrupted joins through the bootstrap that meet makes or, without one, through the environment.
func (c *comm) joinUnlessInterrupted(ctx context.Context, o []weft.Option,
	meet func(context.Context, func(func())) (bootstrap.Bootstrap, error),
) error {
	ctx, over := interruptible(ctx)
	defer over()
	err := patiently(ctx, func(ctx context.Context, here func(func())) (err error) {
		if meet != nil {
			o = append(o, weft.WithDial(func(ctx context.Context) (bootstrap.Bootstrap, error) { return meet(ctx, here) }))
		}
		c.weft, err = weft.Join(ctx, o...)
		return err
	})
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errInterrupted) {
			err = fmt.Errorf("join: %w", cause)
		}
		c.log.stop()
	}
	return err
}

func optionsOf(p *C.weft_comm_options) ([]weft.Option, *comm, error) {
	c := &comm{}
	if p == nil {
		return nil, c, nil
	}
	v, err := input(p, "weft_comm_options")
	if err != nil {
		return nil, nil, err
	}
	o := []weft.Option{weft.WithHugePages(v.no_huge_pages == 0)}
	switch v.engine {
	case C.WEFT_HOST:
	case C.WEFT_GPU:
		gpu, context, err := onGPU(int(v.gpu))
		if err != nil {
			return nil, nil, err
		}
		o, c.context = append(o, gpu...), context
	default:
		return nil, nil, invalidf("engine %d, want WEFT_HOST or WEFT_GPU", v.engine)
	}
	if v.deadline_ms < 0 || v.deadline_ms > 1<<40 || v.reserved != 0 {
		return nil, nil, invalidf("weft_comm_options: a deadline of %d ms, and %d in reserved; every wait "+
			"must end, and reserved is 0", v.deadline_ms, v.reserved)
	}
	if v.deadline_ms > 0 {
		o = append(o, weft.WithDeadline(time.Duration(v.deadline_ms)*time.Millisecond))
	}
	if v.log != nil {
		c.log = &logger{log: v.log, context: v.log_context}
		o = append(o, weft.WithLogger(c.log.slog()))
	}
	return o, c, nil
}

//export goweft_comm_create
func goweft_comm_create(options *C.weft_comm_options, out *C.weft_comm, ms C.int64_t) C.int {
	return join(options, out, ms, nil)
}

//export goweft_comm_create_with_id
func goweft_comm_create_with_id(id *C.char, rank, ranks C.int, options *C.weft_comm_options, out *C.weft_comm,
	ms C.int64_t,
) C.int {
	return join(options, out, ms, func(ctx context.Context, _ func(func())) (bootstrap.Bootstrap, error) {
		id, err := uniqueID(id)
		if err != nil {
			return nil, err
		}
		if rank < 0 || rank >= ranks || ranks > weft.MaxRanks {
			return nil, invalidf("rank %d of %d, want one of 1 to %d ranks", rank, ranks, weft.MaxRanks)
		}
		return id.Dial(ctx, int(rank), int(ranks))
	})
}

//export goweft_comm_create_with_all_gather
func goweft_comm_create_with_all_gather(f C.weft_all_gather_fn, its unsafe.Pointer, rank, ranks C.int,
	options *C.weft_comm_options, out *C.weft_comm, ms C.int64_t,
) C.int {
	return join(options, out, ms, func(_ context.Context, here func(func())) (bootstrap.Bootstrap, error) {
		return newAllGather(f, its, int(rank), int(ranks), here)
	})
}

// uniqueID reads an id, at most WEFT_UNIQUE_ID_BYTES of it.
func uniqueID(p *C.char) (bootstrap.ID, error) {
	if p == nil {
		return bootstrap.ID{}, invalidf("the id is NULL")
	}
	text := C.GoStringN(p, C.int(C.strnlen(p, C.WEFT_UNIQUE_ID_BYTES)))
	id, err := bootstrap.ParseID(text)
	if err != nil {
		return bootstrap.ID{}, fmt.Errorf("%w: %w", weft.ErrInvalid, err)
	}
	return id, nil
}

//export goweft_unique_id_create
func goweft_unique_id_create(out, network *C.char) C.int {
	return local(func() error {
		if out == nil {
			return invalidf("the id is NULL")
		}
		var o []bootstrap.IDOption
		switch name := C.GoString(network); name {
		case "":
		case "lo":
			o = append(o, bootstrap.OnLoopback())
		default:
			o = append(o, bootstrap.OnInterface(name))
		}
		id, err := bootstrap.NewID(o...)
		if err != nil {
			return err
		}
		into := unsafe.Slice((*byte)(unsafe.Pointer(out)), C.WEFT_UNIQUE_ID_BYTES)
		clear(into)
		copy(into, id.String())
		return nil
	})
}

// An id's text, and the 0 behind it, fit.
const _ = uint(C.WEFT_UNIQUE_ID_BYTES - bootstrap.MaxIDText - 1)

//export goweft_unique_id_release
func goweft_unique_id_release(p *C.char) C.int {
	return local(func() error {
		id, err := uniqueID(p)
		if err != nil {
			return err
		}
		return id.Release()
	})
}

//export goweft_comm_leave
func goweft_comm_leave(id C.uint64_t) C.int {
	return run(comms, id, func(c *comm) error {
		children, err := c.stop()
		if err != nil {
			return err
		}
		defer c.resume(children)
		return c.weft.Operations().Leave()
	})
}

//export goweft_comm_destroy
func goweft_comm_destroy(id C.uint64_t) C.int {
	return run(comms, id, func(c *comm) error {
		children, err := c.stop()
		if err != nil {
			return err
		}
		defer c.resume(children)
		var errs []error
		ended := c.endingCalls(func() {
			for _, child := range children {
				errs = append(errs, child.close())
				child.forget()
			}
			err = c.weft.Close()
		})
		if ended != nil {
			errs = append(errs, ended)
		}
		errs = append(errs, err)
		if errors.Is(err, weft.ErrBusy) { // a call that was started has outlasted the deadline
			return errors.Join(errs...)
		}
		comms.Remove(uint64(id))
		c.log.stop()
		return errors.Join(errs...)
	})
}

// stop keeps calls on the communicator's objects, and waits for streams, from beginning, if none is
// in progress. resume lets them begin again.
func (c *comm) stop() ([]child, error) {
	if !c.life.TryLock() {
		return nil, fmt.Errorf("%w: another thread waits for a stream of this %s", handle.ErrBusy, handle.Comm)
	}
	children := c.children() // nothing is added while we are here
	for i, child := range children {
		if !child.gate.TryLock() {
			c.resume(children[:i])
			return nil, fmt.Errorf("%w: another thread is inside a call on a %s of this communicator; "+
				"weft_comm_abort ends it", handle.ErrBusy, child.kind)
		}
	}
	return children, nil
}

func (c *comm) resume(stopped []child) {
	for _, child := range stopped {
		child.gate.Unlock()
	}
	c.life.Unlock()
}

// child is something that was made from a communicator.
type child struct {
	gate interface {
		TryLock() bool
		Unlock()
	}
	kind   handle.Kind
	close  func() error
	forget func() // removes its handle, and those of the objects that were made from it
}

func (c *comm) children() []child {
	var all []child
	for id, e := range eps.All() {
		if e.comm == c {
			all = append(all, child{&e.ops, handle.EP, e.ep.Close, func() { e.forget(id) }})
		}
	}
	for id, n := range counters.All() {
		if n.comm == c {
			all = append(all, child{&n.ops, handle.TokenCounter, n.counter.Close, func() { counters.Remove(id) }})
		}
	}
	for id, g := range groups.All() {
		if g.comm == c {
			all = append(all, child{&g.ops, handle.Group, g.group.Close, func() { g.forget(id) }})
		}
	}
	for id, x := range planRunners.All() {
		if x.comm == c {
			all = append(all, child{&x.ops, handle.Executor, x.executor.Close, func() { planRunners.Remove(id) }})
		}
	}
	for _, ch := range portChannels.All() { // before their ports
		if ch.port.comm == c {
			none := func() {} // they are the port's
			all = append(all, child{&ch.life, handle.PortChannel, func() error { return nil }, none})
		}
	}
	for id, x := range ports.All() {
		if x.comm == c {
			all = append(all, child{&x.ops, handle.Port, x.service.Close, func() { x.forget(id) }})
		}
	}
	for _, w := range works.All() {
		if w.group != nil && w.group.comm == c {
			none := func() {} // they are the group's
			all = append(all, child{&w.life, handle.Work, func() error { return nil }, none})
		}
	}
	for id, w := range windows.All() {
		if w.comm == c {
			// The communicator closes them itself, when its GPU has come to rest.
			all = append(all, child{&w.ops, handle.Window, func() error { return nil }, func() { windows.Remove(id) }})
		}
	}
	return all
}

//export goweft_comm_get
func goweft_comm_get(id C.uint64_t, info *C.weft_comm_info) C.int {
	return beside(id, func(c *comm) error {
		if err := output(info, "weft_comm_info"); err != nil {
			return err
		}
		v := C.weft_comm_info{
			rank: C.int32_t(c.weft.Rank()), ranks: C.int32_t(c.weft.Size()),
			local_ranks: C.int32_t(c.weft.LocalSize()), engine: C.WEFT_HOST,
			deadline_ms: C.int64_t(c.weft.Deadline().Milliseconds()),
			generation:  C.uint64_t(c.weft.Operations().Generation()),
		}
		if c.weft.Device() != nil {
			v.engine = C.WEFT_GPU
		}
		fill(info, v)
		return nil
	})
}

//export goweft_comm_error
func goweft_comm_error(id C.uint64_t) C.int {
	return beside(id, func(c *comm) error { return c.weft.Err() })
}

//export goweft_comm_abort
func goweft_comm_abort(id C.uint64_t) C.int {
	return beside(id, func(c *comm) error {
		c.weft.Abort()
		return nil
	})
}

//export goweft_comm_wait
func goweft_comm_wait(id C.uint64_t, stream unsafe.Pointer, ms C.int64_t) C.int {
	return beside(id, func(c *comm) error {
		if !c.life.TryRLock() {
			return fmt.Errorf("%w: another thread is destroying this %s", handle.ErrBusy, handle.Comm)
		}
		defer c.life.RUnlock()
		if d := c.weft.Device(); d != nil {
			defer keepContext(d.Context())()
		}
		if _, err := comms.Get(uint64(id)); err != nil { // it went before the lock was ours
			return err
		}
		var s streams
		on, err := s.of(c, stream)
		if err == nil && on != nil && c.weft.Device() == nil {
			err = invalidf("stream %#x, and the rank is on the host, which has none: pass NULL", uintptr(stream))
		}
		if err != nil {
			return err
		}
		return within(ms, func(ctx context.Context) error { return c.weft.Wait(ctx, on) })
	})
}

//export goweft_comm_hosts
func goweft_comm_hosts(id C.uint64_t, out *C.int32_t, n C.int) C.int {
	return beside(id, func(c *comm) error {
		if size := c.weft.Size(); out == nil || int(n) != size {
			return invalidf("%d hosts to be written to %p, and there are %d ranks", n, out, size)
		}
		hosts := unsafe.Slice(out, n)
		for r := range hosts {
			hosts[r] = C.int32_t(c.weft.Host(r))
		}
		return nil
	})
}

//export goweft_comm_mask
func goweft_comm_mask(id C.uint64_t, out *C.uint64_t, n C.int) C.int {
	return beside(id, func(c *comm) error {
		to, err := words(out, n)
		if err != nil {
			return err
		}
		set := c.weft.Mask()
		from := set.Words()
		clear(to[copy(to, from[:]):])
		for r := range set.All() {
			if r >= 64*len(to) {
				return invalidf("%d words: rank %d is masked and does not fit", n, r)
			}
		}
		return nil
	})
}

//export goweft_comm_set_mask
func goweft_comm_set_mask(id C.uint64_t, in *C.uint64_t, n C.int, ms C.int64_t) C.int {
	why := refused()
	return timed(comms, id, ms, func(ctx context.Context, c *comm) error {
		from, err := words(in, n)
		if err != nil {
			return err
		}
		set, err := weft.RankSetFromWords(from)
		return c.weft.SetMask(refusal.With(ctx, cmp.Or(why, err)), slices.Collect(set.All())...)
	})
}

// derive makes a communicator of another one, which is NULL for a rank that is in none.
func derive(id C.uint64_t, out *C.weft_comm, ms C.int64_t,
	make func(context.Context, *weft.Comm) (*weft.Comm, error),
) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_comm"); err != nil {
			return err
		}
		made := &comm{}
		var err error
		if made.weft, err = make(ctx, c.weft); err != nil || made.weft == nil {
			return err
		}
		return own(comms, made, &made.ops, unsafe.Pointer(out), made.weft)
	})
}

//export goweft_comm_split
func goweft_comm_split(id C.uint64_t, color, key C.int64_t, out *C.weft_comm, ms C.int64_t) C.int {
	return derive(id, out, ms, func(ctx context.Context, c *weft.Comm) (*weft.Comm, error) {
		return c.Split(ctx, int(color), int(key))
	})
}

//export goweft_comm_duplicate
func goweft_comm_duplicate(id C.uint64_t, out *C.weft_comm, ms C.int64_t) C.int {
	return derive(id, out, ms, func(ctx context.Context, c *weft.Comm) (*weft.Comm, error) { return c.Duplicate(ctx) })
}

//export goweft_comm_shrink
func goweft_comm_shrink(id C.uint64_t, out *C.weft_comm, ms C.int64_t) C.int {
	return derive(id, out, ms, func(ctx context.Context, c *weft.Comm) (*weft.Comm, error) { return c.Shrink(ctx) })
}

// words are the words of a set of ranks.
func words(p *C.uint64_t, n C.int) ([]uint64, error) {
	if n < 0 || n > 0 && p == nil {
		return nil, invalidf("a set of ranks of %d words at %p", n, p)
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(p)), n), nil
}

// streams keeps the last stream that calls on an object were given: it is mostly the same.
type streams struct {
	number uintptr
	last   *weft.Stream
}

// of turns a stream of C into one of Go; nil is the communicator's own, or the host's.
func (s *streams) of(c *comm, p unsafe.Pointer) (*weft.Stream, error) {
	number, device := uintptr(p), c.weft.Device()
	switch {
	case device == nil && number == 0:
		return nil, nil
	case device == nil:
		return new(weft.Stream), nil // which the host refuses, on all ranks
	case number == ^uintptr(0):
		return nil, nil
	}
	if s.last == nil || s.number != number {
		s.number, s.last = number, weft.StreamOf(device.Context().WrapStream(number))
	}
	return s.last, nil
}
