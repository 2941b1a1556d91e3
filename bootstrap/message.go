package bootstrap

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/weftgo/weft/internal/parse"
)

type kind uint8

const (
	kindHello kind = iota + 1
	kindChallenge
	kindProof
	kindVerdict
	kindData
	kindShare
	kindGathered
	kindFault
	kindBye
	kindInquiry
	kindMissing
)

// message is the content of one frame. Numbers are little-endian.
type message interface {
	kind() kind
	appendTo(dst []byte) []byte
}

type (
	nonce [32]byte
	mac   [32]byte
	jobID [8]byte
)

// role is the purpose of a connection.
type role uint8

const (
	roleHub  role = iota // from a rank to rank 0, for the life of both
	rolePair             // between two other ranks, from the first Send on
	roleDoor             // to a rank's Door
)

func (r role) String() string { return [...]string{"hub", "pair", "door"}[r] }

// The messages of the handshake, in their order; auth.go says what each proves.
type (
	hello struct {
		version    uint8 // of the frame that it came in
		role       role
		rank, peer uint32 // the dialling rank and the dialled one
		size       uint32
		job        jobID // zero where the dialling rank does not know it yet
		nonce      nonce
	}
	challenge struct {
		rank, size uint32
		job        jobID
		nonce      nonce
	}
	proof   struct{ mac mac }
	verdict struct {
		reason reason
		rank   uint32 // the rank to blame, unless accepted
		mac    mac
		text   string
	}
)

// The messages of an established link.
type (
	data struct{ bytes []byte } // a Send

	// share is a rank's part of a collective, on its way to rank 0.
	share struct {
		seq   uint64
		op    op
		bytes []byte
	}

	// gathered is the parts of the ranks from first on, on their way back.
	gathered struct {
		seq    uint64
		first  uint32
		blocks [][]byte
	}

	// fault says that a rank is lost, or gave a collective up.
	fault struct {
		rank    uint32
		reason  reason
		entered uint64 // how many collectives the rank took part in; only rank 0 knows
		text    string
	}

	bye struct{}

	// inquiry asks rank 0 which rank is missing from a collective; missing answers.
	inquiry struct{ seq uint64 }
	missing struct {
		seq   uint64
		ranks []uint32
		text  string
	}
)

func (hello) kind() kind     { return kindHello }
func (challenge) kind() kind { return kindChallenge }
func (proof) kind() kind     { return kindProof }
func (verdict) kind() kind   { return kindVerdict }
func (data) kind() kind      { return kindData }
func (share) kind() kind     { return kindShare }
func (gathered) kind() kind  { return kindGathered }
func (fault) kind() kind     { return kindFault }
func (bye) kind() kind       { return kindBye }
func (inquiry) kind() kind   { return kindInquiry }
func (missing) kind() kind   { return kindMissing }

var le = binary.LittleEndian

func (m hello) appendTo(b []byte) []byte {
	b = append(b, byte(m.role))
	b = le.AppendUint32(b, m.rank)
	b = le.AppendUint32(b, m.peer)
	b = le.AppendUint32(b, m.size)
	b = append(b, m.job[:]...)
	return append(b, m.nonce[:]...)
}

func (m challenge) appendTo(b []byte) []byte {
	b = le.AppendUint32(b, m.rank)
	b = le.AppendUint32(b, m.size)
	b = append(b, m.job[:]...)
	return append(b, m.nonce[:]...)
}

func (m proof) appendTo(b []byte) []byte { return append(b, m.mac[:]...) }

func (m verdict) appendTo(b []byte) []byte {
	b = append(b, byte(m.reason))
	b = le.AppendUint32(b, m.rank)
	b = append(b, m.mac[:]...)
	return append(b, clip(m.text)...)
}

func (m data) appendTo(b []byte) []byte { return append(b, m.bytes...) }

func (m share) appendTo(b []byte) []byte {
	b = le.AppendUint64(b, m.seq)
	b = append(b, byte(m.op))
	return append(b, m.bytes...)
}

func (m gathered) appendTo(b []byte) []byte {
	b = le.AppendUint64(b, m.seq)
	b = le.AppendUint32(b, m.first)
	b = le.AppendUint32(b, uint32(len(m.blocks)))
	for _, block := range m.blocks {
		b = le.AppendUint32(b, uint32(len(block)))
		b = append(b, block...)
	}
	return b
}

