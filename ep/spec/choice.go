package spec

import (
	"cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/thresholds"
)

// Way is how the rows of an operation on GPUs get where they go.
type Way uint8

const (
	// Slots are at the receiver, where source and token number say. Rows leave for them before
	// anything is counted.
	Slots Way = iota
	// Direct is to and from final rows, which a row map gives before a row leaves.
	Direct
)

// Choice says how a handle on GPUs moves rows. It follows from the Spec and the number of ranks
// alone, so it is the same on every rank.
type Choice struct {
	// The ways of the two. A dispatch is direct wherever a combine is, which reads rows at their
	// ranks. Where a rank first sums the rows that it has of a token, sums go home by slots.
	Dispatch, Combine Way
	// Rows are values that are their own flags, or are told of by a word a block.
	ValueDispatch, ValueCombine bool
	// The kernel before in the stream may still be ending when this one's blocks are placed.
	DependentDispatch, DependentCombine bool
	// Units of 512 bytes that a warp of dispatch moves at a time: several save instructions, one
	// spreads little over more SMs.
	DispatchUnits int
	// Of 16 blocks so many send while the others receive; 0: all do both.
	DispatchSenders, CombineSenders int
	// Notify blocks of a dispatch, if there is room.
	DispatchNotify int
	// Threads of a block, and blocks that would have something to do.
	DispatchThreads, DispatchBlocks int
	CombineThreads, CombineBlocks   int
}

// Measured on four H200s and two, rows of 14 KiB: docs/benchmarks/README.md.
const (
	// Up to so many tokens a rank rows are their own flags: beyond, polling and refilling cost more
	// than the fence and the second trip. So they do earlier where flags spare a copy of what comes
	// from several peers.
	valueTokens, rankTokens = 256, 128
	// Up to so many tokens dependent launches gain more than they take. Where a rank sends one row
	// to another they do up to valueTokens.
	dependentTokens = 64
	// A warp of dispatch moves rows in several units at a time if at least unitWarps pieces are
	// left, or while there are more than the mostWarps that run at once.
	unitWarps, mostWarps = 448, 2112
)

// How many blocks place, push and pull have unless the Spec asks for more SMs: more than the 8 to
// 24 that nearly fill the links. And how many threads a block has.
const placedBlocks, placedThreads = 32, 512

// A warp's part of a row that goes by bulk copies, and the shared memory of a block that does: 14
// rows of 14 KiB in flight.
const (
	bulkChunkBytes  = 14 << 10
	BulkSharedBytes = 14 * bulkChunkBytes
	BulkOwnBytes    = 20 << 10 // at most, of the kernels' own
	bulkMostWarps   = 16       // that a block can have
	// parts of tokens that a warp of a combine has: one that it adds up, one on its way. More are
	// smaller, which costs more than it gains
	PullDepth = 2
)

// A bulk copy of less than some KiB is bound by its issue. So where all the warps of a combine
// would have parts of fewer units than pullFewUnits, fewer of them have parts of pullManyUnits, but
// pullLeastWarps of them still: as many as add up what an SM can bring.
const pullFewUnits, pullManyUnits, pullLeastWarps = 3, 4, 3

// Of the gradient of a combine with weights so many warps of a block multiply, each with so many
// parts in shared memory: DEPTH of gradients.cu. What a part takes to set out and to be
// awaited is some 150 instructions, so parts are not to be small.
const ProductWarps, ProductDepth = 12, 2

// PullUnits are the units of a piece of a pull: UNITS of direct_pull.cu. Those of a push are
// mostUnits.
const PullUnits = 2

// MostPlacedBytes is how far into a window the words reach with which ranks tell each other where
// rows are, in 16 bytes.
const MostPlacedBytes = 16 << 32

// What a combine through slots sums: WEFT_FORM of slots_combine.cu.
const (
	RankSums    = 1 // rank-major rows
	PartialSums = 2 // rows by expert, summed at their rank first
	ExactSums   = 3 // rows by expert, summed at home
)

func CombineSums(s Spec) int {
	switch {
	case !s.Layout.ByExpert():
		return RankSums
	case s.Reduction != Exact:
		return PartialSums
	default:
		return ExactSums
	}
}

// UnitBytes is what a lane's 16 bytes make a warp's: UNIT of exchange.cuh.
const UnitBytes = 512

func Choose(s Spec, ranks int) Choice {
	t := tuneSlots(s, ranks)
	if !s.placed(ranks) {
		return t
	}
	t.Dispatch, t.ValueDispatch = Direct, false
	t.DependentDispatch, t.DependentCombine = false, false
	d, c := s.Tuning.Dispatch, s.Tuning.Combine
	most := max(placedBlocks, s.SMs)
	t.DispatchThreads = cmp.Or(d.Threads, placedThreads)
	t.DispatchBlocks = min(cmp.Or(d.Blocks, most), CeilDiv(s.MaxTokens*CeilDiv(s.RowSize(), MostUnits(s)*UnitBytes), 16))
	if s.pulls(ranks) {
		t.Combine = Direct
		t.CombineThreads = cmp.Or(c.Threads, placedThreads)
		t.CombineBlocks = min(cmp.Or(c.Blocks, most), CeilDiv(s.MaxTokens*CeilDiv(s.OutputSize(), PullUnits*UnitBytes), 16))
	}
	return t
}

