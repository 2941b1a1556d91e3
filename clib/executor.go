//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/internal/refusal"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
)

// planRunner is the object of a weft_executor.
type planRunner struct {
	comm     *comm
	executor *executor.Executor
	ops      sync.Mutex
	streams  streams
	plans    []*executor.Plan // by number
	out, in  weft.Tensor      // of the last launch: see refresh
}

var planRunners = handle.NewTable[planRunner](handle.Executor)

func (x *planRunner) owner() *comm { return x.comm }

//export goweft_executor_create
func goweft_executor_create(id C.uint64_t, unverified C.int, out *C.weft_executor, ms C.int64_t) C.int {
	return setUp(id, ms, func(ctx context.Context, c *comm) error {
		if err := result(unsafe.Pointer(out), "weft_executor"); err != nil {
			return err
		}
		x, err := executor.New(ctx, c.weft, executor.Options{Unverified: unverified != 0})
		if err != nil {
			return err
		}
		made := &planRunner{comm: c, executor: x}
		return own(planRunners, made, &made.ops, unsafe.Pointer(out), x)
	})
}

//export goweft_executor_load
func goweft_executor_load(id C.uint64_t, text *C.char, number *C.int64_t, ms C.int64_t) C.int {
	why := refused()
	return run(planRunners, id, func(x *planRunner) error {
		if text == nil || number == nil {
			return invalidf("a plan's text, or where its number is to be written, is NULL")
		}
		f, err := plan.Load([]byte(C.GoString(text)))
		if err != nil { // which the others are told
			why = cmp.Or(why, fmt.Errorf("%w: %w", weft.ErrInvalid, err))
		}
		return limited(ms, func(ctx context.Context) error {
			return patiently(refusal.With(ctx, why), func(ctx context.Context, _ func(func())) error {
				p, err := x.executor.Load(ctx, f)
				if err != nil {
					return err
				}
				*number = C.int64_t(x.number(p))
				return nil
			})
		})
	})
}

// number is that of a plan, which a plan of the same content has had before.
func (x *planRunner) number(p *executor.Plan) int {
	for i, known := range x.plans {
		if known == p {
			return i
		}
	}
	x.plans = append(x.plans, p)
	return len(x.plans) - 1
}

//export goweft_executor_run
func goweft_executor_run(id C.uint64_t, stream unsafe.Pointer, number C.int64_t, out, in *C.weft_tensor, ms C.int64_t,
) C.int {
	return timed(planRunners, id, ms, func(ctx context.Context, x *planRunner) error {
		if number < 0 || int(number) >= len(x.plans) {
			return invalidf("plan %d: this executor has loaded %d", number, len(x.plans))
		}
		if err := errors.Join(refresh(&x.out, out, "output"), refresh(&x.in, in, "input")); err != nil {
			return err
		}
		s, err := x.streams.of(x.comm, stream)
		if err != nil {
			return err
		}
		return x.plans[number].Execute(ctx, s, x.out, x.in)
	})
}

//export goweft_executor_reset
func goweft_executor_reset(id C.uint64_t) C.int {
	return run(planRunners, id, func(x *planRunner) error {
		x.plans = nil
		return x.executor.Reset()
	})
}

//export goweft_executor_destroy
func goweft_executor_destroy(id C.uint64_t) C.int {
	return run(planRunners, id, func(x *planRunner) error {
		err := x.executor.Close()
		if !errors.Is(err, weft.ErrTimeout) {
			planRunners.Remove(uint64(id))
		}
		return err
	})
}
