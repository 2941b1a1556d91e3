package ep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// TuningTable is what "weft tune ep" has found out about machines, and where handles on GPUs look
// for how to work.
//
// It is a file of JSON: the one that WEFT_TUNING names, or else weft/tuning.json in the user's
// cache directory, if that is there. WEFT_TUNING=none is no table. Every rank reads its own, and
// all must find the same.
type TuningTable struct {
	Version int         `json:"version"` // tableVersion
	Rows    []TuningRow `json:"rows"`
}

// tableVersion changes when what kernels do with a Tuning does.
const tableVersion = 2

// What WEFT_TUNING says: a file, or that there is to be no table.
const (
	tuningVariable = "WEFT_TUNING"
	noTable        = "none"
)

// TuningRow is what was found for one kind of handle on one kind of machine.
type TuningRow struct {
	Hardware Hardware    `json:"hardware"`
	Kind     HandleKind  `json:"kind"`
	Tuning   spec.Tuning `json:"tuning"`

	Dispatch Gain   `json:"dispatch,omitzero"` // what it gains
	Combine  Gain   `json:"combine,omitzero"`
	Weft     string `json:"weft"` // the version that measured
	Date     string `json:"date"` // of the day
}

// Gain is how long an operation took in a graph, in microseconds: as Weft would do it of itself,
// and tuned.
type Gain struct {
	Chosen float64 `json:"chosen_us"`
	Tuned  float64 `json:"tuned_us"`
}

// Hardware is what a row holds for.
type Hardware struct {
	GPU   string `json:"gpu"` // as the driver names it
	SMs   int    `json:"sms"` // that it has
	Ranks int    `json:"ranks"`
}

// HandleKind is what handles a row holds for: those of MaxTokens tokens, and of fewer, if more than
// half of that.
type HandleKind struct {
	Layout    string `json:"layout"`
	Payload   string `json:"payload"`
	Quantize  string `json:"quantize,omitempty"`
	Scales    string `json:"scales,omitempty"` // their order, where it is not that of rows
	Output    string `json:"output,omitempty"`
	Reduction string `json:"reduction,omitempty"` // of rows by expert
	Hidden    int    `json:"hidden"`
	TopK      int    `json:"topk"`
	MaxTokens int    `json:"max_tokens"`
	SMs       int    `json:"sms"` // that the Spec asks for
}

// HandleKindOf is the kind of the handles of a Spec.
func HandleKindOf(s spec.Spec) HandleKind {
	s = s.Normalize()
	k := HandleKind{
		Layout: s.Layout.String(), Payload: s.Payload.String(), Hidden: s.Hidden, TopK: s.TopK,
		MaxTokens: s.MaxTokens, SMs: s.SMs,
	}
	if s.Quantize != weft.InvalidDType {
		k.Quantize = s.Quantize.String()
	}
	if s.ScaleOrder != spec.RowMajorScales { // which other kernels write
		k.Scales = s.ScaleOrder.String()
	}
	if s.Combines() {
		k.Output = s.Output.String()
		if s.Layout.ByExpert() {
			k.Reduction = min(s.Reduction, spec.Partial).String() // the order of sums costs nothing
		}
	}
	return k
}

// TuningPath is where handles look for the table, or empty if they are to look nowhere.
func TuningPath() (string, error) {
	switch path := os.Getenv(tuningVariable); path {
	case noTable:
		return "", nil
	case "":
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", nil // who has no home has no table either
		}
		return filepath.Join(dir, "weft", "tuning.json"), nil
	default:
		return filepath.Abs(path)
	}
}

// ReadTuningTable reads a table. A file that is not there is a table without rows, as is one of
// another version, which it keeps.
func ReadTuningTable(path string) (*TuningTable, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &TuningTable{Version: tableVersion}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tuning: %w", err)
	}
	t := &TuningTable{}
	if err := json.Unmarshal(b, t); err != nil {
		return nil, weft.Invalidf("tuning: %s is no table (%v): remove it, and let \"weft tune ep\" write another", path, err)
	}
	if t.Version != tableVersion {
		t.Rows = nil // of another Weft's kernels, which say nothing of these
	}
	return t, nil
}

// Write replaces the file, which others may read, or the one that a link leads to.
func (t *TuningTable) Write(path string) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	t.Version = tableVersion
	b, err := json.MarshalIndent(t, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("tuning: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tuning-*")
	if err != nil {
		return fmt.Errorf("tuning: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("tuning: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// Drop forgets what is known of handles on a machine.
func (t *TuningTable) Drop(h Hardware, k HandleKind) {
	t.Rows = slices.DeleteFunc(t.Rows, func(r TuningRow) bool { return r.Hardware == h && r.Kind == k })
}

// Put takes a row in, in the place of what was known of the same handles on the same machine.
func (t *TuningTable) Put(r TuningRow) {
	for i, old := range t.Rows {
		if old.Hardware == r.Hardware && old.Kind == r.Kind {
			t.Rows[i] = r
			return
		}
	}
	t.Rows = append(t.Rows, r)
}

// Find gives the row for handles of a kind: that of the fewest tokens, of as many or less than
// twice as many. Nil: there is none.
func (t *TuningTable) Find(h Hardware, k HandleKind) *TuningRow {
	var best *TuningRow
	for i := range t.Rows {
		r := &t.Rows[i]
		tokens := r.Kind.MaxTokens
		same := r.Kind
		same.MaxTokens = k.MaxTokens
		if r.Hardware == h && same == k && tokens >= k.MaxTokens && tokens < 2*k.MaxTokens &&
			(best == nil || tokens < best.Kind.MaxTokens) {
			best = r
		}
	}
	return best
}

// tuned is the Spec with what the table says, where the caller says nothing.
func tuned(s spec.Spec, comm *weft.Comm) (spec.Spec, error) {
	if s.Tuning != (spec.Tuning{}) {
		return s, nil
	}
	path, err := TuningPath()
	if path == "" || err != nil {
		return s, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if os.Getenv(tuningVariable) != "" {
			return s, weft.Invalidf("%s names %s, which is not there: write it with \"weft tune ep\", or "+
				"leave the variable empty", tuningVariable, path)
		}
		return s, nil
	}
	table, err := ReadTuningTable(path)
	if err == nil && table.Version != tableVersion && os.Getenv(tuningVariable) != "" {
		err = weft.Invalidf("%s names %s, a table of version %d, and these kernels have %d: write it anew "+
			"with \"weft tune ep\", or leave the variable empty",
			tuningVariable, path, table.Version, tableVersion)
	}
	if err != nil || len(table.Rows) == 0 {
		return s, err
	}
	h, err := HardwareOf(comm)
	if err != nil {
		return s, err
	}
	r := table.Find(h, HandleKindOf(s))
	if r == nil {
		return s, nil
	}
	with := s
	with.Tuning = r.Tuning
	if s.Layout == spec.RankMajor && r.Tuning.Dispatch.Protocol == spec.FlagProtocol {
		return s, nil // then rows have to be released in turn ([Spec.Live]), which is no table's to ask
	}
	if with.ValidateTuning(spec.GPUEngine, comm.Size()) != nil {
		// what more tokens may have, threads for example, fewer may not: a table must not keep a
		// handle from being made
		return s, nil
	}
	return with, nil
}

// HardwareOf is what the rows for a communicator on GPUs have to hold for.
func HardwareOf(comm *weft.Comm) (Hardware, error) {
	d := comm.Device()
	name, err := d.Context().Device().Name()
	return Hardware{GPU: name, SMs: d.SMs(), Ranks: comm.Size()}, err
}
