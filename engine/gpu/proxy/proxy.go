package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// Spec describes a proxy, alike on all ranks.
type Spec struct {
	Op    string // the operation in errors: "new group"
	Owner string // the object in errors: "group"
	// Words name operations in errors by their numbers. They live as long as the program.
	Words *device.Words
	// SMs bounds the multiprocessors that copy; SerialGroup is as in [enginegpu.Want].
	SMs, SerialGroup int
	// Beside is room of the owner's for kernels that never run at the same time, as in [enginegpu.Want]; nil: none.
	Beside *enginegpu.Room
}

// Proxy hands calls from streams to a goroutine. Its methods are for one goroutine at a time.
type Proxy struct {
	comm    *weft.Comm
	program *enginegpu.Program
	room    *enginegpu.Room
	lane    *enginegpu.Lane
	launch  enginegpu.Launch[handOverArgs]
	memory  *cuda.HostMemory
	waiter  *channel.Waiter
	owner   string
	blocks  int

	generation uint64

	mu      sync.Mutex
	wake    sync.Cond        // something was started, or is over, or the proxy is closed
	calls   map[uint64]*call // by number
	numbers uint64
	once    int  // of them that run once
	graphs  bool // some may be replayed
	busy    bool // the goroutine is in a call
	closed  bool
	served  uint64 // the operation that was served last
	stop    chan struct{}
	stopped sync.WaitGroup
}

// call is what a hand-over is for.
type call struct {
	op       string
	do       func(*Hand) error
	captured bool
}

// Where things lie in the pinned memory.
const (
	beatAt   = 64
	doneAt   = 128
	most     = 8 // blocks: 64 KiB of theirs are on the bus at once, which takes about a microsecond
	ordersAt = doneAt + 8*most
	allBytes = ordersAt + slots*int(unsafe.Sizeof(order{}))
)

// New makes a proxy. It is collective. The communicator may have ranks on several hosts.
func New(ctx context.Context, comm *weft.Comm, s Spec) (*Proxy, error) {
	p := &Proxy{
		comm: comm, owner: s.Owner, calls: map[uint64]*call{}, stop: make(chan struct{}),
		generation: comm.Operations().Generation(),
		waiter:     comm.Operations().WaiterOf(s.Owner + "'s proxy"),
	}
	p.wake.L = &p.mu
	if err := p.open(ctx, s); err != nil {
		_, again := p.Close()
		return nil, errors.Join(err, again)
	}
	p.stopped.Go(p.run)
	return p, nil
}

func (p *Proxy) open(ctx context.Context, s Spec) (err error) {
	d := p.comm.Device()
	if p.program, err = enginegpu.Load(ctx, p.comm, s.Op, handOver(d.Arch())); err != nil {
		return err
	}
	f := p.program.Functions(0)[0]
	cost, failed := enginegpu.Cost(threads, 0, f)
	p.room, err = enginegpu.Fit(ctx, p.comm, enginegpu.Want{
		Op: s.Op, Cost: max(cost, threads), SMs: s.SMs, SerialGroup: s.SerialGroup,
		Beside: s.Beside, Least: 1,
	})
	if err != nil {
		return err
	}
	p.blocks = min(p.room.Blocks, most)
	if err := p.room.Take(ctx, p.blocks, "hand-over", failed); err != nil {
		return err
	}
	if p.memory, err = d.Context().AllocHost(allBytes, cuda.HostOptions{}); err == nil {
		clear(p.memory.Bytes())
		at := func(offset int) uint64 { return uint64(p.memory.Pointer().Add(offset)) }
		p.launch, err = enginegpu.NewLaunch(f, cuda.LaunchConfig{
			Grid: cuda.Dim{X: uint32(p.blocks)}, Block: cuda.Dim{X: threads},
		}, handOverArgs{call: at(0), orders: at(ordersAt), done: at(doneAt), beat: at(beatAt)})
	}
	if err := p.comm.Operations().VerifySame(ctx, s.Op, "hand-over", err); err != nil {
		return err
	}
	p.lane, err = enginegpu.NewLane(ctx, p.comm, enginegpu.LaneSpec{
		Op: s.Op, Owner: s.Owner, Words: s.Words, Window: &enginegpu.Workspace{}, Local: enginegpu.NewLocal(p.blocks),
		Within: true, Patience: 2,
		Moved: func(l *enginegpu.Lane) {
			p.launch.Args.state, p.launch.Args.group = uint64(l.Local(0)), l.Group(0)
		},
	})
	return err
}

// word is a word of the pinned memory.
func (p *Proxy) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p.memory.Bytes()[at]))
}

// Enter begins a call: see [enginegpu.Lane.Enter].
func (p *Proxy) Enter(ctx context.Context, op string, s *weft.Stream) (*cuda.Stream, error) {
	if g := p.comm.Operations().Generation(); g != p.generation {
		p.settle()
		p.generation = g
	}
	return p.lane.Enter(ctx, op, s)
}

// EnterLocal is Enter for a call that no other rank makes. After ranks were masked one of all ranks comes first.
func (p *Proxy) EnterLocal(op string, s *weft.Stream) (*cuda.Stream, error) {
	if err := p.comm.Operations().Begin(op); err != nil {
		return nil, err
	}
	if p.comm.Operations().Generation() != p.generation {
		return nil, weft.Unsupportedf("%s: ranks were masked, and the %s begins anew with a call of all ranks; make one "+
			"before", op, p.owner)
	}
	stream := p.lane.Stream(s)
	return stream, p.lane.EnterLocal(op, stream)
}

