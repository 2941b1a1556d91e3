package gpu

import (
	"context"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// rings is how the memory for what one rank sends another is laid out: see message.cu. It is the same for
// all pairs, and follows from the size of the staging memory and the number of ranks alone.
type rings struct {
	cells, chunks int // powers of two
	chunkBytes    int
	shortBytes    int // of the longest message that goes through cells
}

// A rank has rings for every other rank: together a quarter of the size of the staging memory, and mostRings at
// most; those of a pair are leastRing at least.
const (
	mostRings  = 16 << 20
	leastRing  = 4 << 10
	mostShort  = 64 << 10
	mostChunk  = 8 << 10
	leastChunk = 512
	mostCells  = 256
	mostChunks = 512

	cellVectors  = 32
	cellBytes    = cellVectors * 2 * vectorBytes // each 4 bytes have the cell's number beside them
	cellCapacity = cellVectors * vectorBytes     // of which the first of a message's cells has a vector less
)

func ringsFor(staging, ranks int) (r rings) {
	share := max(leastRing, min(staging/4, mostRings)/others(ranks))
	r.cells = powerOfTwo(min(max(2, share/8/cellBytes), mostCells))
	rest := share - r.cells*cellBytes
	for r.chunkBytes = mostChunk; r.chunkBytes > leastChunk && rest/r.chunkBytes < 8; r.chunkBytes /= 2 {
	}
	r.chunks = powerOfTwo(min(rest/r.chunkBytes, mostChunks))
	r.shortBytes = min(r.cells*cellCapacity*3/4, mostShort)
	return r
}

// others is how many ranks a rank has rings for.
func others(ranks int) int { return max(1, ranks-1) }

// ringOf is the number of a rank's rings in another rank's memory.
func ringOf(rank, owner int) uint32 {
	if rank > owner {
		rank--
	}
	return uint32(rank)
}

// powerOfTwo is the greatest that is not more than n.
func powerOfTwo(n int) int {
	p := 1
	for 2*p <= n {
		p *= 2
	}
	return p
}

// words are those of a pair: its posts, what is freed, credits, and which chunks are there.
func (r *rings) words() int { return 4 + r.cells + 2*r.chunks }

// of says how many cells and chunks a message takes.
func (r *rings) of(bytes int) (cells, chunks int) {
	if bytes > r.shortBytes {
		return 1, (bytes + r.chunkBytes - 1) / r.chunkBytes
	}
	return (vectors(bytes) + 1 + cellVectors - 1) / cellVectors, 0
}

// The kinds of ways.
const (
	toPeer = iota
	fromPeer
	ownWay
)

// way is the Way of message.cu.
type way struct {
	remote          uint64
	peer            uint32
	own, theirs     uint32
	kind            uint32
	first, messages uint32
	worker, workers uint32
	cells, chunks   uint32
}

// entry is the Message of message.cu.
type entry struct{ at, bytes, word uint64 }

const (
	wayWords    = int(unsafe.Sizeof(way{}) / 8)
	entryWords  = int(unsafe.Sizeof(entry{}) / 8)
	pairBytes   = 32
	inlineWords = 128     // of a list that is part of the launch
	listWords   = 384     // of one that is copied before, by one launch
	mostWords   = 8 << 10 // of any list
)

// mostMessages is how many messages a call may have: a list has room for them and for all ways.
const mostMessages = (mostWords - (2*device.MaxRanks+1)*wayWords) / entryWords

// messageArgs are the Messages of message.cu.
type messageArgs struct {
	state, pairs          uint64
	cells, chunks, words  uint64
	shortBytes            uint64
	cellCount, chunkCount uint32
	chunkBytes, ways      uint32
	op, _                 uint32
	list                  uint64
	inlined               [inlineWords]uint64
	group                 device.Group
}

// messageListArgs are the MessageList of message_list.cu.
type messageListArgs struct {
	to, words uint64
	word      [listWords]uint64
}

// messages sends and receives messages.
type messages struct {
	enginegpu.Launch[messageArgs]
	list enginegpu.Launch[messageListArgs]

	rings                rings
	cells, chunks, words uint64 // in the window
	pairs, table         int64  // in local memory

	// Of the call, for which nothing is allocated.
	ways    []way
	entries []entry
	of      []int // by rank and direction: one more than the index of its way
	plain   []uint64
}

// wordBits are those that two sides of a message have in common: the number of its elements, and their type.
const (
	wordBits      = 46
	wordCountBits = 41
)

func wordOf(t *weft.Tensor) uint64 { return uint64(t.DType)<<wordCountBits | uint64(t.Elems()) }

func messageSource(t target) enginegpu.Source {
	return source("messages", "message.cu", target{arch: t.arch}, unsafe.Sizeof(messageArgs{}), map[string]string{})
}

func messageListSource(t target) enginegpu.Source {
	return source("list of messages", "message_list.cu", target{arch: t.arch}, unsafe.Sizeof(messageListArgs{}),
		map[string]string{})
}

// layOutMessages adds the rings, and what a rank knows of them.
func (e *Engine) layOutMessages(staging int, window, local *enginegpu.Workspace) {
	m := &e.messages
	m.rings = ringsFor(staging, e.ranks)
	n := int64(others(e.ranks))
	m.cells = uint64(window.Ones(n * int64(m.rings.cells) * cellBytes))
	m.chunks = uint64(window.Raw(n * int64(m.rings.chunks) * int64(m.rings.chunkBytes)))
	m.words = uint64(window.Zeros(n * int64(m.rings.words()) * 8))
	m.pairs = local.Zeros(2 * int64(e.ranks) * pairBytes)
	m.table = local.Raw(mostWords * 8)
	m.of = make([]int, 2*e.ranks)
	m.ways = make([]way, 0, 2*e.ranks+1)
}

// Exchange implements [spec.Engine]. What is wrong with the arguments of one rank is returned there alone.
//
// The first call after ranks were masked is collective, also if it is one of messages: the ranks that go
// on begin anew together.
func (e *Engine) Exchange(ctx context.Context, s *weft.Stream, c *spec.Call, refused error) error {
	if refused == nil {
		refused = e.plan(c)
	}
	if refused != nil || len(e.messages.ways) == 0 {
		return refused
	}
	stream, err := e.Enter(ctx, c.Name(), s)
	if err != nil {
		return err
	}
	if err := e.startMessages(stream, c); err != nil {
		return err
	}
	return e.Finish(ctx, s)
}

// plan sorts a call's messages into ways, and gives these workers.
func (e *Engine) plan(c *spec.Call) error {
	m, own := &e.messages, e.comm.Rank()
	if len(c.Transfers) > mostMessages {
		return weft.Unsupportedf("%s: %d messages in one call on GPUs; it may have %d", c.Name(), len(c.Transfers),
			mostMessages)
	}
	clear(m.of)
	m.ways, m.entries = m.ways[:0], m.entries[:0]
	for i := range c.Transfers {
		t := &c.Transfers[i]
		if t.Peer == own && !t.Receive {
			continue // the receive stands for both
		}
		w := m.wayOf(t.Peer, kindOf(t, own))
		w.messages++
		cells, chunks := m.rings.of(t.Tensor.Bytes())
		w.cells, w.chunks = w.cells+uint32(cells), w.chunks+uint32(chunks)
		w.workers = max(w.workers, uint32(min(cells, m.rings.cells)), uint32(min(chunks, m.rings.chunks)))
	}
	return m.staff(e.blocks*(wide/warp), c)
}

func kindOf(t *spec.Transfer, own int) uint32 {
	switch {
	case t.Peer == own:
		return ownWay
	case t.Receive:
		return fromPeer
	default:
		return toPeer
	}
}

// warp is the threads of a worker.
const warp = 32

// wayOf finds the way of a peer's messages, or makes it.
func (m *messages) wayOf(peer int, kind uint32) *way {
	at := &m.of[2*peer+int(kind&1)]
	if *at == 0 {
		m.ways = append(m.ways, way{peer: uint32(peer), kind: kind})
		*at = len(m.ways)
	}
	return &m.ways[*at-1]
}

// staff lets every way have the workers that it wants, or its share of so many. Blocks of them wait for
// peers, so no way can be left for later.
func (m *messages) staff(most int, c *spec.Call) error {
	if len(m.ways) > most {
		return weft.Unsupportedf("%s: messages of %d ways, and there is room for %d beside what runs on the GPU: "+
			"make the group with more SMs, or send and receive in several calls", c.Name(), len(m.ways), most)
	}
	wanted := 0
	for i := range m.ways {
		wanted += int(m.ways[i].workers)
	}
	first, worker := uint32(0), uint32(0)
	for i := range m.ways {
		w := &m.ways[i]
		if wanted > most {
			w.workers = 1 + uint32(int(w.workers-1)*(most-len(m.ways))/max(1, wanted-len(m.ways)))
		}
		w.first, w.worker = first, worker
		first, worker = first+w.messages, worker+w.workers
	}
	return nil
}

// startMessages enqueues what was planned.
func (e *Engine) startMessages(stream *cuda.Stream, c *spec.Call) error {
	m := &e.messages
	e.fill(c)
	a := m.Args
	a.state, a.pairs, a.group = e.args.state, uint64(e.lane.Local(m.pairs)), e.group
	a.cells, a.chunks, a.words = m.cells, m.chunks, m.words
	a.shortBytes, a.chunkBytes = uint64(m.rings.shortBytes), uint32(m.rings.chunkBytes)
	a.cellCount, a.chunkCount = uint32(m.rings.cells), uint32(m.rings.chunks)
	a.ways, a.op, a.list = uint32(len(m.ways)), opBatch, 0
	if len(c.Transfers) == 1 {
		a.op = opSend
		if c.Transfers[0].Receive {
			a.op = opReceive
		}
	}
	m.plain = append(append(m.plain[:0], plain(m.ways)...), plain(m.entries)...)
	if len(m.plain) <= inlineWords {
		copy(a.inlined[:], m.plain)
	} else {
		a.list = uint64(e.lane.Local(m.table))
		for at := 0; at < len(m.plain); at += listWords {
			l := m.list.Args
			l.to, l.words = a.list+8*uint64(at), uint64(copy(l.word[:], m.plain[at:]))
			if err := m.list.Start(stream); err != nil {
				return err
			}
		}
	}
	last := &m.ways[len(m.ways)-1]
	workers := int(last.worker + last.workers)
	blocks := min((workers*warp+narrow-1)/narrow, e.blocks)
	each := width(workers*warp, blocks, wide)
	m.SetBlock(cuda.Dim{X: uint32(each)})
	m.SetGrid(cuda.Dim{X: uint32((workers*warp + each - 1) / each)})
	return m.Start(stream) // it is no operation of the lane
}

// fill gives the ways their messages.
func (e *Engine) fill(c *spec.Call) {
	m, own := &e.messages, e.comm.Rank()
	n := 0
	for i := range m.ways {
		w := &m.ways[i]
		n += int(w.messages)
		w.messages = 0
		peer := int(w.peer)
		w.remote, w.own, w.theirs = e.group.Window[peer], ringOf(peer, own), ringOf(own, peer)
		switch {
		case w.kind == ownWay:
			w.own, w.theirs = 0, 0 // it uses none
		case e.ranks != e.comm.Size():
			// In a loopback, what this rank sends to the next one it receives from the one before, and so on.
			w.remote, w.theirs = e.group.Window[own], ringOf(e.ranks-peer, own)
		}
	}
	if cap(m.entries) < n {
		m.entries = make([]entry, n)
	}
	m.entries = m.entries[:n]
	source := 0
	for i := range c.Transfers {
		t := &c.Transfers[i]
		if t.Peer == own && !t.Receive {
			continue
		}
		w, word := m.wayOf(t.Peer, kindOf(t, own)), wordOf(&t.Tensor)
		if t.Peer == own {
			source = c.NextOwn(own, false, source)
			word = uint64(c.Transfers[source].Tensor.Pointer())
			source++
		}
		m.entries[w.first+w.messages] = entry{uint64(t.Tensor.Pointer()), uint64(t.Tensor.Bytes()), word}
		w.messages++
	}
}

// plain is structs as words.
func plain[T way | entry](of []T) []uint64 {
	var t T
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(of))), len(of)*int(unsafe.Sizeof(t))/8)
}

// messagesDiffer says how the two sides of a message differ: those of a record of message.cu.
func messagesDiffer(theirs, ours uint64) string {
	of := func(word uint64) (int, weft.DType) {
		return int(word & (1<<wordCountBits - 1)), weft.DType(word >> wordCountBits & 31)
	}
	count, dtype := of(theirs)
	own, ownType := of(ours)
	return spec.MessagesDiffer(ours>>wordBits&1 != 0, count, dtype, own, ownType)
}
