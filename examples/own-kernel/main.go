// Command own-kernel sums floats by a kernel of its own, all_reduce.cu, where there are few, and else by the library's:
//
//	weft run -n 2 own-kernel
package main

import (
	"context"
	_ "embed"
	"errors"
	"log"
	"os"
	"os/signal"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/collective"
)

//go:embed all_reduce.cu
var source string

const most = 64 << 10 // bytes of an operand; packets take twice the room, in two turns

func newGroup(ctx context.Context, comm *weft.Comm) (*collective.Group, error) {
	return collective.New(ctx, comm, collective.Options{
		Algorithms: []collective.Algorithm{{
			Name: "example/packets", Collective: collective.AllReduce, MaxBytes: most,
			DTypes: []weft.DType{weft.Float32}, Ops: []weft.Op{weft.Sum},
			Kernel: &collective.Kernel{
				Source: source, Name: "all_reduce", Blocks: 16, Threads: 256, Scratch: 4 * most * comm.Size(),
			},
		}},
		Select: func(_ collective.Request, fit []collective.Algorithm) string {
			if last := fit[len(fit)-1]; last.Kernel != nil { // the group's own come last
				return last.Name
			}
			return ""
		},
	})
}

func run(ctx context.Context, comm *weft.Comm) error {
	memory, err := comm.Device().Context().Alloc(4 * most)
	if err != nil {
		return err
	}
	group, err := newGroup(ctx, comm)
	if err != nil {
		return errors.Join(err, memory.Close())
	}
	for _, n := range []int{1000, most} {
		x := weft.DeviceTensor(memory.Pointer(), weft.Float32, n)
		err = errors.Join(err, group.AllReduce(ctx, nil, x, x, weft.Sum))
		log.Printf("rank %d: %d floats by %s", comm.Rank(), n, group.Algorithm())
	}
	if err = errors.Join(err, comm.Wait(ctx, nil)); err != nil {
		comm.Abort() // kernels that wait for other ranks end, and those of the others, too
	}
	return errors.Join(err, group.Close(), memory.Close())
}

func main() {
	env, err := bootstrap.Detect(os.Getenv)
	if err != nil {
		log.Fatal(err)
	}
	// Ctrl-C ends what waits, here and on the other ranks.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	comm, err := weft.Join(ctx, weft.WithGPU(env.LocalRank))
	if err == nil {
		err = errors.Join(run(ctx, comm), comm.Close())
	}
	if err != nil {
		log.Fatal(err)
	}
}
