package dl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weftgo/weft/internal/dl"
)

// TestCallStruct passes a struct by value to a function that a C compiler made.
func TestCallStruct(t *testing.T) {
	libc(t)
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "by_value.c"), filepath.Join(dir, "libbyvalue.so")
	text := `struct handle { unsigned char bytes[64]; };
unsigned long check(unsigned long a, struct handle h, unsigned long b) {
	unsigned long sum = a * 1000003 + b;
	for (int i = 0; i < 64; i++) sum = sum * 31 + h.bytes[i];
	h.bytes[0] = 0;
	return sum;
}`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-O1", "-o", library,
		source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	l, err := dl.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	check, err := l.Lookup("check")
	if err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, 8)
	want := uint64(7*1000003 + 9)
	for i := range 64 {
		b := byte(i*37 + 1)
		words[i/8] |= uint64(b) << (i % 8 * 8)
		want = want*31 + uint64(b)
	}
	before := words[0]
	if got := uint64(check.CallStruct(7, words, 9)); got != want {
		t.Errorf("C saw %#x, want %#x", got, want)
	}
	if words[0] != before {
		t.Error("C wrote to the caller's struct")
	}
}
