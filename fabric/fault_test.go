package fabric_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// names checks that an error is of a peer's operation, for a reason.
func names(t *testing.T, err error, rank int, op string, reason error) {
	t.Helper()
	failed, ok := errors.AsType[*fabric.PeerError](err)
	if !ok || failed.Rank != rank || failed.Op != op || !errors.Is(err, reason) {
		t.Errorf("error %v, want one of %s and rank %d for %v", err, op, rank, reason)
	}
}

// TestDeadlines: waits end with their context, or after the domain's timeout.
func TestDeadlines(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		b.options.Timeout = 100 * time.Millisecond
		all := b.ranks(t, 2, 64)
		p := all[0].peers[1]
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := p.Await(short, 0, 1)
		names(t, err, 1, "await", fabric.ErrTimeout)
		names(t, err, 1, "await", context.DeadlineExceeded)
		canceled, give := context.WithCancelCause(t.Context())
		reason := errors.New("changed my mind")
		time.AfterFunc(20*time.Millisecond, func() { give(reason) })
		names(t, p.Await(canceled, 0, 1), 1, "await", reason)
		if err := p.Signal(t.Context(), 0); err != nil { // nothing of that is sticky
			t.Fatal(err)
		}
		names(t, p.Await(t.Context(), 0, 1), 1, "await", fabric.ErrTimeout)
	})
}

// TestRenew: after a region's next epoch, writes with its old key fail and touch nothing, with the new
// one they pass, and the peer whose write failed is not written to again.
func TestRenew(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 3, 4096)
		old := all[0].region.Card()
		if err := all[0].region.Renew(2); err != nil {
			t.Fatal(err)
		}
		if slices.Equal(old, all[0].region.Card()) {
			t.Fatal("the key is the same")
		}
		good, bad := all[1].peers[0], all[2].peers[0]
		remote, err := good.Region(all[0].region.Card())
		if err != nil {
			t.Fatal(err)
		}
		pattern(all[1].memory, 1)
		pattern(all[2].memory, 2)
		if err := errors.Join(good.Write(t.Context(), remote, 0, all[1].region, 0, 2048),
			good.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		err = bad.Write(t.Context(), all[2].remotes[0], 2048, all[2].region, 0, 2048)
		for range 100 { // a network may tell of a failure with a later write
			if err == nil {
				err = errors.Join(bad.Signal(t.Context(), 0), bad.Flush(t.Context()))
			}
		}
		if !errors.Is(err, fabric.ErrLost) {
			t.Errorf("a write with an old key: %v", err)
		}
		if _, ok := errors.AsType[*fabric.ProviderError](err); !ok {
			t.Errorf("the error has nothing of the provider's: %v", err)
		}
		names(t, bad.Signal(t.Context(), 0), 0, "signal", fabric.ErrLost)
		names(t, bad.Flush(t.Context()), 0, "flush", fabric.ErrLost)
		if slices.ContainsFunc(all[0].memory[2048:], func(b byte) bool { return b != 0 }) {
			t.Error("the write landed")
		}
		if err := errors.Join(good.Write(t.Context(), remote, 0, all[1].region, 0, 2048), good.Signal(t.Context(), 0),
			all[0].peers[1].Await(t.Context(), 0, 1), good.Flush(t.Context())); err != nil {
			t.Errorf("the other rank suffers: %v", err)
		}
		if !slices.Equal(all[0].memory[:2048], all[1].memory[:2048]) {
			t.Error("other bytes arrived")
		}
	})
}

