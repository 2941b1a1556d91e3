package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// Table is a table of a report. Of its rows so many were checked in the run, and so many of those were wrong.
type Table struct {
	Title, Note    string
	Columns        []Column
	Rows           [][]Cell
	Same           string // what is the same in all rows, and has no columns
	Checked, Wrong int
}

// Column is the head of a column. Its class is n for numbers.
type Column struct {
	Name, Class string
	Means       string // what the legend says
	stays       bool   // even if all rows have the same
}

// Cell is one field of a table. Its class is one of the style sheet: n for numbers, good, bad,
// soft.
type Cell struct{ Text, Class string }

// Legend are the columns that need explaining.
func (t *Table) Legend() []Column {
	return slices.DeleteFunc(slices.Clone(t.Columns), func(c Column) bool { return c.Means == "" })
}

// condense takes columns out that are empty, or the same in all of several rows: a line above the table says
// what that is.
func (t *Table) condense() {
	if len(t.Rows) == 0 {
		return
	}
	var same []string
	for i := len(t.Columns) - 1; i >= 0; i-- {
		c, first := t.Columns[i], t.Rows[0][i].Text
		differs := slices.ContainsFunc(t.Rows, func(row []Cell) bool { return row[i].Text != first })
		if differs || first != "" && (c.stays || len(t.Rows) == 1) {
			continue
		}
		if first != "" {
			same = append(same, c.Name+" "+first)
		}
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for r := range t.Rows {
			t.Rows[r] = slices.Delete(t.Rows[r], i, i+1)
		}
	}
	slices.Reverse(same)
	t.Same = strings.Join(same, ", ")
}

// columns makes columns of texts "name: what it means"; names of numbers begin with #, those of columns that
// stay with !.
func columns(texts ...string) []Column {
	var all []Column
	for _, text := range texts {
		name, means, _ := strings.Cut(text, ": ")
		c := Column{Means: means}
		if name, c.stays = strings.CutPrefix(name, "!"); strings.HasPrefix(name, "#") {
			name, c.Class = name[1:], "n"
		}
		c.Name = name
		all = append(all, c)
	}
	return all
}

// cells writes values: bytes are int64, and zero is left out.
func cells(values ...any) []Cell {
	var all []Cell
	for _, v := range values {
		c := Cell{Class: "n"}
		switch v := v.(type) {
		case string:
			c = Cell{Text: v}
		case int:
			c.Text = fmt.Sprint(v)
		case int64:
			c.Text = measure.Size(v)
		case float64:
			if c.Text = short(v); v > 0 && v < 1e-4 {
				c.Text = "<0.0001"
			}
		}
		if v == any(0) || v == any(int64(0)) || v == any(0.0) {
			c.Text = ""
		}
		all = append(all, c)
	}
	return all
}

// verified is a cell that says whether output was right.
func verified(right bool, problems ...string) Cell {
	switch text := strings.Join(problems, "; "); {
	case right:
		return Cell{Text: "verified", Class: "good"}
	case text != "":
		return Cell{Text: "wrong: " + text, Class: "bad"}
	}
	return Cell{Text: "wrong", Class: "bad"}
}

// ofRecords are the tables of records, one for each kind of operation.
func ofRecords(records []measure.Record) []Table {
	var all []Table
	for _, group := range groups(records, kind) {
		t := ofKind(group)
		t.Title = kind(&group[0])
		all = append(all, t)
	}
	return all
}

func kind(r *measure.Record) string {
	switch {
	case r.Collective != nil:
		return "All rows of collectives"
	case r.Tokens > 0:
		return "All rows of expert parallelism"
	}
	return "All rows of " + r.Op
}

func ofKind(records []measure.Record) Table {
	t := Table{
		Columns: columns("!op", "engine", "#ranks", "#tokens: of each rank", "#size: as nccl-tests counts it",
			"algorithm: the one that ran",
			"!#p50 us: of the slowest rank of each iteration, the median of iterations",
			"!#p99 us: the same, the 99th percentile",
			"#GB/s: 10^9 bytes a second: bytes per selection, over p50",
			"#algbw: 10^9 bytes a second: size over p50", "#busbw: algbw times what of it a link carries, as nccl-tests counts",
			"#floor us: memcpy's time for the same bytes through cold memory; of a collective also that of the links",
			"#ratio: floor over p50. 1 is the speed of memcpy. It is more where operands stay in caches, and less where an "+
				"operation waits for signals and not for bytes",
			"#wrong: elements that differ from a plain loop's", "!output: verified in this run or not",
			"#min us", "#mean us", "#max us", "slowest: the rank that most often was it",
			"#wire: bytes of a rank, in the mean, that leave it for another",
			"#logical: bytes of a rank, a token counted once for each rank that it visits",
			"#per selection: bytes of a rank, every (token, expert) pair counted, the rank's own included",
			"#memory: resident memory of the largest rank, shared memory not counted", "#iterations",
			"#hidden", "#top-k", "#experts", "dtype", "scales", "layout", "reduction", "weighting", "counts", "routing", "mode",
			"operand", "place"),
	}
	for i := range records {
		r := &records[i]
		if t.Checked++; !r.Verified {
			t.Wrong++
		}
		var algorithm, place string
		var algbw, busbw, gbps float64
		var wrong int
		if c := r.Collective; c != nil {
			algorithm, algbw, busbw, wrong, place = c.Algorithm, c.AlgBW, c.BusBW, int(c.Wrong), "out of place"
			if r.InPlace {
				place = "in place"
			}
		} else {
			gbps = r.GBps
		}
		row := cells(r.Op, r.Engine, r.Ranks, r.Tokens, r.Message(), algorithm, r.P50, r.P99, gbps, algbw, busbw, r.Floor,
			r.FloorRatio, wrong)
		row = append(row, verified(r.Verified))
		row = append(row, cells(r.Min, r.Mean, r.Max, fmt.Sprintf("rank %d", r.Slowest), r.WireBytes, r.LogicalBytes,
			r.DeepEPBytes, r.Memory, r.Iterations, r.Hidden, r.TopK, r.Experts, r.DType, r.Scales, r.Layout, r.Reduction,
			r.Weighting, r.Counts, r.Routing, r.Mode, r.Operand, place)...)
		t.Rows = append(t.Rows, row)
	}
	t.condense()
	return t
}
