package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/tuningfile"
)

// tuneMerge is what files of "weft tune" have found.
type tuneMerge struct {
	rows   []ep.TuningRow
	tables map[string]*tuning.Table // times of collectives, by profile
	from   map[any]string           // the file that a row is from
}

func newTuneMerge() *cobra.Command {
	var out, source string
	cmd := &cobra.Command{
		Use:   "merge [flags] FILE...",
		Short: "Put what several searches have found into one file, or into Weft's source",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("want files that \"weft tune ep\" or \"weft tune collectives\" has written")
			}
			return nil
		},
	}
	describe(cmd, "tune_merge")
	cmd.Flags().StringVar(&out, "out", "", "the `file` of tables (default: the one that handles and groups read)")
	cmd.Flags().StringVar(&source, "source", "", "the `folder` of Weft's source, whose own tables get the rows")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if out != "" && source != "" {
			return usageError{errors.New("--out, --source: want one of them")}
		}
		m := &tuneMerge{tables: map[string]*tuning.Table{}, from: map[any]string{}}
		for _, file := range args {
			if err := m.read(file); err != nil {
				return err
			}
		}
		if source != "" {
			return m.intoSource(cmd.OutOrStdout(), source)
		}
		path, err := tunedFile(out)
		if err != nil {
			return err
		}
		return m.intoFile(cmd.OutOrStdout(), path)
	}
	return cmd
}

// read takes the rows of a file. Rows of other kernels are refused, and two that differ for one thing.
func (m *tuneMerge) read(file string) error {
	if _, err := os.Stat(file); err != nil {
		return err
	}
	members, err := tuningfile.Read(file)
	if err != nil {
		return err
	}
	if members["rows"] == nil && members["collectives"] == nil {
		return weft.Invalidf("%s has no table of \"weft tune\": leave it out", file)
	}
	table, err := ep.ReadTuningTable(file)
	if err != nil {
		return err
	}
	if !table.Current() {
		return weft.Invalidf("%s is a table of version %d, which other kernels gave: write it anew with \"weft tune ep\"",
			file, table.Version)
	}
	for _, r := range table.Rows {
		at := slices.IndexFunc(m.rows, func(o ep.TuningRow) bool { return o.Hardware == r.Hardware && o.Kind == r.Kind })
		if at < 0 {
			m.rows = append(m.rows, r)
			m.from[handleRow{r.Hardware, r.Kind}] = file
		} else if m.rows[at] != r {
			return m.tie(handleRow{r.Hardware, r.Kind}, file)
		}
	}
	return m.readCollectives(file, members["collectives"])
}

// What a row is for.
type (
	handleRow struct {
		on ep.Hardware
		of ep.HandleKind
	}
	collectiveRow struct {
		profile, algorithm string
		ranks              int
		inPlace            bool
	}
)

func (h handleRow) String() string {
	return fmt.Sprintf("%s handles for %d tokens on %d ranks", h.of.Layout, h.of.MaxTokens, h.on.Ranks)
}

func (c collectiveRow) String() string { return fmt.Sprintf("%s on %d ranks", c.algorithm, c.ranks) }

func (m *tuneMerge) tie(what fmt.Stringer, file string) error {
	return weft.Invalidf("%s and %s have different rows of %v: leave one of the files out", m.from[what], file, what)
}

