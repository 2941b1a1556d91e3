package shm

import "testing"

// TestAlias: an alias shows the region's memory, until it is retired; then what is written there goes nowhere.
func TestAlias(t *testing.T) {
	for _, huge := range []HugeMode{HugeOff, HugeAuto} {
		r := create(t, 5<<20, Options{Huge: huge, Populate: true})
		a, err := r.Alias()
		if err != nil {
			t.Fatal(err)
		}
		near, far := r.Bytes(), a.Bytes()
		if len(far) != len(near) || &near[0] == &far[0] {
			t.Fatalf("%d bytes in place of %d", len(far), len(near))
		}
		far[len(far)-1], near[0] = 7, 9
		if near[len(near)-1] != 7 || far[0] != 9 {
			t.Error("they show different memory")
		}
		if err := a.Retire(); err != nil {
			t.Fatal(err)
		}
		if far[0] = 1; near[0] != 9 || near[len(near)-1] != 7 {
			t.Error("a retired alias reaches the memory")
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		release(t, r)
	}
}
