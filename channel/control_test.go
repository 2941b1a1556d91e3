package channel

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

func TestControlAt(t *testing.T) {
	if s := unsafe.Sizeof(Control{}); s != ControlSize {
		t.Errorf("a control takes %d bytes, want %d", s, ControlSize)
	}
	if a, r := unsafe.Offsetof(Control{}.abort), unsafe.Offsetof(Control{}.peer); r-a < Stride {
		t.Error("the abort word, which peers write, shares a line with the record")
	}
	mem, again := twice(t, 2*ControlSize)
	for _, offset := range []int{-8, 1, 4, 63, ControlSize + 1, ControlSize + 8, math.MaxInt} {
		mustPanic(t, fmt.Sprint("offset ", offset), func() { ControlAt(mem, offset) })
	}
	f := Fault{Cause: CauseDied, Rank: 3, Reporter: 1, Generation: 9}
	ControlAt(mem, Stride).Abort(f)
	if got := ControlAt(again, Stride).Fault(); got != f {
		t.Errorf("the other mapping shows %+v, want %+v", got, f)
	}
}

func FuzzFault(f *testing.F) {
	for _, w := range []uint64{
		0, 1, math.MaxUint64, 1 << 56, 1 << 32, 0xFFFF, 0xFFFF0000,
		Fault{Cause: CauseDied, Rank: 7, Reporter: 2, Generation: 1<<generationBits - 1}.word(),
		Fault{Cause: CauseMasked, Rank: -1, Reporter: math.MaxInt16}.word(),
	} {
		f.Add(w, uint64(1))
	}
	f.Fuzz(func(t *testing.T, word, generation uint64) {
		fault := faultOf(word)
		if got := fault.word(); got != word {
			t.Errorf("%#x says %+v, which is %#x", word, fault, got)
		}
		if fault.Older(fault.Generation) || fault.Older(fault.Generation+1<<generationBits) {
			t.Errorf("%+v is older than itself", fault)
		}
		if later := fault.Generation + 1 + generation%(1<<(generationBits-1)-1); !fault.Older(later) {
			t.Errorf("%+v is not older than generation %d", fault, later)
		}
		if earlier := fault.Generation - generation%(1<<(generationBits-1)-1); fault.Older(earlier) {
			t.Errorf("%+v is older than generation %d", fault, earlier)
		}
		err := fault.Err("fuzz")
		if (err == nil) != (fault.Cause == CauseNone) {
			t.Errorf("%+v: %v", fault, err)
		}
		if peer, ok := errors.AsType[*PeerError](err); err != nil && (!ok || peer.Rank != fault.Rank || peer.Op != "fuzz") {
			t.Errorf("%+v: %v", fault, err)
		}
	})
}

func TestFaultErr(t *testing.T) {
	for cause, want := range map[Cause]error{
		CauseDied: ErrDied, CauseTimeout: ErrTimeout, CauseAbort: ErrAborted, CauseLeft: ErrLeft,
		CauseMasked: ErrMasked, 200: ErrAborted,
	} {
		mustBlame(t, Fault{Cause: cause, Rank: 6, Reporter: 1}.Err("all-gather"), "all-gather", 6, want)
	}
	if err := (Fault{Rank: 6}).Err("all-gather"); err != nil {
		t.Errorf("no fault is an error: %v", err)
	}
}

// TestControlAbort: the first fault of a generation stays, a later generation's takes its place,
// and only its own holder's Clear removes it.
func TestControlAbort(t *testing.T) {
	mem, _ := twice(t, ControlSize)
	c := ControlAt(mem, 0)
	fault := func(rank int, generation uint64) Fault {
		return Fault{Cause: CauseDied, Rank: rank, Reporter: 1, Generation: generation}
	}
	const last = 1<<generationBits - 1
	for i, step := range []struct{ set, want Fault }{
		{fault(1, 5), fault(1, 5)},
		{fault(2, 5), fault(1, 5)}, // a consequence of the first
		{fault(2, 4), fault(1, 5)}, // from a rank that was left behind
		{fault(3, 6), fault(3, 6)},
		{fault(4, last), fault(3, 6)}, // just before generation 0, so far behind
		{fault(4, last/2), fault(4, last/2)},
		{fault(5, last), fault(5, last)},
		{fault(6, last+1), fault(6, 0)}, // the number of the generation goes round
		{fault(7, last), fault(6, 0)},
	} {
		if c.Abort(step.set); c.Fault() != step.want {
			t.Errorf("step %d: after %+v the word says %+v, want %+v", i, step.set, c.Fault(), step.want)
		}
	}
	if c.Clear(fault(7, 0)) || c.Fault().Cause == CauseNone {
		t.Error("another fault was cleared than was meant")
	}
	if !c.Clear(fault(6, 0)) || c.Fault() != (Fault{}) {
		t.Errorf("the word still says %+v", c.Fault())
	}
}

// TestControlAbort_together: when many ranks report at once, one of them is heard, by all.
func TestControlAbort_together(t *testing.T) {
	mine, theirs := twice(t, ControlSize)
	for round := range long(300) {
		const ranks = 4
		var seen [ranks]Fault
		var group sync.WaitGroup
		for r := range ranks {
			group.Go(func() {
				c := ControlAt([][]byte{mine, theirs}[r%2], 0)
				c.Abort(Fault{Cause: CauseTimeout, Rank: r, Reporter: r, Generation: uint64(round)})
				seen[r] = c.Fault()
			})
		}
		group.Wait()
		for r := range seen {
			if f := seen[r]; f != seen[0] || f.Cause != CauseTimeout || f.Rank != f.Reporter || f.Generation != uint64(round) {
				t.Fatalf("round %d: the ranks see %+v", round, seen)
			}
		}
	}
}

func TestControlRecord(t *testing.T) {
	mine, theirs := twice(t, ControlSize)
	c, peer := ControlAt(mine, 0), ControlAt(theirs, 0)
	if r := peer.Record(); r.Peer != -1 || r.String() != "not waiting" {
		t.Errorf("fresh memory says %q", r)
	}
	for _, op := range []string{
		"", "x", "combine", "eight888", strings.Repeat("y", 23),
		strings.Repeat("z", 24), strings.Repeat("w", 60),
	} {
		r := Record{Op: op, Peer: 5, Expected: math.MaxUint64, Seen: 1 << 40, Message: len(op)%2 == 1}
		c.setRecord(r)
		want := r
		want.Op = op[:min(len(op), 24)]
		if d := cmp.Diff(want, peer.Record()); d != "" {
			t.Errorf("%q (-want +got):\n%s", op, d)
		}
	}
	c.setRecord(Record{Op: "dispatch", Expected: 8, Seen: 7})
	if got, want := peer.Record().String(), "dispatch waits for rank 0: expected 8, seen 7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if c.clearRecord(); peer.Record().Peer != -1 {
		t.Errorf("after the wait: %v", peer.Record())
	}
}
