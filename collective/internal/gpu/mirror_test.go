package gpu

import (
	"strings"
	"testing"

	"github.com/weftgo/weft"
)

// TestMirrored: a rank's record of a difference gives the words of the peer's own record.
func TestMirrored(t *testing.T) {
	a := weft.TensorOf(make([]float32, 3))
	b := weft.TensorOf(make([]int32, 4))
	const receives = 1 << wordBits
	for _, tt := range []struct {
		name         string
		theirs, ours [2]uint64 // of both ranks
	}{
		{"messages", [2]uint64{wordOf(&b), wordOf(&a)}, [2]uint64{wordOf(&a), wordOf(&b) | receives}},
		{"counts", [2]uint64{5, 7}, [2]uint64{otherSent<<aboutBit | 7, otherExpected<<aboutBit | 5}},
	} {
		for r := range 2 {
			want := mismatch(tt.theirs[1-r], tt.ours[1-r])
			if got := mismatch(mirrored(tt.theirs[r], tt.ours[r])); got != want || !strings.Contains(got, "this rank") {
				t.Errorf("%s, rank %d: %q, want %q", tt.name, r, got, want)
			}
		}
	}
}
