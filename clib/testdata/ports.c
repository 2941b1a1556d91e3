/* One rank of several processes, with channels to the others. The arguments: what happens ("exchange", "death"), and
 * which kind the channels are: 1 memory, 2 fabric. */
#include <signal.h>
#include <unistd.h>

#include "check.h"

enum { SLOT = 3000, BYTES = 8 + 4 * SLOT, MOST = 4 };

static weft_comm comm;
static weft_comm_info me;
static weft_port port;
static weft_port_channel to[MOST]; /* by rank */
static weft_port_memory memory;
static unsigned char *own;

static void fill_slot(unsigned char *p, int seed) {
	for (int i = 0; i < SLOT; i++) {
		p[i] = (unsigned char)(i * (2 * seed + 1) + seed);
	}
}

static void connect_all(int kind) {
	weft_port_channel_options options = {.size = sizeof options, .kind = kind};
	weft_port_channel_info info = {.size = sizeof info};
	for (int a = 0; a < me.ranks; a++) {
		for (int b = 0; b < a; b++) {
			int peer = a + b - me.rank;
			if (me.rank != a && me.rank != b) {
				continue;
			}
			OK(weft_port_connect(port, peer, &options, memory, memory, &to[peer]));
			OK(weft_port_channel_get(to[peer], &info));
			TRUE(info.peer == peer && info.kind == kind && info.dst_bytes == BYTES && info.src_bytes == BYTES);
		}
	}
}

/* Each rank puts to the next one and hears of the one before. */
static void rounds(void) {
	weft_port_channel next = to[(me.rank + 1) % me.ranks], last = to[(me.rank + me.ranks - 1) % me.ranks];
	static unsigned char want[SLOT];
	for (int round = 0; round < 40; round++) {
		uint64_t dst = 8 + (uint64_t)(round % 2) * SLOT, src = dst + 2 * SLOT;
		fill_slot(own + src, round + me.rank);
		OK(weft_port_atomic_add(next, 0, 3));
		switch (round % 3) {
		case 0:
			OK(weft_port_put(next, dst, src, SLOT));
			OK(weft_port_signal(next));
			OK(weft_port_flush(next));
			break;
		case 1:
			OK(weft_port_put_with_signal(next, dst, src, SLOT));
			OK(weft_port_flush(next));
			break;
		default:
			OK(weft_port_put_with_signal_and_flush(next, dst, src, SLOT));
		}
		int consumed = 0;
		while (round % 4 == 0 && !consumed) {
			OK(weft_port_poll(last, &consumed));
		}
		if (!consumed) {
			OK(weft_port_wait(last));
		}
		fill_slot(want, round + (me.rank + me.ranks - 1) % me.ranks);
		TRUE(memcmp(want, own + dst, SLOT) == 0);
		uint64_t sum;
		memcpy(&sum, own, 8);
		TRUE(sum == 3 * (uint64_t)(round + 1));
		/* The one before may go on when this slot was read. */
		OK(weft_port_signal(last));
		OK(weft_port_wait(next));
	}
	OK(weft_port_channel_error(next));
}

