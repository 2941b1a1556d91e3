// What holds a stream until the host has enqueued all that is timed, and the least that a kernel can
// cost.
#include "wait.cuh"

using namespace weft;

extern "C" __global__ void timing_empty() {
	wait_for_previous();
	let_next_start();
}

// timing_gate holds the stream until the host has enqueued all that is to be timed, and so keeps the
// host's part out of the time. It gives up silently after patience nanoseconds: then the time has
// the host's part in it, and is right otherwise.
extern "C" __global__ void timing_gate(const u32 *opened, u32 turn, u64 patience) {
	u64 start = nanoseconds();
	while ((int)(load_acquire_sys4(opened) - turn) < 0 && nanoseconds() - start < patience) pause(100);
}
