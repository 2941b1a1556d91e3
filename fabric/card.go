package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Cards travel by a bootstrap, so what comes may be anything.

const (
	domainMagic = 0x57464433 // "WFD3"
	regionMagic = 0x57465231 // "WFR1"
	mostText    = 512
)

// domainCard is what a rank tells its peers of a domain.
type domainCard struct {
	Rank, Size uint32
	Signals    uint32
	Ordered    bool
	Words      bool
	DataBytes  uint32
	Provider   string
	Name       []byte // of the endpoint
	Base, Key  uint64 // of the board
	Password   uint32 // of the queue, or 0
}

// regionCard is what a rank tells its peers of a region.
type regionCard struct {
	Rank      uint32
	Base, Key uint64
	Length    uint64
	Aligned   bool // its first byte has an address that is a multiple of 8
}

var errCard = errors.New("not a card of this version of Weft")

func (c domainCard) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, domainMagic)
	for _, v := range []uint32{c.Rank, c.Size, c.Signals, c.DataBytes} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = append(b, flag(c.Ordered), flag(c.Words))
	b = binary.LittleEndian.AppendUint64(b, c.Base)
	b = binary.LittleEndian.AppendUint64(b, c.Key)
	b = binary.LittleEndian.AppendUint32(b, c.Password)
	b = appendText(b, []byte(c.Provider))
	return appendText(b, c.Name)
}

func decodeDomain(b []byte) (c domainCard, err error) {
	r := reader{b: b}
	if r.uint32() != domainMagic {
		return c, errCard
	}
	c.Rank, c.Size, c.Signals, c.DataBytes = r.uint32(), r.uint32(), r.uint32(), r.uint32()
	c.Ordered, c.Words = r.flag(), r.flag()
	c.Base, c.Key, c.Password = r.uint64(), r.uint64(), r.uint32()
	c.Provider, c.Name = string(r.text()), r.text()
	return c, r.end()
}

func (c regionCard) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, regionMagic)
	b = binary.LittleEndian.AppendUint32(b, c.Rank)
	for _, v := range []uint64{c.Base, c.Key, c.Length} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, flag(c.Aligned))
}

func decodeRegion(b []byte) (c regionCard, err error) {
	r := reader{b: b}
	if r.uint32() != regionMagic {
		return c, errCard
	}
	c.Rank = r.uint32()
	c.Base, c.Key, c.Length = r.uint64(), r.uint64(), r.uint64()
	c.Aligned = r.flag()
	if c.Base+c.Length < c.Base {
		return c, fmt.Errorf("%w: a region of %d bytes at %#x", errCard, c.Length, c.Base)
	}
	return c, r.end()
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendText(b, text []byte) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
}

// A reader takes fields from the front of a card. Its first error stays.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || len(r.b) < n {
		r.err = errCard
		return make([]byte, n)
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) uint32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *reader) flag() bool {
	v := r.take(1)[0]
	if v > 1 {
		r.err = errCard
	}
	return v == 1
}

func (r *reader) text() []byte {
	n := int(binary.LittleEndian.Uint16(r.take(2)))
	if n > mostText {
		r.err = errCard
		return nil
	}
	return append([]byte(nil), r.take(n)...)
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = errCard
	}
	return r.err
}
