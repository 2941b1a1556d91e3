//go:build cgo && linux

package main

// #include "internal.h"
// #include <stdlib.h>
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/internal/refusal"
)

//export goweft_group_create_own
func goweft_group_create_own(id C.uint64_t, options *C.weft_group_options, algorithms *C.weft_own_algorithm,
	count C.int, selects C.weft_select_fn, its unsafe.Pointer, out *C.weft_group, ms C.int64_t,
) C.int {
	why := refused()
	return timed(comms, id, ms, func(ctx context.Context, c *comm) error {
		own, err := c.ownAlgorithms(algorithms, int(count))
		if err != nil {
			return err
		}
		return c.newGroup(refusal.With(ctx, why), options, out, func(o *collective.Options) {
			o.Algorithms = own
			if selects != nil {
				o.Select = selector(selects, C.uintptr_t(uintptr(its)))
			}
		})
	})
}

// ownAlgorithms are those of an array of C's.
func (c *comm) ownAlgorithms(first *C.weft_own_algorithm, n int) (all []collective.Algorithm, err error) {
	if n < 0 || n > 0 && first == nil {
		return nil, invalidf("%d algorithms at %p", n, first)
	}
	for i := range n {
		given := (*C.weft_own_algorithm)(unsafe.Add(unsafe.Pointer(first), i*int(first.size)))
		v, err := input(given, "weft_own_algorithm")
		if err != nil {
			return nil, err
		}
		if given.size != first.size {
			return nil, invalidf("algorithm %d has %d bytes, and the first has %d: they stand one after the other", i,
				given.size, first.size)
		}
		a := collective.Algorithm{
			Name: C.GoString(v.name), Collective: collective.Collective(enum(v.collective)),
			Needs: collective.Windows(enum(v.needs)), MinBytes: int(v.min_bytes), MaxBytes: int(v.max_bytes),
			InPlace: collective.Placement(enum(v.in_place)), WorldSize: int(v.ranks), Tags: pairs(v.tags),
			DTypes: dtypes(uint64(v.dtypes)), Ops: reductions(uint64(v.ops)),
			Kernel: &collective.Kernel{
				Source: C.GoString(v.source), Name: C.GoString(v.kernel), Headers: pairs(v.headers), Defines: pairs(v.defines),
				Extras: list(v.extras), Blocks: int(v.blocks), Threads: int(v.threads), Shared: int(v.shared),
				Scratch: int(v.scratch), Local: int(v.local),
			},
		}
		if a.Collective.Varies() {
			return nil, weft.Unsupportedf("algorithm %s: %v has counts, which only a Launch hook in Go can give a kernel",
				a.Name, a.Collective)
		}
		hooks{v.key, v.prepare, v.release, C.uintptr_t(uintptr(v.context))}.of(&a, c.weft)
		all = append(all, a)
	}
	return all, nil
}

// reductions are the operations of a set's bits.
func reductions(set uint64) (all []weft.Op) {
	for op := range 64 {
		if set>>op&1 != 0 {
			all = append(all, weft.Op(op))
		}
	}
	return all
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

// textBytes is the room of a text that a function of C's writes, the 0 behind it included.
const textBytes = 128

// question is a request, and room for the text with which C answers.
type question struct {
	request C.weft_request
	text    [textBytes]C.char
}

// put puts a question.
func (a *question) put(q collective.Request) {
	a.request = C.weft_request{
		size: C.size_t(unsafe.Sizeof(a.request)), collective: C.int32_t(q.Collective), dtype: C.int32_t(q.DType),
		op: C.int32_t(q.Op), root: C.int32_t(q.Root), ranks: C.int32_t(q.Ranks), windows: C.int32_t(q.Windows),
		count: C.int64_t(q.Count), bytes: C.int64_t(q.Bytes),
	}
	clear(a.text[:])
}

// answer is the text that C has written.
func (a *question) answer() string {
	a.text[textBytes-1] = 0
	return C.GoString(&a.text[0])
}

// selector is a selector of C's.
func selector(f C.weft_select_fn, its C.uintptr_t) func(collective.Request, []collective.Algorithm) string {
	a := new(question)
	return func(q collective.Request, _ []collective.Algorithm) string {
		a.put(q)
		C.libweft_select(f, its, &a.request, unsafe.Pointer(&a.text))
		return a.answer()
	}
}

// hooks are those of an algorithm of C's.
type hooks struct {
	key     C.weft_key_fn
	prepare C.weft_prepare_fn
	release C.weft_release_fn
	context C.uintptr_t
}

// of gives an algorithm of a communicator's its hooks.
func (h hooks) of(a *collective.Algorithm, on *weft.Comm) {
	if h.key == nil && h.prepare == nil {
		return
	}
	var unanswered error // of the last call
	if h.key != nil {
		ask := new(question)
		a.Key = func(c *collective.Call) string {
			ask.put(c.Request(on.Size()-on.Mask().Len(), 0))
			status := C.libweft_key(h.key, h.context, &ask.request, unsafe.Pointer(&ask.text))
			if unanswered = hookError("key", status); unanswered != nil {
				return "\x00" // no key of C's, so it has no context, and Prepare fails
			}
			return ask.answer()
		}
	}
	a.Prepare = func(_ context.Context, env *collective.Env) (any, error) {
		if unanswered != nil {
			return nil, unanswered
		}
		x, err := h.make(env)
		if err != nil {
			return nil, err // and no context, not even a nil one
		}
		return x, nil
	}
	a.Kernel.Launch = func(l *collective.Launch) error {
		if l.Call.Bytes == 0 && l.Call.Collective != collective.Barrier {
			return nil
		}
		l.Args.Values = l.Context.(*ownContext).values
		return l.Start()
	}
}

// ownContext is the context of a key that a hook of C's has made.
type ownContext struct {
	values  [C.WEFT_VALUES]uint64
	release func()
}

func (x *ownContext) Close() error {
	x.release()
	return nil
}

// make makes the context of a key.
func (h hooks) make(env *collective.Env) (*ownContext, error) {
	x := &ownContext{release: func() {}}
	if h.prepare == nil {
		return x, nil
	}
	// In C's memory: what is put there may look like pointers and be none.
	made := (*C.weft_own_context)(C.calloc(1, C.sizeof_weft_own_context))
	defer C.free(unsafe.Pointer(made))
	key := C.CString(env.Key)
	defer C.free(unsafe.Pointer(key))
	made.size, made.key = C.sizeof_weft_own_context, key
	made.scratch, made.local = C.int64_t(env.Scratch), C.int64_t(env.Local)
	if err := hookError("prepare", C.libweft_prepare(h.prepare, h.context, made)); err != nil {
		return nil, err
	}
	env.Scratch, env.Local = int(made.scratch), int(made.local)
	for i, v := range made.values {
		x.values[i] = uint64(v)
	}
	if h.release != nil {
		state := C.uintptr_t(uintptr(made.state))
		x.release = func() { C.libweft_release(h.release, h.context, state) }
	}
	return x, nil
}

// hookError is the failure that a hook has returned, with what it left for weft_error of this thread.
func hookError(name string, status C.int) error {
	if status == C.WEFT_OK {
		return nil
	}
	text := C.GoString(C.weft_error())
	for _, s := range statuses {
		if s.status == status {
			return fmt.Errorf("hook %s: %w", name, &told{s.err, text})
		}
	}
	return fmt.Errorf("hook %s: %w", name, errors.New(text))
}

// told is an error of C's.
type told struct {
	kind error
	text string
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.kind }
