/* Ranks that are threads of one process and meet through an all-gather of their own, and threads that get in each
 * other's way. */
#define _GNU_SOURCE
#include <unistd.h>

#include "check.h"

enum { RANKS = 3 };

static pthread_barrier_t meeting;
static char gathered[RANKS * 4096];
static weft_comm comms[RANKS];
static char memory[RANKS][512];
static int calls;

typedef struct caller {
	int rank;
	pthread_t thread;
} caller;

static int all_gather(void *context, const void *mine, size_t bytes, void *all) {
	caller *c = context;
	if (bytes > 4096 || !pthread_equal(pthread_self(), c->thread)) {
		return 1;
	}
	__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	memcpy(gathered + (size_t)c->rank * bytes, mine, bytes);
	pthread_barrier_wait(&meeting);
	memcpy(all, gathered, RANKS * bytes);
	pthread_barrier_wait(&meeting);
	return 0;
}

static void *rank(void *argument) {
	int r = (int)(intptr_t)argument;
	caller me = {r, pthread_self()};
	weft_comm_options options = {.size = sizeof options, .deadline_ms = 10000};
	OK(weft_comm_create_with_all_gather(all_gather, &me, r, RANKS, &options, &comms[r]));

	/* Threads see each other's memory as it is. */
	weft_window window;
	weft_group group;
	void *next;
	memset(memory[r], 'a' + r, sizeof memory[r]);
	OK(weft_window_create_from_memory(comms[r], memory[r], sizeof memory[r], &window));
	OK(weft_window_peer(window, (r + 1) % RANKS, &next));
	TRUE(next == memory[(r + 1) % RANKS]);
	OK(weft_group_create(comms[r], NULL, &group));
	int64_t one = r;
	weft_tensor t = tensor(&one, WEFT_INT64, 1, -1);
	for (int i = 0; i < 100; i++) {
		one = r;
		OK(weft_all_reduce(group, NULL, &t, &t, WEFT_SUM));
		TRUE(one == RANKS * (RANKS - 1) / 2);
	}
	OK(weft_group_destroy(group));
	OK(weft_window_destroy(window));
	return NULL;
}

/* Calls that other threads make while one waits in a barrier and one in a prepare, which nobody else enters. */
static weft_group group;
static weft_ep ep;
static weft_ep_spec layer = {.size = sizeof layer, .experts = RANKS, .topk = 1, .hidden = 8, .max_tokens = 1};
static volatile int waiting;

static void *wait_in_vain(void *comm) {
	(void)comm;
	waiting = 1;
	REFUSED(weft_barrier(group, NULL), WEFT_ERROR_ABORTED, "");
	return NULL;
}

static void *prepare_in_vain(void *argument) {
	int32_t chosen = 0;
	float weight = 1;
	weft_tensor topk = tensor(&chosen, WEFT_INT32, 1, 1), weights = tensor(&weight, WEFT_FLOAT32, 1, 1);
	weft_routing routing;
	(void)argument;
	REFUSED(weft_ep_prepare(ep, NULL, &topk, &weights, &routing), WEFT_ERROR_ABORTED, "");
	return NULL;
}

static void *make_group(void *other) {
	weft_group theirs;
	weft_ep exchanges;
	OK(weft_group_create(other, NULL, &theirs));
	OK(weft_ep_create(other, &layer, &exchanges));
	return NULL;
}

/* Several threads wait for one call, and ask about it meanwhile; the group makes others. */
static weft_work work;

static void *wait_for_work(void *number) {
	(void)number;
	waiting++;
	OK(weft_work_wait(work));
	return NULL;
}

static void *join_in(void *other) {
	weft_group theirs;
	OK(weft_group_create(other, NULL, &theirs));
	usleep(100000);
	OK(weft_barrier(theirs, NULL));
	OK(weft_barrier(theirs, NULL));
	OK(weft_group_destroy(theirs));
	return NULL;
}

