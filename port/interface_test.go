package port_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/port"
)

var _ channel.Channel = (*port.Channel)(nil)

// exchange has two ranks put to each other, by whatever channels.
func exchange(t *testing.T, channels [2]channel.Channel, memories [2][]byte) {
	t.Helper()
	const rounds, slot = 50, 500 // two slots by parity to put into, and two to put from
	errs := make(chan error, 2)
	for i, c := range channels {
		go func() {
			errs <- func() error {
				ctx, want := t.Context(), make([]byte, slot)
				for round := range rounds {
					from, to := 8+(2+round%2)*slot, 8+round%2*slot
					pattern(memories[i][from:][:slot], round+i)
					err := errors.Join(c.AtomicAdd(ctx, 0, 3), c.Put(ctx, to, from, slot/2))
					if round%3 == 0 {
						err = errors.Join(err, c.PutWithSignalAndFlush(ctx, to+slot/2, from+slot/2, slot/2))
					} else {
						err = errors.Join(err, c.PutWithSignal(ctx, to+slot/2, from+slot/2, slot/2), c.Flush(ctx))
					}
					if err = errors.Join(err, c.Wait(ctx)); err != nil {
						return err
					}
					pattern(want, round+1-i)
					if got := memories[i][to:][:slot]; !bytes.Equal(got, want) {
						return fmt.Errorf("round %d: the signal came before its bytes", round)
					}
					if got := word(memories[i], 0).Load(); got < uint64(3*(round+1)) {
						return fmt.Errorf("round %d: the signal came before its add: %d", round, got)
					}
				}
				for _, at := range []int{-8, 1, len(memories[1-i])} {
					if c.AtomicAdd(ctx, at, 1) == nil || c.Put(ctx, at, 8, len(memories[1-i])) == nil {
						return fmt.Errorf("%d was taken", at)
					}
				}
				return errors.Join(c.Signal(ctx), c.Wait(ctx))
			}()
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	for i, c := range channels {
		if c.Poll() || c.Peer() != 1-i || word(memories[i], 0).Load() != 3*rounds {
			t.Errorf("rank %d: peer %d, one signal more, or a sum of %d", i, c.Peer(), word(memories[i], 0).Load())
		}
	}
}

// TestInterface: memory channels and port channels do the same through one interface.
func TestInterface(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		const each = channel.ControlSize + 2*channel.Stride
		shared := words(2 * each)
		memories := [2][]byte{words(4096), words(4096)}
		var channels [2]channel.Channel
		counter := func(rank, i int) *channel.Counter {
			return channel.CounterAt(shared, rank*each+channel.ControlSize+i*channel.Stride)
		}
		for i := range channels {
			w := &channel.Waiter{
				Policy: channel.PolicyFor(2, 2, 2), Rank: i, Own: channel.ControlAt(shared, i*each), Timeout: time.Minute,
			}
			s := channel.NewSemaphore(w, 1-i, counter(i, 0), counter(1-i, 0))
			channels[i] = channel.NewMemory(s, memories[i], memories[1-i]).Channel()
		}
		exchange(t, channels, memories)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := channels[0].Wait(canceled); !errors.Is(err, context.Canceled) {
			t.Errorf("wait: %v", err)
		}
	})
	onBackends(t, func(t *testing.T, b backend) {
		b.spread = false // for adds
		all := b.ranks(t, 2, 4096)
		exchange(t, [2]channel.Channel{all[0].channel(t, 1, 0), all[1].channel(t, 0, 0)},
			[2][]byte{all[0].memory, all[1].memory})
	})
}

// words is memory that begins at a multiple of 128.
func words(n int) []byte {
	all := make([]byte, n+128)
	for len(all) > n {
		if uintptr(unsafe.Pointer(&all[0]))%128 == 0 {
			return all[:n]
		}
		all = all[1:]
	}
	return all
}
