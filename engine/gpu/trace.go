package gpu

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"weak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/trace"
)

// Traces of lanes. A lane of a communicator that is traced has a ring before its State (device/trace.cuh), which its
// kernels fill; they are compiled for that. A goroutine of the communicator copies what is new in the rings, by a
// stream of its own, and makes events of it: every tracePeriod, and every busyPeriod while rings fill faster.
//
// An operation is read when the next one has been counted: then all of it is there. What is under way is read when it
// has not moved for a period, and at the end: those are the last events before a hang. What the ring has overwritten is
// counted as lost.

// Part is a part of a lane whose operations are counted apart: see LaneSpec.Parts.
type Part struct {
	Name   string // "dispatch"
	Counts int
}

const (
	tracePeriod = 50 * time.Millisecond
	// A ring in busyPeriod is 25,600 operations a second, which make one to two million events. That much a rank writes.
	busyPeriod  = 10 * time.Millisecond
	clockPeriod = time.Second
	// traceBlocks is how many blocks of an operation become events: the first, the last, and some between. All of
	// them would be a million events a second.
	traceBlocks = 8
	// tracePatience is how long a copy may take. Behind a stream that shares its queue of the GPU with kernels that
	// wait it takes as long as they do, and what it would have brought comes later.
	tracePatience = 200 * time.Millisecond
)

// tracer reads the rings of a communicator's lanes, and the clock of its GPU.
type tracer struct {
	comm   *weft.Comm
	writer *trace.Writer
	name   string // of the clock
	clock  *gpuClock

	mu     sync.Mutex // of all that follows, and of what is read
	lanes  []*laneTrace
	stream *cuda.Stream
	page   *cuda.HostMemory // what is copied comes here
	out    bool             // a copy that was given up may still come
	next   time.Duration    // until the next reading
	closed bool

	stop, stopped chan struct{}
}

// tracers are those of communicators with lanes. names has how many lanes of each owner a communicator has had: they
// are made in the same order on all ranks.
var tracers = struct {
	sync.Mutex
	of    map[*weft.Comm]*tracer
	names map[weak.Pointer[weft.Comm]]map[string]int
}{of: map[*weft.Comm]*tracer{}, names: map[weak.Pointer[weft.Comm]]map[string]int{}}

// laneTrace is a lane as its tracer knows it.
type laneTrace struct {
	tracer *tracer
	words  *device.Words
	op     string // of operations without a name
	ring   device.TraceRing
	parts  []tracePart

	state      cuda.Pointer // where the lane's State is
	generation uint64
}

// tracePart is how far a part of a lane has been read.
type tracePart struct {
	first, counts int
	track         uint32
	ops           map[uint8]uint32
	next          uint64                   // the first operation that has not been read
	counted       uint64                   // when last read
	early         map[uint64]map[int]early // what has been read of operations under way, by the record
	last          map[int]uint64           // the time of a block's last event
}

// early is a record of an operation under way. Its words may come one after the other, so it counts when it was found
// twice.
type early struct {
	device.TraceRecord
	taken bool
}

// progress is how far what is read has come.
type progress int

const (
	running progress = iota
	stuck            // nothing goes on, or perhaps nothing
	ended            // nothing runs
)

// newTrace begins to trace a lane that is being made: the result is nil if the communicator is not traced.
func newTrace(ctx context.Context, comm *weft.Comm, s LaneSpec) (*laneTrace, error) {
	w := comm.Operations().Trace()
	if w == nil {
		return nil, nil
	}
	tracers.Lock()
	defer tracers.Unlock()
	key := weak.Make(comm)
	names := tracers.names[key]
	if names == nil {
		names = map[string]int{}
		tracers.names[key] = names
		runtime.AddCleanup(comm, forget, key)
	}
	names[s.Owner]++
	number, counts := names[s.Owner], s.Local.counts
	if counts == 0 {
		return nil, nil // it has no operations
	}
	t := tracers.of[comm]
	if t == nil {
		var err error
		if t, err = newTracer(ctx, comm, w); err != nil {
			return nil, fmt.Errorf("%s: trace: %w", s.Op, err)
		}
		tracers.of[comm] = t
		go t.run()
	}
	l := &laneTrace{tracer: t, words: s.Words, op: s.Op, ring: device.NewTraceRing(counts, comm.Size())}
	if err := t.reserve(l.ring); err != nil {
		return nil, fmt.Errorf("%s: trace: %w", s.Op, err)
	}
	parts := s.Parts
	if len(parts) == 0 {
		parts = []Part{{Counts: counts}}
	}
	first := 0
	for _, p := range parts {
		name := s.Owner + " " + strconv.Itoa(number)
		if p.Name != "" {
			name += " " + p.Name
		}
		l.parts = append(l.parts, tracePart{
			first: first, counts: p.Counts, ops: map[uint8]uint32{},
			track: w.Track(trace.Track{Lane: name, Clock: t.name}),
		})
		first += p.Counts
	}
	return l, nil
}

