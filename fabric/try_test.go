package fabric_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/weftgo/weft/fabric"
)

// TestTry: what is tried again and again until it is taken does what the calls that wait do, also when more is
// underway than the endpoint holds.
func TestTry(t *testing.T) {
	const n, slot = 300, 512
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 3, 2*n*slot)
		raised := uint64(0)
		from, to := all[0], all[1]
		p := from.peers[1]
		pattern(from.memory[:n*slot], 4)
		again := func(try func() (bool, error)) {
			t.Helper()
			for {
				ok, err := try()
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					return
				}
				if _, err := from.Poll(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range n {
			done := 0
			if i%3 == 2 {
				signalled := false
				again(func() (bool, error) {
					k, also, err := p.TryWriteSignal(from.remotes[1], (n+i)*slot+done, from.region, i*slot+done, slot-done, 1)
					done, signalled = done+k, also
					return done == slot, err
				})
				if raised++; !signalled {
					again(func() (bool, error) { return p.TrySignal(1) })
				}
				if i%30 != 2 {
					continue
				}
				if err := to.peers[0].Await(t.Context(), 1, raised); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(to.memory[n*slot:(n+i+1)*slot], from.memory[:(i+1)*slot]) {
					t.Fatalf("signal %d came before its bytes, or those of the writes before it", raised)
				}
				continue
			}
			again(func() (bool, error) {
				k, err := p.TryWrite(from.remotes[1], (n+i)*slot+done, from.region, i*slot+done, slot-done)
				done += k
				return done == slot, err
			})
		}
		again(func() (bool, error) { return p.TryAdd(from.remotes[1], 8, 5) })
		again(func() (bool, error) { return p.TrySignal(0) })
		mark := p.Mark()
		if err := to.peers[0].Await(t.Context(), 1, raised); err != nil {
			t.Fatal(err)
		}
		if err := to.peers[0].Await(t.Context(), 0, 1); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(to.memory[n*slot:], from.memory[:n*slot]) || word(to.memory, 8).Load() != 5 {
			t.Error("the signal came before the bytes, or before the add")
		}
		again(func() (bool, error) { return p.Flushed(mark) })

		for what, err := range map[string]error{
			"write":  failure(p.TryWrite(from.remotes[1], 2*n*slot, from.region, 0, 1)),
			"signal": failure(p.TrySignal(64)),
			"both":   third(p.TryWriteSignal(from.remotes[1], 2*n*slot, from.region, 0, 1, 1)),
			"raise":  third(p.TryWriteSignal(from.remotes[1], 0, from.region, 0, 1, 64)),
			"add":    failure(p.TryAdd(from.remotes[1], 4, 1)),
		} {
			if !errors.Is(err, fabric.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		reason := errors.New("its heartbeat stopped")
		p.Fail(reason)
		names(t, failure(p.TryWrite(from.remotes[1], 0, from.region, 0, 1)), 1, "write", reason)
		names(t, failure(p.TrySignal(0)), 1, "signal", reason)
		names(t, failure(p.TryAdd(from.remotes[1], 8, 1)), 1, "add", reason)
		names(t, failure(p.Flushed(mark)), 1, "flush", reason)
	})
}

func failure[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }
