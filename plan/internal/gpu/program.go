package gpu

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/launch"
	plans "github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// The kinds of operations that the kernel knows, and their flags: program.cuh.
const (
	kindEnd = iota
	kindNop
	kindMeet
	kindAcquire
	kindRelease
	kindSignal
	kindWait
	kindPairs
	kindReceive
	kindFold
	kindLoop
	kindAdmit  // waits until those to whom the block pushes have begun
	kindPush   // pushes what lies in the outbox, and signals
	kindFlush  // waits until all that was pushed has left
	kindBegin  // tells who pushes that this rank has begun
	kindArrive // waits for a signal of who pushes
	kindLand   // stores what lies in the inbox where it belongs
)

const (
	flagRelaxed = 1 << iota // a signal that orders no data
	flagBehind              // a signal behind what all threads of the block did before
	flagSend                // pairs whose sinks are packets
	flagUncut               // an operation that a pipeline repeats whole
	flagEarly               // plain sources may be read before the packets are there
	flagFromAll             // sources are those of all ranks, whose multicast address stands behind the operands
	flagToAll               // and so are sinks: their address stands behind that
	flagFirst               // a block begins with these pairs, whose sources do not depend on which launch it is
)

// Where an address is: the constants of program.cuh.
const (
	atInput = iota
	atOutput
	atData
	atPackets
	atInbound
	atOutbox
	atInbox
	atAllInputs
	atAllOutputs
	atAllData
	nowhere
)

// What a line of a kindPush asks for: far.cuh.
const (
	pushCarries = 1 << iota
	pushSignals
)

// Of the peer of an end: several blocks use that side of it.
const (
	sharedSignals = 1 << 30
	sharedWaits   = 1 << 31
)

const (
	vectorBytes = 16
	vectorWords = 4 // of 32 bits
	entryBytes  = 8
)

// program is what a rank's blocks do, in the form in which the kernel reads it: the same for every size of message.
// Each block has as many bytes as the longest.
type program struct {
	code []byte
	// of a block
	stride, operands, vectors, uses int

	blocks     int
	own        int         // of them the plan's; those behind them land what comes from other hosts
	everywhere []int       // blocks of each rank
	barriers   int         // of the rank
	semaphores int         // of the rank
	ends       int         // of channels, of the rank that has most
	sites      []spec.Site // of the numbers of operations in records, which begin at 1
	parts      []part      // of the operations on data: the largest decide how many threads a block has

	data, packets int  // chunks of scratch for plain data, and of what packets carry, of the rank that has most
	mixed         bool // some bytes hold plain data at one time and packets at another

	between       []stream // of all ranks
	streams       []stream // from this rank, or to it, in the order in which operations number them
	crosses       bool     // some rank pushes data to another host
	outbox, inbox int      // chunks
	switches      bool     // some operation, of any rank, may reach all ranks through a switch
}

// part is how many chunks an operation moves, and in how many blocks.
type part struct{ chunks, blocks int }

// mostOperands is how many sources or sinks an operation may have: their counts have 16 bits.
const mostOperands = math.MaxUint16

// encoder makes the program of a rank.
type encoder struct {
	plan    *launch.Plan
	file    *spec.File
	rank    int
	ends    []plans.End // of all ranks
	first   []int       // each rank's first end
	own     [3][]int    // this rank's ends by type, in order
	signals map[int]int // by end, the block that signals there; or several
	waits   map[int]int
	writers []writer
	plain   [plans.Buffers][]writer // those of plain data
	numbers map[int]int             // of barriers, by their number in the file
	host    func(rank int) int
	far     *traffic
	streams map[int]uint32 // the program's numbers of those of the traffic
	out     *program
	blocks  []*block
	err     error
}

// writer is a range of this rank's packets, or of one of its buffers, that a block writes.
type writer struct{ from, to, rank, block int }

// several is in the place of a block's number.
const several = -1

