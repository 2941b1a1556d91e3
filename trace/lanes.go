package trace

import (
	"cmp"
	"slices"
)

// Lane is the tracks of all ranks that run the same operations in the same order.
type Lane struct {
	Comm string // the communicator
	Name string
	Size int // ranks of the communicator
	// Tracks are by rank of the communicator. A rank may have none, or several.
	Tracks []*AlignedTrack
}

// AlignedTrack is a track whose events have times on the trace's axis. They are in the order of their epochs, and of
// times in each.
type AlignedTrack struct {
	*FileTrack
	File  *File
	clock int
}

// lanesOf sorts tracks by lane, and their events.
func lanesOf(files []*File) []*Lane {
	type key struct{ comm, name string }
	all := map[key]*Lane{}
	var lanes []*Lane
	for _, f := range files {
		for i := range f.Tracks {
			t := &f.Tracks[i]
			k := key{t.Comm, t.Lane}
			l := all[k]
			if l == nil {
				l = &Lane{Comm: t.Comm, Name: t.Lane, Size: t.Size}
				all[k] = l
				lanes = append(lanes, l)
			}
			l.Size = max(l.Size, t.Size)
			l.Tracks = append(l.Tracks, &AlignedTrack{FileTrack: t, File: f})
		}
	}
	for _, l := range lanes {
		slices.SortStableFunc(l.Tracks, func(a, b *AlignedTrack) int { return a.Rank - b.Rank })
	}
	return lanes
}

func sortEvents(events []Event) {
	order := func(a, b Event) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Time, b.Time)) }
	if !slices.IsSortedFunc(events, order) {
		slices.SortStableFunc(events, order)
	}
}

// operation is what the ranks recorded of one epoch of a lane.
type operation struct {
	lane  *Lane
	epoch uint64
	parts []part // by rank, of those that recorded something
	// blocks says whether there is any block but 0.
	blocks bool
}

type part struct {
	track  *AlignedTrack
	events []Event
}

// name is the operation's.
func (p part) name() string {
	for i := range p.events {
		if op := p.events[i].Op; op != NoOp {
			return p.track.Ops[op]
		}
	}
	return ""
}

func (o *operation) name() string {
	for _, p := range o.parts {
		if name := p.name(); name != "" {
			return name
		}
	}
	return o.lane.Name
}

// operations goes through a lane's operations in their order. What it gives is its own until the next.
func (l *Lane) operations(yield func(o *operation)) {
	at := make([]int, len(l.Tracks))
	o := &operation{lane: l}
	for {
		first, any := uint64(0), false
		for i, t := range l.Tracks {
			if at[i] < len(t.Events) && (!any || t.Events[at[i]].Epoch < first) {
				first, any = t.Events[at[i]].Epoch, true
			}
		}
		if !any {
			return
		}
		o.epoch, o.parts, o.blocks = first, o.parts[:0], false
		for i, t := range l.Tracks {
			from := at[i]
			for at[i] < len(t.Events) && t.Events[at[i]].Epoch == first {
				o.blocks = o.blocks || t.Events[at[i]].Block != 0
				at[i]++
			}
			if at[i] > from {
				o.parts = append(o.parts, part{t, t.Events[from:at[i]]})
			}
		}
		yield(o)
	}
}

// arrow is from what a rank published to where another one saw it.
type arrow struct {
	from, to         *AlignedTrack
	sent, seen       *Event
	lane             *Lane
	publication, way int // numbers of the publication in the operation, and of the arrow
}

// arrows finds the arrows of an operation. An arrival is of what its peer signalled in the same step and block. If that
// block signalled nothing there, it is of the earliest publication of the step that it can be of.
type arrows struct {
	blocks map[uint64][]publication // by rank, step and block: what was signalled
	steps  map[uint64][]publication // by rank and step
	free   [][]publication
	n      int
}

type publication struct {
	track *AlignedTrack
	event *Event
	n     int
}

// add adds a publication to a list.
func (a *arrows) add(to map[uint64][]publication, key uint64, p publication) {
	list, ok := to[key]
	if n := len(a.free); !ok && n > 0 {
		list, a.free = a.free[n-1], a.free[:n-1]
	}
	to[key] = append(list, p)
}

func (a *arrows) clear(lists map[uint64][]publication) {
	for _, list := range lists {
		a.free = append(a.free, list[:0])
	}
	clear(lists)
}

// first is the first of a list that is for a rank. Lists are in the order of times.
func first(list []publication, rank int) *publication {
	for i := range list {
		if to := list[i].event.Peer; to < 0 || int(to) == rank {
			return &list[i]
		}
	}
	return nil
}

func (a *arrows) of(o *operation, yield func(w arrow)) {
	if a.steps == nil {
		a.steps, a.blocks = map[uint64][]publication{}, map[uint64][]publication{}
	}
	a.clear(a.steps)
	a.clear(a.blocks)
	step := func(rank int, e *Event) uint64 { return uint64(rank)<<16 | uint64(e.Step) }
	block := func(rank int, e *Event) uint64 { return step(rank, e)<<16 | uint64(e.Block) }
	for _, site := range []Site{Signalled, Pushed} {
		for _, p := range o.parts {
			for i := range p.events {
				e := &p.events[i]
				if e.Site != site {
					continue
				}
				k := step(p.track.Rank, e)
				if list := a.steps[k]; site == Pushed && len(list) > 0 && list[0].event.Site == Signalled {
					continue
				}
				a.n++
				a.add(a.steps, k, publication{p.track, e, a.n})
				if site == Signalled && o.blocks {
					a.add(a.blocks, block(p.track.Rank, e), publication{p.track, e, a.n})
				}
			}
		}
	}
	way := 0
	for _, p := range o.parts {
		for i := range p.events {
			e := &p.events[i]
			if e.Site != Arrived || e.Peer < 0 || int(e.Peer) == p.track.Rank {
				continue
			}
			s := first(a.blocks[block(int(e.Peer), e)], p.track.Rank)
			if s == nil {
				s = first(a.steps[step(int(e.Peer), e)], p.track.Rank)
			}
			if s != nil {
				way++
				yield(arrow{s.track, p.track, s.event, e, o.lane, s.n, way})
			}
		}
	}
}
