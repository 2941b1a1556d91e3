package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// gpuMessage is a message of a test, which all ranks know.
type gpuMessage struct {
	from, to, number int
	dtype            weft.DType
	count            int
	shifts           [2]int // bytes by which its tensors are off their alignment: the sent one, the received one
}

func (m *gpuMessage) String() string {
	return fmt.Sprintf("message %d, %d %v from rank %d to %d, shifts %v", m.number, m.count, m.dtype, m.from, m.to,
		m.shifts)
}

func (m *gpuMessage) bytes() []byte {
	b := messageFor(m.from, m.to, m.number, m.count*m.dtype.Size())
	if m.number%5 == 0 { // what is sent looks like nothing
		for i := range b {
			b[i] = 0xFF
		}
	}
	return b
}

// gpuMessages are the messages of a round, with this rank's tensors.
type gpuMessages struct {
	all      []gpuMessage
	tensors  [2][]weft.Tensor // by message: what this rank sends, and receives
	base     cuda.Pointer
	receives [][2]int // where they begin and end, by message
	size     int
}

// place lays out what this rank sends and receives, from base on.
func (r *gpuRank) place(all []gpuMessage, base cuda.Pointer) (*gpuMessages, error) {
	p := &gpuMessages{all: all, base: base, receives: make([][2]int, len(all)), size: 32}
	me := r.comm.Rank()
	for side := range p.tensors {
		p.tensors[side] = make([]weft.Tensor, len(all))
		for i := range all {
			m := &all[i]
			if me != [2]int{m.from, m.to}[side] {
				continue
			}
			at, n := p.size+m.shifts[side], m.count*m.dtype.Size()
			p.tensors[side][i] = weft.DeviceTensor(base.Add(at), m.dtype, m.count)
			if side == 1 {
				p.receives[i] = [2]int{at, at + n}
			}
			p.size = (at + n + 32 + 15) &^ 15
		}
	}
	if int(base-r.base())+p.size > gpuMemory {
		return nil, fmt.Errorf("%d bytes of messages", p.size)
	}
	return p, nil
}

// content is the memory before, or after.
func (p *gpuMessages) content(after bool) []byte {
	b := bytes.Repeat([]byte{0xA5}, p.size)
	for i := range p.all {
		if t := p.tensors[0][i]; t.Shape != nil {
			copy(b[int(t.Pointer()-p.base):], p.all[i].bytes())
		}
		if t := p.tensors[1][i]; after && t.Shape != nil {
			copy(b[p.receives[i][0]:], p.all[i].bytes())
		}
	}
	return b
}

func (r *gpuRank) upload(p *gpuMessages) error {
	return r.write(p.base, p.content(false))
}

