package bootstrap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Door is where a rank lets in links that are not the bootstrap's own, from other ranks of its job.
// A link counts when both sides have proved the job's secret by the bootstrap's handshake, and a
// key that the ranks have agreed on through the bootstrap. Strangers at a door disturb nothing.
type Door struct {
	id     identity
	used   netip.Addr // the address by which others have reached this rank
	bound  netip.Addr
	ln     *net.TCPListener
	life   context.Context
	end    context.CancelFunc
	admit  func(*Link)
	listen *listener // once it serves
	once   sync.Once
}

// OpenDoor listens where a bootstrap's rank can be reached: on its network interface, and on
// loopback for ranks of one process. Connections wait until [Door.Serve].
func OpenDoor(b Bootstrap) (*Door, error) {
	d := &Door{id: identity{rank: b.Rank(), size: b.Size()}, used: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	switch b := b.(type) {
	case *tcpRank:
		d.id.secret, d.bound, d.used = b.id.secret, b.bound, b.reached()
		if len(d.id.secret) == 0 {
			d.bound = d.used
		}
	case *mesh:
		d.bound = d.used
	}
	ln, err := bind(netip.AddrPortFrom(d.bound, 0))
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	d.ln = ln
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

// reached is an address of this host by which another rank has reached this one, or it another.
func (t *tcpRank) reached() netip.Addr {
	t.running.Lock()
	defer t.running.Unlock()
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for conn := range t.conns {
		if a := addrOf(conn.LocalAddr()); best.IsLoopback() && a.IsValid() {
			best = a
		}
	}
	return best
}

// Met is an address of this host by which a bootstrap's rank meets ranks of other hosts: of the interface that was
// asked for, or one by which it has met them. It is one of the loopback interface only where that was asked for, or
// where there is no secret, so that no other host takes part. It is invalid where there is none such: rank 0 may be on
// loopback for the ranks beside it, and elsewhere for others.
func Met(b Bootstrap) netip.Addr {
	t, ok := b.(*tcpRank)
	if !ok {
		return netip.Addr{}
	}
	a := t.bound
	if !a.IsValid() || a.IsUnspecified() {
		a = t.reached()
	}
	if a.IsLoopback() && !t.asked && len(t.id.secret) > 0 {
		return netip.Addr{}
	}
	return a
}

// Addresses are where other ranks may find the door: host:port texts.
func (d *Door) Addresses() []string { return reachable(d.bound, d.used, portOf(d.ln)) }

// Serve begins to let links in, and allows to make them. The key is the same on all ranks. Admit is
// called by a goroutine of each link's own.
func (d *Door) Serve(key []byte, admit func(*Link)) {
	sum := sha256.Sum256(key)
	copy(d.id.job[:], sum[:])
	d.id.secret = append(bytes.Clone(d.id.secret), key...)
	d.admit = admit
	d.listen = serveOn(d.ln, d.accept, func() {})
}

// Close lets nobody in any more. Links that were made stay.
func (d *Door) Close() error {
	err := error(nil)
	d.once.Do(func() {
		d.end()
		if err = d.ln.Close(); d.listen != nil {
			d.listen.work.Wait()
		}
	})
	return err
}

func (d *Door) accept(a *arrival) {
	// Closing leaves no deadline to be set after it.
	stop := context.AfterFunc(d.life, func() { a.Close() })
	conn := a.TCPConn
	conn.SetDeadline(time.Now().Add(helloTimeout))
	ask, seal, err := d.id.examine(conn)
	if gone := a.leave(); gone != nil {
		err = gone
	}
	if err == nil {
		v := d.consider(ask)
		if err = write(conn, ask.version, seal(v)); err == nil && v.reason != accepted {
			err = v.reason.err(v.text)
		}
	}
	if !stop() && err == nil {
		err = ErrClosed
	}
	if err != nil {
		if isTimeout(err) {
			a.reset()
		}
		conn.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	tune(conn)
	d.admit(&Link{peer: int(ask.rank), tcp: newTCPLink(conn)})
}

// consider decides about a dialler that has proved itself.
func (d *Door) consider(ask hello) verdict {
	no := func(r reason, text string) verdict { return verdict{reason: r, rank: ask.rank, text: text} }
	switch {
	case int64(ask.peer) != int64(d.id.rank), ask.job != d.id.job:
		return no(reasonOtherJob, "")
	case ask.role != roleDoor:
		return no(reasonProtocol, fmt.Sprintf("rank %d asks for a %v link at a door", ask.rank, ask.role))
	case ask.version != frameVersion:
		return no(reasonMismatch, sameVersion)
	case int64(ask.size) != int64(d.id.size), int64(ask.rank) >= int64(d.id.size), int64(ask.rank) == int64(d.id.rank):
		return no(reasonProtocol, fmt.Sprintf("rank %d of %d at the door of rank %d of %d", ask.rank, ask.size,
			d.id.rank, d.id.size))
	}
	return verdict{reason: accepted, rank: uint32(d.id.rank)}
}

// Dial makes a link to the door of a peer, which has these addresses. It tries each of them once.
// The error wraps [ErrDied] if something at every one of them says that there is no door.
func (d *Door) Dial(ctx context.Context, peer int, addresses []string) (*Link, error) {
	var errs []error
	absent := len(addresses) > 0
	for _, a := range addresses {
		conn, _, err := d.id.dialOnce(ctx, roleDoor, peer, a, len(addresses) > 1)
		if err == nil {
			return &Link{peer: peer, tcp: newTCPLink(conn)}, nil
		}
		absent = absent && refused(err)
		errs = append(errs, fmt.Errorf("%s: %w", a, err))
	}
	if absent {
		errs = append([]error{ErrDied}, errs...)
	}
	return nil, errors.Join(errs...)
}

// Absent reports whether something at every address of a peer's door says that there is none. It
// tries each of them once, and says nothing to a door that is there.
func (d *Door) Absent(ctx context.Context, addresses []string) bool {
	for _, a := range addresses {
		conn, err := (&net.Dialer{Timeout: addressTimeout}).DialContext(ctx, "tcp", a)
		if err == nil {
			conn.Close()
			return false
		}
		if !refused(err) {
			return false
		}
	}
	return len(addresses) > 0
}

// Link is a proven connection with another rank. It carries messages of up to [MaxMessage] bytes in
// order, each of which many links can share.
type Link struct {
	peer int
	tcp  *tcpLink
}

// Message is bytes on their way to one or many peers; they are framed once.
type Message struct{ packet *packet }

// NewMessage makes a message of bytes, which must not change any more.
func NewMessage(b []byte) Message { return Message{pack(data{b})} }

// Bytes are those of the message.
func (m Message) Bytes() []byte { return m.packet.messages[0].(data).bytes }

// Peer is the rank at the other end.
func (l *Link) Peer() int { return l.peer }

// Send queues a message. It never blocks; a broken link drops it.
func (l *Link) Send(m Message) { l.tcp.send(m.packet) }

// Queued is how many bytes have not been handed to the system yet.
func (l *Link) Queued() int {
	l.tcp.mu.Lock()
	defer l.tcp.mu.Unlock()
	return l.tcp.queued
}

// Unread reports whether something has arrived that is yet to be received.
func (l *Link) Unread() bool { return unread(l.tcp.conn) }

// Receive calls handle for each message that arrives, until one of the ends closes the link or
// handle fails. The bytes are handle's.
func (l *Link) Receive(handle func([]byte) error) error {
	return l.tcp.read(func(m message) error {
		d, ok := m.(data)
		if !ok {
			return fmt.Errorf("%w: %T on a link of a door", ErrProtocol, m)
		}
		return handle(d.bytes)
	})
}

// Shut ends the link when all messages have been sent, at the deadline at the latest. What the peer
// sends is still received until it ends its side.
func (l *Link) Shut(deadline time.Time) { l.tcp.shut(deadline) }

// Cut ends the link at once, in both directions.
func (l *Link) Cut() {
	l.tcp.conn.Close()
	l.tcp.shut(time.Now())
}
