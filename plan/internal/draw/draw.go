// Package draw makes a picture of a plan: a row for every block, its operations along a line of time, and arrows
// from what a wait waits for. Time is that of a machine on which every operation takes a step and every message one
// more, so the picture shows what depends on what, and where blocks wait; it does not predict durations.
package draw

import (
	"fmt"
	"html"
	"io"
	"maps"
	"slices"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// event is a step at its time. It waits from begin to ready, and works from there to end.
type event struct {
	row               int
	step              *program.Step
	begin, ready, end float64
	never             bool   // it waits for what does not come
	lacks             string // and that is it
}

// message is something that another block waits for.
type message struct {
	from int // the event, or -1 for what is there from the start
	at   float64
}

// arrow leads from an event to one that waited for it.
type arrow struct{ from, to int }

// schedule runs a program on the machine of the picture.
type schedule struct {
	p        *program.Program
	events   []event
	arrows   []arrow
	pc       []int
	clock    []float64
	counters map[int][]message
	taken    map[int]int
	slots    map[[2]int]message // by memory and cell
	barriers map[[3]int][]int   // events, by rank, number and turn
	turns    map[[2]int]int     // of a block at a barrier
	hopes    []arrow            // from blocks that wait for ever to those that wait for them
}

// SVG draws a plan that [spec.File.Check] passes.
func SVG(w io.Writer, f *spec.File) error {
	shapes := program.Shapes(f)
	s := &schedule{
		p: program.Of(f, shapes[len(shapes)-1]), counters: make(map[int][]message), taken: make(map[int]int),
		slots: make(map[[2]int]message), barriers: make(map[[3]int][]int), turns: make(map[[2]int]int),
	}
	s.pc, s.clock = make([]int, len(s.p.Blocks)), make([]float64, len(s.p.Blocks))
	for i, value := range s.p.Semaphores {
		for range min(value, 1<<16) {
			s.counters[len(s.p.Ends)+i] = append(s.counters[len(s.p.Ends)+i], message{from: -1})
		}
	}
	for moved := true; moved; {
		moved = false
		for b := range s.p.Blocks {
			for s.pc[b] < len(s.p.Blocks[b].Steps) && s.step(b) {
				s.pc[b]++
				moved = true
			}
		}
	}
	last := slices.Max(append(slices.Clone(s.clock), 1))
	for b := range s.p.Blocks {
		if steps := s.p.Blocks[b].Steps; s.pc[b] < len(steps) {
			s.events = append(s.events, event{
				row: b, step: &steps[s.pc[b]], begin: s.clock[b], ready: last + 4, end: last + 4, never: true,
			})
		}
	}
	s.stuck()
	return s.write(w, last+4)
}

// stuck says what blocks that wait for ever lack, and which others that wait for ever would give it.
func (s *schedule) stuck() {
	at := make(map[int]int) // the event of a block
	for i := range s.events {
		if s.events[i].never {
			at[s.events[i].row] = i
		}
	}
	for _, b := range slices.Sorted(maps.Keys(at)) {
		e := &s.events[at[b]]
		lacks, gives := s.lack(e.step)
		e.lacks = lacks
		for _, other := range slices.Sorted(maps.Keys(at)) {
			steps := s.p.Blocks[other].Steps[s.pc[other]:]
			if other != b && slices.ContainsFunc(steps, func(o program.Step) bool { return gives(other, &o) }) {
				s.hopes = append(s.hopes, arrow{at[other], at[b]})
			}
		}
	}
}

// lack is what a step waits for, in words, and which steps of other blocks would give it.
func (s *schedule) lack(step *program.Step) (text string, gives func(block int, o *program.Step) bool) {
	switch step.Op.Kind {
	case spec.Barrier:
		return fmt.Sprintf("other blocks at barrier %d", step.Op.Barrier), func(b int, o *program.Step) bool {
			meets := func(o *program.Step) bool {
				return o.Op.Kind == spec.Barrier && o.Op.Barrier == step.Op.Barrier
			}
			block := &s.p.Blocks[b]
			return block.Rank == step.Site.Rank && meets(o) && !meets(&block.Steps[s.pc[b]])
		}
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire:
		for i, c := range step.Counters {
			c = s.p.Awaited(step, c)
			if s.taken[c] < len(s.counters[c]) {
				continue
			}
			text = fmt.Sprintf("a release of semaphore %d", append(step.Op.Semaphores, step.Op.Channels...)[i])
			if c < len(s.p.Ends) {
				text = fmt.Sprintf("a signal of rank %d", s.p.Ends[c].To)
			}
			return text, func(_ int, o *program.Step) bool {
				return slices.ContainsFunc(o.Counters, func(k int) bool { return s.p.Signalled(o, k) == c })
			}
		}
	}
	for _, r := range step.Src {
		for c := r.From; r.Slot && c < r.To; c++ {
			if _, there := s.slots[[2]int{r.Memory, c}]; there {
				continue
			}
			return s.p.Name(r), func(_ int, o *program.Step) bool {
				return slices.ContainsFunc(o.Dst, func(d program.Range) bool {
					return d.Slot && d.Memory == r.Memory && d.From <= c && c < d.To
				})
			}
		}
	}
	return "what does not come", func(int, *program.Step) bool { return false }
}

// step schedules a block's next step, unless what it waits for is not scheduled yet.
func (s *schedule) step(b int) bool {
	block := &s.p.Blocks[b]
	step := &block.Steps[s.pc[b]]
	n := len(s.events)
	e := event{row: b, step: step, begin: s.clock[b], ready: s.clock[b]}
	var from []message
	switch step.Op.Kind {
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire:
		need := make(map[int]int)
		for _, c := range step.Counters {
			c = s.p.Awaited(step, c)
			at := s.taken[c] + need[c]
			if at >= len(s.counters[c]) {
				return false
			}
			from = append(from, s.counters[c][at])
			need[c]++
		}
		for c, k := range need {
			s.taken[c] += k
		}
	case spec.Barrier:
		return s.barrier(b, step)
	default:
		for _, r := range step.Src {
			if !r.Slot || step.Op.Kind == spec.PutPackets {
				continue
			}
			for c := r.From; c < r.To; c++ {
				m, there := s.slots[[2]int{r.Memory, c}]
				if !there {
					return false
				}
				from = append(from, m)
			}
		}
	}
	for _, m := range from {
		e.ready = max(e.ready, m.at)
	}
	s.point(from, n, b)
	e.end = e.ready + 1
	if step.Op.Kind == spec.Nop {
		e.end = e.ready + 0.25
	}
	s.events = append(s.events, e)
	s.clock[b] = e.end
	s.send(step, message{n, e.end + 1})
	return true
}

// point adds arrows from other blocks' events.
func (s *schedule) point(from []message, to, row int) {
	seen := make(map[int]bool)
	for _, m := range from {
		if m.from >= 0 && !seen[m.from] && s.events[m.from].row != row {
			seen[m.from] = true
			s.arrows = append(s.arrows, arrow{m.from, to})
		}
	}
}

// send tells what a step signals and which packets it writes.
func (s *schedule) send(step *program.Step, m message) {
	for _, c := range step.Counters {
		if to := s.p.Signalled(step, c); to >= 0 {
			s.counters[to] = append(s.counters[to], m)
		}
	}
	for _, r := range step.Dst {
		for c := r.From; r.Slot && c < r.To; c++ {
			if _, there := s.slots[[2]int{r.Memory, c}]; !there {
				s.slots[[2]int{r.Memory, c}] = m
			}
		}
	}
}

// barrier meets other blocks of the rank.
func (s *schedule) barrier(b int, step *program.Step) bool {
	rank, id := s.p.Blocks[b].Rank, step.Op.Barrier
	turn := s.turns[[2]int{b, id}]
	key := [3]int{rank, id, turn}
	at := slices.IndexFunc(s.barriers[key], func(e int) bool { return s.events[e].row == b })
	if at < 0 {
		at = len(s.barriers[key])
		s.barriers[key] = append(s.barriers[key], len(s.events))
		s.events = append(s.events, event{
			row: b, step: step, begin: s.clock[b], ready: s.clock[b], end: s.clock[b], never: true,
		})
	}
	if len(s.barriers[key]) < step.Op.Blocks {
		return false
	}
	s.turns[[2]int{b, id}]++
	e := &s.events[s.barriers[key][at]]
	e.never = false
	for _, other := range s.barriers[key] {
		if s.events[other].begin > e.ready {
			e.ready = s.events[other].begin
		}
	}
	e.end = e.ready + 1
	s.clock[b] = e.end
	return true
}

const (
	left, top     = 150, 70
	row, gap, bar = 22, 10, 16
	widest        = 6000
)

// colours of operations, and what they stand for.
var colours = []struct{ name, colour string }{
	{"data", "#4878a8"},
	{"packets", "#6a9f58"},
	{"signals", "#b07aa1"},
	{"waits and barriers", "#e0b040"},
	{"waiting", "#f3d9d9"},
	{"waits for ever", "#c0392b"},
}

func colour(e *event) string {
	switch kind := e.step.Op.Kind; {
	case e.never:
		return colours[5].colour
	case kind == spec.Signal, kind == spec.RelaxedSignal, kind == spec.SemRelease:
		return colours[2].colour
	case kind.Syncs():
		return colours[3].colour
	case kind.Packets():
		return colours[1].colour
	}
	return colours[0].colour
}

// write writes the picture. Its rows are the blocks, with room between ranks.
func (s *schedule) write(w io.Writer, last float64) error {
	scale := min(60, (widest-left-20)/last)
	x := func(t float64) float64 { return left + t*scale }
	y := func(b int) int { return top + b*row + s.p.Blocks[b].Rank*gap }
	height := top + len(s.p.Blocks)*row + len(s.p.File.Ranks)*gap + 20
	out := &printer{w: w}
	out.print(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" `+
		`font-family="sans-serif" font-size="11">`+"\n",
		max(x(last)+20, 620), height)
	out.print(`<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" ` +
		`orient="auto"><path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>` + "\n")
	out.print(`<rect width="100%%" height="100%%" fill="#fff"/>` + "\n")
	out.print(`<text x="10" y="22" font-size="15">%s: %s on %d ranks</text>`+"\n", html.EscapeString(s.p.File.Name),
		html.EscapeString(s.p.File.Collective), len(s.p.File.Ranks))
	at := 10
	for _, c := range colours {
		out.print(`<rect x="%d" y="34" width="11" height="11" fill="%s"/><text x="%d" y="44">%s</text>`+"\n",
			at, c.colour, at+15, c.name)
		at += 30 + 7*len(c.name)
	}
	for b := range s.p.Blocks {
		out.print(`<text x="10" y="%d">rank %d, block %d</text><path d="M%d %d H%.0f" stroke="#ddd"/>`+"\n",
			y(b)+12, s.p.Blocks[b].Rank, s.p.Blocks[b].ID, left, y(b)+bar/2, x(last))
	}
	for i := range s.events {
		s.box(out, &s.events[i], x, y)
	}
	for _, a := range s.arrows {
		from, to := &s.events[a.from], &s.events[a.to]
		out.print(`<path d="M%.1f %d L%.1f %d" stroke="#666" fill="none" marker-end="url(#head)"/>`+"\n",
			x(from.end), y(from.row)+bar/2, x(to.ready), y(to.row)+bar/2)
	}
	for i, a := range s.hopes {
		from, to := &s.events[a.from], &s.events[a.to]
		at := x(last) - float64(8+6*(i%4)) // apart from each other, where all of them wait
		out.print(`<path d="M%.1f %d L%.1f %d" stroke="#7b241c" stroke-dasharray="3 2" fill="none" `+
			`marker-end="url(#head)"/>`+"\n", at, y(from.row)+bar/2, at, y(to.row)+bar/2)
	}
	for i := range s.events {
		s.label(out, &s.events[i], x, y) // over arrows
	}
	out.print("</svg>\n")
	return out.err
}

// box draws an event; pointing at it shows what it does.
func (s *schedule) box(out *printer, e *event, x func(float64) float64, y func(int) int) {
	out.print(`<g><title>%s</title>`, html.EscapeString(s.title(e)))
	if e.ready > e.begin {
		out.print(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`,
			x(e.begin), y(e.row), x(e.ready)-x(e.begin), bar, colours[4].colour)
	}
	from := e.ready
	if e.never {
		from = e.begin
	}
	width := max(x(e.end)-x(from)-1, 1)
	out.print(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`, x(from), y(e.row), width, bar, colour(e))
	out.print("</g>\n")
}

// label writes an operation's name into its box, if there is room, and what it lacks.
func (s *schedule) label(out *printer, e *event, x func(float64) float64, y func(int) int) {
	from := e.ready
	if e.never {
		from = e.begin
	}
	name := e.step.Op.Kind.String()
	if e.lacks != "" {
		name += ": " + e.lacks
	}
	room := x(e.end) - x(from) - 1
	if n := int(room / 6); len(name) > n && e.lacks != "" {
		name = e.step.Op.Kind.String() // the title has the rest
	}
	if room > float64(6*len(name)) && e.step.Op.Kind != spec.Nop {
		out.print(`<text x="%.1f" y="%d" fill="#fff" stroke="%s" stroke-width="3" paint-order="stroke" `+
			`pointer-events="none">%s</text>`+"\n", x(from)+3, y(e.row)+12, colour(e), html.EscapeString(name))
	}
}

// title is an operation in words.
func (s *schedule) title(e *event) string {
	text := fmt.Sprintf("%v (%v)", e.step.Site, e.step.Op.Kind)
	if e.step.Site.Inner >= 0 {
		text += fmt.Sprintf(", window %d", e.step.Iteration)
	}
	for _, r := range e.step.Src {
		text += "\nreads " + s.p.Name(r)
	}
	for _, r := range e.step.Dst {
		text += "\nwrites " + s.p.Name(r)
	}
	peers := make(map[string]bool)
	for _, c := range e.step.Counters {
		if kind := e.step.Op.Kind; kind == spec.SemAcquire || kind == spec.SemRelease {
			peers[fmt.Sprintf("\nsemaphore %d", e.step.Op.Semaphores)] = true
		} else {
			end := s.p.Ends[c]
			peers[fmt.Sprintf("\n%v channel %d, with rank %d", end.Type, end.ID, end.To)] = true
		}
	}
	for _, line := range slices.Sorted(maps.Keys(peers)) {
		text += line
	}
	if e.never {
		text += "\nwaits for what does not come"
		if e.lacks != "" {
			text += ": " + e.lacks
		}
	}
	return text
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
