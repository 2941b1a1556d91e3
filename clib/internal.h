// Declarations that the Go files and the C files of libweft.so share.
#ifndef WEFT_INTERNAL_H
#define WEFT_INTERNAL_H

#include "weft.h"

// Remembers a failure for weft_error of this thread and returns its status.
int libweft_fail(int status, int rank, const char *text, size_t length);

// Why this thread's next call is to be refused, or NULL; it is said once. See weft_refuse.
const char *libweft_refusal(void);

// How long calls of this thread may wait: see weft_timeout_set.
extern __thread int64_t libweft_timeout __attribute__((visibility("hidden")));

// Whether this process is a child of fork, where nothing of Go may be entered, and the refusal of its calls.
extern int libweft_forked __attribute__((visibility("hidden")));
int libweft_refuse_child(void);

// Pointers to C functions can be called by C only. What Go keeps of a caller's own is a number to Go: it may be one.
void libweft_log(weft_log_fn log, void *context, const char *line);
int libweft_all_gather(weft_all_gather_fn all_gather, void *context, const void *mine, size_t bytes, void *all);
void libweft_select(weft_select_fn select, uintptr_t context, const weft_request *request, void *name);
int libweft_key(weft_key_fn key, uintptr_t context, const weft_request *request, void *name);
int libweft_prepare(weft_prepare_fn prepare, uintptr_t context, weft_own_context *made);
void libweft_release(weft_release_fn release, uintptr_t context, uintptr_t state);

// Whether any thread's program is to be asked, whether this one's is; whether it now says that the call is to end,
// which holds until libweft_ask_over. See weft_ask_set.
extern int libweft_asks __attribute__((visibility("hidden")));
int libweft_asking(void);
int libweft_ask(void);
void libweft_ask_over(void);

// Makes the pipe of interrupts and returns the end to read from, or minus an errno.
int libweft_interrupts(void);

// The i-th entry of the environment in C, or NULL behind the last.
const char *libweft_environment(size_t i);

// A signal handler: its address, and its name by dladdr, or NULL.
typedef struct libweft_handler {
	uintptr_t address, offset; // in the file
	const char *symbol, *file;
	const char *signal; // its name, or NULL
} libweft_handler;

// Signals are numbered from 1.
enum { LIBWEFT_SIGNALS = 64 };

// Whether a signal has a handler of the program's that lacks SA_ONSTACK, and which. With repair the handler gets the
// flag, and 0 says that it has.
int libweft_off_stack(int signal, int repair, libweft_handler *handler);

// A copy of a descriptor that exec closes, or -1 and errno.
int libweft_duplicate(int fd);

#endif
