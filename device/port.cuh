// Port channels: kernels push triggers, and a proxy on the host writes to ranks that this GPU does not reach.
//
//	put, signal, put_with_signal,       push a trigger, and wait only while the ring is full
//	put_with_signal_and_flush,
//	put_with_signal_then_flush,
//	atomic_add
//	flush, await_flush                  wait until what was pushed before may change
//	poll, wait                          consume a signal of the peer
//
// One thread calls them. What other threads of its block have stored goes along if they have met it at a
// __syncthreads before. A trigger that does not fit its memories is not pushed, and ends the operation with
// CAUSE_INVALID. Waits are a Wait's. A channel that has failed ends them with CAUSE_LOST: its host knows the
// reason. Package port says how the ring works.
#pragma once
#include "wait.cuh"

namespace weft {

// PortLine is what the proxy tells of a channel, in host memory. The top bit says that the channel has failed.
struct PortLine {
	u64 arrived; // signals of the peer
	u64 flushed; // the position behind the last flush that is over
	u64 zero[6];
};

// PortHead is the pushers' end of a ring, in this GPU's memory.
struct PortHead {
	u64 next; // position
	u64 tail; // of the proxy, as pushers have seen it
};

enum { CAUSE_LOST = 5, CAUSE_INVALID = 6 }; // of a Record, beside those of comm.cuh
enum { PORT_PUT = 1, PORT_SIGNAL = 2, PORT_ADD = 4, PORT_FLUSH = 8 };
constexpr u64 PORT_TOP = 1ull << 63;

// PortChannel is a way to a peer's memory. Go: device.PortChannel.
struct PortChannel {
	ulonglong2 *slots; // of the ring, in host memory: two each
	const u64 *tail;   // in host memory
	PortHead *head;
	const PortLine *line;
	u64 *taken; // signals that were consumed, in this GPU's memory
	u64 dst_bytes, src_bytes;
	u32 mask, lap; // slots - 1, and log2 of their number
	u32 channel, peer;
	u32 dst, src; // memories
	u32 words;	  // whether dst has words to add to
	u32 zero;

	// put writes bytes from an offset of this rank's memory to one of the peer's. They must stay as they are
	// until a flush.
	__device__ __forceinline__ bool put(Wait &w, u64 to, u64 from, u64 bytes) const {
		u64 position;
		return fits(w, to, from, bytes) && push(w, PORT_PUT, to, from, bytes, 0, position);
	}

	// signal raises the peer's count of signals by one, behind all that was pushed before.
	__device__ __forceinline__ bool signal(Wait &w) const {
		u64 position;
		return push(w, PORT_SIGNAL, 0, 0, 0, 0, position);
	}

	__device__ __forceinline__ bool put_with_signal(Wait &w, u64 to, u64 from, u64 bytes) const {
		u64 position;
		return fits(w, to, from, bytes) && push(w, PORT_PUT | PORT_SIGNAL, to, from, bytes, 0, position);
	}

	__device__ __forceinline__ bool put_with_signal_and_flush(Wait &w, u64 to, u64 from, u64 bytes) const {
		u64 position;
		return fits(w, to, from, bytes) &&
			   push(w, PORT_PUT | PORT_SIGNAL | PORT_FLUSH, to, from, bytes, 0, position) && await_flush(w, position);
	}

	// put_with_signal_then_flush is put_with_signal_and_flush without the wait, which await_flush of the position is.
	__device__ __forceinline__ bool put_with_signal_then_flush(Wait &w, u64 to, u64 from, u64 bytes,
															   u64 &position) const {
		return fits(w, to, from, bytes) && push(w, PORT_PUT | PORT_SIGNAL | PORT_FLUSH, to, from, bytes, 0, position);
	}

	__device__ __forceinline__ bool await_flush(Wait &w, u64 position) const {
		return reached(w, &line->flushed, position + 1);
	}

