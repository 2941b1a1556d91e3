package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is what lies between the processes of a test: links that deliver late, and break.
type network struct {
	mu     sync.Mutex
	random *rand.Rand
	late   time.Duration // the most that a message is on its way
	procs  []*proc
	dark   map[[2]int]bool // pairs between which nothing passes
	still  map[int]bool    // processes that stand still
	dialed func(from, to int)
	links  map[*half]struct{}
	ledger
	work sync.WaitGroup
	over atomic.Bool
}

// proc is a process of a test.
type proc struct {
	*Node
	number int
	ranks  []*rank
	killed atomic.Bool
	ended  atomic.Bool   // its node has, and has closed its door
	alone  atomic.Bool   // it left without an heir or an answer
	closes chan struct{} // if it is not nil: the door stays open until it is closed
}

// rank is a rank of a test, with its control plane.
type rank struct {
	*control.Rank
	number int
	proc   *proc
	member *Member
	page   []byte
	ctx    context.Context
	kill   context.CancelFunc
}

// absent says that nothing listens in its place.
func (q *proc) absent() bool { return q.killed.Load() || q.ended.Load() }

type layout struct {
	perProcess []int // ranks
	hosts      []int // by process
	heartbeat  time.Duration
	timeout    time.Duration
	late       time.Duration
	fanout     int
	seed       uint64
	dialed     func(from, to int) // called before a link is admitted
}

func newNetwork(l layout) *network {
	w := &network{
		random: rand.New(rand.NewPCG(l.seed, 1)), late: l.late, dark: map[[2]int]bool{}, still: map[int]bool{},
		links: map[*half]struct{}{}, dialed: l.dialed,
	}
	var processes []Process
	size := 0
	for i, n := range l.perProcess {
		p := Process{Host: i}
		if l.hosts != nil {
			p.Host = l.hosts[i]
		}
		for range n {
			p.Ranks = append(p.Ranks, size)
			size++
		}
		processes = append(processes, p)
	}
	w.size = size
	for i, p := range processes {
		q := &proc{number: i}
		q.Node = New(Config{
			Self: i, Processes: processes, Size: size, Heartbeat: l.heartbeat, Fanout: l.fanout,
			Dial: func(ctx context.Context, to int) (Link, error) { return w.dial(ctx, i, to) },
			Absent: func(_ context.Context, to int) bool {
				return w.procs[to].absent() && !w.isDark(i, to)
			},
			Logger:  slog.New(slog.DiscardHandler),
			alone:   func() { q.alone.Store(true) },
			learned: func(last, next control.Decision, chosen bool) { w.learn(i, last, next, chosen) },
		})
		q.OnClose(func() {
			if q.closes != nil {
				<-q.closes
			}
			q.ended.Store(true)
		})
		w.procs = append(w.procs, q)
		views := make([][]byte, size)
		for r := range views {
			views[r] = q.View(r)
		}
		for _, r := range p.Ranks {
			k := &rank{number: r, proc: q, page: aligned(control.PageSize)}
			k.ctx, k.kill = context.WithTimeout(context.Background(), 2*time.Minute)
			views[r] = k.page
			q.ranks = append(q.ranks, k)
		}
		for _, k := range q.ranks {
			near := make([][]byte, size)
			for _, r := range p.Ranks {
				near[r] = views[r]
			}
			k.Rank = control.New(control.Config{
				Rank: k.number, Size: size, InProcess: len(p.Ranks), Timeout: l.timeout,
				Policy: channel.PolicyFor(size, size, 1), Logger: slog.New(slog.DiscardHandler),
				Fault: func(string) error { return k.begin() }, Blame: func(f channel.Fault) { k.Tell(f) },
			}, k.page)
			var err error
			if k.member, err = q.Join(k.number, near, func(e Event) {
				if e.Kind == Left {
					k.MarkLeft(e.Rank)
				} else {
					k.MarkDied(e.Rank, e.Err)
				}
			}); err != nil {
				panic(err)
			}
			k.Waiter.Behind = k.member.Behind
			k.Waiter.Standstill = time.Second
			k.Connect(views, k.member)
		}
	}
	for _, q := range w.procs {
		q.Start()
	}
	return w
}

func (w *network) close() {
	w.over.Store(true)
	var all sync.WaitGroup
	for _, q := range w.procs {
		all.Go(func() {
			if q.killed.Load() {
				q.mu.Lock()
				close(q.drained) // it has nothing to wait for
				q.mu.Unlock()
			}
			for _, k := range q.ranks {
				k.member.Leave()
				k.kill()
			}
		})
	}
	all.Wait()
	w.mu.Lock()
	for h := range w.links {
		w.mu.Unlock()
		h.Cut()
		w.mu.Lock()
	}
	w.mu.Unlock()
	w.work.Wait()
}

// aligned is memory as the system maps it.
func aligned(size int) []byte {
	mem := make([]byte, size+channel.Stride)
	return mem[-uintptr(unsafe.Pointer(&mem[0]))%channel.Stride:][:size]
}

func (w *network) isDark(a, b int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dark[[2]int{min(a, b), max(a, b)}]
}

// darken lets nothing pass between two processes, or lets all pass again.
func (w *network) darken(a, b int, dark bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dark[[2]int{min(a, b), max(a, b)}] = dark
}

// halt has a process come to nothing until goOn.
func (w *network) halt(process int) {
	w.setStill(process, true)
	w.procs[process].mu.Lock()
}

func (w *network) goOn(process int) {
	w.procs[process].mu.Unlock()
	w.setStill(process, false)
}

func (w *network) setStill(process int, still bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still[process] = still
}

