package engine

import "testing"

func TestBuffersAreTakenOnce(t *testing.T) {
	b := NewBuffers(2)
	if i, ok := b.Take(); !ok || i != 0 {
		t.Fatalf("buffer %d, %v", i, ok)
	}
	if b.TakeAt(0) || !b.TakeAt(1) || b.TakeAt(1) {
		t.Error("a buffer was taken twice, or a free one was not")
	}
	if i, ok := b.Take(); ok {
		t.Errorf("buffer %d of two that are taken", i)
	}
	b.Put(0)
	if b.Held(0) || !b.Held(1) || !b.AnyHeld() {
		t.Error("the first is free, the second held")
	}
	b.Put(1)
	if b.AnyHeld() {
		t.Error("all are free")
	}
}

// TestBuffersKnowWhatTheyHold: memory of a buffer is known for its batch and its generation, also
// where it was before.
func TestBuffersKnowWhatTheyHold(t *testing.T) {
	const size, base, before = 100, 1000, 5000
	b := NewBuffers(2)
	b.Locate(size, base, before)
	if !b.TakeAt(1) {
		t.Fatal("not free")
	}
	first := b.Fill(1, 7)
	for _, c := range []struct {
		from, bytes uintptr
		batch       uint64
		generation  uint32
		want        Content
	}{
		{base + size, size, 7, 0, Right},
		{base + size, size, 7, first, Right},
		{base + size, size, 7, first + 1, Later},
		{base + size, size, 7, NoGeneration, Later},
		{base + size, size, 8, first, Foreign},
		{base + size + 99, 1, 8, 0, Foreign},
		{base + size - 1, 2, 7, 0, Released}, // a part of the first, which is free
		{base, 1, 7, 0, Released},
		{base - 10, 10, 7, 0, None}, // before them
		{base + 2*size, 10, 8, 0, None},
		{base + size, 0, 8, 0, None}, // nothing
		{before + size, size, 8, 0, Foreign},
	} {
		if got := b.Check(c.from, c.bytes, c.batch, c.generation); got != c.want {
			t.Errorf("%d bytes at %d of batch %d, generation %d: %d, want %d", c.bytes, c.from, c.batch,
				c.generation, got, c.want)
		}
	}
	b.Put(1)
	if got := b.Check(base+size, size, 7, first); got != Released {
		t.Errorf("put back: %d", got)
	}
	if !b.TakeAt(1) {
		t.Fatal("not free")
	}
	if got := b.Check(base+size, size, noBatch-1, 0); got != Foreign {
		t.Errorf("taken and not filled: %d", got)
	}
	if again := b.Fill(1, 7); again == first || b.Check(base+size, size, 7, first) != Later {
		t.Errorf("generations %d and %d of one batch are not told apart", first, again)
	}
}

// TestShelfKnowsBuffersOfOthers: memory of another owner's buffers is known, for as long as they
// are on the shelf.
func TestShelfKnowsBuffersOfOthers(t *testing.T) {
	var s Shelf
	own, other := NewBuffers(1), NewBuffers(2)
	own.Locate(100, 1000)
	other.Locate(100, 5000)
	if got := s.Check(own, 5000, 1); got != None {
		t.Errorf("an empty shelf: %d", got)
	}
	s.Add(own)
	s.Add(other)
	if !other.TakeAt(1) {
		t.Fatal("not free")
	}
	for _, c := range []struct {
		from, bytes uintptr
		want        Content
	}{
		{5000, 100, Released},
		{5100, 100, Foreign},
		{5099, 2, Released},
		{5199, 9, Foreign},
		{5200, 1, None},
		{4999, 1, None},
		{5100, 0, None},
		{1000, 100, None},
	} {
		if got := s.Check(own, c.from, c.bytes); got != c.want {
			t.Errorf("%d bytes at %d: %d, want %d", c.bytes, c.from, got, c.want)
		}
	}
	if n := testing.AllocsPerRun(10, func() { s.Check(own, 9000, 1) }); n > 0 {
		t.Errorf("a look allocates %v times", n)
	}
	s.Remove(other)
	s.Remove(other)
	if got := s.Check(own, 5100, 100); got != None {
		t.Errorf("off the shelf: %d", got)
	}
}

func TestBuffersSkipNoGeneration(t *testing.T) {
	b := NewBuffers(1)
	b.last = NoGeneration - 1
	if !b.TakeAt(0) || b.Fill(0, 1) != 1 {
		t.Error("the generation after the last is 1")
	}
}