// pulls reports whether sums are of rows that their homes read where they have their places.
func (s Spec) pulls(ranks int) bool {
	return s.placed(ranks) && s.Combines() && (!s.Layout.ByExpert() || s.Reduction == Exact && s.stages(ranks))
}

// stages reports whether a copy of all rows by expert is worth its memory, which rows that stand
// elsewhere than where they were received are read from. It is as large as the most rows that can
// come, where slots at home are as many as a rank's own selections.
func (s Spec) stages(ranks int) bool {
	rows, output := mostRows(s, ranks), int64(s.OutputSize())
	stage, slots := rows*output, 2*int64(s.MaxTokens)*int64(s.TopK)*output
	received := int64(s.Live) * NewBlockShape(s, int(rows)).Bytes
	return stage <= max(slots, 2*received) && stage+received <= MostPlacedBytes/2
}

// PullRows is how many rows of a token a home adds up at most.
func (s Spec) PullRows(ranks int) int {
	if s.Layout.ByExpert() {
		return s.TopK
	}
	return min(s.TopK, ranks)
}

// carry is how a kernel moves rows by bulk copies: bytes at a time, by so many warps of a block.
type carry struct{ Chunk, Warps int }

// carryRows is how blocks of so many threads move rows of so many bytes, which shared memory has
// for each warp.
func carryRows(row, threads int, t KernelTuning) carry {
	parts := max(cmp.Or(t.Parts, CeilDiv(row, bulkChunkBytes)), CeilDiv(row, BulkSharedBytes))
	chunk := (CeilDiv(row, parts) + 15) &^ 15
	return carry{chunk, min(cmp.Or(t.Warps, bulkMostWarps), threads/32, BulkSharedBytes/chunk)}
}

// PushCarry is that of a dispatch by blocks of so many threads, or nothing if threads move the
// rows.
func (s *Spec) PushCarry(threads int) carry {
	row, t := s.RowSize(), s.Tuning.Dispatch
	if s.Quantize != weft.InvalidDType || t.Bulk < 0 || t.Bulk == 0 && row < thresholds.BulkRowBytes {
		return carry{}
	}
	return carryRows(row, threads, t)
}

// GradientCarry is that of the gradient of a combine.
func (s *Spec) GradientCarry(threads int) carry {
	if s.OutputSize() < thresholds.BulkRowBytes {
		return carry{}
	}
	return carryRows(s.OutputSize(), threads, KernelTuning{})
}

// PullCarry is that of a combine whose tokens have at most so many rows, of which shared memory has
// pullDepth parts for each warp.
func (s *Spec) PullCarry(threads, most int) carry {
	row, t := s.OutputSize(), s.Tuning.Combine
	if t.Bulk < 0 || t.Bulk == 0 && row < thresholds.BulkRowBytes {
		return carry{}
	}
	all := BulkSharedBytes / (PullDepth * most * UnitBytes) // units of a row that all warps have room for
	warps := bulkMostWarps
	if all/warps < pullFewUnits {
		warps = max(pullLeastWarps, all/pullManyUnits)
	}
	warps = min(cmp.Or(t.Warps, warps), threads/32, all)
	parts := max(t.Parts, CeilDiv(row, all/warps*UnitBytes))
	return carry{CeilDiv(row, parts*UnitBytes) * UnitBytes, warps}
}

// placed reports whether rows have their final places before they leave: where their number follows
// from the routing, and everywhere that something can overflow.
func (s Spec) placed(ranks int) bool {
	return s.Layout.Packed() || s.Capacity > 0 && int64(s.Capacity) < worst(s, ranks)
}

// unitThreads is how many threads a block has at most whose warps move a unit at a time, and rows
// are their own flags.
const unitThreads = 256

// tuneSlots is tune for rows that go through slots, and combines that do.
func tuneSlots(s Spec, ranks int) Choice {
	t := Choice{DispatchUnits: 1, DispatchThreads: unitThreads, CombineThreads: 128}
	d, c := s.Tuning.Dispatch, s.Tuning.Combine
	t.ValueDispatch = d.Protocol.values(s.MaxTokens <= valueTokens && !s.anyBits() &&
		(s.Layout.ByExpert() || ranks <= 2 || s.MaxTokens <= rankTokens))
	t.ValueCombine = c.Protocol.values(s.MaxTokens <= valueTokens)
	t.tuneDispatch(s, ranks)
	d.apply(&t.DependentDispatch, &t.DispatchSenders, &t.DispatchThreads)
	t.countDispatchBlocks(s, ranks)
	if s.Combines() {
		t.tuneCombine(s, ranks)
		c.apply(&t.DependentCombine, &t.CombineSenders, &t.CombineThreads)
		t.countCombineBlocks(s, ranks)
	}
	return t
}

