package shm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Connect forms a full mesh among the ranks at addrs; self is this listener's own position in it. A
// zero address stands for a rank that is on another host, and is no peer.
// It returns when every rank is connected, or with a [*PeerError] that names one that is gone, is
// not on this host ([ErrOtherHost]), belongs to another user ([ErrOtherUser]), has another list
// ([ErrMismatch]), or had not come when ctx ended. Whatever the result, the listener is used up and
// its socket closed.
//
// Each pair is joined once: by the process's own tables if both ranks are in it, else by a
// connection from the higher position to the lower. A connection counts only when the kernel's
// record of its other end agrees with the address (same process id, same user) and the secrets of
// both addresses were shown; others are closed and forgotten.
//
// onEvent, which may be nil, is called for later events of peers: one call at a time and in order
// for each peer, possibly before Connect has returned and for several peers at once. It delays the
// peer's next events, so it must not wait.
func (l *Listener) Connect(ctx context.Context, self int, addrs []Address, onEvent func(Event)) (*Mesh, error) {
	if !l.used.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("connect: %w", ErrClosed)
	}
	m, err := l.connect(ctx, self, addrs, onEvent)
	if err != nil {
		l.mailbox.close(l.address.Token)
		return nil, fmt.Errorf("connect: %w", errors.Join(err, l.stop()))
	}
	return m, nil
}

func (l *Listener) connect(ctx context.Context, self int, addrs []Address, onEvent func(Event)) (*Mesh, error) {
	roster, err := l.checkMembers(self, addrs)
	if err != nil {
		return nil, err
	}
	m, err := newMesh(self, addrs, l.mailbox, onEvent)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j := &join{listener: l, mesh: m, addrs: addrs, roster: roster, fail: cancel, met: make(chan int, len(addrs))}
	if err := j.run(ctx); err != nil {
		if l.OnFailure != nil {
			l.OnFailure(err)
		}
		cancel(err)
		_ = l.stop()
		j.handshakes.Wait()
		// Ranks of this process may already count on this one, and have no connection to see break.
		now, done := context.WithTimeout(context.Background(), sendTimeout)
		defer done()
		for _, p := range m.peers {
			if p != nil && p.mailbox != nil {
				_ = m.post(now, p, frame{kind: kindAbandon}, offer{})
			}
		}
		m.release()
		return nil, err
	}
	// Ends the acceptor, and connections that have not proved themselves.
	err = l.stop()
	cancel(nil)
	j.handshakes.Wait()
	if err != nil {
		m.release()
		return nil, err
	}
	m.start()
	return m, nil
}

// checkMembers refuses a list that no mesh can be made of, and condenses it to a roster that ranks
// compare.
func (l *Listener) checkMembers(self int, addrs []Address) (roster [16]byte, err error) {
	if self < 0 || self >= len(addrs) {
		return roster, fmt.Errorf("position %d in a list of %d", self, len(addrs))
	}
	if addrs[self] != l.address {
		return roster, fmt.Errorf("the address at position %d is not this listener's", self)
	}
	seen := make(map[[16]byte]int, len(addrs))
	hash := sha256.New()
	for i, a := range addrs {
		if a == (Address{}) {
			hash.Write([]byte{0}) // which no address begins with
			continue
		}
		if !a.SameHost(l.address) {
			return roster, &PeerError{Peer: i, Err: fmt.Errorf("on %s: %w %s", a.Host, ErrOtherHost, l.address.Host)}
		}
		if own := l.address.UID; a.UID != own && a.UID != 0 && own != 0 {
			return roster, &PeerError{Peer: i, Err: fmt.Errorf("%w: it runs as user %d, this rank as %d",
				ErrOtherUser, a.UID, own)}
		}
		if first, ok := seen[a.Token]; ok {
			return roster, fmt.Errorf("positions %d and %d have the same address", first, i)
		}
		seen[a.Token] = i
		b, err := a.MarshalBinary()
		if err != nil {
			return roster, &PeerError{Peer: i, Err: err}
		}
		hash.Write(b) // self-delimiting
	}
	copy(roster[:], hash.Sum(nil))
	return roster, nil
}