// arrived compares what was received, and all around it.
func (r *gpuRank) arrived(p *gpuMessages) error {
	got, want := make([]byte, p.size), p.content(true)
	if err := r.read(got, p.base); err != nil || bytes.Equal(got, want) {
		return err
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	for k, at := range p.receives {
		if i >= at[0] && i < at[1] {
			return fmt.Errorf("%v: byte %d is %#x, want %#x", &p.all[k], i-at[0], got[i], want[i])
		}
	}
	return fmt.Errorf("byte %d, between messages, is %#x, want %#x", i, got[i], want[i])
}

// mixedTypes are those of which the kernels are loaded.
var mixedTypes = []weft.DType{weft.BFloat16, weft.Int32}

// How a rank makes the calls of a round.
const (
	inBatch = iota // all in one
	inCalls        // one after the other
)

// exchange makes this rank's calls.
func (r *gpuRank) exchange(ctx context.Context, s *weft.Stream, p *gpuMessages, how int) error {
	var b Batch
	for i := range p.all {
		m := &p.all[i]
		send, receive := p.tensors[0][i], p.tensors[1][i]
		own := m.from == m.to
		if send.Shape != nil {
			if how == inCalls && !own {
				if err := r.Send(ctx, s, send, m.to); err != nil {
					return fmt.Errorf("%v: %w", m, err)
				}
			} else {
				b.Send(send, m.to)
			}
		}
		if receive.Shape != nil {
			if how == inCalls && !own {
				if err := r.Recv(ctx, s, receive, m.from); err != nil {
					return fmt.Errorf("%v: %w", m, err)
				}
			} else {
				b.Recv(receive, m.from)
			}
		}
	}
	if len(b.transfers) == 0 {
		return nil
	}
	return r.Batch(ctx, s, func(to *Batch) error {
		to.transfers = append(to.transfers, b.transfers...)
		return nil
	})
}

// messageSizes of smallest rings: none, one vector, around a cell, around a short message, around chunks, and
// as many as take a ring several times.
var messageSizes = []int{
	0, 1, 2, 15, 16, 17, 100, 495, 496, 497, 512, 767, 768, 769, 1000, 1024, 3000, 4096, 4097, 8193, 20_000,
}

// anyMessages is a round of messages, the same on every rank whose generator is at the same place.
func anyMessages(order *rand.Rand, ranks, most int) (all []gpuMessage) {
	types := []weft.DType{weft.Uint8, weft.BFloat16, weft.Float32, weft.Float64, weft.Int64, weft.Bool, weft.Float8E4M3}
	for i := range 1 + order.IntN(most) {
		m := gpuMessage{
			from: order.IntN(ranks), to: order.IntN(ranks), number: order.IntN(1 << 20), dtype: types[order.IntN(len(types))],
			shifts: [2]int{order.IntN(17) * order.IntN(2), order.IntN(17) * order.IntN(2)},
		}
		m.count = messageSizes[order.IntN(len(messageSizes))] / m.dtype.Size()
		m.number += i
		all = append(all, m)
	}
	return all
}

// ofRound says how a rank makes its calls: all batch, or one rank makes calls and the others batch, or all
// make calls in the order of the messages.
func ofRound(order *rand.Rand, me, ranks int) int {
	kind, one := order.IntN(3), order.IntN(ranks)
	if kind == 1 && one == me || kind == 2 {
		return inCalls
	}
	return inBatch
}

func TestMessagesOnEmulatedGPUs(t *testing.T) {
	sizes, rounds := []int{2, 3}, 25
	if emulate.Everything() {
		sizes, rounds = []int{1, 2, 3, 4, 5}, 50
	}
	for _, ranks := range sizes {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			o := Options{Staging: gpuStaging, SMs: 4, DTypes: mixedTypes}
			p := plan{seed: uint64(ranks), ops: 2 * rounds, messages: 2, types: mixedTypes}
			onGPUs(t, emulatedKernels(t, ranks), ranks, o, mixed(p))
		})
	}
}

// TestMessagesOnGPUs is the same on real ones.
func TestMessagesOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			o := Options{Staging: gpuStaging, SMs: 4, DTypes: mixedTypes}
			onGPUs(t, g, ranks, o, mixed(plan{seed: uint64(ranks), ops: 2000, messages: 2, types: mixedTypes}))
		})
	}
}

func TestMessageGraphsOnEmulatedGPUs(t *testing.T) {
	ops := 60
	if emulate.Everything() {
		ops = 400
	}
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: mixedTypes}
	onGPUs(t, emulatedKernels(t, 3), 3, o, mixed(plan{seed: 11, ops: ops, messages: 2, graphs: true, types: mixedTypes}))
}

// TestMessageGraphsOnGPUs is the same on real ones.
func TestMessageGraphsOnGPUs(t *testing.T) {
	o := Options{Staging: gpuStaging, SMs: 4, DTypes: mixedTypes}
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			p := plan{seed: 11, ops: 10_000, messages: 2, graphs: true, types: mixedTypes}
			onGPUs(t, ranktest.Real(t), ranks, o, mixed(p))
		})
	}
}

