package bootstrap

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// link carries messages to one peer, in order.
type link interface {
	// send queues p. It never blocks, and drops messages that a broken link cannot carry: its
	// reader reports the break.
	send(p *packet)

	// room waits until the link has room for more of the caller's data.
	room(ctx context.Context) error

	// flush waits until everything queued has been handed to the system, or until the deadline.
	flush(deadline time.Time)

	// shut ends the link after it has sent its queue. The peer's side ends in turn.
	shut(deadline time.Time)
}

// packet is messages on their way to one or many peers; they are encoded once.
type packet struct {
	messages []message
	once     sync.Once
	wire     []byte
}

func pack(m ...message) *packet { return &packet{messages: m} }

func (p *packet) encoded() []byte {
	p.once.Do(func() {
		for _, m := range p.messages {
			p.wire = appendFrame(p.wire, m)
		}
	})
	return p.wire
}

// maxQueued is how many bytes of a caller's data may wait for a peer that does not read.
const maxQueued = 2 * MaxMessage

// tcpLink is a connection with a writing goroutine, so that no caller and no reader ever waits for
// a slow peer.
type tcpLink struct {
	conn *net.TCPConn

	mu      sync.Mutex
	queue   net.Buffers
	queued  int
	busy    bool          // the writer holds bytes that it has not written yet
	stopped bool          // writing failed, or the link was shut
	work    chan struct{} // wakes the writer
	idle    chan struct{} // closed when the queue is empty; nil when no caller waits
	written sync.WaitGroup
}

func newTCPLink(conn *net.TCPConn) *tcpLink {
	l := &tcpLink{conn: conn, work: make(chan struct{}, 1)}
	l.written.Go(l.write)
	return l
}

func (l *tcpLink) send(p *packet) {
	wire := p.encoded()
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	l.queue = append(l.queue, wire)
	l.queued += len(wire)
	l.mu.Unlock()
	l.kick()
}

func (l *tcpLink) kick() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

func (l *tcpLink) write() {
	for range l.work {
		for {
			l.mu.Lock()
			batch := l.queue
			l.queue, l.queued = nil, 0
			l.busy = len(batch) > 0 && !l.stopped
			if !l.busy {
				l.release()
				stopped := l.stopped
				l.mu.Unlock()
				if stopped {
					return
				}
				break
			}
			l.mu.Unlock()
			wrote()
			if _, err := batch.WriteTo(l.conn); err != nil {
				l.mu.Lock()
				l.stopped = true // the reader sees the break, after the peer's earlier messages
				l.mu.Unlock()
			}
		}
	}
}

// release wakes the callers that wait for an empty queue.
func (l *tcpLink) release() {
	if l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// empty returns a channel that is closed once nothing is left to write.
func (l *tcpLink) empty() <-chan struct{} {
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	return l.idle
}

func (l *tcpLink) room(ctx context.Context) error {
	l.mu.Lock()
	if l.stopped || l.queued < maxQueued {
		l.mu.Unlock()
		return nil
	}
	ch := l.empty()
	l.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return late(ctx)
	}
}

func (l *tcpLink) flush(deadline time.Time) {
	l.mu.Lock()
	if l.stopped || (len(l.queue) == 0 && !l.busy) {
		l.mu.Unlock()
		return
	}
	ch := l.empty()
	l.mu.Unlock()
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	}
}

func (l *tcpLink) shut(deadline time.Time) {
	l.flush(deadline)
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.conn.SetWriteDeadline(time.Now()) // frees a writer that the peer keeps waiting
	l.kick()
	l.written.Wait()
	// Half-close, so that the reader continues: closing with unread bytes would reset the
	// connection and discard data that the peer has not read yet.
	l.conn.CloseWrite()
}

// read hands every message to handle until the connection ends, and closes it.
func (l *tcpLink) read(handle func(message) error) error {
	defer l.conn.Close()
	r := bufio.NewReader(l.conn)
	for {
		m, err := readMessage(r, maxPayload)
		if err != nil {
			return err
		}
		reads()
		if err := handle(m); err != nil {
			return err
		}
	}
}