func (m *tuneMerge) readCollectives(file string, text json.RawMessage) error {
	tables, err := tuning.Read(file)
	if err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if text != nil {
		if err := json.Unmarshal(text, &all); err != nil {
			return tuningfile.Broken(file, err)
		}
	}
	for _, profile := range slices.Sorted(maps.Keys(all)) {
		t := tables[profile]
		if t == nil {
			return weft.Invalidf("%s has a table %s of another version: write it anew with \"weft tune collectives\"", file,
				profile)
		}
		if constants, err := json.Marshal(&t.Constants); err != nil || string(constants) != "{}" {
			return weft.Invalidf("%s has constants of %s, which no search finds: take them out, and merge its times", file,
				profile)
		}
		merged := m.tables[profile]
		if merged == nil {
			merged = &tuning.Table{}
			m.tables[profile] = merged
		}
		if t.Date >= merged.Date {
			merged.Date, merged.Weft = t.Date, t.Weft
		}
		for _, r := range t.Measured {
			key := collectiveRow{profile, r.Algorithm, r.Ranks, r.InPlace}
			if m.from[key] == "" {
				m.from[key] = file
				merged.Put(r)
				continue
			}
			if !slices.ContainsFunc(merged.Measured, func(o spec.Measured) bool {
				return key == collectiveRow{profile, o.Algorithm, o.Ranks, o.InPlace} && slices.Equal(o.Points, r.Points)
			}) {
				return m.tie(key, file)
			}
		}
	}
	return nil
}

// intoFile puts all rows into a file.
func (m *tuneMerge) intoFile(w io.Writer, path string) error {
	if err := putRows(path, m.rows); err != nil {
		return err
	}
	tables, err := tablesIn(path)
	if err != nil {
		return err
	}
	times := 0
	for profile, found := range m.tables {
		if tables[profile] == nil {
			tables[profile] = &tuning.Table{}
		}
		put(tables[profile], found)
		times += len(found.Measured)
	}
	if err := tuning.Write(path, tables); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %s of expert parallelism, %d of collectives\n", path, measure.Count(len(m.rows), "row"), times)
	return nil
}

// intoSource puts rows into the tables that the library embeds, each into that of its profile.
func (m *tuneMerge) intoSource(w io.Writer, source string) error {
	ofEP := filepath.Join(source, "ep", "profiles")
	ofCollectives := filepath.Join(source, "collective", "tuning", "profiles")
	for _, dir := range []string{ofEP, ofCollectives} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return usageError{fmt.Errorf("--source %s: there is no folder %s; want that of Weft's source", source, dir)}
		}
	}
	rows := map[string][]ep.TuningRow{}
	for _, r := range m.rows {
		profile := tuningfile.ProfileOf(r.Hardware.GPU, false) // "weft tune ep" has a GPU for each rank
		rows[profile] = append(rows[profile], r)
	}
	for _, profile := range slices.Sorted(maps.Keys(rows)) {
		path := filepath.Join(ofEP, profile+".json")
		if err := putRows(path, rows[profile]); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: %s\n", path, measure.Count(len(rows[profile]), "row"))
	}
	for _, profile := range slices.Sorted(maps.Keys(m.tables)) {
		path := filepath.Join(ofCollectives, profile+".json")
		if err := putTimes(path, profile, m.tables[profile]); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: %s\n", path, measure.Count(len(m.tables[profile].Measured), "row"))
	}
	return nil
}

// putRows adds rows to a table of expert parallelism, or replaces those for the same handles.
func putRows(path string, rows []ep.TuningRow) error {
	table, err := ep.ReadTuningTable(path)
	if err != nil {
		return err
	}
	for _, r := range rows {
		table.Put(r)
	}
	return table.Write(path)
}

// put adds times to a table of collectives, or replaces those of the same algorithms.
func put(t, found *tuning.Table) {
	t.Date, t.Weft = found.Date, found.Weft
	for _, r := range found.Measured {
		t.Put(r)
	}
}

// putTimes adds times to a table that package tuning embeds. A new one has the constants that served its profile.
func putTimes(path, profile string, found *tuning.Table) error {
	var t *tuning.Table
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		if t, err = tuning.Parse(profile, text); err != nil {
			return err
		}
	case errors.Is(err, os.ErrNotExist):
		base := tuning.Builtin(profile)
		t = &tuning.Table{
			Version: base.Version, Note: "Times were measured here, constants on other machines.", Constants: base.Constants,
		}
	default:
		return err
	}
	put(t, found)
	if text, err = json.MarshalIndent(t, "", "\t"); err != nil {
		return err
	}
	if _, err := tuning.Parse(profile, text); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
