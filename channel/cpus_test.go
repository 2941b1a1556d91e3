package channel

import (
	"bytes"
	"testing"
)

func set(cpus ...int) (s CPUs) {
	for _, c := range cpus {
		s[c/64] |= 1 << uint(c%64)
	}
	return s
}

func TestCPUs(t *testing.T) {
	s := set(0, 63, 64, 1023)
	if s.Count() != 4 {
		t.Errorf("%d processors in a set of 4", s.Count())
	}
	s.Add(set(63, 65))
	if want := set(0, 63, 64, 65, 1023); s != want || s.Count() != 5 {
		t.Errorf("the union is %x, want %x", s, want)
	}
	s.Add(CPUs{})
	if s.Count() != 5 {
		t.Error("nothing added something")
	}
	var none CPUs
	if none.Count() != 0 {
		t.Error("the empty set is not empty")
	}
}

func TestFirstCPUs(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 1023, 1024, 5000} {
		s := firstCPUs(n)
		if want := min(n, 1024); s.Count() != want {
			t.Errorf("%d processors are a set of %d", n, s.Count())
		}
		for c := range 1024 {
			if in := s[c/64]>>uint(c%64)&1 != 0; in != (c < n) {
				t.Fatalf("of the first %d processors, %d: %t", n, c, in)
			}
		}
	}
}

func TestAffinity(t *testing.T) {
	if s := Affinity(); s.Count() == 0 {
		t.Error("this process may run nowhere")
	}
}

// TestCPUs_encoding: processor 0 is the lowest bit of the first byte, on every machine.
func TestCPUs_encoding(t *testing.T) {
	s := set(0, 9, 1023)
	b := s.Append([]byte("head"))
	want := make([]byte, 4+CPUBytes)
	copy(want, "head")
	want[4], want[5], want[len(want)-1] = 1, 2, 0x80
	if !bytes.Equal(b, want) {
		t.Errorf("encoded as %x", b)
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []CPUs{{}, set(0), set(1023), firstCPUs(96), firstCPUs(1024)} {
		f.Add(s.Append(nil))
		f.Add(append(s.Append(nil), "more"...))
		f.Add(s.Append(nil)[:CPUBytes-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < CPUBytes {
			mustPanic(t, "a set that is cut short", func() { ParseCPUs(b) })
			return
		}
		s := ParseCPUs(b)
		if got := s.Append(nil); !bytes.Equal(got, b[:CPUBytes]) {
			t.Errorf("%x parses to %x", b, got)
		}
		n := 0
		for _, v := range b[:CPUBytes] {
			for ; v != 0; v &= v - 1 {
				n++
			}
		}
		if s.Count() != n {
			t.Errorf("%d processors, want %d", s.Count(), n)
		}
	})
}
