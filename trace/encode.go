package trace

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

const magic = "WEFTTRC1"

// Kinds of records.
const (
	kindHeader = 1 + iota
	kindTrack
	kindEvents
	kindLost
	kindAnchor
	kindOps
	kindEnd         // the Writer was closed: nothing is missing
	kindOverwritten // operations
)

const (
	frameBytes = 8 // length and checksum
	// maxRecord bounds what a reader believes of a length.
	maxRecord = 8 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFrame appends a record that body appends to b.
func appendFrame(b []byte, kind byte, body func([]byte) []byte) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, kind)
	b = body(b)
	record := b[at+frameBytes:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(record)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(record, castagnoli))
	return b
}

func appendJSON(b []byte, v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // of plain data
	}
	return append(b, raw...)
}

// trackRecord is a track with what the reader needs beside it.
type trackRecord struct {
	ID   uint32 `json:"id"`
	Comm string `json:"comm"`
	Rank int    `json:"comm_rank"`
	Size int    `json:"comm_size"`
	Track
}

// What an event's flags say has changed since the one before.
const (
	flagEpoch = 1 << iota
	flagOp
	flagBlock
	flagStep
	flagPeer
	flagBytes // there are bytes
)

func zigzag(d int64) uint64   { return uint64(d<<1) ^ uint64(d>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// appendEvent appends an event that comes behind another one.
func appendEvent(b []byte, e, last *Event) []byte {
	at := len(b)
	b = append(b, 0, byte(e.Site))
	b = binary.AppendUvarint(b, zigzag(int64(e.Time-last.Time)))
	var flags byte
	if e.Epoch != last.Epoch {
		flags |= flagEpoch
		b = binary.AppendUvarint(b, zigzag(int64(e.Epoch-last.Epoch)))
	}
	if e.Op != last.Op {
		flags |= flagOp
		b = binary.AppendUvarint(b, uint64(e.Op))
	}
	if e.Block != last.Block {
		flags |= flagBlock
		b = binary.AppendUvarint(b, uint64(e.Block))
	}
	if e.Step != last.Step {
		flags |= flagStep
		b = binary.AppendUvarint(b, uint64(e.Step))
	}
	if e.Peer != last.Peer {
		flags |= flagPeer
		b = binary.AppendUvarint(b, uint64(uint16(e.Peer)))
	}
	if e.Bytes != 0 {
		flags |= flagBytes
		b = binary.AppendUvarint(b, e.Bytes)
	}
	b[at] = flags
	return b
}

// fields takes integers from a record.
type fields struct {
	b      []byte
	failed bool
}

func (f *fields) byte() byte {
	if len(f.b) == 0 {
		f.failed = true
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

func (f *fields) number() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.failed, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return v
}

// below is a number of at most so much.
func (f *fields) below(most uint64) uint64 {
	v := f.number()
	if v > most {
		f.failed = true
		return 0
	}
	return v
}

// event takes the event that comes behind another one.
func (f *fields) event(e *Event) {
	flags := f.byte()
	e.Site = Site(f.byte())
	e.Time += uint64(unzigzag(f.number()))
	if flags&flagEpoch != 0 {
		e.Epoch += uint64(unzigzag(f.number()))
	}
	if flags&flagOp != 0 {
		e.Op = uint32(f.below(1<<32 - 1))
	}
	if flags&flagBlock != 0 {
		e.Block = uint16(f.below(1<<16 - 1))
	}
	if flags&flagStep != 0 {
		e.Step = uint16(f.below(1<<16 - 1))
	}
	if flags&flagPeer != 0 {
		e.Peer = int16(f.below(1<<16 - 1))
	}
	e.Bytes = 0
	if flags&flagBytes != 0 {
		e.Bytes = f.number()
	}
}

var errRecord = errors.New("a record makes no sense")

// nextRecord cuts a record off. Its error says why there is none: nil at the end.
func nextRecord(b []byte) (record, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, nil
	}
	if len(b) < frameBytes {
		return nil, nil, fmt.Errorf("%d bytes of a record's head", len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || n > maxRecord {
		return nil, nil, fmt.Errorf("a record of %d bytes", n)
	}
	if len(b)-frameBytes < int(n) {
		return nil, nil, fmt.Errorf("%d of a record's %d bytes", len(b)-frameBytes, n)
	}
	record = b[frameBytes:][:n:n]
	if crc32.Checksum(record, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, nil, errors.New("a record's checksum is wrong")
	}
	return record, b[frameBytes+n:], nil
}
