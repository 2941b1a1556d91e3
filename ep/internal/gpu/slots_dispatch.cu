// Dispatch through slots: each row goes once to each rank that has an expert for it, into a slot whose
// address follows from source and token alone. So rows leave before anything is counted. The receiving rank
// finds the final row of each selection, and copies the row there. Routing travels beside the rows, so one
// exchange does the work of prepare and dispatch. A launch may also move routing alone, which is a prepare,
// or rows alone, by a routing that is known.
//
//	send       slots_send.cuh       a warp stores a piece of a row in the slot at every rank that wants it
//	records    expert_index.cuh     a token's record says where all its selections go. Every rank gets it: of
//	                                few tokens from the notify block, of rows by expert from the metadata
//	                                blocks, else from the warp of the first piece
//	notify     notify.cuh           the last block opens the operation and waits for the openings of all ranks;
//	                                it counts and describes what comes, or the block before it does
//	final row  slots_final_row.cuh  zone + selections of lower ranks + index at the source
//	receive    slots_receive.cuh    a warp waits for a piece of a slot and copies it to its final rows
//
// slots_dispatch.cuh has the arguments; exchange.cuh says what stands in a window.
//
//	source                                   receiver
//	opening, tokens  --------------------->  notify: openings
//	counts           --------------------->  notify: description;  final row: table
//	records          --------------------->  final row
//	rows             --------------------->  receive
//
// Blocks divide the roles: work sends and receives, the last one or two notify. With IN_PLACE senders store
// rows where the caller reads them, and to receive is to wait.
//
// Why no memory is written too early: docs/design/gpu-engine.md, "Why two or three buffers are enough".
#include "slots_receive.cuh"

namespace weft {

// await_credit waits (IN_PLACE) until every rank has released the receive buffer that this operation writes. A
// rank announces its free buffers in the opening of the operation before, and releases this one in any case
// when it begins this operation: the block that notifies says so. credit is what the rank of this thread's
// index announced before. False: it gave up, on every thread of the block.
__device__ __forceinline__ bool await_credit(const Dispatch &a, const Batch &b, Wait &w, bool notifies, u32 credit) {
	u32 epoch = (u32)b.epoch + 1;
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (holds(b.mask, r)) continue;
		if (notifies) store_release_sys4(a.group.window[r] + a.ready + a.group.rank * 4, epoch);
		if (notifies || (credit >> a.block & 1) != 0) continue;
		await_epoch(w, r, b.own + a.ready + r * 4, epoch);
	}
	return __syncthreads_or(w.over) == 0;
}

