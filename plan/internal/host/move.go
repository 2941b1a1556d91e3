package host

import (
	"unsafe"

	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/plan/internal/program"
)

// moves is what operations on data use beside operands. Blocks take turns, so they share it.
type moves struct {
	enginehost.Moves
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

func newMoves() moves {
	return moves{Moves: enginehost.NewMoves(), result: make([]byte, packetPiece)}
}

// copy copies to a range, which may be the source.
func (r *rank) copy(to program.Range, dst, src []byte) {
	m := &r.engine.moves
	switch {
	case unsafe.SliceData(dst) == unsafe.SliceData(src):
	case to.Rank() == r.self && !to.Scratch():
		m.Copy(dst, src, r.stream)
	default:
		m.Stage(dst, src)
	}
}

// move runs an operation on data without packets.
func (b *block) move(s *step) {
	r := b.rank
	switch {
	case s.paired:
		for i := range s.dst {
			r.copy(s.dst[i], r.at(s.dst[i]), r.at(s.src[i]))
		}
		if s.signals() {
			r.signal(s.counters)
		}
	case s.kind.Reduces():
		b.reduce(s)
	default:
		src := r.at(s.src[0])
		for _, x := range s.dst {
			r.copy(x, r.at(x), src)
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
	f := enginehost.Folding{Op: s.op, DType: r.dtype}
	to, first := s.dst[0], r.at(s.dst[0])
	if len(s.dst) == 1 {
		if to.Rank() == r.self && !to.Scratch() && !r.reached[to.Memory%program.Buffers] {
			m.Reduce(f, first, m.rows, r.stream)
		} else {
			m.Share(f, first, m.rows)
		}
		return
	}
	for at := 0; at < len(first); at += pieceBytes {
		end := min(at+pieceBytes, len(first))
		m.pieces = m.pieces[:0]
		for _, row := range m.rows {
			m.pieces = append(m.pieces, row[at:end])
		}
		m.Reduce(f, first[at:end], m.pieces, false)
		for _, x := range s.dst[1:] {
			r.copy(x, r.at(x)[at:end], first[at:end])
		}
	}
}
