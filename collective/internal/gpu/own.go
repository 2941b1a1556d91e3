package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// own is a user's algorithm. Each of its contexts is a lane of its own: a window, local memory, an epoch and
// turns that the library's kernels never touch, nor those of another key. So nothing that such a kernel leaves in
// its memory can harm another operation, and a group's lane need not count its operations.
//
// Its kernels never run at the same time as the group's others, so all share the room of the largest.
type own struct {
	*algorithm
	e               *Engine
	program         *enginegpu.Program
	function        *cuda.Function
	room            *enginegpu.Room
	blocks, threads int // of a launch, at most
	contexts        map[string]*ownContext
}

// ownContext is the context of a key.
type ownContext struct {
	lane   *enginegpu.Lane
	launch enginegpu.Launch[device.AlgorithmArgs]
	hook   spec.Launch
	closer io.Closer
}

// ownThreads are those of a block unless a Kernel says.
const ownThreads = 512

// openOwn makes a user's algorithm ready, on all ranks or on none.
func (e *Engine) openOwn(ctx context.Context, a *spec.Algorithm) error {
	if a.Program != nil {
		return e.openProgram(ctx, a)
	}
	o := &own{algorithm: &algorithm{Algorithm: *a}, e: e, threads: a.Kernel.Threads, contexts: map[string]*ownContext{}}
	e.owns = append(e.owns, o)
	e.algorithms = append(e.algorithms, o.algorithm)
	if o.threads == 0 {
		o.threads = ownThreads
	}
	if err := o.load(ctx); err != nil {
		return err
	}
	if err := o.reserve(ctx); err != nil {
		return err
	}
	if a.Key != nil {
		return nil
	}
	_, err := o.make(ctx, opNew, "", nil)
	return err
}

// ownOf is the user's algorithm that an algorithm is, or nil.
func (e *Engine) ownOf(a *algorithm) *own {
	for _, o := range e.owns {
		if o.algorithm == a {
			return o
		}
	}
	return nil
}

// load compiles and loads the kernel.
func (o *own) load(ctx context.Context) (err error) {
	k := o.Kernel
	headers := device.Headers()
	maps.Copy(headers, k.Headers)
	o.program, err = enginegpu.Load(ctx, o.e.comm, opNew, enginegpu.Source{Image: k.Cubin, Spec: kernel.Spec{
		Name: o.Name, Source: k.Source, Headers: headers, Defines: k.Defines, Kernels: []string{k.Name},
		Arch: o.e.comm.Device().Arch(),
	}})
	if err == nil {
		o.function = o.program.Functions(0)[0]
	}
	return err
}

// reserve takes room for the blocks of a launch.
func (o *own) reserve(ctx context.Context) error {
	const freely = 48 << 10 // bytes of shared memory
	k := o.Kernel
	attributes, err := o.function.Attributes()
	if err == nil && k.Threads == 0 {
		o.threads = min(o.threads, attributes.MaxThreads)
	}
	switch {
	case err != nil:
	case o.threads > attributes.MaxThreads:
		err = weft.Unsupportedf("algorithm %s: blocks of %d threads; its kernel has up to %d", o.Name, o.threads,
			attributes.MaxThreads)
	case k.Shared > freely:
		err = o.function.SetMaxDynamicShared(k.Shared)
	}
	cost := o.threads
	if err == nil {
		var fit int
		if fit, err = o.function.Occupancy(o.threads, k.Shared); err == nil && fit == 0 {
			err = weft.Unsupportedf("algorithm %s: a block of %d threads and %d bytes of shared memory fits on no "+
				"multiprocessor; ask for less", o.Name, o.threads, k.Shared)
		}
		cost = max(cost, spec.MaxThreads/max(1, fit))
	}
	if err := o.e.comm.Operations().VerifySame(ctx, opNew, fmt.Sprintf("%d threads", o.threads), err); err != nil {
		return err
	}
	o.room, err = enginegpu.Fit(ctx, o.e.comm, enginegpu.Want{
		Op: opNew, Cost: cost, SMs: o.e.sms, Beside: o.e.room, Least: 1,
	})
	if err != nil {
		return err
	}
	if o.blocks = o.room.Blocks; k.Blocks > 0 {
		o.blocks = min(o.blocks, k.Blocks)
	}
	return o.room.Take(ctx, o.blocks, o.room.String(), nil)
}

