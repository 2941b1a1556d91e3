// The scheduler. A thread of a kernel is a fiber: a stack and a saved stack pointer. All threads of
// a launch run on the launching thread of the operating system, one at a time, so they share state
// without a lock. Blocks take turns; in its turn a block runs until its threads have ended, wait
// for each other, or have polled for a while. No wake-up is lost: the fiber that lets another
// continue puts it into its block's queue.
#include "machine.h"

#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

namespace emulate {

extern const Kernel kernels[];
extern const u32 kernel_count;

namespace {

enum State { READY, POLLING, MEETS, AT_BARRIER, ENDED };

const char *const names[] = {"__syncwarp",	   "__shfl_sync",	   "__ballot_sync",	  "__any_sync",		"__all_sync",
							 "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync",
							 "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync", "__match_any_sync"};

// A Copy is a bulk copy that has not happened yet.
struct Copy {
	Copy *next;
	Thread *thread;
	void *to;
	const void *from;
	u64 *barrier; // of a load; null for a store
	u32 bytes, delay, group;
};

// A Late store to a peer's memory. Fences order it against stores to other addresses, and the program's order holds for
// stores to the same one.
struct Late {
	void *to;
	u64 value;
	u32 bytes, owner; // the thread that stored, or ALL_THREADS: a barrier has ordered it for all
	u32 aliased;	  // it went by another address than loads will: a fence orders it only after fence_alias
};

constexpr u32 ALL_THREADS = ~0u, LATE = 64;

// A Queue of threads has room for all of a block.
struct Queue {
	Thread **at;
	u32 first, count, room;

