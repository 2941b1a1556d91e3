//go:build cgo && linux

// What Go cannot do for itself: pointers to C functions, and the parts of C's library that have no counterpart in Go.

#include "internal.h"

#include <fcntl.h>

void libweft_log(weft_log_fn log, void *context, const char *line) { log(context, line); }

int libweft_all_gather(weft_all_gather_fn all_gather, void *context, const void *mine, size_t bytes, void *all) {
	return all_gather(context, mine, bytes, all);
}

extern char **environ;

const char *libweft_environment(size_t i) { return environ ? environ[i] : NULL; }

int libweft_duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }
