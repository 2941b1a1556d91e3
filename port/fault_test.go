package port_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/port"
)

// TestRefused: what cannot be is refused before anything is pushed, and the channel goes on.
func TestRefused(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all, ctx := b.ranks(t, 3, 1024), t.Context()
		out, in := all[0].channel(t, 1, 0), all[1].channel(t, 0, 0)
		const huge = int(^uint(0) >> 1)
		for _, bad := range [][3]int{
			{-1, 0, 1},
			{0, -1, 1},
			{0, 0, -1},
			{0, 1, 1024},
			{1, 0, 1024},
			{1025, 0, 0},
			{0, 1025, 0},
			{huge, 0, 2},
			{0, huge, 2},
			{0, 0, huge},
		} {
			if err := out.PutWithSignal(ctx, bad[0], bad[1], bad[2]); !errors.Is(err, fabric.ErrInvalid) {
				t.Errorf("put %v: %v", bad, err)
			}
		}
		for _, at := range []int{-8, 1, 4, 1020, 1024, huge} {
			err := out.AtomicAdd(ctx, at, 1)
			if want := map[bool]error{true: fabric.ErrUnsupported, false: fabric.ErrInvalid}[b.spread]; !errors.Is(err, want) {
				t.Errorf("add at %d: %v", at, err)
			}
		}
		channel := func(signal int) error {
			o := port.ChannelOptions{Signal: signal}
			return second(all[0].peers[1].Channel(o, all[0].remotes[1], all[0].local))
		}
		for what, err := range map[string]error{
			"a signal twice":     channel(0),
			"no such signal":     channel(64),
			"a negative signal":  channel(-1),
			"another's memory":   second(out.With(all[0].remotes[2], all[0].local)),
			"another proxy's":    second(out.With(all[1].remotes[1], all[0].local)),
			"no memory":          second(out.With(nil, all[0].local)),
			"another's source":   second(out.With(all[0].remotes[1], all[1].local)),
			"an empty memory":    second(all[0].Register(nil, 1)),
			"no rails":           second(port.New(port.Options{})),
			"depth of 3":         second(port.New(port.Options{Depth: 3}, all[0].domains...)),
			"negative timeout":   second(port.New(port.Options{Timeout: -1}, all[0].domains...)),
			"rails of two ranks": second(port.New(port.Options{}, all[0].domains[0], all[1].domains[0])),
		} {
			if !errors.Is(err, fabric.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for _, card := range [][]byte{nil, {1}, {1, 0}, all[1].Card()[:5], append(all[1].Card(), 0, 0), all[1].local.Card()} {
			if _, err := all[0].Connect(ctx, 1, card); !errors.Is(err, fabric.ErrMismatch) {
				t.Errorf("connect by %v: %v", card, err)
			}
			if bytes.Equal(card, all[1].local.Card()) {
				continue
			}
			_, err := all[0].peers[1].Memory(card)
			names(t, err, 1, "region", fabric.ErrMismatch)
		}
		if err := errors.Join(out.PutWithSignalAndFlush(ctx, 0, 0, 1024), in.Wait(ctx)); err != nil {
			t.Error(err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestDeadlines: waits end with their context, or after the proxy's timeout, and name the peer. Nothing of that
// is sticky: the signal that comes later is there to be consumed.
func TestDeadlines(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		b.options.Timeout = 200 * time.Millisecond
		all := b.ranks(t, 2, 64)
		out, in := all[0].channel(t, 1, 0), all[1].channel(t, 0, 0)
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := in.Wait(short)
		names(t, err, 0, "wait", fabric.ErrTimeout)
		names(t, err, 0, "wait", context.DeadlineExceeded)
		canceled, give := context.WithCancelCause(t.Context())
		reason := errors.New("changed my mind")
		time.AfterFunc(20*time.Millisecond, func() { give(reason) })
		names(t, in.Wait(canceled), 0, "wait", reason)
		names(t, in.Wait(t.Context()), 0, "wait", fabric.ErrTimeout)
		if err := errors.Join(out.Signal(t.Context()), in.Wait(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// TestSilence: a peer that has gone silent fills its channel, and no other. Its channel fails after the timeout,
// and pushers and flushes end with it.
func TestSilence(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		b.options.Timeout = 300 * time.Millisecond
		b.options.Depth = 256
		all, ctx := b.ranks(t, 3, 4096), t.Context()
		silent, other, in := all[0].channel(t, 1, 0), all[0].channel(t, 2, 0), all[2].channel(t, 0, 0)
		for _, n := range b.networks {
			n.Cut(0, 1)
		}
		for range 40 { // less than a lane holds
			if err := silent.PutWithSignal(ctx, 0, 0, 64); err != nil {
				t.Fatal(err)
			}
		}
		for range 40 {
			if err := errors.Join(other.PutWithSignal(ctx, 0, 0, 64), in.Wait(ctx)); err != nil {
				t.Fatal(err)
			}
		}
		err := silent.Flush(ctx)
		names(t, err, 1, "", fabric.ErrTimeout)
		for err = error(nil); err == nil; { // the network takes some more, then nothing
			err = silent.PutWithSignal(ctx, 0, 0, 4096)
		}
		names(t, err, 1, "", fabric.ErrTimeout)
	})
}

// TestReset: after a write that failed the channel fails for good, though the network would go on, and the
// error has the provider's words. Other channels go on.
func TestReset(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		all, ctx := b.ranks(t, 3, 1<<16), t.Context()
		lost, other, in := all[0].channel(t, 1, 0), all[0].channel(t, 2, 0), all[2].channel(t, 0, 0)
		var err error
		for begun := time.Now(); err == nil && time.Since(begun) < 30*time.Second; {
			err = lost.PutWithSignal(ctx, 0, 0, 1<<16)
			b.networks[0].Reset(0, 1)
		}
		names(t, err, 1, "", fabric.ErrLost)
		if _, ok := errors.AsType[*fabric.ProviderError](err); !ok {
			t.Errorf("the error has nothing of the provider's: %v", err)
		}
		names(t, lost.Signal(ctx), 1, "", fabric.ErrLost)
		names(t, lost.Flush(ctx), 1, "", fabric.ErrLost)
		names(t, lost.Wait(ctx), 1, "", fabric.ErrLost)
		if err := errors.Join(other.PutWithSignal(ctx, 0, 0, 64), in.Wait(ctx)); err != nil {
			t.Error(err)
		}
	})
}

// TestKill: what waits for a rank whose process has ended, ends when something was underway to it.
func TestKill(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 1<<16)
		out := all[0].channel(t, 1, 0)
		waited := make(chan error, 1)
		go func() { waited <- out.Wait(t.Context()) }()
		for _, n := range b.networks {
			n.Kill(1)
		}
		err := out.PutWithSignalAndFlush(t.Context(), 0, 0, 1<<16)
		names(t, err, 1, "", fabric.ErrLost)
		names(t, <-waited, 1, "", fabric.ErrLost)
	})
}

// TestAbort: an abort ends pushers, flushes and waits with its cause.
func TestAbort(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		c := all[0].channel(t, 1, 0)
		waited := make(chan error, 1)
		go func() { waited <- c.Wait(t.Context()) }()
		reason := errors.New("the job was given up")
		all[0].Abort(reason)
		if err := <-waited; !errors.Is(err, reason) {
			t.Errorf("wait: %v", err)
		}
		if err := c.Signal(t.Context()); !errors.Is(err, reason) {
			t.Errorf("signal: %v", err)
		}
		if err := c.Flush(t.Context()); !errors.Is(err, reason) {
			t.Errorf("flush: %v", err)
		}
	})
}

