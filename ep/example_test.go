package ep_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/ep"
)

// Four ranks, here goroutines, with two experts each. Every rank has one token, of sixteen numbers,
// for an expert of its own rank and one of the next. Expert e multiplies by e+1.
func Example() {
	const ranks, hidden = 4, 16
	var out [ranks][hidden]float32
	meeting, _ := bootstrap.NewInProcess(ranks)
	rank := func(r int) error {
		ctx := context.Background()
		comm, err := weft.Join(ctx, weft.WithBootstrap(meeting[r]))
		if err != nil {
			return err
		}
		defer comm.Close()
		h, err := ep.NewHandle(ctx, comm, ep.Spec{
			Experts: 2 * ranks, TopK: 2, Hidden: hidden, MaxTokens: 1,
			Payload: ep.FP32,
		})
		if err != nil {
			return err
		}
		x := make([]float32, hidden)
		for i := range x {
			x[i] = 1
		}
		topk := []int32{int32(2 * r), int32(2*r+2) % (2 * ranks)}
		routing, err := h.Prepare(ctx, nil, weft.TensorOf(topk, 1, 2), weft.TensorOf([]float32{0.5, 0.25}, 1, 2))
		if err != nil {
			return err
		}
		received, err := h.Dispatch(ctx, nil, ep.DispatchArgs{
			Routing: routing, Rows: ep.Rows{Data: weft.TensorOf(x, 1, hidden)},
		})
		if err != nil {
			return err
		}
		zones := weft.SliceOf[float32](received.Data) // [local experts, rows of an expert, hidden]
		for i := range zones {
			zones[i] *= float32(2*r + 1 + i/(len(zones)/2))
		}
		return h.Combine(ctx, nil, ep.CombineArgs{
			Routing: routing, Rows: received.Data, Out: weft.TensorOf(out[r][:], 1, hidden),
		})
	}
	var all sync.WaitGroup
	for r := range ranks {
		all.Go(func() {
			if err := rank(r); err != nil {
				fmt.Println(err)
			}
		})
	}
	all.Wait()
	for r := range out {
		fmt.Println("rank", r, "gets", out[r][0])
	}
	// Output:
	// rank 0 gets 1.25
	// rank 1 gets 2.75
	// rank 2 gets 4.25
	// rank 3 gets 3.75
}