// manyMessages: a batch that is too long for a launch, against calls and against another batch; and one that
// is too long.
func manyMessages(ctx context.Context, r *gpuRank) error {
	const messages = 300
	for round := range 3 {
		var all []gpuMessage
		for i := range messages {
			all = append(all, gpuMessage{
				from: i % 2, to: 1 - i%2, number: i, dtype: weft.Uint8, count: (i * 37) % 900 * (i % 3),
				shifts: [2]int{i % 4, i % 2},
			})
		}
		p, err := r.place(all, r.base())
		if err != nil {
			return err
		}
		how := inBatch
		if round == 1+r.comm.Rank() {
			how = inCalls
		}
		if err := errors.Join(r.upload(p), r.exchange(ctx, nil, p, how), r.arrived(p)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	err := r.Batch(ctx, nil, func(b *Batch) error {
		for range 5000 {
			b.Send(r.tensorOf(0, weft.Uint8, 1), 1-r.comm.Rank())
		}
		return nil
	})
	if !errors.Is(err, weft.ErrUnsupported) {
		return fmt.Errorf("5000 messages: %w", err)
	}
	return r.check(ctx, gpuCase{kind: AllGather, dtype: weft.Int8, count: 70})
}

func TestManyMessagesOnEmulatedGPUs(t *testing.T) {
	onGPUs(t, emulatedKernels(t, 2), 2, Options{Staging: gpuStaging, SMs: 2}, manyMessages)
}

// TestManyMessagesOnGPUs is the same on real ones.
func TestManyMessagesOnGPUs(t *testing.T) {
	onGPUs(t, ranktest.Real(t), 2, Options{Staging: gpuStaging, SMs: 2}, manyMessages)
}

// messagesDiffer: a message of another length or type is an error on both sides, which names both.
func messagesDiffer(t *testing.T, g *ranktest.GPUs) {
	of := func(at int, d weft.DType, n int) func(*gpuRank) weft.Tensor {
		return func(r *gpuRank) weft.Tensor { return r.tensorOf(at, d, n) }
	}
	for _, c := range []struct {
		send, receive [2]int // type and number of elements
	}{
		{[2]int{int(weft.Float32), 5}, [2]int{int(weft.Float32), 6}},
		{[2]int{int(weft.Float32), 5}, [2]int{int(weft.Int32), 5}},
		{[2]int{int(weft.Float32), 0}, [2]int{int(weft.Float32), 1}},
		{[2]int{int(weft.Uint8), 1}, [2]int{int(weft.Uint8), 0}},
		{[2]int{int(weft.Uint8), 100_000}, [2]int{int(weft.Uint8), 1}}, // more than there is room for
		{[2]int{int(weft.Uint8), 1}, [2]int{int(weft.Uint8), 100_000}},
		{[2]int{int(weft.Int64), 20_000}, [2]int{int(weft.Int64), 20_001}},
	} {
		for _, behind := range []int{0, 3} {
			t.Run(fmt.Sprint(c, behind), func(t *testing.T) {
				onGPUs(t, g, 2, Options{Staging: gpuStaging, SMs: 2}, func(ctx context.Context, r *gpuRank) error {
					me := r.comm.Rank()
					sent := of(0, weft.DType(c.send[0]), c.send[1])(r)
					received := of(1<<20, weft.DType(c.receive[0]), c.receive[1])(r)
					// A rank must not fail while another makes its group.
					if err := r.host.Barrier(ctx, nil); err != nil {
						return err
					}
					err := r.Batch(ctx, nil, func(b *Batch) error {
						for i := range behind {
							same := of(2<<20+2048*i, weft.Int16, 600)(r)
							if me == 0 {
								b.Send(same, 1)
							} else {
								b.Recv(same, 0)
							}
						}
						if me == 0 {
							b.Send(sent, 1)
						} else {
							b.Recv(received, 0)
						}
						return nil
					})
					words := []string{
						fmt.Sprintf("receives %d %v", c.receive[1], weft.DType(c.receive[0])),
						fmt.Sprintf("sends %d %v", c.send[1], weft.DType(c.send[0])),
					}
					peer, ok := errors.AsType[*weft.PeerError](err)
					if !errors.Is(err, weft.ErrMismatch) || !ok || peer.Rank != 1-me ||
						!strings.Contains(err.Error(), words[0]) || !strings.Contains(err.Error(), words[1]) {
						return fmt.Errorf("%w, not %q", err, words)
					}
					return nil
				})
			})
		}
	}
}

func TestMessagesDifferOnEmulatedGPUs(t *testing.T) { messagesDiffer(t, emulatedGPUs(t, 2)) }

// TestMessagesDifferOnGPUs is the same on real ones.
func TestMessagesDifferOnGPUs(t *testing.T) { messagesDiffer(t, ranktest.Real(t)) }

// messageWithoutPeer: waits for a rank that makes no call end at the deadline, and name it; the ranks go on
// after SetMask, with it or without.
func messageWithoutPeer(t *testing.T, g *ranktest.GPUs) {
	const ranks, absent = 3, 2
	o := Options{Staging: gpuStaging, SMs: 4}
	onGPUs(t, g, ranks, o, func(context.Context, *gpuRank) error { return nil }) // compiles the kernels
	calls := []struct {
		name string
		add  func(r *gpuRank, b *Batch)
	}{
		{"send", func(r *gpuRank, b *Batch) { b.Send(r.tensorOf(0, weft.Int8, 1), absent) }},
		{"send", func(r *gpuRank, b *Batch) { b.Send(r.tensorOf(0, weft.Int8, 200_000), absent) }},
		{"receive", func(r *gpuRank, b *Batch) { b.Recv(r.tensorOf(0, weft.Int8, 0), absent) }},
		{"batch", func(r *gpuRank, b *Batch) {
			b.Send(r.tensorOf(0, weft.Int8, 300), 1-r.comm.Rank())
			b.Recv(r.tensorOf(1000, weft.Int8, 300), 1-r.comm.Rank())
			b.Recv(r.tensorOf(4000, weft.Int8, 30_000), absent)
		}},
	}
	withDeadline(t, g, ranks, time.Second, o, func(ctx context.Context, r *gpuRank) error {
		me := r.comm.Rank()
		for i, c := range calls {
			if me != absent {
				err := r.Batch(ctx, nil, func(b *Batch) error { c.add(r, b); return nil })
				late, ok := errors.AsType[*weft.PeerError](err)
				if !ok || late.Rank != absent || !errors.Is(err, weft.ErrTimeout) || !strings.Contains(err.Error(), c.name) {
					return fmt.Errorf("call %d without rank %d: %w", i, absent, err)
				}
			}
			if err := errors.Join(r.host.Barrier(ctx, nil), r.comm.SetMask(ctx)); err != nil {
				return err
			}
			if err := mixed(plan{seed: uint64(i), ops: 3, messages: 2, types: mixedTypes})(ctx, r); err != nil {
				return fmt.Errorf("after call %d: %w", i, err)
			}
		}
		// The host's barrier: a rank must not be masked while it still waits.
		if err := r.host.Barrier(ctx, nil); err != nil || me == absent {
			return err
		}
		if err := r.comm.SetMask(ctx, absent); err != nil {
			return err
		}
		if err := r.Send(ctx, nil, r.tensorOf(0, weft.Int8, 1), absent); !errors.Is(err, weft.ErrMasked) {
			return fmt.Errorf("to a masked rank: %w", err)
		}
		all := []gpuMessage{
			{from: 0, to: 1, number: 5, dtype: weft.Int8, count: 700},
			{from: 1, to: 0, number: 6, dtype: weft.Int8, count: 7000},
		}
		p, err := r.place(all, r.base())
		if err != nil {
			return err
		}
		return errors.Join(r.upload(p), r.exchange(ctx, nil, p, inBatch), r.arrived(p))
	})
}

func TestMessageWithoutPeerOnEmulatedGPUs(t *testing.T) { messageWithoutPeer(t, emulatedGPUs(t, 3)) }

// TestMessageWithoutPeerOnGPUs is the same on real ones.
func TestMessageWithoutPeerOnGPUs(t *testing.T) { messageWithoutPeer(t, ranktest.Real(t)) }

// TestMessagesOver4GiBOnGPUs: a message of more bytes than 32 bits count, whose end is no whole vector.
func TestMessagesOver4GiBOnGPUs(t *testing.T) {
	const size, piece = 4<<30 + 5, 16 << 20
	onGPUs(t, ranktest.Real(t), 2, Options{SMs: 16}, func(ctx context.Context, r *gpuRank) error {
		m, err := r.comm.Device().Context().Alloc(size + 16)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		me, device, block := r.comm.Rank(), r.comm.Device().Context(), make([]byte, piece)
		pieces := func(f func(at cuda.Pointer, number byte, n int) error) error {
			for at := 0; at < size; at += piece {
				if err := f(m.Pointer().Add(at), byte(at/piece%251), min(piece, size-at)); err != nil {
					return err
				}
			}
			return nil
		}
		err = pieces(func(at cuda.Pointer, number byte, n int) error {
			for i := range block {
				block[i] = byte(i>>12) ^ number ^ byte(i) | byte(me)<<7
			}
			return device.Upload(at, block[:n])
		})
		// A rank that allocates waits for kernels of ranks on the same GPU.
		if err := errors.Join(err, r.host.Barrier(ctx, nil)); err != nil {
			return err
		}
		x := weft.DeviceTensor(m.Pointer(), weft.Uint8, size)
		if me == 0 {
			return r.Send(ctx, nil, x, 1)
		}
		if err := r.Recv(ctx, nil, x, 0); err != nil {
			return err
		}
		return pieces(func(at cuda.Pointer, number byte, n int) error {
			if err := device.Download(block[:n], at); err != nil {
				return err
			}
			for i, b := range block[:n] {
				if b != byte(i>>12)^number^byte(i) {
					return fmt.Errorf("byte %d of piece %d is %#x", i, number, b)
				}
			}
			return nil
		})
	})
}
