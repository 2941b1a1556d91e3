package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft/fabric"
)

// A lane is what the proxy knows of one channel: triggers that it has taken and not yet posted, and flushes
// that are not over. What has no comment of its own is the proxy's alone.
type lane struct {
	proxy  *Proxy
	number int // in the proxy's table
	peer   *Peer
	id     int            // of its signal, on every rail
	rails  []*fabric.Peer // one, or all if it spreads
	ended  context.Context
	end    context.CancelCauseFunc

	queue   [laneDepth]task
	first   uint // of the queue
	length  uint
	active  bool                 // in the proxy's list
	stuck   time.Time            // since when nothing of the queue's head was taken
	head    progress             // of the first task
	flushes []flush              // in their order
	failed  atomic.Pointer[fail] // set by the proxy, read by anyone

	flushed atomic.Uint64 // in the host's ring: the position behind the last flush that is over
	turn    chan struct{} // the waiter's: signals are consumed one by one
	taken   atomic.Uint64 // signals that were consumed
}

// laneDepth is how many triggers of a channel wait out of the ring, so that those of other channels go on.
const laneDepth = 64

// task is a trigger and where it came from.
type task struct {
	trigger
	ring     *ring
	position uint64
}

// progress is how far a task was posted.
type progress struct {
	put     [MaxRails]int // bytes of each rail's part
	signals int           // rails that have its signal
	added   bool
}

// flush is one that is not over.
type flush struct {
	ring     *ring
	position uint64
	marks    [MaxRails]fabric.Mark
}

// fail is why a lane takes nothing any more.
type fail struct{ err error }

