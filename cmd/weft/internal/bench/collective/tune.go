package collective

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/collective/tuning"
)

// Trial is an algorithm on some number of ranks: a row of a tuning table in the making.
type Trial struct {
	Kind      *Kind
	Algorithm collective.Algorithm
	Ranks     int
	InPlace   bool

	plan     string // the file of the plan that it is, if it is one
	multiple int    // of so many bytes are its parts

	best  map[int64]float64 // by the bytes of rows: the least median
	Wrong []string          // outputs that were wrong, which is a defect of Weft's
}

// Tunable lists the kinds of which an engine has a choice.
func Tunable(gpu bool) (names []string) {
	for i := range Kinds {
		if k := &Kinds[i]; len(k.Algorithms(gpu)) > 1 {
			names = append(names, k.Name)
		}
	}
	return names
}

// anything is what GPUs may be able to do. An algorithm that those of the machine cannot run gets no times, for
// another one runs in its place, and without times it is not chosen.
const anything = spec.BulkCopies | spec.Lines

// Trials are all algorithms of a kind on so many ranks. All-reduces are tried in place, too: there peers read
// what a rank overwrites. A loopback has no peers' windows.
func Trials(gpu bool, kind string, ranks int, loopback bool) (all []*Trial) {
	k := Named(kind)
	list := collective.Algorithms()
	if gpu {
		list = collective.GPUAlgorithms()
	}
	for _, inPlace := range []bool{false, true} {
		if inPlace && k.Collective != collective.AllReduce {
			continue
		}
		for _, a := range list {
			q := spec.Request{Collective: k.Collective, Ranks: ranks, Windows: spec.Inputs | spec.Outputs, Able: anything}
			if inPlace {
				q.Windows |= spec.InPlace
			}
			if loopback {
				q.Windows &= spec.InPlace
			}
			if a.Fits(q) && !a.OptIn() {
				all = append(all, &Trial{Kind: k, Algorithm: a, Ranks: ranks, InPlace: inPlace, best: map[int64]float64{}})
			}
		}
	}
	return all
}

// PlanTrial is the plan of a file, on as many ranks as it has. Groups that are made with the plan choose it by its
// times.
func PlanTrial(file string) (*Trial, error) {
	s, ranks, err := Sweep{DType: weft.Float32.String()}.Planned(file)
	if err != nil {
		return nil, err
	}
	_, a, err := s.plan()
	if err != nil {
		return nil, err
	}
	if a.OptIn() {
		return nil, fmt.Errorf("%s: %s, so groups choose it by its name alone, whatever it takes", file, a.Tags["opt-in"])
	}
	return &Trial{
		Kind: Named(s.Kind), Algorithm: a, Ranks: ranks, InPlace: s.InPlace, plan: s.Plan, multiple: s.Multiple,
		best: map[int64]float64{},
	}, nil
}

// Name is what the trial tries, in words.
func (t *Trial) Name() string {
	name := fmt.Sprintf("%s, %s", t.Algorithm.Name, measure.Count(t.Ranks, "rank"))
	if t.InPlace {
		name += ", in place"
	}
	return name
}

// Sweep is what the trial measures: operands lie in windows, so that all algorithms have the same, and are
// written before each operation, or else peers would find them in caches of their own.
func (t *Trial) Sweep(of Sweep) Sweep {
	of.Kind, of.Algorithm, of.InPlace, of.Heap, of.Fresh = t.Kind.Name, t.Algorithm.Name, t.InPlace, false, true
	of.Plan, of.Multiple = t.plan, t.multiple
	return of
}

// Take takes a row. One of a size that the algorithm does not fit is of another one.
func (t *Trial) Take(r measure.Record) {
	if r.Collective == nil || r.Algorithm != t.Algorithm.Name {
		return
	}
	if !r.Verified {
		t.Wrong = append(t.Wrong, fmt.Sprintf("%s: the result of %s is wrong", t.Name(), measure.Size(r.Bytes)))
		return
	}
	us, again := t.best[r.Bytes]
	if !again || r.P50 < us {
		t.best[r.Bytes] = r.P50
	}
}