// TestClosed: what is closed says so, whoever waits.
func TestClosed(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		ctx := t.Context()
		spare, err := all[0].Register(make([]byte, 64), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(spare.Close(), spare.Close()); err != nil {
			t.Fatal(err)
		}
		p := all[0].peers[1]
		if err := p.Write(ctx, all[0].remotes[1], 0, spare, 0, 8); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("write from a closed region: %v", err)
		}
		if err := spare.Renew(1); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("renew of a closed region: %v", err)
		}
		if err := p.Signal(ctx, 0); err != nil {
			t.Errorf("a closed region spoils the peer: %v", err)
		}
		waited := make(chan error, 2)
		for id := range 2 {
			go func() { waited <- p.Await(ctx, id, 1) }()
		}
		time.Sleep(10 * time.Millisecond)
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-waited; !errors.Is(err, fabric.ErrClosed) {
				t.Errorf("a waiting call: %v, want ErrClosed", err)
			}
		}
		if err := errors.Join(all[0].Close(), all[0].region.Close()); err != nil {
			t.Errorf("closed again: %v", err)
		}
		if _, err := all[0].Register(make([]byte, 8), 0); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("register: %v", err)
		}
		if err := p.Flush(ctx); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("flush: %v", err)
		}
	})
}

// TestFail: a cause from elsewhere ends waits that no network would end, and stays.
func TestFail(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		p, silent := all[0].peers[1], errors.New("no heartbeat")
		waited := make(chan error)
		go func() { waited <- p.Await(t.Context(), 0, 1) }()
		p.Fail(silent)
		p.Fail(errors.New("another cause"))
		names(t, <-waited, 1, "await", silent)
		names(t, p.Signal(t.Context(), 0), 1, "signal", silent)
		if !errors.Is(p.Err(), silent) {
			t.Errorf("%v", p.Err())
		}
		if err := all[0].peers[0].Signal(t.Context(), 0); err != nil {
			t.Errorf("another peer suffers: %v", err)
		}
	})
}

// TestPeerClose ends the connection on this side: the peer hears of it or not, but nothing is posted.
func TestPeerClose(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		p := all[0].peers[1]
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Fatal(err)
		}
		names(t, p.Signal(t.Context(), 0), 1, "signal", fabric.ErrClosed)
	})
}

// TestCut: silence ends in a timeout that names the peer; when it ends, all that was posted lands.
func TestCut(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		b.options.Timeout = 50 * time.Millisecond
		all := b.ranks(t, 2, 4096)
		p := all[0].peers[1]
		pattern(all[0].memory, 1)
		b.network.Cut(0, 1)
		if err := errors.Join(p.Write(t.Context(), all[0].remotes[1], 1, all[0].region, 0, 3000),
			p.Signal(t.Context(), 0)); err != nil {
			t.Fatal(err)
		}
		names(t, all[1].peers[0].Await(t.Context(), 0, 1), 0, "await", fabric.ErrTimeout)
		names(t, p.Flush(t.Context()), 1, "flush", fabric.ErrTimeout)
		b.network.Heal(0, 1)
		patient, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := errors.Join(all[1].peers[0].Await(patient, 0, 1), p.Flush(patient)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(all[1].memory[1:3001], all[0].memory[:3000]) {
			t.Error("other bytes arrived")
		}
	})
}

// TestReset: one write that failed is the end of a peer, although later ones would pass.
func TestReset(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 4096)
		p := all[0].peers[1]
		b.network.Cut(0, 1) // so that something is underway
		if err := p.Write(t.Context(), all[0].remotes[1], 0, all[0].region, 0, 100); err != nil {
			t.Fatal(err)
		}
		b.network.Reset(0, 1)
		b.network.Heal(0, 1)
		names(t, p.Flush(t.Context()), 1, "flush", fabric.ErrLost)
		names(t, p.Write(t.Context(), all[0].remotes[1], 0, all[0].region, 0, 100), 1, "write", fabric.ErrLost)
		names(t, p.Add(t.Context(), all[0].remotes[1], 0, 1), 1, "add", fabric.ErrLost)
	})
}

