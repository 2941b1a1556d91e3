package tuning

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

func example() *Table {
	return &Table{
		Version: version, Constants: spec.Model{Launch: 2}, Weft: "v1", Date: "2026-11-24",
		Measured: []spec.Measured{
			{Algorithm: "all-reduce/eager", Ranks: 2, Points: []spec.Point{{Bytes: 8, Micros: 1}, {Bytes: 64, Micros: 2}}},
			{Algorithm: "all-reduce/eager", Ranks: 2, InPlace: true, Points: []spec.Point{{Bytes: 8, Micros: 3}}},
		},
	}
}

// TestFile: tables are read as they were written, beside what others keep in the file.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning.json")
	if err := os.WriteFile(path, []byte(`{"rows": [1, 2]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if tables, err := Read(path); len(tables) != 0 || err != nil {
		t.Fatal(tables, err)
	}
	want := map[string]*Table{SharedMemory: example(), "h200-shared": {}}
	if err := Write(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v -want +got:\n%s", err, diff)
	}
	b, err := os.ReadFile(path)
	var members map[string]json.RawMessage
	if err := errors.Join(err, json.Unmarshal(b, &members)); err != nil || members["rows"] == nil {
		t.Errorf("%v: %s", err, b)
	}
	found, ok, err := Find(path, SharedMemory)
	if err != nil || !ok || len(found.Measured) <= 2 || found.Constants.Launch != 2 || found.Weft != "v1" ||
		found.Date != "2026-11-24" || found.Note == Builtin(SharedMemory).Note {
		t.Errorf("%+v, %t, %v", found, ok, err)
	}
	if found.Digest() == Builtin(SharedMemory).Digest() {
		t.Error("both tables have the same digest")
	}
	for _, other := range []string{"h100-nvswitch", "nothing-peers"} {
		if found, ok, err := Find(path, other); ok || err != nil || found != Builtin(other) {
			t.Errorf("%s: %t, %v", other, ok, err)
		}
	}
	if found, ok, err := Find(None, SharedMemory); ok || err != nil || found != Builtin(SharedMemory) {
		t.Errorf("none: %t, %v", ok, err)
	}
}

// TestBadTables: what is wrong is said, with the way out.
func TestBadTables(t *testing.T) {
	measured := func(rows string) string { return `{"version": 1, "measured": [` + rows + `]}` }
	const point = `{"bytes": 2, "us": 1}`
	row := func(points string) string {
		return `{"algorithm": "barrier/x", "ranks": 1, "points": [` + points + `]}`
	}
	for text, want := range map[string]string{
		`{`:                           "unexpected",
		`{}`:                          "version 0",
		`{"version": 1, "launch": 3}`: "unknown field",
		`{"version": 1, "constants": {"push_gbps": -3}}`:         "a constant is -3",
		measured(`{"algorithm": "all-reduction/x", "ranks": 1}`): "no collective",
		measured(`{"algorithm": "barrier/x", "ranks": 0}`):       "want 1 to",
		measured(row("")):                       "no points",
		measured(row(`{"bytes": 0, "us": -1}`)): "-1 us",
		measured(row(point + "," + point)):      "not more than the one before",
		measured(row(point) + "," + row(point)): "two rows",
	} {
		if _, err := Parse("here", []byte(text)); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "weft tune collectives") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		path := filepath.Join(t.TempDir(), "tuning.json")
		if err := os.WriteFile(path, []byte(`{"collectives": {"here": `+text+`}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Find(path, "here"); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s in a file: %v", text, err)
		}
	}
	for _, text := range []string{`null`, `{"collectives": null}`, `{"collectives": {"here": null}}`} {
		path := filepath.Join(t.TempDir(), "tuning.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Find(path, "here"); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s in a file: %v", text, err)
		}
	}
	if err := Write(filepath.Join(t.TempDir(), "x"), map[string]*Table{
		"x": {Measured: []spec.Measured{{}}},
	}); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("a bad table is written: %v", err)
	}
	if _, _, err := Find(filepath.Join(t.TempDir(), "missing"), "x"); !errors.Is(err, weft.ErrInvalid) ||
		!strings.Contains(err.Error(), "Options.Tuning") {
		t.Errorf("a missing file: %v", err)
	}
	t.Setenv("WEFT_TUNING", filepath.Join(t.TempDir(), "missing"))
	if _, _, err := Find("", "x"); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "WEFT_TUNING") {
		t.Errorf("a missing file: %v", err)
	}
}

// FuzzParse reads whatever a file may hold.
func FuzzParse(f *testing.F) {
	text, err := json.Marshal(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"constants":{"hop_us":1e400}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := Parse("here", text)
		if err != nil {
			return
		}
		q := spec.Request{Collective: spec.AllReduce, Ranks: 2, Sent: 100}
		model := table.Over(Builtin(SharedMemory)).Model()
		for _, m := range table.Measured {
			if us, known := (&spec.Algorithm{Name: m.Algorithm}).Estimate(&q, model); known && !(us >= 0) {
				t.Fatalf("%v us", us)
			}
		}
	})
}

func TestDrop(t *testing.T) {
	table := example()
	row := spec.Measured{Algorithm: "all-reduce/eager", Ranks: 2, InPlace: true}
	if !table.Drop(row) || table.Drop(row) || len(table.Measured) != 1 || table.Measured[0].InPlace {
		t.Errorf("%+v", table.Measured)
	}
}

func TestProfiles(t *testing.T) {
	for profile, uses := range map[string]string{
		"h200-nvswitch": "h200-nvswitch", "h200-shared": "shared", "h100-nvswitch": "h100-nvswitch",
		"a100-sxm4-80gb-peers": "h100-nvswitch", "a100-sxm4-80gb-shared": "shared", "-peers": "h100-nvswitch",
	} {
		if Builtin(profile) != builtin[uses] {
			t.Errorf("profile %q does not use the table %s", profile, uses)
		}
	}
}

// TestTimes: between points times are on the line, before the first level, and after the last they go on.
func TestTimes(t *testing.T) {
	table := example()
	a := &spec.Algorithm{Name: "all-reduce/eager"}
	for _, tc := range []struct {
		bytes, ranks int
		w            spec.Windows
		us           float64
		known        bool
	}{
		{0, 2, 0, 1, true},
		{8, 2, 0, 1, true},
		{36, 2, 0, 1.5, true},
		{64, 5, 0, 2, true},
		{120, 2, 0, 3, true},
		{120, 2, spec.InPlace, 3, true},
		{8, 2, spec.InPlace, 3, true},
		{8, 1, 0, 0, false},
	} {
		q := spec.Request{Collective: spec.AllReduce, Ranks: tc.ranks, Sent: tc.bytes, Windows: tc.w}
		if us, known := a.Estimate(&q, table.Model()); us != tc.us || known != tc.known {
			t.Errorf("%+v: %v us, %t", tc, us, known)
		}
	}
}