func (w *network) isStill(process int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.still[process]
}

// cut breaks the links between two processes. What was on its way is lost.
func (w *network) cut(a, b int) {
	w.mu.Lock()
	var cut []*half
	for h := range w.links {
		if h.from == a && h.to == b {
			cut = append(cut, h)
		}
	}
	w.mu.Unlock()
	for _, h := range cut {
		h.Cut()
	}
}

func (w *network) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late == 0 {
		return 0
	}
	if w.random.IntN(10) == 0 {
		return time.Duration(w.random.Int64N(int64(w.late)))
	}
	return time.Duration(w.random.Int64N(int64(w.late / 20)))
}

// half is one end of a link: what it sends arrives late at the other.
type half struct {
	net      *network
	from, to int
	peer     *half
	queue    chan []byte
	done     chan struct{} // of both ends
	once     *sync.Once
	shut     chan struct{} // nothing more is sent
	shutting sync.Once
	arrived  chan []byte
}

func (w *network) dial(ctx context.Context, from, to int) (Link, error) {
	if w.isDark(from, to) || w.isStill(to) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if w.procs[to].absent() {
		return nil, fmt.Errorf("%w: nothing listens", bootstrap.ErrDied)
	}
	done, once := make(chan struct{}), new(sync.Once)
	make1 := func(from, to int) *half {
		return &half{
			net: w, from: from, to: to, done: done, once: once, queue: make(chan []byte, 1<<14),
			arrived: make(chan []byte), shut: make(chan struct{}),
		}
	}
	a, b := make1(from, to), make1(to, from)
	a.peer, b.peer = b, a
	w.mu.Lock()
	w.links[a], w.links[b] = struct{}{}, struct{}{}
	w.mu.Unlock()
	w.work.Go(a.carry)
	w.work.Go(b.carry)
	if w.dialed != nil {
		w.dialed(from, to)
	}
	w.procs[to].Admit(b, from)
	return a, nil
}

// carry delivers what this end sends.
func (h *half) carry() {
	defer func() {
		h.net.mu.Lock()
		delete(h.net.links, h)
		h.net.mu.Unlock()
	}()
	for {
		var b []byte
		select {
		case b = <-h.queue:
		case <-h.done:
			return
		case <-h.shut:
			select {
			case b = <-h.queue:
			default:
				close(h.peer.arrived)
				<-h.done
				return
			}
		}
		if d := h.net.delay(); d > 0 {
			time.Sleep(d)
		}
		for h.net.isDark(h.from, h.to) && !h.net.over.Load() {
			select {
			case <-time.After(time.Millisecond):
			case <-h.done:
				return
			}
		}
		select {
		case h.peer.arrived <- b:
		case <-h.done:
			return
		}
	}
}

func (h *half) Send(m bootstrap.Message) {
	select {
	case h.queue <- m.Bytes():
	case <-h.done:
	}
}

func (h *half) Queued() int { return 0 }

func (h *half) Unread() bool { return false }

func (h *half) Receive(handle func([]byte) error) error {
	for {
		select {
		case b, ok := <-h.arrived:
			if !ok {
				return io.EOF
			}
			if h.net.procs[h.from].killed.Load() {
				return io.EOF
			}
			if err := handle(b); err != nil {
				return err
			}
		case <-h.done:
			return io.EOF
		}
	}
}

func (h *half) Shut(time.Time) { h.shutting.Do(func() { close(h.shut) }) }
func (h *half) Cut()           { h.once.Do(func() { close(h.done) }) }

// kill ends a process: its links break, and nothing listens in its place. A witness on its host may
// see it.
func (w *network) kill(i int, witness int) {
	q := w.procs[i]
	q.killed.Store(true)
	w.bury(i, q.cfg.Processes[i].Ranks)
	for j := range w.procs {
		w.cut(i, j)
		w.cut(j, i)
	}
	for _, k := range q.ranks {
		k.kill()
	}
	if witness >= 0 {
		w.procs[witness].Witness(q.ranks[0].number, "process ended")
	}
}

func (k *rank) begin() error { return k.Waiter.Err(k.Fault(nil), "test") }

func (k *rank) fail(err error) error {
	if f := k.FaultOf(err); f.Cause != channel.CauseNone {
		k.Tell(f)
	}
	return err
}

// gather is what a communicator does about a gather.
func (k *rank) gather(note []byte) ([][]byte, error) {
	if err := k.begin(); err != nil {
		return nil, err
	}
	all, err := k.Gather(k.ctx, "test gather", note)
	if err != nil {
		return nil, k.fail(err)
	}
	return all, k.begin()
}

// mask is what a communicator does about a mask.
func (k *rank) mask(out rankset.Set) error {
	if err := k.Lost("test mask", out); err != nil {
		return err
	}
	err := k.SetMask(k.ctx, "test mask", out, nil)
	if err != nil && !errors.Is(err, bootstrap.ErrMismatch) {
		_ = k.fail(err)
	}
	return err
}

// all are the ranks of processes that live.
func (w *network) all() (ranks []*rank) {
	for _, q := range w.procs {
		if !q.killed.Load() {
			ranks = append(ranks, q.ranks...)
		}
	}
	return ranks
}

// each does something on ranks at once, and returns the errors.
func each(ranks []*rank, do func(k *rank) error) []error {
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, k := range ranks {
		all.Go(func() { errs[i] = do(k) })
	}
	all.Wait()
	return errs
}

func must(t testing.TB, ranks []*rank, do func(k *rank) error) {
	t.Helper()
	for i, err := range each(ranks, do) {
		if err != nil {
			t.Fatalf("rank %d: %v", ranks[i].number, err)
		}
	}
}
