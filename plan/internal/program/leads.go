package program

import (
	"slices"

	"github.com/weftgo/weft/plan/spec"
)

// Leads is how far pipelines of a plan may run ahead of others.
type Leads struct {
	// Windows are the leads that counters give: of a semaphore that begins at three, which a pipeline acquires, three
	// windows. Each is there once, in ascending order.
	Windows []int
	// Behind is the sum of what waits take before pipelines begin, beyond what is signalled by then.
	Behind int
	// Linked says that what follows a pipeline is awaited before or in another, so that leads may add up.
	Linked bool
	// Sum is that of all leads.
	Sum int
	// Farthest is the counter of the largest lead, or -1.
	Farthest int
	// Uneven are bytes of a chunk at which the pipelines of a counter signal another number than they await, a small
	// one for each counter. Pipelines of different shares of a chunk have the same number of windows up to some size.
	Uneven []int
}

// Most is the largest lead.
func (l *Leads) Most() int {
	if len(l.Windows) == 0 {
		return 0
	}
	return l.Windows[len(l.Windows)-1]
}

// span is a pipeline's part of a side of a counter.
type span struct {
	op     *spec.Op
	before int // signals or waits of the block before it, outside of pipelines
	rate   int // in a window
}

// side is the signals of a counter, or the waits.
type side struct {
	blocks  []int
	spans   []span
	outside int
	first   bool // some are before a pipeline of their block, or between two
	last    bool // some are behind a pipeline of their block, or between two
}

func (s *side) add(block int, op *spec.Op, before int) {
	if !slices.Contains(s.blocks, block) {
		s.blocks = append(s.blocks, block)
	}
	if op == nil {
		s.outside++
		return
	}
	if n := len(s.spans); n > 0 && s.spans[n-1].op == op {
		s.spans[n-1].rate++
		return
	}
	s.spans = append(s.spans, span{op, before, 1})
}

// LeadsOf looks at the counters that pipelines of a plan signal, or on which they wait.
func LeadsOf(f *spec.File) Leads {
	if newExtent([]*spec.File{f}).units == nil {
		return Leads{Farthest: -1}
	}
	p := Of(f, Shape{Chunk: 1, Align: 1, Window: func(uint64) int { return 1 << 30 }})
	n := len(p.Ends) + len(p.Semaphores)
	signals, waits := make([]side, n), make([]side, n)
	l := Leads{Farthest: -1}
	barriers := make(map[[2]int]*side)
	for b := range p.Blocks {
		l.block(p, b, signals, waits, barriers)
	}
	for _, m := range barriers {
		l.Linked = l.Linked || m.first && m.last
	}
	for c := range n {
		s, w := &signals[c], &waits[c]
		l.Linked = l.Linked || s.last && w.first
		if len(s.spans)+len(w.spans) == 0 {
			continue
		}
		initial := 0
		if c >= len(p.Ends) {
			initial = p.Semaphores[c-len(p.Ends)]
		}
		ahead, behind := lead(s, w, initial)
		l.Sum += ahead
		l.Behind += behind
		if ahead > l.Most() {
			l.Farthest = c
		}
		if at, there := slices.BinarySearch(l.Windows, ahead); ahead > 0 && !there {
			l.Windows = slices.Insert(l.Windows, at, ahead)
		}
		if at := uneven(s, w); at > 0 && !slices.Contains(l.Uneven, at) {
			l.Uneven = append(l.Uneven, at)
		}
	}
	return l
}

// share is how many windows a byte of a chunk is worth, and what pipelines of that share add to a counter in each.
type share struct{ chunks, unit, net int }

func (h share) windows(chunk int) int { return (h.chunks*chunk + h.unit - 1) / h.unit }

// uneven is a small size of a chunk at which pipelines signal a counter another number of times than they await it, or
// 0 if there is none that matters. Sums of windows change only where one of them begins.
func uneven(signals, waits *side) (least int) {
	var shares []share
	step := 0
	add := func(spans []span, sign int) {
		for _, p := range spans {
			step = int(divisor(p.op.Unit, uint64(step)))
			g := int(divisor(uint64(p.op.Chunks), p.op.Unit))
			h := share{p.op.Chunks / g, int(p.op.Unit) / g, sign * p.rate}
			at := slices.IndexFunc(shares, func(o share) bool { return o.chunks == h.chunks && o.unit == h.unit })
			if at < 0 {
				shares = append(shares, h)
				continue
			}
			shares[at].net += h.net
		}
	}
	add(signals.spans, 1)
	add(waits.spans, -1)
	differ := func(chunk int) bool {
		sum := 0
		for _, h := range shares {
			sum += h.net * h.windows(chunk)
		}
		return sum != 0
	}
	for _, begins := range shares {
		if begins.net == 0 {
			continue
		}
		for k := range MostAhead + 2 {
			chunk := begins.unit*k/begins.chunks + 1 // it has more than k windows
			if least > 0 && chunk >= least {
				break
			}
			if differ(chunk) {
				least = chunk
				break
			}
		}
	}
	if round := (least + step - 1) / max(step, 1) * step; differ(round) {
		return round // of units that it shares with the pipelines
	}
	return least
}

// block adds a block's signals and waits to those of their counters.
func (l *Leads) block(p *Program, b int, signals, waits []side, barriers map[[2]int]*side) {
	steps := p.Blocks[b].Steps
	end := len(steps) // behind the last pipeline
	for end > 0 && steps[end-1].Site.Inner < 0 {
		end--
	}
	given, taken := make(map[int]int), make(map[int]int)
	pipelines, last := 0, -1
	for i := range steps {
		s := &steps[i]
		var op *spec.Op
		if s.Site.Inner >= 0 {
			op = &p.File.Ranks[s.Site.Rank].Blocks[s.Site.Block].Ops[s.Site.Op]
			if s.Site.Op != last {
				pipelines, last = pipelines+1, s.Site.Op
			}
		}
		first, behind := i < end, pipelines > 1 || pipelines == 1 && op == nil
		if s.Op.Kind == spec.Barrier {
			key := [2]int{p.Blocks[b].Rank, s.Op.Barrier}
			if barriers[key] == nil {
				barriers[key] = new(side)
			}
			barriers[key].first = barriers[key].first || first
			barriers[key].last = barriers[key].last || behind
		}
		for _, c := range s.Counters {
			if to := p.Signalled(s, c); to >= 0 {
				signals[to].add(b, op, given[to])
				signals[to].last = signals[to].last || behind
				if op == nil {
					given[to]++
				}
			}
			if from := p.Awaited(s, c); from >= 0 {
				waits[from].add(b, op, taken[from])
				waits[from].first = waits[from].first || first
				if op == nil {
					taken[from]++
				}
			}
		}
	}
}

// lead is how many windows the waits of a counter may be ahead of its signals, and how many they are behind.
func lead(signals, waits *side, initial int) (ahead, behind int) {
	alike := len(signals.blocks) == 1 && len(waits.blocks) == 1 && len(signals.spans) == len(waits.spans)
	for i := 0; alike && i < len(waits.spans); i++ {
		alike = signals.spans[i].rate == waits.spans[i].rate
	}
	if !alike {
		return initial + signals.outside, waits.outside
	}
	for i, w := range waits.spans {
		n := initial + signals.spans[i].before - w.before
		ahead, behind = max(ahead, (n+w.rate-1)/w.rate), max(behind, -n)
	}
	return ahead, behind
}