static void refusals(void) {
	int peer = (me.rank + 1) % me.ranks;
	weft_port_channel other, c = to[peer];
	INVALID(weft_port_put(c, 1, 0, BYTES), "port put");
	INVALID(weft_port_put(c, 0, 1, BYTES), "of a source of");
	INVALID(weft_port_put(c, ~0ull, 0, 1), "to 18446744073709551615");
	INVALID(weft_port_put_with_signal(c, 0, 0, ~0ull), "18446744073709551615 bytes");
	INVALID(weft_port_put_with_signal_and_flush(c, 0, 1ull << 63, 1), "from 9223372036854775808");
	INVALID(weft_port_atomic_add(c, ~7ull, 1), "offset 18446744073709551608");
	INVALID(weft_port_atomic_add(c, 4, 1), "multiple of 8");
	INVALID(weft_port_atomic_add(c, BYTES, 1), "multiple of 8");
	INVALID(weft_port_connect(port, me.rank, NULL, memory, memory, &other), "another rank");
	NO_HANDLE(weft_port_connect(port, peer, NULL, memory, NULL, &other), "NULL");
	TRUE(other == NULL);
	char kernel[WEFT_PORT_KERNEL_BYTES];
	UNSUPPORTED(weft_port_kernel(c, kernel, sizeof kernel), "on the host");
	INVALID(weft_port_kernel(c, kernel, 8), "want memory");
	INVALID(weft_port_poll(c, NULL), "NULL");

	/* What one rank gets wrong both refuse, and the next connection works. */
	weft_port_channel_options options = {.size = sizeof options, .kind = 7};
	if (me.ranks == 2) {
		weft_status s = weft_port_connect(port, peer, me.rank == 0 ? &options : NULL, memory, memory, &other);
		check(s, WEFT_ERROR_INVALID, me.rank == 0 ? "kind 7" : "refused there", "a wrong kind", __LINE__);
		TRUE(other == NULL && weft_error_rank() == (me.rank == 0 ? -1 : 0));
		if (me.rank == 1) {
			OK(weft_refuse("the moon"));
		}
		INVALID(weft_port_connect(port, peer, NULL, memory, memory, &other), "the moon");
	}

	/* A time that ends changes nothing. */
	OK(weft_timeout_set(30));
	REFUSED(weft_port_wait(c), WEFT_ERROR_TIMEOUT, "weft_timeout_set");
	OK(weft_timeout_set(0));
	OK(weft_comm_error(comm));

	/* Plain memory, of any length. */
	char few[7] = "abcdef";
	weft_port_memory small, nothing;
	weft_port_memory wrong;
	uint64_t bytes;
	OK(weft_port_memory_create(port, me.rank == 0 ? few : NULL, me.rank == 0 ? sizeof few : 0, &small));
	OK(weft_port_memory_create(port, NULL, 0, &nothing));
	INVALID(weft_port_memory_create(port, NULL, me.rank == 0 ? 9 : 0, &wrong), me.rank == 0 ? "9 bytes" : "there");
	OK(weft_port_memory_size(small, 0, &bytes));
	TRUE(bytes == sizeof few && wrong == NULL);
	INVALID(weft_port_memory_size(small, me.ranks, &bytes), "rank");
	if (me.rank == 1 && to[0] != NULL && weft_port_channel_with(to[0], small, memory, &other) == WEFT_OK) {
		memcpy(own + 8, "xyz", 3);
		OK(weft_port_put_with_signal_and_flush(other, 2, 8, 3));
		OK(weft_port_channel_destroy(other));
		GONE(weft_port_signal(other));
	} else if (me.rank == 1) {
		OK(weft_port_put_with_signal_and_flush(to[0], 0, 0, 0));
	} else if (me.rank == 0) {
		OK(weft_port_wait(to[1]));
		TRUE(strcmp(few, "abcdef") == 0 || strcmp(few, "abxyzf") == 0);
		OK(weft_port_signal(to[1]));
	}
	if (me.rank == 1) {
		OK(weft_port_wait(to[0]));
	}
	OK(weft_port_memory_destroy(nothing));
	OK(weft_port_memory_destroy(small));
	GONE(weft_port_memory_destroy(small));
}

/* Two ranks bring each other cards, and make memories and channels of them without a collective call. */
static void opened(int kind) {
	int peer = 1 - me.rank;
	char mine[16] = "............", card[1024];
	size_t length = 1, room = sizeof card;
	weft_port_memory exposed, imported, wrong;
	OK(weft_port_memory_expose(port, mine, sizeof mine, &exposed));
	INVALID(weft_port_memory_card(exposed, card, &length), "a card of");
	TRUE(length > 1 && length < sizeof card);
	OK(weft_port_memory_card(exposed, card, &room));
	TRUE(room == length);
	memcpy(own + 8 + 2 * SLOT, &length, sizeof length);
	memcpy(own + 8 + 2 * SLOT + sizeof length, card, length);
	OK(weft_port_put_with_signal_and_flush(to[peer], 8, 8 + 2 * SLOT, sizeof length + length));
	OK(weft_port_wait(to[peer]));
	memcpy(&length, own + 8, sizeof length);
	INVALID(weft_port_memory_import(port, own, 3, &wrong), "no card");
	INVALID(weft_port_memory_import(port, NULL, 3, &wrong), "3 bytes");
	INVALID(weft_port_memory_expose(port, NULL, 3, &wrong), "3 bytes");
	INVALID(weft_port_memory_import(port, card, room, &wrong), "another rank");
	OK(weft_port_memory_import(port, own + 8 + sizeof length, length, &imported));
	INVALID(weft_port_memory_card(imported, card, &room), "another rank's");
	uint64_t bytes;
	OK(weft_port_memory_size(imported, peer, &bytes));
	TRUE(bytes == sizeof mine && wrong == NULL);

	weft_port_channel other, none;
	weft_port_channel_options options = {.size = sizeof options, .kind = kind};
	weft_port_memory src = kind == WEFT_PORT_MEMORY ? memory : exposed;
	weft_port_memory dst = kind == WEFT_PORT_MEMORY ? memory : imported;
	INVALID(weft_port_open(port, peer, 3, NULL, dst, src, &none), "agreed");
	INVALID(weft_port_open(port, peer, 1, &options, dst, src, &none), "number 1");
	INVALID(weft_port_open(port, peer, 5, &options, dst, src, &none), "number 5");
	INVALID(weft_port_open(port, me.rank, 3, &options, dst, src, &none), "another rank");
	INVALID(weft_port_open(port, peer, 3, &options, exposed, src, &none), "alone");
	OK(weft_port_open(port, peer, 3, &options, dst, src, &other));
	memcpy(mine, "ab", 2);
	if (kind == WEFT_PORT_FABRIC) {
		OK(weft_port_put_with_signal_and_flush(other, 4, 0, 2));
		OK(weft_port_wait(other));
		TRUE(memcmp(mine, "ab..ab..", 8) == 0);
	} else {
		OK(weft_port_signal(other));
		OK(weft_port_wait(other));
	}
	INVALID(weft_port_open(port, peer, 3, &options, dst, src, &none), "number 3");
	OK(weft_port_channel_destroy(other));
	/* The peer's puts are over when it says so. */
	OK(weft_port_signal(to[peer]));
	OK(weft_port_wait(to[peer]));
	OK(weft_port_memory_destroy(imported));
	OK(weft_port_memory_destroy(exposed));
}

