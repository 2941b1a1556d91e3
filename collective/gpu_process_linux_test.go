package collective

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// gpuMember is a rank on a GPU, in a process of its own, that repeats one operation.
type gpuMember struct {
	comm   *weft.Comm
	group  *Group
	memory *cuda.Memory
}

type gpuMemberArgs struct {
	ID     string
	GPUs   processes.GPUs
	Kind   Collective
	Own    bool // an algorithm of the test's own
	Times  int
	Masked []int
}

func (m *gpuMember) Do(r *processes.Rank, c processes.Command) (any, error) {
	var a gpuMemberArgs
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch c.Do {
	case "join":
		return nil, m.join(ctx, r, a)
	case "repeat":
		for range a.Times {
			if err := m.once(ctx, a.Kind, a.Own); err != nil {
				return nil, err
			}
		}
		return nil, m.sum(ctx)
	case "multicast":
		return nil, m.multicast(ctx, a.Times)
	case "mask":
		return nil, m.comm.SetMask(ctx, a.Masked...)
	case "close":
		return nil, errors.Join(m.group.Close(), m.memory.Close(), m.comm.Close())
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

func (m *gpuMember) join(ctx context.Context, r *processes.Rank, a gpuMemberArgs) (err error) {
	if m.comm, err = r.JoinOnGPU(a.ID, a.GPUs, weft.WithDeadline(gpuDeadline)); err != nil {
		return err
	}
	if m.memory, err = m.comm.Device().Context().Alloc(64 << 10); err != nil {
		return err
	}
	var own []Algorithm
	if a.Own {
		own = ownAlgorithms()
	}
	m.group, err = New(ctx, m.comm, Options{
		Staging: gpuStaging, SMs: 4, DTypes: []weft.DType{weft.Int32}, Algorithms: own,
	})
	return err
}

// once is an operation without a look at its result.
func (m *gpuMember) once(ctx context.Context, kind Collective, own bool) error {
	const count = 500
	if kind == PointToPoint {
		return m.messages(ctx)
	}
	c := gpuCase{kind: kind, dtype: weft.Int32, count: count}
	call, _, _, _ := c.call(m.comm.Rank(), m.comm.Size(), m.memory.Pointer())
	if own {
		call.Algorithm, call.Extras = "test/gather", map[string]uintptr{"counter": 0}
	}
	return m.group.Do(ctx, nil, call)
}

// messages go round the live ranks, in both directions: short ones one way, long ones the other.
func (m *gpuMember) messages(ctx context.Context) error {
	next := func(step int) int {
		r := m.comm.Rank()
		for {
			if r = (r + step + m.comm.Size()) % m.comm.Size(); !m.comm.Masked(r) {
				return r
			}
		}
	}
	of := func(at, n int) weft.Tensor { return weft.DeviceTensor(m.memory.Pointer().Add(at), weft.Int8, n) }
	return m.group.Batch(ctx, nil, func(b *Batch) error {
		b.Send(of(0, 100), next(1))
		b.Recv(of(1000, 100), next(-1))
		b.Send(of(2000, 6000), next(-1))
		b.Recv(of(30_000, 6000), next(1))
		return nil
	})
}

// sum reduces the numbers of the live ranks.
func (m *gpuMember) sum(ctx context.Context) error {
	device, at := m.comm.Device().Context(), m.memory.Pointer()
	raw := binary.LittleEndian.AppendUint32(nil, uint32(m.comm.Rank()+1))
	x := weft.DeviceTensor(at, weft.Int32, 1)
	if err := errors.Join(device.Upload(at, raw), m.group.AllReduce(ctx, nil, x, x, weft.Sum),
		device.Download(raw, at)); err != nil {
		return err
	}
	want := uint32(0)
	for r := range m.comm.Size() {
		if !m.comm.Masked(r) {
			want += uint32(r + 1)
		}
	}
	if got := binary.LittleEndian.Uint32(raw); got != want {
		return fmt.Errorf("the sum is %d, want %d", got, want)
	}
	return nil
}

// killedOnGPUs kills a rank while all make an operation again and again: the others say which one at once,
// and go on without it.
func killedOnGPUs(t *testing.T, emulated bool) {
	const size, victim = 3, 1
	gpus := processes.GPUs{Emulated: emulated, Dir: t.TempDir()}
	kinds := []Collective{AllReduce, AllToAllV, Broadcast}
	if emulate.Everything() || !emulated {
		kinds = kindsOnGPUs()
	}
	kinds = append(kinds, PointToPoint)
	for i, kind := range append(kinds, AllGather) {
		own, name := i == len(kinds), kind.String()
		if own {
			name = "a user's " + name
		}
		t.Run(name, func(t *testing.T) {
			crew := processes.Start(t, "gpu-member", size)
			args := gpuMemberArgs{ID: crew.ID(), GPUs: gpus, Kind: kind, Own: own, Times: 20}
			crew.Must([]int{0, 1, 2}, "join", args)
			crew.Must([]int{0, 1, 2}, "repeat", args)
			args.Times = 1 << 30
			for r := range size {
				crew.Tell(r, "repeat", args)
			}
			time.Sleep(50 * time.Millisecond)
			crew.Kill(victim)
			survivors := slices.DeleteFunc([]int{0, 1, 2}, func(r int) bool { return r == victim })
			for r, a := range crew.Answers(survivors) {
				if a.Peer != victim || a.Cause != "died" {
					t.Errorf("rank %d after the death of %d: %q (%s, rank %d)", r, victim, a.Err, a.Cause, a.Peer)
				}
			}
			args.Masked, args.Times = []int{victim}, 20
			crew.Must(survivors, "mask", args)
			crew.Must(survivors, "repeat", args)
			crew.Must(survivors, "close", args)
		})
	}
}

func TestKilledRankOnEmulatedGPUs(t *testing.T) {
	emulate.Need(t)
	killedOnGPUs(t, true)
}

// TestKilledRankOnGPUs is the same on real ones.
func TestKilledRankOnGPUs(t *testing.T) {
	ranktest.Real(t)
	killedOnGPUs(t, false)
}

// multicast gathers so many times through a window that reaches all ranks at once.
func (m *gpuMember) multicast(ctx context.Context, times int) error {
	const part = 1000
	w, err := m.comm.Alloc(ctx, part*m.comm.Size())
	if err != nil {
		return err
	}
	own := weft.DeviceTensor(w.Pointer().Add(m.comm.Rank()*part), weft.Int8, part)
	all := weft.DeviceTensor(w.Pointer(), weft.Int8, part*m.comm.Size())
	got := make([]byte, all.Bytes())
	for i := range times {
		number := func(rank int) byte { return byte(10*i + rank) }
		err := m.comm.Device().Context().Upload(w.Pointer().Add(m.comm.Rank()*part), slices.Repeat(
			[]byte{number(m.comm.Rank())}, part))
		if err := errors.Join(err, m.group.Do(ctx, nil, Call{
			Collective: AllGather, In: own, Out: all, Symmetric: true, Algorithm: "all-gather/multicast",
		}), m.comm.Device().Context().Download(got, w.Pointer())); err != nil {
			return err
		}
		for k, b := range got {
			if b != number(k/part) {
				return fmt.Errorf("time %d, byte %d is %d", i, k, b)
			}
		}
		if err := m.group.Barrier(ctx, nil); err != nil { // before the next upload
			return err
		}
	}
	return w.Close()
}

// TestMulticastBetweenProcesses: ranks of processes make a group of each other's GPUs.
func TestMulticastBetweenProcesses(t *testing.T) {
	emulate.Need(t)
	t.Setenv("WEFT_MULTICAST", "1")
	crew := processes.Start(t, "gpu-member", 2)
	args := gpuMemberArgs{
		ID: crew.ID(), GPUs: processes.GPUs{Emulated: true, Dir: t.TempDir()}, Times: 5,
	}
	for _, do := range []string{"join", "multicast", "multicast", "close"} {
		crew.Must([]int{0, 1}, do, args)
	}
}