	// atomic_add adds to a 64-bit word of the peer's memory, behind all that was pushed before.
	__device__ __forceinline__ bool atomic_add(Wait &w, u64 to, u64 value) const {
		if (words == 0 || (to & 7) != 0 || to > dst_bytes || dst_bytes - to < 8) {
			w.give_up(peer, CAUSE_INVALID, dst_bytes, to);
			return false;
		}
		u64 position;
		return push(w, PORT_ADD, to, 0, 0, value, position);
	}

	// flush returns when all that was pushed to the channel before has left this rank's memory, and adds have
	// taken effect.
	__device__ __forceinline__ bool flush(Wait &w) const {
		u64 position;
		return push(w, PORT_FLUSH, 0, 0, 0, 0, position) && await_flush(w, position);
	}

	// poll consumes a signal of the peer, if there is one. What the peer put before it may then be read.
	__device__ __forceinline__ bool poll() const {
		u64 come = load_acquire_sys_u64(&line->arrived) & ~PORT_TOP;
		u64 t = load_relaxed_sys_u64(taken);
		while (t < come) {
			u64 old = atomicCAS(taken, t, t + 1);
			if (old == t) return true;
			t = old;
		}
		return false;
	}

	// wait consumes a signal of the peer, and returns when there is one. One that ends without it consumes nothing.
	__device__ __forceinline__ bool wait(Wait &w) const {
		if (w.over) return false;
		u64 ticket = atomicAdd(taken, 1ull) + 1;
		if (reached(w, &line->arrived, ticket)) return true;
		atomicAdd(taken, ~0ull);
		return false;
	}

private:
	// fits ends the operation if a put lies outside of its memories.
	__device__ __forceinline__ bool fits(Wait &w, u64 to, u64 from, u64 bytes) const {
		if (to <= dst_bytes && bytes <= dst_bytes - to && from <= src_bytes && bytes <= src_bytes - from &&
			bytes >> 40 == 0)
			return true;
		w.give_up(peer, CAUSE_INVALID, dst_bytes, to + bytes);
		return false;
	}

	// push claims a slot when there is room and fills it. It does not wait for anything once it has claimed one.
	__device__ __noinline__ bool push(Wait &w, u32 op, u64 to, u64 from, u64 bytes, u64 value, u64 &position) const {
		if (w.over) return false;
		u64 seen = load_relaxed_sys_u64(&head->tail), next = load_relaxed_sys_u64(&head->next);
		for (;;) {
			if (next - seen > mask) { // no room as far as is known, or another pusher knows more
				seen = load_relaxed_sys_u64(tail);
				if ((seen & PORT_TOP) != 0 || (load_relaxed_sys_u64(&line->flushed) & PORT_TOP) != 0) {
					w.give_up(peer, CAUSE_LOST, next, seen & ~PORT_TOP);
					return false;
				}
				store_relaxed_sys_u64(&head->tail, seen);
				u64 now = load_relaxed_sys_u64(&head->next);
				if (now - seen > mask && !w.more(peer, now - mask, seen)) return false;
				next = now;
				continue;
			}
			u64 old = atomicCAS(&head->next, next, next + 1);
			if (old == next) break;
			next = old;
		}
		u64 parity = ~(next >> lap) << 63;
		ulonglong2 *slot = slots + (next & mask) * 2;
		ulonglong2 first = {bytes | (u64)channel << 40 | value >> 63 << 56 | (u64)op << 57 | parity,
							from | (u64)src << 48 | parity};
		ulonglong2 second = {to | (u64)dst << 48 | parity, (value & ~PORT_TOP) | parity};
		fence_sys(); // the bytes, before the trigger that says so
		store_relaxed_sys_u64x2(slot, first);
		store_relaxed_sys_u64x2(slot + 1, second);
		position = next;
		return true;
	}

	// reached waits until a word of the line has reached a value, or the channel has failed without.
	__device__ __noinline__ bool reached(Wait &w, const u64 *word, u64 value) const {
		for (;;) {
			u64 v = load_acquire_sys_u64(word);
			if ((v & ~PORT_TOP) >= value) return true;
			if ((v & PORT_TOP) != 0) {
				w.give_up(peer, CAUSE_LOST, value, v & ~PORT_TOP);
				return false;
			}
			if (!w.more(peer, value, v)) return false;
		}
	}
};

} // namespace weft
