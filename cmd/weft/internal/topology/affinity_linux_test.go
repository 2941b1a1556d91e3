package topology

import (
	"runtime"
	"slices"
	"testing"
)

func TestPin(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := Allowed()
	if err != nil || len(before) == 0 {
		t.Fatalf("Allowed() = %v, %v", before, err)
	}
	defer func() {
		if err := Pin(before); err != nil {
			t.Error(err)
		}
	}()
	last := before[len(before)-1:]
	if err := Pin(last); err != nil {
		t.Fatal(err)
	}
	if now, err := Allowed(); err != nil || !slices.Equal(now, last) {
		t.Errorf("pinned to %v, now %v, %v", last, now, err)
	}
}
