package host

import (
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/simd"
	"github.com/weftgo/weft/plan/internal/launch"
)

// moves is what operations on data use beside operands. Blocks take turns, so they share it.
type moves struct {
	rows, pieces [][]byte
	result       []byte   // of a piece
	unpacked     [][]byte // data of packets
}

// pieceBytes of a result are made in the first-level cache, before they go to the second destination and those behind
// it. Packets are twice as long as their data.
const (
	pieceBytes  = 16 << 10
	packetPiece = 2 << 10
)

func newMoves() moves { return moves{result: make([]byte, packetPiece)} }

// copy copies between places that may be the same one.
func (m *moves) copy(dst, src []byte) {
	if to, from := pointer(dst), pointer(src); to != from {
		simd.Copy(to, from, len(dst), false)
	}
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// move runs an operation on data without packets.
func (b *block) move(s *step) {
	r := b.rank
	m := &r.engine.moves
	switch {
	case s.Paired():
		for i := range s.Dst {
			m.copy(r.at(s.Dst[i]), r.at(s.Src[i]))
		}
		if s.signals() {
			r.signal(s.Counters)
		}
	case s.Op.Kind.Reduces():
		b.reduce(s)
	default:
		src := r.at(s.Src[0])
		for _, x := range s.Dst {
			m.copy(r.at(x), src)
		}
	}
}

// reduce folds sources piece by piece, and gives each piece to all destinations.
func (b *block) reduce(s *step) {
	r := b.rank
	m := &r.engine.moves
	m.rows = m.rows[:0]
	for _, x := range s.folds {
		m.rows = append(m.rows, r.at(x))
	}
	op := launch.Operator(s.Op.Reduce)
	first := r.at(s.Dst[0])
	for at := 0; at < len(first); at += pieceBytes {
		end := min(at+pieceBytes, len(first))
		m.pieces = m.pieces[:0]
		for _, row := range m.rows {
			m.pieces = append(m.pieces, row[at:end])
		}
		enginehost.Fold(op, r.dtype, first[at:end], m.pieces...)
		for _, x := range s.Dst[1:] {
			m.copy(r.at(x)[at:end], first[at:end])
		}
	}
}