static void works(void) {
	pthread_t threads[2], others[RANKS];
	for (int r = 1; r < RANKS; r++) {
		TRUE(pthread_create(&others[r], NULL, join_in, comms[r]) == 0);
	}
	weft_group mine;
	OK(weft_group_create(comms[0], NULL, &mine));
	weft_collective_args call = {.size = sizeof call, .collective = WEFT_BARRIER};
	OK(weft_group_start(mine, NULL, &call, &work));
	waiting = 0;
	for (int i = 0; i < 2; i++) {
		TRUE(pthread_create(&threads[i], NULL, wait_for_work, NULL) == 0);
	}
	usleep(20000);
	weft_work_info info = {.size = sizeof info};
	OK(weft_work_get(work, &info));
	TRUE(!info.done);
	OK(weft_work_error(work));
	REFUSED(weft_work_release(work), WEFT_ERROR_BUSY, "another thread is inside a call on this weft_work");
	REFUSED(weft_group_destroy(mine), WEFT_ERROR_BUSY, "another thread is inside a call on a weft_work");
	REFUSED(weft_comm_destroy(comms[0]), WEFT_ERROR_BUSY, "another thread is inside a call on a weft_work");
	OK(weft_barrier(mine, NULL));
	join_threads(threads, 2);
	OK(weft_work_get(work, &info));
	TRUE(info.done);
	OK(weft_work_release(work));
	OK(weft_group_destroy(mine));
	for (int r = 1; r < RANKS; r++) {
		TRUE(pthread_join(others[r], NULL) == 0);
	}
	waiting = 0;
}

static void in_the_way(void) {
	pthread_t thread, preparing, others[RANKS];
	weft_comm_info info = {.size = sizeof info};
	weft_ep_info asked = {.size = sizeof asked};
	for (int r = 1; r < RANKS; r++) {
		TRUE(pthread_create(&others[r], NULL, make_group, comms[r]) == 0);
	}
	OK(weft_group_create(comms[0], NULL, &group));
	OK(weft_ep_create(comms[0], &layer, &ep));
	for (int r = 1; r < RANKS; r++) {
		TRUE(pthread_join(others[r], NULL) == 0);
	}
	TRUE(pthread_create(&thread, NULL, wait_in_vain, comms[0]) == 0);
	while (!waiting) {
		usleep(100);
	}
	usleep(20000);
	TRUE(pthread_create(&preparing, NULL, prepare_in_vain, NULL) == 0);
	usleep(20000);
	REFUSED(weft_ep_get(ep, &asked), WEFT_ERROR_BUSY, "another thread is inside a call on this weft_ep");
	REFUSED(weft_ep_destroy(ep), WEFT_ERROR_BUSY, "another thread is inside a call on this weft_ep");
	REFUSED(weft_barrier(group, NULL), WEFT_ERROR_BUSY, "another thread is inside a call on this weft_group");
	REFUSED(weft_group_destroy(group), WEFT_ERROR_BUSY, "another thread is inside a call on this weft_group");
	REFUSED(weft_comm_destroy(comms[0]), WEFT_ERROR_BUSY, "weft_comm_abort ends it");
	OK(weft_comm_get(comms[0], &info)); /* at any time */
	OK(weft_comm_error(comms[0]));
	OK(weft_comm_abort(comms[0]));
	TRUE(pthread_join(thread, NULL) == 0);
	TRUE(pthread_join(preparing, NULL) == 0);
	OK(weft_ep_destroy(ep));
	REFUSED(weft_ep_get(ep, &asked), WEFT_ERROR_HANDLE, "destroyed or released before");
	REFUSED(weft_barrier(group, NULL), WEFT_ERROR_ABORTED, "");
	TRUE(weft_error_rank() == 0);
}

/* Handles come and go under the hands of threads that use them: each call works or says why not. */
static void *hammer(void *comm) {
	for (int i = 0; i < 2000; i++) {
		weft_window window = *(weft_window volatile *)comm;
		weft_window_info info = {.size = sizeof info};
		weft_status s = weft_window_get(window, &info);
		TRUE(s == WEFT_OK || s == WEFT_ERROR_HANDLE || s == WEFT_ERROR_BUSY);
	}
	return NULL;
}

static void races(void) {
	weft_comm alone;
	weft_window shared = NULL;
	pthread_t threads[4];
	OK(weft_comm_create(NULL, &alone));
	for (int i = 0; i < 4; i++) {
		TRUE(pthread_create(&threads[i], NULL, hammer, &shared) == 0);
	}
	for (int i = 0; i < 300; i++) {
		weft_window window;
		OK(weft_window_create(alone, 64, &window));
		*(weft_window volatile *)&shared = window;
		weft_status s;
		while ((s = weft_window_destroy(window)) == WEFT_ERROR_BUSY) {
		}
		TRUE(s == WEFT_OK);
	}
	join_threads(threads, 4);
	OK(weft_comm_destroy(alone));
}

int main(void) {
	pthread_barrier_init(&meeting, NULL, RANKS);
	run_threads(RANKS, rank);
	TRUE(calls == 2 * RANKS); /* while they joined, and never again */
	works();
	in_the_way();
	races();
	for (int r = 0; r < RANKS; r++) {
		OK(weft_comm_destroy(comms[r]));
	}
	printf("ok\n");
	return 0;
}
