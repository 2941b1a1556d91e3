package host

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/engine/host/mirror"
)

// far is how rounds reach ranks of other hosts. A rank sends each other host what it publishes once: to one of its
// ranks, the keeper, whose mirror all ranks of that host read.
type far struct {
	mirrors *mirror.Mirrors
	comm    *weft.Comm
	ring    int // bytes
	pad     int // bytes
	ownAt   int // in a pad

	hosts   [][]int // live ranks, by host
	keepers []int   // by host: the rank that keeps this one's mirror; -1: this host, or none is live
	sent    [headers][]uint64

	filled int   // bytes of the next round's payload that are in the ring
	limits []cut // by host: the part of them that it needs

	sleep   func(most time.Duration) // until the network brings something
	showing [headers]uint64          // rounds with which own bytes are shown
	shown   [headers][][]mirror.Part // by host: these bytes
	shipped []uint64                 // by rank: the last item of the kind
	bytes   atomic.Uint64            // shipped
}

// cut is a part of a payload.
type cut struct {
	set      bool
	from, to int
}

// roundLines are enough for the rounds that may be underway, and those of operations that have failed.
const roundLines = 32

func newFar(ctx context.Context, comm *weft.Comm, c Config, ring, bytes int) (*far, error) {
	hosts := 0
	for r := range comm.Size() {
		hosts = max(hosts, comm.Host(r)+1)
	}
	f := &far{
		comm: comm, ring: ring, pad: bytes, ownAt: ringAt + ring,
		hosts: make([][]int, hosts), keepers: make([]int, hosts), limits: make([]cut, hosts),
	}
	for i := range f.sent {
		f.sent[i], f.shown[i] = make([]uint64, hosts), make([][]mirror.Part, hosts)
	}
	f.shipped = make([]uint64, comm.Size())
	var err error
	if f.mirrors, err = mirror.New(ctx, comm, "new "+c.Kind, bytes, roundLines+c.Lines); err != nil {
		return nil, err
	}
	f.sleep = f.mirrors.Sleep
	return f, nil
}

func (f *far) isFar(rank int) bool { return f.comm.Host(rank) != f.comm.Host(f.comm.Rank()) }

// own is what a rank of another host has shown this one of its own bytes.
func (f *far) own(rank int) []byte { return f.mirrors.Of(rank)[f.ownAt:f.pad] }

// here is the number of this rank's host.
func (f *far) here() int { return f.comm.Host(f.comm.Rank()) }

// keeper is the rank of a host that keeps another's mirror.
func (f *far) keeper(host, rank int) int {
	keepers := f.hosts[host]
	i, _ := slices.BinarySearch(f.hosts[f.comm.Host(rank)], rank)
	return keepers[i%len(keepers)]
}

// begin settles who keeps whose mirror among the ranks that are live.
func (f *far) begin(r *Rounds, op string) error {
	for h := range f.hosts {
		f.hosts[h], f.keepers[h], f.limits[h] = f.hosts[h][:0], -1, cut{}
	}
	for _, rank := range r.Live {
		h := f.comm.Host(rank)
		f.hosts[h] = append(f.hosts[h], rank)
	}
	self := f.comm.Rank()
	here := f.comm.Host(self)
	for h, ranks := range f.hosts {
		if h != here && len(ranks) > 0 {
			f.keepers[h] = f.keeper(h, self)
		}
		for _, rank := range ranks {
			if h != here {
				r.pads[rank] = newPad(f.mirrors.Kept(f.keeper(here, rank), rank)[:f.pad:f.pad], f.ring)
			}
		}
	}
	for i := range f.sent {
		clear(f.sent[i])
	}
	clear(f.shipped)
	f.filled = 0
	return f.mirrors.Settle(op)
}

// fill takes note of the next round's payload.
func (f *far) fill(n int) {
	f.filled = 0
	if n > inLineBytes {
		f.filled = n
	}
}

// publish shows the other hosts a round.
func (f *far) publish(r *Rounds, round uint64) {
	slot := int(round % headers)
	for h, keeper := range f.keepers {
		if keeper < 0 {
			continue
		}
		item := mirror.Item{Counter: slot * headerBytes, Bytes: 64 - channel.CounterBytes, Value: round}
		if f.filled > 0 {
			c := f.limits[h]
			if !c.set {
				c = cut{to: f.filled}
			}
			at := ringAt + int(*r.mine.at(round).offset())
			item.From, item.To = at+c.from, at+c.to
		}
		if f.showing[slot] == round {
			item.Parts = f.shown[slot][h]
		}
		f.sent[slot][h] = f.mirrors.Send(keeper, item)
		f.limits[h] = cut{}
	}
	f.filled = 0
	r.waiter.Say(r.Window.ID(), saidOf(round, false))
}

// saidOf is how far a rank has said what others wait for when it has published a round, or has shipped all that goes
// with it.
func saidOf(round uint64, shipped bool) uint64 {
	if shipped {
		return 2*round + 1
	}
	return 2 * round
}

