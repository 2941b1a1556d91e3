package gpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/occupancy"
)

// testAccount is the account of a GPU of 4 SMs, which must be empty in the end.
func testAccount(t *testing.T) *account {
	t.Helper()
	a := &account{accountKey: accountKey{bus: t.Name()}, gpu: occupancy.GPU{SMs: 4, Blocks: 16}}
	t.Cleanup(func() {
		accounts.Lock()
		defer accounts.Unlock()
		if _, ok := accounts.claims[a.accountKey]; ok {
			t.Error("an account that nobody has taken anything from")
		}
	})
	return a
}

// takeOne takes room until the test ends.
func takeOne(t *testing.T, a *account, c occupancy.Claim) {
	t.Helper()
	if err := a.take(&c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.release(&c) })
}

func TestAccountRefusesMoreThanThereIs(t *testing.T) {
	a := testAccount(t)
	if err := a.take(&occupancy.Claim{Cost: 1024, Blocks: 5}); !errors.Is(err, weft.ErrUnsupported) ||
		!strings.Contains(err.Error(), "room for 4 beside the 0") {
		t.Errorf("5 blocks of whole SMs on 4: %v", err)
	}
	takeOne(t, a, occupancy.Claim{Cost: 512, Blocks: 3})
	takeOne(t, a, occupancy.Claim{Cost: 256, Blocks: 4})
	if err := a.take(&occupancy.Claim{Cost: 64, Blocks: 1}); !errors.Is(err, weft.ErrUnsupported) ||
		!strings.Contains(err.Error(), "room for 0 beside the 7") {
		t.Errorf("with nothing left: %v", err)
	}
}

func TestAccountsArePerGPU(t *testing.T) {
	a := testAccount(t)
	takeOne(t, a, occupancy.Claim{Cost: 1024, Blocks: 4})
	other := &account{accountKey: accountKey{bus: "another"}, gpu: a.gpu}
	if got := other.room(1024, nil); got != 4 {
		t.Errorf("room for %d blocks on the other GPU, want 4", got)
	}
}

// TestSerialGroupKeepsItsRoom: another owner of the group has as much as the one before, and in its
// errors the group's own blocks do not count.
func TestSerialGroupKeepsItsRoom(t *testing.T) {
	a := testAccount(t)
	takeOne(t, a, occupancy.Claim{Cost: 1024, Blocks: 3, Serial: 1})
	if got := a.held(1024, 1); got != 3 {
		t.Errorf("%d blocks held, want 3", got)
	}
	if got := a.held(1024, nil); got != 0 {
		t.Errorf("%d blocks held outside of any group, want 0", got)
	}
	if got := a.held(512, 1); got != 3 {
		t.Errorf("%d lighter blocks held, want 3", got)
	}
	b := &account{accountKey: accountKey{bus: t.Name() + " beside"}, gpu: a.gpu}
	takeOne(t, b, occupancy.Claim{Cost: 512, Blocks: 4, Serial: 1})
	if got := b.held(1024, 1); got != 0 {
		t.Errorf("%d heavier blocks held, want 0", got)
	}
	takeOne(t, a, occupancy.Claim{Cost: 1024, Blocks: 1})
	err := a.take(&occupancy.Claim{Cost: 1024, Blocks: 4, Serial: 1})
	if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "room for 3 beside the 1 ") {
		t.Errorf("more than there is: %v", err)
	}
}

// TestBeside: room beside another one is a part of it, and of its serial group; other room is apart.
func TestBeside(t *testing.T) {
	first, second := &Room{}, &Room{}
	beside := &Room{want: Want{Beside: first}}
	if first.serial() == second.serial() || beside.serial() != first.serial() {
		t.Error("rooms of two owners share, or those of one do not")
	}
	a := testAccount(t)
	takeOne(t, a, occupancy.Claim{Cost: 256, Blocks: 12, Serial: first.serial()})
	if got := a.room(256, second.serial()); got != 4 {
		t.Errorf("room for %d blocks of another owner, want 4", got)
	}
	takeOne(t, a, occupancy.Claim{Cost: 256, Blocks: 10, Serial: beside.serial()})
	if got := a.room(256, second.serial()); got != 4 {
		t.Errorf("room for %d blocks of another owner after the one has taken its own twice, want 4", got)
	}
}
