// Message lists that are too long for a launch come to the GPU's memory by launches of this kernel, before
// that of the messages. A graph has them as its own.
#include "slots.cuh"

namespace weft {

constexpr u32 LIST_WORDS = 384; // Go: listWords

// Go: messageListArgs.
struct MessageList {
	u64 *to;
	u64 words;
	u64 word[LIST_WORDS];
};

static_assert(sizeof(MessageList) == WEFT_PARAMETER_BYTES, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) message_list(const __grid_constant__ MessageList a) {
	wait_for_previous(); // it may still read the list before
	for (u32 i = threadIdx.x; i < a.words; i += blockDim.x) a.to[i] = a.word[i];
	let_next_start();
}

} // namespace collective
} // namespace weft