// block is the program of a block in the making.
type block struct {
	e       *encoder
	id      int
	uses    map[int]int // the position of each end
	order   []int       // ends by position
	entries []uint64    // of operations
	words   []uint32
	wrote   bool // data into memory of other ranks, or another block may have, since the last signal that orders data
	apart   bool // one thread may have waited, or threads may be in a transfer, since they last met

	// Of other hosts (program_far.go).
	lands   bool         // it stores what comes from there
	pushing []*push      // of the operation that is encoded; those that wait for a signal, if the block lands
	admits  map[int]bool // streams whose receivers have begun
}

// encode makes the program of a rank. Host says on which host a rank is.
func encode(p *launch.Plan, rank int, host func(rank int) int) (*program, error) {
	e := &encoder{
		plan: p, file: p.File, rank: rank, numbers: make(map[int]int), host: host, streams: make(map[int]uint32),
		out: &program{},
	}
	// Ends do not depend on the size of a message.
	shape := plans.Shape{Chunk: 1, Align: 1, Window: func(uint64) int { return math.MaxInt32 }}
	e.ends = plans.OfRank(p.File, shape, rank).Ends
	e.first = make([]int, len(p.File.Ranks))
	for i, x := range e.ends {
		if i == 0 || e.ends[i-1].Rank != x.Rank {
			e.first[x.Rank] = i
		}
		e.out.ends = max(e.out.ends, i-e.first[x.Rank]+1)
		if x.Rank == rank {
			e.own[x.Type] = append(e.own[x.Type], i)
		}
	}
	var err error
	if e.far, err = trafficOf(p, e.ends, host); err != nil {
		return nil, err
	}
	for r := range p.File.Ranks {
		n := len(p.File.Ranks[r].Blocks)
		for _, s := range e.far.streams {
			if s.to == r {
				n++
			}
		}
		e.out.everywhere = append(e.out.everywhere, max(1, n))
	}
	e.out.between = e.far.streams
	e.out.outbox, e.out.inbox, e.out.crosses = e.far.outbox[rank], e.far.inbox[rank], slices.Max(e.far.outbox) > 0
	for i, s := range e.far.streams {
		if s.from == rank || s.to == rank {
			e.streams[i] = uint32(len(e.out.streams))
			e.out.streams = append(e.out.streams, s)
		}
	}
	e.scratch()
	e.sides()
	for s, op := range p.File.All() {
		if op.Via == spec.Switched && !op.Kind.Packets() {
			r := &p.File.Ranks[s.Rank]
			for _, place := range slices.Concat(op.Src, op.Dst) {
				e.out.switches = e.out.switches || place.At == spec.Members &&
					len(owners(r, &r.Blocks[s.Block], op, place, s.Rank)) == len(p.File.Ranks)
			}
		}
	}
	e.out.semaphores = len(e.file.Ranks[rank].Semaphores)
	for id := range e.file.Ranks[rank].Blocks {
		e.block(id)
	}
	e.out.barriers = len(e.numbers)
	e.out.own = len(e.blocks)
	for i := range e.far.streams {
		if e.far.streams[i].to == rank {
			e.landing(i)
		}
	}
	e.out.blocks = e.out.everywhere[rank] // a rank without blocks launches one, so that it counts launches as others do
	e.lay()
	return e.out, e.err
}

// each calls f for every operation of a rank's block, those in pipelines too.
func each(b *spec.Block, f func(op *spec.Op)) {
	for i := range b.Ops {
		f(&b.Ops[i])
		for k := range b.Ops[i].Ops {
			f(&b.Ops[i].Ops[k])
		}
	}
}

// end is the number of an end that an operation names, among those of all ranks.
func (e *encoder) end(b *spec.Block, op *spec.Op, id int) int {
	return e.own[op.Via][b.Channel(op.Via, id)]
}

