/*
 * Handlers of signals that interrupt Go's code. "log": what a join says of handlers that would run on its stacks.
 * "repair": 8 threads make calls while each gets a thousand signals a second, after weft_signal_check has mended the
 * handlers. Without that none of them would end well.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 8, SECONDS = 2 };

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static long handled;

/* A handler as programs have them: its frame is larger than what a goroutine's stack keeps in reserve. */
static void on_tick(int signal) {
	char line[16384];
	memset(line, signal, sizeof line);
	__asm__ volatile("" : : "r"(line) : "memory");
	__atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
}

static void handle(int signal, void (*handler)(int), int flags) {
	struct sigaction action = {0};
	action.sa_handler = handler;
	action.sa_flags = SA_RESTART | flags;
	sigaddset(&action.sa_mask, SIGHUP);
	TRUE(sigaction(signal, &action, NULL) == 0);
}

/* Lines of the log of a communicator that is alone. */
static char logged[4096];

static void keep(void *context, const char *line) {
	(void)context;
	strncat(logged, line, sizeof logged - strlen(logged) - 2);
	strcat(logged, "\n");
}

static const char *log_of_join(void) {
	weft_comm comm;
	weft_comm_options options = {.size = sizeof options, .log = keep};
	logged[0] = 0;
	OK(weft_comm_create(&options, &comm));
	OK(weft_comm_destroy(comm));
	return logged;
}

static void *calls(void *unused) {
	struct sigevent event = {0};
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGUSR1;
	event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	timer_t timer;
	struct itimerspec period = {{0, 1000000}, {0, 1000000}};
	TRUE(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &period, NULL) == 0);
	struct timespec begin, now;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		weft_comm comm;
		weft_group group;
		int64_t one = 1;
		weft_tensor t = tensor(&one, WEFT_INT64, 1, -1);
		OK(weft_comm_create(NULL, &comm));
		OK(weft_group_create(comm, NULL, &group));
		for (int i = 0; i < 100; i++) {
			OK(weft_all_reduce(group, NULL, &t, &t, WEFT_SUM));
			INVALID(weft_all_reduce(group, NULL, NULL, &t, WEFT_SUM), "");
		}
		OK(weft_comm_destroy(comm));
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begin.tv_sec < SECONDS);
	TRUE(timer_delete(timer) == 0);
	return unused;
}

static void under_fire(void) {
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++) {
		TRUE(pthread_create(&threads[i], NULL, calls, NULL) == 0);
	}
	join_threads(threads, THREADS);
	TRUE(handled > 100 * THREADS * SECONDS);
}

int main(int argc, char **argv) {
	TRUE(argc == 2);
	if (strcmp(argv[1], "log") == 0) {
		OK(weft_signal_check(0)); /* none has been installed, and what the runtime of Go has is as it must be */
		TRUE(strstr(log_of_join(), "SA_ONSTACK") == NULL);
		handle(SIGUSR1, on_tick, 0);
		handle(SIGUSR2, exit, 0);
		handle(SIGALRM, on_tick, SA_ONSTACK);
		handle(SIGCHLD, SIG_IGN, 0);
		printf("%s", log_of_join());
		return 0;
	}
	handle(SIGUSR1, on_tick, 0);
	handle(SIGUSR2, exit, 0);
	struct sigaction before, after;
	TRUE(sigaction(SIGUSR1, NULL, &before) == 0);
	INVALID(weft_signal_check(0), "SIGUSR2 (exit in ");
	INVALID(weft_signal_check(0), "SIGUSR1 (");
	OK(weft_signal_check(1));
	OK(weft_signal_check(0));
	TRUE(strstr(log_of_join(), "SA_ONSTACK") == NULL);
	TRUE(sigaction(SIGUSR1, NULL, &after) == 0); /* and all else is as it was */
	TRUE(after.sa_handler == on_tick && after.sa_flags == (before.sa_flags | SA_ONSTACK));
	TRUE(sigismember(&after.sa_mask, SIGHUP) && !sigismember(&after.sa_mask, SIGINT));
	under_fire();
	printf("ok\n");
	return 0;
}
