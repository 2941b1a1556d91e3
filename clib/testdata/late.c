/* A program that opens the library when it already runs, with threads of its own, as Python does. Its argument is the
 * library's path. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "check.h"

static __thread char ours[1024]; /* what little room the loader keeps for late libraries is not all theirs */
static pthread_barrier_t opened;
static void *library;

static void *use(void *unused) {
	pthread_barrier_wait(&opened);
	weft_status (*create)(const weft_comm_options *, weft_comm *);
	weft_status (*destroy)(weft_comm);
	const char *(*message)(void);
	*(void **)&create = dlsym(library, "weft_comm_create");
	*(void **)&destroy = dlsym(library, "weft_comm_destroy");
	*(void **)&message = dlsym(library, "weft_error");
	TRUE(create && destroy && message);
	weft_comm comm;
	TRUE(create(NULL, &comm) == WEFT_OK);
	TRUE(destroy(comm) == WEFT_OK && destroy(comm) == WEFT_ERROR_HANDLE && strstr(message(), "destroyed") != NULL);
	ours[0]++;
	return unused;
}

int main(int argc, char **argv) {
	pthread_t threads[4];
	TRUE(argc == 2);
	pthread_barrier_init(&opened, NULL, 5);
	for (int i = 0; i < 4; i++) {
		TRUE(pthread_create(&threads[i], NULL, use, NULL) == 0);
	}
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	TRUE(dlsym(library, "goweft_comm_create") == NULL);
	pthread_barrier_wait(&opened);
	join_threads(threads, 4);
	TRUE(dlclose(library) == 0); /* which leaves it where it is */
	printf("ok\n");
	return 0;
}