// signals says whether an operation counts what it sends to an end, and waits whether it counts what comes there.
func signals(k spec.Kind) bool {
	switch k {
	case spec.Signal, spec.RelaxedSignal, spec.PutWithSignal, spec.PutWithSignalAndFlush:
		return true
	}
	return false
}

func waits(k spec.Kind) bool { return k == spec.Wait || k == spec.RelaxedWait }

// sides notes which blocks of the rank use each side of an end.
func (e *encoder) sides() {
	e.signals, e.waits = make(map[int]int), make(map[int]int)
	for id := range e.file.Ranks[e.rank].Blocks {
		b := &e.file.Ranks[e.rank].Blocks[id]
		each(b, func(op *spec.Op) {
			side := e.signals
			switch {
			case signals(op.Kind):
			case waits(op.Kind):
				side = e.waits
			default:
				return
			}
			for _, c := range op.Channels {
				x := e.end(b, op, c)
				if by, ok := side[x]; ok && by != id {
					side[x] = several
				} else {
					side[x] = id
				}
			}
		})
	}
}

// scratch finds what all ranks use scratch for, and who writes this rank's packets.
func (e *encoder) scratch() {
	data, packets := make([][]span, len(e.file.Ranks)), make([][]span, len(e.file.Ranks))
	for r := range e.file.Ranks {
		rank := &e.file.Ranks[r]
		for b := range rank.Blocks {
			each(&rank.Blocks[b], func(op *spec.Op) {
				for _, source := range []bool{true, false} {
					places := op.Dst
					if source {
						places = op.Src
					}
					for i, p := range places {
						slot := op.Slot(source, i)
						for _, o := range owners(rank, &rank.Blocks[b], op, p, r) {
							if o.rank == e.rank && !source && !slot {
								e.plain[o.buffer] = append(e.plain[o.buffer], writer{p.Index, p.Index + p.Size, r, b})
							}
							switch {
							case o.buffer != spec.Scratch:
							case !slot:
								data[o.rank] = append(data[o.rank], span{p.Index, p.Index + p.Size})
								e.out.data = max(e.out.data, p.Index+p.Size)
							default:
								packets[o.rank] = append(packets[o.rank], span{p.Index, p.Index + p.Size})
								e.out.packets = max(e.out.packets, p.Index+p.Size)
								if o.rank == e.rank && !source {
									e.writers = append(e.writers, writer{p.Index, p.Index + p.Size, r, b})
								}
							}
						}
					}
				}
			})
		}
	}
	for r := range data {
		e.out.mixed = e.out.mixed || overlap(data[r], packets[r])
	}
}

// span is a range of chunks.
type span struct{ from, to int }

// overlap says whether any data lies where packets lie, which take twice the room.
func overlap(data, packets []span) bool {
	last := 0
	for _, s := range data {
		last = max(last, s.to)
	}
	here := make([]bool, last)
	for _, s := range data {
		for c := s.from; c < s.to; c++ {
			here[c] = true
		}
	}
	for _, s := range packets {
		for c := 2 * s.from; c < min(2*s.to, last); c++ {
			if here[c] {
				return true
			}
		}
	}
	return false
}

// owner is whose buffer a place is in.
type owner struct {
	rank   int
	buffer spec.Buffer
}

// owners are those of a place: of a switch, all members in order.
func owners(rank *spec.Rank, b *spec.Block, op *spec.Op, p spec.Place, self int) []owner {
	switch p.At {
	case spec.RemoteBuffer:
		r := rank.Remotes[b.Remote(op.Via, p.ID)]
		return []owner{{r.Rank, r.Buffer}}
	case spec.Members:
		s := rank.Switches[b.Channel(spec.Switched, p.ID)]
		all := make([]owner, len(s.Ranks))
		for i, r := range s.Ranks {
			all[i] = owner{r, s.Buffer}
		}
		return all
	}
	return []owner{{self, p.Buffer}}
}

