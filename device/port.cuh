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
//
// # Order
//
// A put needs a fence of system scope between what was stored and the trigger: the proxy, or a network card for it,
// reads the source once it has seen the trigger. With the barrier before it, the fence covers the block's stores. A
// signal and an add need it for what was read: the peer may write there as soon as it knows. The fence takes a GPU as
// long as a way to the host and back. It comes before the slot is claimed. So the head is loaded meanwhile, threads of
// a warp that push together make one fence, and no other trigger waits behind an empty slot for it.
//
// A flush needs none. It says nothing of what was read or stored. What was pushed before, by this thread or by one
// that it has met, has an earlier slot, since all claims are atomic operations on one word. The proxy takes slots in
// their order.
//
// The trigger's words need no order among themselves: each shows by its parity that it has arrived. They follow what
// the proxy read of the slot a lap before, since they are stored only if the tail was raised behind that.
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

	// push claims a slot when there is room and fills it. It waits for nothing once it has claimed one. It has no
	// collective of its warp, whose wait would have no end if a thread stayed away, and is inlined, so that neither the
	// Wait nor the channel is read from memory behind the fence, which empties the SM's cache.
	__device__ __forceinline__ bool push(Wait &w, u32 op, u64 to, u64 from, u64 bytes, u64 value, u64 &position) const {
		PortHead *const h = head;
		ulonglong2 *const all = slots;
		const u32 last = mask, laps = lap;
		ulonglong2 ends = load_relaxed_sys_u64x2(h); // next and tail, of any two moments
		if (w.over) return false;
		const ulonglong2 first = {bytes | (u64)channel << 40 | value >> 63 << 56 | (u64)op << 57, from | (u64)src << 48};
		const ulonglong2 second = {to | (u64)dst << 48, value & ~PORT_TOP};
		if (op != PORT_FLUSH) fence_sys();
		for (;;) {
			const u64 next = ends.x;
			if (next - ends.y > last) { // no room as far as is known, or the tail is of a later moment than next
				if (!room(w, ends)) return false;
				continue;
			}
			ends.x = atomic_cas_relaxed_gpu_u64(&h->next, next, next + 1);
			if (ends.x != next) continue;
			const u64 parity = ~(next >> laps) << 63;
			ulonglong2 *slot = all + (next & last) * 2;
			store_relaxed_sys_u64x2(slot, {first.x | parity, first.y | parity});
			store_relaxed_sys_u64x2(slot + 1, {second.x | parity, second.y | parity});
			position = next;
			return true;
		}
	}

	// room looks where the proxy is, and who pushes next. False: the operation is over.
	__device__ __forceinline__ bool room(Wait &w, ulonglong2 &ends) const {
		u64 seen = load_relaxed_sys_u64(tail);
		if ((seen & PORT_TOP) != 0 || (load_relaxed_sys_u64(&line->flushed) & PORT_TOP) != 0) {
			w.give_up(peer, CAUSE_LOST, ends.x, seen & ~PORT_TOP);
			return false;
		}
		store_relaxed_sys_u64(&head->tail, seen);
		u64 now = load_relaxed_sys_u64(&head->next);
		ends = {now, seen};
		return now - seen <= mask || w.more(peer, now - mask, seen);
	}

	// reached waits until a word of the line has reached a value, or the channel has failed without.
	__device__ __forceinline__ bool reached(Wait &w, const u64 *word, u64 value) const {
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
