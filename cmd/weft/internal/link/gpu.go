package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// The window of a GPU: words to signal with, the lane of operations, what kernels leave for the
// host, what the GPU sends, and a slot for each sender.
const (
	lineBytes = 128
	atLines   = 0                     // a line for each GPU: barriers
	atPing    = lineBytes * maxGPUs   // a line for each side
	atState   = atPing + 2*lineBytes  // device.State
	atDone    = atState + lineBytes   // u64: barriers that have ended
	atSum     = atDone + lineBytes    // u64: sum of loads
	atWrong   = atSum + lineBytes     // u64: words that are wrong
	atSumming = atWrong + lineBytes   // u32: whether bulk loads sum
	atTimes   = atSumming + lineBytes // 2 x u64: when side 0 began and ended
	atSeen    = atTimes + lineBytes   // 2 x u32: the last round of each side
	atClaim   = atSeen + lineBytes    // u32: of the record
	atData    = 64 << 10              // what the GPU sends; all words lie below
)

// maxGPUs is how many kernels can address.
const maxGPUs = device.MaxRanks

// Dynamic shared memory of bulk copies: so many chunks, four for each of four warps.
const (
	storeChunk, loadChunk = 4 << 10, 8 << 10
	bulkThreads           = 4 * 32
	chunks                = 4 * 4
)

// targets are addresses, all of the same size: the Targets of pattern.cuh.
type targets struct {
	At    [maxGPUs]cuda.Pointer
	Count uint32
	_     uint32
}

// A gpu is one GPU's part.
type gpu struct {
	index      int
	context    *cuda.Context
	window     *cuda.Virtual
	stream     *cuda.Stream
	side       []*cuda.Stream // one for each peer: copies that run at once
	fork       *cuda.Event
	joins      []*cuda.Event
	start, end *cuda.Event
	program    *enginegpu.Program
	functions  map[string]*cuda.Function
	sms        int
	bulk       bool
	closers    []func() error
}

// open makes a GPU's part for slots senders of size bytes each, which all devices may reach.
func (g *gpu) open(ctx context.Context, cache *kernel.Cache, size, slots int, devices []*cuda.Device) (err error) {
	if g.sms, err = g.context.Device().Multiprocessors(); err != nil {
		return err
	}
	arch, err := g.context.Device().Architecture()
	if err != nil {
		return err
	}
	g.bulk = hasBulk(arch)
	if g.window, err = g.context.AllocVirtual(atData+(slots+1)*size, cuda.AllocationOptions{}, devices...); err != nil {
		return fmt.Errorf("a window of %d bytes: %w", atData+(slots+1)*size, err)
	}
	g.closers = append(g.closers, g.window.Close)
	if g.stream, err = g.newStream(); err != nil {
		return err
	}
	for range max(1, len(devices)-1) {
		s, err := g.newStream()
		if err != nil {
			return err
		}
		e, err := g.newEvent(false)
		if err != nil {
			return err
		}
		g.side, g.joins = append(g.side, s), append(g.joins, e)
	}
	if g.fork, err = g.newEvent(false); err != nil {
		return err
	}
	if g.start, err = g.newEvent(true); err != nil {
		return err
	}
	if g.end, err = g.newEvent(true); err != nil {
		return err
	}
	return g.load(ctx, cache, arch)
}

func (g *gpu) newStream() (*cuda.Stream, error) {
	s, err := g.context.NewStream(cuda.StreamOptions{})
	if err == nil {
		g.closers = append(g.closers, s.Close)
	}
	return s, err
}

func (g *gpu) newEvent(timing bool) (*cuda.Event, error) {
	e, err := g.context.NewEvent(cuda.EventOptions{Timing: timing})
	if err == nil {
		g.closers = append(g.closers, e.Close)
	}
	return e, err
}

// entries are the kernels of each file.
var entries = map[string][]string{
	"link pattern": {"link_fill", "link_check"},
	"link threads": {"link_store", "link_load"},
	"link latency": {"link_empty", "link_gate", "link_barrier", "link_ping"},
	"link bulk":    {"link_bulk_store", "link_bulk_load"},
}

func (g *gpu) load(ctx context.Context, cache *kernel.Cache, arch string) error {
	var sources []enginegpu.Source
	for _, spec := range Kernels(arch) {
		sources = append(sources, enginegpu.Source{Spec: spec, Extern: entries[spec.Name]})
	}
	var err error
	if g.program, err = enginegpu.LoadLocal(ctx, g.context, cache, sources...); err != nil {
		return err
	}
	g.closers = append(g.closers, g.program.Close)
	g.functions = map[string]*cuda.Function{}
	for i, source := range sources {
		for k, f := range g.program.Functions(i) {
			g.functions[source.Extern[k]] = f
		}
	}
	for name, bytes := range map[string]int{"link_bulk_store": chunks * storeChunk, "link_bulk_load": chunks * loadChunk} {
		if f := g.functions[name]; f != nil {
			if err := f.SetMaxDynamicShared(bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// close gives everything back, last made first. Nothing may run any more.
func (g *gpu) close() error {
	var errs []error
	for i := len(g.closers) - 1; i >= 0; i-- {
		errs = append(errs, g.closers[i]())
	}
	g.closers = nil
	return errors.Join(errs...)
}

func (g *gpu) at(offset int) cuda.Pointer { return g.window.Pointer().Add(offset) }

// source is what the GPU sends; inbox is where it receives from a sender. Both have size bytes.
func (g *gpu) source() cuda.Pointer                { return g.at(atData) }
func (g *gpu) inbox(sender, size int) cuda.Pointer { return g.at(atData + (1+sender)*size) }

// run enqueues a kernel once.
func (g *gpu) run(name string, c cuda.LaunchConfig, arguments ...any) error {
	l, err := g.functions[name].Prepare(c, arguments...)
	if err != nil {
		return err
	}
	return l.Start(g.stream)
}

// reset begins the lane anew and clears the words.
func (g *gpu) reset(ctx context.Context, timeout time.Duration) error {
	if err := g.stream.Memset(g.at(0), 0, atData); err != nil {
		return err
	}
	if err := g.stream.Wait(ctx); err != nil {
		return err
	}
	var state bytes.Buffer
	if err := binary.Write(&state, binary.LittleEndian, device.State{Timeout: uint64(timeout)}); err != nil {
		return err
	}
	return g.context.Upload(g.at(atState), state.Bytes())
}

// number reads a word of 8 bytes that kernels have left.
func (g *gpu) number(offset int) (uint64, error) {
	b := make([]byte, 8)
	err := g.context.Download(b, g.at(offset))
	return binary.LittleEndian.Uint64(b), err
}
