package spec

import (
	"cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/thresholds"
)

// Way is how the rows of an operation on GPUs reach their destination.
type Way uint8

const (
	// Slots are at the receiver, at addresses that source and token number give. Rows leave for them
	// before anything is counted.
	Slots Way = iota
	// Direct is to and from final rows, which a row map gives before a row leaves.
	Direct
)

// Choice says how a handle on GPUs moves rows. It is a function of the Spec and the number of ranks, between hosts also
// of which host they are on, and of what ranks have agreed on ([CopiesVariable]). So it is the same on every rank.
type Choice struct {
	// Ports says that there are ranks whose memory is not mapped. What goes to them is stored here first, and port
	// channels carry it: see ports.go of ep/internal/gpu.
	Ports bool
	// OncePerHost says that they carry a row of a dispatch once to each host, and not to each rank.
	OncePerHost bool
	// The ways of the two. A dispatch is direct wherever a combine is: the home of a token then reads
	// its rows in place. Where a rank sums its rows of a token first, sums go home by slots.
	Dispatch, Combine Way
	// Values are their own flags; else each block has a flag.
	ValueDispatch, ValueCombine bool
	// Dependent launch: this kernel's blocks may be scheduled while the kernel before still ends.
	DependentDispatch, DependentCombine bool
	// Units of 512 bytes that a warp of dispatch moves at a time. Several units save instructions;
	// one spreads few rows over more SMs.
	DispatchUnits int
	// How many of 16 blocks send while the others receive; 0: all do both.
	DispatchSenders, CombineSenders int
	// Two warps share a piece of what a combine sums at home.
	CombineHalves bool
	// Notify and metadata blocks of a dispatch, which move no rows. They exist if there is room.
	DispatchNotify int
	// Threads of a block, and blocks that would have work.
	DispatchThreads, DispatchBlocks int
	CombineThreads, CombineBlocks   int
}

// Measured on four H200s and two, rows of 14 KiB: docs/benchmarks/README.md.
const (
	// Up to this many tokens a rank, values are their own flags. Beyond, polling and refilling cost
	// more than the fence and the second trip. The limit is rankTokens where flags save a copy of
	// the rows from several peers.
	valueTokens, rankTokens = 256, 128
	// Up to this many tokens dependent launches always gain more than they cost. Up to valueTokens they do except in
	// exact sums and dispatches by expert, as they are, to several ranks; rank-major sums up to rankTokens.
	dependentTokens = 64
	// A warp of dispatch moves several units at a time if at least unitWarps pieces are left to send, or while
	// more pieces arrive than warps receive at once.
	unitWarps = 448
	// Up to so many pieces of 512 bytes, all that a combine sends and sums has a warp of its own, if half of the blocks
	// send. Of at most halvedTokens, two warps sum a piece exactly.
	halvedTokens, fewPieces = 8, 448
	// So many of 16 blocks fill the links if all they do is to copy rows to peers. More would gain nothing.
	copySenders = 4
	// Of more than linkTokens tokens, linkSMs that send rows by expert to several peers fill the links. More would only
	// take SMs from those that receive.
	linkTokens, linkSMs = 64, 19
	// A block of 512 threads has an SM for itself, so smWarps are on an SM. A handle has handleSMs of an H100, three
	// quarters, unless its Spec says how many. How many the GPU has is not known here: ranks may have different ones.
	smWarps, handleSMs = 16, 99
)

// Blocks of the row map, push and pull kernels unless the Spec asks for more SMs (8 to 24 nearly
// fill the links), and threads of a block.
const directBlocks, directThreads = 32, 512

// Bulk copies: a warp's part of a row, and the shared memory of a block, for 14 parts of 14 KiB in
// flight.
const (
	bulkChunkBytes  = 14 << 10
	BulkSharedBytes = 14 * bulkChunkBytes
	BulkOwnBytes    = 20 << 10 // at most, of the kernels' own
	bulkMostWarps   = 16       // of a block
	// Parts that a warp of a combine holds: it adds one up while one is on its way. More parts
	// would be smaller, which costs more than it gains.
	PullDepth = 2
)

// A bulk copy of less than a few KiB is bound by its issue. If parts for all the warps of a combine
// would have fewer than pullFewUnits units, fewer warps work, with parts of pullManyUnits. At least
// pullLeastWarps remain, because that many add up as fast as an SM can read.
const pullFewUnits, pullManyUnits, pullLeastWarps = 3, 4, 3

