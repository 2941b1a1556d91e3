package service

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
)

const partHeader = 1 + 3*8

// encode is a part as the other ranks get it.
func (p part) encode() []byte {
	b := []byte{0}
	if p.mapped {
		b[0] = 1
	}
	for _, v := range []uint64{uint64(p.bytes), p.window, uint64(p.offset)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, p.card...)
}

func decodePart(b []byte) (p part, err error) {
	if len(b) < partHeader {
		return p, fmt.Errorf("%w: a memory's card of %d bytes", weft.ErrMismatch, len(b))
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[1+8*i:]) }
	p = part{known: true, mapped: b[0] == 1, bytes: int(word(0)), window: word(1), offset: int(word(2))}
	p.card = b[partHeader:]
	if p.bytes < 0 || p.offset < 0 || p.offset+p.bytes < 0 {
		return part{}, fmt.Errorf("%w: a memory of %d bytes at %d", weft.ErrMismatch, p.bytes, p.offset)
	}
	return p, nil
}

// Expose makes a memory of this rank without the others: those to which its [Memory.Card] is brought import it. What
// holds of the memory of Register holds of it.
func (s *Service) Expose(memory []byte) (*Memory, error) {
	const op = "expose port memory"
	if err := s.gate.Enter(op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	m, err := s.own(s.comm.Rank(), memory)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return m, nil
}

// Card is what another rank imports to put into this rank's part. It is valid until the memory is closed.
// An imported memory has none.
func (m *Memory) Card() []byte {
	rank := m.service.comm.Rank()
	own := m.parts[rank]
	if !own.known {
		return nil
	}
	b := binary.LittleEndian.AppendUint32(nil, memoryMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	if m.local != nil {
		own.card = m.local.Card() // SetMask may have renewed it
	}
	return append(b, own.encode()...)
}

const (
	memoryMagic = 0x57504d31 // "WPM1"
	cardHeader  = 8
)

// Import makes a memory of another rank, as a destination of channels to it, by the card that the rank has made of it.
func (s *Service) Import(card []byte) (*Memory, error) {
	const op = "import port memory"
	if err := s.gate.Enter(op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	if len(card) < cardHeader || binary.LittleEndian.Uint32(card) != memoryMagic {
		return nil, weft.Invalidf("%s: %d bytes that are no card of a memory of this version of Weft", op, len(card))
	}
	rank := binary.LittleEndian.Uint32(card[4:])
	if rank >= uint32(s.comm.Size()) || int(rank) == s.comm.Rank() {
		return nil, weft.Invalidf("%s: a card of rank %d, want one of another rank of %d", op, rank, s.comm.Size())
	}
	m := &Memory{service: s, of: int(rank), parts: make([]part, s.comm.Size())}
	var err error
	if m.parts[rank], err = decodePart(bytes.Clone(card[cardHeader:])); err != nil {
		return nil, &weft.PeerError{Rank: int(rank), Op: op, Err: err}
	}
	return m, nil
}

// hello is what a rank says to another one with which it connects.
type hello struct {
	number  uint32 // of the channel
	kind    Kind
	spread  bool
	maps    bool // the rank maps its destination
	refused string
}

// helloSize is that of a place of the board.
const helloSize = 256

const helloMagic = 0x57504831 // "WPH1"

func (h hello) encode(to []byte) {
	clear(to)
	binary.LittleEndian.PutUint32(to, helloMagic)
	binary.LittleEndian.PutUint32(to[4:], h.number)
	to[8] = byte(h.kind)
	if h.spread {
		to[9] |= 1
	}
	if h.maps {
		to[9] |= 2
	}
	copy(to[10:], h.refused)
}

func decodeHello(b []byte) (h hello, err error) {
	if binary.LittleEndian.Uint32(b) != helloMagic {
		return h, fmt.Errorf("%w: its hello is none of this version of Weft", weft.ErrMismatch)
	}
	text, _, _ := bytes.Cut(b[10:], []byte{0})
	return hello{
		number: binary.LittleEndian.Uint32(b[4:]), kind: Kind(b[8]), spread: b[9]&1 != 0, maps: b[9]&2 != 0,
		refused: string(text),
	}, nil
}

func addressOf(memory []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(memory)) }
