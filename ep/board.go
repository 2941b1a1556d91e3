package ep

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
)

// board is a rank's notice board in the handle's control window: what it writes there, every peer reads. Nobody else writes it.
//
//	post     two, by parity of the epoch: the epoch that this rank has entered and, in the same cache line, its notice:
//	         where the operand is that peers pull from, or that there is none
//	done     the epoch whose operands of other ranks this rank has finished reading
//	text     two, by parity of the epoch: why there is none
//	routing  two, by parity of the epoch: counts, and a record for each (token, destination rank)
type board struct {
	post    [2]*channel.Counter
	notices [2]*notice
	done    *channel.Counter
	mem     []byte
	g       *geometry
}

// notice is what a rank says when it enters an operation. It fills the rest of the first cache line of a post.
type notice struct {
	_      uint32        // the counter's
	word   atomic.Uint32 // which call it is; length and kind of text, if the rank cannot take part
	data   place
	scales place
}

// place is where an operand's rows stand: in which window, at which offset, how far apart.
type place struct {
	window, offset, stride uint64
}

const (
	doneAt   = 2 * channel.Stride
	textAt   = 3 * channel.Stride
	textSize = 2 * channel.Stride
	// routingAt is where routing begins.
	routingAt = textAt + 2*textSize
)

func (g *geometry) recordSize() int { return (4+2*g.topk+3)&^3 + 4*g.topk }

// records is the most (token, destination rank) pairs that one rank can have.
func (g *geometry) records() int { return g.tokens * min(g.topk, g.ranks) }

func (g *geometry) routingSize() int {
	n := 4*g.experts + 8*g.ranks + g.records()*g.recordSize()
	return (n + channel.Stride - 1) &^ (channel.Stride - 1)
}

func (g *geometry) boardSize() int { return routingAt + 2*g.routingSize() }

func newBoard(g *geometry, mem []byte) *board {
	b := &board{done: channel.CounterAt(mem, doneAt), mem: mem, g: g}
	for i := range b.post {
		b.post[i] = channel.CounterAt(mem, i*channel.Stride)
		b.notices[i] = (*notice)(unsafe.Pointer(&mem[i*channel.Stride+channel.CounterBytes-4]))
	}
	return b
}

// text is the place for the words of a refusal.
func (b *board) text(epoch uint64) []byte {
	at := textAt + int(epoch&1)*textSize
	return b.mem[at : at+textSize]
}

// routing is a view of a board's routing of one epoch.
type routing struct {
	counts   []int32 // selections of each expert
	distinct []int32 // tokens for each rank
	first    []int32 // the first record for each rank
	records  unsafe.Pointer
	size     int // of a record
	topk     int
}

func (b *board) routing(epoch uint64) routing {
	g := b.g
	p := unsafe.Pointer(&b.mem[routingAt+int(epoch&1)*g.routingSize()])
	r := routing{size: g.recordSize(), topk: g.topk}
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

// enter says that this rank has entered the epoch, with its operands or with the reason why it cannot take part: peers then return it too.
func (b *board) enter(epoch uint64, c call, data, scales place, err error) {
	n := b.notices[epoch&1]
	refused := uint32(0)
	if err != nil {
		refused = putRefusal(b.text(epoch), err)
	}
	n.word.Store(uint32(c) | refused)
	n.data, n.scales = data, scales
	b.post[epoch&1].Publish(epoch)
}

// refusal is the rank's refusal of the epoch, if it did refuse.
func (b *board) refusal(epoch uint64, rank int, op string) error {
	return refusal(rank, op, b.notices[epoch&1].word.Load()&(callUnit-1), b.text(epoch))
}

// call is a fingerprint of what must agree on all ranks: the operation, and the Routing by which it goes. It fills the upper bits of a notice's word.
type call uint32

const (
	callUnit  = unsupportedRefusal << 1 // the lowest bit of a call
	callKinds = 8
)

// The kinds of calls.
const (
	callPrepare = iota
	callDispatch
	callCombine
	callDispatchBackward
	callCombineBackward
	callDotsHome // the second half of combine backward
)

var callNames = [callKinds]string{"prepare", "dispatch", "combine", "dispatch backward", "combine backward", "combine backward"}

func newCall(kind int, r *Routing) call {
	var epoch uint64
	if r != nil {
		epoch = r.epoch
	}
	return call(uint32(epoch)*callKinds+uint32(kind)) * callUnit
}

// call is the call that a rank has entered the epoch with.
func (b *board) call(epoch uint64) call {
	return call(b.notices[epoch&1].word.Load()) &^ (callUnit - 1)
}

func (c call) kind() int { return int(c/callUnit) % callKinds }

// unsupportedRefusal marks the length of a text whose error was a [weft.ErrUnsupported]; others are [weft.ErrInvalid].
const unsupportedRefusal = 1 << 16

// putRefusal writes an error's text and returns its length and kind.
func putRefusal(text []byte, err error) uint32 {
	k := uint32(max(1, copy(text, err.Error())))
	if errors.Is(err, weft.ErrUnsupported) {
		k |= unsupportedRefusal
	}
	return k
}

// refusal is the error with which a rank answers another's, if that one did refuse.
func refusal(rank int, op string, refused uint32, text []byte) error {
	if refused == 0 {
		return nil
	}
	e := &refusedError{kind: weft.ErrInvalid}
	if refused&unsupportedRefusal != 0 {
		e.kind = weft.ErrUnsupported
	}
	e.text = string(text[:min(int(refused&^unsupportedRefusal), len(text))])
	return &weft.PeerError{Rank: rank, Op: op, Err: e}
}

// refusedError carries another rank's words, and wraps the sentinel that its error did. Nothing has moved, the communicator is whole.
type refusedError struct {
	text string
	kind error
}

func (e *refusedError) Error() string { return "refused there: " + e.text }
func (e *refusedError) Unwrap() error { return e.kind }