// In the gradient of a combine with weights ProductWarps warps of a block multiply, each with
// ProductDepth parts in shared memory: DEPTH of gradients_products.cuh. To start a part and to wait for it
// takes some 150 instructions, so parts must not be small.
const ProductWarps, ProductDepth = 12, 2

// PullUnits are the units of a piece of a pull: UNITS of direct_pull.cu. Those of a push are
// MostUnits.
const PullUnits = 2

// MostDirectBytes is the reach of the 32-bit words, in units of 16 bytes, in which ranks tell each
// other where rows lie in a window.
const MostDirectBytes = 16 << 32

// What a combine in slot mode sums: WEFT_FORM of slots_combine.cuh.
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

// UnitBytes is the unit of a warp, at 16 bytes a lane: UNIT of exchange.cuh.
const UnitBytes = 512

func Choose(s Spec, ranks int) Choice {
	t := tuneSlots(s, ranks)
	if !s.direct(ranks) {
		return t
	}
	t.Dispatch, t.ValueDispatch = Direct, false
	t.DependentDispatch, t.DependentCombine = false, false
	d, c := s.Tuning.Dispatch, s.Tuning.Combine
	most := max(directBlocks, s.SMs)
	t.DispatchThreads = cmp.Or(d.Threads, directThreads)
	t.DispatchBlocks = min(cmp.Or(d.Blocks, most), CeilDiv(s.MaxTokens*CeilDiv(s.RowSize(), MostUnits(s)*UnitBytes), 16))
	if s.pulls(ranks) {
		t.Combine = Direct
		t.CombineThreads = cmp.Or(c.Threads, directThreads)
		t.CombineBlocks = min(cmp.Or(c.Blocks, most), CeilDiv(s.MaxTokens*CeilDiv(s.OutputSize(), PullUnits*UnitBytes), 16))
	}
	return t
}

// ChoiceOf is the Choice of the handles of a communicator.
func ChoiceOf(s Spec, comm *weft.Comm) Choice {
	if !comm.Operations().Spans() {
		return Choose(s, comm.Size())
	}
	c := ChooseBetween(s, comm.Size())
	var hosts []int
	for rank := range comm.Size() {
		hosts = append(hosts, comm.Host(rank))
	}
	once, err := CopiesByHost()
	c.OncePerHost = once && err == nil && s.OncePerHost(hosts)
	return c
}

// ChooseBetween is Choose for ranks of several hosts: by slots, whose blocks have flags. What a port channel carries
// may come in any order, and its signal comes behind all of it, so values cannot be their own flags.
func ChooseBetween(s Spec, ranks int) Choice {
	s.Tuning.Dispatch.Protocol, s.Tuning.Combine.Protocol = FlagProtocol, FlagProtocol
	s.Tuning.Dispatch.Dependent, s.Tuning.Combine.Dependent = -1, -1
	s.Tuning.Dispatch.Units = 1
	t := tuneSlots(s, ranks)
	t.Ports = true
	return t
}

// pulls reports whether homes read the rows of a combine in place.
func (s Spec) pulls(ranks int) bool {
	return s.direct(ranks) && s.Combines() && (!s.Layout.ByExpert() || s.Reduction == Exact && s.stages(ranks))
}

// stages reports whether a staging buffer for all rows by expert is worth its memory. Homes read it
// if rows do not lie in a receive buffer. It has room for the worst case of received rows, whereas
// slots at home have room for a rank's own selections.
func (s Spec) stages(ranks int) bool {
	rows, output := mostRows(s, ranks), int64(s.OutputSize())
	stage, slots := rows*output, 2*int64(s.MaxTokens)*int64(s.TopK)*output
	received := int64(s.Live) * NewBlockShape(s, int(rows)).Bytes
	return stage <= max(slots, 2*received) && stage+received <= MostDirectBytes/2
}

// PullRows is the most rows of a token that a home adds up.
func (s Spec) PullRows(ranks int) int {
	if s.Layout.ByExpert() {
		return s.TopK
	}
	return min(s.TopK, ranks)
}

// carry is how a kernel moves rows by bulk copies: Chunk bytes at a time, by Warps warps of a block.
type carry struct{ Chunk, Warps int }

