package bootstrap

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A frame is a 12-byte header and a payload:
//
//	0  "WEFT"
//	4  version
//	5  kind of message
//	6  zero
//	8  length of the payload, 32 bits, little-endian
//
// Everything that arrives on a connection goes through readMessage.
const (
	frameMagic   = "WEFT"
	frameVersion = 1
	headerSize   = 12

	// maxPayload leaves room for the fields that travel beside a MaxMessage of data.
	maxPayload = MaxMessage + 64

	// maxHandshake bounds a payload from a peer that has proved nothing yet.
	maxHandshake = 512
)

// appendFrame appends m as one frame.
func appendFrame(dst []byte, m message) []byte {
	start := len(dst)
	dst = append(dst, frameMagic...)
	dst = append(dst, frameVersion, byte(m.kind()), 0, 0, 0, 0, 0, 0)
	dst = m.appendTo(dst)
	binary.LittleEndian.PutUint32(dst[start+8:], uint32(len(dst)-start-headerSize))
	return dst
}

// readMessage reads one frame and parses its payload, which may be at most limit bytes long. It reads nothing beyond the frame. An end of
// the stream between frames is io.EOF; bytes that are no frame are an ErrProtocol.
func readMessage(r io.Reader, limit int) (message, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	if string(header[:4]) != frameMagic {
		return nil, fmt.Errorf("%w: bad magic %q", ErrProtocol, header[:4])
	}
	if header[4] != frameVersion {
		return nil, fmt.Errorf("%w: version %d, this side speaks %d", ErrProtocol, header[4], frameVersion)
	}
	if header[6] != 0 || header[7] != 0 {
		return nil, fmt.Errorf("%w: reserved bits set", ErrProtocol)
	}
	n := binary.LittleEndian.Uint32(header[8:])
	if uint64(n) > uint64(limit) {
		return nil, fmt.Errorf("%w: frame of %d bytes where at most %d are allowed", ErrProtocol, n, limit)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, unexpected(err)
	}
	return parseMessage(kind(header[5]), payload)
}

// unexpected turns the end of the stream inside a frame into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
