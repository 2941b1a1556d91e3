// Package device is what kernels and the host have in common: the device headers, and the layout of
// what kernels leave in host memory.
//
// # Kernels of your own
//
// A kernel that talks to other GPUs includes weft.cuh, for which [Headers] goes into the
// kernel.Spec:
//
//	#include "weft.cuh"
//	using namespace weft;
//
//	struct Arguments { Group group; State *state; u32 *heard; };
//
//	extern "C" __global__ void hello(const __grid_constant__ Arguments a) {
//		Count count = *count_of(a.state, blockIdx.x);
//		u32 other = 1 - a.group.rank;
//		if (threadIdx.x == 0) {
//			u32 *there = (u32 *)a.group.window[other], *here = (u32 *)a.group.window[a.group.rank];
//			Wait wait(a.group, a.state, OP_BARRIER, count.epoch);
//			store_relaxed_sys4(there + count.turn, clean(mine));
//			u32 word = await4(wait, other, here + count.turn);
//			...
//		}
//		leave(a.state, count.epoch, count.turn, true);
//	}
//
// A kernel may as well stand in a namespace, or be a template's. Then the kernel.Spec's Kernels has
// its C++ name, and a module finds it by the cubin's Symbol of that name.
//
// The host fills a [Group] with every rank's part of a window, as the GPU that launches reaches it,
// and begins a [State], with a [Count] for each block behind it, in memory of that GPU: all zero
// but Timeout. Both live as long as launches do. The structs here have the fields of those in
// weft.cuh, at the same offsets. The package's example is the whole of it. Kernels that only
// compute need ptx.cuh at most: the program examples/moe has some, the products of a layer's
// experts, between the dispatch and the combine that bring the rows.
//
// # Rules
//
// Every wait is a Wait's: it ends when the value is there, after State.timeout, or when the abort
// word is set, and then says in the [Record] who waited for whom. What was awaited is to be used
// only if !wait.over. Nothing of a State runs after a wait gave up, until the host has cleared
// Stopped.
//
// All threads of all blocks come to leave, also after a wait that gave up, and all launches of a
// State have as many blocks. A kernel that waits for a peer must be placed as a whole at every
// rank: launch no more blocks than the SMs hold beside what else runs, and load all modules before.
//
// A value that is its own flag is sent by one store of 4, 8 or 16 bytes, never has a word of ones
// (clean sees to that), and goes where the receiver has put words of ones since the last one came.
// Of three places in turn, the one of the operation before is emptied: its sender writes it again
// two operations later, and must have heard from this rank since. Whatever else is sent goes before
// store_release_sys4, and is read after await_epoch.
//
// ptx.cuh names the instructions that this is made of, each below its section of the PTX ISA.
// Package emulate runs such kernels without a GPU and finds what a GPU would hide for long.
package device
