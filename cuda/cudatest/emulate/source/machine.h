// What kernels and the scheduler that runs their threads have in common. No includes: kernels see
// this.
#pragma once

namespace emulate {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Index {
	u32 x, y, z;
};

struct Range {
	u64 base, end;
	u8 peer; // whether it is another device's, or the host's
	u8 zero[7];
};

// Replica is one device's memory behind addresses of a multicast group. Go: cudatest.Replica.
struct Replica {
	u64 base, end;
	u64 memory;  // what is at base
	u32 devices; // of the group
	u32 peer;
};

// Launch is what Go asks for, and what it gets. Go: launch.
struct Launch {
	u64 kernel;
	u32 blocks[3], threads[3];
	u64 shared; // bytes of a block's dynamic shared memory
	const u8 *arguments;
	const Range *ranges; // that the device may access, in order
	u64 count;
	const Replica *replicas;
	u64 replica_count;
	u64 seed;  // 0: threads run in order
	u64 tear;  // whether accesses of more than a word come apart, and stores to peers are late
	u64 limit; // nanoseconds that the launch may take
	char *text;
	u64 room;  // bytes of text
	u64 cause; // out
	void *pool; // of stacks
};

enum Cause { FINE = 0, ILLEGAL_ADDRESS = 1, MISALIGNED = 2, FAILED = 3, TIMEOUT = 4 };

struct Block;
struct Thread;

struct Grid {
	Launch *launch;
	Index blocks, threads;
	u64 base, end; // the range that was accessed last
	bool peer;	   // whether it is
	bool tear, shuffle, failed;
	u32 patience; // polls until a thread lets others run
};

enum Operation {
	SYNC,
	SHUFFLE,
	BALLOT,
	ANY,
	ALL,
	ADD,
	MINIMUM,
	MAXIMUM,
	SIGNED_MINIMUM,
	SIGNED_MAXIMUM,
	AND,
	OR,
	XOR,
	MATCH,
};
enum Barrier { BARRIER, BARRIER_COUNT, BARRIER_AND, BARRIER_OR };

// A Thread lies in its own stack, so that it is found from the stack pointer.
struct Thread {
	void *stack; // its pointer, while another runs
	Block *block;
	Index index;
	u32 number, lane, polls;
	u32 state;
	u32 bulk;	// stores that bulk_wait has not seen
	u32 groups; // of bulk stores that were committed
	u32 mask, operation, argument;
	u32 barrier; // the number of the one it waits at; 0: the block's
	u64 value, result;
	const char *file;
	int line;
};

struct Block {
	Grid *grid;
	Index index;
	u8 *shared; // dynamic
};

constexpr u64 STACK = 64 << 10;

// thread_at is the address of the Thread in a stack: not in the same cache set for all.
inline __attribute__((always_inline)) u64 thread_at(u64 base) {
	return base + STACK - 256 - ((base / STACK * 37 & 127) << 6);
}

inline __attribute__((always_inline)) Thread *self() {
	u64 pointer;
#if defined(__x86_64__)
	asm("movq %%rsp, %0" : "=r"(pointer));
#else
	asm("mov %0, sp" : "=r"(pointer));
#endif
	return (Thread *)thread_at(pointer & ~(STACK - 1));
}

// What a thread asks of the scheduler. Each may let others run.
void yield();
void tear();
u64 meet(Operation operation, u32 mask, u64 value, u32 argument, const char *file, int line);
u32 barrier(Barrier kind, u32 value, const char *file, int line);
u32 barrier_of(u32 number, u32 threads, u32 value); // of some threads: the sum of their values
void stray(const void *p, u32 bytes, const char *what);
u64 now();
u8 *dynamic_shared();
void defer(void *p, u64 value, u32 bytes);
void defer_aliased(void *p, u64 value, u32 bytes); // until the thread has made a fence_alias as well
void land(const void *p, u32 bytes);
void atomic(const void *p, u32 bytes);
void fence();
void fence_alias();
u8 *replica(const void *p, u32 bytes, u32 i, bool *peer, const char *what); // the i-th device's; null: no more

void barrier_init(u64 *barrier, u32 arrivals);
void barrier_expect(u64 *barrier, u32 bytes);
bool barrier_done(u64 *barrier, u32 parity);
void bulk_load(void *shared, const void *global, u32 bytes, u64 *barrier);
void bulk_store(void *global, const void *shared, u32 bytes);
void bulk_commit();
void bulk_wait();
void bulk_wait_before(); // for all groups but the last

inline __attribute__((always_inline)) void poll() {
	Thread *t = self();
	if (++t->polls >= t->block->grid->patience) yield();
}

// reach refuses what the device may not access.
inline __attribute__((always_inline)) void reach(const void *p, u32 bytes, const char *what) {
	Grid *g = self()->block->grid;
	u64 a = (u64)p;
	if (__builtin_expect((a & (bytes - 1)) != 0 || a < g->base || a + bytes > g->end, 0)) stray(p, bytes, what);
}

struct Kernel {
	const char *name;
	void (*run)(const u8 *arguments);
	u32 bound; // threads of a block; 0: none given
	u32 parameters;
	const u32 *offsets, *sizes;
};

} // namespace emulate
