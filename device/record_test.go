package device_test

import (
	"fmt"
	"testing"

	"github.com/weftgo/weft/device"
)

// TestWords: a record is worded by its lane, and has words of its own where there is none.
func TestWords(t *testing.T) {
	w := &device.Words{
		Operation: func(op uint32) string { return map[uint32]string{3: "scatter"}[op] },
		Mismatch:  func(theirs, ours uint64) string { return fmt.Sprintf("%d, not %d", theirs, ours) },
	}
	r := device.Record{Op: 3, Expected: 5, Seen: 9}
	mirror := func(theirs, ours uint64) (uint64, uint64) { return ours, theirs }
	unknown := device.Record{Op: 4}
	for _, tt := range []struct{ got, want string }{
		{r.OperationName(w), "scatter"},
		{r.MismatchText(w), "9, not 5"},
		{unknown.OperationName(w), "device operation"},
		{r.OperationName(nil), "device operation"},
		{r.OperationName(&device.Words{}), "device operation"},
		{r.PeerText(w), ""},
		{r.PeerText(nil), ""},
		{r.PeerText(&device.Words{Mismatch: w.Mismatch, Mirror: mirror}), "5, not 9"},
		{r.MismatchText(nil), "its call has the tag 0x9, this rank's 0x5"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
	w.Message = func(op uint32) bool { return op == 3 }
	if !r.IsMessage(w) || unknown.IsMessage(w) || r.IsMessage(nil) || r.IsMessage(&device.Words{}) {
		t.Error("whether a record is of a message is not what its lane says")
	}
}
