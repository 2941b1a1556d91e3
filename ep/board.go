package ep

import (
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
)

// board is a rank's notice board in the handle's control window: what it writes there, every peer reads. Nobody else writes it.
//
//	post     the epoch that this rank has entered, its notice and routing in place
//	done     the epoch whose operands of other ranks this rank has finished reading
//	notices  two, by parity of the epoch: the operand that peers pull from, or why there is none
//	routing  two, by parity of the epoch: header, counts, and a record for each (token, destination rank)
type board struct {
	post, done *channel.Counter
	notices    [2]*notice
	mem        []byte
	g          *geometry
}

// notice is what a rank says when it enters a move.
type notice struct {
	refused atomic.Uint32 // length of text, if the rank cannot take part
	_       uint32
	data    place
	scales  place
	text    [200]byte
}

// place is where an operand's rows stand: in which window, at which offset, how far apart.
type place struct {
	window, offset, stride uint64
}

const (
	noticeAt   = 2 * channel.Stride
	noticeSize = int(unsafe.Sizeof(notice{}))
)

// header begins a rank's routing.
type header struct {
	tokens  int32
	refused int32 // length of text
	text    [248]byte
}

const headerSize = int(unsafe.Sizeof(header{}))

func (g *geometry) recordSize() int { return (4+2*g.topk+3)&^3 + 4*g.topk }

func (g *geometry) routingSize() int {
	records := g.tokens * min(g.topk, g.ranks)
	n := headerSize + 4*g.experts + 8*g.ranks + records*g.recordSize()
	return (n + channel.Stride - 1) &^ (channel.Stride - 1)
}

func (g *geometry) routingAt() int {
	return (noticeAt + 2*noticeSize + channel.Stride - 1) &^ (channel.Stride - 1)
}

func (g *geometry) boardSize() int { return g.routingAt() + 2*g.routingSize() }

func newBoard(g *geometry, mem []byte) *board {
	b := &board{post: channel.CounterAt(mem, 0), done: channel.CounterAt(mem, channel.Stride), mem: mem, g: g}
	for i := range b.notices {
		b.notices[i] = (*notice)(unsafe.Pointer(&mem[noticeAt+i*noticeSize]))
	}
	return b
}

// routing is a view of a board's routing of one epoch.
type routing struct {
	head     *header
	counts   []int32 // selections of each expert
	distinct []int32 // tokens for each rank
	first    []int32 // the first record for each rank
	records  unsafe.Pointer
	size     int // of a record
	topk     int
}

func (b *board) routing(epoch uint64) routing {
	g := b.g
	p := unsafe.Pointer(&b.mem[g.routingAt()+int(epoch&1)*g.routingSize()])
	r := routing{head: (*header)(p), size: g.recordSize(), topk: g.topk}
	p = unsafe.Add(p, headerSize)
	r.counts = unsafe.Slice((*int32)(p), g.experts)
	p = unsafe.Add(p, 4*g.experts)
	r.distinct = unsafe.Slice((*int32)(p), g.ranks)
	p = unsafe.Add(p, 4*g.ranks)
	r.first = unsafe.Slice((*int32)(p), g.ranks)
	r.records = unsafe.Add(p, 4*g.ranks)
	return r
}

// record is a token on its way to one rank: its index at the source, and for each selection the expert's index there, or -1, and the weight.
type record struct {
	token   *int32
	experts []int16
	weights []float32
}

func (r *routing) record(i int) record {
	p := unsafe.Add(r.records, i*r.size)
	return record{
		token:   (*int32)(p),
		experts: unsafe.Slice((*int16)(unsafe.Add(p, 4)), r.topk),
		weights: unsafe.Slice((*float32)(unsafe.Add(p, (4+2*r.topk+3)&^3)), r.topk),
	}
}

// refuse puts err in the notice of the epoch: peers return it too.
func (n *notice) refuse(err error) {
	k := copy(n.text[:], err.Error())
	n.refused.Store(uint32(max(k, 1)))
}

// set puts the operands' places in the notice.
func (n *notice) set(data, scales place) {
	n.refused.Store(0)
	n.data, n.scales = data, scales
}

// err is the peer's refusal, if it did refuse.
func (n *notice) err(rank int, op string) error {
	k := n.refused.Load()
	if k == 0 {
		return nil
	}
	return refusal(rank, op, n.text[:min(int(k), len(n.text))])
}

func (h *header) refuse(err error) { h.refused = int32(max(1, copy(h.text[:], err.Error()))) }

func (h *header) err(rank int, op string) error {
	if h.refused == 0 {
		return nil
	}
	return refusal(rank, op, h.text[:min(max(int(h.refused), 0), len(h.text))])
}

// refusal is the error with which a rank answers another's.
func refusal(rank int, op string, text []byte) error {
	return &weft.PeerError{Rank: rank, Op: op, Err: &refusedError{string(text)}}
}

// refusedError carries another rank's words. It counts as [weft.ErrInvalid]: nothing has moved, the communicator is whole.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return "refused there: " + e.text }
func (e *refusedError) Unwrap() error { return weft.ErrInvalid }
