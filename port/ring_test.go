package port

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// TestTrigger: what is encoded is decoded, at the ends of every field, whatever the parity.
func TestTrigger(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	ends := func(bits uint) uint64 {
		switch random.IntN(3) {
		case 0:
			return 0
		case 1:
			return 1<<bits - 1
		}
		return random.Uint64() & (1<<bits - 1)
	}
	for range 2000 {
		want := trigger{
			op: uint8(ends(opBits)), channel: uint16(ends(channelBits)), bytes: ends(sizeBits),
			src:   place{uint16(ends(memoryBits)), ends(offsetBits)},
			dst:   place{uint16(ends(memoryBits)), ends(offsetBits)},
			value: ends(63) | ends(1)<<63,
		}
		words := want.encode()
		for i := range words {
			if words[i]&parity != 0 {
				t.Fatalf("word %d of %+v has the parity's bit", i, want)
			}
			words[i] |= ends(1) << 63
		}
		if got := decode(words); got != want {
			t.Fatalf("%+v became %+v", want, got)
		}
	}
}

// TestRing: triggers of many pushers, of which many are zeros, come out once and in the order of each, over many
// laps, and nothing is claimed where there is no room.
func TestRing(t *testing.T) {
	const pushers, each = 4, 5000
	var head, tail atomic.Uint64
	r := newRing(make([]slot, 8), &head, &tail)
	if _, ok := r.next(); ok {
		t.Fatal("a ring of zeros has a trigger")
	}
	var group sync.WaitGroup
	for p := range pushers {
		group.Go(func() {
			for i := range uint64(each) {
				for {
					if _, ok := r.push(trigger{channel: uint16(p), value: i}); ok {
						break
					}
					runtime.Gosched()
				}
			}
		})
	}
	var seen [pushers]uint64
	for range pushers * each {
		v, ok := r.next()
		for !ok {
			runtime.Gosched()
			v, ok = r.next()
		}
		if v.value != seen[v.channel] {
			t.Errorf("pusher %d: %d came, want %d", v.channel, v.value, seen[v.channel])
		}
		seen[v.channel]++
		r.taken++
		if r.taken%5 == 0 || r.taken == pushers*each || r.taken+8 == pushers*each {
			r.publish()
		}
		if r.taken%3 == 0 {
			r.publish()
		}
	}
	group.Wait()
	r.publish()
	for range 8 {
		if _, ok := r.push(trigger{}); !ok {
			t.Fatal("no room in an empty ring")
		}
	}
	before := head.Load()
	if _, ok := r.push(trigger{}); ok || head.Load() != before {
		t.Error("a full ring took a trigger, or lost a slot")
	}
	tail.Store(r.taken | shut)
	if _, ok := r.push(trigger{}); ok {
		t.Error("a ring that is shut took a trigger")
	}
}

// pair opens two proxies on a network, with a memory of 4 KiB each and a channel from the first to the second.
func pair(t testing.TB, class fabrictest.Class, o ...Options) (proxies [2]*Proxy, out, in *Channel) {
	t.Helper()
	network := fabrictest.New(class, 1)
	var memories [2]*Memory
	for i := range proxies {
		d, err := network.Open(t.Context(), fabric.Options{Rank: i, Size: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if proxies[i], err = New(o[i%len(o)], d); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { proxies[i].Close() })
		if memories[i], err = proxies[i].Register(make([]byte, 4096), 1); err != nil {
			t.Fatal(err)
		}
	}
	var channels [2]*Channel
	for i, x := range proxies {
		p, err := x.Connect(t.Context(), 1-i, proxies[1-i].Card())
		if err != nil {
			t.Fatal(err)
		}
		remote, err := p.Memory(memories[1-i].Card())
		if err != nil {
			t.Fatal(err)
		}
		if channels[i], err = p.Channel(ChannelOptions{}, remote, memories[i]); err != nil {
			t.Fatal(err)
		}
	}
	return proxies, channels[0], channels[1]
}

// TestWrongTriggers: a kernel may push anything. Its channel fails with a sentence, and nothing lands outside of
// memories.
func TestWrongTriggers(t *testing.T) {
	for name, wrong := range map[string]trigger{
		"source":           {op: opPut, bytes: 8, src: place{memory: 7}},
		"destination":      {op: opPut, bytes: 8, dst: place{memory: 1<<memoryBits - 1}},
		"source offset":    {op: opPut, bytes: 8, src: place{offset: 4089}},
		"huge offset":      {op: opPut, bytes: 8, src: place{offset: 1<<offsetBits - 1}},
		"size":             {op: opPut, bytes: 1<<sizeBits - 1},
		"add's offset":     {op: opAdd, dst: place{offset: 4}},
		"add's memory":     {op: opAdd, dst: place{memory: 3}},
		"channel":          {op: opSignal, channel: 5},
		"put and the rest": {op: opPut | opSignal | opAdd | opFlush, bytes: 5000},
	} {
		t.Run(name, func(t *testing.T) {
			proxies, out, _ := pair(t, fabrictest.TCP(), Options{})
			if _, ok := proxies[0].host.push(wrong); !ok {
				t.Fatal("no room")
			}
			proxies[0].rouse()
			var err error
			for begun := time.Now(); err == nil && time.Since(begun) < 30*time.Second; {
				err = out.Flush(t.Context())
			}
			if !errors.Is(err, fabric.ErrInvalid) {
				t.Errorf("%v, want ErrInvalid", err)
			}
		})
	}
}

// TestNothing: a trigger of zeros does nothing, and what is behind it comes.
func TestNothing(t *testing.T) {
	proxies, out, in := pair(t, fabrictest.EFA(), Options{})
	for range 1000 {
		for {
			if _, ok := proxies[0].host.push(trigger{}); ok {
				break
			}
			proxies[0].rouse()
			runtime.Gosched()
		}
	}
	if err := errors.Join(out.Signal(t.Context()), in.Wait(t.Context())); err != nil {
		t.Error(err)
	}
}

// BenchmarkTrigger is the time from a push of the host until the proxy has posted it, and until the peer's rank
// sees its signal, on a network without delay.
func BenchmarkTrigger(b *testing.B) {
	class := fabrictest.Class{
		Name: "prompt", Ordered: true, Words: true, Delivered: true, Prompt: true, KeyBytes: 8, DataBytes: 8,
		MaxWrite: 1 << 30, Depth: 256,
	}
	for _, c := range []struct {
		name string
		op   uint8
	}{{"signal", opSignal}, {"put and signal", opPut | opSignal}} {
		b.Run(c.name, func(b *testing.B) {
			_, out, in := pair(b, class, Options{Spin: time.Minute}, Options{Spin: 1}) // one spins, for two processors
			var samples []time.Duration
			total := uint64(0)
			for b.Loop() {
				t := time.Now()
				if _, err := out.enqueue(b.Context(), trigger{op: c.op, bytes: uint64(c.op&opPut) * 8}); err != nil {
					b.Fatal(err)
				}
				total++
				for in.arrived() < total {
					if err := out.Err(); err != nil {
						b.Fatal(err)
					}
				}
				samples = append(samples, time.Since(t))
			}
			slices.Sort(samples)
			b.ReportMetric(float64(samples[0].Nanoseconds()), "best-ns")
			b.ReportMetric(float64(samples[len(samples)/2].Nanoseconds()), "p50-ns")
		})
	}
}
