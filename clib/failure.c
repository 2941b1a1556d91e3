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

static const struct failure none = {-1, ""};
static const struct failure no_memory = {-1, "there is no memory left for the message of this failure"};

static __thread const struct failure *last;
static __thread struct failure *own;

static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget(void *failure) {
	free(failure);
	own = NULL;
	last = NULL;
}

static void make_key(void) { pthread_key_create(&ending, forget); }

int libweft_fail(int status, int rank, const char *text, size_t length) {
	if (own == NULL) {
		own = malloc(sizeof *own);
		pthread_once(&once, make_key);
		pthread_setspecific(ending, own);
	}
	if (own == NULL) {
		last = &no_memory;
		return status;
	}
	if (length >= sizeof own->text) {
		length = sizeof own->text - 1;
	}
	own->rank = rank;
	memcpy(own->text, text, length);
	own->text[length] = 0;
	last = own;
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
