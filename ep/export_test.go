package ep

import (
	"maps"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep/internal/gpu"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/thresholds"
)

// SetApart makes some blocks of every operation send and the others receive, however little there
// is, and gives what undoes it.
func SetApart() (undo func()) {
	rank, expert, combine := thresholds.ApartRankBytes, thresholds.ApartExpertBytes, thresholds.ApartCombineBytes
	thresholds.ApartRankBytes, thresholds.ApartExpertBytes, thresholds.ApartCombineBytes = 1, 1, 1
	return func() {
		thresholds.ApartRankBytes, thresholds.ApartExpertBytes, thresholds.ApartCombineBytes = rank, expert, combine
	}
}

// SetBulk makes all rows that can be sent by bulk copies go so, however small they are, and gives
// what undoes it.
func SetBulk() (undo func()) {
	bytes := thresholds.BulkRowBytes
	thresholds.BulkRowBytes = 1
	return func() { thresholds.BulkRowBytes = bytes }
}

// SetCombineRanks makes combines of sums use the kernels for so many ranks at least, and gives what
// undoes it.
func SetCombineRanks(ranks int) (undo func()) {
	before := thresholds.CombineRanks
	thresholds.CombineRanks = ranks
	return func() { thresholds.CombineRanks = before }
}

// SetPortTokens makes kernels and port channels take rows between hosts up to so many tokens, and gives what undoes it.
func SetPortTokens(tokens int) (undo func()) {
	before := thresholds.PortTokens
	thresholds.PortTokens = tokens
	return func() { thresholds.PortTokens = before }
}

// SetHostCopies makes rows between hosts go once to each, by kernels and port channels, whatever they spare, where
// CopiesVariable asks for it, and gives what undoes it.
func SetHostCopies() (undo func()) {
	before := thresholds.HostCopyBytes
	thresholds.HostCopyBytes = 0
	return func() { thresholds.HostCopyBytes = before }
}

// WarnAgain has the log say again why kernels drive no card, as it does once in a process.
func WarnAgain() { gpu.HookWarnAgain() }

// TableVersion is that of the tables that handles heed.
const TableVersion = tableVersion

// Profiles are the library's tables.
func Profiles() map[string]*TuningTable { return profiles }

// SetProfile replaces the library's table of a profile, and gives what undoes it.
func SetProfile(profile string, t *TuningTable) (undo func()) {
	before := profiles
	profiles = maps.Clone(before)
	profiles[profile] = t
	return func() { profiles = before }
}

// Told is where a rank stores what it tells another.
type Told = gpu.Told

// ToldBy gives the places in the window of rank `to` in which rank src's prepare of that number stores.
func ToldBy(h *Handle, src, to int, epoch uint64) Told { return gpu.HookTold(h.engine, src, to, epoch) }

// Idle reports whether no call of a handle is in progress.
func Idle(h *Handle) bool { return h.base.Gate.Idle() }

// Announced is the set of receive buffers that a handle's next operation would announce as free.
func Announced(h *Handle) uint32 { return gpu.HookAnnounced(h.engine) }

// Readable says whether others read a tensor where it is, rather than a copy.
func Readable(h *Handle, t weft.Tensor) bool { return gpu.HookReadable(h.engine, t) }

// ProgramsOf names the programs whose kernels move rows of the handles of a Spec: that of its
// dispatches first, and behind it that of calls that do everything at once.
func ProgramsOf(s spec.Spec, ranks int) []string { return gpu.HookProgramsOf(s, ranks) }

// Leaders counts the rows that the tokens of a routing in direct mode go as: one for each token and rank.
func Leaders(r *Routing, topk int) (n int, err error) { return gpu.HookLeaders(r.batch, topk) }

// SetEpoch has a handle on GPUs count its operations from an epoch on, before the first.
func SetEpoch(h *Handle, epoch uint64) error { return gpu.HookSetEpoch(h.engine, epoch) }

// SoilRoutings fills the memory of routings that nobody has as memory may be that was just
// allocated.
func SoilRoutings(h *Handle) error { return gpu.HookSoilRoutings(h.engine) }

// Grids are how many blocks of how many threads a handle's dispatches, combines and gradients have.
func Grids(h *Handle) (blocks, threads [3]int) { return gpu.HookGrids(h.engine) }

// GraphedRoutings is how many of the Routings that nobody has are written by graphs.
func GraphedRoutings(h *Handle) int { return gpu.HookGraphedRoutings(h.engine) }

// Shipped is how many bytes of rows and numbers the host of a rank has sent to other hosts.
func Shipped(h *Handle) uint64 { return h.engine.(interface{ Shipped() uint64 }).Shipped() }
