// A hand-over: the stream waits while a goroutine of the host does a part of its work. The kernel says which call it
// is, and copies what the host orders between this GPU's memory and pinned memory, until the host says that all is
// done. So the host needs no stream of its own, whose copies might wait behind this very kernel.
//
//	call      epoch | number                    the kernel writes it, the host reads
//	orders    sequence | dst | src | bytes      the host writes them, in turn
//	done      of each block: the sequence of the order that it has carried out last
//
// An order's sequence is written last, and no two orders have the same: it has the operation's epoch.
#include "wait.cuh"

namespace weft {

constexpr u32 THREADS = 512;   // Go: threads
constexpr u32 SLOTS = 64;	   // Go: slots
constexpr u32 SEQUENCE = 24;   // bits of a sequence that count an operation's orders. Go: sequenceBits

// Go: order.
struct Order {
	u64 sequence, dst, src;
	u64 bytes; // 0: all is done, or it has failed: dst
};

enum { DONE = 0, FAILED = 1, GAVE_UP = 2 }; // Go: doneOrder, failedOrder

// Go: handOverArgs.
struct HandOver {
	State *state;
	u64 *call;
	const Order *orders; // [SLOTS]
	u64 *done;			 // [blocks]
	const u64 *beat;	 // it changes while the host gets on
	u64 number;			 // of the call
	u32 op, zero;
	Group group;
};

static_assert(sizeof(HandOver) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace proxy {

// carry copies, a share for each thread of the launch. The host's memory is read past the caches, which may have what
// was there before.
__device__ __forceinline__ void carry(const Order &o) {
	u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x, head = 0, n = 0;
	u64 apart = o.dst ^ o.src;
	if ((apart & 15) == 0) {
		head = min((0 - o.dst) & 15, o.bytes);
		n = (o.bytes - head) / 16;
		for (u64 i = at; i < n; i += all) {
			*(uint4 *)(o.dst + head + 16 * i) = load_relaxed_sys16((const void *)(o.src + head + 16 * i));
		}
		n *= 16;
	} else if ((apart & 3) == 0) {
		head = min((0 - o.dst) & 3, o.bytes);
		n = (o.bytes - head) / 4;
		for (u64 i = at; i < n; i += all) {
			*(u32 *)(o.dst + head + 4 * i) = load_relaxed_sys4((const void *)(o.src + head + 4 * i));
		}
		n *= 4;
	}
	for (u64 i = at; i < o.bytes - n; i += all) {
		u64 from = i < head ? i : i + n;
		*(u8 *)(o.dst + from) = *(const volatile u8 *)(o.src + from);
	}
}

// next awaits an order. It does not look at the abort word: the host does, and says so when it has left the call. So
// who waits until this kernel has ended finds the host out of it, too.
__device__ __forceinline__ Order next(const HandOver &a, u64 epoch, u64 sequence) {
	const Order *p = a.orders + sequence % SLOTS;
	u64 beat = 0, start = 0, seen = load_acquire_sys_u64(&p->sequence);
	for (u32 polls = 1; seen != sequence; polls++) {
		if ((polls & 63) == 0) {
			u64 now = nanoseconds(), then = load_relaxed_sys_u64(a.beat);
			if (start == 0 || then != beat) start = now;
			beat = then;
			if (gave_up(a.group, a.state, a.op, epoch, now - start, false, a.group.rank, sequence, seen)) {
				return {sequence, GAVE_UP, 0, 0};
			}
		}
		seen = load_acquire_sys_u64(&p->sequence);
	}
	return {
		sequence, load_relaxed_sys_u64(&p->dst), load_relaxed_sys_u64(&p->src), load_relaxed_sys_u64(&p->bytes)};
}

__global__ void __launch_bounds__(THREADS, 1) hand_over(const __grid_constant__ HandOver a) {
	__shared__ Order order;
	Operation o;
	if (!o.begin(a.group, a.state, 0, a.op)) return;
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		store_relaxed_sys_u64(a.call + 1, a.number);
		store_release_sys_u64(a.call, o.epoch);
	}
	for (u64 sequence = (o.epoch << SEQUENCE) + 1;; sequence++) {
		if (threadIdx.x == 0) order = next(a, o.epoch, sequence);
		__syncthreads();
		if (order.bytes == 0) break;
		carry(order);
		__syncthreads();
		if (threadIdx.x == 0) {
			fence_sys(); // for the stores of all threads of the block
			store_release_sys_u64(a.done + blockIdx.x, sequence);
		}
	}
	if (threadIdx.x == 0 && order.dst == FAILED) {
		report(a.group, a.op, o.epoch, a.group.rank, CAUSE_ABORT, 0, 0);
		store_relaxed_gpu4(&a.state->stopped, 1);
	}
	o.end(a.state);
}

} // namespace proxy
} // namespace weft