// block encodes a block.
func (e *encoder) block(id int) {
	b := &block{e: e, id: id, uses: make(map[int]int), admits: make(map[int]bool)}
	e.blocks = append(e.blocks, b)
	file := &e.file.Ranks[e.rank].Blocks[id]
	each(file, func(op *spec.Op) {
		if op.Via == spec.Switched || !signals(op.Kind) && !waits(op.Kind) {
			return
		}
		for _, c := range op.Channels {
			b.use(e.end(file, op, c))
		}
	})
	e.out.uses = max(e.out.uses, len(b.order))
	b.ops(file, file.Ops, func(i int) spec.Site { return spec.Site{Rank: e.rank, Block: id, Op: i, Inner: -1} })
	b.flush(id)
}

// use gives an end a position.
func (b *block) use(end int) {
	if _, ok := b.uses[end]; !ok {
		b.uses[end] = len(b.order)
		b.order = append(b.order, end)
	}
}

// set is the words that have an end's bit.
func (b *block) set(end int) []uint32 {
	words := make([]uint32, (len(b.order)+31)/32)
	words[b.uses[end]/32] |= 1 << (b.uses[end] % 32)
	return words
}

// ops encodes operations that follow each other. Neighbours that unpack packets become one operation: nothing is
// published between them, and their packets are looked at together.
func (b *block) ops(file *spec.Block, ops []spec.Op, at func(i int) spec.Site) {
	for i := 0; i < len(ops); i++ {
		op := &ops[i]
		switch op.Kind {
		case spec.Pipeline:
			b.pipeline(file, op, at(i))
		case spec.UnpackPackets:
			n := 1
			for i+n < len(ops) && n < mostOperands && alike(op, &ops[i+n]) {
				n++
			}
			b.receive(file, ops[i:i+n], func(k int) spec.Site { return at(i + k) })
			i += n - 1
		default:
			b.op(file, op, at(i))
		}
	}
}

// alike says whether operations of one kind move as much, in the same groups.
func alike(a, b *spec.Op) bool {
	return a.Kind == b.Kind && a.Group == b.Group && a.Dst[0].Size == b.Dst[0].Size
}

func (b *block) pipeline(file *spec.Block, op *spec.Op, site spec.Site) {
	for k := range op.Ops {
		b.wrote = b.wrote || writes(&op.Ops[k])
	}
	b.apart = true // what ends a window comes before the next
	inner := func(i int) spec.Site { return spec.Site{Rank: site.Rank, Block: site.Block, Op: site.Op, Inner: i} }
	for i := range op.Ops {
		b.admit(b.e.far.pushes[inner(i)])
	}
	b.loop(op, site, func() { b.ops(file, op.Ops, inner) })
}

// loop encodes what a pipeline repeats.
func (b *block) loop(op *spec.Op, site spec.Site, body func()) {
	at := len(b.words)
	b.head(kindLoop, 0, 0, site, 0, 2)
	b.words = append(b.words, uint32(op.Unit), uint32(op.Unit>>32), uint32(op.Chunks), 0)
	body()
	b.words[at+3] = uint32((len(b.words)-at)/vectorWords - 2)
}

// receive encodes operations that unpack packets. The sites of all but the first follow its own.
func (b *block) receive(file *spec.Block, ops []spec.Op, at func(i int) spec.Site) {
	var from, to []uint64
	var writers []uint32
	for i := range ops {
		_, packets, slots := b.places(file, &ops[i], true)
		plain, _, _ := b.places(file, &ops[i], false)
		from, to = append(from, packets...), append(to, plain...)
		writers = append(writers, uint32(b.e.writer(slots[0])))
	}
	b.data(kindReceive, 0, &ops[0], at(0), from, to, 0, 0, writers)
	for i := 1; i < len(ops); i++ {
		b.e.out.sites = append(b.e.out.sites, at(i))
	}
}

// head begins an operation, of so many vectors.
func (b *block) head(kind, flags, reduction int, site spec.Site, count, vectors int) {
	b.e.out.sites = append(b.e.out.sites, site)
	what, number := uint32(kind|flags<<8|reduction<<16), uint32(len(b.e.out.sites))
	b.words = append(b.words, what, number, uint32(vectors), uint32(count))
}

