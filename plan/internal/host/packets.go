package host

import (
	"github.com/weftgo/weft/channel"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// packets runs an operation on packets as far as these have arrived, and says whether that is all of it.
func (b *block) packets(s *step) bool {
	r := b.rank
	switch s.kind {
	case spec.CopyPackets, spec.PutPackets:
		for i, x := range s.dst {
			if s.src[i].Slot {
				channel.CopySlot(r.at(x), r.at(s.src[i])) // a port's transfer
			} else {
				channel.PutSlot(r.at(x), r.at(s.src[i]), r.flag)
			}
		}
		return true
	case spec.UnpackPackets:
		dst, slot := r.at(s.dst[0]), r.at(s.src[0])
		b.at += channel.TakeSlot(dst[b.at:], slot[2*b.at:], r.flag)
		return b.at == len(dst) || b.await(s.src[0], b.at)
	case spec.ReadPutPackets, spec.SwitchStorePackets:
		return b.forward(s)
	}
	return b.reducePackets(s)
}

// forward sends packets on: through ports when all have arrived.
func (b *block) forward(s *step) bool {
	r := b.rank
	m := &r.engine.moves
	slot := r.at(s.src[0])
	m.rows = m.rows[:0]
	if s.whole.Op.Via != spec.Port {
		for _, x := range s.dst {
			m.rows = append(m.rows, r.at(x)[2*b.at:])
		}
	}
	b.at += channel.ForwardSlot(m.rows, slot[2*b.at:], r.flag)
	if 2*b.at < len(slot) {
		return b.await(s.src[0], b.at)
	}
	for i := len(m.rows); i < len(s.dst); i++ {
		channel.CopySlot(r.at(s.dst[i]), slot)
	}
	return true
}

// await stops the block until the packet with the data at an offset of a slot arrives.
func (b *block) await(x program.Range, at int) bool {
	b.stop, b.slot = onPacket, b.rank.at(x)[2*at:]
	b.chunk = (x.From + at) / b.rank.program.Shape.Chunk
	return false
}

// reducePackets folds packets of several slots, and local data behind them, piece by piece.
func (b *block) reducePackets(s *step) bool {
	r := b.rank
	m := &r.engine.moves
	for n := s.folds[0].To - s.folds[0].From; b.at < n; {
		end := min(b.at+packetPiece, n)
		size := end - b.at
		m.pieces = m.pieces[:0]
		for i, x := range s.folds {
			if !x.Slot {
				m.pieces = append(m.pieces, r.at(x)[b.at:end])
				continue
			}
			for len(m.unpacked) <= i {
				m.unpacked = append(m.unpacked, make([]byte, packetPiece))
			}
			data := m.unpacked[i][:size]
			if got := channel.TakeSlot(data, r.at(x)[2*b.at:], r.flag); got < size {
				return b.await(x, b.at+got)
			}
			m.pieces = append(m.pieces, data)
		}
		result := m.result[:size]
		enginehost.Fold(s.op, r.dtype, result, m.pieces...)
		for _, x := range s.dst {
			if x.Slot {
				channel.PutSlot(r.at(x)[2*b.at:], result, r.flag)
			} else {
				copy(r.at(x)[b.at:end], result)
			}
		}
		b.at = end
	}
	return true
}
