package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
)

// ring sends messages of so many bytes to the next rank, and receives those of the one before, together.
func (r *rank) ring(ctx context.Context, sizes []int) error {
	r.calls++
	ranks, me, c := r.comm.Size(), r.comm.Rank(), r.comm.Device().Context()
	next, last := (me+1)%ranks, (me+ranks-1)%ranks
	call := &spec.Call{Collective: spec.PointToPoint}
	var out, want []byte
	for i, n := range sizes {
		out, want = append(out, sentBy(me, r.calls, i, n)...), append(want, sentBy(last, r.calls, i, n)...)
	}
	at := 0
	for _, n := range sizes {
		of := func(base int) weft.Tensor {
			return weft.DeviceTensor(r.memory.Pointer().Add(base+at), weft.Uint8, n)
		}
		call.Transfers = append(call.Transfers, spec.Transfer{Tensor: of(0), Peer: next},
			spec.Transfer{Tensor: of(memoryBytes / 2), Peer: last, Receive: true})
		at += n
	}
	got := make([]byte, len(want))
	if err := errors.Join(c.Upload(r.memory.Pointer(), out), call.Check(me, ranks), r.Exchange(ctx, r.stream, call, nil),
		r.comm.Wait(ctx, r.stream), c.Download(got, r.memory.Pointer().Add(memoryBytes/2))); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("messages of %v bytes are others", sizes)
	}
	return nil
}

// sentBy is what a rank sends.
func sentBy(rank, number, i, n int) []byte { return call{}.input(rank, number<<8|i, n) }

// messagesFrom makes the next message of every pair that of a number, and so its cell and its chunk.
func (r *rank) messagesFrom(ctx context.Context, number uint64) error {
	type pair struct {
		messages, cells, chunks uint64
		_                       uint64
	}
	var of [2 * device.MaxRanks]pair
	for i := range of {
		of[i] = pair{messages: number - 1, cells: number - 1, chunks: number - 1}
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&of[0])), 2*r.ranks*pairBytes)
	return errors.Join(r.comm.Device().Context().Upload(cuda.Pointer(r.lane.Local(r.messages.pairs)), raw),
		r.comm.Operations().VerifySame(ctx, "test", "counted", nil))
}

// TestNumbersOfMessagesOnEmulatedGPUs: messages go on where the low bits of their numbers, which posts and cells have,
// begin anew, and where numbers do not fit 32 bits.
func TestNumbersOfMessagesOnEmulatedGPUs(t *testing.T) {
	for _, number := range []uint64{1<<18 - 5, 1<<31 - 5, 1<<32 - 5} {
		emulated(t, 3, func(ctx context.Context, r *rank) error {
			if err := r.messagesFrom(ctx, number); err != nil {
				return err
			}
			for i := range 12 {
				if err := r.ring(ctx, []int{100, 2000 * (i % 2), 5000, 0}); err != nil {
					return fmt.Errorf("from %d on, call %d: %w", number, i, err)
				}
			}
			return nil
		})
	}
}

// TestRings: all ranks lay out the same, within the memory that there is to be, however many they are.
func TestRings(t *testing.T) {
	for _, staging := range []int{64 << 10, 1 << 20, 64 << 20, 1 << 30} {
		for ranks := 1; ranks <= device.MaxRanks; ranks++ {
			r := ringsFor(staging, ranks)
			size := r.cells*cellBytes + r.chunks*r.chunkBytes
			if r.cells < 2 || r.chunks < 2 || size > leastRing && others(ranks)*size > min(staging/4, mostRings) {
				t.Errorf("staging memory of %d, %d ranks: %+v", staging, ranks, r)
			}
			for _, n := range []int{0, 1, r.shortBytes, r.shortBytes + 1, 1 << 33} {
				cells, chunks := r.of(n)
				room := cells*cellCapacity - vectorBytes
				if chunks > 0 {
					room = chunks * r.chunkBytes
				}
				if cells < 1 || cells > r.cells || room < n {
					t.Errorf("%+v: %d bytes take %d cells and %d chunks", r, n, cells, chunks)
				}
			}
		}
	}
}

// TestStaff: all ways have workers, and no more together than there is room for.
func TestStaff(t *testing.T) {
	for most := 1; most < 40; most++ {
		for n := range 12 {
			var m messages
			for i := range n {
				m.ways = append(m.ways, way{workers: 1 + uint32(i*i*7%90), messages: 2})
			}
			err := m.staff(most, &spec.Call{})
			if (err != nil) != (n > most) || err != nil && !errors.Is(err, weft.ErrUnsupported) {
				t.Fatalf("%d ways, room for %d: %v", n, most, err)
			}
			worker := uint32(0)
			for i, w := range m.ways {
				if err == nil && (w.worker != worker || w.workers < 1 || w.first != 2*uint32(i)) {
					t.Fatalf("%d ways, room for %d: way %d is %+v", n, most, i, w)
				}
				worker += w.workers
			}
			if err == nil && int(worker) > most {
				t.Fatalf("%d ways, room for %d: %d workers", n, most, worker)
			}
		}
	}
}

// TestMessagesAllocateNothingOnEmulatedGPUs: a call that is like one before takes no memory of the host.
func TestMessagesAllocateNothingOnEmulatedGPUs(t *testing.T) {
	emulated(t, 2, func(ctx context.Context, r *rank) error {
		call := &spec.Call{Collective: spec.PointToPoint}
		for i := range 100 {
			call.Transfers = append(call.Transfers, spec.Transfer{
				Tensor: weft.DeviceTensor(r.memory.Pointer(), weft.Uint8, 1+7*i), Peer: i % 2, Receive: i%3 == 0,
			})
		}
		var err error
		n := testing.AllocsPerRun(50, func() {
			err = errors.Join(err, r.plan(call))
			r.fill(call)
		})
		if n > 0 {
			return fmt.Errorf("%v allocations", n)
		}
		return err
	})
}
