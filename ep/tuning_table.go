package ep

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/tuningfile"
)

// TuningTable holds the results of "weft tune ep" for kinds of machines and handles. Handles on
// GPUs take their Tuning from it if their Spec has none.
//
// It is in a JSON file: the one that WEFT_TUNING names, or else weft/tuning.json in the user's cache
// directory, if that exists. A handle of which that has no row looks in the library's own table for the
// machine: see profiles/. WEFT_TUNING=none is no table at all, not even the library's. Every rank reads its
// own file, and all must find the same row.
type TuningTable struct {
	Version int         `json:"version"` // tableVersion
	Rows    []TuningRow `json:"rows"`
}

// tableVersion tells tables of other kernels from those that handles heed. It goes up with each change after which a
// row may name what is no longer the best:
//
//   - a member of [spec.Tuning] means something else, takes other values, or is new;
//   - a member of [HandleKind] or [Hardware] means something else or is new;
//   - kernels of a kind of handle have become faster or slower by other than what rows choose between: a new protocol,
//     another bound of registers or threads, another order of stores, fences and waits.
//
// It stays where the machine code of all kernels for handles stays, or that of kernels which no row tunes changes. When
// it goes up, the rows in profiles/ are measured anew or taken out: TestProfiles fails until then.
const tableVersion = 3

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
// version; the table keeps that version. Rows that no handle can have are an error, which wraps [weft.ErrInvalid].
func ReadTuningTable(path string) (*TuningTable, error) {
	members, err := tuningfile.Read(path)
	if err != nil {
		return nil, err
	}
	return tableOf(path, members)
}

// tableOf is the table in the members of a file.
func tableOf(path string, members map[string]json.RawMessage) (*TuningTable, error) {
	t := &TuningTable{Version: tableVersion}
	if m, ok := members["version"]; ok {
		if err := json.Unmarshal(m, &t.Version); err != nil {
			return nil, tuningfile.Broken(path, err)
		}
	}
	m, ok := members["rows"]
	if !ok || !t.Current() { // rows of another version are left alone
		return t, nil
	}
	d := json.NewDecoder(bytes.NewReader(m))
	d.DisallowUnknownFields()
	if err := d.Decode(&t.Rows); err != nil {
		return nil, tuningfile.Broken(path, err)
	}
	if err := t.check(); err != nil {
		return nil, tuningfile.Broken(path, err)
	}
	return t, nil
}

// Current says whether the table is of the version that handles heed: measured with their kernels.
func (t *TuningTable) Current() bool { return t.Version == tableVersion }

func (t *TuningTable) check() error {
	type handle struct {
		on Hardware
		of HandleKind
	}
	seen := map[handle]int{}
	for i := range t.Rows {
		r := &t.Rows[i]
		if err := r.check(); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		h := handle{r.Hardware, r.Kind}
		if first, twice := seen[h]; twice {
			return fmt.Errorf("rows %d and %d are for the same handle", first, i)
		}
		seen[h] = i
	}
	return nil
}

// check refuses what "weft tune ep" never writes.
func (r *TuningRow) check() error {
	h, k := r.Hardware, r.Kind
	switch {
	case h.GPU == "" || h.SMs < 1 || h.Ranks < 1 || h.Ranks > weft.MaxRanks:
		return fmt.Errorf("hardware %+v: want a GPU's name, SMs, and 1 to %d ranks", h, weft.MaxRanks)
	case k.Hidden < 0 || k.TopK < 1 || k.MaxTokens < 1 || k.SMs < 0:
		return fmt.Errorf("kind %+v: want top-k and tokens of at least 1, hidden and SMs of at least 0", k)
	}
	for _, us := range []float64{r.Dispatch.Chosen, r.Dispatch.Tuned, r.Combine.Chosen, r.Combine.Tuned} {
		if us < 0 {
			return fmt.Errorf("%v us", us)
		}
	}
	var errs [6]error
	_, errs[0] = spec.ParseLayout(k.Layout)
	_, errs[1] = spec.ParsePayload(k.Payload)
	if k.Quantize != "" {
		_, errs[2] = weft.ParseDType(k.Quantize)
	}
	if k.Scales != "" {
		_, errs[3] = spec.ParseScaleOrder(k.Scales)
	}
	if k.Output != "" {
		_, errs[4] = weft.ParseDType(k.Output)
	}
	if k.Reduction != "" {
		_, errs[5] = spec.ParseReduction(k.Reduction)
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return r.Tuning.Check()
}

// Write replaces the table in the file in one step, so that readers see a whole one. It follows links. Rows that
// ReadTuningTable would refuse are not written.
func (t *TuningTable) Write(path string) error {
	if err := t.check(); err != nil {
		return weft.Invalidf("tuning: %s: %v", path, err)
	}
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

//go:embed profiles/*.json
var profileFiles embed.FS

// profiles are the library's tables, by profile of machines: see package tuningfile.
var profiles = func() map[string]*TuningTable {
	all, err := tuningfile.Profiles(profileFiles, func(profile string, text []byte) (*TuningTable, error) {
		path := "ep/profiles/" + profile + ".json"
		members, err := tuningfile.Parse(path, text)
		if err != nil {
			return nil, err
		}
		return tableOf(path, members)
	})
	if err != nil {
		panic(err) // they are embedded
	}
	return all
}()

// libraryTable is the library's table for the GPUs of a communicator, or nil. It is collective, and the same on all
// ranks. There is none between hosts, where ranks share a GPU, and where GPUs are of several kinds: nothing was
// measured so. own is an error of this rank's, with which the others must not be left alone.
func libraryTable(ctx context.Context, comm *weft.Comm, op string) (t *TuningTable, own, err error) {
	if comm.Operations().Spans() {
		return nil, nil, nil
	}
	m, own, err := tuningfile.MachineOf(ctx, comm, op)
	if err != nil || m.Mixed {
		return nil, own, err
	}
	return profiles[m.Profile()], own, nil
}

// userTable is the table in the file of [TuningPath], or nil.
func userTable() (*TuningTable, error) {
	path, err := TuningPath()
	if path == "" || err != nil {
		return nil, err
	}
	if err := tuningfile.Missing(path, tuningfile.NamedBy()); err != nil {
		return nil, err
	}
	table, err := ReadTuningTable(path)
	if err == nil && !table.Current() && tuningfile.NamedBy() != "" {
		err = weft.Invalidf("%s names %s, a table of version %d, but these kernels need version %d: write it "+
			"anew with \"weft tune ep\", or leave the variable empty",
			tuningfile.Variable, path, table.Version, tableVersion)
	}
	return table, err
}

// tuned is the Spec with the Tuning of a table, if the caller gives none: of the user's, or if that has no row for the
// handle, of the library's.
func tuned(s spec.Spec, comm *weft.Comm, library *TuningTable) (spec.Spec, error) {
	if s.Tuning != (spec.Tuning{}) || tuningfile.NoTables() {
		return s, nil
	}
	user, err := userTable()
	if err != nil {
		return s, err
	}
	h, err := HardwareOf(comm)
	if err != nil {
		return s, err
	}
	kind := HandleKindOf(s)
	var row *TuningRow
	for _, t := range []*TuningTable{user, library} {
		if t != nil && row == nil {
			row = t.Find(h, kind)
		}
	}
	if row == nil {
		return s, nil
	}
	with := s
	with.Tuning = row.Tuning
	if s.Layout == spec.RankMajor && row.Tuning.Dispatch.Protocol == spec.FlagProtocol {
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