// tuneDispatch chooses what the Spec does not.
func (t *Choice) tuneDispatch(s Spec, ranks int) {
	byExpert := s.Layout.ByExpert()
	t.DependentDispatch = s.MaxTokens <= dependentTokens || s.MaxTokens <= valueTokens && !byExpert
	units := s.MaxTokens * CeilDiv(s.RowSize(), UnitBytes)
	for most := MostUnits(s); t.DispatchUnits < most &&
		(units/(2*t.DispatchUnits) >= unitWarps || units*ranks/t.DispatchUnits > mostWarps); {
		t.DispatchUnits *= 2
	}
	if n := s.Tuning.Dispatch.Units; n != 0 {
		t.DispatchUnits = n
	}
	switch {
	case !t.ValueDispatch:
		t.DispatchThreads = 512
	case byExpert && s.MaxTokens*s.Hidden*ranks >= thresholds.ApartExpertCount &&
		(s.Quantize == weft.InvalidDType || ranks > 2):
		// What arrives is stored several times, so most blocks are needed for that. To one peer
		// little is sent, and what is quantised takes time.
		t.DispatchSenders = 2
	case !byExpert && s.MaxTokens*s.RowSize() >= thresholds.ApartRankBytes:
		t.DispatchSenders = 4
		if t.DispatchUnits > 1 {
			t.DispatchThreads = 512
		}
	}
	if ranks == 1 { // nothing is sent
		t.DispatchSenders = 0
	}
}

// countDispatchBlocks says how many blocks have something to do.
func (t *Choice) countDispatchBlocks(s Spec, ranks int) {
	warps := s.MaxTokens * CeilDiv(s.RowSize(), t.DispatchUnits*UnitBytes)
	if t.ValueDispatch {
		warps *= ranks
	}
	// half of a block's warps send, so that more blocks do; or some of the blocks send
	if !t.ValueDispatch || t.DispatchSenders != 0 {
		warps *= 2
	}
	t.DispatchNotify = 1
	rowWarps := t.DispatchThreads / 32
	// a second notify block counts, and the last warp of every block awaits what others have counted
	if s.Layout.ByExpert() && !FewTokens(s, ranks) {
		t.DispatchNotify++
		rowWarps--
	}
	t.DispatchBlocks = CeilDiv(warps, rowWarps)
}

// tuneCombine chooses what the Spec does not.
func (t *Choice) tuneCombine(s Spec, ranks int) {
	form, large := CombineSums(s), s.MaxTokens*s.OutputSize() >= thresholds.ApartCombineBytes
	t.DependentCombine = s.MaxTokens <= dependentTokens || t.ValueCombine && form != ExactSums
	if !t.ValueCombine || large {
		t.CombineThreads = 512
	}
	switch {
	case !t.ValueCombine || form == RankSums && !large && s.MaxTokens > 32:
	case !large:
		t.CombineSenders = 8
	case form == RankSums:
		t.CombineSenders = 4
	case form == PartialSums: // its senders sum as well
		t.CombineSenders = 6
	default: // the more ranks, the less stays
		t.CombineSenders = (19*(ranks-1) + ranks) / (2 * ranks)
	}
	if ranks == 1 {
		t.CombineSenders = 0
	}
}

// countCombineBlocks says how many blocks have something to do.
func (t *Choice) countCombineBlocks(s Spec, ranks int) {
	warps := s.MaxTokens * CeilDiv(s.OutputSize(), UnitBytes)
	if t.ValueCombine && CombineSums(s) != RankSums { // a warp sends for one rank
		warps *= ranks
	}
	if t.CombineSenders != 0 {
		warps *= 2
	}
	t.CombineBlocks = CeilDiv(warps, t.CombineThreads/32)
}

// MostUnits is how many units the kernels of a dispatch are made for at the most.
func MostUnits(s Spec) int {
	switch s.Quantize {
	case weft.InvalidDType:
		return 4
	case weft.Float32:
		return 1
	default:
		return 2
	}
}

// FewTokens says of how few tokens every rank learns from the records what comes: few of
// slots_dispatch.cuh.
func FewTokens(s Spec, ranks int) bool {
	return s.MaxTokens <= 8 && (!s.Layout.ByExpert() || (ranks-1)*s.MaxTokens*s.TopK <= 32)
}

func CeilDiv(n, by int) int { return (n + by - 1) / by }

// Senders is how many of an operation's blocks send, of 16 so many; 0: all do both.
func Senders(blocks, of16 int) uint32 {
	if of16 == 0 || blocks < 2 {
		return 0
	}
	return uint32(max(1, blocks*of16/16))
}
