package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
)

// Host memory that all GPUs see: the gate, the word that ends all waits, and a record for each GPU.
const (
	atGate    = 0
	atAbort   = 64
	atRecords = 128
	hostBytes = atRecords + maxGPUs*device.RecordBytes
)

// A machine is all GPUs and what they share.
type machine struct {
	Options
	gpus  []*gpu
	host  *cuda.HostMemory
	turn  uint32 // of the gate
	seeds uint32
	stuck bool // something runs on that does not end: what it uses must stay
}

func open(ctx context.Context, contexts []*cuda.Context, o Options) (*machine, error) {
	m := &machine{Options: o}
	if err := m.build(ctx, contexts); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *machine) build(ctx context.Context, contexts []*cuda.Context) (err error) {
	if m.host, err = contexts[0].AllocHost(hostBytes, cuda.HostOptions{}); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	clear(m.host.Bytes())
	var devices []*cuda.Device
	for _, c := range contexts {
		devices = append(devices, c.Device())
	}
	for i, c := range contexts {
		g := &gpu{index: i, context: c}
		m.gpus = append(m.gpus, g)
		if err := g.open(ctx, m.Cache, int(slices.Max(m.Bytes)), len(contexts), devices); err != nil {
			return fmt.Errorf("link: GPU %d: %w", i, err)
		}
	}
	return nil
}

func (m *machine) close() error {
	if m.stuck {
		return nil
	}
	var errs []error
	for _, g := range slices.Backward(m.gpus) {
		errs = append(errs, g.close())
	}
	if m.host != nil {
		errs = append(errs, m.host.Close())
	}
	return errors.Join(errs...)
}

// bulk says whether all GPUs have bulk copies.
func (m *machine) bulk() bool {
	return !slices.ContainsFunc(m.gpus, func(g *gpu) bool { return !g.bulk })
}

// abort has all kernels end that wait, now and later.
func (m *machine) abort() { atomic.StoreUint64((*uint64)(m.word(atAbort)), 1) }

// all does the same for every GPU at once: what one of them enqueues may wait for what the others
// do. So if one fails, nobody waits any more.
func (m *machine) all(do func(g *gpu) error) error {
	errs := make([]error, len(m.gpus))
	var each sync.WaitGroup
	for i, g := range m.gpus {
		each.Go(func() {
			if err := do(g); err != nil {
				errs[i] = fmt.Errorf("link: GPU %d: %w", i, err)
				m.abort()
			}
		})
	}
	each.Wait()
	return errors.Join(errs...)
}

// settle waits until the GPUs have done all that was enqueued. When ctx ends it has the kernels
// end, and waits for that.
func (m *machine) settle(ctx context.Context) error {
	wait := func(ctx context.Context) error { return m.all(func(g *gpu) error { return g.stream.Wait(ctx) }) }
	err := wait(ctx)
	if err == nil {
		return m.given()
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.Timeout+m.patience)
	defer cancel()
	if last := wait(grace); last != nil && grace.Err() != nil {
		m.stuck = true
		err = fmt.Errorf("%w; the GPU did not come to an end, and keeps its memory until the process ends", err)
	}
	return err
}

// word is a place in the host's memory. All are aligned, for the memory begins at a page.
func (m *machine) word(offset int) unsafe.Pointer { return unsafe.Pointer(&m.host.Bytes()[offset]) }

// A WaitError says that a kernel waited in vain.
type WaitError struct {
	GPU, Peer      int // who waited for whom
	Aborted        bool
	Expected, Seen uint64
}

func (e *WaitError) Error() string {
	if e.Aborted {
		return fmt.Sprintf("link: GPU %d: waiting for GPU %d was broken off", e.GPU, e.Peer)
	}
	return fmt.Sprintf("link: GPU %d waited in vain for GPU %d, for a word that was %d and should "+
		"have become %d", e.GPU, e.Peer, e.Seen, e.Expected)
}

