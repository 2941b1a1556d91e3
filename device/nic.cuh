// Queue pairs of a network card: kernels write entries and ring the doorbell, without a proxy on the host.
//
//	put, put4, put8    write to the peer's memory: bytes of this rank's, or a word that the call has
//	add4, add8         add to a word of the peer's memory
//	ring               tell the card of entries that were deferred
//	flush              wait until everything before is complete
//
// One thread calls them; any number may do so at once. What other threads of its block have stored goes along if
// they have met it at a __syncthreads before. Entries of a queue pair take effect in their order, each in one piece
// if it is a word; those of two queue pairs in any order. So a flag goes to the queue pair of its data. A call that
// does not fit its memory posts nothing and ends the operation with CAUSE_INVALID, an entry that the card reports
// as failed with CAUSE_NIC: the record then has the entry's number and NIC_FAILED | syndrome << 8 | the vendor's
// syndrome. Waits are a Wait's.
//
// Order. (1) An entry's words and everything before them are fenced at system scope. (2) Its slot in `ready` is
// marked. (3) The thread that rings sees a row of marks without a gap. It fences, (4) writes the record, fences,
// (5) writes the register. Without (1) or the fence behind (3) the card reads an entry that is not there. Without
// the one between (4) and (5) it finds an older number in the record. Package fabric/mlx5 has the formats, package
// fabric/softnic a card that finds each of these mistakes.
//
// No thread waits for another to post. Who finds the doorbell taken leaves its request in `ringing`, and the
// thread that has it looks again before it leaves. A thread that gives up has claimed no entry.
#pragma once
#include "port.cuh"

namespace weft {

enum { CAUSE_NIC = 7 }; // of a Record, beside those of comm.cuh and port.cuh
enum { NIC_NOP = 0x00, NIC_WRITE = 0x08, NIC_FETCH_ADD = 0x12, NIC_MASKED_FETCH_ADD = 0x15 };
enum { NIC_MASKED4 = 8 };
constexpr u32 NIC_ENTRY = 64, NIC_COMPLETION = 64, NIC_STATUS = 60, NIC_ERROR = 52;
constexpr u32 NIC_INLINE = 1u << 31, NIC_SIGNALLED = 8u << 24;
constexpr u64 NIC_MESSAGE = 1ull << 30; // bytes of a write
constexpr u64 NIC_FAILED = 1ull << 63;

// NicRing says when the card is told of an entry.
enum NicRing {
	NIC_NOW = 0,
	NIC_DEFER = 1, // with the next ring: the thread's own, or one before
};

// NicMemory is memory as the card names it. Go: device.NicMemory.
struct NicMemory {
	u64 address, bytes;
	u32 key;
	u32 atomic; // whether words may be added to
};

// NicState is what the threads that use a queue pair share, in this GPU's memory; all zero in the beginning.
struct NicState {
	u64 claimed;   // entries that threads have begun
	u64 completed; // entries that are complete
	u64 rung;	   // entries that the card was told of: the ringing thread's
	u64 taken;	   // completions that were read: the polling thread's
	u64 failed;	   // the number of the entry that failed,
	u64 failure;   // and why; 0: none has
	u32 ringing;   // requests to ring that are underway
	u32 polling;   // whether a thread reads completions
	u64 zero;
};

__device__ __forceinline__ u32 nic_swap(u32 v) { return __byte_perm(v, 0, 0x0123); }

// NicQueue is a queue pair. Go: device.NicQueue.
struct NicQueue {
	char *entries;			 // of the send queue
	const char *completions; // at least as many as entries
	u32 *record;			 // the send queue's word of the doorbell record
	u32 *consumer;			 // the completion queue's record
	u64 *doorbell;			 // register
	NicState *state;
	u32 *ready;	 // for each slot, in this GPU's memory, the low half of the number behind its entry; 0 at first
	u64 home;	 // where the card puts old values of adds: 8 bytes that nobody reads
	u32 home_key;
	u32 mask; // entries - 1
	u32 log;  // of the number of completions
	u32 number, peer;
	u32 zero;

