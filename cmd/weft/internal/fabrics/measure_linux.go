package fabrics

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/port"
)

// Options say what to measure.
type Options struct {
	Provider string // of libfabric; empty: its first
	Source   string // the interface's address; empty: that by which the ranks reach each other
	Address  string // rank 0's
	Sizes    []int  // of streams
	Bursts   int
}

// signals that the two ranks use.
const (
	pingPong = 0
	ready    = 1
	channel  = 2
)

// depth is how many writes of a stream are underway at once.
const depth = 8

// bench is one rank's side.
type bench struct {
	ctx    context.Context
	meet   bootstrap.Bootstrap
	domain *fabric.Domain
	peer   *fabric.Peer
	remote fabric.Remote
	region *fabric.Region
	memory []byte
	o      Options
	turns  uint64
	pings  uint64
}

// Measure measures between this rank and the other one, both of which call it. Rank 0 gets rows as they
// are measured.
func Measure(ctx context.Context, meet bootstrap.Bootstrap, o Options, each func(Row) error) (err error) {
	if meet.Size() != 2 {
		return fmt.Errorf("%d ranks: want 2, which measure between them", meet.Size())
	}
	floor, err := newFloor(ctx, meet, o.Address)
	if err != nil {
		return err
	}
	defer floor.close()
	if o.Source == "" {
		o.Source = floor.local
	}
	b := &bench{ctx: ctx, meet: meet, o: o}
	if b.domain, err = fabric.Open(ctx, fabric.Options{
		Rank: meet.Rank(), Size: 2, Provider: o.Provider, Source: o.Source,
		Spin: time.Minute, // how fast a machine wakes a processor is not what is measured
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.domain.Close()) }()
	b.memory = make([]byte, 2*depth*max(slices.Max(o.Sizes), 4096))
	if b.region, err = b.domain.Register(b.memory, 0); err != nil {
		return err
	}
	if err := b.connect(); err != nil {
		return err
	}
	floors, err := floor.measure(b)
	if err != nil {
		return err
	}
	rows, err := b.rows()
	if err != nil {
		return err
	}
	caps := b.domain.Capabilities()
	for _, r := range append(floors, rows...) {
		r.Op, r.Provider, r.Library = "fabric", caps.Provider, caps.Library
		if r.Floor = floorOf(floors, r); r.Floor > 0 {
			r.Ratio = r.Floor / r.P50
		}
		if meet.Rank() == 0 {
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return b.meet.Barrier(ctx)
}

// floorOf is what the socket took for the same bytes; a write's completion is the way there and back.
func floorOf(floors []Row, r Row) float64 {
	for _, f := range floors {
		switch {
		case (r.What == Signal || r.What == Port) && f.What == Floor:
			return f.P50
		case (r.What == Write || r.What == Add) && f.What == Floor:
			return 2 * f.P50
		case r.What == Stream && f.What == Pipe && f.Bytes == r.Bytes:
			return f.P50
		}
	}
	return 0
}

// connect exchanges cards by the bootstrap.
func (b *bench) connect() error {
	other := 1 - b.meet.Rank()
	cards, err := b.meet.AllGather(b.ctx, b.domain.Card())
	if err != nil {
		return err
	}
	regions, err := b.meet.AllGather(b.ctx, b.region.Card())
	if err != nil {
		return err
	}
	if b.peer, err = b.domain.Connect(b.ctx, other, cards[other]); err != nil {
		return err
	}
	if b.remote, err = b.peer.Region(regions[other]); err != nil {
		return err
	}
	return b.meet.Barrier(b.ctx)
}

func (b *bench) rows() (rows []Row, err error) {
	add := func(r Row, e error) {
		if err == nil {
			rows, err = append(rows, r), e
		}
	}
	add(b.single(Row{What: Write, Bytes: 8, Batch: 1}, 100, func() error {
		return b.peer.Write(b.ctx, b.remote, 0, b.region, 0, 8)
	}))
	add(b.signals())
	add(b.port())
	add(b.single(Row{What: Add, Bytes: 8, Batch: 1}, 100, func() error {
		return b.peer.Add(b.ctx, b.remote, 8, 1)
	}))
	add(b.stream(Row{What: Writes, Bytes: 8, Batch: 128}))
	for _, n := range b.o.Sizes {
		add(b.stream(Row{What: Stream, Bytes: n, Batch: depth}))
	}
	return rows, err
}

// single times operations of rank 0, each flushed; rank 1 waits for the end.
func (b *bench) single(r Row, each int, operation func() error) (Row, error) {
	for i := range b.memory[:64] {
		b.memory[i] = 0
	}
	if err := b.meet.Barrier(b.ctx); err != nil {
		return r, err
	}
	if b.meet.Rank() == 1 {
		err := b.peer.Await(b.ctx, ready, b.next())
		return r, errors.Join(err, b.check(&r, each*b.o.Bursts))
	}
	b.memory[7] = 0x5a
	var bursts [][]time.Duration
	for range b.o.Bursts {
		times := make([]time.Duration, each)
		for i := range times {
			begun := time.Now()
			if err := operation(); err != nil {
				return r, err
			}
			if err := b.peer.Flush(b.ctx); err != nil {
				return r, err
			}
			times[i] = time.Since(begun)
		}
		bursts = append(bursts, times)
	}
	r.set(bursts)
	b.next()
	err := b.peer.Signal(b.ctx, ready)
	return r, errors.Join(err, b.check(&r, 0))
}

func (b *bench) next() uint64 {
	b.turns++
	return b.turns
}

// check has rank 1 say whether what it received is right.
func (b *bench) check(r *Row, operations int) error {
	right := byte(1)
	if b.meet.Rank() == 1 {
		switch r.What {
		case Write:
			right = b.memory[7] / 0x5a
		case Add:
			right = 0
			if uint64(b.memory[8])|uint64(b.memory[9])<<8|uint64(b.memory[10])<<16 == uint64(operations) {
				right = 1
			}
		case Stream, Writes:
			right = b.same(r)
		}
	}
	all, err := b.meet.AllGather(b.ctx, []byte{right})
	if err == nil {
		r.Verified = all[1][0] == 1
	}
	return err
}

// signals times a ping-pong.
func (b *bench) signals() (Row, error) {
	r := Row{What: Signal, Batch: 1, Verified: true}
	if err := b.meet.Barrier(b.ctx); err != nil {
		return r, err
	}
	err := b.pingPong(&r, func() error { return b.peer.Signal(b.ctx, pingPong) }, func() error {
		b.pings++
		return b.peer.Await(b.ctx, pingPong, b.pings)
	})
	return r, errors.Join(err, b.meet.Barrier(b.ctx))
}

// pingPong times round trips: rank 0 begins, rank 1 answers.
func (b *bench) pingPong(r *Row, send, receive func() error) error {
	steps := []func() error{send, receive}
	if b.meet.Rank() == 1 {
		slices.Reverse(steps)
	}
	var bursts [][]time.Duration
	for range b.o.Bursts {
		times := make([]time.Duration, 100)
		for i := range times {
			begun := time.Now()
			for _, step := range steps {
				if err := step(); err != nil {
					return err
				}
			}
			times[i] = time.Since(begun) / 2
		}
		bursts = append(bursts, times)
	}
	r.set(bursts)
	return nil
}

// port times a ping-pong through the proxies of both ranks. Each put carries its number.
func (b *bench) port() (r Row, err error) {
	r = Row{What: Port, Bytes: 8, Batch: 1, Verified: true}
	proxy, err := port.New(port.Options{}, b.domain)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	const places = 128 // what comes, and what is put in turn
	bytes := make([]byte, 8*(1+places))
	memory, err := proxy.Register(bytes, 0)
	if err != nil {
		return r, err
	}
	other := 1 - b.meet.Rank()
	cards, err := b.meet.AllGather(b.ctx, proxy.Card())
	if err != nil {
		return r, err
	}
	memories, err := b.meet.AllGather(b.ctx, memory.Card())
	if err != nil {
		return r, err
	}
	peer, err := proxy.Connect(b.ctx, other, cards[other])
	if err != nil {
		return r, err
	}
	remote, err := peer.Memory(memories[other])
	if err != nil {
		return r, err
	}
	c, err := peer.Channel(port.ChannelOptions{Signal: channel}, remote, memory)
	if err != nil {
		return r, err
	}
	if err := b.meet.Barrier(b.ctx); err != nil {
		return r, err
	}
	var sent, received uint64
	err = b.pingPong(&r, func() error {
		at := 8 * (1 + int(sent%places))
		if at == 8 {
			if err := c.Flush(b.ctx); err != nil {
				return err
			}
		}
		sent++
		binary.LittleEndian.PutUint64(bytes[at:], sent)
		return c.PutWithSignal(b.ctx, 0, at, 8)
	}, func() error {
		received++
		err := c.Wait(b.ctx)
		r.Verified = r.Verified && binary.LittleEndian.Uint64(bytes) == received
		return err
	})
	return r, errors.Join(err, c.Flush(b.ctx), b.meet.Barrier(b.ctx))
}

// stream times batches of writes to different places, and a Flush at the end of each. A burst is one
// batch.
func (b *bench) stream(r Row) (Row, error) {
	places := min(r.Batch, len(b.memory)/2/r.Bytes)
	for i := range b.memory {
		b.memory[i] = byte(i*13 + i>>8)
	}
	half := len(b.memory) / 2
	if b.meet.Rank() == 1 {
		clear(b.memory[half:])
	}
	if err := b.meet.Barrier(b.ctx); err != nil {
		return r, err
	}
	if b.meet.Rank() == 1 {
		err := b.peer.Await(b.ctx, ready, b.next())
		return r, errors.Join(err, b.check(&r, 0))
	}
	var bursts [][]time.Duration
	for range b.o.Bursts {
		begun := time.Now()
		for i := range r.Batch {
			at := i % places * r.Bytes
			if err := b.peer.Write(b.ctx, b.remote, half+at, b.region, at, r.Bytes); err != nil {
				return r, err
			}
		}
		if err := b.peer.Flush(b.ctx); err != nil {
			return r, err
		}
		bursts = append(bursts, []time.Duration{time.Since(begun) / time.Duration(r.Batch)})
	}
	r.set(bursts)
	b.next()
	err := b.peer.Signal(b.ctx, ready)
	return r, errors.Join(err, b.check(&r, 0))
}

// same says whether the second half has the places of the first.
func (b *bench) same(r *Row) byte {
	half := len(b.memory) / 2
	n := min(r.Batch, half/r.Bytes) * r.Bytes
	if slices.Equal(b.memory[:n], b.memory[half:][:n]) {
		return 1
	}
	return 0
}