// carryRows is how blocks of the given threads move rows of row bytes, with a chunk in shared memory
// for each warp.
func carryRows(row, threads int, t KernelTuning) carry {
	parts := max(cmp.Or(t.Parts, CeilDiv(row, bulkChunkBytes)), CeilDiv(row, BulkSharedBytes))
	chunk := (CeilDiv(row, parts) + 15) &^ 15
	return carry{chunk, min(cmp.Or(t.Warps, bulkMostWarps), threads/32, BulkSharedBytes/chunk)}
}

// PushCarry is the carry of a dispatch by blocks of the given threads; zero if threads move rows.
func (s *Spec) PushCarry(threads int) carry {
	row, t := s.RowSize(), s.Tuning.Dispatch
	if s.Quantize != weft.InvalidDType || t.Bulk < 0 || t.Bulk == 0 && row < thresholds.BulkRowBytes {
		return carry{}
	}
	return carryRows(row, threads, t)
}

// GradientCarry is the carry of the gradient of a combine; zero if threads move rows.
func (s *Spec) GradientCarry(threads int) carry {
	if s.OutputSize() < thresholds.BulkRowBytes {
		return carry{}
	}
	return carryRows(s.OutputSize(), threads, KernelTuning{})
}

// PullCarry is the carry of a combine whose tokens have at most the given rows, with PullDepth parts
// in shared memory for each warp; zero if threads move rows.
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

// direct reports whether the handle is in direct mode: with a packed layout, whose number of rows
// follows from the routing, and with a capacity that can overflow.
func (s Spec) direct(ranks int) bool {
	return s.Layout.Packed() || s.Capacity > 0 && int64(s.Capacity) < worst(s, ranks)
}

// unitThreads is the most threads of a block whose warps move one unit at a time, with values as
// flags.
const unitThreads = 256

// tuneSlots chooses for slot mode.
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

// warpsAtOnce is how many warps of a handle run at once, as far as the Spec says it. Pieces beyond wait for a second
// round, in which a warp begins when its first piece has arrived.
func (s Spec) warpsAtOnce() int { return smWarps * cmp.Or(s.SMs, handleSMs) }

// reached is how many ranks 1024 tokens reach, counted for each token, if its experts are anywhere. Whole numbers are
// the same on every processor.
func (s Spec) reached(ranks int) int {
	missed := 1 << 20 // of so many, by a rank
	for range s.TopK {
		missed = missed * (ranks - 1) / ranks
	}
	return ranks * (1<<20 - missed) >> 10
}

// sendersFor is how many of 16 blocks send, if senders move so many rows while the others move so many.
func sendersFor(sent, received int) int {
	return min(max(1, (16*sent+(sent+received)/2)/(sent+received)), 15)
}

// tuneDispatch chooses the values that the Spec leaves open.
func (t *Choice) tuneDispatch(s Spec, ranks int) {
	byExpert, quantizes := s.Layout.ByExpert(), s.Quantize != weft.InvalidDType
	t.DependentDispatch = s.MaxTokens <= dependentTokens ||
		s.MaxTokens <= valueTokens && (!byExpert || ranks <= 2 || quantizes)
	switch {
	case !t.ValueDispatch || ranks == 1: // with one rank nothing is sent
	case byExpert && s.MaxTokens*s.RowSize()*ranks >= thresholds.ApartExpertBytes:
		t.DispatchSenders = s.dispatchSenders(ranks)
	case !byExpert && s.MaxTokens*s.RowSize() >= thresholds.ApartRankBytes:
		t.DispatchSenders = copySenders
	}
	units, receiving := s.MaxTokens*CeilDiv(s.RowSize(), UnitBytes), s.warpsAtOnce()*(16-t.DispatchSenders)/16
	for most := MostUnits(s); t.DispatchUnits < most &&
		(units/(2*t.DispatchUnits) >= unitWarps || units*ranks/t.DispatchUnits > receiving); {
		t.DispatchUnits *= 2
	}
	if n := s.Tuning.Dispatch.Units; n != 0 {
		t.DispatchUnits = n
	}
	if !t.ValueDispatch || !byExpert && t.DispatchSenders != 0 && t.DispatchUnits > 1 {
		t.DispatchThreads = 512
	}
}

