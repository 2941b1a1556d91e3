package collective

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
)

// TestTuning: a group goes by the table of its profile, and ranks that find different ones make no group.
func TestTuning(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, us float64) string {
		path := filepath.Join(dir, name)
		if err := tuning.Write(path, map[string]*tuning.Table{tuning.SharedMemory: {
			Date: "2026-11-24", Measured: []spec.Measured{
				{Algorithm: "all-reduce/pipeline", Ranks: 2, Points: []spec.Point{{Bytes: 8, Micros: us}}},
			},
		}}); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, broken := file("one", 0.01), file("two", 0.02), filepath.Join(dir, "broken")
	const text = `{"collectives": {"shared-memory": {"version": 1, "note": 3}}}`
	if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	j := newJob(t, 2)
	for name, want := range map[string]string{"none": "all-reduce/eager", one: "all-reduce/pipeline"} {
		groups := j.group(t, Options{Tuning: name})
		j.must(t, func(ctx context.Context, r int) error {
			x := []int32{1, 2}
			err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum)
			if got := groups[r].Algorithm(); got != want || groups[r].Profile() != tuning.SharedMemory {
				err = errors.Join(err, fmt.Errorf("%s of profile %s, want %s", got, groups[r].Profile(), want))
			}
			return err
		})
	}
	for _, tc := range []struct {
		files [2]string
		kind  error
		words string
	}{
		{[2]string{one, two}, weft.ErrMismatch, "tuning profile shared-memory, table "},
		{[2]string{"none", one}, weft.ErrMismatch, "the library's table"},
		{[2]string{one, broken}, weft.ErrInvalid, broken},
		{[2]string{filepath.Join(dir, "missing"), one}, weft.ErrInvalid, "does not exist"},
	} {
		for r, err := range j.each(t, func(ctx context.Context, r int) error {
			_, err := New(ctx, j.comms[r], Options{Tuning: tc.files[r]})
			return err
		}) {
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("%q, rank %d: %v", tc.files, r, err)
			}
		}
	}
}
