package pull

import (
	"sync/atomic"
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft/channel"
)

// board is a rank's notice board in the handle's control window: what it writes there, every peer
// reads. Nobody else writes it.
//
//	post     two, by parity of the epoch: the epoch that this rank has entered and, in the same cache
//	         line, its notice: where the operand is that peers pull from, or that there is none
//	done     the epoch whose operands of other ranks this rank has finished reading
//	text     two, by parity of the epoch: why there is none
//	routing  two, by parity of the epoch: counts, and a record for each (token, destination rank)
type board struct {
	post    [2]*channel.Counter
	notices [2]*notice
	done    *channel.Counter
	mem     []byte
	g       *spec.Geometry
}

// notice is what a rank says when it enters an operation. With the counter it fills the first cache
// line of a post and no more: whoever sees the epoch has the notice already.
type notice struct {
	_       uint32        // the counter's
	word    atomic.Uint32 // the upper bits are the call's; length and kind of text, if the rank cannot take part
	routing uint64        // the call's
	// The two operands: rows, and what goes beside them.
	window, offset [2]uint64
	stride         [2]uint32
}

const (
	cacheLine = 64
	noticeAt  = channel.CounterBytes - 4 // in a post
)

var _ [cacheLine - noticeAt - unsafe.Sizeof(notice{})]byte // the notice ends where the line does, or before

// data is where the operand's rows are.
func (n *notice) data() enginehost.OperandRef {
	return enginehost.OperandRef{Window: n.window[0], Offset: n.offset[0], Stride: n.stride[0]}
}

// scales is where that is what goes beside them: scales, or gradients of weights.
func (n *notice) scales() enginehost.OperandRef {
	return enginehost.OperandRef{Window: n.window[1], Offset: n.offset[1], Stride: n.stride[1]}
}

func (n *notice) setOperands(data, scales enginehost.OperandRef) {
	n.window = [2]uint64{data.Window, scales.Window}
	n.offset = [2]uint64{data.Offset, scales.Offset}
	n.stride = [2]uint32{data.Stride, scales.Stride}
}

func newBoard(g *spec.Geometry, mem []byte) *board {
	b := &board{done: channel.CounterAt(mem, spec.DoneOffset), mem: mem, g: g}
	for i := range b.post {
		b.post[i] = channel.CounterAt(mem, i*channel.Stride)
		b.notices[i] = (*notice)(unsafe.Pointer(&mem[i*channel.Stride+noticeAt]))
	}
	return b
}

// text is the place for the words of a refusal.
func (b *board) text(epoch uint64) []byte {
	at := spec.TextOffset + int(epoch&1)*spec.TextSize
	return b.mem[at : at+spec.TextSize]
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
	p := unsafe.Pointer(&b.mem[spec.RoutingOffset+int64(epoch&1)*g.RoutingSize()])
	r := routing{size: g.RecordSize(), topk: g.TopK}
	r.counts = unsafe.Slice((*int32)(p), g.Experts)
	p = unsafe.Add(p, 4*g.Experts)
	r.distinct = unsafe.Slice((*int32)(p), g.Ranks)
	p = unsafe.Add(p, 4*g.Ranks)
	r.first = unsafe.Slice((*int32)(p), g.Ranks)
	r.records = unsafe.Add(p, 4*g.Ranks)
	return r
}

// record is a token on its way to one rank: its index at the source, and for each selection the
// expert's index there, or -1, and the weight.
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

// enter says that this rank has entered the epoch, with its operands or with the reason why it
// cannot take part: peers then return it too.
func (b *board) enter(epoch uint64, c call, data, scales enginehost.OperandRef, err error) {
	n := b.notices[epoch&1]
	refused := uint32(0)
	if err != nil {
		refused = enginehost.PutRefusal(b.text(epoch), err)
	}
	n.word.Store(c.word | refused)
	n.routing = c.routing
	n.setOperands(data, scales)
	b.post[epoch&1].Publish(epoch)
}

// refusal is the rank's refusal of the epoch, if it did refuse.
func (b *board) refusal(epoch uint64, rank int, op string) error {
	return enginehost.TakeRefusal(rank, op, b.notices[epoch&1].word.Load()&(callUnit-1), b.text(epoch))
}

// call is what must agree on all ranks: the operation, whether it brings weights, or gradients of
// weights home, and the Routing by which it goes.
type call struct {
	word    uint32 // the upper bits of a notice's word: callUnit times the operation, wantsWeights
	routing uint64 // the epoch of the Routing's Prepare, which no other has, in this generation or any
}

const (
	callUnit     = 1 << enginehost.RefusalBits // the lowest bit of a call
	callKinds    = 8
	wantsWeights = callKinds * callUnit
)

// The kinds of calls.
const (
	callPrepare = iota
	callDispatch
	callCombine
	callDispatchBackward
	callCombineBackward
	callDotsHome // the second half of combine backward
	callPrepareDispatch
)

var callNames = [callKinds]string{
	spec.OpPrepare, spec.OpDispatch, spec.OpCombine, spec.OpDispatchBackward, spec.OpCombineBackward,
	spec.OpCombineBackward, spec.OpPrepareDispatch,
}

func newCall(kind int, r *spec.Batch, weights bool) call {
	c := call{word: uint32(kind) * callUnit}
	if weights {
		c.word |= wantsWeights
	}
	if r != nil {
		c.routing = r.Epoch
	}
	return c
}

// call is the call that a rank has entered the epoch with.
func (b *board) call(epoch uint64) call {
	n := b.notices[epoch&1]
	return call{word: n.word.Load() &^ (callUnit - 1), routing: n.routing}
}

func (c call) kind() int { return int(c.word/callUnit) % callKinds }

// differs says how a peer's call differs from this rank's.
func (c call) differs(peer call) string {
	switch {
	case c.kind() != peer.kind():
		return "it calls " + callNames[peer.kind()]
	case c.word != peer.word && c.kind() == callDispatch:
		return "weights come with the rows of some ranks only"
	case c.word != peer.word:
		return "gradients of weights are asked for on some ranks only"
	default:
		return "it goes by another routing"
	}
}
