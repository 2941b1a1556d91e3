package bootstrap

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/weftgo/weft/internal/filelimit"
)

// maxPending is how many connections may be proving themselves at a time, and filesPending which
// part of the files that this process may have open.
const (
	maxPending   = 4096
	filesPending = 4
)

// errCrowded is why a connection ended that others needed the place of.
var errCrowded = errors.New("closed to make room: too many connections were there that had not proved themselves")

// lobby is the connections of a listener that have not proved themselves. Unproven connections may
// be as many as strangers like, so the lobby closes the oldest one of the address with most of
// them. A rank proves itself in milliseconds and leaves the lobby, so it survives even if strangers
// share its address.
type lobby struct {
	room  int
	mu    sync.Mutex
	from  map[netip.Addr]*list.List // of *arrival, the oldest first
	count int
	turn  uint64
}

func newLobby() *lobby {
	return &lobby{room: min(maxPending, filelimit.Get()/filesPending), from: make(map[netip.Addr]*list.List)}
}

// arrival is a connection in a lobby.
type arrival struct {
	*net.TCPConn
	lobby *lobby
	from  netip.Addr
	turn  uint64        // its number in the order of arrivals
	entry *list.Element // nil once it has left
	cut   bool          // it went to make room
}

// enter takes a connection in, and makes room for it.
func (l *lobby) enter(conn *net.TCPConn) *arrival {
	a := &arrival{TCPConn: conn, lobby: l, from: addrOf(conn.RemoteAddr())}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.room {
		l.dismiss()
	}
	if l.from[a.from] == nil {
		l.from[a.from] = list.New()
	}
	l.turn++
	a.turn, a.entry = l.turn, l.from[a.from].PushBack(a)
	l.count++
	return a
}

// makeRoom closes a connection, and reports whether there was one.
func (l *lobby) makeRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dismiss()
}

// dismiss is makeRoom for a caller that holds mu.
func (l *lobby) dismiss() bool {
	var most *list.List
	for _, q := range l.from {
		if most == nil || q.Len() > most.Len() || q.Len() == most.Len() && eldest(q).turn < eldest(most).turn {
			most = q
		}
	}
	if most == nil {
		return false
	}
	a := eldest(most)
	a.cut = true
	l.remove(a)
	a.reset()
	return true
}

// reset closes a connection on which nothing was sent, and leaves no state in the system: a
// connection that was closed in good order would hold its port for a minute.
func (a *arrival) reset() {
	_ = a.SetLinger(0)
	a.Close()
}

func eldest(q *list.List) *arrival { return q.Front().Value.(*arrival) }

func (l *lobby) remove(a *arrival) {
	q := l.from[a.from]
	q.Remove(a.entry)
	a.entry = nil
	l.count--
	if q.Len() == 0 {
		delete(l.from, a.from)
	}
}

// leave takes the connection out of the lobby. It returns errCrowded if the connection went to make
// room.
func (a *arrival) leave() error {
	a.lobby.mu.Lock()
	defer a.lobby.mu.Unlock()
	if a.cut {
		return errCrowded
	}
	if a.entry != nil {
		a.lobby.remove(a)
	}
	return nil
}
