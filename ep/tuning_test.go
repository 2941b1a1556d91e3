package ep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/tuningfile"
)

func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "tuning.json")
	t.Setenv("WEFT_TUNING", path)
	if got, err := ep.TuningPath(); got != path || err != nil {
		t.Fatal(got, err)
	}
	table, err := ep.ReadTuningTable(path)
	if err != nil || len(table.Rows) != 0 {
		t.Fatal(table, err)
	}
	here := ep.Hardware{GPU: "a GPU", SMs: 16, Ranks: 2}
	row := func(tokens, threads int) ep.TuningRow {
		s := sized(exactRows, 2)
		s.MaxTokens = tokens
		return ep.TuningRow{
			Hardware: here, Kind: ep.HandleKindOf(s),
			Tuning: ep.Tuning{Combine: ep.KernelTuning{
				Protocol: ep.FlagProtocol,
				Threads:  threads,
			}}, Date: "2026-11-22",
		}
	}
	for _, r := range []ep.TuningRow{row(64, 64), row(16, 96), row(128, 128), row(16, 256)} {
		table.Put(r)
	}
	if err := table.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := ep.ReadTuningTable(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&ep.TuningTable{
		Version: table.Version,
		Rows:    []ep.TuningRow{row(64, 64), row(16, 256), row(128, 128)},
	}, again); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Others read it, and who keeps it elsewhere keeps it there.
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	again.Put(row(512, 64))
	again.Drop(here, row(512, 64).Kind)
	again.Drop(ep.Hardware{GPU: "another"}, row(64, 64).Kind)
	if err := again.Write(link); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(link); to != path || err != nil {
		t.Errorf("the link leads to %q: %v", to, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v: %v", info.Mode(), err)
	}
	if again, err = ep.ReadTuningTable(path); err != nil || len(again.Rows) != 3 {
		t.Fatal(again, err)
	}
	for tokens, want := range map[int]int{8: 0, 9: 256, 16: 256, 17: 0, 33: 64, 64: 64, 65: 128, 129: 0} {
		kind := row(tokens, 0).Kind
		got := 0
		if r := again.Find(here, kind); r != nil {
			got = r.Tuning.Combine.Threads
		}
		if got != want {
			t.Errorf("%d tokens: the row with %d threads, want %d", tokens, got, want)
		}
		columns := kind
		columns.Scales = ep.ColumnMajorScales.String()
		kind.Hidden++
		if again.Find(here, kind) != nil || again.Find(here, columns) != nil ||
			again.Find(ep.Hardware{GPU: "a GPU", SMs: 17, Ranks: 2}, row(tokens, 0).Kind) != nil {
			t.Errorf("%d tokens: a row is found for what it does not hold for", tokens)
		}
	}
	if err := os.WriteFile(path, []byte("{\"version\":99,\"rows\":[{}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if old, err := ep.ReadTuningTable(path); err != nil || len(old.Rows) != 0 {
		t.Errorf("of another version: %v, %v", old, err)
	}
	if err := os.WriteFile(path, []byte("{\"rows"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.ReadTuningTable(path); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("of no table: %v", err)
	}
}

// TestBadTables: a table that no search writes is refused, with the file's name; one of another version is no table.
func TestBadTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning.json")
	good := ep.TuningRow{
		Hardware: ep.Hardware{GPU: "a GPU", SMs: 16, Ranks: 2}, Kind: ep.HandleKindOf(sized(exactRows, 2)),
		Tuning: ep.Tuning{Combine: ep.KernelTuning{Protocol: ep.FlagProtocol, Threads: 96}}, Date: "2026-11-22",
	}
	good.Kind.MaxTokens = 16
	text := func(change func(r *ep.TuningRow)) string {
		r := good
		change(&r)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	same := text(func(*ep.TuningRow) {})
	for rows, want := range map[string]string{
		same + "," + same: "rows 0 and 1 are for the same handle",
		text(func(r *ep.TuningRow) { r.Hardware.GPU = "" }):             "want a GPU's name",
		text(func(r *ep.TuningRow) { r.Hardware.Ranks = 0 }):            "ranks",
		text(func(r *ep.TuningRow) { r.Kind.MaxTokens = 0 }):            "tokens of at least 1",
		text(func(r *ep.TuningRow) { r.Kind.Layout = "sideways" }):      "sideways",
		text(func(r *ep.TuningRow) { r.Kind.Payload = "bf15" }):         "bf15",
		text(func(r *ep.TuningRow) { r.Dispatch.Tuned = -1 }):           "-1 us",
		text(func(r *ep.TuningRow) { r.Tuning.Combine.Threads = 1000 }): "1000 threads",
		text(func(r *ep.TuningRow) { r.Tuning.Dispatch.Units = 3 }):     "3 units",
		text(func(r *ep.TuningRow) { r.Tuning.Dispatch.Blocks = 2000 }): "2000 blocks",
		text(func(r *ep.TuningRow) { r.Tuning.Combine.Parts = 2 }):      "for slot mode and for direct mode",
		text(func(r *ep.TuningRow) { r.Tuning.HostCopy = ep.CopyEach }): "handles on the host",
		strings.Replace(same, `"date"`, `"day"`, 1):                     "unknown field",
		strings.Replace(same, `"flags"`, `"smoke"`, 1):                  "smoke",
		`{"kind": 3}`: "cannot unmarshal",
	} {
		of := fmt.Sprintf(`{"version":%d,"rows":[%s]}`, ep.TableVersion, rows)
		if err := os.WriteFile(path, []byte(of), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ep.ReadTuningTable(path); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%s: %v, want %q", rows, err, want)
		}
		// Of another version they may mean anything.
		of = fmt.Sprintf(`{"version":%d,"rows":[%s]}`, ep.TableVersion+1, rows)
		if err := os.WriteFile(path, []byte(of), 0o600); err != nil {
			t.Fatal(err)
		}
		if table, err := ep.ReadTuningTable(path); err != nil || table.Current() || len(table.Rows) != 0 {
			t.Errorf("%s of another version: %+v, %v", rows, table, err)
		}
	}
	bad := ep.TuningTable{Rows: []ep.TuningRow{{}}}
	if err := bad.Write(path); !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("a bad table is written: %v", err)
	}
}

// TestProfiles: the library's tables are of the kernels that there are, and each row is in the file of its GPU.
func TestProfiles(t *testing.T) {
	if len(ep.Profiles()) == 0 {
		t.Error("no profile is embedded")
	}
	for profile, table := range ep.Profiles() {
		if !table.Current() {
			t.Errorf("ep/profiles/%s.json has rows of version %d, which other kernels gave: measure them anew, or take "+
				"them out", profile, table.Version)
		}
		for _, r := range table.Rows {
			if of := tuningfile.ProfileOf(r.Hardware.GPU, false); of != profile {
				t.Errorf("ep/profiles/%s.json has a row of %s, which belongs into %s.json", profile, r.Hardware.GPU, of)
			}
		}
	}
}

// TestLibraryTable: of a handle that the user's table has no row for, the library's has the say.
func TestLibraryTable(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels")
	}
	const emulated = "an emulated GPU"
	s := sized(exactRows, 2)
	s.SMs, s.Experts = 8, 12
	by := func(threads int) ep.Tuning { return ep.Tuning{Combine: ep.KernelTuning{Threads: threads}} }
	row := func(ranks, threads int, change func(k *ep.HandleKind)) ep.TuningRow {
		k := ep.HandleKindOf(s)
		change(&k)
		return ep.TuningRow{
			Hardware: ep.Hardware{GPU: emulated, SMs: 16, Ranks: ranks}, Kind: k, Tuning: by(threads),
		}
	}
	none := func(*ep.HandleKind) {}
	library := &ep.TuningTable{Version: ep.TableVersion, Rows: []ep.TuningRow{row(2, 96, none), row(4, 96, none)}}
	t.Cleanup(ep.SetProfile(tuningfile.ProfileOf(emulated, false), library))
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	path := filepath.Join(dir, "weft", "tuning.json")
	m := emulatedAs(t, cudatest.Config{Devices: 2, Names: []string{emulated}}, emulate.Options{})
	mixed := emulatedAs(t, cudatest.Config{Devices: 2, Names: []string{emulated, "another GPU"}}, emulate.Options{})
	for _, tc := range []struct {
		name     string
		variable string
		user     []ep.TuningRow
		m        *gpuMachine
		ranks    int
		want     ep.Tuning
	}{
		{"no file of the user's", "", nil, m, 2, by(96)},
		{"none at all", "none", nil, m, 2, ep.Tuning{}},
		{"a file without rows", "", []ep.TuningRow{}, m, 2, by(96)},
		{"rows for other handles", "", []ep.TuningRow{row(2, 128, func(k *ep.HandleKind) { k.TopK++ })}, m, 2, by(96)},
		{"a tie", "", []ep.TuningRow{row(2, 128, none)}, m, 2, by(128)},
		{"a tie with a file that is named", path, []ep.TuningRow{row(2, 128, none)}, m, 2, by(128)},
		{"the user's search found nothing faster", "", []ep.TuningRow{row(2, 0, none)}, m, 2, ep.Tuning{}},
		{"ranks share GPUs", "", nil, m, 4, ep.Tuning{}},
		{"GPUs of two kinds", "", nil, mixed, 2, ep.Tuning{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("WEFT_TUNING", tc.variable)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if tc.user != nil {
				if err := (&ep.TuningTable{Rows: tc.user}).Write(path); err != nil {
					t.Fatal(err)
				}
			}
			members(t, tc.m, tc.ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
				if got := r.handle.Spec().Tuning; got != tc.want {
					return fmt.Errorf("%+v, want %+v", got, tc.want)
				}
				return nil
			})
		})
	}
	t.Run("a row that some ranks lack", func(t *testing.T) {
		t.Setenv("WEFT_TUNING", "")
		other := s
		err := m.engine(t, 2, gpuDeadline).Ranks(2, func(c *weft.Comm) error {
			own := other
			if c.Rank() == 1 {
				own.Tuning = by(128)
			}
			if _, err := ep.NewHandle(testContext(t), c, own); !errors.Is(err, weft.ErrMismatch) {
				return fmt.Errorf("rank %d: %w", c.Rank(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestRowsOfProfiles: a handle on the GPUs of a profile, a rank each, has the Tuning of the row measured there.
// It has none where a GPU is of another kind, or the handle of another shape.
func TestRowsOfProfiles(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels")
	}
	t.Setenv("WEFT_TUNING", "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // no table of the user's
	const h100 = "NVIDIA H100 80GB HBM3"
	machine := func(name string) *gpuMachine {
		return emulatedAs(t, cudatest.Config{
			Devices: 4, Names: []string{name}, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 132},
		}, emulate.Options{})
	}
	m := machine(h100)
	specOf := func(tokens int) ep.Spec {
		return ep.Spec{
			Experts: 256, TopK: 8, Hidden: 7168, MaxTokens: tokens, Layout: ep.RankMajor, Reduction: ep.Partial,
			Payload: ep.BF16, Weighting: ep.Plain, Counts: ep.DeviceCounts,
		}
	}
	rowOf := func(ranks, tokens int) ep.Tuning {
		row := ep.Profiles()[tuningfile.ProfileOf(h100, false)].Find(
			ep.Hardware{GPU: h100, SMs: 132, Ranks: ranks}, ep.HandleKindOf(specOf(tokens)))
		if row == nil || row.Tuning == (ep.Tuning{}) {
			t.Skipf("nothing faster is known for %d rank-major tokens on %d H100s", tokens, ranks)
		}
		return row.Tuning
	}
	for _, tc := range []struct {
		name   string
		m      *gpuMachine
		ranks  int
		tokens int
		change func(s *ep.Spec)
		want   ep.Tuning
	}{
		{"four", m, 4, 32, nil, rowOf(4, 32)},
		{"four, fewer tokens than the row", m, 4, 17, nil, rowOf(4, 32)},
		{"two of the four", m, 2, 32, nil, rowOf(2, 32)},
		{"no row for three", m, 3, 32, nil, ep.Tuning{}},
		{"another hidden", m, 4, 32, func(s *ep.Spec) { s.Hidden = 4096 }, ep.Tuning{}},
		{"other SMs", m, 4, 32, func(s *ep.Spec) { s.SMs = 24 }, ep.Tuning{}},
		{"H200s", machine("NVIDIA H200"), 4, 32, nil, ep.Tuning{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := specOf(tc.tokens)
			if tc.change != nil {
				tc.change(&s)
			}
			s.Experts = s.Experts / tc.ranks * tc.ranks
			members(t, tc.m, tc.ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
				if got := r.handle.Spec().Tuning; got != tc.want {
					return fmt.Errorf("%+v, want %+v", got, tc.want)
				}
				return nil
			})
		})
	}
}

// TestTunedOnGPUs has handles work in ways that nobody would choose: what they give stays the same.
func TestTunedOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for i, tuning := range []ep.Tuning{
			{
				Dispatch: ep.KernelTuning{Protocol: ep.FlagProtocol, Units: 2, Threads: 64, Dependent: 1},
				Combine:  ep.KernelTuning{Protocol: ep.FlagProtocol, Threads: 96, Dependent: 1},
			},
			{Dispatch: ep.KernelTuning{
				Protocol: ep.ValueProtocol, Units: 1, Threads: 96, Senders: 15,
				Dependent: -1,
			}, Combine: ep.KernelTuning{Protocol: ep.ValueProtocol, Threads: 512, Senders: 1}},
			{
				Dispatch: ep.KernelTuning{Protocol: ep.ValueProtocol, Units: 4, Threads: 480, Senders: 1},
				Combine:  ep.KernelTuning{Protocol: ep.ValueProtocol, Threads: 64, Senders: -1},
			},
		} {
			for _, way := range []struct {
				name string
				spec ep.Spec
			}{{"exact", exactRows}, {"value", valueRows}, {"direct", directRows}} {
				t.Run(fmt.Sprintf("%d/%s", i, way.name), func(t *testing.T) {
					s := sized(way.spec, ranks)
					s.Hidden, s.SMs, s.Tuning = 1000, 3*ranks, tuning
					batches := []*eptest.Batch{evenly(s, ranks, 1, 6).Batch(), evenly(s, ranks, 2, 1).Batch()}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						for i, b := range batches {
							if err := r.batch(ctx, b); err != nil {
								return fmt.Errorf("batch %d: %w", i, err)
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// pulled is a Spec with a row for each token and rank, which its home reads where it is.
func pulled(s ep.Spec) ep.Spec {
	s.Layout, s.Reduction, s.Weighting = ep.TokenMajor, ep.Partial, ep.Plain
	return s
}

// TestTunedDirectOnGPUs is TestTunedOnGPUs for direct mode.
func TestTunedDirectOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		packed := sized(exactRows, ranks)
		packed.Layout = ep.ExpertPacked
		for i, k := range []ep.KernelTuning{
			{Threads: 64, Bulk: -1},
			{Threads: 96, Bulk: 1, Warps: 2, Parts: 3},
			{Blocks: 1, Bulk: 1, Parts: 16},
			{Blocks: 1024, Bulk: 1, Warps: 16},
		} {
			byRank := pulled(sized(exactRows, ranks))
			byRank.Tuning = ep.Tuning{Dispatch: k, Combine: k}
			byExpert := packed
			byExpert.Tuning = byRank.Tuning
			for name, s := range map[string]ep.Spec{"token-major": byRank, "expert-packed": byExpert} {
				t.Run(fmt.Sprintf("%d/%s", i, name), func(t *testing.T) {
					s.Hidden, s.SMs = 1000, 3*ranks
					batches := []*eptest.Batch{evenly(s, ranks, 1, 6).Batch(), evenly(s, ranks, 2, 1).Batch()}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						if n, _ := r.handle.SMs(); k.Blocks == 1 && n != 1 {
							return fmt.Errorf("%d blocks, want 1", n)
						}
						for i, b := range batches {
							if err := r.batch(ctx, b); err != nil {
								return fmt.Errorf("batch %d: %w", i, err)
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// TestTableOnGPUs makes handles that look at a table.
func TestTableOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(exactRows, ranks)
		path := filepath.Join(t.TempDir(), "tuning.json")
		t.Setenv("WEFT_TUNING", path)
		table := &ep.TuningTable{Version: ep.TableVersion}
		err := m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
			if _, err := ep.NewHandle(testContext(t), c, s); !errors.Is(err, weft.ErrInvalid) ||
				!strings.Contains(err.Error(), path) {
				return fmt.Errorf("with a table that is named and not there: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{\"version\":1,\"rows\":[]}"), 0o600); err != nil {
			t.Fatal(err)
		}
		err = m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
			if _, err := ep.NewHandle(testContext(t), c, s); !errors.Is(err, weft.ErrInvalid) ||
				!strings.Contains(err.Error(), "invalid argument: WEFT_TUNING names") {
				return fmt.Errorf("with a table of another version: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		want := ep.Tuning{Combine: ep.KernelTuning{Threads: 96}}
		members(t, m, ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != (ep.Tuning{}) {
				return fmt.Errorf("with an empty table: %+v", got)
			}
			if r.Rank() != 0 {
				return nil
			}
			h, err := ep.HardwareOf(r.Comm)
			table.Put(ep.TuningRow{Hardware: h, Kind: ep.HandleKindOf(s), Tuning: want})
			return err
		})
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		b := evenly(s, ranks, 1, 6).Batch()
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != want {
				return fmt.Errorf("with a table: %+v, want %+v", got, want)
			}
			return r.batch(ctx, b)
		})
		// What is found for more tokens need not be possible for fewer.
		table.Rows[0].Tuning = ep.Tuning{Dispatch: ep.KernelTuning{Threads: 512}}
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		members(t, m, ranks, s, gpuDeadline, func(_ context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != (ep.Tuning{}) {
				return fmt.Errorf("with a row that does not fit: %+v", got)
			}
			return nil
		})
		// Nor may it ask anything of the caller.
		inTurn := sized(directRows, ranks)
		inTurn.MaxTokens = 6
		table.Rows[0].Kind = ep.HandleKindOf(inTurn)
		table.Rows[0].Tuning = ep.Tuning{Dispatch: ep.KernelTuning{Protocol: ep.FlagProtocol}}
		if err := table.Write(path); err != nil {
			t.Fatal(err)
		}
		members(t, m, ranks, inTurn, gpuDeadline, func(_ context.Context, r *member) error {
			if got := r.handle.Spec().Tuning; got != (ep.Tuning{}) {
				return fmt.Errorf("with flags for rank-major rows: %+v", got)
			}
			return nil
		})
	})
}
