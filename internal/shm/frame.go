package shm

import (
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"math"
)

// One frame is one packet of a SOCK_SEQPACKET socket, so a frame is never split, never joined to
// the next, and the descriptor sent with it can't be taken for another's:
//
//	0  'W'
//	1  'M'
//	2  version
//	3  kind
//	4  payload length, 32 bits
//	8  id, 64 bits: of the exchange; 0 in frames that belong to none
//	16 payload
//
// The header and greetings are the same in every version, so that ranks of different versions can
// report that. Addresses begin with the version, too: mostly ranks learn of it before they connect.
const (
	frameVersion = 1
	frameHeader  = 16
	maxFrame     = frameHeader + MaxMessage
)

type frameKind uint8

const (
	kindHello      frameKind = iota + 1 // dialler to listener: a greeting
	kindWelcome                         // the listener's answer: a greeting
	kindMessage                         // up to MaxMessage bytes
	kindRegion                          // a regionOffer and its descriptor
	kindDescriptor                      // a descriptor
	kindMemory                          // plain memory; between ranks of one process only, never encoded
	kindGoodbye                         // nothing follows
	kindAbandon                         // the rank's join has failed; between ranks of one process only, never encoded
)

func (k frameKind) String() string {
	switch k {
	case kindHello:
		return "hello"
	case kindWelcome:
		return "welcome"
	case kindMessage:
		return "message"
	case kindRegion:
		return "region"
	case kindDescriptor:
		return "descriptor"
	case kindMemory:
		return "memory"
	case kindGoodbye:
		return "goodbye"
	case kindAbandon:
		return "abandon"
	}
	return fmt.Sprintf("frame kind %d", uint8(k))
}

// carriesDescriptor reports whether exactly one descriptor travels with frames of this kind; with
// all others, none does.
func (k frameKind) carriesDescriptor() bool { return k == kindRegion || k == kindDescriptor }

// payloadLimits are the least and most payload bytes of a kind that may be encoded.
func (k frameKind) payloadLimits() (least, most int, ok bool) {
	switch k {
	case kindHello, kindWelcome:
		return greetingSize, greetingSize, true
	case kindMessage:
		return 0, MaxMessage, true
	case kindRegion:
		return regionOfferSize, regionOfferSize, true
	case kindDescriptor, kindGoodbye:
		return 0, 0, true
	}
	return 0, 0, false
}

type frame struct {
	version byte // as it arrived
	kind    frameKind
	id      uint64
	payload []byte
}

func (f frame) append(b []byte) []byte {
	b = append(b, 'W', 'M', frameVersion, byte(f.kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.payload)))
	b = binary.LittleEndian.AppendUint64(b, f.id)
	return append(b, f.payload...)
}

// decodeFrame reads one packet. The frame's payload aliases b.
func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameHeader {
		return frame{}, fmt.Errorf("frame of %d bytes: %w", len(b), ErrMalformed)
	}
	if b[0] != 'W' || b[1] != 'M' {
		return frame{}, fmt.Errorf("frame that starts with %#02x %#02x: %w", b[0], b[1], ErrMalformed)
	}
	f, err := decodeBody(b)
	if f.version != frameVersion && (err != nil || f.kind != kindHello && f.kind != kindWelcome) {
		return frame{}, &versionError{b[2]}
	}
	return f, err
}

// decodeBody reads a packet that has a frame's marks.
func decodeBody(b []byte) (frame, error) {
	f := frame{version: b[2], kind: frameKind(b[3]), id: binary.LittleEndian.Uint64(b[8:]), payload: b[frameHeader:]}
	least, most, ok := f.kind.payloadLimits()
	if !ok {
		return f, fmt.Errorf("%v: %w", f.kind, ErrMalformed)
	}
	if n := len(f.payload); n < least || n > most {
		return f, fmt.Errorf("%v frame with %d bytes of payload: %w", f.kind, n, ErrMalformed)
	}
	if n := binary.LittleEndian.Uint32(b[4:]); uint64(n) != uint64(len(f.payload)) {
		return f, fmt.Errorf("%v frame says %d bytes of payload and has %d: %w", f.kind, n, len(f.payload), ErrMalformed)
	}
	return f, nil
}

// greeting is the first message between two ranks. Showing the other's token proves that the sender
// got the list of members from the bootstrap; the roster proves that it was the same list.
type greeting struct {
	from, to int
	token    [16]byte // the receiver's
	own      [16]byte // the sender's
	roster   [16]byte
}

const greetingSize = 4 + 4 + 3*16

func (g greeting) encode() []byte {
	b := make([]byte, 0, greetingSize)
	b = binary.LittleEndian.AppendUint32(b, uint32(g.from))
	b = binary.LittleEndian.AppendUint32(b, uint32(g.to))
	b = append(b, g.token[:]...)
	b = append(b, g.own[:]...)
	return append(b, g.roster[:]...)
}

func decodeGreeting(b []byte) (greeting, error) {
	if len(b) != greetingSize {
		return greeting{}, fmt.Errorf("greeting of %d bytes: %w", len(b), ErrMalformed)
	}
	from, to := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if from > math.MaxInt32 || to > math.MaxInt32 {
		return greeting{}, fmt.Errorf("greeting from %d to %d: %w", from, to, ErrMalformed)
	}
	g := greeting{from: int(from), to: int(to)}
	b = b[8:]
	b = b[copy(g.token[:], b):]
	b = b[copy(g.own[:], b):]
	copy(g.roster[:], b)
	return g, nil
}

// shows reports, in constant time, whether the greeting comes from the rank with address from and
// is meant for the one with address to.
func (g greeting) shows(from, to Address) bool {
	return subtle.ConstantTimeCompare(g.token[:], to.Token[:])&subtle.ConstantTimeCompare(g.own[:], from.Token[:]) == 1
}

// regionOffer describes the memory file that travels with it.
type regionOffer struct {
	size     int
	populate bool
}

const regionOfferSize = 8 + 4

func (o regionOffer) encode() []byte {
	var flags uint32
	if o.populate {
		flags = 1
	}
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, regionOfferSize), uint64(o.size))
	return binary.LittleEndian.AppendUint32(b, flags)
}

func decodeRegionOffer(b []byte) (regionOffer, error) {
	if len(b) != regionOfferSize {
		return regionOffer{}, fmt.Errorf("region offer of %d bytes: %w", len(b), ErrMalformed)
	}
	size, flags := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	if size == 0 || size > math.MaxInt || flags > 1 {
		return regionOffer{}, fmt.Errorf("region offer of %d bytes of memory with flags %#x: %w", size, flags, ErrMalformed)
	}
	return regionOffer{size: int(size), populate: flags&1 != 0}, nil
}
