// go:build cgo && linux

// The last failure of each thread; and the refusal of every call in a forked child.
//
// A thread's message lies on the heap and not in thread-local storage. The Go runtime makes the linker place all of
// this library's thread-local storage in the small static block that the loader reserves for libraries that are
// opened late.

#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct failure {
	int rank;
	char text[4096];
};

struct thread {
	struct failure failure;
	int refuses; // its next call that makes something
	char reason[1024];
};

static const struct failure none = {-1, ""};
static const struct failure no_memory = {-1, "there is no memory left for the message of this failure"};

static __thread const struct failure *last;
static __thread struct thread *own;

static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget(void *thread) {
	free(thread);
	own = NULL;
	last = NULL;
}

static void make_key(void) { pthread_key_create(&ending, forget); }

// mine is what this thread has of its own, or NULL if there is no memory left for it.
static struct thread *mine(void) {
	if (own == NULL) {
		own = calloc(1, sizeof *own);
		pthread_once(&once, make_key);
		pthread_setspecific(ending, own);
	}
	return own;
}

int libweft_fail(int status, int rank, const char *text, size_t length) {
	if (mine() == NULL) {
		last = &no_memory;
		return status;
	}
	struct failure *f = &own->failure;
	if (length >= sizeof f->text) {
		length = sizeof f->text - 1;
	}
	f->rank = rank;
	memcpy(f->text, text, length);
	f->text[length] = 0;
	last = f;
	return status;
}

// In a child of fork nothing of Go may be entered: its threads are not there, and a call would wait for them for ever.

int libweft_forked;

static const struct failure in_child = {-1, "this process was forked after libweft.so was loaded, and has none of its "
											"threads; start ranks by fork and exec, by posix_spawn, or "
											"with the start method spawn or forkserver in Python"};

static void after_fork(void) { libweft_forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

int libweft_refuse_child(void) {
	last = &in_child;
	return WEFT_ERROR_FORKED;
}

// How long the calls of each thread may wait on the host, in milliseconds; 0: as long as the communicator lets them.
__thread int64_t libweft_timeout;

weft_status weft_timeout_set(int64_t milliseconds) {
	static const char refused[] = "a timeout of fewer than 0 milliseconds, or of more than 2^40; 0 is none";
	if (libweft_forked) {
		return libweft_refuse_child();
	}
	if (milliseconds < 0 || milliseconds > (int64_t)1 << 40) {
		return libweft_fail(WEFT_ERROR_INVALID, -1, refused, sizeof refused - 1);
	}
	libweft_timeout = milliseconds;
	return WEFT_OK;
}

weft_status weft_refuse(const char *reason) {
	if (libweft_forked) {
		return libweft_refuse_child();
	}
	if (reason == NULL) {
		libweft_refusal();
		return WEFT_OK;
	}
	if (mine() == NULL) {
		return libweft_fail(WEFT_ERROR_SYSTEM, -1, "", 0);
	}
	own->refuses = 1;
	strncpy(own->reason, reason, sizeof own->reason - 1);
	return WEFT_OK;
}

const char *libweft_refusal(void) {
	if (own == NULL || !own->refuses) {
		return NULL;
	}
	own->refuses = 0;
	return own->reason;
}

weft_status weft_error_set(weft_status status, int rank, const char *message) {
	const char *text = message == NULL ? "" : message;
	return libweft_fail(status, rank, text, strlen(text));
}

const char *weft_error(void) { return last ? last->text : none.text; }

int weft_error_rank(void) { return last ? last->rank : none.rank; }

int weft_version(void) { return WEFT_VERSION; }

const char *weft_release(void) { return WEFT_RELEASE; }

/* The members of a DLManagedTensor before its manager_ctx are a DLTensor. */
enum { DL_TENSOR_BYTES = 48 };

void weft_dlpack_deleter(void *managed_tensor) {
	int32_t *gone = NULL;
	if (managed_tensor != NULL) {
		memcpy(&gone, (const char *)managed_tensor + DL_TENSOR_BYTES, sizeof gone);
	}
	if (gone != NULL) {
		__atomic_store_n(gone, 1, __ATOMIC_RELEASE);
	}
}