// leaveTime is how long a rank waits for what a rank of another host has said before it left: that goes another way
// than the news, and by the mirrors' keepers.
const leaveTime = 2 * time.Second

// await waits until a round of all ranks has come, what this rank has said is on its way, and what it said two
// rounds before has completed: it may then fill the header of the next but one. As it waits it moves what it keeps
// for others.
func (f *far) await(ctx context.Context, r *Rounds, op string, round uint64, waits []int64) error {
	before := f.sent[(round-2)%headers]
	for _, peer := range r.Live {
		c := r.pads[peer].at(round).round
		done := func() bool { return c.Load() >= round }
		begun := time.Time{}
		if !done() {
			if r.tape != nil {
				r.tape.hand()
			}
			if waits != nil {
				begun = time.Now()
			}
		}
		err := f.untilShown(ctx, r, op, peer, saidOf(round, false), done)
		if !begun.IsZero() {
			waits[peer] += int64(time.Since(begun))
		}
		if err != nil {
			return err
		}
		if r.tape != nil {
			r.tape.sees(r, peer, round)
		}
	}
	for h, keeper := range f.keepers {
		if keeper < 0 || f.mirrors.Sent(keeper, before[h]) {
			continue
		}
		done := func() bool { return f.mirrors.Sent(keeper, before[h]) }
		if err := f.until(ctx, r, op, keeper, f.sleep, done); err != nil {
			return err
		}
	}
	for p := f.mirrors.Waits(); p >= 0; p = f.mirrors.Waits() {
		if err := f.until(ctx, r, op, p, f.sleep, func() bool { return f.mirrors.Waits() != p }); err != nil {
			return err
		}
	}
	return nil
}

// until waits as the Waiter does, and moves the mirrors.
func (f *far) until(ctx context.Context, r *Rounds, op string, peer int, sleep func(time.Duration),
	done func() bool,
) error {
	return f.untilPassed(ctx, r, op, peer, peer, 0, 0, sleep, done)
}

// untilShown is until for what a peer shows this host when it has said so much. Its keeper here passes it on.
func (f *far) untilShown(ctx context.Context, r *Rounds, op string, peer int, said uint64, done func() bool) error {
	if !f.isFar(peer) {
		return f.until(ctx, r, op, peer, time.Sleep, done)
	}
	keeper := f.keeper(f.here(), peer)
	if keeper == f.comm.Rank() {
		return f.until(ctx, r, op, peer, f.sleep, done)
	}
	// Nothing tells what another rank keeps.
	return f.untilPassed(ctx, r, op, peer, keeper, r.Window.ID(), said, time.Sleep, done)
}

func (f *far) untilPassed(ctx context.Context, r *Rounds, op string, peer, passer int,
	of, said uint64, sleep func(time.Duration), done func() bool,
) error {
	look := func() bool {
		f.mirrors.Pump()
		return done()
	}
	err := r.waiter.UntilPassed(ctx, op, peer, passer, of, said, sleep, func() bool {
		if look() {
			return true
		}
		_, lost := f.mirrors.Lost()
		return lost != nil
	})
	if errors.Is(err, weft.ErrLeft) && f.isFar(peer) {
		for end := time.Now().Add(leaveTime); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
			if look() {
				return nil
			}
		}
	}
	if err != nil {
		return r.Comm.Operations().Fail(err)
	}
	if rank, lost := f.mirrors.Lost(); lost != nil && !done() {
		return r.Comm.Operations().Unreachable(op, rank, lost)
	}
	return nil
}

// Limit makes a host get only bytes [from, to) of the payload that the next round has in the ring. Others get all
// of it. A host that needs none has an empty part.
func (r *Rounds) Limit(host, from, to int) {
	if r.far != nil {
		r.far.limits[host] = cut{true, from, to}
	}
}

// Hosts are the live ranks of each host, ascending; nil where all ranks share memory.
func (r *Rounds) Hosts() [][]int {
	if r.far == nil {
		return nil
	}
	return r.far.hosts
}

// Far says whether a rank is on another host, to which these rounds reach.
func (r *Rounds) Far(rank int) bool { return r.far != nil && r.far.isFar(rank) }

// Show makes a range of this rank's own bytes go to a host with the next round.
func (r *Rounds) Show(host, from, to int) {
	if r.far == nil || r.far.keepers[host] < 0 {
		return
	}
	f, slot := r.far, r.Next()%headers
	if f.showing[slot] != r.Next() {
		f.showing[slot] = r.Next()
		for h := range f.shown[slot] { // the round before has been sent: see await
			f.shown[slot][h] = f.shown[slot][h][:0]
		}
	}
	f.shown[slot][host] = append(f.shown[slot][host], mirror.Part{Offset: f.ownAt + from, Bytes: to - from})
}

