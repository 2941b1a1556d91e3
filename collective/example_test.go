package collective_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/collective"
)

// Three ranks, goroutines of this process, add their vectors.
func ExampleGroup_AllReduce() {
	ranks, err := bootstrap.NewInProcess(3)
	if err != nil {
		log.Fatal(err)
	}
	rank := func(b bootstrap.Bootstrap) error {
		ctx := context.Background()
		comm, err := weft.Join(ctx, weft.WithBootstrap(b))
		if err != nil {
			return err
		}
		defer comm.Close()
		group, err := collective.New(ctx, comm, collective.Options{})
		if err != nil {
			return err
		}
		defer group.Close()

		x := []float32{1, 10, 100}
		for i := range x {
			x[i] *= float32(comm.Rank() + 1)
		}
		if err := group.AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum); err != nil {
			return err
		}
		if comm.Rank() == 0 {
			fmt.Println(x)
		}
		return group.Barrier(ctx, nil)
	}
	var all sync.WaitGroup
	for _, b := range ranks {
		all.Go(func() {
			if err := rank(b); err != nil {
				log.Print(err)
			}
		})
	}
	all.Wait()
	// Output: [6 60 600]
}
