package weft_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// Two ranks, here goroutines, read each other's segment of a window. Ranks that are processes leave
// WithBootstrap out.
func ExampleJoin() {
	meeting, _ := bootstrap.NewInProcess(2)
	var greeting [2]string
	var ranks sync.WaitGroup
	for r := range meeting {
		ranks.Go(func() {
			ctx := context.Background()
			comm, err := weft.Join(ctx, weft.WithBootstrap(meeting[r]))
			if err != nil {
				fmt.Println(err)
				return
			}
			defer comm.Close()
			window, err := comm.Alloc(ctx, 64)
			if err != nil {
				fmt.Println(err)
				return
			}
			copy(window.Bytes(), fmt.Sprintf("hello from rank %d", comm.Rank()))
			if err := comm.Operations().VerifySame(ctx, "greet", "written", nil); err != nil {
				fmt.Println(err)
				return
			}
			greeting[r] = string(window.Peer(1 - r)[:17])
		})
	}
	ranks.Wait()
	fmt.Println(greeting[0])
	fmt.Println(greeting[1])
	// Output:
	// hello from rank 1
	// hello from rank 0
}