// TestClose: closing a proxy ends what waits; what is called afterwards fails.
func TestClose(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all, ctx := b.ranks(t, 2, 64), t.Context()
		c := all[0].channel(t, 1, 0)
		waited := make(chan error, 1)
		go func() { waited <- c.Wait(ctx) }()
		if err := errors.Join(all[0].Close(), all[0].Close()); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"wait": <-waited, "put": c.Put(ctx, 0, 0, 1), "signal": c.Signal(ctx), "flush": c.Flush(ctx), "again": c.Wait(ctx),
			"register": second(all[0].Register(make([]byte, 8), 1)),
			"connect":  second(all[0].Connect(ctx, 1, all[1].Card())),
			"channel":  second(all[0].peers[1].Channel(port.ChannelOptions{Signal: 9}, all[0].remotes[1], all[0].local)),
		} {
			if !errors.Is(err, fabric.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestRevoked: a put by a key that the peer took back fails, and touches nothing.
func TestRevoked(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		all, ctx := b.ranks(t, 2, 1<<12), t.Context()
		out := all[0].channel(t, 1, 0)
		pattern(all[0].memory, 3)
		before := bytes.Clone(all[1].memory)
		if err := all[1].local.Renew(2); err != nil {
			t.Fatal(err)
		}
		var err error
		for begun := time.Now(); err == nil && time.Since(begun) < 30*time.Second; {
			err = out.PutWithSignalAndFlush(ctx, 0, 0, 1<<12)
		}
		names(t, err, 1, "", fabric.ErrLost)
		if !bytes.Equal(before, all[1].memory) {
			t.Error("bytes landed by an old key")
		}
	})
}

// TestSettleSilent: who settles does not wait for a rank that is left out, which may be silent.
func TestSettleSilent(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		all, ctx := b.ranks(t, 3, 1<<12), t.Context()
		for _, n := range b.networks {
			n.Cut(0, 2)
		}
		for _, to := range []int{1, 2} {
			if err := all[0].channel(t, to, 0).PutWithSignal(ctx, 0, 0, 1<<12); err != nil {
				t.Fatal(err)
			}
		}
		if err := all[0].Settle(ctx, func(rank int) bool { return rank == 2 }); err != nil {
			t.Error(err)
		}
		all[0].Resume()
		for _, n := range b.networks {
			n.Heal(0, 2)
		}
	})
}
