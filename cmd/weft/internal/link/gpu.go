package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/internal/closer"
)

// The window of a GPU: signal words, the data that the GPU sends, and a slot for each sender.
const (
	lineBytes = 128
	atLines   = 0                   // a line for each GPU: barriers
	atPing    = lineBytes * maxGPUs // a line for each side
	wordBytes = atPing + 2*lineBytes
	atData    = 64 << 10 // the data that the GPU sends; all words lie below
)

// The words that kernels leave for the host, in the lane's local memory, behind its state.
const (
	atDone    = 0                     // u64: barriers that have ended
	atSum     = atDone + lineBytes    // u64: sum of loads
	atWrong   = atSum + lineBytes     // u64: words that are wrong
	atSumming = atWrong + lineBytes   // u32: whether bulk loads sum
	atTimes   = atSumming + lineBytes // 2 x u64: when side 0 began and ended
	atSeen    = atTimes + lineBytes   // 2 x u32: the last round of each side
	leftBytes = atSeen + lineBytes
)

// maxGPUs is how many kernels can address.
const maxGPUs = device.WordRanks

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

// A gpu is one GPU's part: a rank.
type gpu struct {
	*timing.GPU
	options   Options
	sms       int  // that every GPU has
	bulk      bool // all GPUs have bulk copies
	rows      bool // and so much shared memory that rows can be moved, to so few GPUs
	lane      *enginegpu.Lane
	left      int64          // where the words for the host are in the lane's local memory
	side      []*cuda.Stream // one for each peer: copies that run at once
	fork      *cuda.Event
	joins     []*cuda.Event
	functions map[string]*cuda.Function
	seeds     uint32
}

// open makes the GPU's part, for as many senders of size bytes each as there are GPUs.
func (g *gpu) open(ctx context.Context, size int, c *closer.Stack) (err error) {
	if err := g.load(ctx, c); err != nil {
		return err
	}
	for range max(1, g.Ranks-1) {
		s, err := g.Context.NewStream(cuda.StreamOptions{})
		if err != nil {
			return err
		}
		c.Add(s.Close)
		e, err := g.newEvent(c)
		if err != nil {
			return err
		}
		g.side, g.joins = append(g.side, s), append(g.joins, e)
	}
	if g.fork, err = g.newEvent(c); err != nil {
		return err
	}
	var window enginegpu.Workspace
	window.Zeros(wordBytes)
	window.Raw(atData - wordBytes)
	window.Raw(int64(g.Ranks+1) * int64(size))
	local := enginegpu.NewLocal(0)
	g.left = local.Zeros(leftBytes)
	g.lane, err = enginegpu.NewLane(ctx, g.Comm, enginegpu.LaneSpec{
		Op: "new window", Owner: "window", Window: &window, Local: local, Moved: func(*enginegpu.Lane) {},
	})
	if err != nil {
		return fmt.Errorf("a window of %d bytes: %w", window.Size(), err)
	}
	c.Add(func() error {
		_, err := g.lane.Close()
		return err
	})
	return nil
}

func (g *gpu) newEvent(c *closer.Stack) (*cuda.Event, error) {
	e, err := g.Context.NewEvent(cuda.EventOptions{})
	if err == nil {
		c.Add(e.Close)
	}
	return e, err
}

// entries are the kernels of each file.
var entries = map[string][]string{
	"link pattern": {"link_fill", "link_check"},
	"link threads": {"link_store", "link_load"},
	"link latency": {"link_barrier", "link_ping"},
	"link bulk":    {"link_bulk_store", "link_bulk_load"},
	"link rows":    {"link_rows", "link_rows_check"},
}