// dispatchSenders is how many of 16 blocks send rows by expert. Of each token a sender reads the row, twice as long if
// it is quantised, and stores it at each peer. A receiver reads and empties the slots of what peers sent, and stores a
// row for each selection, as often as a rank has tokens. A rank's own rows go through slots if they are quantised.
func (s Spec) dispatchSenders(ranks int) int {
	reached := s.reached(ranks)
	own := reached / ranks
	senders := sendersFor(1<<10+reached-own, 2*(reached-own)+own+s.TopK<<10)
	if s.Quantize != weft.InvalidDType {
		senders = sendersFor(2<<10+reached, 2*reached+s.TopK<<10)
	}
	if s.MaxTokens > linkTokens && ranks > 2 { // each row that is read goes to several peers
		senders = min(senders, max(1, 16*linkSMs/cmp.Or(s.SMs, handleSMs)))
	}
	return senders
}

// countDispatchBlocks counts the blocks that have work.
func (t *Choice) countDispatchBlocks(s Spec, ranks int) {
	warps := s.MaxTokens * CeilDiv(s.RowSize(), t.DispatchUnits*UnitBytes)
	if t.ValueDispatch {
		warps *= ranks
	}
	// Half of a block's warps send, so that more blocks do; or only some of the blocks send.
	if !t.ValueDispatch || t.DispatchSenders != 0 {
		warps *= 2
	}
	t.DispatchNotify = 1
	rowWarps := t.DispatchThreads / 32
	// A metadata block counts, and the last warp of every block waits for the counts.
	if s.Layout.ByExpert() && !FewTokens(s, ranks) {
		t.DispatchNotify++
		rowWarps--
	}
	t.DispatchBlocks = CeilDiv(warps, rowWarps)
}

// tuneCombine chooses the values that the Spec leaves open.
func (t *Choice) tuneCombine(s Spec, ranks int) {
	form, large := CombineSums(s), s.MaxTokens*s.OutputSize() >= thresholds.ApartCombineBytes
	pieces := s.MaxTokens * CeilDiv(s.OutputSize(), UnitBytes)
	t.CombineHalves = form == ExactSums && s.MaxTokens <= halvedTokens && pieces <= fewPieces
	t.DependentCombine = s.MaxTokens <= dependentTokens ||
		t.ValueCombine && (form == PartialSums || form == RankSums && s.MaxTokens <= rankTokens)
	if !t.ValueCombine || large {
		t.CombineThreads = 512
	}
	switch {
	case !t.ValueCombine || ranks == 1: // with one rank nothing is sent
	case !large && pieces <= fewPieces:
		t.CombineSenders = 8
	case form == PartialSums:
		t.CombineSenders = s.sumSenders(ranks, pieces, large)
	case form == RankSums || !large && s.oneRound(pieces):
		t.CombineSenders = copySenders
	case !large:
		t.CombineSenders = 8
	default: // the more ranks, the less stays
		t.CombineSenders = (19*(ranks-1) + ranks) / (2 * ranks)
	}
}

// oneRound says that all pieces have a warp at once if a quarter of the blocks send, but not if half of them do.
func (s Spec) oneRound(pieces int) bool {
	warps := s.warpsAtOnce()
	return 2*pieces > warps && 16*pieces <= (16-copySenders)*warps
}

// sumSenders is how many of 16 blocks send partial sums, 0 if all both send and sum. Of each token, senders read what
// has been selected elsewhere and store a sum for each peer, as often as a rank has tokens. The others read the
// selections here and the peers' sums, empty their slots, and store the result.
func (s Spec) sumSenders(ranks, pieces int, large bool) int {
	// If half of the blocks sent and half summed, each would take two rounds. If all do both, each takes one.
	if warps := s.warpsAtOnce(); !large && 2*pieces > warps && pieces*(ranks-1) <= warps {
		return 0
	}
	reached, here := s.reached(ranks), s.TopK<<10/ranks
	peers := reached - reached/ranks
	return sendersFor(s.TopK<<10-here+peers, here+2*peers+1<<10)
}

// countCombineBlocks counts the blocks that have work.
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

// MostUnits is the most units that a dispatch kernel supports.
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

// FewTokens reports whether there are so few tokens that every rank counts its rows from the routing
// metadata of the sources itself: few of slots_dispatch.cuh.
func FewTokens(s Spec, ranks int) bool {
	return s.MaxTokens <= 8 && (!s.Layout.ByExpert() || (ranks-1)*s.MaxTokens*s.TopK <= 32)
}

func CeilDiv(n, by int) int { return (n + by - 1) / by }

// Senders is the number of an operation's blocks that send, if of16 of 16 do; 0: all do both.
func Senders(blocks, of16 int) uint32 {
	if of16 == 0 || blocks < 2 {
		return 0
	}
	return uint32(max(1, blocks*of16/16))
}