func forget(key weak.Pointer[weft.Comm]) {
	tracers.Lock()
	defer tracers.Unlock()
	delete(tracers.names, key)
}

func newTracer(ctx context.Context, comm *weft.Comm, w *trace.Writer) (*tracer, error) {
	d := comm.Device()
	uuid, err := d.Context().Device().UUID()
	if err != nil {
		return nil, err
	}
	t := &tracer{
		comm: comm, writer: w, name: "gpu " + uuid.String(), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	if t.clock, err = newClock(ctx, d.Context(), d.Kernels(), d.Arch()); err != nil {
		return nil, err
	}
	if t.stream, err = d.Context().NewStream(cuda.StreamOptions{}); err != nil {
		return nil, errors.Join(err, t.clock.close())
	}
	t.anchor()
	if t.clock.step != 0 {
		comm.Operations().Logger().Debug("the GPU's clock", "op", "trace", "step_ns", t.clock.step)
	}
	return t, nil
}

// anchor notes what the GPU's clock shows.
func (t *tracer) anchor() {
	r, ok, err := t.clock.read()
	if err != nil || !ok {
		return // without it the clock is known by those before and after, or by what operations show
	}
	t.writer.Anchor(t.name, r.own, r.unix, r.within)
}

// run reads until the tracer is stopped.
func (t *tracer) run() {
	defer close(t.stopped)
	tick := time.NewTimer(tracePeriod)
	defer tick.Stop()
	flushed := uint64(0) // the generation that failed when all was written out, and 1
	for anchored := time.Now(); ; {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		t.next = tracePeriod
		for _, l := range t.lanes {
			l.read(running)
		}
		tick.Reset(t.next)
		t.mu.Unlock()
		ops := t.comm.Operations()
		if g := ops.Generation(); flushed != g+1 && ops.GaveUp(g) {
			flushed = g + 1
			t.mu.Lock()
			for _, l := range t.lanes {
				l.read(stuck)
				l.read(stuck) // what was found once
			}
			t.mu.Unlock()
			_ = t.writer.Flush() // Close says what went wrong
		}
		if time.Since(anchored) >= clockPeriod {
			anchored = time.Now()
			t.anchor()
		}
	}
}

// bytes is how much memory of the GPU the lane's ring takes.
func (l *laneTrace) bytes() int {
	if l == nil {
		return 0
	}
	return l.ring.Bytes()
}

// word is State.Trace of the lane.
func (l *laneTrace) word() uint32 {
	if l == nil {
		return 0
	}
	return l.ring.Word()
}

// begin is called when the lane begins, or begins anew: with the memory of its State, in which nothing of it runs.
func (l *laneTrace) begin(state cuda.Pointer, generation uint64) {
	if l == nil {
		return
	}
	t := l.tracer
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.lanes, l) {
		t.lanes = append(t.lanes, l)
	}
	l.state, l.generation = state, generation
	for i := range l.parts {
		p := &l.parts[i]
		p.next, p.counted, p.early = 1, 0, nil // last stays: the track goes on
	}
}

// end is called before the lane's memory is freed or begun anew, when nothing of it runs: the rest is read.
func (l *laneTrace) end() {
	if l == nil {
		return
	}
	l.tracer.mu.Lock()
	defer l.tracer.mu.Unlock()
	if l.state != 0 {
		l.read(ended)
	}
	l.state = 0
}

// flush writes what there is out, while work still runs.
func (l *laneTrace) flush() {
	if l == nil {
		return
	}
	l.tracer.mu.Lock()
	defer l.tracer.mu.Unlock()
	l.read(stuck)
	l.read(stuck)               // what was found once
	_ = l.tracer.writer.Flush() // Close says what went wrong
}

