//go:build cgo && linux

package main

// #include "internal.h"
// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/collective"
)

// group is the object of a weft_group.
type group struct {
	comm    *comm
	group   *collective.Group
	ops     sync.Mutex
	streams streams
	perRank []int // the shape of counts

	call      collective.Call       // the last one: see refresh
	norm      collective.Norm       // of such a call
	transfers []collective.Transfer // the last ones
	starts    starts
	extras    map[string]uintptr // of the last call that had some; see setLaunch
}

var groups = handle.NewTable[group](handle.Group)

func (g *group) owner() *comm { return g.comm }

// forget removes the handle, and those of the works that the group has started.
func (g *group) forget(id uint64) {
	for id, w := range works.All() {
		if w.group == g {
			works.Remove(id)
		}
	}
	groups.Remove(id)
}

//export goweft_group_create
func goweft_group_create(id C.uint64_t, options *C.weft_group_options, out *C.weft_group, ms C.int64_t) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		return c.newGroup(ctx, options, out, func(*collective.Options) {})
	})
}

// newGroup makes a group by options of C's, with more of what Go has.
func (c *comm) newGroup(ctx context.Context, options *C.weft_group_options, out *C.weft_group,
	more func(*collective.Options),
) error {
	if err := result(unsafe.Pointer(out), "weft_group"); err != nil {
		return err
	}
	var o collective.Options
	if options != nil {
		v, err := input(options, "weft_group_options")
		if err != nil {
			return err
		}
		o = collective.Options{
			Scratch: int(v.scratch), Staging: int(v.staging), SMs: int(v.sms), SerialGroup: int(v.serial_group),
			DTypes: dtypes(uint64(v.dtypes)), Force: strings.Fields(C.GoString(v.force)),
		}
	}
	more(&o)
	g, err := collective.New(ctx, c.weft, o)
	if err != nil {
		return err
	}
	made := &group{comm: c, group: g, perRank: []int{c.weft.Size()}}
	return own(groups, made, &made.ops, unsafe.Pointer(out), g)
}

// dtypes are the types of a set's bits.
func dtypes(set uint64) (all []weft.DType) {
	for t := range 64 {
		if set>>t&1 != 0 {
			all = append(all, weft.DType(t))
		}
	}
	return all
}

//export goweft_group_destroy
func goweft_group_destroy(id C.uint64_t) C.int {
	return run(groups, id, func(g *group) error {
		for _, w := range works.All() {
			if w.group != g {
				continue
			}
			if !w.life.TryLock() {
				return fmt.Errorf("%w: another thread is inside a call on a %s of this %s", handle.ErrBusy, handle.Work,
					handle.Group)
			}
			defer w.life.Unlock()
		}
		var err error
		ended := g.comm.endingCalls(func() { err = g.group.Close() })
		if !errors.Is(err, weft.ErrTimeout) {
			g.forget(uint64(id))
		}
		return cmp.Or(ended, err)
	})
}

//export goweft_group_run
func goweft_group_run(id C.uint64_t, stream unsafe.Pointer, args *C.weft_collective_args, ms C.int64_t) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		s, err := g.read(stream, args)
		if err != nil {
			return err
		}
		return g.group.Do(ctx, s, g.call)
	})
}

// read puts a call of C's into the group's.
func (g *group) read(stream unsafe.Pointer, args *C.weft_collective_args) (*weft.Stream, error) {
	a, err := input(args, "weft_collective_args")
	if err != nil {
		return nil, err
	}
	c := &g.call
	if err := cmp.Or(refresh(&c.Out, a.out, "output"), refresh(&c.In, a.in, "input"),
		refresh(&c.Scalar, a.scalar, "scalar")); err != nil {
		return nil, err
	}
	c.Collective, c.Op = collective.Collective(enum(a.collective)), weft.Op(enum(a.op))
	c.Transfers = nil
	if a.collective == C.WEFT_POINT_TO_POINT {
		c.Collective = collective.PointToPoint
		if err := g.readTransfers(a.transfers, int(a.transfer_count)); err != nil {
			return nil, err
		}
	}
	c.Root, c.ScalarOnDevice, c.Symmetric = int(a.root), a.scalar_on_device != 0, a.symmetric != 0
	if a.algorithm != nil {
		if name := text(a.algorithm); name != c.Algorithm {
			c.Algorithm = strings.Clone(name)
		}
	} else {
		c.Algorithm = ""
	}
	ranks := g.comm.weft.Size()
	c.Counts, c.DeviceCounts = collective.Counts{}, collective.DeviceCounts{}
	if a.counts_on_device == 0 {
		c.Counts = collective.Counts{
			Send: counts(a.send, ranks), SendAt: counts(a.send_at, ranks),
			Recv: counts(a.recv, ranks), RecvAt: counts(a.recv_at, ranks),
		}
	} else if a.send == nil || a.send_at == nil || a.recv == nil || a.recv_at == nil {
		return nil, invalidf("counts and positions on the GPU are four arrays, and one is NULL")
	} else {
		c.DeviceCounts = collective.DeviceCounts{
			Send: g.deviceCounts(a.send), SendAt: g.deviceCounts(a.send_at),
			Recv: g.deviceCounts(a.recv), RecvAt: g.deviceCounts(a.recv_at),
		}
	}
	if err := cmp.Or(g.setNorm(a.norm), g.setWords(a.words), g.setLaunch(a.launch)); err != nil {
		return nil, err
	}
	return g.streams.of(g.comm, stream)
}

