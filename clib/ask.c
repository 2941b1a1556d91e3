// go:build cgo && linux

// What may end a call that waits before its deadline: a function of the program's that the thread asks meanwhile, and
// weft_interrupt, which a signal handler may call.

#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ASK_MS = 100 };

struct asker {
	weft_ask_fn ask;
	void *context;
	int64_t last; // when it was asked, in milliseconds
	int ended;    // it has said that the call is to end
};

// On the heap, as the messages of failures are.
static __thread struct asker *own;

static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget(void *asker) {
	free(asker);
	own = NULL;
}

static void make_key(void) { pthread_key_create(&ending, forget); }

int libweft_asks;

weft_status weft_ask_set(weft_ask_fn ask, void *context) {
	static const char no_memory[] = "there is no memory left to ask by";
	if (libweft_forked) {
		return libweft_refuse_child();
	}
	if (own == NULL) {
		if (ask == NULL) {
			return WEFT_OK;
		}
		if ((own = calloc(1, sizeof *own)) == NULL) {
			return libweft_fail(WEFT_ERROR_SYSTEM, -1, no_memory, sizeof no_memory - 1);
		}
		pthread_once(&once, make_key);
		pthread_setspecific(ending, own);
	}
	own->ask = ask;
	own->context = context;
	own->ended = 0;
	__atomic_store_n(&libweft_asks, 1, __ATOMIC_RELEASE);
	return WEFT_OK;
}

int libweft_asking(void) { return own != NULL && own->ask != NULL; }

int libweft_ask(void) {
	struct asker *a = own;
	struct timespec now;
	if (a == NULL || a->ask == NULL || a->ended) {
		return a != NULL && a->ended;
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
	if (ms - a->last < ASK_MS) {
		return 0;
	}
	a->last = ms;
	return a->ended = a->ask(a->context) != 0;
}

void libweft_ask_over(void) {
	if (own != NULL) {
		own->ended = 0;
	}
}

// Interrupts are handles in a pipe, which a goroutine reads: a write is all that a signal handler can do.
static int interrupts = -1;

int libweft_interrupts(void) {
	int ends[2];
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
		return -errno;
	}
	__atomic_store_n(&interrupts, ends[1], __ATOMIC_RELEASE);
	return ends[0];
}

weft_status weft_interrupt(weft_comm comm) {
	uint64_t handle = (uint64_t)(uintptr_t)comm;
	int into = __atomic_load_n(&interrupts, __ATOMIC_ACQUIRE), kept = errno;
	if (libweft_forked) {
		return WEFT_ERROR_FORKED;
	}
	if (into < 0) {
		return WEFT_OK; // nothing has joined yet
	}
	ssize_t wrote = write(into, &handle, sizeof handle);
	errno = kept;
	return wrote == sizeof handle ? WEFT_OK : WEFT_ERROR_BUSY;
}

// A Python interpreter: its functions, and the exception with which a handler of its main thread's ended a call.
static struct {
	int (*ensure)(void);
	void (*release)(int state);
	int (*check)(void);
	void (*fetch)(void **type, void **value, void **traceback);
} python;

static void *raised[3];

static int ask_python(void *context) {
	(void)context;
	int state = python.ensure();
	int raises = python.check() != 0;
	if (raises) {
		python.fetch(&raised[0], &raised[1], &raised[2]);
	}
	python.release(state);
	return raises;
}

weft_status weft_ask_python(void **functions) {
	python.ensure = (int (*)(void))functions[0];
	python.release = (void (*)(int))functions[1];
	python.check = (int (*)(void))functions[2];
	python.fetch = (void (*)(void **, void **, void **))functions[3];
	return weft_ask_set(ask_python, NULL);
}

int weft_python_exception(void **exception) {
	if (raised[0] == NULL) {
		return 0;
	}
	for (int i = 0; i < 3; i++) {
		exception[i] = raised[i];
		raised[i] = NULL;
	}
	return 1;
}