// make makes the context of a key, on all ranks or on none. c is the call that wants it, if it is one.
func (o *own) make(ctx context.Context, op, key string, c *spec.Call) (x *ownContext, err error) {
	k, comm := o.Kernel, o.e.comm
	x = &ownContext{}
	env := spec.Env{Comm: comm, Key: key, Call: c, Scratch: k.Scratch, Local: k.Local}
	if o.Prepare != nil {
		if x.hook.Context, err = o.Prepare(ctx, &env); err != nil {
			err = fmt.Errorf("algorithm %s: prepare: %w", o.Name, err)
		} else if min(env.Scratch, env.Local) < 0 || max(env.Scratch, env.Local) > spec.MaxOwnBytes {
			err = weft.Invalidf("algorithm %s: prepare: %d bytes scratch, %d local", o.Name, env.Scratch, env.Local)
		}
		x.closer, _ = x.hook.Context.(io.Closer)
	}
	if err == nil {
		x.launch, err = enginegpu.NewLaunch(o.function, cuda.LaunchConfig{
			Grid: cuda.Dim{X: uint32(o.blocks)}, Block: cuda.Dim{X: uint32(o.threads)}, Shared: k.Shared,
		}, device.AlgorithmArgs{
			Collective: uint32(o.Collective), Counts: uint32(o.blocks), Record: records[o.Collective],
		})
	}
	what := fmt.Sprintf("algorithm %s, key %q, %d bytes scratch, %d local", o.Name, key, env.Scratch, env.Local)
	if err := comm.Operations().VerifySame(ctx, op, what, err); err != nil {
		return nil, errors.Join(err, x.close())
	}
	x.hook.Run = func() error {
		if x.hook.Blocks < 1 || x.hook.Threads < 1 || x.hook.Blocks > o.blocks || x.hook.Threads > o.threads {
			return weft.Invalidf("algorithm %s: %d blocks of %d threads; it has up to %d of %d", o.Name, x.hook.Blocks,
				x.hook.Threads, o.blocks, o.threads)
		}
		x.launch.SetGrid(cuda.Dim{X: uint32(x.hook.Blocks)})
		x.launch.SetBlock(cuda.Dim{X: uint32(x.hook.Threads)})
		return x.lane.Start(x.hook.Stream, x.launch.Launch)
	}
	window, local := &enginegpu.Workspace{}, enginegpu.NewLocal(o.blocks)
	a := x.launch.Args
	x.hook.Args = a
	a.Signals = uint64(window.Zeros(8 * int64(o.blocks) * int64(comm.Size())))
	a.Scratch, a.ScratchBytes = uint64(window.Zeros(int64(env.Scratch))), uint64(env.Scratch)
	at := local.Zeros(int64(env.Local))
	a.LocalBytes = uint64(env.Local)
	x.lane, err = enginegpu.NewLane(ctx, comm, enginegpu.LaneSpec{
		Op: op, Owner: "group", Words: ownWords, Window: window, Local: local,
		Moved: func(l *enginegpu.Lane) {
			a.Group, a.State, a.Local = l.Group(0), uint64(l.Local(0)), uint64(l.Local(at))
		},
	})
	if err != nil {
		return nil, errors.Join(err, x.close())
	}
	o.contexts[key] = x
	return x, nil
}

// ownWords name the collectives of users' kernels in errors, and say what such a kernel says by Call::fail.
var ownWords = &device.Words{Operation: laneWords.Operation, Mismatch: func(theirs, ours uint64) string {
	return fmt.Sprintf("the kernel of a user's algorithm expected %#x of it, and found %#x", ours, theirs)
}}

// records are the numbers of collectives in records.
var records = [spec.Collectives]uint32{
	spec.Barrier: opBarrier, spec.AllReduce: opAllReduce, spec.AllGather: opAllGather, spec.AllGatherV: opAllGatherV,
	spec.ReduceScatter: opReduceScatter, spec.ReduceScatterV: opReduceScatterV, spec.AllToAll: opAllToAll,
	spec.AllToAllV: opAllToAllV, spec.Broadcast: opBroadcast, spec.Reduce: opReduce, spec.Gather: opGather,
	spec.Scatter: opScatter,
}

