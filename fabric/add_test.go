package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

func word(b []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[at])) }

// TestAdd: adds of all ranks to one word are all counted, and bytes written before an add are there when
// it shows.
func TestAdd(t *testing.T) {
	const size, adds, slot = 3, 200, 256
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, size, 4096)
		each(t, all, func(r *rank) error {
			p, ctx := r.peers[0], t.Context()
			pattern(r.memory[2048:][:slot], r.index)
			if err := p.Write(ctx, r.remotes[0], 1024+r.index*slot, r.region, 2048, slot); err != nil {
				return err
			}
			if err := p.Add(ctx, r.remotes[0], 16+8*r.index, 0); err != nil { // adding nothing is an add
				return err
			}
			if err := p.Add(ctx, r.remotes[0], 16+8*r.index, ^uint64(0)); err != nil {
				return err
			}
			for i := range adds {
				if err := p.Add(ctx, r.remotes[0], 8, uint64(i)); err != nil {
					return err
				}
			}
			return p.Flush(ctx)
		})
		if got, want := word(all[0].memory, 8).Load(), uint64(size*adds*(adds-1)/2); got != want {
			t.Errorf("the sum is %d, want %d", got, want)
		}
		for i := range size {
			want := make([]byte, slot)
			pattern(want, i)
			if got := word(all[0].memory, 16+8*i).Load(); got != ^uint64(0) {
				t.Errorf("rank %d's word is %#x", i, got)
			}
			if !slices.Equal(all[0].memory[1024+i*slot:][:slot], want) {
				t.Errorf("rank %d's add came before its bytes", i)
			}
		}
	})
}

// TestSignalAfterAdd: a signal covers adds.
func TestSignalAfterAdd(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		for round := range uint64(20) {
			p := all[0].peers[1]
			if err := errors.Join(p.Add(t.Context(), all[0].remotes[1], 8, 3), p.Signal(t.Context(), 0),
				all[1].peers[0].Await(t.Context(), 0, round+1)); err != nil {
				t.Fatal(err)
			}
			if got := word(all[1].memory, 8).Load(); got != 3*(round+1) {
				t.Fatalf("round %d: the signal came before the add: %d", round, got)
			}
		}
	})
}

// TestManySignals: a rank that calls nothing receives more signals and adds than it has room for.
func TestManySignals(t *testing.T) {
	const n = 1500
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		p := all[0].peers[1]
		for i := range n {
			err := p.Signal(t.Context(), i%3)
			if i%5 == 0 {
				err = errors.Join(err, p.Add(t.Context(), all[0].remotes[1], 0, 1))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for id := range 3 {
			if err := all[1].peers[0].Await(t.Context(), id, n/3); err != nil {
				t.Fatal(err)
			}
			if got := all[1].peers[0].Signalled(id); got != n/3 {
				t.Errorf("signal %d is %d, want %d", id, got, n/3)
			}
		}
		if got := word(all[1].memory, 0).Load(); got != n/5 {
			t.Errorf("the word is %d, want %d", got, n/5)
		}
	})
}