// Captured reports whether the call that was entered last goes into a graph.
func (p *Proxy) Captured() bool { return p.lane.Capture() != 0 }

// Blocks is how many blocks the kernel has.
func (p *Proxy) Blocks() int { return p.blocks }

// Room is what the hand-over has taken of the GPU.
func (p *Proxy) Room() *enginegpu.Room { return p.room }

// Stream is the stream that a call is enqueued on.
func (p *Proxy) Stream(s *weft.Stream) *cuda.Stream { return p.lane.Stream(s) }

// settle forgets what was started before ranks were masked. Nothing runs on the GPU then, and the goroutine's waits
// have ended by the failure; a lane that begins anew counts from 1.
func (p *Proxy) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.busy {
		p.wake.Wait()
	}
	for n, c := range p.calls {
		if !c.captured {
			delete(p.calls, n)
		}
	}
	p.once, p.served = 0, 0
	clear(p.memory.Bytes())
}

// Start enqueues a hand-over, of an operation of that number and name, after Enter. When the stream comes to it do is
// called, by the proxy's goroutine, and again in each replay of a graph that captures it.
func (p *Proxy) Start(stream *cuda.Stream, number uint32, op string, do func(*Hand) error) error {
	p.mu.Lock()
	p.numbers++
	n, captured := p.numbers, p.lane.Capture() != 0
	p.calls[n] = &call{op, do, captured}
	if captured {
		p.graphs = true
	} else {
		p.once++
	}
	p.mu.Unlock()
	p.launch.Args.op, p.launch.Args.number = number, n
	p.wake.Broadcast() // before the start, which may not return until the call is over
	err := p.lane.Start(stream, p.launch.Launch)
	if err != nil {
		p.mu.Lock()
		delete(p.calls, n)
		if !captured {
			p.once--
		}
		p.mu.Unlock()
	}
	return err
}

// Finish ends a call: it waits for the work if the caller gave no stream.
func (p *Proxy) Finish(ctx context.Context, s *weft.Stream) error { return p.lane.Finish(ctx, s) }

// Close gives up what the proxy has, once nothing of it runs: see [enginegpu.Lane.Close].
func (p *Proxy) Close() (released bool, err error) {
	if p.lane != nil {
		if released, err = p.lane.Close(); !released {
			return false, err
		}
	}
	p.mu.Lock()
	again := p.closed
	p.closed = true
	p.mu.Unlock()
	if again {
		return true, err
	}
	close(p.stop)
	p.wake.Broadcast()
	p.stopped.Wait()
	p.room.Release()
	errs := []error{err, p.program.Close()}
	if p.memory != nil {
		errs = append(errs, p.memory.Close())
	}
	return true, errors.Join(errs...)
}

// run is the goroutine.
func (p *Proxy) run() {
	for {
		c, epoch := p.next()
		if c == nil {
			return
		}
		p.serve(c, epoch)
		p.mu.Lock()
		p.busy = false
		p.mu.Unlock()
		p.wake.Broadcast()
	}
}

// next waits for a hand-over. It returns nil when the proxy is closed.
func (p *Proxy) next() (*call, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for idle := 0; ; idle++ {
		if p.closed {
			return nil, 0
		}
		if epoch := p.word(0).Load(); epoch != p.served {
			number := p.word(8).Load()
			c := p.calls[number]
			p.served = epoch
			if c == nil { // of before ranks were masked
				c = &call{op: "device operation", do: func(*Hand) error {
					return fmt.Errorf("%w: ranks were masked after it was enqueued", weft.ErrAborted)
				}}
			} else if !c.captured {
				delete(p.calls, number)
				p.once--
			}
			p.busy = true
			return c, epoch
		}
		if p.once == 0 && !p.graphs {
			p.wake.Wait()
			idle = 0
			continue
		}
		p.mu.Unlock()
		nap(idle)
		p.mu.Lock()
	}
}

// nap is short at first: 50 us at most, since no kernel can wake the goroutine.
func nap(idle int) {
	if idle < 200 {
		yield()
		return
	}
	time.Sleep(min(time.Duration(idle-199)*time.Microsecond, 50*time.Microsecond))
}

// grace is how long a rank that has met an error waits for the others to meet it by themselves.
const grace = 2 * time.Second

// serve makes a call, and ends its kernel.
func (p *Proxy) serve(c *call, epoch uint64) {
	h := &Hand{proxy: p, op: c.op, first: epoch << sequenceBits, last: epoch << sequenceBits}
	ops := p.comm.Operations()
	err := ops.Begin(c.op)
	if err == nil {
		err = c.do(h)
	}
	if err == nil {
		h.end(doneOrder)
		return
	}
	if ops.Begin(c.op) != nil { // others know
		h.end(failedOrder)
		return
	}
	tell := ops.FailHere(err)
	h.end(failedOrder)
	generation, end := ops.Generation(), time.Now().Add(min(grace, p.comm.Deadline()/4))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(end) && ops.Generation() == generation {
		select {
		case <-tick.C:
		case <-p.stop:
			end = time.Time{}
		}
	}
	tell()
}