/* Hosts are numbered in the order of their lowest ranks. */
static void hosts(void) {
	int32_t of[MOST];
	OK(weft_comm_hosts(comm, of, me.ranks));
	INVALID(weft_comm_hosts(comm, of, me.ranks + 1), "ranks");
	INVALID(weft_comm_hosts(comm, NULL, me.ranks), "ranks");
	int here = 0;
	for (int r = 0; r < me.ranks; r++) {
		TRUE(of[r] <= r && (r == 0 || of[r] == of[r - 1] || of[r] == of[r - 1] + 1));
		here += of[r] == of[me.rank];
	}
	TRUE(here == me.local_ranks);
}

enum { THREADS = 4, TIMES = 100 };

/* Threads signal and wait on one channel at the same time. */
static void *signals(void *number) {
	weft_port_channel c = to[1 - me.rank];
	for (int i = 0; i < TIMES; i++) {
		OK((intptr_t)number % 2 ? weft_port_signal(c) : weft_port_wait(c));
	}
	return NULL;
}

static void meet(void) {
	weft_group group;
	OK(weft_group_create(comm, NULL, &group));
	OK(weft_barrier(group, NULL));
	OK(weft_group_destroy(group));
}

/* The last rank is killed while the others wait for it. They name it, mask it, and go on. */
static void death(void) {
	int last = me.ranks - 1, other = 1 - me.rank;
	if (me.rank == last) {
		for (int r = 0; r < last; r++) { /* all have connected to it by then */
			OK(weft_port_wait(to[r]));
		}
		raise(SIGKILL);
	}
	OK(weft_port_signal(to[last]));
	REFUSED(weft_port_wait(to[last]), WEFT_ERROR_DIED, "rank");
	TRUE(weft_error_rank() == last);
	REFUSED(weft_port_signal(to[other]), WEFT_ERROR_DIED, "");
	uint64_t mask = 1ull << last;
	OK(weft_comm_set_mask(comm, &mask, 1));
	for (int i = 0; i < 5; i++) {
		OK(weft_port_put_with_signal_and_flush(to[other], 8, 8, SLOT));
		OK(weft_port_wait(to[other]));
	}
	REFUSED(weft_port_signal(to[last]), WEFT_ERROR_MASKED, "");
	TRUE(weft_error_rank() == last);
}

int main(int argc, char **argv) {
	TRUE(argc == 3);
	int kind = atoi(argv[2]);
	weft_comm_options options = {.size = sizeof options, .deadline_ms = 30000};
	OK(weft_comm_create(&options, &comm));
	me.size = sizeof me;
	OK(weft_comm_get(comm, &me));
	const char *sources[] = {"127.0.0.1", NULL};
	weft_port_options rails = {.size = sizeof rails, .sources = sources, .provider = "tcp", .channels = 4};
	OK(weft_port_create(comm, &rails, &port));
	weft_port_info info = {.size = sizeof info};
	OK(weft_port_get(port, &info));
	TRUE(info.channels == 4 && (kind == WEFT_PORT_MEMORY || (info.rails == 1 && strncmp(info.provider, "tcp", 3) == 0)));
	if (kind == WEFT_PORT_MEMORY) {
		weft_window window;
		weft_window_info segment = {.size = sizeof segment};
		OK(weft_window_create(comm, BYTES, &window));
		OK(weft_window_get(window, &segment));
		own = segment.memory;
	} else {
		own = calloc(1, BYTES);
	}
	OK(weft_port_memory_create(port, own, BYTES, &memory));
	connect_all(kind);
	if (strcmp(argv[1], "death") == 0) {
		death();
	} else {
		rounds();
		refusals();
		hosts();
		if (me.ranks == 2) {
			opened(kind);
			run_threads(2 * THREADS, signals);
			meet(); /* a rank that has left is waited for in vain */
		}
	}
	if (me.rank == 0) {
		OK(weft_port_destroy(port));
		GONE(weft_port_signal(to[1]));
		GONE(weft_port_memory_destroy(memory));
	}
	OK(weft_comm_destroy(comm)); /* and what was made of it */
	printf("ok\n");
	return 0;
}