// close ends the trace of the lane, and the tracer with its communicator's last one.
func (l *laneTrace) close() error {
	if l == nil {
		return nil
	}
	l.end()
	t := l.tracer
	tracers.Lock()
	defer tracers.Unlock()
	t.mu.Lock()
	t.lanes = slices.DeleteFunc(t.lanes, func(other *laneTrace) bool { return other == l })
	last := len(t.lanes) == 0 && !t.closed
	t.closed = t.closed || last
	t.mu.Unlock()
	if !last {
		return nil
	}
	close(t.stop)
	<-t.stopped
	if tracers.of[t.comm] == t {
		delete(tracers.of, t.comm)
	}
	t.anchor()
	err := t.clock.close()
	if t.out {
		return err // the memory stays: the copy may still come
	}
	err = errors.Join(err, t.stream.Close())
	if t.page != nil {
		err = errors.Join(err, t.page.Close())
	}
	return err
}

// reserve sees to it that what is copied of a ring at once has room. Pinned memory is allocated while lanes are made,
// and not when kernels wait for peers: a driver may let it wait for them.
func (t *tracer) reserve(r device.TraceRing) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	need := max(1<<20, r.OperationBytes(), device.StateBytes+r.Counts*device.CountBytes)
	if t.page != nil && t.page.Size() >= need {
		return nil
	}
	page, err := t.comm.Device().Context().AllocHost(need, cuda.HostOptions{})
	if err != nil {
		return err
	}
	if before := t.page; before != nil && !t.out {
		err = before.Close()
	}
	t.page = page
	return err
}

// copyOut copies memory of the GPU to the page. It is nil if it has not come in time.
func (t *tracer) copyOut(from cuda.Pointer, bytes int) []byte {
	if t.out {
		if ended, err := t.stream.Query(); !ended || err != nil {
			return nil
		}
		t.out = false
	}
	if t.stream.Download(t.page.Bytes()[:bytes], from) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracePatience)
	defer cancel()
	if t.stream.Wait(ctx) != nil {
		t.out = true
		return nil
	}
	return t.page.Bytes()[:bytes]
}

// read makes events of what is new in the lane's ring.
func (l *laneTrace) read(now progress) {
	if l.state == 0 {
		return
	}
	raw := l.tracer.copyOut(l.state, device.StateBytes+l.ring.Counts*device.CountBytes)
	if raw == nil {
		return
	}
	counts := make([]uint64, len(l.parts)) // operations that some block has ended
	for i, p := range l.parts {
		for b := p.first; b < p.first+p.counts; b++ {
			counts[i] = max(counts[i], binary.LittleEndian.Uint64(raw[device.StateBytes+b*device.CountBytes:]))
		}
	}
	for i, counted := range counts {
		p := &l.parts[i]
		if now == running && counted == p.counted {
			l.readPart(p, counted, stuck)
		} else {
			l.readPart(p, counted, now)
		}
		l.tracer.next = min(l.tracer.next, pause(counted-p.counted, l.ring.Operations))
		p.counted = counted
	}
}

// pause is the time until a ring is read again in which so many operations have come since it was read.
func pause(came uint64, ring int) time.Duration {
	if came > uint64(ring)/2 {
		return busyPeriod
	}
	return tracePeriod
}

// readPart reads the operations that have ended, those before the last that was counted, and unless they go on those
// that are under way: the last that was counted, and the one after it.
func (l *laneTrace) readPart(p *tracePart, counted uint64, now progress) {
	from, to := p.next, counted+1
	if now == running {
		to = max(counted, 1) - 1
	}
	// What runs meanwhile overwrites the oldest.
	if kept := uint64(l.ring.Operations - 2); counted+1 > kept && from < counted+1-kept {
		l.tracer.writer.Overwritten(p.track, counted+1-kept-from)
		from = counted + 1 - kept
	}
	if from > to {
		return
	}
	// Later operations stand before earlier ones, and the ring's end before its beginning.
	size, base := l.ring.OperationBytes(), l.state.Add(-l.ring.Bytes())
	most := uint64(l.tracer.page.Size() / size)
	var events []trace.Event
	for low := from; low <= to; {
		high := min(to, low|uint64(l.ring.Operations-1), low+most-1)
		lines := l.tracer.copyOut(base.Add(l.ring.At(high)), int(high-low+1)*size)
		if lines == nil {
			break // it is tried again
		}
		for e := low; e <= high; e++ {
			whole := false
			events, whole = l.append(events, p, e, lines[int(high-e)*size:][:size], e >= counted && now != ended)
			if !whole && e >= counted {
				break // what comes next comes behind the rest of it
			}
		}
		low = high + 1
		p.next = max(p.next, min(low, max(counted, 1)))
	}
	if len(events) > 0 {
		l.tracer.writer.Events(p.track, events)
	}
}

