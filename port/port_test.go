package port_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/port"
)

func word(b []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[at])) }

// TestPut: bytes of every length at odd places land where they should and nowhere else, before their signal.
func TestPut(t *testing.T) {
	sizes := []int{0, 1, 3, 7, 8, 63, 64, 65, 499, 500, 501, 4095, 4096, 4097, 1<<16 + 5, 1 << 18}
	onBackends(t, func(t *testing.T, b backend) {
		const half = 1<<18 + 64
		all := b.ranks(t, 2, 2*half)
		channels := [2]*port.Channel{all[0].channel(t, 1, 3), all[1].channel(t, 0, 3)}
		for i, n := range sizes {
			for from, c := range channels {
				ctx, to := t.Context(), all[1-from].memory
				at, offset := half+i%9, (i*5)%11
				pattern(all[from].memory[offset:][:n], i)
				clear(to[half:])
				var err error
				switch i % 3 {
				case 0:
					err = errors.Join(c.Put(ctx, at, offset, n), c.Signal(ctx), c.Flush(ctx))
				case 1:
					err = errors.Join(c.PutWithSignal(ctx, at, offset, n), c.Flush(ctx))
				default:
					err = c.PutWithSignalAndFlush(ctx, at, offset, n)
				}
				if err = errors.Join(err, channels[1-from].Wait(ctx)); err != nil {
					t.Fatal(err)
				}
				want := make([]byte, half)
				copy(want[at-half:], all[from].memory[offset:][:n])
				if !bytes.Equal(to[half:], want) {
					t.Fatalf("%d bytes from %d to %d: other bytes arrived", n, offset, at)
				}
				if channels[1-from].Poll() {
					t.Fatal("a signal that nobody sent")
				}
			}
		}
	})
}

