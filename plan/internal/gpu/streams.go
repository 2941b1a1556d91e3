package gpu

import (
	"maps"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/launch"
	plans "github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
	"github.com/weftgo/weft/port"
)

// stream is what a block of a rank pushes to a rank of another host, in the order of the block's operations.
type stream struct {
	from, block, to int
	number          int // of its channel, among those of the two ranks: odd ones lead to the higher rank
	pushes          []*push
}

// push is a part of an operation: data for a rank of another host, or a signal there, or both.
type push struct {
	stream  int // of traffic
	site    spec.Site
	at      int  // of the operation's destinations; -1: it carries nothing
	out, in int  // where the data lies in the outbox of who pushes, and in the inbox of who gets it, in chunks
	end     int  // of all ends, that of the channel which a signal of the plan goes through; or -1
	signals bool // a signal goes behind it, and who gets it then lands all that has come
}

// traffic is what all ranks of a plan push to other hosts.
type traffic struct {
	streams       []stream
	pushes        map[spec.Site][]*push // of an operation, in its order
	outbox, inbox []int                 // chunks of each rank
}

// mostStreams is how many there may be from one rank to another.
const mostStreams = 128

// trafficOf finds what ranks on hosts push to each other; ends are those of all ranks.
func trafficOf(p *launch.Plan, ends []plans.End, host func(rank int) int) (*traffic, error) {
	n := len(p.File.Ranks)
	t := &traffic{pushes: make(map[spec.Site][]*push), outbox: make([]int, n), inbox: make([]int, n)}
	f := &finder{traffic: t, plan: p, host: host, users: make([]user, len(ends)), between: make(map[[2]int]int)}
	f.ports = make([][]int, n)
	for i, x := range ends {
		if x.Type == spec.Port {
			f.ports[x.Rank] = append(f.ports[x.Rank], i)
		}
	}
	for r := range p.File.Ranks {
		for b := range p.File.Ranks[r].Blocks {
			if err := f.block(r, b); err != nil {
				return nil, err
			}
		}
	}
	if err := f.single(); err != nil {
		return nil, err
	}
	return t, nil
}

// channels are those that plans of an engine share, of all ranks. They stay when a plan is given up.
type channels map[channelBetween]bool

// channelBetween is a channel by its ranks, the lower one first, and its number.
type channelBetween struct{ low, high, number int }

// with is the channels and those of another plan's streams. All ranks count those of all, so they refuse alike.
func (c channels) with(name string, streams []stream) (channels, error) {
	all, of := make(channels), make(map[int]int)
	maps.Copy(all, c)
	for _, s := range streams {
		all[channelBetween{min(s.from, s.to), max(s.from, s.to), s.number}] = true
	}
	for k := range all {
		of[k.low]++
		of[k.high]++
	}
	for _, r := range slices.Sorted(maps.Keys(of)) {
		if of[r] > port.MaxKernelChannels {
			return nil, weft.Unsupportedf("%s: blocks that push to rank %d, or from it, to other hosts would have %d channels, "+
				"with those of the plans before; an executor has %d a rank: give pushes to fewer blocks, or load the plan in "+
				"an executor of its own", name, r, of[r], port.MaxKernelChannels)
		}
	}
	return all, nil
}

// user says who pushes into a port that leads to another host.
type user struct {
	used, signals bool
	id, block     int       // the channel's, of the rank, and the first block
	other         spec.Site // of another block, if there is one
}

// single refuses a channel into which several blocks push, and signal: what a signal is behind would then depend on who
// comes first. Packets need no signals.
func (f *finder) single() error {
	for _, u := range f.users {
		if u.used && u.signals && u.other.Block != u.block {
			return weft.Unsupportedf("%s pushes into port channel %d, as block %d does, and there are signals; into one that "+
				"leads to another host a single block may push: give each block a channel of its own", f.plan.At(u.other), u.id,
				u.block)
		}
	}
	return nil
}

// finder is a search for traffic.
type finder struct {
	*traffic
	plan    *launch.Plan
	host    func(rank int) int
	ports   [][]int        // ends of each rank's ports, of all
	users   []user         // of each end
	between map[[2]int]int // streams from one rank to another
	open    []*push        // of the block: the last of each stream, if no signal is behind it
}

