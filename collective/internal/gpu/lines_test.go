package gpu

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/internal/ranktest"
)

// hammerSource has a rank's warps store lines at the next rank, over and over, and look at those of the rank before:
// a word that is older than the flag that was seen before it was loaded is torn, and one that was loaded with the flag
// is early, which move_lines allows.
const hammerSource = `#include "wait.cuh"
using namespace weft;

struct Hammer {
	State *state;
	char *here, *there;
	u64 *torn, *early;
	u32 rounds, before;
	Group group;
};

__device__ bool older(uint4 v, bool flags, u32 seen) {
	return v.x < seen || v.y < seen || (!flags && (v.z < seen || v.w < seen));
}

extern "C" __global__ void __launch_bounds__(128) hammer(const __grid_constant__ Hammer a) {
	u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * 16, lane = threadIdx.x & 31, last = lane | 7;
	bool flags = lane == last, over = false;
	for (u32 n = 1; n <= a.rounds && !over; n++) {
		store_line(a.there + at, make_uint4(n, n, n, flags ? 0 : n));
		Wait wait(a.group, a.state, 1, n);
		for (u32 seen = 0; !over && __any_sync(~0u, seen < n);) {
			uint4 v = load_relaxed_sys16(a.here + at);
			seen = __shfl_sync(~0u, v.z, last);
			if (older(v, flags, seen)) atomicAdd(a.early, 1);
			if (older(load_relaxed_sys16(a.here + at), flags, seen)) atomicAdd(a.torn, 1);
			over = __any_sync(~0u, seen < n && !wait.more(a.before, n, seen)) != 0;
		}
	}
	if (over) atomicAdd(a.torn, 1ull << 32);
}`

type hammerArgs struct {
	state          cuda.Pointer
	here, there    uint64
	torn, early    cuda.Pointer
	rounds, before uint32
	group          device.Group
}

// hammer stores lines at the next rank, and fails if one of those that come is torn.
func hammer(rounds int) func(ctx context.Context, r *rank) error {
	return func(ctx context.Context, r *rank) error {
		gpu, ranks, me := r.comm.Device().Context(), r.comm.Size(), r.comm.Rank()
		counts := r.memory.Pointer()
		source := enginegpu.Source{Extern: []string{"hammer"}, Spec: kernel.Spec{
			Name: "hammer", Source: hammerSource, Headers: device.Headers(), Arch: r.comm.Device().Arch(),
		}}
		l := enginegpu.Launch[hammerArgs]{}
		if err := r.load(ctx, into(&l, source, cuda.LaunchConfig{Block: cuda.Dim{X: 128}}, hammerArgs{
			state: r.lane.Local(0), here: uint64(r.window.Pointer()), torn: counts, early: counts.Add(8),
			there: uint64(r.window.PeerPointer((me + 1) % ranks)), before: uint32((me + ranks - 1) % ranks),
			rounds: uint32(rounds), group: r.group,
		})); err != nil {
			return err
		}
		if err := errors.Join(gpu.Upload(r.window.Pointer(), make([]byte, memoryBytes)),
			gpu.Upload(counts, make([]byte, 16)), r.comm.Operations().VerifySame(ctx, "test", "zeros", nil)); err != nil {
			return err
		}
		l.SetGrid(cuda.Dim{X: uint32(r.blocks)})
		if err := errors.Join(l.Start(r.comm.Device().Stream()), r.comm.Wait(ctx, nil)); err != nil {
			return err
		}
		got := make([]byte, 16)
		if err := gpu.Download(got, counts); err != nil {
			return err
		}
		n := (*[2]uint64)(unsafe.Pointer(&got[0]))
		if n[0] != 0 {
			return fmt.Errorf("%d torn lines of %d rounds, %d early", n[0], rounds, n[1])
		}
		return nil
	}
}

func TestLinesArriveWholeOnEmulatedGPUs(t *testing.T) {
	g := ranktest.Emulated(t, cudatest.Config{}, emulate.Options{Seed: 1})
	run(t, g, 2, smallStaging, hammer(20))
}

// TestLL128LinesArriveWholeOnGPUs is what WEFT_LL128=1 relies on, between any two GPUs of the machine.
func TestLL128LinesArriveWholeOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { run(t, g, ranks, smallStaging, hammer(300_000)) })
	}
}
