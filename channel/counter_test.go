package channel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"
)

func TestCounterLayout(t *testing.T) {
	if s := unsafe.Sizeof(Counter{}); s != Stride {
		t.Errorf("a counter takes %d bytes, want %d", s, Stride)
	}
	mem, _ := twice(t, 3*Stride)
	for i := range mem {
		mem[i] = 0xA5
	}
	clear(mem[Stride : Stride+CounterBytes])
	c := CounterAt(mem, Stride)
	c.Publish(math.MaxUint64 - 1)
	c.Add(1)
	c.doze(math.MaxUint64, time.Second)
	if got := c.Load(); got != math.MaxUint64 {
		t.Errorf("the counter shows %d", got)
	}
	for i, b := range mem {
		if own := i >= Stride && i < Stride+CounterBytes; !own && b != 0xA5 {
			t.Fatalf("byte %d, which is not the counter's, was written", i-Stride)
		}
	}
	if c.sleepers.Load() != 0 {
		t.Error("somebody is said to sleep")
	}
}

func TestCounterAt_refuses(t *testing.T) {
	mem, _ := twice(t, 2*Stride)
	for _, offset := range []int{1, 2, 4, 7, Stride + 1, -8, Stride + 8, 2 * Stride, math.MaxInt} {
		mustPanic(t, fmt.Sprint("offset ", offset), func() { CounterAt(mem, offset) })
	}
	for _, offset := range []int{0, 8, Stride} {
		if CounterAt(mem, offset).Load() != 0 {
			t.Errorf("offset %d: fresh memory shows a value", offset)
		}
	}
}

// TestCounterPublish raises a counter through values whose low halves go round and whose highest
// bit is set. Whoever has seen one value has seen all smaller ones.
func TestCounterPublish(t *testing.T) {
	mine, theirs := twice(t, Stride)
	w, r := CounterAt(mine, 0), CounterAt(theirs, 0)
	values := []uint64{
		1, 2, math.MaxUint32 - 1, math.MaxUint32, 1 << 32, 1<<32 + 1, 1 << 33, math.MaxInt64, 1 << 63,
		1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64,
	}
	last := uint64(0)
	for _, v := range values {
		if r.reached(v) {
			t.Errorf("%#x is reached before it is published", v)
		}
		if w.Publish(v); r.Load() != v || !r.reached(v) || !r.reached(last) || !r.reached(0) {
			t.Errorf("%#x was published, the other mapping shows %#x", v, r.Load())
		}
		last = v
	}
}

// TestCounterWakes raises a counter on which several ranks sleep, at another address. The low half
// of its value goes round, or its highest bit is set, or hardly anything changes.
func TestCounterWakes(t *testing.T) {
	for name, raise := range map[string]func(c *Counter, from, to uint64){
		"publish": func(c *Counter, _, to uint64) { c.Publish(to) },
		"add":     func(c *Counter, from, to uint64) { c.Add(to - from) },
	} {
		for _, step := range []struct{ from, to uint64 }{
			{0, 1}, {math.MaxUint32, 1 << 32}, {1<<32 - 2, 1 << 33}, {math.MaxInt64, 1 << 63}, {1<<63 - 1, 1<<63 + 5},
		} {
			t.Run(fmt.Sprintf("%s/%#x to %#x", name, step.from, step.to), func(t *testing.T) {
				const sleepers = 3
				mine, theirs := twice(t, Stride)
				w, r := CounterAt(mine, 0), CounterAt(theirs, 0)
				w.Publish(step.from)
				woken := make(chan time.Duration, sleepers)
				for range sleepers {
					go func() {
						start := time.Now()
						for !r.reached(step.to) {
							r.doze(step.to, patience)
						}
						woken <- time.Since(start)
					}()
				}
				for w.sleepers.Load() < sleepers {
					time.Sleep(10 * time.Microsecond)
				}
				raise(w, step.from, step.to)
				for range sleepers {
					if took := <-woken; took > patience/2 {
						t.Errorf("slept for %v", took)
					}
				}
				if n := w.sleepers.Load(); n != 0 {
					t.Errorf("%d sleepers are left", n)
				}
			})
		}
	}
}