	// put writes bytes from an offset of src to one of dst. They stay as they are until a flush.
	__device__ __forceinline__ bool put(Wait &w, const NicMemory &dst, u64 to, const NicMemory &src, u64 from, u64 bytes,
										NicRing when = NIC_NOW) const {
		if (!fits(w, dst, to, bytes) || !fits(w, src, from, bytes)) return false;
		if (bytes - 1 >= NIC_MESSAGE) { // also of 0, which is no entry
			if (!put_parts(w, dst, to, src, from, bytes)) return false;
		} else if (!put_part(w, dst.address + to, dst.key, src.address + from, src.key, (u32)bytes)) {
			return false;
		}
		if (when == NIC_NOW) ring();
		return true;
	}

	// put4 writes a word of 4 bytes, and put8 one of 8, to an offset of dst. The word lies in the entry.
	__device__ __forceinline__ bool put4(Wait &w, const NicMemory &dst, u64 to, u32 value, NicRing when = NIC_NOW) const {
		return fits(w, dst, to, 4) && post_inline(w, dst, to, 4, value, when);
	}

	__device__ __forceinline__ bool put8(Wait &w, const NicMemory &dst, u64 to, u64 value, NicRing when = NIC_NOW) const {
		return fits(w, dst, to, 8) && post_inline(w, dst, to, 8, value, when);
	}

	// add4 adds to a word of 4 bytes of the peer's memory, and add8 to one of 8. Only adds of one card are atomic
	// with each other.
	__device__ __forceinline__ bool add4(Wait &w, const NicMemory &dst, u64 to, u32 value, NicRing when = NIC_NOW) const {
		return fits_word(w, dst, to, 4) && post_add(w, dst, to, 4, value, when);
	}

	__device__ __forceinline__ bool add8(Wait &w, const NicMemory &dst, u64 to, u64 value, NicRing when = NIC_NOW) const {
		return fits_word(w, dst, to, 8) && post_add(w, dst, to, 8, value, when);
	}

	// nop posts an entry that does nothing and completes.
	__device__ __forceinline__ bool nop(Wait &w, u64 &entry, NicRing when = NIC_NOW) const {
		if (w.over || !claim(w, entry)) return false;
		control(entry, NIC_NOP, 1, 0, NIC_SIGNALLED);
		finish(entry);
		if (when == NIC_NOW) ring();
		return true;
	}

	// flush returns when everything that was posted to the queue pair before is complete: sources may change, and
	// the peer's card has the bytes.
	__device__ __forceinline__ bool flush(Wait &w) const {
		u64 entry;
		return nop(w, entry) && await(w, entry);
	}

	// await returns when an entry is complete, and all before it.
	__device__ __noinline__ bool await(Wait &w, u64 entry) const {
		for (;;) {
			u64 done = load_acquire_sys_u64(&state->completed);
			if (done > entry) return true;
			poll();
			if (has_failed(w) || (load_relaxed_sys_u64(&state->completed) == done && !w.more(peer, entry + 1, done)))
				return false;
		}
	}

	// ring tells the card of all entries that are there.
	__device__ __noinline__ void ring() const {
		fence_gpu(); // the mark, before the request
		u32 requests = 1;
		if (atomic_add_gpu4(&state->ringing, 1) != 0) return;
		do {
			fence_gpu();
			u64 from = load_relaxed_sys_u64(&state->rung), to = from;
#pragma unroll 1
			while (load_relaxed_gpu4(ready + (to & mask)) == (u32)to + 1) to++; // at most all: their slots are not free
			if (to != from) {
				u32 index = (u32)to & 0xFFFF;
				fence_sys(); // the entries, before the record
				store_relaxed_sys4(record, nic_swap(index));
				fence_sys(); // the record, before the register
				store_relaxed_sys_u64(doorbell, (u64)nic_swap(number << 8) << 32 | nic_swap(index << 8));
				store_relaxed_sys_u64(&state->rung, to);
				fence_sys(); // the register, before that of the next to ring
			}
			requests = atomic_add_gpu4(&state->ringing, 0u - requests) - requests;
		} while (requests != 0);
	}

