package bootstrap

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/weftgo/weft/internal/filelimit"
)

// TCPConfig says how a rank meets the others over TCP: by Address and Secret, or by ID.
type TCPConfig struct {
	Rank, Size int

	// Address is rank 0's host:port. Rank 0 listens there; the others dial it until it answers. In
	// "eth0:10.0.0.1:29500" the interface that this rank uses comes first, unless Interface says which.
	Address string

	// ID replaces Address, and Secret where that is empty.
	ID ID

	// Secret is known to the ranks of the job alone. Without one, only peers on the loopback
	// interface are accepted.
	Secret []byte

	// Interface is the name or an address of the network interface to listen on. Without one, rank
	// 0 listens where Address says, and the others publish the address from which they reach rank
	// 0.
	Interface string

	ended string // the file in which the launcher writes down which ranks have ended
	trace tracer // for tests
}

// meeting is where rank 0 listens, as the other ranks know it.
func (c *TCPConfig) meeting() string {
	if c.ID.IsZero() {
		return c.Address
	}
	return strings.Join(c.ID.targets(), " or ")
}

// helloTimeout is how long a connection may take to say its first word, handshakeTimeout how long
// from there to prove itself.
const (
	helloTimeout     = time.Second
	handshakeTimeout = 10 * time.Second
)

// tcpRank is a mesh whose links are TCP connections.
type tcpRank struct {
	*mesh
	id     identity
	life   context.Context // ends with Close
	end    context.CancelFunc
	port   *port      // rank 0: where ranks arrive
	listen *listener  // other ranks: where pairs arrive
	bound  netip.Addr // the address that it listens on; invalid for all
	asked  bool       // bound is of the interface that the caller has named

	admission sync.Mutex // held while one arrival is decided
	arrived   int        // rank 0: ranks that were sent whether they are in
	expected  int        // rank 0: how many ranks it still has to answer
	addrs     [][]string // where pairs arrive, by rank

	running sync.Mutex
	stopped bool
	work    sync.WaitGroup // readers and handshakes
	conns   map[net.Conn]struct{}
}