// Shown is what a rank has shown this one's host of its own bytes; of a rank of this host it is all of them.
func (r *Rounds) Shown(rank int) []byte { return r.pads[rank].own }

// AwaitShown waits until what this rank showed with a round has left its memory: it may change.
func (r *Rounds) AwaitShown(ctx context.Context, op string, round uint64) error {
	f := r.far
	if f == nil || !r.numbers.Covers(round) || r.numbers.Last() >= round+headers {
		return nil
	}
	for h, keeper := range f.keepers {
		if keeper < 0 {
			continue
		}
		number := f.sent[round%headers][h]
		if err := f.until(ctx, r, op, keeper, f.sleep, func() bool { return f.mirrors.Sent(keeper, number) }); err != nil {
			return err
		}
	}
	return nil
}

// Keeper is the rank of a host to which this rank sends what all ranks of that host read; -1 where none is live.
func (r *Rounds) Keeper(host int) int { return r.far.keepers[host] }

// KeeperHere is the rank of this host that gets what a rank of another sends for all of it.
func (r *Rounds) KeeperHere(rank int) int { return r.far.keeper(r.far.here(), rank) }

// Ship tells a rank of another host a value of the counter at an offset of this rank's own bytes, with parts that it
// announces. Unlike what is told, rounds do not wait until it is on its way: [Rounds.AwaitTold] does. The parts may
// change when [Rounds.AwaitLeft] has returned, or AwaitShipped.
func (r *Rounds) Ship(rank, counter int, value uint64, parts []mirror.Part) {
	for i := range parts {
		r.far.bytes.Add(uint64(parts[i].Bytes))
	}
	r.far.shipped[rank] = r.far.mirrors.Send(rank, mirror.Item{
		Counter: r.far.ownAt + counter, Value: value, Parts: parts, Bulk: true,
	})
}

// Shipped is how many bytes this rank has shipped. Any goroutine may ask.
func (r *Rounds) Shipped() uint64 {
	if r.far == nil {
		return 0
	}
	return r.far.bytes.Load()
}

// AwaitShipped waits until all that was shipped has left this rank's memory.
func (r *Rounds) AwaitShipped(ctx context.Context, op string) error {
	f := r.far
	if f == nil {
		return nil
	}
	for _, rank := range r.Live {
		number := f.shipped[rank]
		if number == 0 || f.mirrors.Sent(rank, number) {
			continue
		}
		if err := f.until(ctx, r, op, rank, f.sleep, func() bool { return f.mirrors.Sent(rank, number) }); err != nil {
			return err
		}
	}
	return nil
}

// Tell shows a rank of another host the counter that begins at an offset of this rank's own bytes, which has been
// published with a value, so many bytes behind it, and a range of the own bytes. It returns the number by which
// [Rounds.Told] says whether the range may change.
func (r *Rounds) Tell(rank, counter, bytes int, value uint64, from, to int) uint64 {
	at := r.far.ownAt
	return r.far.mirrors.Send(rank, mirror.Item{
		Counter: at + counter, Bytes: bytes, Value: value, From: at + from, To: at + to,
	})
}

// Told says whether what a rank of another host was told has left this rank's memory.
func (r *Rounds) Told(rank int, number uint64) bool { return r.far.mirrors.Sent(rank, number) }

// Pump moves what goes to and comes from other hosts.
func (r *Rounds) Pump() {
	if r.far != nil {
		r.far.mirrors.Pump()
	}
}

// AwaitFar waits until something is true, for a peer, and moves what goes to and comes from other hosts.
func (r *Rounds) AwaitFar(ctx context.Context, op string, peer int, done func() bool) error {
	return r.far.until(ctx, r, op, peer, r.far.sleep, done)
}

// AwaitShowing is AwaitFar for what a rank ships with a round to this one's host, which another rank here may keep.
func (r *Rounds) AwaitShowing(ctx context.Context, op string, peer int, round uint64, done func() bool) error {
	return r.far.untilShown(ctx, r, op, peer, saidOf(round, true), done)
}

// ShippedAll says that this rank has shipped all that goes with the last round.
func (r *Rounds) ShippedAll() { r.waiter.Say(r.Window.ID(), saidOf(r.Last(), true)) }

// Lose says that a rank of another host cannot be written to any more: see [Rounds.AwaitFar], which then fails.
func (r *Rounds) Lose(rank int, cause error) { r.far.mirrors.Fail(rank, cause) }

// AwaitTold waits until all that other hosts are to be told is on its way.
func (r *Rounds) AwaitTold(ctx context.Context, op string) error {
	if r.far == nil {
		return nil
	}
	for p := r.far.mirrors.Busy(); p >= 0; p = r.far.mirrors.Busy() {
		if err := r.far.until(ctx, r, op, p, r.far.sleep, func() bool { return r.far.mirrors.Busy() != p }); err != nil {
			return err
		}
	}
	return nil
}
