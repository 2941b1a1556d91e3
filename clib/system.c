// go:build cgo && linux

// Functions that Go lacks: calls of C function pointers, and the parts of C's library that have no counterpart in Go.

#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void libweft_log(weft_log_fn log, void *context, const char *line) { log(context, line); }

void libweft_select(weft_select_fn select, uintptr_t context, const weft_request *request, void *name) {
	select((void *)context, request, name);
}

int libweft_key(weft_key_fn key, uintptr_t context, const weft_request *request, void *name) {
	return key((void *)context, request, name);
}

int libweft_prepare(weft_prepare_fn prepare, uintptr_t context, weft_own_context *made) {
	return prepare((void *)context, made);
}

void libweft_release(weft_release_fn release, uintptr_t context, uintptr_t state) {
	release((void *)context, (void *)state);
}

int libweft_all_gather(weft_all_gather_fn all_gather, void *context, const void *mine, size_t bytes, void *all) {
	return all_gather(context, mine, bytes, all);
}

extern char **environ;

const char *libweft_environment(size_t i) { return environ ? environ[i] : NULL; }

void weft_text_free(void *text) { free(text); }

int libweft_duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

// The kernel's struct, as far as it is the same on every architecture. C's sigaction refuses the signals that glibc
// reserves, whose handlers interrupt Go like any other.
struct action {
	uintptr_t handler;
	unsigned long flags;
	unsigned long rest[8];
};

static int kernel_action(int signal, const struct action *set, struct action *get) {
	return (int)syscall(SYS_rt_sigaction, signal, set, get, LIBWEFT_SIGNALS / 8);
}

#define SIGNAL(name) [name] = #name
static const char *const names[LIBWEFT_SIGNALS + 1] = {
	SIGNAL(SIGHUP),  SIGNAL(SIGINT),   SIGNAL(SIGQUIT),   SIGNAL(SIGILL),  SIGNAL(SIGTRAP), SIGNAL(SIGABRT),
	SIGNAL(SIGBUS),  SIGNAL(SIGFPE),   SIGNAL(SIGUSR1),   SIGNAL(SIGSEGV), SIGNAL(SIGUSR2), SIGNAL(SIGPIPE),
	SIGNAL(SIGALRM), SIGNAL(SIGTERM),  SIGNAL(SIGSTKFLT), SIGNAL(SIGCHLD), SIGNAL(SIGCONT), SIGNAL(SIGTSTP),
	SIGNAL(SIGTTIN), SIGNAL(SIGTTOU),  SIGNAL(SIGURG),    SIGNAL(SIGXCPU), SIGNAL(SIGXFSZ), SIGNAL(SIGVTALRM),
	SIGNAL(SIGPROF), SIGNAL(SIGWINCH), SIGNAL(SIGIO),     SIGNAL(SIGPWR),  SIGNAL(SIGSYS),
};

int libweft_off_stack(int signal, int repair, libweft_handler *handler) {
	struct action action = {0};
	if (kernel_action(signal, NULL, &action) != 0 || action.handler == (uintptr_t)SIG_DFL ||
		action.handler == (uintptr_t)SIG_IGN || (action.flags & SA_ONSTACK) != 0) {
		return 0;
	}
	Dl_info info = {0};
	*handler = (libweft_handler){.address = action.handler, .signal = names[signal]};
	if (dladdr((void *)action.handler, &info) != 0) {
		handler->offset = action.handler - (uintptr_t)info.dli_fbase;
		handler->symbol = info.dli_sname;
		handler->file = info.dli_fname;
	}
	action.flags |= SA_ONSTACK;
	return !(repair && kernel_action(signal, &action, NULL) == 0);
}
