/* Plans on the ranks of a launcher: argument 1 is the file of an all-reduce in place of as many chunks as there are
 * ranks, argument 2 that of one that waits for ever. */
#include "check.h"

static weft_comm comm;
static weft_comm_info me;

static char *read_file(const char *name) {
	FILE *f = fopen(name, "r");
	TRUE(f != NULL && fseek(f, 0, SEEK_END) == 0);
	long n = ftell(f);
	TRUE(n > 0 && fseek(f, 0, SEEK_SET) == 0);
	char *text = calloc(1, (size_t)n + 1);
	TRUE(text != NULL && fread(text, 1, (size_t)n, f) == (size_t)n && fclose(f) == 0);
	return text;
}

/* What the verifier says of plans, and of what is none. */
static void checks(const char *sum, const char *hangs) {
	char *found;
	OK(weft_plan_check(sum, &found));
	TRUE(strcmp(found, "[]") == 0);
	weft_text_free(found);
	OK(weft_plan_check(hangs, &found));
	TRUE(strstr(found, "\"class\":\"deadlock\",\"warning\":false") != NULL);
	weft_text_free(found);
	INVALID(weft_plan_check("{}", &found), "");
	TRUE(found == NULL);
	INVALID(weft_plan_check(NULL, &found), "NULL");
	INVALID(weft_plan_check(sum, NULL), "NULL");
	weft_text_free(NULL);

	/* A recorded program: the second sum overwrites the first, and fusion adds all three. */
	const char *recording =
		"{\"name\":\"sums\",\"collective\":\"test\",\"protocol\":\"Simple\",\"threads\":64,\"alignment\":16,"
		"\"max_bytes\":1024,\"instances\":1,\"fuse\":true,\"sync\":true,\"ranks\":[{\"input\":3,\"output\":1,\"ops\":["
		"{\"kind\":\"re\",\"reduce\":\"sum\","
		"\"src\":[{\"buffer\":\"i\",\"size\":1},{\"buffer\":\"i\",\"index\":1,\"size\":1}],"
		"\"dst\":[{\"buffer\":\"o\",\"size\":1}]},"
		"{\"kind\":\"re\",\"reduce\":\"sum\","
		"\"src\":[{\"buffer\":\"i\",\"size\":1},{\"buffer\":\"i\",\"index\":2,\"size\":1}],"
		"\"dst\":[{\"buffer\":\"o\",\"size\":1}]}]}]}";
	OK(weft_plan_check(recording, &found));
	TRUE(strstr(found, "\"class\":\"fusion\",\"warning\":true") != NULL);
	weft_text_free(found);
	char *text;
	OK(weft_plan_lower(recording, 1, &text));
	OK(weft_plan_check(text, &found));
	TRUE(strcmp(found, "[]") == 0);
	weft_text_free(found);
	weft_text_free(text);
	INVALID(weft_plan_lower("{\"name\": 3}", 0, &text), "a recording that cannot be read");
}

/* One launch of n elements in each chunk, in memory of a window or in any other. */
static void launch(weft_executor x, int64_t plan, float *data, int n) {
	int all = n * me.ranks;
	for (int i = 0; i < all; i++) {
		data[i] = (float)((me.rank + 1) * (i % 13));
	}
	weft_tensor t = tensor(data, WEFT_FLOAT32, all, -1);
	OK(weft_executor_run(x, NULL, plan, &t, &t));
	for (int i = 0; i < all; i++) {
		TRUE(data[i] == (float)(me.ranks * (me.ranks + 1) / 2 * (i % 13)));
	}
}

int main(int argc, char **argv) {
	TRUE(argc == 3);
	char *sum = read_file(argv[1]), *hangs = read_file(argv[2]);
	checks(sum, hangs);

	weft_comm_options options = {.size = sizeof options, .deadline_ms = 30000};
	OK(weft_comm_create(&options, &comm));
	me.size = sizeof me;
	OK(weft_comm_get(comm, &me));
	weft_executor x, careless;
	OK(weft_executor_create(comm, 0, &x));
	int64_t plan = -1, again = -1, none = -1;
	OK(weft_executor_load(x, sum, &plan));
	OK(weft_executor_load(x, sum, &again));
	TRUE(plan >= 0 && plan == again);

	enum { most = 10000 };
	weft_window window;
	weft_window_info info = {.size = sizeof info};
	OK(weft_window_create(comm, (size_t)(most * me.ranks) * sizeof(float), &window));
	OK(weft_window_get(window, &info));
	float *plain = malloc((size_t)(most * me.ranks) * sizeof(float));
	TRUE(plain != NULL);
	for (int n = 4; n <= most; n = n * 5) {
		launch(x, plan, info.memory, n);
		launch(x, plan, plain, n);
	}

	/* What is wrong is refused on all ranks, and the next launch runs. */
	weft_tensor odd = tensor(plain, WEFT_FLOAT32, 4 * me.ranks + 1, -1);
	weft_tensor some = tensor(plain, WEFT_FLOAT32, 4 * me.ranks, -1);
	INVALID(weft_executor_run(x, NULL, plan, &odd, &odd), "it takes a multiple of");
	REFUSED(weft_executor_run(x, NULL, plan, NULL, &some), WEFT_ERROR_INVALID, "");
	INVALID(weft_executor_load(x, hangs, &none), "the verifier finds: deadlock: ");
	INVALID(weft_executor_run(x, NULL, plan, NULL, NULL), "no operand says what it reduces elements of");
	weft_tensor empty = tensor(NULL, WEFT_FLOAT32, 0, -1);
	OK(weft_executor_run(x, NULL, plan, &empty, &empty));
	INVALID(weft_executor_load(x, me.rank == 0 ? "no plan" : sum, &none),
			me.rank == 0 ? "plan: line 1: " : "rank 0: refused there: plan: line 1: ");
	INVALID(weft_executor_load(x, sum, NULL), "NULL");
	TRUE(none == -1);
	launch(x, plan, plain, 8);

	/* One that runs plans with errors refuses what no run survives. */
	OK(weft_executor_create(comm, 1, &careless));
	INVALID(weft_executor_load(careless, hangs, &none), "deadlock");
	OK(weft_executor_load(careless, sum, &again));
	launch(careless, again, info.memory, 12);
	OK(weft_executor_destroy(careless));

	OK(weft_executor_reset(x));
	INVALID(weft_executor_run(x, NULL, plan, &some, &some), "");
	OK(weft_executor_load(x, sum, &plan));
	launch(x, plan, plain, 4);
	OK(weft_executor_destroy(x));
	GONE(weft_executor_load(x, sum, &plan));
	free(plain), free(sum), free(hangs);
	OK(weft_window_destroy(window));
	OK(weft_comm_destroy(comm));
	printf("ok\n");
	return 0;
}
