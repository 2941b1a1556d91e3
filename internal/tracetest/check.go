// Package tracetest holds what tests of engines ask of their traces.
package tracetest

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/trace"
)

// Seen is what a trace has.
type Seen struct {
	Operations map[string]int // by the operation's name: on how many ranks' tracks it was seen, in all
	Sites      map[trace.Site]int
	Arrows     int // from a block that signalled to its like that saw it
}

// where is a block of an operation of a rank.
type where struct {
	lane  string
	epoch uint64
	block uint16
	rank  int
}

// Check holds traces of ranks to what every trace keeps: on each rank and in each block
// operations nest, between a beginning and an end, one behind the other, with numbers that grow; what arrived was
// signalled before, in the same step by the block of the same number; and nothing is lost. Where clocks show different
// times, only what one clock has timed was before or behind; what is left is for trace.Align to say.
func Check(files []*trace.File, sameTime bool) (Seen, error) {
	seen := Seen{Operations: map[string]int{}, Sites: map[trace.Site]int{}}
	blocks, clocks := map[where][]trace.Event{}, map[where]string{}
	for _, f := range files {
		for _, t := range f.Tracks {
			if t.Clock == trace.ClockHost {
				continue
			}
			if t.Lost+t.Overwritten != 0 || f.Cut != "" {
				return seen, fmt.Errorf("rank %d, %s: %d lost, %s", t.Rank, t.Lane, t.Lost+t.Overwritten, f.Cut)
			}
			last := map[uint16]trace.Event{}
			for _, e := range t.Events {
				l, ok := last[e.Block]
				switch {
				case ok && (e.Epoch < l.Epoch || e.Time < l.Time):
					return seen, fmt.Errorf("rank %d, %s: %+v behind %+v", t.Rank, t.Lane, e, l)
				case (e.Site == trace.Begin) != (!ok || l.Epoch != e.Epoch), ok && l.Epoch != e.Epoch && l.Site != trace.End:
					return seen, fmt.Errorf("rank %d, %s: %+v, and behind it %+v", t.Rank, t.Lane, l, e)
				case e.Op == trace.NoOp || int(e.Op) >= len(t.Ops):
					return seen, fmt.Errorf("rank %d, %s: %+v has no name", t.Rank, t.Lane, e)
				}
				last[e.Block] = e
				seen.Sites[e.Site]++
				if e.Site == trace.Begin && e.Block == 0 {
					seen.Operations[t.Ops[e.Op]]++
				}
				w := where{t.Comm + " " + t.Lane, e.Epoch, e.Block, t.Rank}
				blocks[w], clocks[w] = append(blocks[w], e), t.Clock
			}
			for block, e := range last {
				if e.Site != trace.End {
					return seen, fmt.Errorf("rank %d, %s: block %d ends with %+v", t.Rank, t.Lane, block, e)
				}
			}
		}
	}
	for w, events := range blocks {
		for _, e := range events {
			if e.Site != trace.Arrived {
				continue
			}
			from := w
			from.rank = int(e.Peer)
			i := slices.IndexFunc(blocks[from], func(s trace.Event) bool {
				return s.Site == trace.Signalled && s.Step == e.Step && (s.Peer < 0 || int(s.Peer) == w.rank)
			})
			if i < 0 {
				return seen, fmt.Errorf("%+v: %+v, which its peer has not signalled: %+v", w, e, blocks[from])
			}
			if s := blocks[from][i]; s.Time > e.Time && (sameTime || clocks[from] == clocks[w]) {
				return seen, fmt.Errorf("%+v: %+v before %+v", w, e, s)
			}
			seen.Arrows++
		}
	}
	return seen, nil
}