// given is the error that kernels left, if one gave up.
func (m *machine) given() error {
	for i := range m.gpus {
		b := m.host.Bytes()[atRecords+i*device.RecordBytes:][:device.RecordBytes]
		if atomic.LoadUint32((*uint32)(m.word(atRecords+i*device.RecordBytes))) != device.RecordWritten {
			continue
		}
		var r device.Record
		if _, err := binary.Decode(b, binary.LittleEndian, &r); err != nil {
			return fmt.Errorf("link: %w", err)
		}
		return &WaitError{
			GPU: i, Peer: int(r.Peer), Aborted: r.Cause == device.CauseAbort,
			Expected: r.Expected, Seen: r.Seen,
		}
	}
	return nil
}

// group is what a GPU's kernels know of the others: an address on each of so many GPUs.
func (m *machine) group(g *gpu, offsets ...int) device.Group {
	d := device.Group{
		Abort:  uint64(m.host.Pointer().Add(atAbort)),
		Record: uint64(m.host.Pointer().Add(atRecords + g.index*device.RecordBytes)),
		Claim:  uint64(g.at(atClaim)),
		Ranks:  uint32(len(offsets)), Rank: uint32(g.index),
	}
	for i, offset := range offsets {
		d.Window[i] = uint64(m.gpus[i%len(m.gpus)].at(offset))
	}
	return d
}

// reset begins all lanes anew and clears the words of all GPUs.
func (m *machine) reset(ctx context.Context) error {
	return m.all(func(g *gpu) error { return g.reset(ctx, m.Timeout) })
}

// capture records an operation so many times on each GPU that has a part in it, and makes it ready
// to run. The caller closes the result.
func (m *machine) capture(ctx context.Context, operations int,
	parts func(g *gpu) (func() error, error),
) (made graphs, err error) {
	made = make(graphs, len(m.gpus))
	err = m.all(func(g *gpu) error {
		part, err := parts(g)
		if err != nil || part == nil {
			return err
		}
		graph, err := g.stream.Capture(func() error {
			for range operations {
				if err := part(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		exec, err := graph.Instantiate()
		if err == nil {
			made[g.index] = exec
			err = exec.Upload(g.stream)
		}
		return errors.Join(err, graph.Close())
	})
	if err == nil {
		err = m.settle(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, made.close())
	}
	return made, nil
}

// graphs are what each GPU runs, or nil where it has no part.
type graphs []*cuda.GraphExec

func (all graphs) close() error {
	var errs []error
	for _, g := range all {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}

// replay runs the graphs at once and gives the time of the slowest.
func (m *machine) replay(ctx context.Context, graphs graphs) (time.Duration, error) {
	m.turn++
	err := m.all(func(g *gpu) error {
		graph := graphs[g.index]
		if graph == nil {
			return nil
		}
		gate := m.host.Pointer().Add(atGate)
		if err := g.run("link_gate", cuda.LaunchConfig{}, gate, m.turn, uint64(m.patience)); err != nil {
			return err
		}
		if err := g.start.Record(g.stream); err != nil {
			return err
		}
		if err := graph.Launch(g.stream); err != nil {
			return err
		}
		return g.end.Record(g.stream)
	})
	atomic.StoreUint32((*uint32)(m.word(atGate)), m.turn)
	if err := errors.Join(err, m.settle(ctx)); err != nil {
		return 0, err
	}
	slowest := time.Duration(0)
	for _, g := range m.gpus {
		if graphs[g.index] == nil {
			continue
		}
		took, err := g.end.Since(g.start)
		if err != nil {
			return 0, fmt.Errorf("link: GPU %d: %w", g.index, err)
		}
		slowest = max(slowest, took)
	}
	return slowest, nil
}

// timed replays graphs so often as is asked for, and fills in the row.
func (m *machine) timed(ctx context.Context, graphs graphs, row *Row) error {
	var took []time.Duration
	for range m.Replays {
		d, err := m.replay(ctx, graphs)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	row.times(took)
	return nil
}