func (f *finder) block(r, b int) error {
	f.open = f.open[:0]
	streams := make(map[int]int) // by rank
	ops := f.plan.File.Ranks[r].Blocks[b].Ops
	for i := range ops {
		if err := f.op(streams, &ops[i], spec.Site{Rank: r, Block: b, Op: i, Inner: -1}); err != nil {
			return err
		}
		if ops[i].Kind != spec.Pipeline {
			continue
		}
		f.settle() // what is underway when a window begins, or ends, has a signal behind it
		for k := range ops[i].Ops {
			if err := f.op(streams, &ops[i].Ops[k], spec.Site{Rank: r, Block: b, Op: i, Inner: k}); err != nil {
				return err
			}
		}
		f.settle()
	}
	f.settle()
	return nil
}

// settle gives signals to what has none behind it.
func (f *finder) settle() {
	for _, p := range f.open {
		p.signals = true
	}
	f.open = f.open[:0]
}

// op finds what an operation pushes to other hosts: its data, and then its signals.
func (f *finder) op(streams map[int]int, op *spec.Op, site spec.Site) error {
	if op.Via != spec.Port {
		return nil
	}
	rank := &f.plan.File.Ranks[site.Rank]
	block := &rank.Blocks[site.Block]
	signals := op.Kind == spec.Signal || op.Kind == spec.PutWithSignal || op.Kind == spec.PutWithSignalAndFlush
	if signals || len(op.Dst) > 0 {
		for _, c := range op.Channels {
			id := block.Channel(op.Via, c)
			if !f.far(site.Rank, rank.Peers(op.Via)[id]) {
				continue
			}
			u := &f.users[f.ports[site.Rank][id]]
			if !u.used {
				*u = user{used: true, id: id, block: site.Block, other: site}
			}
			if u.other.Block == u.block {
				u.other = site
			}
			u.signals = u.signals || signals
		}
	}
	outs := make(map[spec.Place]int)
	for i, d := range op.Dst {
		to := rank.Remotes[block.Remote(op.Via, d.ID)].Rank
		if !f.far(site.Rank, to) {
			continue
		}
		src := op.Src[min(i, len(op.Src)-1)]
		out, shared := outs[src]
		if !shared {
			out = f.outbox[site.Rank]
			f.outbox[site.Rank] += d.Size
			outs[src] = out
		}
		p := &push{site: site, at: i, out: out, in: f.inbox[to], end: -1, signals: op.Slot(false, i)}
		f.inbox[to] += d.Size
		if err := f.add(streams, to, p); err != nil {
			return err
		}
	}
	if !signals {
		return nil
	}
	for _, c := range op.Channels {
		end := block.Channel(op.Via, c)
		to := rank.Peers(op.Via)[end]
		if !f.far(site.Rank, to) {
			continue
		}
		end = f.ports[site.Rank][end]
		if i := slices.IndexFunc(f.open, func(p *push) bool {
			return p.site == site && f.streams[p.stream].to == to
		}); i >= 0 { // it goes with the data
			f.open[i].end, f.open[i].signals = end, true
			f.open = slices.Delete(f.open, i, i+1)
			continue
		}
		if err := f.add(streams, to, &push{site: site, at: -1, end: end, signals: true}); err != nil {
			return err
		}
	}
	return nil
}

func (f *finder) far(a, b int) bool { return f.host(a) != f.host(b) }

// add adds a push to the stream to a rank.
func (f *finder) add(streams map[int]int, to int, p *push) error {
	n, known := streams[to]
	if !known {
		from := p.site.Rank
		k := f.between[[2]int{from, to}]
		if k == mostStreams {
			return weft.Unsupportedf("%s: more than %d blocks of rank %d push to rank %d, which is on another host; give the "+
				"pushes to fewer blocks", f.plan.Name, mostStreams, from, to)
		}
		f.between[[2]int{from, to}]++
		number := 2*k + 1
		if from > to {
			number++
		}
		n = len(f.streams)
		streams[to] = n
		f.streams = append(f.streams, stream{from: from, block: p.site.Block, to: to, number: number})
	}
	p.stream = n
	s := &f.streams[n]
	s.pushes = append(s.pushes, p)
	f.pushes[p.site] = append(f.pushes[p.site], p)
	f.open = slices.DeleteFunc(f.open, func(o *push) bool { return o.stream == n })
	if !p.signals {
		f.open = append(f.open, p)
	}
	return nil
}
