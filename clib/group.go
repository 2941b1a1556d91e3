//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"cmp"
	"context"
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
	out, in weft.Tensor // the arguments of the last call: see refresh
}

var groups = handle.NewTable[group](handle.Group)

func (g *group) owner() *comm { return g.comm }

//export goweft_group_create
func goweft_group_create(id C.uint64_t, options *C.weft_group_options, out *C.weft_group, ms C.int64_t) C.int {
	return timed(comms, id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_group"); err != nil {
			return err
		}
		var o collective.Options
		if options != nil {
			v, err := input(options, "weft_group_options")
			if err != nil {
				return err
			}
			o.Scratch = int(v.scratch)
		}
		g, err := collective.New(ctx, c.weft, o)
		if err != nil {
			return err
		}
		made := &group{comm: c, group: g}
		return own(groups, made, &made.ops, unsafe.Pointer(out), g)
	})
}

//export goweft_group_destroy
func goweft_group_destroy(id C.uint64_t) C.int {
	return run(groups, id, func(g *group) error {
		groups.Remove(uint64(id))
		return g.group.Close()
	})
}

//export goweft_barrier
func goweft_barrier(id C.uint64_t, stream unsafe.Pointer, ms C.int64_t) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		s, err := g.streams.of(g.comm, stream)
		if err != nil {
			return err
		}
		return g.group.Barrier(ctx, s)
	})
}

//export goweft_all_reduce
func goweft_all_reduce(id C.uint64_t, stream unsafe.Pointer, out, in *C.weft_tensor, op C.int, ms C.int64_t) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		s, err := g.operands(stream, out, in)
		if err != nil {
			return err
		}
		return g.group.AllReduce(ctx, s, g.out, g.in, weft.Op(enum(C.int32_t(op))))
	})
}

//export goweft_all_gather
func goweft_all_gather(id C.uint64_t, stream unsafe.Pointer, out, in *C.weft_tensor, ms C.int64_t) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		s, err := g.operands(stream, out, in)
		if err != nil {
			return err
		}
		return g.group.AllGather(ctx, s, g.out, g.in)
	})
}

//export goweft_broadcast
func goweft_broadcast(id C.uint64_t, stream unsafe.Pointer, tensor *C.weft_tensor, root C.int, ms C.int64_t) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		s, err := g.operands(stream, tensor, nil)
		if err != nil {
			return err
		}
		return g.group.Broadcast(ctx, s, g.out, int(root))
	})
}

// operands reads the tensors of a call.
func (g *group) operands(stream unsafe.Pointer, out, in *C.weft_tensor) (*weft.Stream, error) {
	if err := cmp.Or(refresh(&g.out, out, "output"), refresh(&g.in, in, "input")); err != nil {
		return nil, err
	}
	return g.streams.of(g.comm, stream)
}

// enum is an enumerator of C's as Go's types have it. A number out of range becomes the largest of
// its type, which no list reaches.
func enum(v C.int32_t) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}