// list appends an operation's head, and words behind it.
func (b *block) list(kind, flags int, site spec.Site, count int, words []uint32) {
	n := (len(words) + vectorWords - 1) / vectorWords
	b.head(kind, flags, 0, site, count, 1+n)
	b.words = append(b.words, words...)
	b.fill()
}

// fill makes whole vectors.
func (b *block) fill() {
	for len(b.words)%vectorWords != 0 {
		b.words = append(b.words, 0)
	}
}

// writes says whether an operation may leave data in memory of other ranks that no signal has ordered. Blocks that
// met have what each of them left.
func writes(op *spec.Op) bool {
	switch op.Kind {
	case spec.Barrier, spec.SemAcquire:
		return true
	}
	return !op.Kind.Packets() && slices.ContainsFunc(op.Dst, func(p spec.Place) bool {
		return p.At == spec.RemoteBuffer || p.At == spec.Members
	})
}

// op encodes an operation that is no pipeline.
func (b *block) op(file *spec.Block, op *spec.Op, site spec.Site) {
	b.wrote = b.wrote || writes(op)
	b.pushes(op, site)
	b.pushing = b.e.far.pushes[site]
	defer b.push(op, site)
	switch op.Kind {
	case spec.Nop, spec.Flush: // transfers have read their sources when all threads have come here
		b.list(kindNop, 0, site, 0, nil)
	case spec.Barrier:
		n, ok := b.e.numbers[op.Barrier]
		if !ok {
			n = len(b.e.numbers)
			b.e.numbers[op.Barrier] = n
		}
		b.list(kindMeet, 0, site, op.Blocks, []uint32{uint32(n)})
	case spec.SemAcquire:
		b.semaphores(kindAcquire, op, site)
	case spec.SemRelease:
		b.semaphores(kindRelease, op, site)
	case spec.Signal, spec.RelaxedSignal, spec.Wait, spec.RelaxedWait:
		b.channels(file, op, site)
	case spec.Copy, spec.Put, spec.Get, spec.SwitchStore:
		b.pairs(file, op, site, 0)
	case spec.PutWithSignal, spec.PutWithSignalAndFlush:
		b.pairs(file, op, site, 0)
		b.channels(file, op, site)
	case spec.CopyPackets:
		b.pairs(file, op, site, flagSend)
	case spec.PutPackets:
		if op.Via == spec.Memory {
			b.pairs(file, op, site, flagSend)
			return
		}
		all := b.pushing
		for i := range op.Src { // packets that are there go on as they are
			one := *op
			one.Src, one.Dst = op.Src[i:i+1], op.Dst[i:i+1]
			b.pushing = nil
			for _, p := range all {
				if p.at == i {
					b.pushing = []*push{{out: p.out}}
				}
			}
			b.fold(file, &one, site)
		}
	default:
		b.fold(file, op, site)
	}
}

// pushes lets the block's threads meet before they move what one thread pushes into a port: that thread has waited, and
// the port has moved what was pushed before, which of all threads is not said.
func (b *block) pushes(op *spec.Op, site spec.Site) {
	switch op.Kind {
	case spec.Nop, spec.Barrier, spec.Flush:
		b.apart = false
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire:
		b.apart = true
	default:
		if op.Via != spec.Port || op.Kind.Syncs() {
			return
		}
		if b.apart {
			b.list(kindNop, 0, site, 0, nil)
		}
		b.apart = true
	}
}

func (b *block) semaphores(kind int, op *spec.Op, site spec.Site) {
	var words []uint32
	for _, id := range op.Semaphores {
		words = append(words, uint32(id), uint32(b.e.file.Ranks[b.e.rank].Semaphores[id]))
	}
	b.list(kind, 0, site, len(op.Semaphores), words)
}

