package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRanksDie has ranks gather notes over a fabric while some give up and some die at random. The
// living go on, and end with the same decision.
func TestRanksDie(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 6).Draw(t, "ranks")
		f := newFabric(ranks, rapid.Uint64().Draw(t, "seed"), 2*time.Second)
		defer f.close()
		gathers := rapid.IntRange(1, 12).Draw(t, "gathers")
		aborts := rapid.SliceOfN(rapid.IntRange(0, 20), ranks, ranks).Draw(t, "aborts")
		deaths := rapid.SliceOfNDistinct(rapid.IntRange(0, ranks-1), 0, ranks-1, rapid.ID).Draw(t, "deaths")
		var all sync.WaitGroup
		for _, r := range deaths {
			after := time.Duration(rapid.IntRange(0, 15000).Draw(t, "after")) * time.Microsecond
			all.Go(func() {
				time.Sleep(after)
				f.nodes[r].die()
			})
		}
		errs := make([]error, ranks)
		for r, n := range f.nodes {
			all.Go(func() { errs[r] = n.work(gathers, aborts[r]) })
		}
		all.Wait()
		for r, err := range errs {
			if err != nil && !f.nodes[r].killed.Load() {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		f.check(t)
	})
}

// work gathers until all have done so many times, gives up once after some, and goes on without
// those that died.
func (n *node) work(gathers, abort int) error {
	for done := uint64(0); n.ctx.Err() == nil; {
		note := binary.LittleEndian.AppendUint64(nil, done)
		note = binary.LittleEndian.AppendUint64(note, n.Generation())
		notes, err := n.gatherNotes(append(note, byte(n.rank)))
		if err != nil {
			if err := n.goOn(n.died.Load); err != nil {
				return fmt.Errorf("set mask: %w", err)
			}
			continue
		}
		all := true
		for r, note := range notes {
			if n.Masked(r) != (note == nil) {
				return fmt.Errorf("rank %d's note is %v, masked %v", r, note, n.Mask())
			}
			if note == nil {
				continue
			}
			if len(note) != 17 || int(note[16]) != r || binary.LittleEndian.Uint64(note[8:]) != n.Generation() {
				return fmt.Errorf("rank %d's note is %v in generation %d", r, note, n.Generation())
			}
			all = all && binary.LittleEndian.Uint64(note) >= uint64(gathers)
		}
		if done++; done == uint64(abort) {
			n.Tell(channel.Fault{Cause: channel.CauseAbort, Rank: n.rank})
		} else if all && n.awaitAll() {
			return nil
		}
	}
	return n.ctx.Err()
}

// TestSidesOverFabric lets living sides leave each other out at once, over a fabric. At most one of
// disjoint sides goes on, and then all go on together.
func TestSidesOverFabric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 6).Draw(t, "ranks")
		side := rapid.SliceOfN(rapid.IntRange(0, 2), ranks, ranks).Draw(t, "sides")
		f := newFabric(ranks, rapid.Uint64().Draw(t, "seed"), time.Second)
		defer f.close()
		errs := f.each(func(n *node) error {
			var out rankset.Set
			for r := range side {
				if side[r] != side[n.rank] {
					out = out.With(r)
				}
			}
			return n.SetMask(n.ctx, "test mask", out, nil)
		})
		on := map[int]bool{}
		for r, err := range errs {
			if err == nil {
				on[side[r]] = true
			}
		}
		if len(on) > 1 {
			t.Errorf("sides of %v go on: %v", side, on)
		}
		for r, err := range f.each(func(n *node) error { return n.goOn(func() rankset.Set { return rankset.Set{} }) }) {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		f.check(t)
	})
}

// each does something on all ranks at once.
func (f *fabric) each(do func(n *node) error) []error {
	var all sync.WaitGroup
	errs := make([]error, len(f.nodes))
	for r, n := range f.nodes {
		all.Go(func() { errs[r] = do(n) })
	}
	all.Wait()
	return errs
}

// TestNoteWhileWritten reads notes of a view in which they are written meanwhile, as a rank does that the others have
// gone on without. What it reads is not whole then, but no race: run it with the race detector.
func TestNoteWhileWritten(t *testing.T) {
	view := make([]byte, PageSize)
	var all sync.WaitGroup
	all.Go(func() {
		for round := uint64(1); round < 2000; round++ {
			note := bytes.Repeat([]byte{byte(round)}, int(round)%(NoteSize+1))
			if err := SetPart(view, Notes, append(le.AppendUint64(nil, round), note...)); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	})
	all.Go(func() {
		p := pageAt(view)
		for p.notes.round.Load() < 1999 {
			if note, ok := p.notes.half[0].get(); !ok || len(note) > NoteSize {
				t.Errorf("a note of %d bytes", len(note))
			}
		}
	})
	all.Wait()
	p := pageAt(view)
	if note, ok := p.notes.half[1].get(); !ok || !bytes.Equal(note, bytes.Repeat([]byte{207}, 974)) {
		t.Errorf("the last note is %d bytes: %v", len(note), note[:min(1, len(note))])
	}
	p.notes.half[0].len.Store(NoteSize + 1)
	if _, ok := p.notes.half[0].get(); ok {
		t.Error("a note that is too long is taken")
	}
}

// TestMasksInTurn calls SetMask again and again without anything between, on ranks that see each
// other late.
func TestMasksInTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 5).Draw(t, "ranks")
		f := newFabric(ranks, rapid.Uint64().Draw(t, "seed"), 2*time.Second)
		defer f.close()
		for range 5 {
			for r, err := range f.each(func(n *node) error {
				return errors.Join(n.SetMask(n.ctx, "test mask", rankset.Set{}, nil),
					n.SetMask(n.ctx, "test mask", rankset.Set{}, nil))
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			f.check(t)
		}
	})
}
