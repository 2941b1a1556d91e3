package channel

import (
	"context"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// collections are how often the garbage collector runs while a rank waits. One that cannot stop the
// rank never ends.
const collections = 5

// TestCollector collects garbage while a rank waits for a peer that does not exist, in every way of
// waiting.
func TestCollector(t *testing.T) {
	for _, p := range phases {
		for way, wait := range ways {
			t.Run(p.name+"/"+way, func(t *testing.T) {
				c := newCrew(t, 2, p.Policy)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				c.waits.Go(func() { done <- wait(ctx, c.waiter[0], c.counter[1]) })
				awaitRecord(t, c.control[0], 1)
				collect()
				if c.control[0].Record().Peer != 1 {
					t.Error("the rank waits no longer")
				}
				cancel()
				if result(t, done) == nil {
					t.Error("the wait has succeeded")
				}
			})
		}
	}

	// The loops that look at a word and do nothing else, without the look at the clock that ends
	// them now and then.
	for name, spin := range map[string]func(c *Counter){
		"pause": func(c *Counter) {
			for !c.reached(1) {
				pause()
			}
		},
		"thread yields": func(c *Counter) {
			w := &Waiter{Policy: Policy{}}
			for !c.reached(1) {
				w.yield()
			}
		},
		"doze": func(c *Counter) {
			for !c.reached(1) {
				c.doze(1, patience)
			}
		},
		"brief spins": func(c *Counter) {
			mem := make([]byte, ControlSize)
			w := &Waiter{Policy: Policy{Spin: math.MaxInt}, Own: ControlAt(mem, 0)}
			_ = w.Wait(context.Background(), c, 1, "test wait", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem, _ := twice(t, 2*Stride)
			c, started := CounterAt(mem, 0), CounterAt(mem, Stride)
			done := make(chan error, 1)
			go func() {
				started.Publish(1)
				spin(c)
				done <- nil
			}()
			for !started.reached(1) {
				runtime.Gosched()
			}
			collect()
			c.Publish(1)
			if err := result(t, done); err != nil {
				t.Error(err)
			}
		})
	}
}

func collect() {
	for range collections {
		runtime.GC()
	}
}

// preemptionVariable marks the process in which TestCollector runs a second time.
const preemptionVariable = "WEFT_CHANNEL_TEST_NO_PREEMPTION"

// TestCollectorWithoutPreemption runs TestCollector in a process where the runtime cannot interrupt
// a goroutine by a signal: so it is in a process with two Go runtimes, where the signal goes to the
// other.
func TestCollectorWithoutPreemption(t *testing.T) {
	if os.Getenv(preemptionVariable) != "" {
		t.Skip("this is that process")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	// The child cannot be trusted to end by itself: a collector that waits for ever stops
	// everything else.
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCollector$", "-test.v")
	child.WaitDelay = patience
	child.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", preemptionVariable+"=1")
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: TestCollector/pause") {
		t.Errorf("the test did not run:\n%s", out)
	}
}