// readTransfers puts messages of C's into the group's.
func (g *group) readTransfers(first *C.weft_transfer, n int) error {
	if n < 0 || n > 0 && first == nil {
		return invalidf("%d transfers at %p", n, first)
	}
	for len(g.transfers) < n {
		g.transfers = append(g.transfers, collective.Transfer{})
	}
	g.call.Transfers = g.transfers[:n]
	for i := range g.call.Transfers {
		given := (*C.weft_transfer)(unsafe.Add(unsafe.Pointer(first), i*int(first.size)))
		v, err := input(given, "weft_transfer")
		if err != nil {
			return err
		}
		if given.size != first.size {
			return invalidf("transfer %d has %d bytes, and the first has %d: they stand one after the other", i,
				given.size, first.size)
		}
		t := &g.transfers[i]
		if err := refresh(&t.Tensor, v.tensor, "tensor of a transfer"); err != nil {
			return err
		}
		t.Peer, t.Receive = int(v.peer), v.receive != 0
	}
	return nil
}

// setNorm gives the call a norm, or takes it away.
func (g *group) setNorm(p *C.weft_norm) error {
	if g.call.Norm = nil; p == nil {
		return nil
	}
	a, err := input(p, "weft_norm")
	if err != nil {
		return err
	}
	n := &g.norm
	g.call.Norm, n.Eps, n.PowerOfTwoScales = n, float32(a.eps), a.power_of_two_scales != 0
	return cmp.Or(refresh(&n.Gamma, a.gamma, "gamma"), refresh(&n.Residual, a.residual, "residual"),
		refresh(&n.ResidualOut, a.residual_out, "residual output"), refresh(&n.Scales, a.scales, "scales"),
		refresh(&n.Scale, a.scale, "scale"))
}

// setWords gives the call words, or takes them away.
func (g *group) setWords(p *C.weft_tensor) error {
	t, other := &g.call.Words.Progress, &g.call.Words.Ready
	if g.call.Collective == collective.ReduceScatter {
		t, other = other, t
	}
	return cmp.Or(forget(other), refresh(t, p, "words"))
}

// setLaunch has the call launched so, or as its algorithm does. Calls that go on have the map, so it is not changed.
func (g *group) setLaunch(p *C.weft_launch) error {
	c := &g.call
	if c.Blocks, c.Threads, c.Extras = 0, 0, nil; p == nil {
		return nil
	}
	a, err := input(p, "weft_launch")
	if err != nil {
		return err
	}
	c.Blocks, c.Threads = int(a.blocks), int(a.threads)
	names := list(a.extras)
	if len(names) == 0 {
		return nil
	}
	if a.addresses == nil {
		return invalidf("%d extras, and NULL for their addresses", len(names))
	}
	extras := map[string]uintptr{}
	for i, at := range unsafe.Slice((*int64)(unsafe.Pointer(a.addresses)), len(names)) {
		extras[names[i]] = uintptr(at)
	}
	if len(extras) != len(names) {
		return invalidf("extras %q: each has a name of its own", names)
	}
	if !maps.Equal(extras, g.extras) {
		g.extras = extras
	}
	c.Extras = g.extras
	return nil
}

// counts are numbers of C's, one for each of so many ranks, or none.
func counts(p *C.int64_t, ranks int) []int {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*int)(unsafe.Pointer(p)), ranks)
}

func (g *group) deviceCounts(p *C.int64_t) weft.Tensor {
	return weft.Tensor{Data: unsafe.Pointer(p), DType: weft.Int64, Shape: g.perRank}
}

// text is a string of C's, where it is.
func text(p *C.char) string { return unsafe.String((*byte)(unsafe.Pointer(p)), C.strlen(p)) }

// enum is an enumerator of C's as Go's types have it. A number out of range becomes the largest of
// its type, which no list reaches.
func enum(v C.int32_t) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}

//export goweft_group_algorithm
func goweft_group_algorithm(id C.uint64_t, out **C.char) C.int {
	return run(groups, id, func(g *group) error {
		if out == nil {
			return invalidf("the name is NULL; pass where to put it")
		}
		*out = named(g.group.Algorithm())
		return nil
	})
}

//export goweft_group_algorithm_at
func goweft_group_algorithm_at(id C.uint64_t, index C.int, out *C.weft_algorithm) C.int {
	return run(groups, id, func(g *group) error {
		if err := output(out, "weft_algorithm"); err != nil {
			return err
		}
		all := g.group.Algorithms()
		if index < 0 {
			return invalidf("algorithm %d", index)
		}
		var v C.weft_algorithm
		if int(index) < len(all) {
			a := &all[index]
			v = C.weft_algorithm{
				name: named(a.Name), collective: C.int32_t(a.Collective), ranks: C.int32_t(a.WorldSize),
				min_bytes: C.int64_t(a.MinBytes), max_bytes: C.int64_t(a.MaxBytes),
			}
		}
		fill(out, v)
		return nil
	})
}

// names are strings of C's of algorithms and providers, of which there are few.
var names sync.Map

// named is a string that is there as long as the process.
func named(s string) *C.char {
	if c, ok := names.Load(s); ok {
		return c.(*C.char)
	}
	made := C.CString(s)
	c, had := names.LoadOrStore(s, made)
	if had {
		C.free(unsafe.Pointer(made))
	}
	return c.(*C.char)
}