// join is a mesh being formed.
type join struct {
	listener   *Listener
	mesh       *Mesh
	addrs      []Address
	roster     [16]byte
	fail       context.CancelCauseFunc // ends the join with an error; the first one counts
	met        chan int                // peers that are connected, each once
	handshakes sync.WaitGroup
}

// run returns when every peer was met, or with the first error.
func (j *join) run(ctx context.Context) error {
	m := j.mesh
	m.mailbox.join(j.roster)
	var local []*peer
	missing := make(map[int]bool)
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		missing[p.position] = true
		if p.address.SameProcess(j.listener.address) {
			local = append(local, p)
			continue
		}
		if err := m.watch.add(p.position, p.address.PID); err != nil {
			if errors.Is(err, ErrDied) {
				err = &PeerError{Peer: p.position, Err: fmt.Errorf("%w: there is no process %d", ErrDied, p.address.PID)}
			}
			return err
		}
		if p.position < m.self {
			j.handshakes.Go(func() { j.report(p, j.dial(ctx, p)) })
		}
	}
	m.running.Go(func() { m.watch.run(j.ended) })
	j.handshakes.Go(func() { j.accept(ctx) })
	j.handshakes.Go(func() { j.meetLocal(ctx, local) })

	for len(missing) > 0 {
		select {
		case i := <-j.met:
			delete(missing, i)
		case <-ctx.Done():
			err := context.Cause(ctx)
			if _, ok := errors.AsType[*PeerError](err); !ok {
				err = j.silence(missing, err)
			}
			return err
		}
	}
	return nil
}

// silence names the peers that did not come.
func (j *join) silence(missing map[int]bool, cause error) error {
	var owing []*peer
	for _, p := range j.mesh.peers {
		if p != nil && missing[p.position] {
			owing = append(owing, p)
		}
	}
	return &PeerError{Peer: owing[0].position, Err: silence(owing, cause)}
}

// report takes the result of meeting a peer.
func (j *join) report(p *peer, err error) {
	if err != nil {
		j.fail(j.mesh.failed(p, err))
		return
	}
	j.met <- p.position
}

// ended is called when a peer's process has ended, as long as the mesh exists.
func (j *join) ended(position int) {
	p := j.mesh.peers[position]
	if !j.mesh.ended(p) {
		j.fail(&PeerError{Peer: position, Err: fmt.Errorf("%w: process %d ended", ErrDied, p.address.PID)})
	}
}

// meetLocal finds the ranks of this process. They need no proof.
func (j *join) meetLocal(ctx context.Context, local []*peer) {
	for _, p := range local {
		box := findMailbox(p.address.Token)
		if box == nil {
			j.report(p, ErrLeft)
			return
		}
		select {
		case <-box.joined:
		case <-box.closed:
			j.report(p, fmt.Errorf("%w before it joined", ErrLeft))
			return
		case <-ctx.Done():
			return
		}
		if box.roster != j.roster {
			j.report(p, errOtherList)
			return
		}
		p.mailbox = box
		j.report(p, nil)
	}
}

var errOtherList = fmt.Errorf("%w: it was given another list of ranks", ErrMismatch)

