package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/weftgo/weft/internal/filelimit"
)

// The states of dial when its context ends.
var (
	errUnreachable = errors.New("nothing answers")
	errUnproven    = errors.New("no link to it") // though something, which may be the peer, takes connections
)

// dial connects to peer at one of addrs, and both sides prove their identity. While no peer answers
// it tries again, until the context ends. Its errors are *PeerErrors of a join, but for that of a
// process that can open no more files.
func (t *tcpRank) dial(ctx context.Context, r role, peer int, addrs []string) (*net.TCPConn, jobID, error) {
	fail := func(rank int, err error) (*net.TCPConn, jobID, error) {
		return nil, jobID{}, &PeerError{Rank: rank, Op: opJoin.String(), Err: err}
	}
	var pause backoff
	var last error
	found := errUnreachable
	for {
		refusals := 0
		for _, addr := range addrs {
			conn, job, err := t.id.dialOnce(ctx, r, peer, addr, len(addrs) > 1)
			if err == nil {
				return conn, job, nil
			}
			if no, ok := errors.AsType[*refusal](err); ok && no.final() {
				return fail(int(no.rank), err)
			}
			if filelimit.Reached(err) { // nothing that the peer could help
				return nil, jobID{}, err
			}
			if last == nil || !isTimeout(err) { // running out of time explains nothing
				last = err
				if len(addrs) > 1 {
					last = fmt.Errorf("%s: %w", addr, err)
				}
			}
			if _, unconnected := errors.AsType[*connectError](err); hopeless(r, err) {
				refusals++
			} else if !unconnected {
				found = errUnproven
			}
		}
		if refusals == len(addrs) {
			return fail(peer, last)
		}
		if pause.wait(ctx) != nil {
			return fail(peer, fmt.Errorf("%w: %w at %s: %w", late(ctx), found, strings.Join(addrs, ", "), last))
		}
	}
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout() || errors.Is(err, ErrTimeout) || errors.Is(err, context.Canceled)
}

// final reports whether the refusal is this job's answer to this rank, rather than that of
// something else at the address.
func (e *refusal) final() bool { return e.reason != reasonOtherJob && e.reason != reasonFull }

// connectError is why there was no connection.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// hopeless reports whether the address will give the same answer next time. Rank 0 may not listen
// yet when a rank dials it to join, so dial tries again. All other ranks listened before they
// joined: if one does not listen any more, it has ended.
func hopeless(r role, err error) bool {
	return !errors.Is(err, errFull) &&
		(errors.Is(err, ErrSecret) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrNotLoopback)) ||
		r == rolePair && refused(err)
}

// addressTimeout bounds one attempt to connect where there are other addresses to try.
const addressTimeout = time.Second

func (id identity) dialOnce(ctx context.Context, r role, peer int, addr string, others bool) (*net.TCPConn,
	jobID, error,
) {
	d := net.Dialer{Timeout: handshakeTimeout}
	if others {
		d.Timeout = addressTimeout
	}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		if oe, ok := errors.AsType[*net.OpError](err); ok {
			err = oe.Err // the address is named by the caller
		}
		return nil, jobID{}, &connectError{err}
	}
	conn := c.(*net.TCPConn)
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	interrupt := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	job, err := id.introduce(conn, r, peer)
	if !interrupt() && err == nil {
		err = late(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, jobID{}, err
	}
	conn.SetDeadline(time.Time{})
	tune(conn)
	return conn, job, nil
}

// backoff spaces attempts: closely at first, since ranks of one host start within milliseconds of
// each other.
type backoff struct {
	next    time.Duration
	started time.Time
}

func (b *backoff) wait(ctx context.Context) error {
	now := time.Now()
	if b.next == 0 {
		b.next, b.started = time.Millisecond, now
	}
	limit := 10 * time.Millisecond
	if now.Sub(b.started) > 2*time.Second {
		limit = 250 * time.Millisecond
	}
	b.next = min(b.next*3/2, limit)
	timer := time.NewTimer(b.next/2 + rand.N(b.next/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