// TestLostSignal: a connection ends whose writes have completed, in part before they had landed, and the network
// connects again. No signal is seen that was not sent, and the sender hears of one that is missing.
func TestLostSignal(t *testing.T) {
	missed := false
	for _, class := range []fabrictest.Class{fabrictest.TCP(), fabrictest.RXM()} {
		for seed := range uint64(30) {
			b := backend{network: fabrictest.New(class, seed), class: class}
			all := b.ranks(t, 2, 64)
			from, to := all[0].peers[1], all[1].peers[0]
			sent := uint64(0)
			for i := range 20 {
				if i == 10 {
					b.network.Reset(0, 1)
				}
				if i == 9 { // alone on its way
					_ = to.Await(t.Context(), 3, 9)
				}
				if from.Signal(t.Context(), 3) != nil {
					break
				}
				sent++
			}
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
				seen, misses := to.Signalled(3), to.Err() != nil
				missed = missed || misses
				if seen > sent {
					t.Fatalf("%s: %d signals of %d", class.Name, seen, sent)
				}
				if seen == sent && !misses || from.Err() != nil {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%s/%d: %d signals of %d arrived; rank 0 knows of %v, rank 1 of %v", class.Name, seed, seen, sent,
						from.Err(), to.Err())
				}
			}
			for _, err := range []error{from.Err(), to.Err()} {
				if err != nil && !errors.Is(err, fabric.ErrLost) {
					t.Error(err)
				}
			}
		}
	}
	if !missed {
		t.Error("no connection lost a signal, so nothing was tested")
	}
}

// TestKill: of three ranks one ends. The others get an error that names it, and go on.
func TestKill(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 3, 1<<16)
		b.network.Cut(0, 2)
		b.network.Cut(1, 2)
		for _, r := range all[:2] {
			if err := r.peers[2].Write(t.Context(), r.remotes[2], 0, r.region, 0, 1<<16); err != nil {
				t.Fatal(err)
			}
		}
		b.network.Kill(2)
		for i, r := range all[:2] {
			names(t, r.peers[2].Flush(t.Context()), 2, "flush", fabric.ErrLost)
			other := 1 - i
			if err := errors.Join(r.peers[other].Signal(t.Context(), 0), r.peers[other].Flush(t.Context())); err != nil {
				t.Error(err)
			}
			if err := all[other].peers[i].Await(t.Context(), 0, 1); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestKillIdle: a rank ends while nothing is underway to it, of which networks say nothing but to try again.
func TestKillIdle(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		if b.seed > 0 {
			t.Skip("takes a second, whatever the seed")
		}
		all := b.ranks(t, 2, 64)
		if err := all[0].peers[1].Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.network.Kill(1)
		names(t, all[0].peers[1].Signal(t.Context(), 0), 1, "signal", fabric.ErrLost)
	})
}

// TestLateWrites: what a rank that was given up had underway lands in the old epoch or not at all.
func TestLateWrites(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		for range 8 {
			t.Run("", func(t *testing.T) { lateWrite(t, b) })
		}
	})
}

func lateWrite(t *testing.T, b backend) {
	all := b.ranks(t, 2, 4096)
	pattern(all[0].memory, 1)
	b.network.Cut(0, 1)
	if err := all[0].peers[1].Write(t.Context(), all[0].remotes[1], 0, all[0].region, 0, 4096); err != nil {
		t.Fatal(err)
	}
	b.network.Kill(0)
	if err := errors.Join(all[1].peers[0].Close(), all[1].region.Renew(2)); err != nil {
		t.Fatal(err)
	}
	clear(all[1].memory) // it is used anew
	for range 50 {
		if err := errors.Join(all[1].peers[1].Signal(t.Context(), 0), all[1].peers[1].Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if slices.ContainsFunc(all[1].memory, func(b byte) bool { return b != 0 }) {
		t.Fatal("a write of the old epoch landed")
	}
}

// TestUnusable: networks that would lose or misplace data are refused when a domain is opened.
func TestUnusable(t *testing.T) {
	unchecked := fabrictest.TCP()
	unchecked.Unchecked = true
	mute := fabrictest.TCP()
	mute.DataBytes = 0
	for name, class := range map[string]fabrictest.Class{"lets writes with a wrong key land": unchecked, "want 4": mute} {
		_, err := fabrictest.New(class, 1).Open(t.Context(), fabric.Options{Size: 1})
		if !errors.Is(err, fabric.ErrUnsupported) {
			t.Errorf("a network that %s: %v", name, err)
		}
	}
}