func (m fault) appendTo(b []byte) []byte {
	b = le.AppendUint32(b, m.rank)
	b = append(b, byte(m.reason))
	b = le.AppendUint64(b, m.entered)
	return append(b, clip(m.text)...)
}

func (bye) appendTo(b []byte) []byte { return b }

func (m inquiry) appendTo(b []byte) []byte { return le.AppendUint64(b, m.seq) }

func (m missing) appendTo(b []byte) []byte {
	b = le.AppendUint64(b, m.seq)
	b = le.AppendUint32(b, uint32(len(m.ranks)))
	for _, r := range m.ranks {
		b = le.AppendUint32(b, r)
	}
	return append(b, clip(m.text)...)
}

// split cuts a gathered so that each part fits a frame.
func (m gathered) split() []message {
	var parts []message
	for start := 0; start < len(m.blocks); {
		end, bytes := start, 16
		for end < len(m.blocks) && (end == start || bytes+4+len(m.blocks[end]) <= maxPayload) {
			bytes += 4 + len(m.blocks[end])
			end++
		}
		parts = append(parts, gathered{seq: m.seq, first: m.first + uint32(start), blocks: m.blocks[start:end]})
		start = end
	}
	return parts
}

// maxText is the longest explanation that travels with a message.
const maxText = 300

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

// parseMessage parses a payload. The result keeps parts of it.
func parseMessage(k kind, payload []byte) (message, error) {
	f := fields{parse.Fields{Rest: payload}}
	var m message
	switch k {
	case kindHello:
		v := hello{role: role(f.U8()), rank: f.U32(), peer: f.U32(), size: f.U32()}
		copy(v.job[:], f.Take(len(v.job)))
		copy(v.nonce[:], f.Take(len(v.nonce)))
		f.Bad = f.Bad || v.role > roleDoor
		m = v
	case kindChallenge:
		v := challenge{rank: f.U32(), size: f.U32()}
		copy(v.job[:], f.Take(len(v.job)))
		copy(v.nonce[:], f.Take(len(v.nonce)))
		m = v
	case kindProof:
		var v proof
		copy(v.mac[:], f.Take(len(v.mac)))
		m = v
	case kindVerdict:
		v := verdict{reason: f.reason(), rank: f.U32()}
		copy(v.mac[:], f.Take(len(v.mac)))
		v.text = f.text()
		m = v
	case kindData:
		m = data{f.rest()}
	case kindShare:
		v := share{seq: f.U64(), op: op(f.U8()), bytes: f.rest()}
		f.Bad = f.Bad || v.op > opBarrier || len(v.bytes) > MaxMessage
		m = v
	case kindGathered:
		v := gathered{seq: f.U64(), first: f.U32()}
		for range f.count(4) {
			v.blocks = append(v.blocks, f.Take(int(f.U32())))
		}
		m = v
	case kindFault:
		m = fault{rank: f.U32(), reason: f.reason(), entered: f.U64(), text: f.text()}
	case kindBye:
		m = bye{}
	case kindInquiry:
		m = inquiry{f.U64()}
	case kindMissing:
		v := missing{seq: f.U64()}
		for range f.count(4) {
			v.ranks = append(v.ranks, f.U32())
		}
		v.text = f.text()
		m = v
	default:
		return nil, fmt.Errorf("%w: unknown message kind %d", ErrProtocol, k)
	}
	if f.Bad || len(f.Rest) > 0 {
		return nil, fmt.Errorf("%w: malformed message of kind %d", ErrProtocol, k)
	}
	return m, nil
}

// fields takes a payload apart.
type fields struct{ parse.Fields }

// count reads a number of elements of at least size bytes each, so that a lie costs nothing.
func (f *fields) count(size int) uint32 {
	n := f.U32()
	if uint64(n)*uint64(size) > uint64(len(f.Rest)) {
		f.Bad = true
		return 0
	}
	return n
}

func (f *fields) rest() []byte { return f.Take(len(f.Rest)) }

func (f *fields) reason() reason {
	r := reason(f.U8())
	f.Bad = f.Bad || r >= reasonCount
	return r
}

func (f *fields) text() string {
	b := f.rest()
	f.Bad = f.Bad || len(b) > maxText
	return strings.ToValidUTF8(string(b), "?")
}