#if WEFT_TRACE
// A launch that receives alone goes on with the operation that another began.
__device__ __forceinline__ void begin_trace(const Dispatch &a, Batch &b, u32 stopped) {
	b.trace = Trace(a.group, a.state, b.epoch + 1);
	if (threadIdx.x == 0 && stopped == 0 && (b.flags & SEND) != 0)
		b.trace.begin((b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE);
}
#endif

// open_batch takes the block's count. False: the State is stopped, and the operation is refused.
__device__ __forceinline__ bool open_batch(const Dispatch &a, Batch &b, const Count &count, u32 stopped) {
	b.epoch = count.epoch;
	b.turn = count.turn;
	WEFT_TRACED(begin_trace(a, b, stopped);)
	if (stopped == 0) return true;
	refuse(a.group, (b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);
	return false;
}

// notify is the work of a notify block: the last opens the operation and waits for the other ranks; the one
// before, or the same, counts and describes.
template <bool VALUE> __device__ __forceinline__ void notify(const Dispatch &a, Batch &b) {
	bool route = (b.flags & ROUTE) != 0, send = (b.flags & SEND) != 0, receive = (b.flags & RECEIVE) != 0;
	bool last = blockIdx.x == gridDim.x - 1, tells = a.notify_blocks == 1 || !last; // one may have to do all
	bool records = last && send && route && b.few, counts = send && route && !from_records(b);
	Windows windows(a.group);
	Counters m = counters();
	Spread s(a.shape.topk, blockDim.x);
	if (route) {
		if (tells) clear(m.words, min(WORDS, a.shape.experts));
		clear(m.tokens_here, MAX_RANKS);
		clear(m.sum, 1);
	}
	settle(windows);
	wait_for_previous();
	Count count = *count_of(a.state, blockIdx.x);
	u32 stopped = a.state->stopped, credit = 0, call = call_tag(call_of(b), route ? 0 : *prepare_number(a));
	b.mask = a.state->mask();
	SelectionBatch first;
	TokenRouting token;
	if (records && threadIdx.x / 32 < a.tokens) token.read(a, b, threadIdx.x / 32, threadIdx.x & 31);
	if (counts) first.read(a, b, s, 0);
	if (last && is_direct<VALUE>(b) && threadIdx.x < a.group.ranks) credit = a.credits[threadIdx.x];
	if (route) __syncthreads(); // the memory is clear
	if (!open_batch(a, b, count, stopped)) return;
	Wait w(a.group, a.state, (b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);
	if (!last) let_next_start(); // once the last one does
	if (send && last) {
		WEFT_TRACED(b.trace.signalled_by_all();)
		announce_all(a, b, call);
		if (is_direct<VALUE>(b) && (b.flags & MOVE) != 0 && !await_credit(a, b, w, true, credit)) return;
	}
	if (records) send_records(a, b, windows, token);
	if (counts && tells) send_counts(a, b, windows, m, s, first);
	if (counts && last) send_token_counts(a, b, m, s, first);
	if (receive && last) await_all(a, b, w, call);
	if (receive && tells) {
		if (counts) __syncthreads(); // the memory is read no more
		if (route) {
			describe_all(a, b, w, m, s);
		} else if (!from_records(b)) {
			reset_counts(a, b);
		}
		WEFT_TRACED(if (route) b.trace.first_at(SITE_COUNTED);)
	}
	leave(a.state, b.epoch, b.turn, receive);
	WEFT_TRACED(if (receive) b.trace.first_at(SITE_END);)
}

// work is the work of a block that moves rows. Of the b.blocks such blocks,
//
//	senders    the first ones, send rows
//	metadata   the last of the senders, send the records of all tokens, before rows; of VALUE rows they send none
//	receivers  the last ones, receive
//
// All blocks send and receive, unless much is sent: stores to peers fill the SM's queue, and its next loads wait
// behind them. Then senders and receivers are apart.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ void work(const Dispatch &a, Batch &b) {
	u32 lane = threadIdx.x & 31, ranks = a.group.ranks;
	bool move = (b.flags & MOVE) != 0, send = (b.flags & SEND) != 0, receive = (b.flags & RECEIVE) != 0,
		 direct = is_direct<VALUE>(b);
	Divisor pieces = move ? a.pieces : Divisor{1, 0xFFFFFFFFu};

	// What follows from the arguments alone is computed while the kernel before this one still runs.
	Windows windows(a.group);
	bool apart = VALUE && send && receive && move && a.senders != 0;
	u32 senders = apart ? a.senders : b.blocks, receivers = apart ? b.blocks - senders : b.blocks;
	u32 metadata = send && (b.flags & ROUTE) != 0 && maps(a, b) ? metadata_blocks(a, senders) : 0;
	bool sends_metadata = metadata != 0 && blockIdx.x >= senders - metadata && blockIdx.x < senders;
	Walk k = VALUE ? Walk::spread(a.tokens * pieces.by, 0, senders - metadata)
				   : Walk::share(a.shape.capacity * pieces.by, b.blocks);
	// A block that sends metadata has enough to do. FLAG rows need its share: the peers' blocks await its flag.
	k.end = send && !(VALUE && sends_metadata) ? min(k.end, a.tokens * pieces.by) : 0;
	Item item = Item::of(pieces, k.at);
	bool table = receive && (b.flags & ROUTE) != 0 && has_table(a, b) && blockIdx.x >= b.blocks - receivers;
	if (table) {
		if (threadIdx.x == 0) barrier_init(table_ready(), 32); // each lane that fills it
		__syncthreads();
	}
	settle(windows);
	settle(k.at), settle(k.end), settle(item.t), settle(item.pc);
	wait_for_previous();

	// The state is read, and what is to be sent is on its way, before anything is known.
	Count count = *count_of(a.state, blockIdx.x);
	u32 stopped = a.state->stopped, credit = 0;
	b.mask = a.state->mask();
	Fetched<UNITS> next;
	if (k.at < k.end) fetch<UNITS>(a, b, item, lane, next);
	if (direct && threadIdx.x < ranks) credit = a.credits[threadIdx.x];
	if (!open_batch(a, b, count, stopped)) return;
	let_next_start(); // once the notify block does
	b.buffer = VALUE ? b.turn : (u32)(b.epoch & 1);
	Wait w(a.group, a.state, move ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);

	bool records = send && (b.flags & ROUTE) != 0 && !b.few;
	if (direct && send && move && !await_credit(a, b, w, false, credit)) return;
	if constexpr (BY_EXPERT) {
		if (sends_metadata) write_records(a, b, windows, senders - 1 - blockIdx.x, metadata);
	}
	for (u32 i = k.at; i < k.end; i += k.step) {
		Fetched<UNITS> f = next;
		if (i + k.step < k.end) fetch<UNITS>(a, b, Item::of(pieces, i + k.step), lane, next);
		send_piece<VALUE, UNITS>(a, b, windows, lane, f, records && metadata == 0);
	}
	WEFT_TRACED(if (send && move) b.trace.first_at(SITE_PUSHED);)
	if (!VALUE && send && move) { // the block's flag, behind its rows: the barrier and the fence order them
		WEFT_TRACED(b.trace.signalled_first();)
		__syncthreads();
		for (u32 r = threadIdx.x; r < ranks; r += blockDim.x) {
			if (holds(b.mask, r)) continue;
			fence_sys();
			store_relaxed_sys4(a.group.window[r] + a.arrived + ((u64)a.group.rank * b.blocks + blockIdx.x) * 4,
							   (u32)b.epoch + 1);
		}
	}
	RankSet seen = RankSet::none();
	Reach reach;
	if (table) {
		if (sends_metadata) __syncthreads(); // its map is read no more
		if (threadIdx.x / 32 == blockDim.x / 32 - 1) fill_table(a, b, w, lane);
	}
	if (VALUE && receive) {
		// Also the pieces that do not come this time were filled the time before.
		k = Walk::spread(a.shape.capacity * a.pieces.by * ranks, b.blocks - receivers, receivers);
		Incoming slot;
		if (k.at < k.end) slot.read(a, b, k.at);
		for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
			Incoming now = slot;
			if (i + k.step < k.end) slot.read(a, b, i + k.step);
			Reach::Found found = reach.find(a, b, w, now.item.t);
			if (found == Reach::END) break;
			receive_piece<true, UNITS>(a, b, w, now.src, now.item, lane, now.filled, found == Reach::ONLY_FORMER, seen);
		}
	}
	if (!VALUE && receive) {
		// Where rows are in place already, only their first pieces have something to do.
		bool in_place = direct && !nonempty(b.mask);
		k = Walk::share(a.shape.capacity * (in_place ? 1 : pieces.by), b.blocks);
		for (u32 i = k.from * ranks + threadIdx.x / 32; i < k.end * ranks && !w.over; i += k.step) {
			u32 s, pc = 0, t = a.ranks.quotient(i, s);
			if (!in_place) t = pieces.quotient(t, pc);
			Reach::Found found = reach.find(a, b, w, t);
			if (found == Reach::END) break;
			receive_piece<false, UNITS>(a, b, w, next_rank(a.group, s), {t, pc}, lane, false, found == Reach::ONLY_FORMER,
										seen);
		}
		for (u32 r = threadIdx.x; move && r < ranks; r += blockDim.x) {
			if (!holds(b.mask, r))
				await_epoch(w, r, b.own + a.arrived + ((u64)r * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			WEFT_TRACED(if (!holds(b.mask, r) && r != a.group.rank && !w.over) w.trace.arrived(r);)
		}
	}
	leave(a.state, b.epoch, b.turn, receive);
	WEFT_TRACED(if (receive && move) b.trace.first_at(SITE_PLACED);)
	WEFT_TRACED(if (receive) b.trace.first_at(SITE_END);)
}

// What a kernel is for. Most calls do everything at once: kernels for these alone, one of them for
// few tokens, do not ask what the launch does. A warp that is alone takes five cycles an
// instruction, so that is a tenth of the time of a small dispatch. They serve both orders of
// scales, and powers of two: strides that the host gives replace a question for the order, and a
// power of two takes five instructions, so kernels for each would gain nothing that the time to
// compile them is worth.
enum Purpose { ANY, MANY, FEW };

template <bool VALUE, u32 UNITS, Purpose FOR> __device__ __forceinline__ void dispatch(const Dispatch &a) {
	touch(&a, sizeof(a));
	Batch b;
	b.blocks = gridDim.x - a.notify_blocks;
	b.flags = FOR == ANY ? a.flags : a.flags | SEND | RECEIVE | ROUTE | MOVE;
	if (VALUE) b.flags &= ~EXPONENTS; // which may be any bits
	b.few = FOR == ANY ? few(a) : FOR == FEW;
	b.own = a.group.window[a.group.rank];
	if (blockIdx.x >= b.blocks) {
		notify<VALUE>(a, b);
	} else {
		work<VALUE, UNITS>(a, b);
	}
}

} // namespace weft

#if WEFT_PORTS == 1
#include "ports_dispatch.cuh"
#elif WEFT_PORTS == 2
#include "ports_hosts.cuh"
#endif

namespace weft::slots {

// WEFT_KERNEL is the kernel's name: what an exchange is for, as profilers show it. Kernels of all
// forms have the same one.
__global__ void __launch_bounds__(WEFT_VALUE &&WEFT_UNITS == 1 ? 256 : 512, 1)
	WEFT_KERNEL(const __grid_constant__ Dispatch a) {
	weft::dispatch<WEFT_VALUE, WEFT_UNITS, WEFT_PURPOSE>(a);
}

} // namespace weft::slots