	// poll reads completions that are there, unless another thread does.
	__device__ __noinline__ void poll() const {
		if (load_relaxed_sys_u64(&state->failure) != 0 || atomic_cas_gpu4(&state->polling, 0, 1) != 0) return;
		u64 first = load_relaxed_sys_u64(&state->taken), n = first;
		u64 done = load_relaxed_sys_u64(&state->completed), failure = 0;
#pragma unroll 1
		for (; n - first <= mask && failure == 0; n++) {
			const char *at = completions + ((u32)n & ((1u << log) - 1)) * (u64)NIC_COMPLETION;
			u32 status = load_acquire_sys4(at + NIC_STATUS);
			u32 kind = status >> 28, owner = status >> 24 & 1;
			if (owner != (u32)(n >> log & 1) || kind == 15) break;
			u32 index = __byte_perm(status, 0, 0x4401);
			if (kind == 0) {
				done += (index + 1 - (u32)done) & 0xFFFF;
			} else {
				u32 error = load_relaxed_sys4(at + NIC_ERROR); // byte 2 is the vendor's, byte 3 the syndrome
				failure = NIC_FAILED | error >> 24 << 8 | (error >> 16 & 0xFF);
				store_relaxed_sys_u64(&state->failed, done + ((index - (u32)done) & 0xFFFF));
			}
		}
		if (n != first) {
			store_release_sys4(consumer, nic_swap((u32)n & 0xFFFFFF)); // the completions were read
			store_relaxed_sys_u64(&state->taken, n);
			store_release_sys_u64(&state->completed, done); // slots may be used again
			if (failure != 0) store_release_sys_u64(&state->failure, failure);
		}
		store_release_sys4(&state->polling, 0);
	}

private:
	// fits ends the operation if a range lies outside of a memory.
	__device__ __forceinline__ bool fits(Wait &w, const NicMemory &m, u64 at, u64 bytes) const {
		return at <= m.bytes && bytes <= m.bytes - at ? !w.over : refuse(w, m.bytes, at + bytes);
	}

	__device__ __noinline__ bool refuse(Wait &w, u64 expected, u64 asked) const {
		w.give_up(peer, CAUSE_INVALID, expected, asked);
		return false;
	}

	__device__ __forceinline__ bool fits_word(Wait &w, const NicMemory &m, u64 at, u32 bytes) const {
		bool whole = m.atomic != 0 && ((m.address + at) & (bytes - 1)) == 0;
		return whole ? fits(w, m, at, bytes) : refuse(w, m.bytes, at);
	}

	__device__ __forceinline__ bool put_part(Wait &w, u64 to, u32 key, u64 from, u32 local_key, u32 bytes) const {
		u64 entry;
		if (!claim(w, entry)) return false;
		begin(entry, NIC_WRITE, 3, 0, to, key);
		store(entry, 2, bytes, local_key, (u32)(from >> 32), (u32)from);
		finish(entry);
		return true;
	}

	// put_parts is a put of more than a message.
	__device__ __noinline__ bool put_parts(Wait &w, const NicMemory &dst, u64 to, const NicMemory &src, u64 from,
										   u64 bytes) const {
		while (bytes > 0) {
			u32 n = (u32)(bytes < NIC_MESSAGE ? bytes : NIC_MESSAGE);
			if (!put_part(w, dst.address + to, dst.key, src.address + from, src.key, n)) return false;
			to += n, from += n, bytes -= n;
		}
		return true;
	}

	// claim takes the next entry when its slot is free.
	__device__ __forceinline__ bool claim(Wait &w, u64 &entry) const {
		u64 next = load_relaxed_sys_u64(&state->claimed);
		for (;;) {
			if (next - load_acquire_sys_u64(&state->completed) > mask) {
				if (!room(w)) return false;
				next = load_relaxed_sys_u64(&state->claimed);
				continue;
			}
			u64 old = atomicCAS(&state->claimed, next, next + 1);
			if (old == next) break;
			next = old;
		}
		entry = next;
		return true;
	}

	// room helps to make room: it rings for what was deferred, and reads completions.
	__device__ __noinline__ bool room(Wait &w) const {
		ring();
		poll();
		if (has_failed(w)) return false;
		u64 next = load_relaxed_sys_u64(&state->claimed), done = load_acquire_sys_u64(&state->completed);
		return next - done <= mask || w.more(peer, next - mask, done);
	}

	// at is where a segment of an entry lies.
	__device__ __forceinline__ char *at(u64 entry, u32 segment) const {
		return entries + ((u32)entry & mask) * NIC_ENTRY + segment * 16;
	}

