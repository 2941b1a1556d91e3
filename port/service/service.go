package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/refusal"
	"github.com/weftgo/weft/port"
)

// Service makes channels between the ranks of a communicator. Its methods may be called from any goroutine, but
// New and Register are collective, in the same order on all ranks.
type Service struct {
	comm    *weft.Comm
	ops     weft.Operations
	options Options
	gate    *weft.Gate
	waiter  *channel.Waiter

	shared *weft.Window // counters and a board; nil where ranks do not map each other's memory

	absent  error // why there is no fabric; nil: there is one
	rails   *rails
	first   int     // signal of the proxy's that is this service's: that of hellos
	board   *Memory // for hellos by the fabric
	silence func()  // of what the communicator is told of failures

	mu       sync.Mutex
	kernels  *port.Kernels
	links    []*link
	locals   []*port.Memory
	remotes  map[*port.Remote]struct{}
	meetings []*meeting // by rank
	released bool
}

// New makes a service. It is collective. What only some ranks cannot do is an error on all of them.
func New(ctx context.Context, comm *weft.Comm, o Options) (*Service, error) {
	const op = "new port service"
	ops := comm.Operations()
	err := o.normalize(ops)
	if err := ops.VerifySame(ctx, op, o.said(), err); err != nil {
		return nil, err
	}
	s := &Service{
		comm: comm, ops: ops, options: o, meetings: make([]*meeting, comm.Size()), remotes: map[*port.Remote]struct{}{},
	}
	s.waiter = ops.WaiterOf("port service")
	s.silence = ops.Carries(s.lost)
	for r := range s.meetings {
		s.meetings[r] = &meeting{taken: append([]bool{true}, make([]bool, o.Channels)...)}
	}
	if err := s.build(ctx, op); err != nil {
		return nil, errors.Join(err, s.release(true)) // no channel was made
	}
	s.gate = ops.Gate("port service")
	return s, nil
}

func (s *Service) build(ctx context.Context, op string) (err error) {
	if s.comm.Device() == nil {
		s.shared, err = s.comm.Alloc(ctx, s.countersSize()+s.boardSize())
		if err != nil && !errors.Is(err, weft.ErrUnsupported) { // between hosts there may be none
			return err
		}
	}
	if err := s.openFabric(ctx, op); err != nil {
		return err
	}
	if s.absent != nil {
		if s.shared == nil {
			return s.absent
		}
		return nil
	}
	if s.board, err = s.register(ctx, op, make([]byte, s.boardSize())); err != nil {
		return err
	}
	return nil
}

// Fabric is what the first rail's endpoint does; ok is false where there is no fabric.
func (s *Service) Fabric() (c fabric.Capabilities, ok bool) {
	if s.absent != nil {
		return c, false
	}
	return s.rails.domains[0].Capabilities(), true
}

// Rails is the number of rails: 0 where there is no fabric.
func (s *Service) Rails() int {
	if s.rails == nil {
		return 0
	}
	return len(s.rails.domains)
}

// Channels is the most channels between two ranks.
func (s *Service) Channels() int { return s.options.Channels }

// Memory is a memory of each rank that channels put from and into, or that of one rank alone.
type Memory struct {
	service *Service
	of      int          // the rank whose part alone is known here, or everyRank
	bytes   []byte       // of this rank
	local   *port.Memory // nil where there is no fabric, or no memory
	parts   []part       // by rank
}

// everyRank is of of a memory that is registered by all.
const everyRank = -1

// part is what is known of a rank's memory.
type part struct {
	known  bool // false for a rank that was masked, and where the memory is of another rank
	bytes  int
	window uint64 // that it lies in
	offset int
	mapped bool // in a window
	card   []byte
}

// Register makes a memory of each rank known to all: of any length, also none. It is collective. The memory stays the
// caller's and must outlive the Memory. On GPUs it is memory of the host, pinned where kernels are to fill it.
func (s *Service) Register(ctx context.Context, memory []byte) (*Memory, error) {
	const op = "register port memory"
	if err := s.gate.Enter(op); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	return s.register(ctx, op, memory)
}