// channels encodes a signal or wait, whose ends are a set of positions. One that has an end twice has two sets.
func (b *block) channels(file *spec.Block, op *spec.Op, site spec.Site) {
	kind, flags, wrote := kindSignal, 0, b.wrote
	switch op.Kind {
	case spec.Wait, spec.RelaxedWait:
		kind = kindWait
	case spec.RelaxedSignal:
		// Behind stores to other ranks it orders them all the same. Their ranks may end, or read them, once it has come,
		// and a GPU need not let it come last.
		if !b.wrote {
			flags = flagRelaxed
		}
	default:
		b.wrote = false
		if op.Via == spec.Port {
			flags = flagBehind // what was pushed before
		}
	}
	var sets [][]uint32
	for _, c := range op.Channels {
		end := b.e.end(file, op, c)
		if kind == kindSignal && b.e.apart(b.e.ends[end].To) {
			continue // it is pushed
		}
		at := b.uses[end]
		bit := uint32(1) << (at % 32)
		i := slices.IndexFunc(sets, func(s []uint32) bool { return s[at/32]&bit == 0 })
		if i < 0 {
			i = len(sets)
			sets = append(sets, make([]uint32, (len(b.order)+31)/32))
		}
		sets[i][at/32] |= bit
	}
	for _, set := range sets {
		b.list(kind, flags, site, 0, set)
	}
	if len(sets) == 0 { // a signal that is pushed orders nothing on this host
		b.wrote = wrote
	}
}

// entry is an address of the program: a chunk of a buffer.
func entry(where, rank, index int) uint64 {
	return uint64(rank)<<40 | uint64(where)<<32 | uint64(uint32(index))
}

// places are the entries of places, of which some are packets.
func (b *block) places(file *spec.Block, op *spec.Op, source bool) (plain, packets []uint64, slots []spec.Place) {
	all := op.Dst
	if source {
		all = op.Src
	}
	for i, p := range all {
		slot := op.Slot(source, i)
		for _, o := range owners(&b.e.file.Ranks[b.e.rank], file, op, p, b.e.rank) {
			switch {
			case b.e.apart(o.rank):
				k := slices.IndexFunc(b.pushing, func(x *push) bool { return x.at == i })
				plain = append(plain, entry(atOutbox, b.e.rank, b.pushing[k].out))
			case slot:
				packets = append(packets, o.entry(slot, p.Index))
				slots = append(slots, p)
			default:
				plain = append(plain, o.entry(slot, p.Index))
			}
		}
	}
	return plain, packets, slots
}

// apart says whether a rank is on another host.
func (e *encoder) apart(rank int) bool { return e.host(rank) != e.host(e.rank) }

// entry is the address of a chunk of the buffer.
func (o owner) entry(slot bool, index int) uint64 {
	where := atInput
	switch {
	case slot:
		where = atPackets
	case o.buffer == spec.Scratch:
		where = atData
	case o.buffer == spec.Output:
		where = atOutput
	}
	return entry(where, o.rank, index)
}

// data appends the head of an operation on data, its two vectors, and the words behind them.
func (b *block) data(kind, flags int, op *spec.Op, site spec.Site, from, to []uint64, packets, plain int,
	words []uint32,
) {
	if len(from) > mostOperands || len(to) > mostOperands || op.Group.Size > mostOperands {
		b.e.err = weft.Unsupportedf("%s: %d sources, %d destinations, a group of %d; there may be %d of each",
			b.e.plan.At(site), len(from), len(to), op.Group.Size, mostOperands)
		return
	}
	if op.Kind.Packets() {
		flags |= flagUncut
	}
	chunks := 0
	if len(op.Dst) > 0 {
		chunks = op.Dst[0].Size
	}
	if p := (part{chunks, max(1, op.Group.Size)}); !slices.Contains(b.e.out.parts, p) {
		b.e.out.parts = append(b.e.out.parts, p)
	}
	b.head(kind, flags, int(launch.Operator(op.Reduce)), site, 0, 3+(len(words)+vectorWords-1)/vectorWords)
	b.words = append(b.words, uint32(chunks), groupOf(op), uint32(len(b.entries)), uint32(len(from)),
		uint32(len(to)), uint32(packets)|uint32(plain)<<16, 0, 0)
	b.words = append(b.words, words...)
	b.fill()
	b.entries = append(append(b.entries, from...), to...)
	if flags&(flagFromAll|flagToAll) != 0 {
		b.entries = append(b.entries, b.all(op.Src), b.all(op.Dst))
	}
}

