/* A join with as many files open as this process may have is refused in words, whatever little is left of them, and
 * works again when there are more. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

enum { LIMIT = 64, MOST_LEFT = 3 };

int main(void) {
	OK(weft_signal_check(0)); /* waits until the runtime of Go, which starts on a thread of its own, has been set up */
	struct rlimit limit = {LIMIT, LIMIT};
	TRUE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	int last = -1;
	for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;) {
		last = fd;
	}
	TRUE(errno == EMFILE && last > MOST_LEFT);
	weft_comm comm;
	weft_status got = WEFT_OK;
	for (int left = 0; left <= MOST_LEFT; left++) {
		got = weft_comm_create(NULL, &comm);
		if (left == 0 || got != WEFT_OK) {
			check(got, WEFT_ERROR_ABORTED, "limit of 64 open files: raise it (ulimit -n)", "weft_comm_create",
				  __LINE__);
		} else {
			OK(weft_comm_destroy(comm));
		}
		close(last--);
	}
	for (int i = 0; i < LIMIT / 2; i++) {
		close(last--);
	}
	OK(weft_comm_create(NULL, &comm));
	OK(weft_comm_destroy(comm));
	printf("ok\n");
	return 0;
}
