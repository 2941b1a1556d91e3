package channel_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weftgo/weft/channel"
)

// Two ranks, which are goroutines here, hand a greeting back and forth. Between processes the
// memory is a window: see weft.Comm.Alloc.
func ExampleMemory() {
	cpus := channel.Affinity()
	// Each rank's memory: the counter that its peer raises, its control, and its part of the
	// window.
	const controlAt, dataAt, size = channel.Stride, channel.Stride + channel.ControlSize, 4096
	mem := [2][]byte{make([]byte, size), make([]byte, size)}

	join := func(rank int) *channel.Memory {
		own, peer := mem[rank], mem[1-rank]
		w := &channel.Waiter{
			Policy:  channel.PolicyFor(2, 2, cpus.Count()),
			Rank:    rank,
			Own:     channel.ControlAt(own, controlAt),
			Timeout: 10 * time.Second,
		}
		s := channel.NewSemaphore(w, 1-rank, channel.CounterAt(own, 0), channel.CounterAt(peer, 0))
		return channel.NewMemory(s, own[dataAt:], peer[dataAt:])
	}

	ctx := context.Background()
	var ranks sync.WaitGroup
	ranks.Go(func() { // rank 1 waits, reads, and answers where rank 0 can see it
		m := join(1)
		if err := m.Wait(ctx); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("rank 1 got %q\n", mem[1][dataAt:][:5])
		copy(mem[1][dataAt+64:], "world")
		m.Signal()
	})

	m := join(0)
	copy(mem[0][dataAt:], "hello")
	if err := m.PutWithSignal(0, 0, 5); err != nil {
		fmt.Println(err)
	}
	if err := m.WaitGet(ctx, 128, 64, 5); err != nil {
		fmt.Println(err)
	}
	ranks.Wait()
	fmt.Printf("rank 0 got %q\n", mem[0][dataAt+128:][:5])
	// Output:
	// rank 1 got "hello"
	// rank 0 got "world"
}
