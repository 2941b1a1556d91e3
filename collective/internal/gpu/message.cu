// Messages. A call's messages between two ranks in one direction are a way. Warps of the launch work on one
// way each: a way's workers share its messages, cell by cell and chunk by chunk.
//
//	cell    32 vectors: a header, and the bytes of a short message; each 4 bytes travel with the low bits of
//	        the cell's number, in one access of 8 bytes
//	chunk   bytes as they are, of a long message; behind them a word says that they are there
//
// Every rank has a ring of cells and one of chunks for what each other rank sends it. Cells and chunks are
// numbered from the beginning of the group on. Both sides cut a message alike, so both know the numbers of
// its cells, however many workers each has, and in whatever calls the messages are.
//
//	post     the receiver tells the sender that it begins a message, and which. The sender of a way ends
//	         when it has the post of its last message, so no rank has sent what its peer has not begun to
//	         receive.
//	freed    a receiver that begins a way tells how many cells and chunks it read in earlier calls. Those
//	         kernels have ended.
//	credit   tells that one cell or chunk has been read in this call, if a later message of it needs the
//	         place. It comes behind a fence.
//
// Invariant: a sender stores into the place of cell x when cell x - count has been read: by freed or by its
// credit. A receiver that waits for cell x has given all that its sender needs for it. So the lowest cell
// of a way that has not been read can always be sent and read, and no way waits for another one.
//
// A cell that has been read is emptied. So a vector is that of the cell that is awaited, that of the cell
// before it in the same place, which another worker is still to read, or empty: the low bits of the number
// tell which, also when they wrap.
#include "slots.cuh"

