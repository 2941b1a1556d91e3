package cuda

import (
	"context"
	"runtime"
	"time"
)

// poll asks until the answer is yes, an error, or the end of ctx.
func poll(ctx context.Context, query func() (bool, error)) error {
	const turns = 200 // a few tens of microseconds: most waits for a device are shorter
	for range turns {
		if done, err := query(); done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		runtime.Gosched()
	}
	pause := 10 * time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		if done, err := query(); done || err != nil {
			return err
		}
		pause = min(2*pause, time.Millisecond)
		timer.Reset(pause)
	}
}
