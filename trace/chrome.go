package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// ChromeOptions are those of [Trace.Chrome].
type ChromeOptions struct {
	// Blocks gives every block a row of its own. Without it an operation lasts from its first block's beginning to its
	// last block's end, and a site is passed when the last block has.
	Blocks bool
}

// Chrome writes the trace as JSON for ui.perfetto.dev and chrome://tracing. Processes are ranks, rows are lanes. A
// slice is an operation, in it are slices from site to site, named by the site that ends each. Arrows go from what a
// rank published to where a peer saw it.
func (t *Trace) Chrome(to io.Writer, o ChromeOptions) error {
	c := &chrome{w: bufio.NewWriterSize(to, 1<<16), t: t, blocks: o.Blocks}
	c.text(`{"displayTimeUnit":"ns","otherData":{"start_unix_ns":"` + strconv.FormatInt(t.Start, 10) + `"},`)
	c.text(`"traceEvents":[`)
	c.names()
	for n, l := range t.Lanes {
		l.operations(func(o *operation) { c.operation(n, o) })
	}
	c.text("\n]}\n")
	if c.err == nil {
		c.err = c.w.Flush()
	}
	if c.err != nil {
		return fmt.Errorf("trace: %w", c.err)
	}
	return nil
}

type chrome struct {
	w      *bufio.Writer
	t      *Trace
	blocks bool
	err    error
	b      []byte // of one event
	some   bool

	processes map[*File]int
	arrows    arrows
	sorted    []Event            // by block
	ways      map[*Event][]arrow // of the operation, by what was published and by what was seen
	number    int                // of arrows before
}

func (c *chrome) text(s string) {
	if c.err == nil {
		_, c.err = c.w.WriteString(s)
	}
}

// begin begins an event of a kind.
func (c *chrome) begin(kind string, process, row int) {
	c.b = c.b[:0]
	if c.some {
		c.b = append(c.b, ',')
	}
	c.some = true
	c.b = append(c.b, "\n{\"ph\":\""...)
	c.b = append(c.b, kind...)
	c.b = append(c.b, `","pid":`...)
	c.b = strconv.AppendInt(c.b, int64(process), 10)
	c.b = append(c.b, `,"tid":`...)
	c.b = strconv.AppendInt(c.b, int64(row), 10)
}

func (c *chrome) end() {
	c.b = append(c.b, '}')
	if c.err == nil {
		_, c.err = c.w.Write(c.b)
	}
}

func (c *chrome) string(key, value string) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // of a string
	}
	c.b = append(append(append(append(c.b, ',', '"'), key...), `":`...), raw...)
}

func (c *chrome) integer(key string, value int64) {
	c.b = append(append(append(c.b, ',', '"'), key...), `":`...)
	c.b = strconv.AppendInt(c.b, value, 10)
}

// micros appends nanoseconds as microseconds.
func (c *chrome) micros(key string, ns int64) {
	c.b = append(append(append(c.b, ',', '"'), key...), `":`...)
	if ns < 0 {
		c.b = append(c.b, '-')
		ns = -ns
	}
	c.b = strconv.AppendInt(c.b, ns/1000, 10)
	c.b = append(c.b, '.', byte('0'+ns/100%10), byte('0'+ns/10%10), byte('0'+ns%10))
}

func (c *chrome) meta(what string, process, row int, name string) {
	c.begin("M", process, row)
	c.string("name", what)
	c.b = append(c.b, `,"args":{"name":`...)
	raw, _ := json.Marshal(name)
	c.b = append(append(c.b, raw...), '}')
	c.end()
}

// rowOf is the number of a block's row, or that of all.
const rowBlocks = 1 << 16

func rowOf(lane int, block uint16) int { return (lane+1)*rowBlocks + int(block) }