namespace weft {

// Way is the messages of a call from this rank to another, or from that to this. Go: way.
struct Way {
	char *remote;	  // the peer's window
	u32 peer;		  // its rank
	u32 own, theirs;  // the number of the peer's rings in this rank's window, and of this rank's in the peer's
	u32 kind;		  // TO_PEER, FROM_PEER or OWN
	u32 first;		  // of its messages in the list
	u32 messages;	  // how many there are
	u32 worker;		  // the number of its first worker
	u32 workers;	  // how many there are
	u32 cells, chunks; // that its messages take
};

enum { TO_PEER = 0, FROM_PEER = 1, OWN = 2 };

// Message is one of them. word is what its two sides have in common, type and number of elements; of a
// rank's message to itself it is where the message lies. Go: entry.
struct Message {
	char *at;
	u64 bytes, word;
};

// Pair is how far the ways of all calls between two ranks have come, in one direction, in this GPU's
// memory. Go: pairBytes.
struct Pair {
	u64 messages, cells, chunks; // that have been sent, or read
	u32 readers, zero;			 // workers of the call under way that have read this
};

constexpr u32 WAY_WORDS = sizeof(Way) / 8;
constexpr u32 INLINE_WORDS = 128; // of a list that is part of the launch. Go: inlineWords

// Go: messageArgs.
struct Messages {
	State *state;
	Pair *pairs;			   // [2][ranks]: to each rank, and from each
	u64 cells, chunks, words;  // regions of the window
	u64 short_bytes;		   // a longer message goes through chunks
	u32 cell_count, chunk_count; // of a ring: powers of two
	u32 chunk_bytes, ways;
	u32 op, zero;
	const u64 *list; // ways, then messages; null: inlined
	u64 inlined[INLINE_WORDS];
	Group group;
};

static_assert(sizeof(Messages) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");
static_assert(sizeof(Way) == 48 && sizeof(Message) == 24 && sizeof(Pair) == 32, "not the host's sizes");

namespace collective {

constexpr u32 CELL_VECTORS = 32, CELL_BYTES = CELL_VECTORS * 32; // Go: cellVectors, cellBytes
constexpr u32 ALL = 0xFFFFFFFFu;

// A post is a message's word, and above it the low bits of its number: a place of posts holds those of every
// other message of the pair.
constexpr u32 WORD_BITS = 46; // Go: wordBits

constexpr u32 IN_FLIGHT = 8; // vectors of a thread

// Packet is a vector of a cell.
struct Packet {
	ulonglong2 low, high;

	// flag_of gives no word of ones.
	__device__ __forceinline__ static u64 flag_of(u64 cell) { return (cell & 0x7FFFFFFF) << 32; }
	__device__ __forceinline__ static void send(char *at, u64 cell, uint4 v) {
		u64 flag = flag_of(cell);
		store_relaxed_sys_u64x2(at, {v.x | flag, v.y | flag});
		store_relaxed_sys_u64x2(at + 16, {v.z | flag, v.w | flag});
	}
	__device__ __forceinline__ void look(const char *at) {
		low = load_relaxed_sys_u64x2(at);
		high = load_relaxed_sys_u64x2(at + 16);
	}
	__device__ __forceinline__ bool there(u64 cell) const {
		u64 flag = flag_of(cell);
		return ((low.x ^ flag) >> 32 | (low.y ^ flag) >> 32 | (high.x ^ flag) >> 32 | (high.y ^ flag) >> 32) == 0;
	}
	__device__ __forceinline__ uint4 value() const { return make_uint4((u32)low.x, (u32)low.y, (u32)high.x, (u32)high.y); }
	__device__ __forceinline__ u64 header() const { return (low.y << 32) | (low.x & 0xFFFFFFFF); }
	__device__ __forceinline__ static void empty(char *at) {
		store16(at, empty16());
		store16(at + 16, empty16());
	}
};

// Words are those of one pair of ranks in a window. A sender writes arrived, the receiver the others.
struct Words {
	char *at;
	u32 cells, chunks;

	__device__ __forceinline__ Words(char *window, const Messages &a, u32 box)
		: at(window + a.words + (u64)box * (4 + a.cell_count + 2 * a.chunk_count) * 8), cells(a.cell_count),
		  chunks(a.chunk_count) {}
	__device__ __forceinline__ char *post(u64 message) const { return at + (message & 1) * 8; }
	__device__ __forceinline__ char *freed(u32 ring) const { return at + 16 + ring * 8; }
	__device__ __forceinline__ char *credit(u32 ring, u64 x) const {
		return at + 32 + (ring == 0 ? x & (cells - 1) : cells + (x & (chunks - 1))) * 8;
	}
	__device__ __forceinline__ char *arrived(u64 x) const {
		return at + 32 + (u64)(cells + chunks + (x & (chunks - 1))) * 8;
	}
};

// Worker is a warp. All its lanes do everything but what lane 0 says or stores.
struct Worker {
	const Messages &a;
	const Way way;
	const Message *list;
	Words own, theirs;
	u32 lane, number;			 // number: among the way's workers
	u64 messages, cells, chunks; // before the message
	bool agreed;				 // the receiver's post of the message is there

	__device__ __forceinline__ Worker(const Messages &a, const Way &way, const Message *list, u32 number, const Pair &p)
		: a(a), way(way), list(list), own(a.group.window[a.group.rank], a, way.own),
		  theirs(way.remote, a, way.theirs), lane(threadIdx.x & 31), number(number), messages(p.messages), cells(p.cells),
		  chunks(p.chunks), agreed(false) {}

	__device__ __forceinline__ char *cell(char *window, u32 box, u64 x) const {
		return window + a.cells + ((u64)box * a.cell_count + (x & (a.cell_count - 1))) * CELL_BYTES + lane * 32;
	}
	__device__ __forceinline__ char *chunk(char *window, u32 box, u64 x) const {
		return window + a.chunks + ((u64)box * a.chunk_count + (x & (a.chunk_count - 1))) * a.chunk_bytes;
	}

	// until polls until ready() is true on all lanes. False: the wait is over.
	template <class F> __device__ __forceinline__ bool until(F ready) {
		if (__all_sync(ALL, ready())) return true;
		Wait w(a.group, a.state, a.op, messages);
		do {
			bool more = lane != 0 || w.more(way.peer, messages, 0);
			if (!__all_sync(ALL, more)) return false;
		} while (!__all_sync(ALL, ready()));
		return true;
	}

	// differ ends the operation: the peer's side of the message is another one. Go: mismatch.
	__device__ __forceinline__ bool differ(u64 expected, u64 seen) {
		constexpr u64 word = (1ull << WORD_BITS) - 1;
		if (lane == 0) {
			Wait w(a.group, a.state, a.op, messages);
			w.give_up(way.peer, CAUSE_MISMATCH, (expected & word) | (u64)(way.kind == FROM_PEER) << WORD_BITS, seen & word);
		}
		return false;
	}

	// agree is for the first worker of a sender.
	__device__ __forceinline__ bool agree(u64 post) {
		if (agreed) return true;
		u64 seen = 0;
		agreed = until([&] {
			seen = load_relaxed_sys_u64(own.post(messages));
			return (seen ^ post) >> WORD_BITS == 0;
		});
		return agreed && (seen == post || differ(post, seen));
	}

	// room waits until the place of a cell or chunk may be written. There is always room for a header in the
	// end. For what is behind it, a receiver that wants another message will never make room: so the first
	// worker asks for that before.
	__device__ __forceinline__ bool room(u32 ring, u64 x, u32 count, u64 &freed, u64 post, bool header) {
		if (__all_sync(ALL, x < freed + count)) return true;
		if (number == 0 && !header && !agree(post)) return false;
		return until([&] {
			freed = max(freed, load_relaxed_sys_u64(own.freed(ring)));
			return x < freed + count || x < load_relaxed_sys_u64(own.credit(ring, x)) + count;
		});
	}

	// credit says that a cell or chunk has been read, if another one of this call will take its place.
	__device__ __forceinline__ void credit(u32 ring, u64 x, u32 count, u64 end) {
		if (x + count >= end) return;
		__syncwarp();
		if (lane == 0) {
			fence_sys();
			store_relaxed_sys_u64(theirs.credit(ring, x), x + 1);
		}
	}

	// next begins a message, and gives its post.
	__device__ __forceinline__ u64 next(const Message &m) {
		messages++;
		agreed = false;
		return m.word | messages << WORD_BITS;
	}
	__device__ __forceinline__ bool is_short(const Message &m) const { return m.bytes <= a.short_bytes; }
	// The header is vector 0 of the first cell.
	__device__ __forceinline__ u32 vectors(const Message &m) const {
		return is_short(m) ? (u32)(m.bytes + 15) / 16 + 1 : 1;
	}
	__device__ __forceinline__ u32 cells_of(const Message &m) const {
		return (vectors(m) + CELL_VECTORS - 1) / CELL_VECTORS;
	}
	__device__ __forceinline__ u32 chunks_of(const Message &m) const {
		return is_short(m) ? 0 : (u32)((m.bytes + a.chunk_bytes - 1) / a.chunk_bytes);
	}
	__device__ __forceinline__ void end(const Message &m) {
		cells += cells_of(m);
		chunks += chunks_of(m);
	}

	// pass moves the whole vectors of a chunk, many at a time.
	template <class L, class S> __device__ __forceinline__ void pass(u32 whole, L load, S store) const {
		for (u32 base = lane; base < whole; base += 32 * IN_FLIGHT) fly<IN_FLIGHT>(base, 32, whole, load, store);
	}

	// Piece is the bytes of a message that are in a chunk.
	struct Piece {
		Part part;
		u32 whole, vectors; // whole: those that have an address of their size, and are not shorter

		__device__ __forceinline__ Piece(const Message &m, u64 from, u32 most)
			: part(m.at + from, min(m.bytes - from, (u64)most)), whole(part.unit == 16 ? (u32)part.bytes / 16 : 0),
			  vectors(part.vectors()) {}
	};

	// vector loads what a lane sends of a cell, but for the header.
	__device__ __forceinline__ uint4 vector(const Message &m, u32 k) const {
		u32 v = k * CELL_VECTORS + lane;
		return v != 0 && v < vectors(m) ? Part(m.at, m.bytes).load(v - 1) : make_uint4(0, 0, 0, 0);
	}

	// first is the worker's vector of the first message.
	__device__ __forceinline__ void send_all(u64 freed_cells, u64 freed_chunks, uint4 first) {
		for (u32 i = 0; i < way.messages; i++) {
			const Message m = list[way.first + i];
			u64 post = next(m);
			u32 n = vectors(m);
			for (u32 k = number; k < cells_of(m); k += way.workers) {
				u32 v = k * CELL_VECTORS + lane;
				uint4 x = first;
				if (i != 0 || k != number) x = vector(m, k);
				if (v == 0) x = make_uint4((u32)post, (u32)(post >> 32), 0, 0);
				if (!room(0, cells + k, a.cell_count, freed_cells, post, k == 0)) return;
				if (v < n) Packet::send(cell(way.remote, way.theirs, cells + k), cells + k, x);
			}
			for (u32 k = number; k < chunks_of(m); k += way.workers) {
				u64 x = chunks + k;
				if (!room(1, x, a.chunk_count, freed_chunks, post, false)) return;
				Piece p(m, (u64)k * a.chunk_bytes, a.chunk_bytes);
				char *to = chunk(way.remote, way.theirs, x);
				pass(p.whole, [&](u32 v) { return load_once(p.part.at + v * 16); },
					 [&](u32 v, uint4 d) { store16(to + v * 16, d); });
				for (u32 v = p.whole + lane; v < p.vectors; v += 32) store16(to + v * 16, p.part.load(v));
				__syncwarp();
				if (lane == 0) {
					fence_sys();
					store_relaxed_sys_u64(theirs.arrived(x), x + 1);
				}
			}
			if (number == 0 && !agree(post)) return;
			end(m);
		}
	}

	__device__ __forceinline__ void receive_all() {
		char *window = a.group.window[a.group.rank];
		u64 last_cell = cells + way.cells, last_chunk = chunks + way.chunks;
		bool says = number == 0 && lane == 0;
		if (says) {
			store_relaxed_sys_u64(theirs.freed(0), cells);
			store_relaxed_sys_u64(theirs.freed(1), chunks);
		}
		for (u32 i = 0; i < way.messages; i++) {
			const Message m = list[way.first + i];
			u64 post = next(m);
			if (says) store_relaxed_sys_u64(theirs.post(messages), post);
			Part part(m.at, m.bytes);
			u32 n = vectors(m);
			for (u32 k = number; k < cells_of(m); k += way.workers) {
				u32 v = k * CELL_VECTORS + lane;
				Packet s = {};
				u64 x = cells + k, header = post;
				char *slot = cell(window, way.own, x);
				bool other = false;
				if (!until([&] {
						if (v < n) s.look(slot);
						bool here = v >= n || s.there(x);
						if (k != 0) return here;
						if (lane == 0 && here) header = s.header();
						other = __any_sync(ALL, header != post); // then the rest may never come
						return other || here;
					}))
					return;
				if (other) {
					differ(post, header);
					return;
				}
				if (v < n) {
					if (v != 0) part.store(v - 1, s.value());
					Packet::empty(slot);
				}
				credit(0, x, a.cell_count, last_cell);
			}
			for (u32 k = number; k < chunks_of(m); k += way.workers) {
				u64 x = chunks + k;
				if (!until([&] { return load_acquire_sys_u64(own.arrived(x)) > x; })) return;
				Piece p(m, (u64)k * a.chunk_bytes, a.chunk_bytes);
				const char *from = chunk(window, way.own, x);
				pass(p.whole, [&](u32 v) { return load_once(from + v * 16); },
					 [&](u32 v, uint4 d) { store16(p.part.at + v * 16, d); });
				for (u32 v = p.whole + lane; v < p.vectors; v += 32) p.part.store(v, load_once(from + v * 16));
				credit(1, x, a.chunk_count, last_chunk);
			}
			end(m);
		}
	}

	// copy_all moves a rank's messages to itself.
	__device__ __forceinline__ void copy_all() const {
		for (u32 i = 0; i < way.messages; i++) {
			const Message m = list[way.first + i];
			Part from((char *)m.word, m.bytes), to(m.at, m.bytes);
			u64 n = (m.bytes + 15) / 16;
			for (u64 v = number * 32 + lane; v < n; v += way.workers * 32) to.store(v, from.load(v));
		}
	}
};

__global__ void __launch_bounds__(THREADS, 1) message(const __grid_constant__ Messages a) {
	wait_for_previous();
	u32 stopped = a.state->stopped;
	const u64 *list = a.list != nullptr ? a.list : a.inlined;
	const Way *ways = (const Way *)list;
	u32 lane = threadIdx.x & 31, worker = (blockIdx.x * blockDim.x + threadIdx.x) / 32, found = a.ways;
	for (u32 base = 0; base < a.ways; base += 32) {
		bool mine = base + lane < a.ways && worker - ways[base + lane].worker < ways[base + lane].workers;
		u32 set = __ballot_sync(ALL, mine);
		if (set != 0) found = base + lowest(set);
	}
	if (found == a.ways) return; // the last block's last warps; the first one is never among them
	const Way way = ways[found];
	Pair *pair = a.pairs + (way.kind == FROM_PEER ? a.group.ranks : 0) + way.peer, before = *pair;
	Worker w(a, way, (const Message *)(list + a.ways * WAY_WORDS), worker - way.worker, before);
	// What a worker needs first is on its way before it knows whether it may begin.
	u64 freed_cells = load_relaxed_sys_u64(w.own.freed(0)), freed_chunks = load_relaxed_sys_u64(w.own.freed(1));
	uint4 first = make_uint4(0, 0, 0, 0);
	if (way.kind == TO_PEER && w.number < w.cells_of(w.list[way.first])) first = w.vector(w.list[way.first], w.number);
	if (stopped != 0) {
		refuse(a.group, a.op, 0);
		return;
	}
	// The last worker that has read the numbers writes the next ones. What it adds hangs on what it has read.
	u32 readers = way.workers - 1;
	if (way.workers > 1 && lane == 0) readers = atomic_add_gpu4(&pair->readers, 1 + (u32)(before.messages >> 63));
	if (way.kind == TO_PEER) {
		w.send_all(freed_cells, freed_chunks, first);
	} else if (way.kind == FROM_PEER) {
		w.receive_all();
	} else {
		w.copy_all();
	}
	__syncwarp(); // its lanes have read them
	if (lane == 0 && readers == way.workers - 1)
		*pair = {before.messages + way.messages, before.cells + way.cells, before.chunks + way.chunks, 0, 0};
	let_next_start();
}

} // namespace collective
} // namespace weft
