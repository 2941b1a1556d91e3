package bootstrap

import (
	"encoding/binary"
	"errors"
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
// The header and the messages of the handshake are the same in every version. A handshake has the
// dialler's version, which its frames carry. The acceptor checks the version after both sides have
// proved their identity. All other messages may differ.
//
// Everything that arrives on a connection goes through readFrame.
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
func appendFrame(dst []byte, m message) []byte { return appendVersion(dst, frameVersion, m) }

// appendVersion appends m as one frame of a version.
func appendVersion(dst []byte, version uint8, m message) []byte {
	start := len(dst)
	dst = append(dst, frameMagic...)
	dst = append(dst, version, byte(m.kind()), 0, 0, 0, 0, 0, 0)
	dst = m.appendTo(dst)
	binary.LittleEndian.PutUint32(dst[start+8:], uint32(len(dst)-start-headerSize))
	return dst
}

// readMessage reads one frame of this version. See readFrame.
func readMessage(r io.Reader, limit int) (message, error) {
	m, version, err := readFrame(r, limit)
	if err == nil && version != frameVersion {
		err = &versionError{version}
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// readFrame reads one frame and parses its payload, which may be at most limit bytes long. It reads
// nothing beyond the frame. An end of the stream between frames is io.EOF; bytes that are no frame
// are an ErrProtocol, and a *versionError if they may be one of another version.
func readFrame(r io.Reader, limit int) (message, uint8, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, 0, err
	}
	if string(header[:4]) != frameMagic {
		return nil, 0, fmt.Errorf("%w: bad magic %q", ErrProtocol, header[:4])
	}
	version := header[4]
	m, err := readPayload(r, header, limit)
	if version != frameVersion && errors.Is(err, ErrProtocol) {
		err = &versionError{version}
	}
	return m, version, err
}

func readPayload(r io.Reader, header [headerSize]byte, limit int) (message, error) {
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

// versionError says that the other side speaks another version.
type versionError struct{ theirs uint8 }

func (e *versionError) Error() string {
	return fmt.Sprintf("%v: it speaks version %d of the bootstrap protocol, this rank version %d: %s",
		ErrMismatch, e.theirs, frameVersion, sameVersion)
}

func (e *versionError) Unwrap() []error { return []error{ErrMismatch, ErrProtocol} }

// sameVersion is the way out.
const sameVersion = "install the same Weft for every rank"

// unexpected turns the end of the stream inside a frame into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