// switched are the flags of an operation of switches that reach all ranks.
func (b *block) switched(op *spec.Op) (flags int) {
	if op.Kind.Packets() {
		return 0
	}
	if b.all(op.Src) != entry(nowhere, 0, 0) {
		flags |= flagFromAll
	}
	if b.all(op.Dst) != entry(nowhere, 0, 0) {
		flags |= flagToAll
	}
	return flags
}

// all is the multicast address of places that are one of all ranks; or nowhere.
func (b *block) all(places []spec.Place) uint64 {
	if len(places) == 1 && places[0].At == spec.Members {
		p, rank := places[0], &b.e.file.Ranks[b.e.rank]
		s := rank.Switches[rank.Blocks[b.id].Channel(spec.Switched, p.ID)]
		if where := map[spec.Buffer]int{
			spec.Input: atAllInputs, spec.Output: atAllOutputs, spec.Scratch: atAllData,
		}[s.Buffer]; len(s.Ranks) == len(b.e.file.Ranks) {
			return entry(where, 0, p.Index)
		}
	}
	return entry(nowhere, 0, 0)
}

// pairs encodes copies of one place to one, or of one to many.
func (b *block) pairs(file *spec.Block, op *spec.Op, site spec.Site, flags int) {
	from, _, _ := b.places(file, op, true)
	to, packets, _ := b.places(file, op, false)
	if len(slices.Compact(slices.Clone(from))) == 1 {
		from, to = from[:1], unique(to) // which is read once, and kept once for all other hosts
	}
	flags |= b.switched(op)
	if flags&(flagFromAll|flagToAll) == 0 && b.opens(from) {
		flags |= flagFirst
	}
	b.data(kindPairs, flags, op, site, from, append(to, packets...), 0, 0, nil)
}

// mostFirst is how many sources a thread may read before it knows which launch this is: FLIGHT of program.cuh.
const mostFirst = 4

// opens says whether a block that begins with an operation may read its sources at once: those that have one place in
// all launches.
func (b *block) opens(sources []uint64) bool {
	moves := func(x uint64) bool { return x>>32&0xFF != atInput && x>>32&0xFF != atOutput }
	return !b.lands && len(b.words) == 0 && len(sources) <= mostFirst && !slices.ContainsFunc(sources, moves)
}

// fold encodes an operation that folds all its sources, or has one, and stores the result everywhere.
func (b *block) fold(file *spec.Block, op *spec.Op, site spec.Site) {
	from, packets, slots := b.places(file, op, true)
	to, sent, _ := b.places(file, op, false)
	var writers []uint32
	for _, p := range slots {
		writers = append(writers, uint32(b.e.writer(p)))
	}
	flags := b.switched(op)
	if len(packets) > 0 && len(from) > 0 && b.alone(op.Src[0]) {
		flags |= flagEarly
	}
	to = unique(to)
	// Packets are folded first: program.Step.Folds.
	b.data(kindFold, flags, op, site, append(packets, from...), append(to, sent...), len(packets), len(to), writers)
}

// unique leaves the first of equal addresses, which are of the outbox.
func unique(all []uint64) (some []uint64) {
	for _, x := range all {
		if !slices.Contains(some, x) {
			some = append(some, x)
		}
	}
	return some
}