// Measured is the trial as a row of a table. It has none if nothing was measured, or something was wrong.
func (t *Trial) Measured() (m spec.Measured, ok bool) {
	m = spec.Measured{Algorithm: t.Algorithm.Name, Ranks: t.Ranks, InPlace: t.InPlace}
	for bytes, us := range t.best {
		m.Points = append(m.Points, spec.Point{Bytes: int(bytes) / t.Kind.sent(t.Ranks), Micros: us})
	}
	slices.SortFunc(m.Points, func(a, b spec.Point) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return m, len(m.Points) > 0 && len(t.Wrong) == 0
}

// varying is the algorithm of the V form that moves the same in the same way, or empty. An all-to-all-v moves
// counts as well.
func (t *Trial) varying() string {
	kind, form, _ := strings.Cut(t.Algorithm.Name, "/")
	name := kind + "-v/" + form
	if t.Kind.Collective == collective.AllToAll ||
		!slices.ContainsFunc(collective.Algorithms(), func(a collective.Algorithm) bool { return a.Name == name }) {
		return ""
	}
	return name
}

// sent is how many times what a rank sends the bytes of an operation are.
func (k *Kind) sent(ranks int) int {
	if k.outParts && !k.inParts {
		return ranks
	}
	return 1
}

// rows are those of a table that the trial is about, whether or not they have times.
func (t *Trial) rows() []spec.Measured {
	m, _ := t.Measured()
	rows := []spec.Measured{m}
	if m.Algorithm = t.varying(); m.Algorithm != "" {
		rows = append(rows, m)
	}
	return rows
}

// Search measures trials in turn, as often as asked, and puts what it finds into a table. Of outputs that were
// wrong it says so, and the table has no times of the algorithm then, not even former ones.
func Search(trials []*Trial, repeats int, try func(*Trial) error, table *tuning.Table) (wrong []string, err error) {
	for range repeats {
		for _, t := range trials {
			if err := try(t); err != nil {
				return nil, fmt.Errorf("%s: %w", t.Name(), err)
			}
		}
	}
	for _, t := range trials {
		_, ok := t.Measured()
		wrong = append(wrong, t.Wrong...)
		for _, m := range t.rows() {
			if ok {
				table.Put(m)
			} else if len(t.Wrong) > 0 && table.Drop(m) {
				wrong[len(wrong)-1] += fmt.Sprintf("; the times of %s in the table are dropped", m.Algorithm)
			}
		}
	}
	return wrong, nil
}

// Try measures a trial.
func (g GPUs) Try(ctx context.Context, s Sweep, t *Trial) error {
	g.Ranks = t.Ranks
	return g.Measure(ctx, t.Sweep(s), func(r measure.Record) error {
		t.Take(r)
		return nil
	})
}

// Choice is what is chosen for one kind of operation, of all sizes.
type Choice struct {
	Kind     string
	Ranks    int
	Operands string
	Ranges   []collective.Range // in bytes of the operation
}

// Choices are those of an engine on a machine of which a table tells.
func Choices(gpu bool, o collective.Options, t *tuning.Table, kinds []string, ranks int, d weft.DType) (all []Choice) {
	places := []struct {
		name    string
		windows spec.Windows
	}{
		{"outside windows", 0},
		{"in windows", spec.Inputs | spec.Outputs},
		{"in place", spec.Inputs | spec.Outputs | spec.InPlace},
	}
	for _, kind := range kinds {
		k := Named(kind)
		for _, p := range places {
			ranges := collective.Choices(gpu, o, t, collective.Request{
				Collective: k.Collective, DType: d, Ranks: ranks, Windows: p.windows, Able: anything,
			})
			for i := range ranges {
				ranges[i].Most *= k.sent(ranks)
			}
			all = append(all, Choice{kind, ranks, p.name, ranges})
		}
	}
	return all
}

// String is the ranges in words: "eager to 32 KiB, pull".
func (c *Choice) String() string {
	text := ""
	for i, r := range c.Ranges {
		if i > 0 {
			text += ", "
		}
		_, form, _ := strings.Cut(r.Algorithm, "/")
		if text += form; i < len(c.Ranges)-1 {
			text += " to " + measure.Size(int64(r.Most))
		}
	}
	return text
}
