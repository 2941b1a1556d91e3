/*
 * weft_interrupt from a handler of a signal. "wait": joins, set-up, calls of a group and started calls say that they
 * were interrupted. "die": SIGINT, whose disposition is the program's, ends the process amid a wait; the program says
 * "waiting" before.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"

static char id[WEFT_UNIQUE_ID_BYTES];
static weft_comm comms[2];
static weft_comm target;

static void on_alarm(int signal) {
	(void)signal;
	if (weft_interrupt(target) != WEFT_OK) {
		_exit(3);
	}
}

/* Has the calls that follow interrupted in a tenth of a second. */
static void interrupt_soon(weft_comm comm) {
	struct itimerval in = {{0, 0}, {0, 100000}};
	target = comm;
	TRUE(setitimer(ITIMER_REAL, &in, NULL) == 0);
}

#define INTERRUPTED(call) REFUSED(call, WEFT_ERROR_ABORTED, "interrupted")

static void *join_one(void *number) {
	int rank = (int)(intptr_t)number;
	OK(weft_comm_create_with_id(id, rank, 2, NULL, &comms[rank]));
	return NULL;
}

static void *go_on(void *number) {
	OK(weft_comm_set_mask(comms[(intptr_t)number], NULL, 0));
	return NULL;
}

static weft_group groups[2];

static void *make_group(void *number) {
	OK(weft_group_create(comms[(intptr_t)number], NULL, &groups[(intptr_t)number]));
	return NULL;
}

static void *meet(void *number) {
	OK(weft_barrier(groups[(intptr_t)number], NULL));
	return NULL;
}

static void waits(void) {
	struct sigaction action = {0}, after;
	action.sa_handler = on_alarm;
	action.sa_flags = SA_RESTART | SA_ONSTACK;
	TRUE(sigaction(SIGALRM, &action, NULL) == 0);

	OK(weft_interrupt(NULL)); /* nothing waits */
	weft_comm none;
	OK(weft_unique_id_create(id, "lo"));
	interrupt_soon(NULL);
	INTERRUPTED(weft_comm_create_with_id(id, 0, 2, NULL, &none));
	OK(weft_unique_id_create(id, "lo"));
	interrupt_soon(NULL);
	INTERRUPTED(weft_comm_create_with_id(id, 1, 2, NULL, &none));
	OK(weft_unique_id_release(id));

	OK(weft_unique_id_create(id, "lo"));
	run_threads(2, join_one);
	weft_window window;
	interrupt_soon(comms[0]);
	INTERRUPTED(weft_window_create(comms[0], 4096, &window));
	REFUSED(weft_comm_error(comms[1]), WEFT_ERROR_ABORTED, "weft_comm_set_mask goes on");
	TRUE(weft_error_rank() == 0);
	run_threads(2, go_on);

	run_threads(2, make_group);
	interrupt_soon(comms[0]);
	INTERRUPTED(weft_barrier(groups[0], NULL));
	run_threads(2, go_on);
	interrupt_soon(comms[0]);
	pause(); /* nothing waits, and what comes next fails, by this interrupt and none before */
	INTERRUPTED(weft_barrier(groups[0], NULL));
	run_threads(2, go_on);
	run_threads(2, meet);
	interrupt_soon(NULL);
	INTERRUPTED(weft_comm_set_mask(comms[1], NULL, 0));
	OK(weft_interrupt((weft_comm)(intptr_t)77)); /* there is none to tell */

	OK(weft_comm_destroy(comms[0]));
	OK(weft_comm_destroy(comms[1]));
	TRUE(sigaction(SIGINT, NULL, &after) == 0 && after.sa_handler == SIG_DFL);
	TRUE(sigaction(SIGALRM, NULL, &after) == 0 && after.sa_handler == on_alarm);
	printf("ok\n");
}

int main(int argc, char **argv) {
	TRUE(argc == 2);
	if (strcmp(argv[1], "wait") == 0) {
		waits();
		return 0;
	}
	OK(weft_unique_id_create(id, "lo"));
	run_threads(2, join_one);
	run_threads(2, make_group);
	printf("waiting\n");
	fflush(stdout);
	weft_barrier(groups[0], NULL); /* the other rank never comes */
	return 0;
}
