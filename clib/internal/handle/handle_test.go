package handle_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/weftgo/weft/clib/internal/handle"
)

func TestTable(t *testing.T) {
	table := handle.NewTable[int](handle.EP)
	objects := make([]int, 100)
	ids := make([]uint64, len(objects))
	for i := range objects {
		id, err := table.Add(&objects[i], new(sync.Mutex))
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = id
	}
	for i, id := range ids {
		if got, err := table.Get(id); err != nil || got != &objects[i] {
			t.Fatalf("handle %d: %p, %v; want %p", i, got, err, &objects[i])
		}
	}
	n := 0
	for range table.All() {
		n++
	}
	if n != len(objects) {
		t.Errorf("%d handles in all, want %d", n, len(objects))
	}

	if !table.Remove(ids[7]) || table.Remove(ids[7]) {
		t.Error("a handle is removed once")
	}
	again, err := table.Add(&objects[8], new(sync.Mutex))
	if err != nil || again == ids[7] {
		t.Fatalf("handle %#x again (%v)", again, err)
	}
	refused := func(id uint64, words string) {
		t.Helper()
		_, err := table.Get(id)
		if !errors.Is(err, handle.ErrInvalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("handle %#x: %v; want %q", id, err, words)
		}
	}
	refused(ids[7], "destroyed or released before")
	refused(0, "is NULL")
	refused(0x7f0012345678, "no weft_ep of this library")
	refused(^uint64(0), "no weft_ep of this library")
	other := handle.NewTable[int](handle.Window)
	id, err := other.Add(&objects[0], new(sync.Mutex))
	if err != nil {
		t.Fatal(err)
	}
	refused(id, "is a weft_window where a weft_ep belongs")
}

func TestTableFull(t *testing.T) {
	table := handle.NewTable[int](handle.Work)
	ids := map[uint64]bool{}
	for range handle.Max {
		id, err := table.Add(new(int), nil)
		if err != nil {
			t.Fatal(err)
		}
		ids[id] = true
	}
	if len(ids) != handle.Max {
		t.Errorf("%d different handles of %d", len(ids), handle.Max)
	}
	if _, err := table.Add(new(int), nil); !errors.Is(err, handle.ErrFull) {
		t.Errorf("one more: %v", err)
	}
	for id := range ids {
		table.Remove(id)
		break
	}
	if _, err := table.Add(new(int), nil); err != nil {
		t.Errorf("after a removal: %v", err)
	}
}

// Any number may be looked up while handles come and go; what is found is what the number stood
// for.
func TestTableConcurrently(t *testing.T) {
	table := handle.NewTable[uint64](handle.Received)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				object := new(uint64)
				id, err := table.Add(object, new(sync.Mutex))
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := table.Get(id); err != nil || got != object {
					t.Errorf("another's object, or none: %v", err)
				}
				_, _ = table.Get(id ^ 1)
				if !table.Remove(id) {
					t.Error("was not open")
				}
				if _, err := table.Get(id); err == nil {
					t.Error("found after its removal")
				}
			}
		})
	}
	all.Wait()
}

func TestEnter(t *testing.T) {
	table := handle.NewTable[int](handle.Routing)
	var gate sync.Mutex
	first, second := new(int), new(int)
	ids := [2]uint64{}
	for i, o := range []*int{first, second} {
		id, err := table.Add(o, &gate)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = id
	}
	o, held, err := table.Enter(ids[0])
	if err != nil || o != first || held != &gate {
		t.Fatalf("%p behind %p, %v", o, held, err)
	}
	if _, _, err := table.Enter(ids[1]); !errors.Is(err, handle.ErrBusy) ||
		!strings.Contains(err.Error(), "weft_routing") {
		t.Errorf("an object behind the same gate: %v", err)
	}
	held.Unlock()
	if o, _, err := table.Enter(ids[1]); err != nil || o != second {
		t.Errorf("%p, %v once the gate is free", o, err)
	}
	table.Remove(ids[1])
	gate.Unlock()
	if _, _, err := table.Enter(ids[1]); !errors.Is(err, handle.ErrInvalid) {
		t.Errorf("after its removal: %v", err)
	}
	if !gate.TryLock() {
		t.Error("a refusal left the gate locked")
	}
}
