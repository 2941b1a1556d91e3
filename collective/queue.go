package collective

import (
	"context"
	"sync"
	"time"

	"github.com/weftgo/weft"
)

// queue runs started calls on the host, in their order, in a goroutine that begins with the first one.
// The zero queue is ready.
type queue struct {
	mu          sync.Mutex
	first, last *Work         // that wait for their turn
	busy        bool          // the goroutine has something to run
	wake        chan struct{} // nil until there is a goroutine; it ends when this is closed
	idle        chan struct{} // has a token if the goroutine has run all and no await has taken it
	worker      sync.WaitGroup
}

// add hands the goroutine a Work.
func (q *queue) add(w *Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.first == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	if q.busy {
		return
	}
	q.busy = true
	if q.wake == nil {
		q.wake, q.idle = make(chan struct{}, 1), make(chan struct{}, 1)
		q.worker.Go(q.run)
	}
	select {
	case <-q.idle:
	default:
	}
	q.wake <- struct{}{}
}

func (q *queue) run() {
	for range q.wake {
		for w := q.next(); w != nil; w = q.next() {
			w.run()
		}
	}
}

// next takes the next Work from the queue; without one the goroutine is idle.
func (q *queue) next() *Work {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.first
	if w == nil {
		q.busy = false
		q.idle <- struct{}{}
		return nil
	}
	q.first, w.next = w.next, nil
	return w
}

// await waits until nothing is queued and nothing runs.
func (q *queue) await(ctx context.Context) error {
	if q.wake == nil {
		return nil
	}
	q.mu.Lock()
	busy := q.busy
	q.mu.Unlock()
	if !busy {
		return nil
	}
	select {
	case <-q.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rest waits until all has run, if it does so in time.
func (q *queue) rest(patience time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, weft.ErrTimeout)
	defer cancel()
	return q.await(ctx)
}

// close ends the goroutine, which has run all.
func (q *queue) close() {
	if q.wake != nil {
		close(q.wake)
		q.worker.Wait()
		q.wake = nil
	}
}
