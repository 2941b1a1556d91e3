// Readings of the GPU's clock for the host, which asks by a word of pinned memory and takes the time of the fastest
// answer. The kernel ends when it has answered so many times, when the host says so by a large number, or when it has
// lost patience: nothing waits for it, and it waits for nobody long.
#include "ptx.cuh"

namespace weft {

// Go: clockArgs.
struct ClockArgs {
	u64 *asked;	   // the number of the question
	u64 *answer;   // the time, its highest bit that of the number
	u64 *step;	   // gets the smallest step of the clock that was seen
	u64 patience;  // in nanoseconds
	u32 questions, steps;
};

} // namespace weft

extern "C" __global__ void weft_clock(const __grid_constant__ weft::ClockArgs a) {
	using namespace weft;
	u64 begun = nanoseconds(), last = begun, least = ~0ull;
	for (u32 n = 1; n <= a.questions; n++) {
		while (load_relaxed_sys_u64(a.asked) < n) {
			if (nanoseconds() - begun > a.patience) return;
		}
		store_relaxed_sys_u64(a.answer, nanoseconds() | (u64)(n & 1) << 63);
	}
	for (u32 i = 0; i < a.steps; i++) {
		u64 now = nanoseconds();
		if (now != last) least = min(least, now - last);
		last = now;
	}
	if (a.steps != 0) store_relaxed_sys_u64(a.step, least);
}