// names names processes and rows.
func (c *chrome) names() {
	c.processes = map[*File]int{}
	for i, f := range c.t.Files {
		c.processes[f] = i
		c.meta("process_name", i, 0, fmt.Sprintf("rank %d (%s, process %d)", f.Rank, f.Host, f.PID))
		c.begin("M", i, 0)
		c.string("name", "process_sort_index")
		c.b = append(c.b, `,"args":{"sort_index":`...)
		c.b = append(strconv.AppendInt(c.b, int64(i), 10), '}')
		c.end()
	}
	for n, l := range c.t.Lanes {
		for _, track := range l.Tracks {
			name := l.Name
			if track.Comm != track.File.Comm {
				name = fmt.Sprintf("%s of communicator %s, rank %d", l.Name, l.Comm, track.Rank)
			}
			p := c.processes[track.File]
			if !c.blocks {
				c.meta("thread_name", p, rowOf(n, 0), name)
				continue
			}
			seen := map[uint16]bool{}
			for i := range track.Events {
				if b := track.Events[i].Block; !seen[b] {
					seen[b] = true
					c.meta("thread_name", p, rowOf(n, b), fmt.Sprintf("%s, block %d", name, b))
				}
			}
		}
	}
}

// operation writes what the ranks did in an operation.
func (c *chrome) operation(lane int, o *operation) {
	if c.ways == nil {
		c.ways = map[*Event][]arrow{}
	}
	clear(c.ways)
	c.arrows.of(o, func(w arrow) {
		c.ways[w.sent] = append(c.ways[w.sent], w)
		c.ways[w.seen] = append(c.ways[w.seen], w)
	})
	for _, p := range o.parts {
		if !c.blocks {
			c.spans(lane, o, p, p.events, 0)
			continue
		}
		c.sorted = append(c.sorted[:0], p.events...)
		slices.SortStableFunc(c.sorted, func(a, b Event) int { return cmp.Compare(a.Block, b.Block) })
		for from := 0; from < len(c.sorted); {
			to := from + 1
			for to < len(c.sorted) && c.sorted[to].Block == c.sorted[from].Block {
				to++
			}
			c.spans(lane, o, p, c.sorted[from:to], c.sorted[from].Block)
			from = to
		}
	}
	for _, p := range o.parts {
		process := c.processes[p.track.File]
		for i := range p.events {
			e := &p.events[i]
			for _, w := range c.ways[e] {
				row := rowOf(lane, 0)
				if c.blocks {
					row = rowOf(lane, e.Block)
				}
				kind, at := "s", e.Time
				if w.seen == e {
					kind = "f"
				}
				c.begin(kind, process, row)
				c.string("name", o.name())
				c.string("cat", "arrow")
				c.integer("id", int64(c.number+w.way))
				c.micros("ts", int64(at)-c.t.Start)
				if kind == "f" {
					c.string("bp", "e")
				}
				c.end()
			}
		}
	}
	c.number += len(c.ways)
}

// spans writes the slices of an operation on a row.
func (c *chrome) spans(lane int, o *operation, p part, events []Event, block uint16) {
	process, row := c.processes[p.track.File], rowOf(lane, block)
	last := &events[len(events)-1]
	for i := range events {
		if events[i].Site == End { // of the last block
			last = &events[i]
		}
	}
	from, to := int64(events[0].Time), int64(last.Time)
	name := part{p.track, events}.name()
	if name == "" {
		name = o.lane.Name
	}
	bytes := uint64(0)
	for i := range events {
		if events[i].Site == Begin {
			bytes = max(bytes, events[i].Bytes)
		}
	}
	c.begin("X", process, row)
	c.string("name", name)
	c.micros("ts", from-c.t.Start)
	c.micros("dur", to-from)
	c.b = append(c.b, `,"args":{"epoch":`...)
	c.b = strconv.AppendUint(c.b, o.epoch, 10)
	if bytes > 0 {
		c.b = strconv.AppendUint(append(c.b, `,"bytes":`...), bytes, 10)
	}
	if last.Site != End {
		c.b = append(c.b, `,"ended":false`...)
	}
	c.b = append(c.b, '}')
	c.end()
	at := from
	for i := range events {
		e := &events[i]
		if t := int64(e.Time); t > at && t <= to && e.Site != Begin {
			c.begin("X", process, row)
			what := e.Site.String()
			if e.Site == Arrived && e.Peer >= 0 {
				what = fmt.Sprintf("arrived from %d", e.Peer)
			}
			c.string("name", what)
			c.micros("ts", at-c.t.Start)
			c.micros("dur", t-at)
			c.b = append(c.b, `,"args":{"step":`...)
			c.b = append(strconv.AppendUint(c.b, uint64(e.Step), 10), '}')
			c.end()
			at = t
		}
	}
}
