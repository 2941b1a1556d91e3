package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// conn carries frames and descriptors to and from one peer of another process. One goroutine reads;
// any number write.
type conn struct {
	socket  *net.UnixConn
	raw     syscall.RawConn
	writing chan struct{} // a lock whose wait a context can end
	closing sync.Once
	in      [maxFrame + 1]byte
	rights  [32]byte // room for one descriptor and the padding of its control message
}

func newConn(socket *net.UnixConn) (*conn, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &conn{socket: socket, raw: raw, writing: make(chan struct{}, 1)}, nil
}

// credentials are those of the process that dialled or that listens, as the kernel recorded them.
func (c *conn) credentials() (*unix.Ucred, error) {
	var cred *unix.Ucred
	var err error
	if e := c.raw.Control(func(fd uintptr) {
		cred,
			err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return cred, os.NewSyscallError("getsockopt(SO_PEERCRED)", err)
}

// close ends a pending read and pending writes. A second caller waits for the first, so that the
// descriptor is closed when any of them returns: the socket's own Close tells the second at once
// that it is closed.
func (c *conn) close() { c.closing.Do(func() { _ = c.socket.Close() }) }

// closeRead lets the reader take the data that have arrived and then see the end.
func (c *conn) closeRead() { _ = c.socket.CloseRead() }

// expire makes reads and writes fail from the moment ctx ends. The caller calls the function it
// gets when it is done, which reports whether ctx ended first.
func (c *conn) expire(ctx context.Context, set func(time.Time) error) (ended func() bool) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = set(time.Unix(1, 0))
		close(done)
	})
	return func() bool {
		if stop() {
			return false
		}
		<-done
		_ = set(time.Time{})
		return true
	}
}

// write sends one frame, with a descriptor unless fd is negative. A packet goes whole or not at
// all, so a write that ctx ended leaves the connection as it was.
func (c *conn) write(ctx context.Context, f frame, fd int) error {
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.writing }()

	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	packet := f.append(make([]byte, 0, frameHeader+len(f.payload)))
	ended := c.expire(ctx, c.socket.SetWriteDeadline)
	err := c.send(ctx, packet, rights)
	if ended() && errors.Is(err, os.ErrDeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return err
}

func (c *conn) send(ctx context.Context, packet, rights []byte) error {
	for {
		var sent error
		err := c.raw.Write(func(fd uintptr) bool {
			for {
				// MSG_NOSIGNAL: in a process that Go does not own, a peer's death must not raise
				// SIGPIPE.
				_, sent = unix.SendmsgN(int(fd), packet, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
				if !errors.Is(sent, unix.EINTR) {
					break
				}
			}
			return !errors.Is(sent, unix.EAGAIN)
		})
		if err != nil {
			return err
		}
		if !errors.Is(sent, unix.ETOOMANYREFS) {
			return os.NewSyscallError("sendmsg", sent)
		}
		// This user has as many descriptors under way as one process may have open. Peers take
		// theirs without being asked.
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// pause waits for an event that the kernel does not announce.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// packet is one frame as it arrived.
type packet struct {
	frame
	fd   int  // owned by the receiver; -1 for none
	lost bool // a descriptor was sent, but this process had no room for it
}

// read returns the next frame; its payload is valid until the next read. The end of the stream is
// io.EOF.
func (c *conn) read() (packet, error) {
	n, nrights, flags, _, err := c.socket.ReadMsgUnix(c.in[:], c.rights[:])
	if errors.Is(err, unix.ECONNRESET) {
		// The peer closed with packets of ours unread. Data that it had sent before, its goodbye
		// perhaps, are still to come.
		n, nrights, flags, _, err = c.socket.ReadMsgUnix(c.in[:], c.rights[:])
	}
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return packet{fd: -1}, err
	}
	fds, err := descriptors(c.rights[:nrights])
	p := packet{fd: -1}
	if err == nil {
		p, err = c.check(n, flags, fds)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return packet{fd: -1}, err
	}
	return p, nil
}

// check makes a packet of the n bytes and the descriptors that arrived.
func (c *conn) check(n, flags int, fds []int) (packet, error) {
	if flags&unix.MSG_TRUNC != 0 {
		return packet{}, fmt.Errorf("frame over %d bytes: %w", maxFrame, ErrMalformed)
	}
	f, err := decodeFrame(c.in[:n])
	if err != nil {
		return packet{}, err
	}
	truncated := flags&unix.MSG_CTRUNC != 0
	switch want := f.kind.carriesDescriptor(); {
	case !want && len(fds) == 0 && !truncated:
		return packet{frame: f, fd: -1}, nil
	case want && len(fds) == 1 && !truncated:
		return packet{frame: f, fd: fds[0]}, nil
	case want && len(fds) == 0 && truncated:
		return packet{frame: f, fd: -1, lost: true}, nil
	}
	return packet{}, fmt.Errorf("%v frame with %d descriptors: %w", f.kind, len(fds), ErrMalformed)
}

// descriptors takes the descriptors out of control messages. They are the caller's even if there is
// an error.
func descriptors(b []byte) ([]int, error) {
	if len(b) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, fmt.Errorf("control message: %w: %w", ErrMalformed, err)
	}
	var fds []int
	for i := range messages {
		m := &messages[i]
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(m)
		if err != nil {
			return fds, fmt.Errorf("control message: %w: %w", ErrMalformed, err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
