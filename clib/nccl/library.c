/*
 * libweft.so holds a Go runtime, and a process can have one only. This library therefore opens the libweft.so that is
 * loaded, else its own neighbour, and is linked with none. So the archive can be linked into a library that is built
 * where Weft is not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct nep_library nep_lib;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool opened;

static void *open_beside(void) {
	Dl_info here;
	char path[4096];
	if (dladdr((void *)(uintptr_t)&nep_open, &here) == 0 || here.dli_fname == NULL) {
		return NULL;
	}
	const char *slash = strrchr(here.dli_fname, '/');
	if (slash == NULL) {
		return NULL;
	}
	int length = (int)(slash - here.dli_fname);
	if (snprintf(path, sizeof path, "%.*s/libweft.so", length, here.dli_fname) >= (int)sizeof path) {
		return NULL;
	}
	return dlopen(path, RTLD_NOW | RTLD_NODELETE);
}

static void *open_library(void) {
	void *library = dlopen("libweft.so", RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
	const char *named = getenv("WEFT_LIBRARY");
	if (library == NULL && named != NULL && named[0] != 0) {
		return dlopen(named, RTLD_NOW | RTLD_NODELETE);
	}
	if (library == NULL) {
		library = open_beside();
	}
	if (library == NULL) {
		library = dlopen("libweft.so", RTLD_NOW | RTLD_NODELETE);
	}
	return library;
}

static void open_once(void) {
	void *library = open_library();
	if (library == NULL) {
		fprintf(stderr,
				"NCCL EP: %s; put libweft.so beside this library or on LD_LIBRARY_PATH, or name it in WEFT_LIBRARY\n",
				dlerror());
		return;
	}
#define FIND(name)                                                                                                     \
	if ((*(void **)&nep_lib.name = dlsym(library, #name)) == NULL) {                                                   \
		fprintf(stderr, "NCCL EP: libweft.so has no " #name ": it is older than this library; update it\n");           \
		return;                                                                                                        \
	}
	NEP_FUNCTIONS(FIND)
#undef FIND
	opened = true;
}

/* A child of fork has none of the threads that may hold locks, of this library's or of Go's. */
static bool forked;
static void after_fork(void) { forked = true; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

ncclEpResult_t nep_open(void) {
	if (forked && opened) {
		return nep_misused("this process was forked after libweft.so was loaded, and has none of "
						   "its threads; start ranks by fork and exec, or by posix_spawn");
	}
	pthread_once(&once, open_once);
	return opened ? NCCL_EP_SUCCESS : NCCL_EP_SYSTEM_ERROR;
}
