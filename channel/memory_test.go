package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestMemoryMoves compares puts, gets and sends of any size at any offset with what they do to plain
// slices.
func TestMemoryMoves(t *testing.T) {
	j := newJoint(t, Policy{}, true)
	offset := rapid.OneOf(rapid.IntRange(-2, jointData+2),
		rapid.SampledFrom([]int{0, jointData, math.MinInt, math.MaxInt}))
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.IntRange(0, 1).Draw(t, "rank")
		dst, src, n := offset.Draw(t, "dst"), offset.Draw(t, "src"), offset.Draw(t, "n")
		var want [2][]byte
		for r := range want {
			for i := range j.mem[r] {
				j.mem[r][i] = byte(i*7 + r)
			}
			want[r] = bytes.Clone(j.mem[r])
		}
		fits := func(at int) bool { return at >= 0 && n >= 0 && at <= jointData && n <= jointData-at }
		m, ok := j.memory[r], fits(dst) && fits(src)
		var err error
		switch rapid.SampledFrom([]string{"put", "get", "send"}).Draw(t, "what") {
		case "put":
			if err = m.Put(dst, src, n); ok {
				copy(want[1-r][dst:dst+n], want[r][src:src+n])
			}
		case "get":
			if err = m.Get(dst, src, n); ok {
				copy(want[r][dst:dst+n], want[1-r][src:src+n])
			}
		default:
			data := bytes.Repeat([]byte{byte(src)}, max(0, min(n, jointData+1)))
			n = len(data)
			if ok = fits(dst); ok {
				copy(want[1-r][dst:], data)
			}
			err = m.Send(dst, data)
		}
		if (err == nil) != ok {
			t.Fatalf("%d bytes from %d to %d: %v", n, src, dst, err)
		}
		for r := range want {
			if !bytes.Equal(want[r], j.mem[r]) {
				t.Fatalf("memory of rank %d (-want +got):\n%s", r, cmp.Diff(want[r], j.mem[r]))
			}
		}
	})
}

// TestMemoryRefuses: what is refused moves nothing, signals nothing and consumes no signal.
func TestMemoryRefuses(t *testing.T) {
	j := newJoint(t, Policy{}, true)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	a, b := j.memory[0], j.memory[1]
	if a.PutWithSignal(0, jointData-3, 4) == nil || a.PutWithSignal(jointData-3, 0, 4) == nil || b.Poll() {
		t.Error("a put out of bounds went through, or signalled")
	}
	if err := a.PutWithSignal(0, 0, 0); err != nil || !b.Poll() {
		t.Errorf("a put of nothing does not signal: %v", err)
	}
	// Out of bounds is said at once, whether or not there is a signal.
	if err := b.WaitGet(ended, 0, jointData+1, 0); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a get out of bounds waits: %v", err)
	}
	a.Signal()
	if b.WaitGet(testContext(t), jointData, 0, 1) == nil || b.WaitGet(testContext(t), 0, 0, -1) == nil {
		t.Error("a get out of bounds went through")
	}
	if err := b.WaitGet(testContext(t), 0, 0, 1); err != nil {
		t.Errorf("a refused get has consumed the signal: %v", err)
	}
	if err := b.WaitGet(ended, 0, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("no signal is left, and the wait says %v", err)
	}
}

// TestMemoryExchange lets two ranks exchange messages of changing length and offset, one by puts and
// the other by gets.
func TestMemoryExchange(t *testing.T) {
	for _, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			j := newJoint(t, p.Policy, true)
			ctx := testContext(t)
			rounds := p.rounds(800)
			const half = jointData / 2
			at := func(round int) (offset, n int) { n = round * 13 % (half / 2); return round * 5 % (half - n + 1), n }
			fill := func(b []byte, rank, round int) {
				for i := range b {
					b[i] = byte(i*3 + round + 101*rank)
				}
			}
			// A rank writes the lower half of its own memory, and the peer's data end up in the
			// upper half.
			turn := func(rank int) error {
				m, own := j.memory[rank], j.mem[rank]
				want := make([]byte, half)
				for round := range rounds {
					offset, n := at(round)
					fill(own[offset:offset+n], rank, round)
					var err error
					if round%2 == 0 {
						if err = m.PutWithSignal(half+offset, offset, n); err == nil {
							err = m.Wait(ctx)
						}
					} else {
						m.Signal()
						err = m.WaitGet(ctx, half+offset, offset, n)
					}
					if err != nil {
						return err
					}
					fill(want[:n], 1-rank, round)
					if !bytes.Equal(own[half+offset:][:n], want[:n]) {
						t.Errorf("rank %d, round %d: wrong data", rank, round)
					}
					// Both have read before either writes again.
					m.Signal()
					if err := m.Wait(ctx); err != nil {
						return err
					}
				}
				return nil
			}
			var other sync.WaitGroup
			other.Go(func() {
				if err := turn(1); err != nil {
					t.Error(err)
				}
			})
			if err := turn(0); err != nil {
				t.Error(err)
			}
			other.Wait()
		})
	}
}

// TestMemoryOrders sends plain memory, of which the race detector keeps account, through a window
// of plain memory.
func TestMemoryOrders(t *testing.T) {
	j := newJoint(t, PolicyFor(2, 2, 2), false)
	ctx := testContext(t)
	var window [2][]byte
	var m [2]*Memory
	for r := range window {
		window[r] = make([]byte, 8)
	}
	for r := range m {
		m[r] = NewMemory(j.semaphore[r], window[r], window[1-r])
	}
	rounds := long(2000)
	turn := func(rank int) {
		for round := range rounds {
			if err := m[rank].Send(0, binary.LittleEndian.AppendUint64(nil, uint64(round))); err != nil {
				t.Error(err)
			}
			m[rank].Signal()
			if err := m[rank].Wait(ctx); err != nil {
				t.Error(err)
				return
			}
			if got := binary.LittleEndian.Uint64(window[rank]); got != uint64(round) {
				t.Errorf("rank %d, round %d: got %d", rank, round, got)
			}
			m[rank].Signal() // it was read
			if err := m[rank].Wait(ctx); err != nil {
				t.Error(err)
				return
			}
		}
	}
	var other sync.WaitGroup
	other.Go(func() { turn(1) })
	turn(0)
	other.Wait()
}
