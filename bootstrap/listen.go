package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/weftgo/weft/internal/filelimit"
)

// Windows has numbers of its own for the errors of the system that matter here; other systems never
// use them.
const (
	wsaConnectionReset   = syscall.Errno(10054)
	wsaAddressInUse      = syscall.Errno(10048)
	wsaConnectionRefused = syscall.Errno(10061)
)

// inUse reports whether the address has a listener already.
func inUse(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaAddressInUse)
}

// broken reports whether the other side has ended the connection before it had read everything.
func broken(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, wsaConnectionReset)
}

// refused reports whether the address has no listener.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaConnectionRefused)
}

// listener hands each connection that arrives to accept, in a goroutine of its own. The connection
// is proven or closed when accept returns.
type listener struct {
	ln    *net.TCPListener
	lobby *lobby
	work  sync.WaitGroup
}

func bind(addr netip.AddrPort) (*net.TCPListener, error) {
	host := ""
	if addr.Addr().IsValid() {
		host = addr.Addr().String()
	}
	// Strangers come by the thousand, so connections are tuned when they have proved themselves,
	// and not before.
	c := net.ListenConfig{KeepAlive: -1}
	ln, err := c.Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(int(addr.Port()))))
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

func listenOn(addr netip.AddrPort, accept func(*arrival), starved func()) (*listener, error) {
	ln, err := bind(addr)
	if err != nil {
		return nil, err
	}
	return serveOn(ln, accept, starved), nil
}

// starvedPause is between attempts to accept a connection while this process has as many files open
// as it may, and starvedTries how many there are before that counts as lasting.
const (
	starvedPause = 10 * time.Millisecond
	starvedTries = 20
)

// serveOn makes a listener. It calls starved if it cannot accept connections and only this process
// could change that.
func serveOn(ln *net.TCPListener, accept func(*arrival), starved func()) *listener {
	l := &listener{ln: ln, lobby: newLobby()}
	l.work.Go(func() {
		for tries := 0; ; tries++ {
			conn, err := ln.AcceptTCP()
			switch {
			case err == nil:
				tries = 0
				a := l.lobby.enter(conn)
				l.work.Go(func() {
					accept(a)
					_ = a.leave()
				})
			case !temporary(err):
				return
			case !l.lobby.makeRoom(): // out of file descriptors, which only others can give back
				if tries == starvedTries && filelimit.Reached(err) {
					starved()
				}
				time.Sleep(starvedPause)
			}
		}
	})
	return l
}

// temporary reports whether the listener itself is in order.
func temporary(err error) bool {
	ne, ok := err.(interface{ Temporary() bool })
	return ok && ne.Temporary()
}

func (l *listener) port() uint16 { return portOf(l.ln) }

func portOf(ln *net.TCPListener) uint16 { return ln.Addr().(*net.TCPAddr).AddrPort().Port() }

func (l *listener) close() {
	l.ln.Close()
	l.work.Wait()
}

// port is an address at which this process is rank 0. It outlives the join, for two reasons: an
// id's port must be listening from the moment the id exists, and a second job of the same ranks may
// form at the same address while the first one runs. The youngest job owns it.
type port struct {
	ln     *net.TCPListener
	serve  *listener // nil until a job takes the port; until then arrivals wait in the system's queue
	number uint16

	mu    sync.Mutex
	owner *tcpRank
}

// ports holds this process's ports by number.
var ports = struct {
	sync.Mutex
	held map[uint16]*port
}{held: make(map[uint16]*port)}

// holdPort starts listening for a job to come.
func holdPort(addr netip.AddrPort) (*port, error) {
	ports.Lock()
	defer ports.Unlock()
	return holdLocked(addr)
}

func holdLocked(addr netip.AddrPort) (*port, error) {
	ln, err := bind(addr)
	if err != nil {
		return nil, err
	}
	p := &port{ln: ln, number: portOf(ln)}
	ports.held[p.number] = p
	return p, nil
}

// takePort makes t the owner of the port at addr: one that this process holds, unless a job is
// forming there, or else a new one.
func takePort(addr netip.AddrPort, t *tcpRank) (*port, error) {
	ports.Lock()
	defer ports.Unlock()
	p := ports.held[addr.Port()]
	if p == nil {
		var err error
		if p, err = holdLocked(addr); inUse(err) {
			// Launchers pass no port but that of their own store, whose server may run in this
			// process.
			return nil, fmt.Errorf("%w? Something listens there, perhaps PyTorch's store, through which "+
				"ranks can join as well; or give another port: %w", ErrDuplicateRank, err)
		}
		if err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner != nil && !p.owner.joined() {
		return nil, fmt.Errorf("%w: this process is forming another job at port %d", ErrDuplicateRank, p.number)
	}
	p.owner = t
	if p.serve == nil {
		p.serve = serveOn(p.ln, p.accept, p.starved)
	}
	return p, nil
}

func (p *port) accept(a *arrival) {
	if owner := p.taken(); owner != nil {
		owner.accept(a)
	} else {
		a.Close()
	}
}

func (p *port) starved() {
	if owner := p.taken(); owner != nil {
		owner.starved()
	}
}

func (p *port) taken() *tcpRank {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owner
}

// release closes the port if t still owns it; t is nil for a port that no job has taken.
func (p *port) release(t *tcpRank) {
	ports.Lock()
	p.mu.Lock()
	own := p.owner == t
	if own {
		p.owner = nil
		delete(ports.held, p.number)
	}
	p.mu.Unlock()
	ports.Unlock()
	if !own {
		return
	}
	p.ln.Close()
	if p.serve != nil {
		p.serve.close()
	}
}
