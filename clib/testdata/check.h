/* What the test programs have in common: a check that fails says where and ends the program. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#define OK(call) check((call), WEFT_OK, "", #call, __LINE__)
#define REFUSED(call, status, words) check((call), (status), (words), #call, __LINE__)
#define INVALID(call, words) REFUSED(call, WEFT_ERROR_INVALID, words)
#define UNSUPPORTED(call, words) REFUSED(call, WEFT_ERROR_UNSUPPORTED, words)
#define FORKED(call, words) REFUSED(call, WEFT_ERROR_FORKED, words)
#define NO_HANDLE(call, words) REFUSED(call, WEFT_ERROR_HANDLE, words)
#define GONE(call) NO_HANDLE(call, "destroyed or released before")
#define TRUE(condition)                                                                                                \
	do {                                                                                                               \
		if (!(condition)) {                                                                                            \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                                            \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

static inline void check(weft_status got, weft_status want, const char *words, const char *call, int line) {
	if (got != want || (got != WEFT_OK && (strstr(weft_error(), words) == NULL || weft_error()[0] == 0))) {
		fprintf(stderr, "line %d: %s: %s: %s; want %s and \"%s\"\n", line, call, weft_status_name(got),
				got == WEFT_OK ? "" : weft_error(), weft_status_name(want), words);
		exit(1);
	}
}

static inline weft_tensor tensor(void *data, weft_dtype type, int64_t a, int64_t b) {
	weft_tensor t = {0};
	t.size = sizeof t;
	t.data = data;
	t.dtype = type;
	t.dims = b < 0 ? 1 : 2;
	t.shape[0] = a;
	t.shape[1] = b < 0 ? 0 : b;
	return t;
}

static inline void join_threads(const pthread_t *threads, int n) {
	for (int i = 0; i < n; i++) {
		TRUE(pthread_join(threads[i], NULL) == 0);
	}
}

/* Starts n threads, each with its number, and waits for them. */
static inline void run_threads(int n, void *(*run)(void *number)) {
	pthread_t threads[64];
	for (int i = 0; i < n; i++) {
		TRUE(pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i) == 0);
	}
	join_threads(threads, n);
}
