package fabrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft/bootstrap"
)

// floor is a TCP connection between the ranks, used by bare system calls that never sleep.
type floor struct {
	fd       int
	local    string // this end's address
	deadline time.Time
}

// floorFor bounds the measurement of the floor.
const floorFor = 2 * time.Minute

// newFloor connects rank 1 to rank 0, which listens at an address of its own.
func newFloor(ctx context.Context, meet bootstrap.Bootstrap, at string) (*floor, error) {
	f := &floor{fd: -1, deadline: time.Now().Add(floorFor)}
	var listener net.Listener
	address := ""
	if meet.Rank() == 0 {
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(at, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		listener, address = l, l.Addr().String()
	}
	all, err := meet.AllGather(ctx, []byte(address))
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	if listener != nil {
		conn, err = listener.Accept()
	} else {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "tcp", string(all[0]))
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if f.local, _, err = net.SplitHostPort(conn.LocalAddr().String()); err != nil {
		return nil, err
	}
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f.fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return f, errors.Join(unix.SetNonblock(f.fd, true), unix.SetsockoptInt(f.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}

func (f *floor) close() { _ = unix.Close(f.fd) }

// move sends or receives all of b, spinning.
func (f *floor) move(b []byte, how func(int, []byte) (int, error)) error {
	for turns := 0; len(b) > 0; turns++ {
		n, err := how(f.fd, b)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			if turns%1024 == 1023 && time.Now().After(f.deadline) {
				return fmt.Errorf("the socket took longer than %v", floorFor)
			}
			continue
		case err != nil:
			return err
		case n == 0:
			return errors.New("the other rank closed the socket")
		}
		b = b[n:]
	}
	return nil
}

func (f *floor) send(b []byte) error    { return f.move(b, unix.Write) }
func (f *floor) receive(b []byte) error { return f.move(b, unix.Read) }

// measure times a ping-pong of 8 bytes, and streams.
func (f *floor) measure(b *bench) (rows []Row, err error) {
	first := b.meet.Rank() == 0
	r, word := Row{What: Floor, Bytes: 8, Batch: 1, Verified: true}, make([]byte, 8)
	var bursts [][]time.Duration
	for range b.o.Bursts {
		times := make([]time.Duration, 100)
		for i := range times {
			begun := time.Now()
			if !first {
				err = f.receive(word)
			}
			if err == nil {
				err = f.send(word)
			}
			if err == nil && first {
				err = f.receive(word)
			}
			if err != nil {
				return nil, err
			}
			times[i] = time.Since(begun) / 2
		}
		bursts = append(bursts, times)
	}
	r.set(bursts)
	rows = append(rows, r)
	for _, n := range b.o.Sizes {
		r, bursts := Row{What: Pipe, Bytes: n, Batch: depth, Verified: true}, [][]time.Duration(nil)
		for range b.o.Bursts {
			begun := time.Now()
			for range depth {
				if first {
					err = f.send(b.memory[:n])
				} else {
					err = f.receive(b.memory[:n])
				}
				if err != nil {
					return nil, err
				}
			}
			if first { // all has arrived
				err = f.receive(word[:1])
			} else {
				err = f.send(word[:1])
			}
			if err != nil {
				return nil, err
			}
			bursts = append(bursts, []time.Duration{time.Since(begun) / depth})
		}
		r.set(bursts)
		rows = append(rows, r)
	}
	return rows, nil
}