// TestCounterLosesNoWake lets waiters fall asleep at every moment around the publication of what
// they wait for. A wake that is lost shows as a sleep that lasts.
func TestCounterLosesNoWake(t *testing.T) {
	const waiters = 3
	mine, theirs := twice(t, (1+waiters)*Stride)
	value := CounterAt(mine, 0)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := uint64(long(25000))
	var group sync.WaitGroup
	for i := range waiters {
		group.Go(func() {
			own, at := CounterAt(theirs, (1+i)*Stride), CounterAt(theirs, 0)
			for round := uint64(1); round <= rounds; round++ {
				for !at.reached(round) {
					if t.Failed() {
						return
					}
					start := time.Now()
					at.doze(round, patience)
					if took := time.Since(start); took > patience/2 {
						t.Errorf("round %d: waiter %d slept for %v", round, i, took)
					}
				}
				own.Publish(round)
			}
		})
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for round := uint64(1); round <= rounds; round++ {
		// All have seen the last value, and are about to fall asleep on this one.
		for i := range waiters {
			for back := CounterAt(mine, (1+i)*Stride); !back.reached(round-1) && !t.Failed(); {
				back.doze(round-1, patience)
			}
		}
		for range random.IntN(64) {
			pause()
		}
		value.Publish(round)
	}
	group.Wait()
}

// TestCounterAdd lets several ranks advance one counter while another waits for every value.
func TestCounterAdd(t *testing.T) {
	const adders = 4
	each := long(20000)
	mine, theirs := twice(t, Stride+ControlSize)
	c := CounterAt(mine, 0)
	w := &Waiter{Policy: Policy{}, Own: ControlAt(mine, Stride), Timeout: patience}
	var total uint64
	seen := make([][]uint64, adders)
	var group sync.WaitGroup
	for i := range adders {
		total += uint64(each * (i + 1))
		group.Go(func() {
			for range each {
				seen[i] = append(seen[i], c.Add(uint64(i+1)))
			}
		})
	}
	group.Go(func() {
		at, ctx := CounterAt(theirs, 0), testContext(t)
		for want := uint64(1); want <= total; want += 1 + want/64 {
			if err := w.Wait(ctx, at, want, "add", 1); err != nil {
				t.Error(err)
				return
			}
			if got := at.Load(); got < want {
				t.Errorf("waited for %d, and then saw %d", want, got)
			}
		}
	})
	group.Wait()
	if got := c.Load(); got != total {
		t.Errorf("the sum is %d, want %d", got, total)
	}
	results := map[uint64]bool{}
	for _, s := range seen {
		for k, v := range s {
			if results[v] || k > 0 && v <= s[k-1] {
				t.Fatalf("%d was returned twice, or after a larger value", v)
			}
			results[v] = true
		}
	}
}

// TestCounterOrders hands plain memory from one goroutine to another and back. The race detector
// knows nothing of shared memory and has to be told by the counters.
func TestCounterOrders(t *testing.T) {
	for name, wait := range map[string]func(c *Counter, want uint64){
		"load": func(c *Counter, want uint64) {
			for c.Load() < want {
				c.doze(want, time.Millisecond)
			}
		},
		"reached": func(c *Counter, want uint64) {
			for !c.reached(want) {
				c.doze(want, time.Millisecond)
			}
		},
	} {
		for how, raise := range map[string]func(c *Counter, v uint64){
			"publish": func(c *Counter, v uint64) { c.Publish(v) },
			"add":     func(c *Counter, _ uint64) { c.Add(1) },
		} {
			t.Run(name+" and "+how, func(t *testing.T) {
				mem, _ := twice(t, 2*Stride)
				there, back := CounterAt(mem, 0), CounterAt(mem, Stride)
				data := make([]uint64, 64)
				rounds := uint64(long(5000))
				var other sync.WaitGroup
				other.Go(func() {
					for round := uint64(1); round <= rounds; round++ {
						wait(there, round)
						for i := range data {
							if data[i] != round+uint64(i) {
								t.Errorf("round %d: word %d is %d", round, i, data[i])
							}
							data[i] = 0
						}
						raise(back, round)
					}
				})
				for round := uint64(1); round <= rounds; round++ {
					for i := range data {
						data[i] = round + uint64(i)
					}
					raise(there, round)
					wait(back, round)
					for i := range data {
						if data[i] != 0 {
							t.Fatalf("round %d: word %d was not read", round, i)
						}
					}
				}
				other.Wait()
			})
		}
	}
}
