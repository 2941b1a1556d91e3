package dl_test

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
)

// TestBind gives snprintf a type of every number of parameters that has room for some, and abs that
// of one.
func TestBind(t *testing.T) {
	snprintf := lookup(t, "snprintf")
	buffer := make([]byte, 64)
	format := func(s string) *byte { return &append([]byte(s), 0)[0] }
	out := func(n int32) string { return string(buffer[:n]) }
	if n := dl.Bind1[int32, int32](lookup(t, "abs"))(-1 << 30); n != 1<<30 {
		t.Errorf("abs: %d", n)
	}
	if n := dl.Bind2[*byte, int32, int32](lookup(t, "strchr"))(format("text"), 'y'); n != 0 {
		t.Errorf("strchr finds what is not there: %d", n)
	}
	if got := out(dl.Bind3[*byte, uint64, *byte, int32](snprintf)(&buffer[0], 64, format("plain"))); got != "plain" {
		t.Errorf("three: %q", got)
	}
	if got := out(dl.Bind4[*byte, uint64, *byte, int8, int32](snprintf)(&buffer[0], 64, format("%hhd"), -3)); got != "-3" {
		t.Errorf("a byte: %q", got)
	}
	if got := out(dl.Bind5[*byte, uint64, *byte, int16, int32, int32](snprintf)(&buffer[0], 64,
		format("%hd %d"), -3, -4)); got != "-3 -4" {
		t.Errorf("a short and an int: %q", got)
	}
	text := format("text")
	got := out(dl.Bind6[*byte, uint64, *byte, *byte, uint64, uint32, int32](snprintf)(&buffer[0], 64,
		format("%s %lu %u"), text, 1<<63, 1<<31))
	if want := fmt.Sprint("text ", uint64(1<<63), " ", uint32(1<<31)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := dl.Word(struct{ p unsafe.Pointer }{unsafe.Pointer(text)}); got != uintptr(unsafe.Pointer(text)) {
		t.Errorf("a struct of one word: %#x", got)
	}
}

// TestBindAllocations: a bound function costs no memory.
func TestBindAllocations(t *testing.T) {
	abs := dl.Bind1[int32, int32](lookup(t, "abs"))
	if n := testing.AllocsPerRun(100, func() { abs(-1) }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
}