// DialTCP joins a job over TCP. Rank 0 listens, the others dial it; all return once all have
// arrived. Links between other ranks are opened by their first Send.
//
// The context, or else [DefaultJoinTimeout], bounds the join only. Rank 0 rejects a connection
// without the job's secret; it disturbs nothing. If the join fails for lack of a rank, the error
// lists the last few such connections.
func DialTCP(ctx context.Context, cfg TCPConfig) (Bootstrap, error) {
	if err := checkRank(cfg.Rank, cfg.Size); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultJoinTimeout)
		defer cancel()
	}
	if name, address, ok := cutInterface(cfg.Address); ok {
		cfg.Interface, cfg.Address = cmp.Or(cfg.Interface, name), address
	}
	if err := checkInterface(ctx, cfg); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	t := &tcpRank{
		mesh:  newMesh(cfg.Rank, cfg.Size),
		id:    identity{rank: cfg.Rank, size: cfg.Size, secret: cfg.Secret},
		conns: make(map[net.Conn]struct{}),
		asked: cfg.Interface != "",

		expected: cfg.Size - 1,
	}
	t.life, t.end = context.WithCancel(context.Background())
	t.mesh.stop = t.stop
	t.mesh.open = t.openPair
	t.mesh.trace = cfg.trace
	if !cfg.ID.IsZero() {
		t.id.job = cfg.ID.job
		if len(cfg.Secret) == 0 {
			t.id.secret = cfg.ID.secret[:]
		}
	}
	var err error
	if cfg.Rank == 0 {
		err = t.host(ctx, cfg)
	} else {
		err = t.join(ctx, cfg)
	}
	if filelimit.Reached(err) {
		err = &PeerError{Rank: t.rank, Op: opJoin.String(), Err: fmt.Errorf("%w: %w", ErrAborted, filelimit.Error())}
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// host is the join of rank 0.
func (t *tcpRank) host(ctx context.Context, cfg TCPConfig) error {
	// Rank 0 has a connection to every other rank.
	if err := filelimit.Raise(cfg.Size + 64); err != nil {
		return &PeerError{Rank: t.rank, Op: opJoin.String(), Err: fmt.Errorf("%w: %w", ErrAborted, err)}
	}
	bind, err := t.bindAddress(ctx, cfg)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if t.id.job == (jobID{}) {
		rand.Read(t.id.job[:])
	}
	t.bound = bind.Addr()
	if t.port, err = takePort(bind, t); err != nil {
		return fmt.Errorf("join: rank 0 can't listen: %w", err)
	}
	t.meeting = cfg.meeting()
	stop := t.hostUntilEnded(cfg.ended)
	table, err := t.collect(ctx, opJoin, nil)
	stop()
	if err != nil {
		t.notifyLatecomers(ctx)
		return err
	}
	t.setAddresses(table)
	return nil
}

// bindAddress is where rank 0 listens. An address that may be another name of this host, or the
// outside of a translated one, is not bound: then every interface is.
func (t *tcpRank) bindAddress(ctx context.Context, cfg TCPConfig) (netip.AddrPort, error) {
	var none netip.AddrPort
	var host netip.Addr
	var port uint16
	if cfg.ID.IsZero() {
		addrs, p, err := resolve(ctx, cfg.Address)
		if err != nil {
			return none, err
		}
		if p == 0 {
			return none, fmt.Errorf("address %q needs a port that all ranks know", cfg.Address)
		}
		if err := t.checkReach(addrs, cfg.Address); err != nil {
			return none, err
		}
		port = p
		if addrs[0].IsLoopback() || isLocal(addrs[0]) && literal(cfg.Address) {
			host = addrs[0]
		}
	} else {
		port = cfg.ID.port
		if cfg.ID.loopback() {
			host = cfg.ID.addrs[0]
		}
	}
	if cfg.Interface != "" {
		own, err := InterfaceAddr(cfg.Interface)
		if err != nil {
			return none, err
		}
		host = own
	}
	return netip.AddrPortFrom(host, port), nil
}

// checkReach refuses addresses on other machines where there is no secret.
func (t *tcpRank) checkReach(addrs []netip.Addr, name string) error {
	for _, a := range addrs {
		if len(t.id.secret) == 0 && !a.IsLoopback() {
			return fmt.Errorf("%w: rank 0 is at %s; give every rank the same secret (WEFT_SECRET)", ErrNotLoopback, name)
		}
	}
	return nil
}

// notifyLatecomers keeps a failed rank 0 at its address for a moment, so that the ranks that have not
// dialled yet learn why there is no job.
func (t *tcpRank) notifyLatecomers(ctx context.Context) {
	deadline := time.NewTimer(500 * time.Millisecond)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		t.admission.Lock()
		all := t.arrived >= t.expected
		t.admission.Unlock()
		if all {
			return
		}
		select {
		case <-deadline.C:
			return
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// join is the join of another rank.
func (t *tcpRank) join(ctx context.Context, cfg TCPConfig) error {
	targets, err := t.targets(ctx, cfg)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	t.meeting = strings.Join(targets, " or ")
	var conn *net.TCPConn
	var job jobID
	stop := reportWhile(ctx, func(context.Context) Wait {
		return Wait{Op: opJoin.String(), Ranks: []int{0}, Size: t.size, Address: t.meeting}
	})
	err = reachUntilEnded(ctx, ledger{path: cfg.ended, rank: t.rank, size: t.size}, func(ctx context.Context) (err error) {
		conn, job, err = t.dial(ctx, roleHub, 0, targets)
		return err
	})
	stop()
	if err != nil {
		return err
	}
	t.id.job = job
	host := netip.Addr{}
	switch {
	case cfg.Interface != "":
		if host, err = InterfaceAddr(cfg.Interface); err != nil {
			return t.withdraw(conn, fmt.Errorf("join: %w", err))
		}
	case len(t.id.secret) == 0:
		host = addrOf(conn.LocalAddr())
	}
	t.bound = host
	t.listen, err = listenOn(netip.AddrPortFrom(host, 0), t.accept, t.starved)
	if err != nil {
		return t.withdraw(conn, fmt.Errorf("join: %w", err))
	}
	if !t.adopt(0, conn) {
		return ErrClosed
	}
	own := reachable(host, addrOf(conn.LocalAddr()), t.listen.port())
	table, err := t.collect(ctx, opJoin, []byte(strings.Join(own, ",")))
	if err != nil {
		return err
	}
	t.setAddresses(table)
	return nil
}

// withdraw ends a join for this rank's own error after rank 0 has let it in. The others learn the error, and do
// not take this rank for one that died.
func (t *tcpRank) withdraw(conn *net.TCPConn, err error) error {
	if !t.adopt(0, conn) {
		return err
	}
	if filelimit.Reached(err) {
		t.Blame(t.rank, filelimit.Error())
	} else {
		t.Blame(t.rank, err)
	}
	return err
}

// targets lists the addresses at which rank 0 may be found.
func (t *tcpRank) targets(ctx context.Context, cfg TCPConfig) ([]string, error) {
	if !cfg.ID.IsZero() {
		return cfg.ID.targets(), nil
	}
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		return nil, err
	}
	if len(t.id.secret) == 0 {
		addrs, _, err := resolve(ctx, cfg.Address)
		if err != nil {
			return nil, err
		}
		if err := t.checkReach(addrs, cfg.Address); err != nil {
			return nil, err
		}
	}
	return []string{cfg.Address}, nil
}

func (t *tcpRank) setAddresses(table [][]byte) {
	addrs := make([][]string, len(table))
	for r, b := range table {
		if len(b) > 0 {
			addrs[r] = strings.Split(string(b), ",")
		}
	}
	t.admission.Lock()
	t.addrs = addrs
	t.admission.Unlock()
}

// openPair connects to peer.
func (t *tcpRank) openPair(peer int) (link, error) {
	ctx, cancel := context.WithTimeout(t.life, handshakeTimeout)
	defer cancel()
	t.admission.Lock()
	addrs := t.addrs[peer]
	t.admission.Unlock()
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%w: it published no address", ErrProtocol)
	}
	conn, _, err := t.dial(ctx, rolePair, peer, addrs)
	if err != nil {
		if pe, ok := errors.AsType[*PeerError](err); ok {
			err = pe.Err
		}
		if filelimit.Reached(err) {
			_ = new(backoff).wait(ctx) // a rank that needs the link may try again at once
		}
		return nil, err
	}
	if !t.adopt(peer, conn) {
		return nil, ErrClosed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out[peer], nil
}

// adopt makes a proven connection a link. It reports false if this rank is closed.
func (t *tcpRank) adopt(peer int, conn *net.TCPConn) bool {
	l := newTCPLink(conn)
	if !t.attach(peer, l) {
		conn.Close()
		l.shut(time.Now())
		return false
	}
	t.serve(peer, l)
	return true
}

// serve starts reading from a link.
func (t *tcpRank) serve(peer int, l *tcpLink) {
	if !t.begin(l.conn) {
		l.conn.Close()
		l.shut(time.Now())
		return
	}
	go func() {
		defer t.done(l.conn)
		left := false
		err := l.read(func(m message) error {
			if _, ok := m.(bye); ok {
				left = true
			}
			return t.handle(peer, m)
		})
		var end *fault
		switch {
		case left:
		case errors.Is(err, ErrProtocol):
			end = &fault{rank: uint32(peer), reason: reasonProtocol, text: err.Error()}
			l.send(pack(*end)) // so that it blames itself, not this rank
			l.flush(time.Now().Add(flushFault))
		default:
			end = &fault{rank: uint32(peer), reason: reasonDied, text: ending(err)}
		}
		t.detach(peer, l, end)
		l.shut(time.Now())
		l.conn.Close()
	}()
}

// accept settles one incoming connection. It returns once the connection is a link or closed.
func (t *tcpRank) accept(a *arrival) {
	if !t.begin(nil) {
		a.Close()
		return
	}
	defer t.done(nil)
	// Closing leaves no deadline to be set after it.
	stop := context.AfterFunc(t.life, func() { a.Close() })
	conn := a.TCPConn
	conn.SetDeadline(time.Now().Add(helloTimeout))
	ask, seal, err := t.id.examine(conn)
	stop()
	if gone := a.leave(); gone != nil {
		err = gone
	}
	if err != nil {
		t.turnAway(conn, err)
		if isTimeout(err) {
			a.reset()
		}
		conn.Close()
		return
	}
	v := t.admit(conn, ask, seal)
	if v.reason == accepted {
		return
	}
	if v.reason.ofJob() {
		t.observe(t.rank, fault{rank: v.rank, reason: v.reason, text: v.text})
	}
	_ = write(conn, ask.version, seal(v))
	conn.Close()
	t.admission.Lock()
	t.arrived++
	t.admission.Unlock()
}

// starved is a rank that can take no more connections. Without rank 0 no job forms; a pair waits
// for as long as its caller.
func (t *tcpRank) starved() {
	if t.rank != 0 || t.joined() {
		return
	}
	t.mu.Lock()
	t.entered[0] = 0
	t.mu.Unlock()
	t.observe(0, fault{rank: 0, reason: reasonAborted, text: filelimit.Error().Error()})
}

// admit decides about a dialler that has proved itself, and makes its connection a link if it may
// come in.
func (t *tcpRank) admit(conn *net.TCPConn, ask hello, seal func(verdict) verdict) verdict {
	t.admission.Lock()
	defer t.admission.Unlock()
	v := t.consider(ask)
	if v.reason != accepted {
		return v
	}
	t.arrived++
	conn.SetDeadline(time.Time{})
	tune(conn)
	l := newTCPLink(conn)
	l.send(pack(seal(v))) // ahead of anything that others send once it is attached
	if t.attach(int(ask.rank), l) {
		t.serve(int(ask.rank), l)
	} else {
		conn.Close()
		l.shut(time.Now())
	}
	return v
}

// consider decides about a dialler that has proved itself. The caller holds admission.
func (t *tcpRank) consider(ask hello) verdict {
	no := func(r reason, format string, args ...any) verdict {
		return verdict{reason: r, rank: ask.rank, text: fmt.Sprintf(format, args...)}
	}
	wantRole := rolePair
	if t.rank == 0 {
		wantRole = roleHub
	}
	switch {
	case int64(ask.peer) != int64(t.rank), ask.job != t.id.job && (ask.job != jobID{} || ask.role == rolePair):
		return no(reasonOtherJob, "")
	case ask.role != wantRole:
		return no(reasonProtocol, "rank %d asks for a %v link to rank %d", ask.rank, ask.role, t.rank)
	case ask.role == roleHub && t.joined():
		return no(reasonFull, "rank %d has joined before", ask.rank)
	case ask.version != frameVersion:
		return no(reasonMismatch, "rank %d speaks version %d of the bootstrap protocol, rank %d version %d: %s",
			ask.rank, ask.version, t.rank, frameVersion, sameVersion)
	case int64(ask.size) != int64(t.size):
		t.expected = max(t.expected, int(min(ask.size, MaxSize))-1)
		return no(reasonSize, "rank %d was started as one of %d, rank %d as one of %d", ask.rank, ask.size, t.rank, t.size)
	case int64(ask.rank) >= int64(t.size):
		return no(reasonProtocol, "rank %d does not exist among %d", ask.rank, t.size)
	case int64(ask.rank) == int64(t.rank):
		return no(reasonDuplicate, "two processes say that they are rank %d", ask.rank)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ask.role == roleHub {
		if t.out[int(ask.rank)] != nil {
			return no(reasonDuplicate, "two processes say that they are rank %d", ask.rank)
		}
		if f := t.doomed(); f != nil {
			return verdict{reason: f.reason, rank: f.rank, text: f.text}
		}
	}
	return verdict{reason: accepted, rank: uint32(t.rank)}
}

// maxRefused is how many refusals are remembered for the error of a failed join.
const maxRefused = 4

// turnAway takes note of a connection that did not prove itself.
func (t *tcpRank) turnAway(conn net.Conn, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = append(t.refused, fmt.Sprintf("%v: %v", conn.RemoteAddr(), err))
	if len(t.refused) > maxRefused {
		t.refused = t.refused[1:]
	}
}

// turnedAway is the end of a sentence about missing ranks.
func turnedAway(refused []string) string {
	if len(refused) == 0 {
		return ""
	}
	return "; turned away " + strings.Join(refused, "; ")
}

// begin counts a goroutine that Close waits for, and a connection that Close ends. It reports false
// once Close is past waiting.
func (t *tcpRank) begin(conn net.Conn) bool {
	t.running.Lock()
	defer t.running.Unlock()
	if t.stopped {
		return false
	}
	t.work.Add(1)
	if conn != nil {
		t.conns[conn] = struct{}{}
	}
	return true
}

func (t *tcpRank) done(conn net.Conn) {
	t.running.Lock()
	delete(t.conns, conn)
	t.running.Unlock()
	t.work.Done()
}

// lingerTimeout is how long Close waits for peers to end their side, so that nothing they have yet
// to read is lost.
const lingerTimeout = time.Second

// stop ends everything that runs, after the farewell.
func (t *tcpRank) stop() {
	t.running.Lock()
	t.stopped = true
	t.running.Unlock()
	t.end()
	if t.port != nil {
		t.port.release(t)
	}
	if t.listen != nil {
		t.listen.close()
	}
	linger := time.AfterFunc(lingerTimeout, func() {
		t.running.Lock()
		defer t.running.Unlock()
		for conn := range t.conns {
			conn.Close()
		}
	})
	defer linger.Stop()
	t.work.Wait()
}

// ending says how a connection ended that had no farewell.
func ending(err error) string {
	if errors.Is(err, io.EOF) {
		return "its connection ended"
	}
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		err = oe.Err
	}
	return "its connection broke: " + err.Error()
}