// append adds the events of an operation, and says whether all of it is there. under says that it is under way.
func (l *laneTrace) append(events []trace.Event, p *tracePart, epoch uint64, lines []byte, under bool,
) (_ []trace.Event, whole bool) {
	before := p.early[epoch]
	if !under {
		delete(p.early, epoch)
	} else if before == nil {
		before = map[int]early{}
		if p.early == nil {
			p.early = map[uint64]map[int]early{}
		}
		p.early[epoch] = before
	}
	line := l.ring.LineBytes()
	valid := func(block, place int) (r device.TraceRecord, ok bool) {
		r, ok = device.ParseTraceRecord(lines[(p.first+block)*line+place*device.TraceRecordBytes:])
		return r, ok && r.Site <= uint8(trace.Placed) && r.Epoch == uint32(epoch)
	}
	blocks := 0 // that the launch had
	for b := range p.counts {
		if _, ok := valid(b, int(trace.Begin)); ok {
			blocks = b + 1
		}
	}
	whole = blocks > 0
	for _, b := range chosen(blocks) {
		begun, op := len(events), trace.NoOp
		var places []int                 // of the events
		unsure := uint64(math.MaxUint64) // when what was found once is from
		if r, ok := valid(b, int(trace.Begin)); ok {
			op = l.opOf(p, r.Detail)
		}
		for place := range device.TraceSites + 2*l.ring.Ranks {
			r, ok := valid(b, place)
			id := b<<16 | place
			was := before[id]
			if !ok || was.taken {
				continue
			}
			if under && was.TraceRecord != r {
				before[id] = early{TraceRecord: r}
				unsure, whole = min(unsure, r.Time), false
				continue
			}
			places = append(places, id)
			e := trace.Event{
				Time: r.Time, Epoch: l.generation<<40 | epoch, Op: op, Block: uint16(b), Peer: -1, Site: trace.Site(r.Site),
			}
			if e.Site == trace.Signalled || e.Site == trace.Arrived {
				e.Step = uint16(r.Detail)
			}
			if r.Peer != device.TraceNoPeer {
				e.Peer = int16(r.Peer)
			}
			events = append(events, e)
		}
		if _, ok := valid(b, int(trace.End)); !ok {
			whole = false
		}
		slices.SortStableFunc(events[begun:], func(a, b trace.Event) int {
			return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Site, b.Site))
		})
		// Events of a block are in order: what is younger than one that comes the next time comes with it.
		n := slices.IndexFunc(events[begun:], func(e trace.Event) bool { return e.Time > unsure })
		if n >= 0 {
			events = events[:begun+n]
		}
		for _, id := range places {
			if r := before[id]; under && r.Time <= unsure {
				before[id] = early{r.TraceRecord, true}
			}
		}
		events = p.inOrder(b, events, begun)
	}
	return events, whole
}

// inOrder sees to it that events of a block, from one on, are not older than those before. A record may be seen after
// a younger one.
func (p *tracePart) inOrder(block int, events []trace.Event, from int) []trace.Event {
	if p.last == nil {
		p.last = map[int]uint64{}
	}
	kept := events[:from]
	for _, e := range events[from:] {
		if e.Time < p.last[block] && e.Site == trace.Signalled {
			continue // what arrived would have been signalled later
		}
		e.Time = max(e.Time, p.last[block])
		p.last[block] = e.Time
		kept = append(kept, e)
	}
	return kept
}

// opOf is the index of an operation's name among those of the track.
func (l *laneTrace) opOf(p *tracePart, number uint8) uint32 {
	if id, ok := p.ops[number]; ok {
		return id
	}
	name := ""
	if l.words != nil && l.words.Operation != nil {
		name = l.words.Operation(uint32(number))
	}
	id := l.tracer.writer.Op(p.track, cmp.Or(name, l.op))
	p.ops[number] = id
	return id
}

// chosen are the blocks that become events, of so many: the same on all ranks.
func chosen(blocks int) []int {
	if blocks <= traceBlocks {
		return slices.Collect(func(yield func(int) bool) {
			for b := range blocks {
				if !yield(b) {
					return
				}
			}
		})
	}
	var some []int
	for i := range traceBlocks {
		some = append(some, i*(blocks-1)/(traceBlocks-1))
	}
	return some
}

// traced is the sources of a program, compiled to trace.
func traced(sources []Source) []Source {
	sources = slices.Clone(sources)
	for i, s := range sources {
		s.Defines = maps.Clone(s.Defines)
		if s.Defines == nil {
			s.Defines = map[string]string{}
		}
		s.Defines[device.TraceDefine] = "1"
		sources[i] = s
	}
	return sources
}