// keyOf is the key of a call.
func (o *own) keyOf(c *spec.Call) string {
	if o.Key == nil {
		return ""
	}
	return o.Key(c)
}

// run enqueues a call that was not refused. The first of a key makes its context.
func (o *own) run(ctx context.Context, s *weft.Stream, c *spec.Call) (err error) {
	key := o.keyOf(c)
	x := o.contexts[key]
	if x == nil {
		if x, err = o.make(ctx, c.Collective.String(), key, c); err != nil {
			return err
		}
	}
	stream, err := x.lane.Enter(ctx, c.Collective.String(), s)
	if err != nil {
		return err
	}
	h, a := &x.hook, x.launch.Args
	in, out := o.e.addresses(c)
	a.In, a.Out, a.Count, a.Bytes = in, out, uint64(c.Count), uint64(c.Bytes)
	a.Dtype, a.Op, a.Root = uint32(c.DType), uint32(c.Op), uint32(c.Root)
	a.Scalar, a.ScalarBits, a.Values = 0, 0, [device.Values]uint64{}
	if r := o.e.reduction(c); c.Op == weft.PreMulSum {
		a.Scalar, a.ScalarBits = r.ScalarAt, r.Scalar
	}
	a.Ins, a.Outs = device.Operands{}, device.Operands{}
	if c.Symmetric {
		a.Ins, a.Outs = device.Operands(o.e.inputs(c)), device.Operands(o.e.outputs(c))
	}
	for i, name := range o.Kernel.Extras {
		a.Extras[i] = uint64(c.Extras[name])
	}
	h.Call, h.Stream, h.Blocks, h.Threads = c, stream, o.blocks, o.threads
	if c.Blocks > 0 {
		h.Blocks = c.Blocks
	}
	if c.Threads > 0 {
		h.Threads = c.Threads
	}
	switch {
	case o.Kernel.Launch != nil:
		err = o.Kernel.Launch(h)
	case c.Bytes > 0 || c.Collective == spec.Barrier:
		err = h.Run()
	}
	h.Call = nil
	if err != nil {
		return fmt.Errorf("%v: algorithm %s: %w", c.Collective, o.Name, err)
	}
	return x.lane.Finish(ctx, s)
}

// refuses says why a call cannot be one of the algorithm's.
func (o *own) refuses(s *weft.Stream, c *spec.Call) error {
	if c.Blocks > o.blocks || c.Threads > o.threads {
		return weft.Unsupportedf("%v: %d blocks of %d threads; %s has up to %d of %d", c.Collective, c.Blocks, c.Threads,
			o.Name, o.blocks, o.threads)
	}
	for _, name := range o.Kernel.Extras {
		if _, ok := c.Extras[name]; !ok {
			return weft.Invalidf("%v: %s takes the extra %q, and the call has none", c.Collective, o.Name, name)
		}
	}
	if len(c.Extras) != len(o.Kernel.Extras) {
		return weft.Invalidf("%v: %d extras; %s takes %q", c.Collective, len(c.Extras), o.Name, o.Kernel.Extras)
	}
	key := o.keyOf(c)
	if o.contexts[key] != nil {
		return nil
	}
	if len(o.contexts) >= spec.MaxKeys {
		return weft.Unsupportedf("%v: %s has %d keys, and there may be no more: give fewer", c.Collective, o.Name,
			len(o.contexts))
	}
	if capturing, err := enginegpu.Capturing(o.e.lane.Stream(s)); err != nil || capturing {
		return cmp.Or(err, weft.Unsupportedf("%v: the first call of %s with the key %q cannot be captured; make one before",
			c.Collective, o.Name, key))
	}
	return nil
}

// close gives a context up whose work has ended.
func (x *ownContext) close() error {
	if x.closer != nil {
		return x.closer.Close()
	}
	return nil
}

// close gives up what the algorithm has, unless work of it still runs.
func (o *own) close() (released bool, err error) {
	var errs []error
	for key, x := range o.contexts {
		released, err := x.lane.Close()
		if !released {
			return false, err
		}
		errs = append(errs, err, x.close())
		delete(o.contexts, key)
	}
	o.room.Release()
	return true, errors.Join(append(errs, o.program.Close())...)
}