	// store writes a segment of big-endian words.
	__device__ __forceinline__ void store(u64 entry, u32 segment, u32 a, u32 b, u32 c, u32 d) const {
		store_relaxed_sys16(at(entry, segment), {nic_swap(a), nic_swap(b), nic_swap(c), nic_swap(d)});
	}

	// control writes the first segment: modifier, index, opcode; number, segments; flags in the last byte of the
	// third word.
	__device__ __forceinline__ void control(u64 entry, u32 opcode, u32 segments, u32 modifier, u32 flags) const {
		u32 first = __byte_perm((u32)entry, modifier | opcode << 8, 0x5014);
		store_relaxed_sys16(at(entry, 0), {first, __byte_perm(number, segments, 0x4012), flags, 0});
	}

	// begin writes the first two segments. Every fourth part of the queue ends in an entry that completes.
	__device__ __forceinline__ void begin(u64 entry, u32 opcode, u32 segments, u32 modifier, u64 to, u32 key) const {
		control(entry, opcode, segments, modifier, (~(u32)entry & mask >> 2) == 0 ? NIC_SIGNALLED : 0);
		store(entry, 1, (u32)(to >> 32), (u32)to, key, 0);
	}

	// finish marks an entry as written.
	__device__ __forceinline__ void finish(u64 entry) const {
		fence_sys(); // the entry and what it tells of, before the mark
		store_relaxed_gpu4(ready + (entry & mask), (u32)entry + 1);
	}

	__device__ __forceinline__ bool post_inline(Wait &w, const NicMemory &dst, u64 to, u32 bytes, u64 value,
												NicRing when) const {
		u64 entry;
		if (!claim(w, entry)) return false;
		begin(entry, NIC_WRITE, 3, 0, dst.address + to, dst.key);
		store(entry, 2, bytes | NIC_INLINE, nic_swap((u32)value), nic_swap((u32)(value >> 32)), 0);
		finish(entry);
		if (when == NIC_NOW) ring();
		return true;
	}

	__device__ __forceinline__ bool post_add(Wait &w, const NicMemory &dst, u64 to, u32 bytes, u64 value,
											 NicRing when) const {
		u64 entry;
		if (!claim(w, entry)) return false;
		if (bytes == 4) {
			begin(entry, NIC_MASKED_FETCH_ADD, 4, NIC_MASKED4, dst.address + to, dst.key);
			store(entry, 2, (u32)value, 0, 0, 0);
		} else {
			begin(entry, NIC_FETCH_ADD, 4, 0, dst.address + to, dst.key);
			store(entry, 2, (u32)(value >> 32), (u32)value, 0, 0);
		}
		store(entry, 3, bytes, home_key, (u32)(home >> 32), (u32)home);
		finish(entry);
		if (when == NIC_NOW) ring();
		return true;
	}

	// has_failed ends the operation if an entry has failed.
	__device__ __forceinline__ bool has_failed(Wait &w) const {
		u64 failure = load_acquire_sys_u64(&state->failure);
		if (failure == 0) return false;
		w.give_up(peer, CAUSE_NIC, load_relaxed_sys_u64(&state->failed), failure);
		return true;
	}
};

// NicPeer is the way to one peer's memory over several queue pairs. Go: device.NicPeer.
struct NicPeer {
	const NicQueue *queues; // in this GPU's memory
	NicMemory dst, src;
	u32 count;
	u32 zero;

	// of is the queue pair for a number of the caller's: its block's, for example.
	__device__ __forceinline__ const NicQueue &of(u32 i) const { return queues[i % count]; }

	// flush is that of all queue pairs, of which four complete side by side.
	__device__ __noinline__ bool flush(Wait &w) const {
		for (u32 first = 0; first < count; first += 4) {
			u64 entry[4];
#pragma unroll
			for (u32 i = 0; i < 4; i++) {
				if (first + i < count && !queues[first + i].nop(w, entry[i])) return false;
			}
#pragma unroll
			for (u32 i = 0; i < 4; i++) {
				if (first + i < count && !queues[first + i].await(w, entry[i])) return false;
			}
		}
		return true;
	}
};

} // namespace weft
