package relay

import (
	"testing"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

// FuzzMessage gives a node whatever bytes as two messages of a neighbour. It takes them or drops the link.
func FuzzMessage(f *testing.F) {
	sent := newBoard([]int{2, 1, 1})
	sent.connect(1, 0)
	n := sent.nodes[1]
	n.mu.Lock()
	n.emit(whatBeat, nil)
	n.emit(whatComplaint, appendRank(nil, 1))
	n.emit(whatNews, news{process: 2, text: "gone"}.append(nil))
	fault := channel.Fault{Cause: channel.CauseAbort, Rank: 2}
	n.emit(whatAbort, abort{from: 2, fault: fault, to: rankset.Of(0)}.append(nil))
	n.mu.Unlock()
	sent.members[2].Publish(control.Notes)
	sent.members[2].Publish(control.Intent)
	sent.want(sent.members[2], rankset.Of(3), 0)
	queue := sent.wires[[2]int{1, 0}].queue
	n.mu.Lock()
	queue = append(queue, n.state(1), decided(control.Decision{Generation: 4}).Bytes(), pingMessage.Bytes(),
		byeMessage.Bytes())
	n.mu.Unlock()
	for _, b := range queue {
		f.Add(queue[0], b)
	}
	f.Fuzz(func(_ *testing.T, first, second []byte) {
		b := newBoard([]int{2, 1, 1})
		b.connect(1, 0)
		on := b.wires[[2]int{1, 0}].on
		if b.nodes[0].handle(on, first) == nil {
			_ = b.nodes[0].handle(on, second)
		}
		close(b.nodes[0].drained) // nobody answers
		b.nodes[0].Close()
	})
}

var _ Link = (*bootstrap.Link)(nil)
