package bootstrap_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/weftgo/weft/bootstrap"
)

func Example() {
	const size = 3
	id, err := bootstrap.NewID(bootstrap.OnLoopback()) // on rank 0, handed to the others as text
	if err != nil {
		fmt.Println(err)
		return
	}
	var ranks sync.WaitGroup
	for rank := range size {
		ranks.Go(func() {
			ctx := context.Background()
			b, err := id.Dial(ctx, rank, size)
			if err != nil {
				fmt.Println(err)
				return
			}
			defer b.Close()
			greetings, err := b.AllGather(ctx, fmt.Append(nil, "hello from ", b.Rank()))
			if err != nil {
				fmt.Println(err)
				return
			}
			if b.Rank() == 1 {
				for _, g := range greetings {
					fmt.Println(string(g))
				}
			}
		})
	}
	ranks.Wait()
	// Output:
	// hello from 0
	// hello from 1
	// hello from 2
}