func (g *gpu) load(ctx context.Context, c *closer.Stack) error {
	arch := g.Comm.Device().Arch()
	shared, err := g.Context.Device().Attribute(cuda.SharedMemoryPerBlockOptIn)
	if err != nil {
		return err
	}
	all, err := timing.Gather(g.Team, g.Me, [2]bool{hasBulk(arch), hasBulk(arch) && shared >= rowShared+rowOwnBytes})
	if err != nil {
		return err
	}
	g.bulk, g.rows = true, g.Ranks <= mostTargets
	for _, has := range all {
		g.bulk, g.rows = g.bulk && has[0], g.rows && has[1]
	}
	if g.options.Tokens > 0 && !g.rows {
		return fmt.Errorf("%w: to move rows, each GPU needs bulk copies and %d KiB of shared memory, and there are at most "+
			"%d GPUs: ask for no rows", cuda.ErrUnsupported, (rowShared+rowOwnBytes)>>10, mostTargets)
	}
	var sources []enginegpu.Source
	for _, spec := range Kernels(arch) {
		sources = append(sources, enginegpu.Source{Spec: spec, Extern: entries[spec.Name]})
	}
	program, err := enginegpu.Load(ctx, g.Comm, "new window", sources...)
	if err != nil {
		return err
	}
	c.Add(program.Close)
	g.functions = map[string]*cuda.Function{}
	for i, source := range sources {
		for k, f := range program.Functions(i) {
			g.functions[source.Extern[k]] = f
		}
	}
	dynamic := map[string]int{"link_bulk_store": chunks * storeChunk, "link_bulk_load": chunks * loadChunk}
	if g.rows {
		dynamic["link_rows"] = rowShared
	}
	for name, bytes := range dynamic {
		if f := g.functions[name]; f != nil {
			if err := f.SetMaxDynamicShared(bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// on is an address in the window of a GPU, as this one reaches it.
func (g *gpu) on(peer, offset int) cuda.Pointer { return g.lane.Window().PeerPointer(peer).Add(offset) }

// source is the data that a GPU sends; inbox is the slot of a sender. Both have size bytes.
func (g *gpu) source(of int) cuda.Pointer              { return g.on(of, atData) }
func (g *gpu) inbox(of, sender, size int) cuda.Pointer { return g.on(of, atData+(1+sender)*size) }

// at is where a word for the host is.
func (g *gpu) at(offset int64) cuda.Pointer { return g.lane.Local(g.left + offset) }

// state is that of the lane.
func (g *gpu) state() cuda.Pointer { return g.lane.Local(0) }

// run enqueues a kernel once.
func (g *gpu) run(name string, c cuda.LaunchConfig, arguments ...any) error {
	l, err := g.functions[name].Prepare(c, arguments...)
	if err != nil {
		return err
	}
	return l.Start(g.Stream)
}

// reset clears the words.
func (g *gpu) reset(ctx context.Context) error {
	return errors.Join(g.Stream.Memset(g.on(g.Me, 0), 0, wordBytes), g.Stream.Memset(g.at(0), 0, leftBytes),
		g.synchronize(ctx))
}

// synchronize waits until all enqueued work has ended on all GPUs.
func (g *gpu) synchronize(ctx context.Context) error {
	if err := g.Comm.Wait(ctx, g.Work); err != nil {
		return err
	}
	return g.Meet(nil)
}

// number reads a word of 8 bytes that kernels have left.
func (g *gpu) number(offset int64) (uint64, error) {
	b := make([]byte, 8)
	err := g.Context.Download(b, g.at(offset))
	return binary.LittleEndian.Uint64(b), err
}

// sum adds up the contributions of all GPUs.
func (g *gpu) sum(mine int64) (total int64, err error) {
	all, err := timing.Gather(g.Team, g.Me, mine)
	for _, n := range all {
		total += n
	}
	return total, err
}

// capture records an operation so many times, ready to run, or gives nil where this GPU has no part
// in it. The caller closes the result.
func (g *gpu) capture(ctx context.Context, operations int, part func() error) (graph *cuda.GraphExec, err error) {
	if part != nil {
		if graph, err = g.Graph(operations, func(bool) error { return part() }); err != nil {
			return nil, err
		}
	}
	if err := g.synchronize(ctx); err != nil {
		return nil, errors.Join(err, closeGraph(graph))
	}
	return graph, nil
}

func closeGraph(g *cuda.GraphExec) error {
	if g == nil {
		return nil
	}
	return g.Close()
}

// replay runs the graphs of all GPUs at once and gives the time of the slowest, when all have
// ended.
func (g *gpu) replay(ctx context.Context, graph *cuda.GraphExec) (slowest time.Duration, err error) {
	span := timing.Span{Stream: g.Stream}
	if graph != nil {
		span.Enqueue = func() error { return graph.Launch(g.Stream) }
	}
	took, err := g.Spans(ctx, span)
	if err != nil {
		return 0, err
	}
	all, err := timing.Gather(g.Team, g.Me, took[0])
	for _, d := range all {
		slowest = max(slowest, d)
	}
	return slowest, err
}

// timed replays graphs so often as is asked for, and fills in the row.
func (g *gpu) timed(ctx context.Context, graph *cuda.GraphExec, row *Row) error {
	var took []time.Duration
	for range g.options.Replays {
		d, err := g.replay(ctx, graph)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	row.times(took)
	return nil
}
