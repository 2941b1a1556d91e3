package tuning

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// version changes when numbers in tables mean something else.
const version = 1

// Table is what is known of a kind of machine.
type Table struct {
	Version    int             `json:"version"`
	Note       string          `json:"note,omitempty"`
	Constants  spec.Model      `json:"constants,omitzero"`
	Unmeasured []string        `json:"unmeasured,omitempty"` // constants that are taken from elsewhere
	Measured   []spec.Measured `json:"measured,omitempty"`   // by algorithm, ranks and placement

	Weft string `json:"weft,omitempty"` // the version that measured
	Date string `json:"date,omitempty"`
}

// Parse reads a table and checks it. Members that it does not know are an error.
func Parse(profile string, text []byte) (*Table, error) {
	t := &Table{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, invalid(profile, "%v", err)
	}
	return t, t.check(profile)
}

func invalid(profile, format string, args ...any) error {
	return weft.Invalidf("tuning table %s: %s: measure it anew with \"weft tune collectives\"", profile,
		fmt.Sprintf(format, args...))
}

func (t *Table) check(profile string) error {
	if t.Version != version {
		return invalid(profile, "version %d, and this library reads version %d", t.Version, version)
	}
	c := &t.Constants
	for _, v := range []float64{
		c.Launch, c.Load, c.Hop, c.Spread, c.Fence, c.Push, c.Pull, c.Pair, c.Copy,
	} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return invalid(profile, "a constant is %v", v)
		}
	}
	for i := range t.Measured {
		m := &t.Measured[i]
		if err := checkRow(m); err != nil {
			return invalid(profile, "row %d, of %q on %d ranks: %v", i, m.Algorithm, m.Ranks, err)
		}
		if slices.ContainsFunc(t.Measured[:i], func(o spec.Measured) bool { return same(&o, m) }) {
			return invalid(profile, "two rows of %q on %d ranks", m.Algorithm, m.Ranks)
		}
	}
	return nil
}

func checkRow(m *spec.Measured) error {
	kind, _, _ := strings.Cut(m.Algorithm, "/")
	known := false
	for k := range spec.Collectives {
		known = known || k.String() == kind
	}
	switch {
	case !known:
		return fmt.Errorf("there is no collective %q", kind)
	case m.Ranks < 1 || m.Ranks > weft.MaxRanks:
		return fmt.Errorf("want 1 to %d ranks", weft.MaxRanks)
	case len(m.Points) == 0:
		return fmt.Errorf("no points")
	}
	for i, p := range m.Points {
		if p.Bytes < 0 || i > 0 && p.Bytes <= m.Points[i-1].Bytes {
			return fmt.Errorf("a point of %d bytes, which is not more than the one before", p.Bytes)
		}
		if !(p.Micros >= 0) || math.IsInf(p.Micros, 0) {
			return fmt.Errorf("%d bytes in %v us", p.Bytes, p.Micros)
		}
	}
	return nil
}

func same(a, b *spec.Measured) bool {
	return a.Algorithm == b.Algorithm && a.Ranks == b.Ranks && a.InPlace == b.InPlace
}

// Put adds a row, or replaces the one of the same algorithm, ranks and placement.
func (t *Table) Put(m spec.Measured) {
	for i := range t.Measured {
		if same(&t.Measured[i], &m) {
			t.Measured[i] = m
			return
		}
	}
	t.Measured = append(t.Measured, m)
}

// Drop takes the row of an algorithm, on so many ranks in such a placement, out of the table, if it has one.
func (t *Table) Drop(m spec.Measured) (had bool) {
	n := len(t.Measured)
	t.Measured = slices.DeleteFunc(t.Measured, func(o spec.Measured) bool { return same(&o, &m) })
	return len(t.Measured) < n
}

// Over is a table with all that this one says, and what another says beside that. Who measured and when, and the note,
// are this one's.
func (t *Table) Over(base *Table) *Table {
	both := *base
	both.Weft, both.Date, both.Note = t.Weft, t.Date, t.Note
	both.Measured = slices.Clone(base.Measured)
	for _, m := range t.Measured {
		both.Put(m)
	}
	text, err := json.Marshal(&t.Constants) // those that are 0 are left out
	if err == nil {
		err = json.Unmarshal(text, &both.Constants)
	}
	if err != nil {
		panic(err) // they were checked
	}
	return &both
}

// Model is what algorithms compute costs from.
func (t *Table) Model() *spec.Model {
	m := t.Constants
	m.Measured = t.Measured
	return &m
}

// Digest tells tables apart.
func (t *Table) Digest() string {
	text, err := json.Marshal(t)
	if err != nil { // of a table that was not checked
		return err.Error()
	}
	return fmt.Sprintf("%.6x", sha256.Sum256(text))
}