func (s *Service) register(ctx context.Context, op string, memory []byte) (*Memory, error) {
	m, err := &Memory{service: s, of: everyRank}, refusal.Of(ctx)
	if err == nil {
		m, err = s.own(everyRank, memory)
	}
	err = s.ops.VerifySame(ctx, op, "memory", err)
	var notes [][]byte
	if err == nil {
		notes, err = s.ops.GatherNotes(ctx, op, m.parts[s.comm.Rank()].encode())
	}
	for r, n := range notes {
		if n == nil || err != nil {
			continue
		}
		if m.parts[r], err = decodePart(n); err != nil {
			err = &weft.PeerError{Rank: r, Op: op, Err: err}
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// own is a memory of which this rank's part alone is known yet.
func (s *Service) own(of int, memory []byte) (*Memory, error) {
	m := &Memory{service: s, of: of, bytes: memory, parts: make([]part, s.comm.Size())}
	own := part{known: true, bytes: len(memory)}
	if err := s.onHost(memory); err != nil {
		return m, err
	}
	if len(memory) > 0 {
		if s.comm.Device() == nil {
			if w, offset, ok := s.ops.Find(addressOf(memory), len(memory)); ok {
				own.window, own.offset, own.mapped = w.ID(), offset, true
			}
		}
		if s.absent == nil {
			local, err := s.rails.proxy.Register(memory, uint32(s.ops.Generation()))
			if err != nil {
				return m, translate(err)
			}
			m.local, own.card = local, local.Card()
			s.mu.Lock()
			s.locals = append(s.locals, local)
			s.mu.Unlock()
		}
	}
	m.parts[s.comm.Rank()] = own
	return m, nil
}

// onHost refuses memory of a GPU.
func (s *Service) onHost(memory []byte) error {
	d := s.comm.Device()
	if d == nil || len(memory) == 0 {
		return nil
	}
	info, err := d.Context().Inspect(cuda.Pointer(uintptr(addressOf(memory))))
	if err != nil {
		return err
	}
	if info.Kind == cuda.OnDevice && !info.Managed {
		return weft.Unsupportedf("memory of a GPU, which the fabric does not reach: register pinned memory of the host")
	}
	return nil
}

// Bytes is the length of a rank's part: 0 for a rank that has none, or was masked.
func (m *Memory) Bytes(rank int) int { return m.parts[rank].bytes }

// Close takes the memory's keys back. Puts from it must have been flushed, and peers' puts into it are over.
func (m *Memory) Close() error {
	const op = "close port memory"
	if err := m.service.gate.Enter(op); err != nil {
		return nil // it was closed with its service
	}
	defer m.service.gate.Leave()
	return m.close()
}

func (m *Memory) close() error {
	if m.local == nil {
		return nil
	}
	s := m.service
	s.mu.Lock()
	s.locals = slices.DeleteFunc(s.locals, func(l *port.Memory) bool { return l == m.local })
	s.mu.Unlock()
	return m.local.Close()
}

// rest is how long a service that closes waits until what was pushed has left.
const rest = 5 * time.Second

// Close waits until what was pushed has left this rank, for some seconds at most, and closes the service with its
// channels and memories. It is not collective. While a call is inside it fails with [weft.ErrBusy]. Where something was
// dropped that a peer still waits for, and no call has said so, it says it, and the service is closed all the same.
func (s *Service) Close() error {
	const op = "close port service"
	if err := s.gate.Close(op); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return nil
	}
	left, dropped := s.flush(op)
	if s.kernels != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), s.comm.Deadline(), weft.ErrTimeout)
		defer cancel()
		if err := s.ops.Quiesce(ctx, op); err != nil && ctx.Err() != nil {
			return err // kernels may still push: closed again, it tries again
		}
		if s.rails.serial != 0 { // others go on by them, when what kernels have pushed has left, too
			err := s.kernels.Close()
			s.kernels = nil
			again, _ := s.flush(op)
			left = left && err == nil && again
		}
	}
	s.released = true
	return errors.Join(dropped, s.release(left))
}

// flush waits until what was pushed has left this rank, and reports whether all of it has. The error is of what has
// not, and its peer is there to miss it.
func (s *Service) flush(op string) (left bool, dropped error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), min(s.comm.Deadline(), rest), weft.ErrTimeout)
	defer cancel()
	left = true
	for _, l := range s.links {
		if l.base == nil {
			continue
		}
		if s.sound(op, l.peer) != nil || s.gone(l.peer) { // the communicator's calls say that
			left = false
			continue
		}
		if err := l.base.Flush(watched{ctx, s, op, l.peer}); err != nil {
			left = false
			dropped = errors.Join(dropped, s.missed(op, l, err))
		}
	}
	return left, dropped
}

// missed is the error of a link that has dropped something, or nil if that was said.
func (s *Service) missed(op string, l *link, err error) error {
	switch why := l.base.Err(); {
	case s.options.Shared: // those who share have calls that say it
		return nil
	case s.failed(op, l.peer) != nil, s.gone(l.peer), errors.Is(why, fabric.ErrLost), errors.Is(why, fabric.ErrClosed):
		return nil
	case why == nil: // no error that says that the service is still open
		return &weft.PeerError{Rank: l.peer, Op: op, Err: fmt.Errorf(
			"%w: not all that was put and signalled has left in time, and the rest is dropped", weft.ErrAborted)}
	case l.said.Load():
		return nil
	}
	err = fmt.Errorf("a channel has dropped what followed: %w", translate(err))
	return &weft.PeerError{Rank: l.peer, Op: op, Err: err}
}

// release gives up what there is. Where nothing that was pushed is left, others go on by the rails.
func (s *Service) release(left bool) error {
	var errs []error
	s.silence()
	if s.kernels != nil {
		errs = append(errs, s.kernels.Close())
	}
	errs = append(errs, s.closeFabric(left))
	if s.shared != nil {
		errs = append(errs, s.shared.Close())
	}
	return errors.Join(errs...)
}

// closeFabric leaves the rails.
func (s *Service) closeFabric(left bool) error {
	if s.rails == nil {
		return nil
	}
	for _, l := range s.links {
		if l.base != nil {
			l.base.Close()
		}
	}
	for _, m := range s.meetings {
		if c, ok := m.hellos.(*port.Channel); ok {
			c.Close()
		}
	}
	for m := range s.remotes {
		m.Close()
	}
	var errs []error
	for _, m := range s.locals {
		errs = append(errs, m.Close())
	}
	// After a failure something may be underway to this rank, whatever it has pushed itself.
	left = left && s.rails.generation == s.ops.Generation() && s.ops.Begin("close port service") == nil
	errs = append(errs, s.rails.leave(left))
	s.rails, s.locals = nil, nil
	clear(s.remotes)
	return errors.Join(errs...)
}
