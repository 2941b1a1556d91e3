package bootstrap

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// identity holds the facts that a rank proves, and wants proved, on every connection.
type identity struct {
	rank, size int
	job        jobID
	secret     []byte
}

// The handshake:
//
//	dialler                                acceptor
//	hello: role, who, whom, nonce   ->
//	                                <-     challenge: who, nonce
//	proof: mac("dial")              ->
//	                                <-     verdict: mac("accept"), accepted or why not
//
// Both macs are HMAC-SHA256 under the secret over a label, the hello and the challenge as they were
// sent; the second also covers the verdict. So each side proves the secret for these nonces, this
// direction, these two ranks and this job; nothing can be replayed or reflected. The acceptor
// reveals a mac only to a dialler that has proved itself.
const (
	labelDial   = "weft bootstrap 1 dial"
	labelAccept = "weft bootstrap 1 accept"
)

// transcript is the hello and the challenge as they crossed the wire.
type transcript []byte

func (t transcript) mac(secret []byte, label string, extra []byte) (sum mac) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(label))
	h.Write(t)
	h.Write(extra)
	h.Sum(sum[:0])
	return sum
}

func (v verdict) sealed(t transcript, secret []byte) verdict {
	v.mac = mac{}
	v.text = clip(v.text)
	v.mac = t.mac(secret, labelAccept, v.appendTo(nil))
	return v
}

// errTransport marks a handshake that the connection ended, not the other side's words. Trying
// again may help.
var errTransport = errors.New("handshake interrupted")

// introduce runs the dialling side for a connection to peer. It returns the job that peer belongs
// to. A refusal is a *refusal.
func (id identity) introduce(conn net.Conn, r role, peer int) (jobID, error) {
	if err := id.checkLoopback(conn); err != nil {
		return jobID{}, err
	}
	ask := hello{role: r, rank: uint32(id.rank), peer: uint32(peer), size: uint32(id.size), job: id.job}
	rand.Read(ask.nonce[:])
	if err := write(conn, frameVersion, ask); err != nil {
		return jobID{}, err
	}
	answer, err := expect[challenge](conn, frameVersion)
	if err != nil {
		if errors.Is(err, io.EOF) || broken(err) {
			err = fmt.Errorf("%w (at this rank's hello: a rank that does not know version %d of the "+
				"bootstrap protocol may end it so)", err, frameVersion)
		}
		return jobID{}, err
	}
	t := transcript(answer.appendTo(ask.appendTo(nil)))
	if err := write(conn, frameVersion, proof{t.mac(id.secret, labelDial, nil)}); err != nil {
		return jobID{}, err
	}
	v, err := expect[verdict](conn, frameVersion)
	if err != nil {
		return jobID{}, err
	}
	if v.reason == reasonSecret {
		// The acceptor seals nothing for a dialler that it does not trust.
		return jobID{}, fmt.Errorf("%w: rank %d refused this rank's proof", ErrSecret, peer)
	}
	want := v.sealed(t, id.secret)
	if !hmac.Equal(want.mac[:], v.mac[:]) {
		return jobID{}, fmt.Errorf("%w: rank %d gave no valid proof", ErrSecret, peer)
	}
	if v.reason != accepted {
		return jobID{}, &refusal{v}
	}
	if int(answer.rank) != peer {
		return jobID{}, fmt.Errorf("%w: rank %d answers where rank %d was expected", errOtherJob, answer.rank, peer)
	}
	return answer.job, nil
}

// refusal is a verdict against this rank, from a peer that proved itself.
type refusal struct{ verdict }

func (e *refusal) Error() string { return e.reason.err(e.text).Error() }
func (e *refusal) Unwrap() error { return sentinels[e.reason] }

// examine runs the accepting side up to the verdict. The caller bounds the wait for the first word.
// It returns the dialler's hello, proved to come from a holder of the secret, and a function that
// seals the verdict to send. On an error the dialler has already been sent the reason that it may
// know.
func (id identity) examine(conn net.Conn) (hello, func(verdict) verdict, error) {
	if err := id.checkLoopback(conn); err != nil {
		return hello{}, nil, err
	}
	m, version, err := readFrame(conn, maxHandshake)
	ask, err := expected[hello](m, err)
	if err != nil {
		if _, ok := errors.AsType[*versionError](err); ok {
			// The answer is a frame of this side's version, so the other side gets the same
			// version error.
			_ = write(conn, frameVersion, verdict{reason: reasonProtocol, rank: uint32(id.rank)})
		}
		return hello{}, nil, err
	}
	ask.version = version
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	answer := challenge{rank: uint32(id.rank), size: uint32(id.size), job: id.job}
	rand.Read(answer.nonce[:])
	if err := write(conn, version, answer); err != nil {
		return ask, nil, err
	}
	p, err := expect[proof](conn, version)
	if err != nil {
		return ask, nil, err
	}
	t := transcript(answer.appendTo(ask.appendTo(nil)))
	want := t.mac(id.secret, labelDial, nil)
	if !hmac.Equal(want[:], p.mac[:]) {
		err := fmt.Errorf("%w from %v, which says it is rank %d", ErrSecret, conn.RemoteAddr(), ask.rank)
		_ = write(conn, version, verdict{reason: reasonSecret, rank: uint32(id.rank)})
		return ask, nil, err
	}
	return ask, func(v verdict) verdict { return v.sealed(t, id.secret) }, nil
}

// checkLoopback refuses a peer on another machine where there is no secret to prove.
func (id identity) checkLoopback(conn net.Conn) error {
	if len(id.secret) > 0 || loopback(conn.RemoteAddr()) {
		return nil
	}
	return fmt.Errorf("%w: %v is not one; give every rank the same secret (WEFT_SECRET)", ErrNotLoopback,
		conn.RemoteAddr())
}

func loopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// expect reads one handshake message of type M, of a version.
func expect[M message](conn net.Conn, version uint8) (M, error) {
	m, got, err := readFrame(conn, maxHandshake)
	if err == nil && got != version {
		err = &versionError{got}
	}
	return expected[M](m, err)
}

// expected is a message that was read, if it is of type M.
func expected[M message](m message, err error) (M, error) {
	var zero M
	if err != nil {
		if errors.Is(err, ErrProtocol) {
			return zero, err
		}
		return zero, fmt.Errorf("%w: %w", errTransport, err)
	}
	v, ok := m.(M)
	if !ok {
		return zero, fmt.Errorf("%w: %T where %T was expected", ErrProtocol, m, zero)
	}
	return v, nil
}

func write(conn net.Conn, version uint8, m message) error {
	if _, err := conn.Write(appendVersion(nil, version, m)); err != nil {
		return fmt.Errorf("%w: %w", errTransport, err)
	}
	return nil
}