// TestRounds: all ranks put to all, themselves too, round after round without a barrier, in pieces and by calls that
// a seed chooses. A signal covers all that was pushed before it, and the reader's own signal says when its
// memory may be written again.
func TestRounds(t *testing.T) {
	const size, slot, pieces = 3, 2048, 5
	rounds := 24
	if testing.Short() {
		rounds = 10
	}
	onBackends(t, func(t *testing.T, b backend) {
		// Two slots by parity for each source, then what is put, by parity.
		all := b.ranks(t, size, 2*size*slot+2*slot)
		data, free := make([][]*port.Channel, size), make([][]*port.Channel, size)
		for i, r := range all {
			data[i], free[i] = r.channels(t, 0), r.channels(t, 1)
		}
		each(t, all, func(r *rank) error {
			ctx, random := t.Context(), rand.New(rand.NewPCG(b.seed, uint64(r.index)))
			want := make([]byte, slot)
			for round := range rounds {
				parity := round % 2
				if round >= 2 { // what was put two rounds ago was read by then, and has left its source
					for _, c := range free[r.index] {
						if err := c.Wait(ctx); err != nil {
							return err
						}
					}
					for _, c := range data[r.index] {
						if err := c.Flush(ctx); err != nil {
							return err
						}
					}
				}
				source := (2*size + parity) * slot
				pattern(r.memory[source:][:slot], r.index+round*size)
				for _, c := range data[r.index] {
					at := 0
					for piece := range pieces {
						n := random.IntN(slot - at + 1)
						if piece == pieces-1 {
							n = slot - at
						}
						to := (2*r.index+parity)*slot + at
						var err error
						switch {
						case piece < pieces-1:
							err = c.Put(ctx, to, source+at, n)
						case random.IntN(2) == 0:
							err = c.PutWithSignal(ctx, to, source+at, n)
						default:
							err = c.PutWithSignalAndFlush(ctx, to, source+at, n)
						}
						if err != nil {
							return err
						}
						at += n
					}
				}
				for j, c := range data[r.index] {
					if random.IntN(2) == 0 {
						for !c.Poll() {
							if err := c.Err(); err != nil {
								return err
							}
						}
					} else if err := c.Wait(ctx); err != nil {
						return err
					}
					pattern(want, j+round*size)
					if got := r.memory[(2*j+parity)*slot:][:slot]; !bytes.Equal(got, want) {
						return fmt.Errorf("round %d: rank %d's signal came before its bytes", round, j)
					}
				}
				for _, c := range free[r.index] {
					if err := c.Signal(ctx); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// TestAtomicAdd: adds of all ranks to one word are all counted, those of nothing and of negative numbers too, and
// come behind data and before signals.
func TestAtomicAdd(t *testing.T) {
	const size, adds = 3, 50
	onBackends(t, func(t *testing.T, b backend) {
		b.spread = false
		all := b.ranks(t, size, 4096)
		channels := make([][]*port.Channel, size)
		for i, r := range all {
			channels[i] = r.channels(t, 2)
		}
		each(t, all, func(r *rank) error {
			ctx, c := t.Context(), channels[r.index][0]
			pattern(r.memory[2048:][:256], r.index)
			err := errors.Join(c.AtomicAdd(ctx, 16+8*r.index, 0), c.Put(ctx, 1024+256*r.index, 2048, 256),
				c.AtomicAdd(ctx, 16+8*r.index, ^uint64(0)), c.AtomicAdd(ctx, 64, 1<<63))
			for i := range adds {
				err = errors.Join(err, c.AtomicAdd(ctx, 8, uint64(i)))
			}
			return errors.Join(err, c.Signal(ctx), c.Flush(ctx))
		})
		for i := range size {
			if err := channels[0][i].Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, 256)
			if pattern(want, i); !bytes.Equal(all[0].memory[1024+256*i:][:256], want) {
				t.Errorf("rank %d's add came before its bytes", i)
			}
			if got := word(all[0].memory, 16+8*i).Load(); got != ^uint64(0) {
				t.Errorf("rank %d's word is %#x", i, got)
			}
		}
		if got, want := word(all[0].memory, 8).Load(), uint64(size*adds*(adds-1)/2); got != want {
			t.Errorf("the sum is %d, want %d", got, want)
		}
		if got := word(all[0].memory, 64).Load(); got != 1<<63 { // three times
			t.Errorf("the sum of top bits is %#x", got)
		}
	})
}

// TestPushers: goroutines share a channel, whose ring is smaller than what they push, and others wait for the signals.
func TestPushers(t *testing.T) {
	const pushers, each, slot = 6, 40, 64
	onBackends(t, func(t *testing.T, b backend) {
		b.options.Depth = 4
		all := b.ranks(t, 2, 2*pushers*each*slot)
		pattern(all[0].memory[:pushers*each*slot], 9)
		out, in := all[0].channel(t, 1, 0), all[1].channel(t, 0, 0)
		var group sync.WaitGroup
		errs := make([]error, 2*pushers)
		for p := range pushers {
			group.Go(func() {
				for i := range each {
					at := (p*each + i) * slot
					if err := out.PutWithSignal(t.Context(), pushers*each*slot+at, at, slot); err != nil {
						errs[p] = err
						return
					}
				}
				errs[p] = out.Flush(t.Context())
			})
			group.Go(func() {
				for range each {
					if err := in.Wait(t.Context()); err != nil {
						errs[pushers+p] = err
						return
					}
				}
			})
		}
		group.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if in.Poll() || !bytes.Equal(all[1].memory[pushers*each*slot:], all[0].memory[:pushers*each*slot]) {
			t.Error("one signal more than was sent, or other bytes")
		}
	})
}

// TestWith: a channel between other memories has the same signals, and what is put is ordered with the rest.
func TestWith(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all, ctx := b.ranks(t, 2, 64), t.Context()
		second, other := []byte("0123456789abcdef"), make([]byte, 16)
		from, err := all[0].Register(second, 1)
		if err != nil {
			t.Fatal(err)
		}
		into, err := all[1].Register(other, 1)
		if err != nil {
			t.Fatal(err)
		}
		remote, err := all[0].peers[1].Memory(into.Card())
		if err != nil {
			t.Fatal(err)
		}
		out, in := all[0].channel(t, 1, 0), all[1].channel(t, 0, 0)
		with, err := out.With(remote, from)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(with.Put(ctx, 0, 0, 16), out.Signal(ctx), in.Wait(ctx), out.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(other, second) {
			t.Errorf("%q arrived", other)
		}
		if err := from.Close(); err != nil {
			t.Fatal(err)
		}
		if err := with.Put(ctx, 0, 0, 16); err == nil {
			t.Error("put from a memory that is closed")
		}
	})
}
