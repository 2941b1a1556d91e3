//go:build cgo && linux

package main

// #include "internal.h"
// #include <string.h>
import "C"

import (
	"context"
	"maps"
	"unsafe"

	"github.com/weftgo/weft/collective"
)

// launch is how a group's calls are launched: what weft_group_launch has set.
type launch struct {
	algorithm       string
	blocks, threads int
	extras          map[string]uintptr
}

// apply puts it into a call. Messages are launched in one way.
func (l *launch) apply(c *collective.Call) {
	if c.Collective == collective.PointToPoint {
		c.Blocks, c.Threads, c.Extras = 0, 0, nil
		return
	}
	if c.Algorithm == "" {
		c.Algorithm = l.algorithm
	}
	c.Blocks, c.Threads, c.Extras = l.blocks, l.threads, l.extras
}

//export goweft_group_create_own
func goweft_group_create_own(id C.uint64_t, options *C.weft_group_options, algorithms *C.weft_own_algorithm,
	count C.int, selects C.weft_select_fn, its unsafe.Pointer, out *C.weft_group, ms C.int64_t,
) C.int {
	return timed(comms, id, ms, func(ctx context.Context, c *comm) error {
		own, err := ownAlgorithms(algorithms, int(count))
		if err != nil {
			return err
		}
		return c.newGroup(ctx, options, out, func(o *collective.Options) {
			o.Algorithms = own
			if selects != nil {
				o.Select = selector(selects, its)
			}
		})
	})
}

// ownAlgorithms are those of an array of C's.
func ownAlgorithms(first *C.weft_own_algorithm, n int) (all []collective.Algorithm, err error) {
	if n < 0 || n > 0 && first == nil {
		return nil, invalidf("%d algorithms at %p", n, first)
	}
	for i := range n {
		given := (*C.weft_own_algorithm)(unsafe.Add(unsafe.Pointer(first), i*int(first.size)))
		v, err := input(given, "weft_own_algorithm")
		if err != nil {
			return nil, err
		}
		dtypes, ops := uint64(v.dtypes), uint64(v.ops)
		a := collective.Algorithm{
			Name: C.GoString(v.name), Collective: collective.Collective(enum(v.collective)),
			Needs: collective.Windows(enum(v.needs)), MinBytes: int(v.min_bytes), MaxBytes: int(v.max_bytes),
			InPlace: collective.Placement(enum(v.in_place)), WorldSize: int(v.ranks), Tags: pairs(v.tags),
			Kernel: &collective.Kernel{
				Source: C.GoString(v.source), Name: C.GoString(v.kernel), Headers: pairs(v.headers), Defines: pairs(v.defines),
				Extras: list(v.extras), Blocks: int(v.blocks), Threads: int(v.threads), Shared: int(v.shared),
				Scratch: int(v.scratch), Local: int(v.local),
			},
			Supports: func(q collective.Request) bool {
				return (dtypes == 0 || dtypes>>q.DType&1 != 0) && (ops == 0 || !q.Collective.Reduces() || ops>>q.Op&1 != 0)
			},
		}
		all = append(all, a)
	}
	return all, nil
}

// list is a list of C's strings, which ends with NULL.
func list(p **C.char) (all []string) {
	for ; p != nil && *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		all = append(all, C.GoString(*p))
	}
	return all
}

// pairs is such a list of names and values in turn.
func pairs(p **C.char) map[string]string {
	all, of := list(p), map[string]string{}
	for i := 0; i+1 < len(all); i += 2 {
		of[all[i]] = all[i+1]
	}
	return of
}

// selector is a selector of C's.
func selector(f C.weft_select_fn, its unsafe.Pointer) func(collective.Request, []collective.Algorithm) string {
	const nameBytes = 128
	request, name := new(C.weft_request), new([nameBytes]C.char)
	return func(q collective.Request, _ []collective.Algorithm) string {
		*request = C.weft_request{
			size: C.size_t(unsafe.Sizeof(*request)), collective: C.int32_t(q.Collective), dtype: C.int32_t(q.DType),
			op: C.int32_t(q.Op), root: C.int32_t(q.Root), ranks: C.int32_t(q.Ranks), windows: C.int32_t(q.Windows),
			count: C.int64_t(q.Count), bytes: C.int64_t(q.Bytes),
		}
		clear(name[:])
		C.libweft_select(f, its, request, unsafe.Pointer(name))
		name[nameBytes-1] = 0
		return C.GoString(&name[0])
	}
}

//export goweft_group_launch
func goweft_group_launch(id C.uint64_t, given *C.weft_launch) C.int {
	return run(groups, id, func(g *group) error {
		if given == nil {
			g.launch = launch{}
			return nil
		}
		v, err := input(given, "weft_launch")
		if err != nil {
			return err
		}
		names := list(v.extras)
		if len(names) > 0 && v.addresses == nil {
			return invalidf("%d extras, and NULL for their addresses", len(names))
		}
		l := launch{blocks: int(v.blocks), threads: int(v.threads)}
		if v.algorithm != nil {
			l.algorithm = C.GoString(v.algorithm)
		}
		if len(names) > 0 {
			l.extras = map[string]uintptr{}
			for i, at := range unsafe.Slice((*int64)(unsafe.Pointer(v.addresses)), len(names)) {
				l.extras[names[i]] = uintptr(at)
			}
		}
		if !maps.Equal(l.extras, g.launch.extras) || l.algorithm != g.launch.algorithm || l.blocks != g.launch.blocks ||
			l.threads != g.launch.threads {
			g.launch = l
		}
		return nil
	})
}
