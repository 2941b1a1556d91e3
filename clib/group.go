//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
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
	call    collective.Call // the last one: see refresh
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
			o = collective.Options{
				Scratch: int(v.scratch), Staging: int(v.staging), SMs: int(v.sms), SerialGroup: int(v.serial_group),
			}
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
		err := g.group.Close()
		if !errors.Is(err, weft.ErrTimeout) {
			groups.Remove(uint64(id))
		}
		return err
	})
}

//export goweft_group_run
func goweft_group_run(id C.uint64_t, stream unsafe.Pointer, args *C.weft_collective_args, ms C.int64_t) C.int {
	return timed(groups, id, ms, func(ctx context.Context, g *group) error {
		a, err := input(args, "weft_collective_args")
		if err != nil {
			return err
		}
		c := &g.call
		if err := cmp.Or(refresh(&c.Out, a.out, "output"), refresh(&c.In, a.in, "input"),
			refresh(&c.Scalar, a.scalar, "scalar")); err != nil {
			return err
		}
		c.Collective, c.Op = collective.Collective(enum(a.collective)), weft.Op(enum(a.op))
		c.Root, c.ScalarOnDevice = int(a.root), a.scalar_on_device != 0
		ranks := g.comm.weft.Size()
		c.Counts = collective.Counts{
			Send: counts(a.send, ranks), SendAt: counts(a.send_at, ranks),
			Recv: counts(a.recv, ranks), RecvAt: counts(a.recv_at, ranks),
		}
		s, err := g.streams.of(g.comm, stream)
		if err != nil {
			return err
		}
		return g.group.Do(ctx, s, g.call)
	})
}

// counts are numbers of C's, one for each of so many ranks, or none.
func counts(p *C.int64_t, ranks int) []int {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*int)(unsafe.Pointer(p)), ranks)
}

// enum is an enumerator of C's as Go's types have it. A number out of range becomes the largest of
// its type, which no list reaches.
func enum(v C.int32_t) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}