func (l *lane) err() error {
	if f := l.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// arrived is how many signals have come, with all that was posted before each on any rail.
func (l *lane) arrived() uint64 {
	least := uint64(math.MaxUint64)
	for _, r := range l.rails {
		least = min(least, r.Signalled(l.id))
	}
	return least
}

// take queues a task, or begins it at once. It says whether there was room.
func (l *lane) take(t task) bool {
	if l.length == laneDepth {
		return false
	}
	l.queue[(l.first+l.length)%laneDepth] = t
	l.length++
	if l.length == 1 {
		l.advance()
	}
	if !l.active && l.busy() {
		l.active = true
		l.proxy.active = append(l.proxy.active, l)
	}
	return true
}

// busy says whether the proxy must come back to the lane.
func (l *lane) busy() bool { return l.length > 0 || len(l.flushes) > 0 }

// advance posts what the fabric takes, and reports whether that was anything.
func (l *lane) advance() (some bool) {
	for l.length > 0 {
		before := l.head
		over, err := l.do(&l.queue[l.first])
		if err != nil {
			l.fail(err)
			return true
		}
		if !over {
			if l.head != before {
				l.stuck = time.Time{}
				some = true
			}
			return some
		}
		l.first, l.length = (l.first+1)%laneDepth, l.length-1
		l.head, l.stuck, some = progress{}, time.Time{}, true
	}
	return some
}

// do posts the rest of the first task. It says whether that is all.
func (l *lane) do(t *task) (over bool, err error) {
	if l.failed.Load() != nil {
		return true, nil
	}
	if t.op&opPut != 0 {
		if over, err := l.put(t); !over {
			return false, err
		}
	}
	if t.op&opSignal != 0 {
		for ; l.head.signals < len(l.rails); l.head.signals++ {
			if ok, err := l.rails[l.head.signals].TrySignal(l.id); !ok {
				return false, err
			}
		}
	}
	if t.op&opAdd != 0 && !l.head.added {
		to, err := l.remote(t.dst)
		if err != nil {
			return false, err
		}
		if len(l.rails) > 1 {
			return false, errSpreadAdd(l.peer.rank)
		}
		if ok, err := l.rails[0].TryAdd(to.rails[l.home()], int(t.dst.offset), t.value); !ok {
			return false, err
		}
		l.head.added = true
	}
	if t.op&opFlush != 0 {
		f := flush{ring: t.ring, position: t.position}
		for i, r := range l.rails {
			f.marks[i] = r.Mark()
		}
		l.flushes = append(l.flushes, f)
	}
	return true, nil
}

// put posts the rest of the first task's bytes: all on one rail, or a part on each.
func (l *lane) put(t *task) (over bool, err error) {
	from, err := l.local(t.src)
	if err != nil {
		return false, err
	}
	to, err := l.remote(t.dst)
	if err != nil {
		return false, err
	}
	n := int(t.bytes)
	parts := len(l.rails)
	if n < l.proxy.options.Spread {
		parts = 1
	}
	over = true
	for i := range parts {
		rail := i
		if len(l.rails) == 1 {
			rail = l.home()
		}
		begin, end := share(n, i, parts), share(n, i+1, parts)
		done := &l.head.put[i]
		k, err := l.rails[i].TryWrite(to.rails[rail], int(t.dst.offset)+begin+*done, from.regions[rail],
			int(t.src.offset)+begin+*done, end-begin-*done)
		*done += k
		if errors.Is(err, fabric.ErrClosed) { // the memory may have been closed since it was looked up
			_, gone := l.local(t.src)
			return false, cmp.Or(gone, err)
		}
		if err != nil {
			return false, err
		}
		over = over && *done == end-begin
	}
	return over, nil
}

// share is where a rail's part of n bytes begins. Parts end at multiples of 64 bytes but the last.
func share(n, i, parts int) int {
	if i == parts {
		return n
	}
	return n / parts * i &^ 63
}

// home is the rail of a channel that does not spread.
func (l *lane) home() int { return l.id % len(l.proxy.rails) }

// local and remote find memories of a trigger, which a kernel may have got wrong.
func (l *lane) local(at place) (*Memory, error) {
	m, err := entry(*l.proxy.locals.Load(), at, "source")
	if err != nil {
		return nil, &PeerError{Rank: l.peer.rank, Op: "put", Err: err}
	}
	return m, nil
}

func (l *lane) remote(at place) (*Remote, error) {
	m, err := entry(*l.proxy.remotes.Load(), at, "destination")
	if err == nil && m.rank != l.peer.rank {
		err = invalid("destination memory %d is none of its", at.memory)
	}
	if err != nil {
		return nil, &PeerError{Rank: l.peer.rank, Op: "put", Err: err}
	}
	return m, nil
}

func entry[T any](table []*T, at place, what string) (*T, error) {
	switch {
	case int(at.memory) >= len(table):
		return nil, invalid("there is no %s memory %d", what, at.memory)
	case table[at.memory] == nil:
		return nil, invalid("the %s memory was closed before what was put had left: flush the channel before that", what)
	}
	return table[at.memory], nil
}

// settle ends flushes whose writes have completed, and reports whether there were any.
func (l *lane) settle() (some bool) {
	for len(l.flushes) > 0 {
		f := &l.flushes[0]
		for i, r := range l.rails {
			ok, err := r.Flushed(f.marks[i])
			if err != nil {
				l.fail(err)
				return true
			}
			if !ok {
				return some
			}
		}
		f.ring.flushed(l, f.position)
		l.flushes = append(l.flushes[:0], l.flushes[1:]...)
		some = true
	}
	return some
}

// look finds a reason to give the lane up: a peer that has failed, or that has taken nothing for too long.
func (l *lane) look(now time.Time) {
	if l.failed.Load() != nil {
		return
	}
	for _, r := range l.rails {
		if err := r.Err(); err != nil {
			l.fail(&PeerError{Rank: l.peer.rank, Op: "channel", Err: err})
			return
		}
	}
	if l.length == 0 {
		return
	}
	if l.stuck.IsZero() {
		l.stuck = now
	}
	if limit := l.proxy.options.Timeout; now.Sub(l.stuck) > limit {
		l.fail(&PeerError{Rank: l.peer.rank, Op: opName(l.queue[l.first].op), Err: fmt.Errorf(
			"%w: the fabric took nothing for it in %v", fabric.ErrTimeout, limit,
		)})
	}
}

// fail ends the lane. What was pushed is dropped, and all who wait are told.
func (l *lane) fail(err error) {
	if l.failed.Load() != nil {
		return
	}
	l.failed.Store(&fail{err})
	l.end(err)
	clear(l.queue[:])
	l.first, l.length, l.flushes = 0, 0, nil
}

func opName(op uint8) string {
	switch {
	case op&opPut != 0:
		return "put"
	case op&opSignal != 0:
		return "signal"
	case op&opAdd != 0:
		return "add"
	}
	return "flush"
}
