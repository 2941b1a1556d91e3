package channel

import (
	"context"
	"math"
	"sync"
	"testing"
)

// TestAllocations: nothing that an operation does again and again takes memory from the heap.
func TestAllocations(t *testing.T) {
	ctx := context.Background()
	j := newJoint(t, PolicyFor(2, 2, 2), true)
	a, b := j.memory[0], j.memory[1]
	mem, _ := twice(t, Stride+ControlSize)
	c, control := CounterAt(mem, 0), ControlAt(mem, Stride)
	loop := newLoop(t, 64, 0)
	data := make([]byte, 64)
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	c.Publish(1)
	cpus := make([]byte, 0, CPUBytes)
	all := firstCPUs(1024)
	for name, f := range map[string]func(){
		"publish": func() { c.Publish(c.Load() + 1) },
		"add":     func() { c.Add(1) },
		"wait":    func() { must(j.waiter[0].Wait(ctx, c, c.Load(), "test wait", 1)) },
		"until":   func() { must(j.waiter[0].Until(ctx, "test wait", 1, func() bool { return c.Load() > 0 })) },
		"semaphore": func() {
			a.Signal()
			must(b.Wait(ctx))
			b.Signal()
			if !a.Poll() {
				t.Error("no signal")
			}
		},
		"put":             func() { must(a.Put(1, 2, 100)) },
		"get":             func() { must(a.Get(1, 2, 100)) },
		"send":            func() { must(a.Send(0, data)) },
		"put with signal": func() { must(a.PutWithSignal(0, 0, 64)); must(b.WaitGet(ctx, 64, 64, 64)) },
		"packets":         func() { must(loop.Exchange(ctx, data, data)) },
		"abort word":      func() { control.Abort(Fault{Cause: CauseDied}); control.Clear(control.Fault()) },
		"no fault":        func() { must(j.waiter[0].fault("test")) },
		"record": func() {
			control.setRecord(Record{Op: "test wait", Peer: 1, Expected: 2, Seen: 3})
			control.clearRecord()
		},
		"processors": func() { s := ParseCPUs(all.Append(cpus)); all.Add(s) },
	} {
		if got := testing.AllocsPerRun(100, f); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// TestAllocations_waiting: nor do waits that take long, in any of their phases.
func TestAllocations_waiting(t *testing.T) {
	for _, p := range []phase{
		{"yield", Policy{Yield: math.MaxInt, Goroutines: true}},
		{"nap", Policy{Goroutines: true}},
		{"sleep", Policy{}},
		{"spin", Policy{Spin: 10, Yield: 10}},
	} {
		t.Run(p.name, func(t *testing.T) {
			j := newJoint(t, p.Policy, true)
			ends := newPackets(t, p.Policy, 8, 0, true)
			ctx := context.Background()
			turn := func(rank int) error {
				if rank == 0 {
					j.semaphore[0].Signal()
				}
				if err := j.semaphore[rank].Wait(ctx); err != nil {
					return err
				}
				if rank == 1 {
					j.semaphore[1].Signal()
				}
				var b [8]byte
				return ends[rank].Exchange(ctx, b[:], b[:])
			}
			const runs = 50
			var other sync.WaitGroup
			other.Go(func() {
				for range runs + 1 { // AllocsPerRun has a run to warm up
					if err := turn(1); err != nil {
						t.Error(err)
					}
				}
			})
			got := testing.AllocsPerRun(runs, func() {
				if err := turn(0); err != nil {
					t.Error(err)
				}
			})
			other.Wait()
			if got != 0 {
				t.Errorf("%v allocations", got)
			}
		})
	}
}