// TestManyWrites: more writes come between two signals than a target can tell apart at once.
func TestManyWrites(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 5000
	}
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 8*n)
		pattern(all[0].memory, 3)
		p := all[0].peers[1]
		for i := range n {
			if err := p.Write(t.Context(), all[0].remotes[1], 8*i, all[0].region, 8*i, 8); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(p.Signal(t.Context(), 0), all[1].peers[0].Await(t.Context(), 0, 1)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(all[0].memory, all[1].memory) {
			t.Error("the signal came before its bytes")
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRevokedAdd: an add to a region that its owner has closed changes nothing, and its initiator hears
// of it.
func TestRevokedAdd(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		if err := all[1].region.Close(); err != nil {
			t.Fatal(err)
		}
		p := all[0].peers[1]
		err := errors.Join(p.Add(t.Context(), all[0].remotes[1], 0, 1), p.Flush(t.Context()))
		if !errors.Is(err, fabric.ErrRevoked) {
			t.Errorf("%v, want ErrRevoked", err)
		}
		names(t, p.Flush(t.Context()), 1, "flush", fabric.ErrRevoked)
		if got := word(all[1].memory, 0).Load(); got != 0 {
			t.Errorf("the add took effect: %d", got)
		}
	})
}

// TestRefusals: what contradicts the contract is refused, and nothing is posted.
func TestRefusals(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 64)
		r, ctx := all[0], t.Context()
		p, remote := r.peers[1], r.remotes[1]
		unaligned, err := all[1].Register(make([]byte, 65)[1:], 1)
		if err != nil {
			t.Fatal(err)
		}
		odd, err := p.Region(unaligned.Card())
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"another rank's region":   p.Write(ctx, r.remotes[0], 0, r.region, 0, 8),
			"another domain's source": p.Write(ctx, remote, 0, all[1].region, 0, 8),
			"fewer than no bytes":     p.Write(ctx, remote, 0, r.region, 0, -1),
			"before the source":       p.Write(ctx, remote, 0, r.region, -1, 8),
			"behind the source":       p.Write(ctx, remote, 0, r.region, 60, 8),
			"before the region":       p.Write(ctx, remote, -8, r.region, 0, 8),
			"behind the region":       p.Write(ctx, remote, 57, r.region, 0, 8),
			"far behind the region":   p.Write(ctx, remote, math.MaxInt/2, r.region, 0, 8),
			"no signal":               p.Signal(ctx, 64),
			"signal -1":               p.Signal(ctx, -1),
			"await of no signal":      p.Await(ctx, 64, 1),
			"add behind the region":   p.Add(ctx, remote, 64, 1),
			"add beside a word":       p.Add(ctx, remote, 4, 1),
			"add at an odd address":   p.Add(ctx, odd, 8, 1),
			"add elsewhere":           p.Add(ctx, r.remotes[0], 0, 1),
			"an empty region":         register(r.Domain),
			"a rank too many":         connect(r.Domain, 2, nil),
		} {
			if !errors.Is(err, fabric.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		if err := p.Write(ctx, remote, 64, r.region, 64, 0); err != nil {
			t.Errorf("nothing at the end: %v", err)
		}
		if err := p.Flush(ctx); err != nil {
			t.Error(err)
		}
		if slices.ContainsFunc(all[1].memory, func(b byte) bool { return b != 0 }) {
			t.Error("something was written")
		}
	})
}

func register(d *fabric.Domain) error {
	_, err := d.Register(nil, 0)
	return err
}

func connect(d *fabric.Domain, rank int, card []byte) error {
	_, err := d.Connect(context.Background(), rank, card)
	return err
}

// TestMismatch: domains that do not fit together are refused by the difference.
func TestMismatch(t *testing.T) {
	onTwins(t, func(t *testing.T, b backend) {
		d := b.open(t.Context(), t, 0, 2)
		for name, o := range map[string]fabric.Options{
			"size":    {Rank: 1, Size: 3},
			"rank":    {Rank: 0, Size: 2},
			"signals": {Rank: 1, Size: 2, Signals: 65},
			"order":   {Rank: 1, Size: 2, Unordered: true},
		} {
			if name == "order" && (!b.class.Ordered || b.options.Unordered) {
				continue
			}
			o.Unordered = o.Unordered || b.options.Unordered
			other, err := b.network.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			err = connect(d, 1, other.Card())
			names(t, err, 1, "connect", fabric.ErrMismatch)
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
		more := b.class
		more.DataBytes = 12 - more.DataBytes // 8 for 4, 4 for 8
		other, err := fabrictest.New(more, 1).Open(t.Context(), fabric.Options{
			Rank: 1, Size: 2, Unordered: b.options.Unordered,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		for _, err := range []error{connect(d, 1, other.Card()), connect(other, 0, d.Card())} { // both refuse
			if !errors.Is(err, fabric.ErrMismatch) || !strings.Contains(err.Error(), "bytes to the queue") {
				t.Errorf("%d and %d bytes of data: %v", b.class.DataBytes, more.DataBytes, err)
			}
		}
		for _, card := range [][]byte{nil, {1, 2, 3}, d.Card()[:10], append(d.Card(), 0)} {
			if err := connect(d, 1, card); !errors.Is(err, fabric.ErrMismatch) {
				t.Errorf("a card of %d bytes: %v", len(card), err)
			}
		}
	})
}

// TestOptions are refused by name.
func TestOptions(t *testing.T) {
	for _, o := range []fabric.Options{
		{},
		{Size: 1, Rank: 1},
		{Size: 1, Rank: -1},
		{Size: 1025},
		{Size: 1, Signals: -1},
		{Size: 1, Signals: 1<<16 + 1},
		{Size: 1, Timeout: -1},
		{Size: 1, Spin: -1},
	} {
		if _, err := fabric.Open(t.Context(), o); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", fmt.Sprintf("%+v", o), err)
		}
	}
}