// writer is a rank that writes the packets of a place.
func (e *encoder) writer(p spec.Place) int {
	for _, w := range e.writers {
		if w.from < p.Index+p.Size && p.Index < w.to {
			return w.rank
		}
	}
	return e.rank
}

// alone says whether no other block writes a local place of plain data, so that packets order nothing that is there.
func (b *block) alone(p spec.Place) bool {
	for _, alias := range b.e.aliases(p) {
		for _, w := range b.e.plain[alias.Buffer] {
			if w.from < alias.Index+alias.Size && alias.Index < w.to && (w.rank != b.e.rank || w.block != b.id) {
				return false
			}
		}
	}
	return true
}

// aliases are the places that a local place may be: of a plan in place its input is its output.
func (e *encoder) aliases(p spec.Place) []spec.Place {
	if p.Buffer == spec.Scratch {
		return []spec.Place{p}
	}
	rank := &e.file.Ranks[e.rank]
	other := p
	other.Buffer = spec.Input + spec.Output - p.Buffer
	shift := 0 // of an input's chunk in the output
	switch e.file.Collective {
	case spec.AllReduce, spec.AllToAll:
	case spec.AllGather:
		shift = e.rank * rank.Input
	case spec.ReduceScatter:
		shift = -e.rank * rank.Output
	default: // wherever the caller puts them
		other.Index, other.Size = 0, rank.Size(other.Buffer)
		return []spec.Place{p, other}
	}
	if !e.file.InPlace {
		return []spec.Place{p}
	}
	if p.Buffer == spec.Output {
		shift = -shift
	}
	other.Index += shift
	return []spec.Place{p, other}
}

// endVectors are those of a kindEnd: of each operation the kernel reads as many vectors as one on data has.
const endVectors = 3

// lay puts the blocks' programs behind each other.
func (e *encoder) lay() {
	p := e.out
	peers := (p.uses + 1) / 2 // vectors
	for _, b := range e.blocks {
		p.operands = max(p.operands, 2*p.uses+len(b.entries))
		p.vectors = max(p.vectors, peers+len(b.words)/vectorWords+endVectors)
	}
	p.operands, p.vectors = (p.operands+1)&^1, max(p.vectors, peers+endVectors)
	p.stride = p.operands*entryBytes + p.vectors*vectorBytes
	p.code = make([]byte, p.blocks*p.stride)
	for i, b := range e.blocks {
		b.lay(p.code[i*p.stride : (i+1)*p.stride])
	}
}

// lay writes the program of a block: entries, the peers of its ends, operations.
func (b *block) lay(to []byte) {
	p := b.e.out
	entries := make([]uint64, p.operands)
	for i := range entries {
		entries[i] = entry(nowhere, 0, 0)
	}
	words := make([]uint32, 4*((p.uses+1)/2), 4*p.vectors)
	for at, x := range b.order {
		end := b.e.ends[x]
		mine := x - b.e.first[b.e.rank]
		entries[2*at+1] = entry(atInbound, b.e.rank, mine)
		switch {
		case b.lands: // in the peer's place
			entries[2*at] = entries[2*at+1]
			words[2*at], words[2*at+1] = uint32(end.To), uint32(mine)
			continue
		case end.Peer >= 0 && !b.e.apart(end.To):
			entries[2*at] = entry(atInbound, end.To, end.Peer-b.e.first[end.To])
		}
		peer := uint32(end.To)
		if b.e.signals[x] == several {
			peer |= sharedSignals
		}
		if b.e.waits[x] == several {
			peer |= sharedWaits
		}
		words[2*at], words[2*at+1] = peer, uint32(mine)
	}
	// Operations count their operands from the first; ends come before those.
	copy(entries[2*p.uses:], b.entries)
	for i, w := range append(words, b.words...) {
		binary.LittleEndian.PutUint32(to[p.operands*entryBytes+4*i:], w)
	}
	for i, x := range entries {
		binary.LittleEndian.PutUint64(to[i*entryBytes:], x)
	}
}
