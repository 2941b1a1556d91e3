package ep

import (
	"encoding/json"
	"os"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/tuningfile"
)

// TuningTable holds the results of "weft tune ep" for kinds of machines and handles. Handles on
// GPUs take their Tuning from it if their Spec has none.
//
// It is in a JSON file: the one that WEFT_TUNING names, or else weft/tuning.json in the user's cache
// directory, if that exists. WEFT_TUNING=none is no table. Every rank reads its own file, and all
// must find the same row.
type TuningTable struct {
	Version int         `json:"version"` // tableVersion
	Rows    []TuningRow `json:"rows"`
}

// tableVersion changes when kernels interpret a Tuning in another way.
const tableVersion = 2

// TuningRow is the best Tuning for one kind of handle on one kind of machine.
type TuningRow struct {
	Hardware Hardware    `json:"hardware"`
	Kind     HandleKind  `json:"kind"`
	Tuning   spec.Tuning `json:"tuning"`

	Dispatch Gain   `json:"dispatch,omitzero"`
	Combine  Gain   `json:"combine,omitzero"`
	Weft     string `json:"weft"` // the version that measured
	Date     string `json:"date"`
}

// Gain is the time of an operation in a graph, in microseconds: with Weft's own choice, and tuned.
type Gain struct {
	Chosen float64 `json:"chosen_us"`
	Tuned  float64 `json:"tuned_us"`
}

// Hardware is the machine that a row is for.
type Hardware struct {
	GPU   string `json:"gpu"` // as the driver names it
	SMs   int    `json:"sms"` // of one GPU
	Ranks int    `json:"ranks"`
}

// HandleKind describes the handles that a row is for: those with at most MaxTokens tokens and more
// than half of that.
type HandleKind struct {
	Layout    string `json:"layout"`
	Payload   string `json:"payload"`
	Quantize  string `json:"quantize,omitempty"`
	Scales    string `json:"scales,omitempty"` // their order, if it is not row-major
	Output    string `json:"output,omitempty"`
	Reduction string `json:"reduction,omitempty"` // for layouts by expert
	Hidden    int    `json:"hidden"`
	TopK      int    `json:"topk"`
	MaxTokens int    `json:"max_tokens"`
	SMs       int    `json:"sms"` // of the Spec
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
	if s.ScaleOrder != spec.RowMajorScales { // other kernels
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

// TuningPath is the path of the file, or empty if there is none.
func TuningPath() (string, error) { return tuningfile.Path() }

// ReadTuningTable reads a table. A missing file is a table without rows. So is a file of another
// version; the table keeps that version.
func ReadTuningTable(path string) (*TuningTable, error) {
	t := &TuningTable{Version: tableVersion}
	members, err := tuningfile.Read(path)
	if err != nil {
		return nil, err
	}
	for name, to := range map[string]any{"version": &t.Version, "rows": &t.Rows} {
		if m, ok := members[name]; ok {
			if err := json.Unmarshal(m, to); err != nil {
				return nil, tuningfile.Broken(path, err)
			}
		}
	}
	if t.Version != tableVersion {
		t.Rows = nil // they were measured with other kernels
	}
	return t, nil
}

// Write replaces the table in the file in one step, so that readers see a whole one. It follows links.
func (t *TuningTable) Write(path string) error {
	t.Version = tableVersion
	rows := t.Rows
	if rows == nil {
		rows = []TuningRow{} // null is no table
	}
	return tuningfile.Write(path, map[string]any{"version": t.Version, "rows": rows})
}

// Drop removes the rows of a kind of handle on a machine.
func (t *TuningTable) Drop(h Hardware, k HandleKind) {
	t.Rows = slices.DeleteFunc(t.Rows, func(r TuningRow) bool { return r.Hardware == h && r.Kind == k })
}

// Put adds a row, or replaces the row of the same kind of handle on the same machine.
func (t *TuningTable) Put(r TuningRow) {
	for i, old := range t.Rows {
		if old.Hardware == r.Hardware && old.Kind == r.Kind {
			t.Rows[i] = r
			return
		}
	}
	t.Rows = append(t.Rows, r)
}

// Find returns the row for a kind of handle, or nil. Of several rows with at least its tokens, and
// less than twice as many, it returns that of the fewest.
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

// tuned is the Spec with the Tuning of the table, if the caller gives none.
func tuned(s spec.Spec, comm *weft.Comm) (spec.Spec, error) {
	if s.Tuning != (spec.Tuning{}) {
		return s, nil
	}
	path, err := TuningPath()
	if path == "" || err != nil {
		return s, err
	}
	if err := tuningfile.Missing(path, tuningfile.NamedBy()); err != nil {
		return s, err
	}
	table, err := ReadTuningTable(path)
	if err == nil && table.Version != tableVersion && os.Getenv(tuningfile.Variable) != "" {
		err = weft.Invalidf("%s names %s, a table of version %d, but these kernels need version %d: write it "+
			"anew with \"weft tune ep\", or leave the variable empty",
			tuningfile.Variable, path, table.Version, tableVersion)
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
		return s, nil // flags need batches released in order ([Spec.Live]), which a table must not demand
	}
	if with.ValidateTuning(spec.GPUEngine, comm.Size()) != nil {
		// The row was measured with more tokens, and fewer may not allow as many threads, for example.
		// A table must not prevent a handle.
		return s, nil
	}
	return with, nil
}

// HardwareOf is the machine of a communicator on GPUs.
func HardwareOf(comm *weft.Comm) (Hardware, error) {
	d := comm.Device()
	name, err := d.Context().Device().Name()
	return Hardware{GPU: name, SMs: d.SMs(), Ranks: comm.Size()}, err
}
