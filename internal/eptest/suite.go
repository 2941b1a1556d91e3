package eptest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// Run is the suite, for engines that run all ranks in this process.
func Run(t *testing.T, e Engine) {
	t.Run("cells", func(t *testing.T) { runCells(t, e) })
	t.Run("refused", func(t *testing.T) { runRefused(t, e) })
	t.Run("shapes", func(t *testing.T) { runShapes(t, e) })
	t.Run("masks", func(t *testing.T) { runMasks(t, e) })
}

func check(e Engine, c Case) error {
	trial := newTrial(c)
	if err := e.Ranks(c.Ranks, func(comm *weft.Comm) error { return trial.do(e, comm) }); err != nil {
		return fmt.Errorf("%v\n%w", c, err)
	}
	return nil
}

// allowed lists the cells that the rules leave.
func allowed() []ep.Cell {
	var cells []ep.Cell
	for _, c := range ep.Cells() {
		if c.Spec(4).Validate(4) == nil {
			cells = append(cells, c)
		}
	}
	return cells
}

// runCells runs every cell in every way in which its payload can be asked for, in both phases and with both counts; a short run takes one of those of
// every cell.
func runCells(t *testing.T, e Engine) {
	for i, cell := range allowed() {
		name := fmt.Sprintf("%v/%v/%v/%v/%v", cell.Layout, cell.Wire, cell.Reduction, cell.Sum, cell.Payload)
		t.Run(name, func(t *testing.T) {
			cases := casesOf(e, cell, uint64(i))
			for j, make := range cases {
				if testing.Short() && j != i%len(cases) {
					continue
				}
				if err := check(e, make()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// casesOf lists the cases of a cell, each made when it is called.
func casesOf(e Engine, cell ep.Cell, seed uint64) []func() Case {
	var cases []func() Case
	for _, detail := range details(cell) {
		for _, split := range []bool{false, true} {
			for _, counts := range []ep.Counts{ep.HostCounts, ep.DeviceCounts} {
				n := int(seed)<<16 + len(cases)
				cases = append(cases, func() Case {
					return rapid.Custom(func(t *rapid.T) Case { return drawCase(t, e.Sizes(), cell, detail, split, counts) }).Example(n)
				})
			}
		}
	}
	return cases
}

// Sample runs one case of every cell, or of every so many, the same in every process, for engines whose ranks run the suite each for itself. It
// returns how many it ran.
func Sample(e Engine, every int) (int, error) {
	n := 0
	for i, cell := range allowed() {
		if i%every != 0 {
			continue
		}
		cases := casesOf(e, cell, uint64(i))
		if err := check(e, cases[i%len(cases)]()); err != nil {
			return n, fmt.Errorf("%+v: %w", cell, err)
		}
		n++
	}
	return n, nil
}

// runShapes looks for shapes that fail in any cell, and shrinks them.
func runShapes(t *testing.T, e Engine) {
	checks(t, 300)
	cells := allowed()
	rapid.Check(t, func(rt *rapid.T) {
		cell := rapid.SampledFrom(cells).Draw(rt, "cell")
		detail := rapid.SampledFrom(details(cell)).Draw(rt, "detail")
		counts := rapid.SampledFrom([]ep.Counts{ep.HostCounts, ep.DeviceCounts}).Draw(rt, "counts")
		c := drawCase(rt, e.Sizes(), cell, detail, rapid.Bool().Draw(rt, "split"), counts)
		if err := check(e, c); err != nil {
			rt.Fatal(err)
		}
	})
}

// runMasks leaves ranks out of any cell, and takes them back.
func runMasks(t *testing.T, e Engine) {
	sizes := slices.DeleteFunc(slices.Clone(e.Sizes()), func(n int) bool { return n < 2 })
	if len(sizes) == 0 {
		t.Skip("the engine has one rank")
	}
	checks(t, 80)
	cells := allowed()
	rapid.Check(t, func(rt *rapid.T) {
		cell := rapid.SampledFrom(cells).Draw(rt, "cell")
		detail := rapid.SampledFrom(details(cell)).Draw(rt, "detail")
		c := drawCase(rt, sizes, cell, detail, rapid.Bool().Draw(rt, "split"), ep.HostCounts)
		masked := rapid.SliceOfNDistinct(rapid.IntRange(0, c.Ranks-1), 1, c.Ranks-1, rapid.ID).Draw(rt, "masked")
		trial := newTrial(c, masked...)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		err := e.Ranks(c.Ranks, func(comm *weft.Comm) error {
			if slices.Contains(masked, comm.Rank()) {
				return nil
			}
			if err := comm.SetMask(ctx, masked...); err != nil {
				return err
			}
			return trial.do(e, comm)
		})
		if err != nil {
			rt.Fatalf("without %v: %v\n%v", masked, c, err)
		}
		if err := e.Ranks(c.Ranks, func(comm *weft.Comm) error { return comm.SetMask(ctx) }); err != nil {
			rt.Fatal(err)
		}
	})
}

// runRefused makes a handle for every cell that the rules refuse: every rank says why in the same words, and goes on.
func runRefused(t *testing.T, e Engine) {
	n := e.Sizes()[len(e.Sizes())-1]
	for _, cell := range ep.Cells() {
		want := cell.Spec(n).Validate(n)
		if want == nil {
			continue
		}
		err := e.Ranks(n, func(c *weft.Comm) error {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			h, err := ep.NewHandle(ctx, c, cell.Spec(n))
			if err == nil {
				return errors.Join(errors.New("not refused"), h.Close())
			}
			if !errors.Is(err, weft.ErrUnsupported) || err.Error() != want.Error() {
				return fmt.Errorf("refused with %q, want %q", err, want)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%+v: %v", cell, err)
		}
	}
	c := rapid.Custom(func(rt *rapid.T) Case {
		return drawCase(rt, []int{n}, allowed()[0], func(*ep.Spec) {}, false, ep.HostCounts)
	}).Example(1)
	if err := check(e, c); err != nil {
		t.Fatalf("after the refusals: %v", err)
	}
}

// checks sets how many cases rapid draws, unless the command line says.
func checks(t *testing.T, n int) {
	const name = "rapid.checks"
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == name })
	if said {
		return
	}
	if testing.Short() {
		n = max(1, n/10)
	}
	f := flag.Lookup(name)
	before := f.Value.String()
	t.Cleanup(func() { _ = f.Value.Set(before) })
	if err := f.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
}