// dial meets a peer of another process that listens for us.
func (j *join) dial(ctx context.Context, p *peer) error {
	socket, err := dialSocket(ctx, p.address)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) {
			err = fmt.Errorf("%w: its address has no listener", ErrDied)
		}
		return err
	}
	c, err := newConn(socket)
	if err != nil {
		_ = socket.Close()
		return err
	}
	stop := context.AfterFunc(ctx, c.close)
	cred, err := c.credentials()
	if err == nil {
		err = believe(cred, p.address)
	}
	if err != nil {
		c.close()
		return err
	}
	j.mesh.attach(p, c)
	if err := c.write(ctx, frame{kind: kindHello, payload: j.greeting(p).encode()}, -1); err != nil {
		return greetingError(err)
	}
	in, err := c.read()
	if _, other := errors.AsType[*versionError](err); other {
		return err
	}
	if err != nil {
		return greetingError(err)
	}
	g, err := greetingOf(in, kindWelcome)
	if err != nil {
		return err
	}
	if g.from != p.position || g.to != j.mesh.self || !g.shows(p.address, j.listener.address) {
		return fmt.Errorf("its answer is not from the rank that was asked: %w", ErrMalformed)
	}
	if in.version != frameVersion {
		return &versionError{in.version}
	}
	if g.roster != j.roster {
		return errOtherList
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// dialSocket waits while the listener's queue is full, which connect answers by EAGAIN and nothing
// announces the end of.
func dialSocket(ctx context.Context, a Address) (*net.UnixConn, error) {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, network, a.socketAddress().Name)
		if err == nil {
			return c.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// greetingError words a connection that broke during the greeting.
func greetingError(err error) error { return fmt.Errorf("%w while joining: %w", ErrDied, err) }

func (j *join) greeting(p *peer) greeting {
	return greeting{
		from: j.mesh.self, to: p.position, token: p.address.Token, own: j.listener.address.Token,
		roster: j.roster,
	}
}

func greetingOf(in packet, want frameKind) (greeting, error) {
	if in.kind != want {
		if in.fd >= 0 {
			_ = unix.Close(in.fd)
		}
		return greeting{}, fmt.Errorf("%v instead of %v: %w", in.kind, want, ErrMalformed)
	}
	return decodeGreeting(in.payload)
}

// believe compares the kernel's record of the process at the other end with an address.
func believe(cred *unix.Ucred, a Address) error {
	if int64(cred.Pid) != int64(a.PID) || int64(cred.Uid) != int64(a.UID) {
		return fmt.Errorf("process %d of user %d is in the place of process %d of user %d", cred.Pid, cred.Uid, a.PID, a.UID)
	}
	return nil
}

// accept admits the peers that dial, in any order. Other callers cannot slow it down: each has its
// own goroutine, and only processes of the job get one.
func (j *join) accept(ctx context.Context) {
	for {
		socket, err := j.listener.socket.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			j.fail(j.mesh.own(fmt.Errorf("accept: %w", err)))
			return
		}
		c, err := newConn(socket)
		if err != nil {
			_ = socket.Close()
			continue
		}
		cred, err := c.credentials()
		if err != nil || !j.awaits(cred) {
			c.close()
			continue
		}
		j.handshakes.Go(func() {
			if !j.admit(ctx, c, cred) {
				c.close()
			}
		})
	}
}

// awaits reports whether some peer that is to dial us is in the process with these credentials.
func (j *join) awaits(cred *unix.Ucred) bool {
	for _, a := range j.addrs[j.mesh.self+1:] {
		if believe(cred, a) == nil {
			return true
		}
	}
	return false
}

// admit runs the handshake with a caller. It returns false if the caller is not one of ours.
func (j *join) admit(ctx context.Context, c *conn, cred *unix.Ucred) bool {
	stop := context.AfterFunc(ctx, c.close)
	in, err := c.read()
	if err != nil {
		return false
	}
	g, err := greetingOf(in, kindHello)
	if err != nil || g.to != j.mesh.self || g.from <= j.mesh.self || g.from >= len(j.addrs) {
		return false
	}
	p := j.mesh.peers[g.from]
	if p == nil || believe(cred, p.address) != nil || !g.shows(p.address, j.listener.address) || !j.mesh.attach(p, c) {
		return false
	}
	err = c.write(ctx, frame{kind: kindWelcome, payload: j.greeting(p).encode()}, -1)
	switch {
	case err != nil:
		err = greetingError(err)
	case in.version != frameVersion:
		err = &versionError{in.version}
	case g.roster != j.roster:
		err = errOtherList
	case !stop():
		err = context.Cause(ctx)
	}
	j.report(p, err)
	return true
}
