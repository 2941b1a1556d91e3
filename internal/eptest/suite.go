package eptest

import (
	"cmp"
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

// RunSome is the suite, for engines that run all ranks in this process. Of all cases of the cells it
// runs so many, spread over cells first and then over the ways in which one can be asked for, and
// looks for failing shapes and masks half and a quarter as often. With 0 it runs all cases, and the
// flags of package testing and rapid set the numbers.
func RunSome(t *testing.T, e Engine, cases int) { run(t, e, cases, (cases+1)/2, (cases+3)/4) }

func run(t *testing.T, e Engine, cases, shapes, masks int) {
	t.Run("cells", func(t *testing.T) { runCells(t, e, cases) })
	t.Run("refused", func(t *testing.T) { runRefused(t, e) })
	t.Run("shapes", func(t *testing.T) { runShapes(t, e, shapes) })
	t.Run("masks", func(t *testing.T) { runMasks(t, e, masks) })
}

// hostsOf are the hosts of an engine's ranks, or nil where all ranks share memory.
func hostsOf(e Engine) []int {
	if h, ok := e.(interface{ Hosts() []int }); ok {
		return h.Hosts()
	}
	return nil
}

func check(e Engine, c Case) error {
	c.Hosts = hostsOf(e)
	trial := newTrial(c)
	if err := e.Ranks(c.Ranks, func(comm *weft.Comm) error { return trial.do(e, comm) }); err != nil {
		return fmt.Errorf("%v\n%w", c, err)
	}
	return nil
}

// refused is why a handle of the engine's ranks has no such Spec, or nil.
func refused(e Engine, s ep.Spec, ranks int) error {
	if e.Kind() == ep.GPUEngine && hostsOf(e) != nil {
		return s.ValidateBetween(ranks)
	}
	return s.ValidateOn(e.Kind(), ranks)
}

// allowed lists the cells that the rules leave to the engine.
func allowed(e Engine) []ep.Cell {
	var cells []ep.Cell
	for _, c := range ep.Cells() {
		if refused(e, c.Spec(4), 4) == nil {
			cells = append(cells, c)
		}
	}
	return cells
}

// runCells runs every cell in every way in which its payload can be asked for, in both phases and
// with both counts; with a limit, some of them. A short run has a case of each third cell: other
// engines and cells have the same goroutines.
func runCells(t *testing.T, e Engine, limit int) {
	cells := allowed(e)
	if limit == 0 && testing.Short() {
		limit = (len(cells) + 2) / 3
	}
	every := make([][]func() Case, len(cells))
	sizes := make([]int, len(cells))
	for i, cell := range cells {
		every[i] = casesOf(e, cell, uint64(i))
		sizes[i] = len(every[i])
	}
	turn := 0
	if 3*limit >= len(cells) { // else turns would not reach all cells, and each has kernels of its own to compile
		turn = slices.Max(e.Sizes())
	}
	for i, chosen := range choose(sizes, limit, turn) {
		if len(chosen) == 0 {
			continue
		}
		cell := cells[i]
		name := fmt.Sprintf("%v/%v/%v/%v", cell.Layout, cell.Reduction, cell.Weighting, cell.Payload)
		t.Run(name, func(t *testing.T) {
			for _, j := range chosen {
				if err := check(e, every[i][j]()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// choose says which of the cases of each cell run, given how many each has: all of them without a
// limit, else as many, of as many cells as possible and, where a cell has several, different ones;
// of other cells in another turn.
func choose(sizes []int, limit, turn int) [][]int {
	chosen := make([][]int, len(sizes))
	all := 0
	for i, n := range sizes {
		all += n
		if limit == 0 {
			for j := range n {
				chosen[i] = append(chosen[i], j)
			}
		}
	}
	if limit == 0 {
		return chosen
	}
	limit = min(limit, all)
	if limit < len(sizes) {
		for k := range limit {
			i := (k*len(sizes)/limit + turn) % len(sizes)
			chosen[i] = []int{(i + turn) % sizes[i]}
		}
		return chosen
	}
	for round := 0; limit > 0; round++ {
		for i, n := range sizes {
			if round < n && limit > 0 {
				chosen[i] = append(chosen[i], (i+round)%n)
				limit--
			}
		}
	}
	return chosen
}

// casesOf lists the cases of a cell, each made when it is called. As many in a row as there are
// details have each.
func casesOf(e Engine, cell ep.Cell, seed uint64) []func() Case {
	var cases []func() Case
	for _, split := range []bool{false, true} {
		for _, counts := range []ep.Counts{ep.HostCounts, ep.DeviceCounts} {
			for _, detail := range details(cell) {
				n := int(seed)<<16 + len(cases)
				cases = append(cases, func() Case {
					return rapid.Custom(func(t *rapid.T) Case {
						return drawCase(t, e, e.Sizes(), cell,
							detail, split, counts)
					}).Example(n)
				})
			}
		}
	}
	return cases
}

// Sample runs one case of every cell, or of every so many, the same in every process, for engines
// whose ranks run the suite each for itself. It returns how many it ran.
func Sample(e Engine, every int) (int, error) {
	n := 0
	for i, cell := range allowed(e) {
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
func runShapes(t *testing.T, e Engine, limit int) {
	checks(t, cmp.Or(limit, 300), limit > 0)
	cells := allowed(e)
	rapid.Check(t, func(rt *rapid.T) {
		cell := rapid.SampledFrom(cells).Draw(rt, "cell")
		detail := rapid.SampledFrom(details(cell)).Draw(rt, "detail")
		counts := rapid.SampledFrom([]ep.Counts{ep.HostCounts, ep.DeviceCounts}).Draw(rt, "counts")
		c := drawCase(rt, e, e.Sizes(), cell, detail, rapid.Bool().Draw(rt, "split"), counts)
		if err := check(e, c); err != nil {
			rt.Fatal(err)
		}
	})
}

// runMasks leaves ranks out of any cell, and takes them back.
func runMasks(t *testing.T, e Engine, limit int) {
	sizes := slices.DeleteFunc(slices.Clone(e.Sizes()), func(n int) bool { return n < 2 })
	if len(sizes) == 0 {
		t.Skip("the engine has one rank")
	}
	checks(t, cmp.Or(limit, 80), limit > 0)
	cells := allowed(e)
	rapid.Check(t, func(rt *rapid.T) {
		cell := rapid.SampledFrom(cells).Draw(rt, "cell")
		detail := rapid.SampledFrom(details(cell)).Draw(rt, "detail")
		c := drawCase(rt, e, sizes, cell, detail, rapid.Bool().Draw(rt, "split"), ep.HostCounts)
		masked := rapid.SliceOfNDistinct(rapid.IntRange(0, c.Ranks-1), 1, c.Ranks-1, rapid.ID).Draw(rt, "masked")
		c.Hosts = hostsOf(e)
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

// runRefused makes a handle for every cell that the engine refuses: every rank says why in the
// words of the table, and goes on.
func runRefused(t *testing.T, e Engine) {
	n := e.Sizes()[len(e.Sizes())-1]
	if err := refusals(e, n); err != nil {
		t.Fatal(err)
	}
	c := rapid.Custom(func(rt *rapid.T) Case {
		return drawCase(rt, e, []int{n}, allowed(e)[0], func(*ep.Spec) {}, false, ep.HostCounts)
	}).Example(1)
	if err := check(e, c); err != nil {
		t.Fatalf("after the refusals: %v", err)
	}
}

// refusals makes the handles.
func refusals(e Engine, n int) error {
	for _, cell := range ep.Cells() {
		want := refused(e, cell.Spec(n), n)
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
			if !errors.Is(err, weft.ErrUnsupported) || err.Error() != "new handle: "+want.Error() {
				return fmt.Errorf("refused with %q, want %q", err, want)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%+v: %w", cell, err)
		}
	}
	return nil
}

// checks sets how many cases rapid draws, exactly so many or what the command line says, if it
// does.
func checks(t *testing.T, n int, exactly bool) {
	const name = "rapid.checks"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given && !exactly {
		return
	}
	if testing.Short() && !exactly {
		n = max(1, n/10)
	}
	f := flag.Lookup(name)
	before := f.Value.String()
	t.Cleanup(func() { _ = f.Value.Set(before) })
	if err := f.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
}