	// A division at every step would take longer than many steps of a thread.
	u32 place(u32 i) const { return first + i < room ? first + i : first + i - room; }
	void push(Thread *t) { at[place(count++)] = t; }
	Thread *pop() {
		Thread *t = at[first];
		first = place(1);
		count--;
		return t;
	}
	Thread *get(u32 i) const { return at[place(i)]; }
	// exchange lets the i-th and the k-th change places.
	void exchange(u32 i, u32 k) {
		Thread *&a = at[place(i)], *&b = at[place(k)], *t = a;
		a = b;
		b = t;
	}
};

// Some is a barrier of some of a block's threads.
struct Some {
	u32 arrived, threads, outcome;
};
constexpr u32 BARRIERS = 16;

struct FullBlock : Block {
	Thread **threads;
	u32 *meeting, *ended; // lanes of each warp that are in a collective, and that have ended or never were
	u32 count, alive, arrived, outcome;
	Barrier kind;
	const char *file;
	int line;
	Thread *last; // the last to arrive
	Some some[BARRIERS];
	Queue ready, polling;
	u8 *own; // its static shared memory, while another block runs
	bool begun;
	u32 place; // its part of the launch's stacks and shared memory, once it has begun
	Copy *copies;
	Late late[LATE];
	u32 lates;
};

struct FullGrid : Grid {
	const Kernel *kernel;
	FullBlock *all, *current;
	Thread *running;
	void *stack; // the scheduler's pointer
	u64 random, progress, deadline;
	u8 *statics; // where static shared memory is on this thread
	u64 static_size;
	// A block gets its stacks and its shared memory in its first turn, and the next one gets them when it has ended:
	// blocks that wait for no other take turns in memory that the processor's caches hold.
	u8 *stacks, *memory;
	u64 shared_room, memory_room; // bytes of a block: dynamic shared memory, all shared memory
	u32 *places, places_left;	  // places that no block has, the next one last
};

FullBlock *block_of(Thread *t) { return static_cast<FullBlock *>(t->block); }
FullGrid *grid_of(Thread *t) { return static_cast<FullGrid *>(t->block->grid); }

u64 chance(FullGrid *g) {
	g->random ^= g->random << 13;
	g->random ^= g->random >> 7;
	g->random ^= g->random << 17;
	return g->random;
}

// below is a number from 0 to n - 1.
u32 below(FullGrid *g, u32 n) { return (u32)((chance(g) >> 32) * n >> 32); }

} // namespace

// weft_switch saves the registers that C preserves over calls and the stack pointer, and loads
// those at to.
extern "C" __attribute__((visibility("hidden"))) void weft_switch(void **save, void *to);

#if defined(__x86_64__)
asm(R"(
	.text
	.p2align 4
	.globl weft_switch
	.hidden weft_switch
	.type weft_switch, @function
weft_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
	.size weft_switch, .-weft_switch
)");
#elif defined(__aarch64__)
asm(R"(
	.text
	.p2align 4
	.globl weft_switch
	.hidden weft_switch
	.type weft_switch, %function
weft_switch:
	sub sp, sp, #160
	stp x19, x20, [sp, #0]
	stp x21, x22, [sp, #16]
	stp x23, x24, [sp, #32]
	stp x25, x26, [sp, #48]
	stp x27, x28, [sp, #64]
	stp x29, x30, [sp, #80]
	stp d8, d9, [sp, #96]
	stp d10, d11, [sp, #112]
	stp d12, d13, [sp, #128]
	stp d14, d15, [sp, #144]
	mov x9, sp
	str x9, [x0]
	mov sp, x1
	ldp x19, x20, [sp, #0]
	ldp x21, x22, [sp, #16]
	ldp x23, x24, [sp, #32]
	ldp x25, x26, [sp, #48]
	ldp x27, x28, [sp, #64]
	ldp x29, x30, [sp, #80]
	ldp d8, d9, [sp, #96]
	ldp d10, d11, [sp, #112]
	ldp d12, d13, [sp, #128]
	ldp d14, d15, [sp, #144]
	add sp, sp, #160
	ret
	.size weft_switch, .-weft_switch
)");
#else
#error "the emulator switches stacks on amd64 and arm64 only"
#endif

namespace {

// suspend goes back to the scheduler.
void suspend(Thread *t) { weft_switch(&t->stack, grid_of(t)->stack); }

// note keeps the first failure. It does not return to a thread that failed: see fail.
__attribute__((format(printf, 3, 4))) void note(FullGrid *g, Cause cause, const char *format, ...) {
	if (g->failed) return;
	g->failed = true;
	g->launch->cause = cause;
	va_list all;
	va_start(all, format);
	vsnprintf(g->launch->text, g->launch->room, format, all);
	va_end(all);
}

struct Name {
	char text[96];
};

Name name_of(Thread *t) {
	Name p;
	Index b = t->block->index, i = t->index, blocks = t->block->grid->blocks, threads = t->block->grid->threads;
	if (blocks.y * blocks.z * threads.y * threads.z == 1) {
		snprintf(p.text, sizeof p.text, "block %u, thread %u", b.x, i.x);
	} else {
		snprintf(p.text, sizeof p.text, "block (%u,%u,%u), thread (%u,%u,%u)", b.x, b.y, b.z, i.x, i.y, i.z);
	}
	return p;
}

// FAIL records a thread's mistake and ends it.
#define FAIL(t, cause, format, ...) \
	do { \
		note(grid_of(t), cause, "%s: " format, name_of(t).text, ##__VA_ARGS__); \
		for (;;) suspend(t); \
	} while (0)

void release(Thread *t) {
	t->state = READY;
	block_of(t)->ready.push(t);
	grid_of(t)->progress++;
}

} // namespace

u64 now() {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

u8 *dynamic_shared() { return self()->block->shared; }

// ---- Memory.

namespace {

bool reachable(Grid *g, u64 a, u32 bytes) {
	const Range *all = g->launch->ranges;
	u64 low = 0, high = g->launch->count;
	while (low < high) {
		u64 middle = (low + high) / 2;
		if (all[middle].end <= a) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	if (low == g->launch->count || a < all[low].base || a + bytes > all[low].end || a + bytes < a) return false;
	g->base = all[low].base;
	g->end = all[low].end;
	g->peer = all[low].peer != 0;
	return true;
}

} // namespace

void stray(const void *p, u32 bytes, const char *what) {
	Thread *t = self();
	if (((u64)p & (bytes < 16 ? bytes - 1 : 15)) != 0)
		FAIL(t, MISALIGNED, "%s of %u bytes at %p, which is not aligned", what, bytes, p);
	if (!reachable(t->block->grid, (u64)p, bytes))
		FAIL(t, ILLEGAL_ADDRESS, "%s of %u bytes at %p, which the device cannot reach", what, bytes, p);
}

// ---- Memory of several devices.

u8 *replica(const void *p, u32 bytes, u32 i, bool *peer, const char *what) {
	Thread *t = self();
	const Launch *l = t->block->grid->launch;
	u64 a = (u64)p;
	u32 found = 0, devices = 0;
	u8 *memory = nullptr;
	if ((a & (bytes - 1)) != 0) FAIL(t, MISALIGNED, "%s of %u bytes at %p, which is not aligned", what, bytes, p);
	for (u64 k = 0; k < l->replica_count; k++) {
		const Replica &r = l->replicas[k];
		if (a < r.base || a + bytes > r.end) continue;
		devices = r.devices;
		if (found++ != i) continue;
		memory = (u8 *)(r.memory + (a - r.base));
		*peer = r.peer != 0;
	}
	if (found == 0) FAIL(t, ILLEGAL_ADDRESS, "%s of %u bytes at %p, which is no multicast address", what, bytes, p);
	if (found != devices)
		FAIL(t, ILLEGAL_ADDRESS, "%s at %p, where %u of %u devices have memory", what, p, found, devices);
	return memory;
}

// ---- Stores that are late.

namespace {

// arrive lets the i-th late store of a block land.
void arrive(FullBlock *b, u32 i) {
	Late l = b->late[i];
	b->late[i] = b->late[--b->lates];
	if (l.bytes == 8) {
		__atomic_store_n((u64 *)l.to, l.value, __ATOMIC_RELAXED);
	} else {
		__atomic_store_n((u32 *)l.to, (u32)l.value, __ATOMIC_RELAXED);
	}
	static_cast<FullGrid *>(b->grid)->progress++;
}

void arrive_all(FullBlock *b) {
	while (b->lates > 0) arrive(b, (u32)(chance(static_cast<FullGrid *>(b->grid)) % b->lates));
}

// share attributes the stores so far to every thread of the block: a fence of any of them covers
// all.
void share(FullBlock *b) {
	for (u32 i = 0; i < b->lates; i++) {
		if (b->late[i].aliased == 0) b->late[i].owner = ALL_THREADS;
	}
}

} // namespace

// land performs the block's delayed stores to an address.
void land(const void *p, u32 bytes) {
	FullBlock *b = block_of(self());
	for (u32 i = b->lates; i-- > 0;) {
		u64 a = (u64)p, o = (u64)b->late[i].to;
		if (a < o + b->late[i].bytes && o < a + bytes) arrive(b, i);
	}
}

namespace {

void put_off(void *p, u64 value, u32 bytes, u32 aliased) {
	Thread *t = self();
	FullBlock *b = block_of(t);
	land(p, bytes);
	if (b->lates == LATE) arrive(b, (u32)(chance(grid_of(t)) % LATE));
	b->late[b->lates++] = {p, value, bytes, t->number, aliased};
}

} // namespace

void defer(void *p, u64 value, u32 bytes) { put_off(p, value, bytes, 0); }

void defer_aliased(void *p, u64 value, u32 bytes) { put_off(p, value, bytes, 1); }

void fence_alias() {
	Thread *t = self();
	FullBlock *b = block_of(t);
	for (u32 i = 0; i < b->lates; i++) {
		if (b->late[i].owner == t->number) b->late[i].aliased = 0;
	}
}

void fence() {
	Thread *t = self();
	FullBlock *b = block_of(t);
	for (u32 i = b->lates; i-- > 0;) {
		if (b->late[i].aliased == 0 && (b->late[i].owner == t->number || b->late[i].owner == ALL_THREADS)) arrive(b, i);
	}
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// ---- Polling.

namespace {

// copy performs bulk copies that are due: the stores of a thread, if one is given, in groups up to one.
void copy(FullBlock *b, Thread *only, u32 group = 0);

} // namespace

void yield() {
	Thread *t = self();
	FullBlock *b = block_of(t);
	if (b->copies != nullptr) copy(b, nullptr);
	if (b->lates > 0) {
		u64 r = chance(grid_of(t));
		if ((r & 3) == 0) arrive(b, (u32)((r >> 2) % b->lates));
	}
	t->state = POLLING;
	t->polls = 0; // meetings between polls do not make a thread patient again
	b->polling.push(t);
	suspend(t);
}

void tear() {
	u64 r = chance(grid_of(self()));
	if ((r & 7) == 0) yield();
	if ((r >> 3 & 127) == 0) sched_yield();
}

// ---- Barriers.

namespace {

void pass(FullBlock *b) {
	u32 outcome = b->kind == BARRIER_AND ? b->outcome == b->arrived : b->kind == BARRIER_OR ? b->outcome != 0 : b->outcome;
	b->arrived = b->outcome = 0;
	share(b);
	for (u32 i = 0; i < b->count; i++) {
		Thread *t = b->threads[i];
		if (t->state != AT_BARRIER || t->barrier != 0) continue;
		t->result = outcome;
		release(t);
	}
}

} // namespace

u32 barrier_of(u32 number, u32 threads, u32 value) {
	Thread *t = self();
	FullBlock *b = block_of(t);
	if (number == 0 || number >= BARRIERS || threads == 0 || threads % 32 != 0 || threads > b->count)
		FAIL(t, FAILED, "barrier %u of %u threads: want 1 to %u, of whole warps of the block's %u threads", number, threads,
			 BARRIERS - 1, b->count);
	Some &s = b->some[number];
	if (s.arrived > 0 && s.threads != threads)
		FAIL(t, FAILED, "barrier %u of %u threads, where others wait for %u", number, threads, s.threads);
	s.threads = threads, s.arrived++, s.outcome += value;
	t->state = AT_BARRIER, t->barrier = number, t->line = 0;
	if (s.arrived == threads) {
		u32 outcome = s.outcome;
		s = {};
		share(b);
		for (u32 i = 0; i < b->count; i++) {
			Thread *o = b->threads[i];
			if (o->state != AT_BARRIER || o->barrier != number) continue;
			o->barrier = 0, o->result = outcome;
			release(o);
		}
	}
	suspend(t);
	return (u32)t->result;
}

u32 barrier(Barrier kind, u32 value, const char *file, int line) {
	Thread *t = self();
	FullBlock *b = block_of(t);
	if (b->arrived > 0 && (b->line != line || b->kind != kind || strcmp(b->file, file) != 0)) {
		FAIL(t, FAILED, "divergent barriers: it is at %s:%d, and thread %u waits at %s:%d", file, line,
			 b->last->number, b->file, b->line);
	}
	b->kind = kind, b->file = file, b->line = line, b->last = t;
	b->arrived++;
	b->outcome += value;
	t->state = AT_BARRIER, t->file = file, t->line = line;
	if (b->arrived == b->alive) pass(b);
	suspend(t);
	return (u32)t->result;
}

// ---- Warps.

namespace {

u64 combine(Operation op, u64 a, u64 v) {
	u32 x = (u32)a, y = (u32)v;
	switch (op) {
	case ADD: return x + y;
	case MINIMUM: return x < y ? x : y;
	case MAXIMUM: return x > y ? x : y;
	case SIGNED_MINIMUM: return (int)x < (int)y ? x : y;
	case SIGNED_MAXIMUM: return (int)x > (int)y ? x : y;
	case AND: return x & y;
	case OR: return x | y;
	default: return x ^ y;
	}
}

// settle lets a warp's lanes of a mask go on if they are all there. Lanes that have ended, or never were, do not count.
bool settle(FullBlock *b, u32 first, u32 mask, Thread *running) {
	u32 &meeting = b->meeting[first / 32];
	if ((mask & ~(meeting | b->ended[first / 32])) != 0) return false; // most lanes come before the last
	Thread *lanes[32] = {}, *some = nullptr;
	for (u32 i = 0; i < 32 && first + i < b->count; i++) {
		Thread *t = b->threads[first + i];
		if ((mask >> i & 1) == 0 || t->state == ENDED) continue;
		if (t->state != MEETS || t->mask != mask) return false;
		lanes[i] = some = t;
	}
	if (some == nullptr) return false;
	share(b);
	Operation op = (Operation)some->operation;
	u32 ballot = 0, present = 0;
	u64 total = 0;
	bool began = false;
	for (u32 i = 0; i < 32; i++) {
		if (lanes[i] == nullptr) continue;
		present |= 1u << i;
		if (lanes[i]->value != 0) ballot |= 1u << i;
		total = began ? combine(op, total, lanes[i]->value) : lanes[i]->value;
		began = true;
	}
	for (u32 i = 0; i < 32; i++) {
		Thread *t = lanes[i];
		if (t == nullptr) continue;
		switch (op) {
		case SYNC: t->result = 0; break;
		case SHUFFLE:
			// The value of a lane that does not take part is anything.
			t->result = lanes[t->argument & 31] != nullptr ? lanes[t->argument & 31]->value : 0xDEADBEEFDEADBEEFull;
			break;
		case BALLOT: t->result = ballot; break;
		case ANY: t->result = ballot != 0; break;
		case ALL: t->result = ballot == present; break;
		case MATCH:
			t->result = 0;
			for (u32 k = 0; k < 32; k++) {
				if (lanes[k] != nullptr && lanes[k]->value == t->value) t->result |= 1ull << k;
			}
			break;
		default: t->result = total;
		}
	}
	meeting &= ~present;
	for (u32 i = 0; i < 32; i++) {
		if (lanes[i] == nullptr) continue;
		if (lanes[i] == running) {
			running->state = READY;
			grid_of(running)->progress++;
		} else {
			release(lanes[i]);
		}
	}
	return true;
}

} // namespace

u64 meet(Operation op, u32 mask, u64 value, u32 argument, const char *file, int line) {
	Thread *t = self();
	FullBlock *b = block_of(t);
	u32 first = t->number & ~31u;
	if ((mask >> t->lane & 1) == 0)
		FAIL(t, FAILED, "%s at %s:%d: lane %u is not in its own mask %#x", names[op], file, line, t->lane, mask);
	t->mask = mask, t->operation = op, t->value = value, t->argument = argument, t->file = file, t->line = line;
	u32 &meeting = b->meeting[first / 32];
	for (u32 rest = meeting & mask; rest != 0; rest &= rest - 1) {
		Thread *o = b->threads[first + (u32)__builtin_ctz(rest)];
		if (o->mask != mask) continue;
		if (o->operation == (u32)op) break; // all that came with this mask are at one operation
		FAIL(t, FAILED, "divergent warp: it is at %s, %s:%d, and thread %u at %s, %s:%d, with the same mask %#x",
			 names[op], file, line, o->number,
			 names[o->operation], o->file, o->line, mask);
	}
	t->state = MEETS;
	meeting |= 1u << t->lane;
	if (settle(b, first, mask, t)) {
		poll(); // a lane alone could go on for ever
	} else {
		suspend(t);
	}
	return t->result;
}

// ---- Bulk copies. A barrier is a word: from its low end, arrivals that are missing (20 bits), arrivals of a phase
// (20 bits), bytes that are missing (22 bits, biased), and at the top the phase.

namespace {

constexpr u64 BIAS = 1 << 21;

u64 pack(u64 missing, u64 arrivals, u64 bytes, u64 phase) {
	return missing | arrivals << 20 | bytes << 40 | phase << 63;
}

void change(u64 *barrier, u64 arrived, long long bytes) {
	u64 w = *barrier, missing = w & 0xFFFFF, arrivals = w >> 20 & 0xFFFFF;
	u64 left = (w >> 40 & 0x3FFFFF) + (u64)bytes, phase = w >> 63;
	missing -= arrived;
	if (missing == 0 && left == BIAS) {
		missing = arrivals;
		phase ^= 1;
	}
	*barrier = pack(missing, arrivals, left, phase);
}

void move(FullBlock *b, Copy *c) {
	// As the copy engine might, from the end: the first bytes are no sign of the last.
	const u32 *from = (const u32 *)c->from;
	u32 *to = (u32 *)c->to;
	for (u32 i = c->bytes / 4; i-- > 0;)
		__atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	if (c->barrier != nullptr) {
		change(c->barrier, 0, -(long long)c->bytes);
	} else {
		c->thread->bulk--;
	}
	static_cast<FullGrid *>(b->grid)->progress++;
}

void copy(FullBlock *b, Thread *only, u32 group) {
	for (Copy **at = &b->copies; *at != nullptr;) {
		Copy *c = *at;
		bool due = only != nullptr ? c->thread == only && c->barrier == nullptr && c->group <= group : c->delay == 0;
		if (!due) {
			if (only == nullptr) c->delay--;
			at = &c->next;
			continue;
		}
		*at = c->next;
		move(b, c);
		free(c);
	}
}

bool is_shared(Thread *t, const void *p, u32 bytes) {
	FullGrid *g = grid_of(t);
	u64 a = (u64)p, s = (u64)g->statics, d = (u64)t->block->shared;
	return (a >= s && a + bytes <= s + g->static_size) || (a >= d && a + bytes <= d + g->launch->shared);
}

void bulk(void *to, const void *from, u32 bytes, u64 *barrier, const char *what) {
	Thread *t = self();
	FullBlock *b = block_of(t);
	const void *global = barrier != nullptr ? from : to, *shared = barrier != nullptr ? to : from;
	if (bytes % 16 != 0 || ((u64)shared & 15) != 0)
		FAIL(t, MISALIGNED, "%s of %u bytes, shared memory at %p: want multiples of 16", what, bytes, shared);
	if (!is_shared(t, shared, bytes))
		FAIL(t, ILLEGAL_ADDRESS, "%s of %u bytes: %p is not the block's shared memory", what, bytes, shared);
	if (bytes > 0) stray(global, bytes, what);
	Copy *c = (Copy *)malloc(sizeof(Copy));
	*c = {nullptr, t, to, from, barrier, bytes, 2 + (u32)(chance(grid_of(t)) & 3), t->groups};
	Copy **end = &b->copies;
	while (*end != nullptr) end = &(*end)->next;
	*end = c;
	if (barrier == nullptr) t->bulk++;
}

void check_barrier(u64 *barrier, const char *what) {
	Thread *t = self();
	if (!is_shared(t, barrier, 8) || ((u64)barrier & 7) != 0)
		FAIL(t, ILLEGAL_ADDRESS, "%s: no barrier can be at %p", what, (void *)barrier);
}

} // namespace

// atomic is before an atomic operation, on shared or global memory.
void atomic(const void *p, u32 bytes) {
	Thread *t = self();
	poll();
	if (is_shared(t, p, bytes) && (u64)p % bytes == 0) return;
	reach(p, bytes, "an atomic operation");
	land(p, bytes);
}

void barrier_init(u64 *barrier, u32 arrivals) {
	check_barrier(barrier, "barrier_init");
	*barrier = pack(arrivals, arrivals, BIAS, 0);
}

void barrier_expect(u64 *barrier, u32 bytes) {
	check_barrier(barrier, "barrier_expect");
	change(barrier, 1, bytes);
}

bool barrier_done(u64 *barrier, u32 parity) {
	check_barrier(barrier, "barrier_done");
	if (*barrier >> 63 != (parity & 1)) return true;
	yield();
	return *barrier >> 63 != (parity & 1);
}

void bulk_load(void *shared, const void *global, u32 bytes, u64 *barrier) {
	check_barrier(barrier, "bulk_load");
	bulk(shared, global, bytes, barrier, "bulk_load");
}

void bulk_store(void *global, const void *shared, u32 bytes) { bulk(global, shared, bytes, nullptr, "bulk_store"); }

void bulk_commit() { self()->groups++; }

void bulk_wait() {
	Thread *t = self();
	if (t->bulk == 0) return;
	yield();
	copy(block_of(t), t, t->groups);
}

void bulk_wait_before() {
	Thread *t = self();
	if (t->bulk == 0 || t->groups < 2) return;
	yield();
	copy(block_of(t), t, t->groups - 2);
}

// ---- Launches.

namespace {

// The first word of static shared memory, by which the rest is found. Nobody else here has thread-local memory.
thread_local u64 anchor;

struct Segment {
	u64 base, size; // of this library's thread-local memory
};

int find(dl_phdr_info *info, size_t, void *out) {
	u64 here = (u64)&find;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const auto &h = info->dlpi_phdr[i];
		u64 base = info->dlpi_addr + h.p_vaddr;
		if (h.p_type != PT_LOAD || here < base || here >= base + h.p_memsz) continue;
		Segment *s = (Segment *)out;
		for (int k = 0; k < info->dlpi_phnum; k++) {
			if (info->dlpi_phdr[k].p_type == PT_TLS) s->size = info->dlpi_phdr[k].p_memsz;
		}
		s->base = (u64)info->dlpi_tls_data;
		return 1;
	}
	return 0;
}

static_assert(sizeof(Thread) <= 256, "thread_at leaves 256 bytes");

// Stacks are kept for the next launch, of this library or another: what each library kept for
// itself would add up, to gigabytes.
struct Arena {
	Arena *next;
	void *mapping;
	u64 size;
	u8 *base;
	u64 stacks;
};

constexpr u64 GUARD = 1 << 20; // below the first stack

constexpr u64 KEPT = 128 << 10; // stacks, of which each has up to 12 KiB that were touched

// A Pool is Go's: stacks.
struct Pool {
	u64 locked;
	Arena *first;
	u64 stacks;

	void lock() {
		while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE) != 0) sched_yield();
	}
	void unlock() { __atomic_store_n(&locked, 0, __ATOMIC_RELEASE); }
};

// ---- Plain accesses to what is not there.

// Launches that run, for a signal's handler: it must know whether the stack that it interrupts is a fiber's.
struct Active {
	FullGrid *grid; // null: none
	u64 base, end;	// of the stacks, and the guard below them
};
constexpr int ACTIVE = 256;
Active active[ACTIVE];

struct sigaction before[2]; // handlers of SIGSEGV and SIGBUS

int announce(FullGrid *g, Arena *a) {
	for (int i = 0; i < ACTIVE; i++) {
		u64 none = 0;
		if (!__atomic_compare_exchange_n(&active[i].end, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
		__atomic_store_n(&active[i].base, (u64)a->base - GUARD, __ATOMIC_RELAXED);
		__atomic_store_n(&active[i].grid, g, __ATOMIC_RELAXED);
		__atomic_store_n(&active[i].end, (u64)a->base + a->stacks * STACK, __ATOMIC_RELEASE);
		return i;
	}
	return -1; // this many launches at once: a fault ends the process
}

void conceal(int i) {
	if (i >= 0) __atomic_store_n(&active[i].end, 0, __ATOMIC_RELEASE);
}

// stay is where a thread goes on that may not.
void stay() {
	Thread *t = self();
	for (;;) suspend(t);
}

void fault(int number, siginfo_t *info, void *context) {
	mcontext_t &m = ((ucontext_t *)context)->uc_mcontext;
#if defined(__x86_64__)
	u64 pointer = (u64)m.gregs[REG_RSP];
#else
	u64 pointer = m.sp;
#endif
	for (int i = 0; i < ACTIVE; i++) {
		// The interrupted thread's own launch does not change meanwhile, and its stacks are nobody else's.
		u64 end = __atomic_load_n(&active[i].end, __ATOMIC_ACQUIRE);
		u64 base = __atomic_load_n(&active[i].base, __ATOMIC_RELAXED);
		if (pointer < base || pointer >= end) continue;
		FullGrid *g = __atomic_load_n(&active[i].grid, __ATOMIC_RELAXED);
		Thread *t = g->running;
		u64 bottom = (u64)t & ~(STACK - 1), at = (u64)info->si_addr;
		if (at < bottom && at >= bottom - GUARD) {
			note(g, FAILED, "%s: its stack of %llu bytes is too small", name_of(t).text, STACK);
		} else {
			note(g, ILLEGAL_ADDRESS, "%s: an access at %p, where no memory is", name_of(t).text, info->si_addr);
		}
		u64 stack = ((u64)t & ~15ull) - 64; // what lies on it is done with
#if defined(__x86_64__)
		m.gregs[REG_RSP] = (greg_t)(stack - 8);
		m.gregs[REG_RIP] = (greg_t)&stay;
#else
		m.sp = stack;
		m.pc = (u64)&stay;
#endif
		return;
	}
	const struct sigaction &old = before[number == SIGBUS];
	if ((old.sa_flags & SA_SIGINFO) != 0) {
		old.sa_sigaction(number, info, context);
	} else if (old.sa_handler == SIG_DFL || old.sa_handler == SIG_IGN) {
		sigaction(number, &old, nullptr); // and the access is made again
	} else {
		old.sa_handler(number);
	}
}

// take gives the smallest arena that is kept and large enough, or else a new one: stacks that were touched before
// cost no page faults.
Arena *take(Pool *pool, u64 least) {
	u64 stacks = 1024;
	while (stacks < least) stacks *= 2;
	pool->lock();
	Arena **at = nullptr, *a = nullptr;
	for (Arena **i = &pool->first; *i != nullptr; i = &(*i)->next) {
		if ((*i)->stacks >= least && (at == nullptr || (*i)->stacks < (*at)->stacks)) at = i;
	}
	if (at != nullptr) {
		a = *at;
		*at = a->next;
		pool->stacks -= a->stacks;
	}
	pool->unlock();
	if (a != nullptr) return a;
	u64 size = (stacks + 1) * STACK + GUARD;
	void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) return nullptr;
	madvise(p, size, MADV_NOHUGEPAGE);
	u8 *base = (u8 *)(((u64)p + GUARD + STACK - 1) & ~(STACK - 1));
	mprotect(p, (u64)base - (u64)p, PROT_NONE);
	a = (Arena *)malloc(sizeof(Arena));
	*a = {nullptr, p, size, base, stacks};
	return a;
}

void give(Pool *pool, Arena *a, bool clean) {
	pool->lock();
	bool keep = clean && pool->stacks + a->stacks <= KEPT; // if not clean, a stack may have run over
	if (keep) {
		a->next = pool->first;
		pool->first = a;
		pool->stacks += a->stacks;
	}
	pool->unlock();
	if (keep) return;
	munmap(a->mapping, a->size);
	free(a);
}

void end_thread(Thread *t) {
	FullBlock *b = block_of(t);
	FullGrid *g = grid_of(t);
	if (t->bulk != 0) {
		note(g, FAILED, "%s: it ended before its bulk stores had been read: bulk_wait_read is missing", name_of(t).text);
	}
	t->state = ENDED;
	b->ended[t->number / 32] |= 1u << t->lane;
	g->progress++;
	b->alive--;
	if (b->alive > 0 && b->arrived == b->alive) pass(b);
	u32 first = t->number & ~31u;
	for (u32 i = 0; i < 32 && first + i < b->count; i++) {
		Thread *o = b->threads[first + i];
		if (o->state == MEETS) settle(b, first, o->mask, nullptr);
	}
	if (b->alive == 0) {
		arrive_all(b);
		for (Copy *c = b->copies; c != nullptr; c = c->next) {
			if (c->barrier != nullptr) note(g, FAILED, "%s: the block ended before a bulk load had", name_of(t).text);
		}
	}
}

void begin() {
	Thread *t = self();
	grid_of(t)->kernel->run(grid_of(t)->launch->arguments);
	end_thread(t);
	for (;;) suspend(t);
}

// describe lists the waits of a block's threads.
void describe(FullGrid *g, FullBlock *b, Cause cause, const char *why) {
	char text[1024];
	u64 used = 0;
	u32 listed = 0, waiting = 0;
	text[0] = 0;
	for (u32 i = 0; i < b->count; i++) {
		Thread *t = b->threads[i];
		if (t->state == ENDED) continue;
		waiting++;
		if (listed == 4 || used > sizeof text - 200) continue;
		// Neighbours that wait in the same line are listed once.
		Thread *before = i > 0 ? b->threads[i - 1] : nullptr;
		if (before != nullptr && before->state == t->state && before->line == t->line && before->mask == t->mask) continue;
		listed++;
		bool some = t->state == AT_BARRIER && t->barrier != 0;
		const char *state = some ? "sync_some"
							: t->state == AT_BARRIER ? "__syncthreads"
							: t->state == MEETS		 ? names[t->operation]
													 : "polls";
		used += (u64)snprintf(text + used, sizeof text - used, "; %s: %s", name_of(t).text, state);
		if (t->state == MEETS) used += (u64)snprintf(text + used, sizeof text - used, " with mask %#x", t->mask);
		if (some) used += (u64)snprintf(text + used, sizeof text - used, " %u", t->barrier);
		if (!some && (t->state == MEETS || t->state == AT_BARRIER))
			used += (u64)snprintf(text + used, sizeof text - used, " at %s:%d", t->file, t->line);
	}
	note(g, cause, "%s, %u threads of the block are left%s", why, waiting, text);
}

// begin_block gives a block a place, and makes its threads. Shared memory begins with nonsense.
void begin_block(FullGrid *g, FullBlock *b) {
	b->begun = true;
	b->place = g->places[--g->places_left];
	b->shared = g->memory + b->place * g->memory_room;
	b->own = b->shared + g->shared_room;
	memset(b->shared, 0xA5, g->memory_room);
	for (u32 i = 0; i < b->count; i++) {
		Thread *t = (Thread *)thread_at((u64)g->stacks + ((u64)b->place * b->count + i) * STACK);
		*t = {};
		t->block = b;
		t->index = {i % g->threads.x, i / g->threads.x % g->threads.y, i / g->threads.x / g->threads.y};
		t->number = i, t->lane = i & 31;
		void **top = (void **)((u64)t & ~15ull);
#if defined(__x86_64__)
		*--top = nullptr; // so that begin finds its stack as after a call
		*--top = (void *)&begin;
		for (int r = 0; r < 6; r++) *--top = nullptr;
#else
		top -= 20;
		memset(top, 0, 160);
		top[11] = (void *)&begin;
#endif
		t->stack = top;
		b->threads[i] = t;
		b->ready.push(t);
	}
}

constexpr u32 AHEAD = 5;

// fetch asks for two lines of memory.
void fetch(const void *p) {
	__builtin_prefetch(p, 1);
	__builtin_prefetch((const u8 *)p + 64, 1);
}

void take_turn(FullGrid *g, FullBlock *b) {
	if (!b->begun) begin_block(g, b);
	if (g->current != b) {
		if (g->current != nullptr) memcpy(g->current->own, g->statics, g->static_size);
		memcpy(g->statics, b->own, g->static_size);
		g->current = b;
	}
	while (b->polling.count > 0) b->ready.push(b->polling.pop());
	u32 chosen = 0; // of those that are ready, from the front
	while (b->ready.count > 0 && !g->failed) {
		// Threads are chosen before their turns, so that the processor has their memory by then.
		if (g->shuffle) {
			for (; chosen < AHEAD && chosen < b->ready.count; chosen++)
				b->ready.exchange(chosen, chosen + below(g, b->ready.count - chosen));
			chosen--;
		}
		if (b->ready.count >= AHEAD) {
			fetch(b->ready.get(AHEAD - 1));
			fetch(b->ready.get(AHEAD / 2)->stack);
		}
		Thread *t = b->ready.pop();
		t->state = READY;
		g->running = t;
		weft_switch(&g->stack, t->stack);
		if (t->state == ENDED && *(u64 *)((u64)t & ~(STACK - 1)) != 0) {
			note(g, FAILED, "%s: its stack of %llu bytes is too small", name_of(t).text, STACK);
		}
	}
	if (g->failed) return;
	if (b->alive == 0) {
		g->places[g->places_left++] = b->place;
		g->current = nullptr;
	} else if (b->polling.count == 0) {
		describe(g, b, FAILED, "deadlock");
	}
}

// rest lets others have the processor, a compiler too. A grid sleeps if its threads have only polled for so many
// rounds, and longer after more.
void rest(u64 rounds) {
	if (rounds < 32) {
		sched_yield();
		return;
	}
	timespec t = {0, 1000 * (rounds < 200 ? (long)rounds : 200)};
	nanosleep(&t, nullptr);
}

void schedule(FullGrid *g, u32 blocks) {
	u32 *order = (u32 *)malloc(blocks * sizeof(u32)), left = blocks;
	for (u32 i = 0; i < blocks; i++) order[i] = i;
	u64 idle = 0;
	for (u64 round = 1; left > 0 && !g->failed; round++) {
		u64 before = g->progress;
		if (g->shuffle) g->patience = 1 + (u32)(chance(g) & 7);
		u32 kept = 0;
		for (u32 i = 0; i < left && !g->failed; i++) {
			if (g->shuffle) {
				u32 k = i + below(g, left - i), o = order[i];
				order[i] = order[k];
				order[k] = o;
			}
			FullBlock *b = &g->all[order[i]];
			take_turn(g, b);
			if (b->alive > 0) order[kept++] = order[i];
		}
		left = kept;
		if (g->progress != before) idle = 0;
		if (g->failed || (g->progress != before && round % 64 != 0)) continue;
		if (g->progress == before) rest(idle++);
		if (left > 0 && now() > g->deadline) describe(g, &g->all[order[0]], TIMEOUT, "the launch takes too long");
	}
	free(order);
}

// A thread gets the memory when it touches it first, so the anchor comes before the search.
Segment thread_local_memory() {
	Segment s = {};
	__atomic_fetch_add(&anchor, 1, __ATOMIC_RELAXED);
	dl_iterate_phdr(find, &s);
	return s;
}

} // namespace

// weft_emulate_open is called once, before all else, and gives the size of static shared memory.
extern "C" __attribute__((visibility("default"))) u64 weft_emulate_open() {
	struct sigaction a = {};
	a.sa_sigaction = fault;
	a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	sigfillset(&a.sa_mask);
	sigaction(SIGSEGV, &a, &before[0]);
	sigaction(SIGBUS, &a, &before[1]);
	return thread_local_memory().size;
}

extern "C" __attribute__((visibility("default"))) const Kernel *weft_emulate_kernel(u64 i) {
	return i < kernel_count ? &kernels[i] : nullptr;
}

extern "C" __attribute__((visibility("default"))) int weft_emulate_launch(Launch *l) {
	FullGrid g = {};
	g.launch = l;
	g.kernel = &kernels[l->kernel];
	g.blocks = {l->blocks[0], l->blocks[1], l->blocks[2]};
	g.threads = {l->threads[0], l->threads[1], l->threads[2]};
	g.end = 0, g.base = 1;
	g.tear = l->tear != 0;
	g.shuffle = l->seed != 0;
	g.random = l->seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull;
	if (g.random == 0) g.random = 1;
	g.patience = 8;
	g.deadline = now() + l->limit;
	Segment s = thread_local_memory();
	g.statics = (u8 *)s.base, g.static_size = s.size;
	u32 blocks = g.blocks.x * g.blocks.y * g.blocks.z, threads = g.threads.x * g.threads.y * g.threads.z;
	u64 shared = (l->shared + 1023) & ~1023ull, statics = (s.size + 1023) & ~1023ull;

	// One piece of memory: blocks, queues, threads by number, places; and the shared memory.
	u32 warps = (threads + 31) / 32;
	u64 per = sizeof(FullBlock) + 3 * threads * sizeof(Thread *) + (2 * warps + 1) * sizeof(u32);
	u8 *books = (u8 *)malloc(blocks * per), *memory = nullptr;
	Arena *arena = take((Pool *)l->pool, (u64)blocks * threads);
	if (books == nullptr || arena == nullptr ||
		posix_memalign((void **)&memory, 1024, blocks * (shared + statics) + 1024) != 0) {
		note(&g, FAILED, "no memory for %u blocks of %u threads", blocks, threads);
		free(books);
		if (arena != nullptr) give((Pool *)l->pool, arena, true);
		return 1;
	}
	g.stacks = arena->base, g.memory = memory;
	g.shared_room = shared, g.memory_room = shared + statics;
	g.all = (FullBlock *)books;
	Thread **lists = (Thread **)(books + blocks * sizeof(FullBlock));
	u32 *lanes = (u32 *)(lists + (u64)blocks * 3 * threads);
	g.places = lanes + (u64)blocks * 2 * warps, g.places_left = blocks;
	for (u32 k = 0; k < blocks; k++) {
		FullBlock *b = &g.all[k];
		*b = {};
		b->grid = &g;
		b->index = {k % g.blocks.x, k / g.blocks.x % g.blocks.y, k / g.blocks.x / g.blocks.y};
		b->count = b->alive = threads;
		b->threads = lists + (u64)k * 3 * threads;
		b->ready = {b->threads + threads, 0, 0, threads};
		b->polling = {b->threads + 2 * threads, 0, 0, threads};
		b->meeting = lanes + (u64)k * 2 * warps;
		b->ended = b->meeting + warps;
		memset(b->meeting, 0, 2 * warps * sizeof(u32));
		if (threads % 32 != 0) b->ended[warps - 1] = ~0u << threads % 32;
		g.places[k] = blocks - 1 - k;
	}
	int slot = announce(&g, arena);
	schedule(&g, blocks);
	conceal(slot);
	for (u32 k = 0; k < blocks; k++) {
		while (Copy *c = g.all[k].copies) {
			g.all[k].copies = c->next;
			free(c);
		}
	}
	free(memory);
	free(books);
	give((Pool *)l->pool, arena, !g.failed);
	return l->cause != FINE;
}

} // namespace emulate
