/* One rank of several processes. The first argument says which of the scenarios below it plays. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { TOKENS = 6, TOPK = 3, HIDDEN = 128, LOCAL = 2 };

static weft_comm comm;
static weft_comm_info me;

static int32_t topk[TOKENS][TOPK];
static float weights[TOKENS][TOPK];

static void route(void) {
	int experts = me.ranks * LOCAL;
	for (int t = 0; t < TOKENS; t++) {
		for (int k = 0; k < TOPK; k++) {
			topk[t][k] = (me.rank + 2 * t + k) % experts;
			weights[t][k] = 0.25f * (float)(k + 1);
		}
	}
	topk[1][1] = -1;
}

static float element(int rank, int token, int i) { return (float)(rank * 64 + token * 8 + i % 5); }

static uint16_t bf16(float v) {
	uint32_t bits;
	memcpy(&bits, &v, 4);
	return (uint16_t)(bits >> 16); /* the numbers here are short enough */
}

/* Whether a bf16 number is as near to what it should be as a few roundings leave it. */
static int near(uint16_t got, float want) {
	float had;
	uint32_t bits = (uint32_t)got << 16;
	memcpy(&had, &bits, 4);
	return had - want <= want / 128 && want - had <= want / 128;
}

static void windows(void) {
	weft_window window;
	weft_window_info info = {.size = sizeof info};
	OK(weft_window_create(comm, 4096, &window));
	OK(weft_window_get(window, &info));
	TRUE(info.bytes == 4096 && info.memory != NULL);
	weft_group group;
	OK(weft_group_create(comm, NULL, &group));
	((int *)info.memory)[0] = 1000 + me.rank;
	OK(weft_barrier(group, NULL));
	for (int r = 0; r < me.ranks; r++) {
		void *peer;
		OK(weft_window_peer(window, r, &peer));
		TRUE(((int *)peer)[0] == 1000 + r && (r == me.rank) == (peer == info.memory));
	}
	void *none;
	INVALID(weft_window_peer(window, me.ranks, &none), "rank");
	OK(weft_barrier(group, NULL));
	OK(weft_window_destroy(window));

	/* Ranks that ask for different things are all told, and go on. */
	weft_status s = weft_window_create(comm, (size_t)(100 + me.rank), &window);
	check(s, WEFT_ERROR_MISMATCH, "rank", "sizes that differ", __LINE__);
	UNSUPPORTED(weft_window_create_from_memory(comm, &window, 8, &window), "other processes cannot see plain memory");

	/* A memory file of the caller's, whose descriptor stays the caller's. */
	int fd = memfd_create("ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	TRUE(fd >= 0 && ftruncate(fd, 8192) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	OK(weft_window_create_from_fd(comm, fd, 8192, &window));
	int *mine = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(mine != MAP_FAILED && close(fd) == 0);
	mine[7] = 70 + me.rank;
	OK(weft_barrier(group, NULL));
	void *next;
	OK(weft_window_peer(window, (me.rank + 1) % me.ranks, &next));
	TRUE(((int *)next)[7] == 70 + (me.rank + 1) % me.ranks);
	OK(weft_barrier(group, NULL));
	OK(weft_group_destroy(group));
	OK(weft_window_destroy(window));
}

/* Calls that make something, and one rank refuses in another layer. */
static void refusals(void) {
	weft_comm part;
	weft_group group;
	weft_window window;
	if (me.rank == 1) {
		OK(weft_refuse("the moon"));
		INVALID(weft_comm_split(comm, 0, 0, &part), "the moon");
		OK(weft_refuse("the sun"));
		OK(weft_refuse("the stars"));
		INVALID(weft_group_create(comm, NULL, &group), "the stars");
		OK(weft_refuse("this one"));
		OK(weft_refuse(NULL));
	} else {
		INVALID(weft_comm_split(comm, 0, 0, &part), "refused there: the moon");
		TRUE(weft_error_rank() == 1);
		INVALID(weft_group_create(comm, NULL, &group), "refused there: the stars");
	}
	TRUE(part == NULL && group == NULL);
	INVALID(weft_window_create_from_fd(comm, -1, 10, &window), "descriptor -1");
}

/* Colors and keys have 64 bits. */
static void colors(void) {
	weft_comm part;
	weft_comm_info info = {.size = sizeof info};
	OK(weft_comm_split(comm, (int64_t)1 << 40, me.rank == 0 ? INT64_MAX : INT64_MIN, &part));
	OK(weft_comm_get(part, &info));
	TRUE(info.ranks == me.ranks && info.rank == (me.rank + me.ranks - 1) % me.ranks);
	OK(weft_comm_destroy(part));
}

/* What stands at element i of what a rank gives to another. */
static float given(int from, int to, int i) { return (float)(from * 100 + to * 10 + i % 7); }

/* Every collective, with parts of n elements, and of n + r of rank r. */
static void every_collective(weft_group group, int n) {
	int ranks = me.ranks, most = ranks * (n + ranks), sum = ranks * (ranks - 1) / 2, root = ranks - 1;
	float *in = malloc((size_t)most * 4), *out = malloc((size_t)most * 4);
	int64_t counts[64], at[64], own[64];
	for (int r = 0, from = 0; r < ranks; from += n + r++) {
		counts[r] = n + r, at[r] = from, own[r] = n + me.rank;
		for (int i = 0; i < n; i++) {
			in[r * n + i] = given(me.rank, r, i);
		}
	}
	weft_tensor parts = tensor(in, WEFT_FLOAT32, ranks, n), part = tensor(in, WEFT_FLOAT32, n, -1),
				outs = tensor(out, WEFT_FLOAT32, ranks, n), mine = tensor(out, WEFT_FLOAT32, n, -1);
	OK(weft_reduce_scatter(group, NULL, &mine, &parts, WEFT_SUM));
	for (int i = 0; i < n; i++) {
		TRUE(out[i] == (float)(100 * sum + ranks * (10 * me.rank + i % 7)));
	}
	OK(weft_reduce(group, NULL, me.rank == root ? &mine : NULL, &part, WEFT_MAX, root));
	if (me.rank == root) {
		for (int i = 0; i < n; i++) {
			TRUE(out[i] == given(root, 0, i));
		}
	}
	float two = 2;
	weft_tensor scalar = tensor(&two, WEFT_FLOAT32, 1, -1);
	weft_collective_args args = {
		.size = sizeof args, .collective = WEFT_ALL_REDUCE, .op = WEFT_PREMULSUM, .out = &mine, .in = &part};
	INVALID(weft_group_run(group, NULL, &args), "takes a scalar: one element of fp32");
	args.scalar = &scalar;
	OK(weft_group_run(group, NULL, &args));
	for (int i = 0; i < n; i++) {
		TRUE(out[i] == (float)(200 * sum + 2 * ranks * (i % 7)));
	}
	OK(weft_all_to_all(group, NULL, &outs, &parts));
	for (int j = 0; j < ranks * n; j++) {
		TRUE(out[j] == given(j / n, me.rank, j % n));
	}
	OK(weft_gather(group, NULL, me.rank == root ? &outs : NULL, &part, root));
	if (me.rank == root) {
		for (int j = 0; j < ranks * n; j++) {
			TRUE(out[j] == given(j / n, 0, j % n));
		}
	}
	OK(weft_scatter(group, NULL, &mine, me.rank == root ? &parts : NULL, root));
	for (int i = 0; i < n; i++) {
		TRUE(out[i] == given(root, me.rank, i));
	}
	args = (weft_collective_args){
		.size = sizeof args, .collective = WEFT_BROADCAST, .root = root, .out = &mine, .in = &part};
	OK(weft_group_run(group, NULL, &args)); /* out of place */
	for (int i = 0; i < n; i++) {
		TRUE(out[i] == given(root, 0, i) && in[i] == given(me.rank, 0, i));
	}

	/* A norm's rows before they are divided are the sums. */
	float *rows = malloc((size_t)n * 4), one[1] = {1};
	weft_tensor before = tensor(rows, WEFT_FLOAT32, n, -1), gamma = tensor(one, WEFT_FLOAT32, 1, -1);
	weft_norm norm = {.size = sizeof norm, .gamma = &gamma, .residual_out = &before};
	OK(weft_all_reduce_norm(group, NULL, &mine, &part, &norm));
	for (int i = 0; i < n; i++) {
		float sum_of_i = (float)(100 * sum + ranks * (i % 7));
		TRUE(rows[i] == sum_of_i && (sum_of_i == 0 || (out[i] > 0.999f && out[i] < 1.001f)));
	}
	INVALID(weft_all_reduce_norm(group, NULL, &mine, &part, NULL), "gamma");
	free(rows);

	/* Words are raised, and made 0. */
	int64_t raised[64] = {0}, ready[64];
	for (int r = 0; r < ranks; r++) {
		ready[r] = 1;
	}
	weft_tensor words = tensor(raised, WEFT_INT64, ranks, -1), marks = tensor(ready, WEFT_INT64, ranks, -1);
	OK(weft_all_gather_progress(group, NULL, &outs, &part, &words));
	OK(weft_reduce_scatter_ready(group, NULL, &mine, &parts, &marks, WEFT_SUM));
	for (int r = 0; r < ranks; r++) {
		TRUE(raised[r] == 1 && ready[r] == 0);
	}
	INVALID(weft_all_gather_progress(group, NULL, &outs, &part, &part), "words of");

	/* Parts of different lengths. */
	weft_tensor all = tensor(out, WEFT_FLOAT32, at[root] + counts[root], -1), row = tensor(in, WEFT_FLOAT32, own[0], -1),
				some = tensor(out, WEFT_FLOAT32, own[0], -1), sent = tensor(in, WEFT_FLOAT32, all.shape[0], -1),
				same = tensor(out, WEFT_FLOAT32, ranks * own[0], -1);
	for (int r = 0; r < ranks; r++) {
		for (int i = 0; i < counts[r]; i++) {
			in[at[r] + i] = given(me.rank, r, i);
		}
	}
	OK(weft_reduce_scatter_v(group, NULL, &some, &sent, counts, WEFT_SUM));
	for (int i = 0; i < own[0]; i++) {
		TRUE(out[i] == (float)(100 * sum + ranks * (10 * me.rank + i % 7)));
	}
	OK(weft_all_to_all_v(group, NULL, &same, &sent, counts, at, own, NULL));
	for (int j = 0; j < ranks * own[0]; j++) {
		TRUE(out[j] == given(j / (int)own[0], me.rank, j % (int)own[0]));
	}
	for (int i = 0; i < own[0]; i++) {
		in[i] = given(me.rank, 0, i);
	}
	OK(weft_all_gather_v(group, NULL, &all, &row, counts, n % 2 ? at : NULL));
	for (int r = 0; r < ranks; r++) {
		TRUE(out[at[r]] == given(r, 0, 0) && out[at[r] + counts[r] - 1] == given(r, 0, (int)counts[r] - 1));
	}
	free(in), free(out);
}

/* Messages round the ring of ranks: alone, and in a batch with one to itself. */
static void messages(weft_group group, int n) {
	int next = (me.rank + 1) % me.ranks, before = (me.rank + me.ranks - 1) % me.ranks;
	float *in = malloc((size_t)n * 4), *out = malloc((size_t)n * 8);
	for (int i = 0; i < n; i++) {
		in[i] = given(me.rank, next, i);
	}
	weft_tensor mine = tensor(in, WEFT_FLOAT32, n, -1), got = tensor(out, WEFT_FLOAT32, n, -1),
				own = tensor(out + n, WEFT_FLOAT32, n, -1);
	if (me.rank == 0) {
		OK(weft_send(group, NULL, &mine, next));
	}
	OK(weft_recv(group, NULL, &got, before));
	if (me.rank != 0) {
		OK(weft_send(group, NULL, &mine, next));
	}
	for (int i = 0; i < n; i++) {
		TRUE(out[i] == given(before, me.rank, i));
	}
	memset(out, 0, (size_t)n * 8);
	weft_transfer all[] = {{sizeof all[0], &got, before, 1},
						   {sizeof all[0], &mine, next, 0},
						   {sizeof all[0], &mine, me.rank, 0},
						   {sizeof all[0], &own, me.rank, 1}};
	OK(weft_batch(group, NULL, all, 4));
	for (int i = 0; i < n; i++) {
		TRUE(out[i] == given(before, me.rank, i) && out[n + i] == in[i]);
	}
	OK(weft_batch(group, NULL, NULL, 0));
	free(in), free(out);
}

/* Calls that are started, more than one at a time, with others between them. */
static void started(weft_group group) {
	enum { CALLS = 20 };
	weft_work works[CALLS];
	float x[CALLS], sum = (float)(me.ranks * (me.ranks - 1) / 2);
	const char *name = NULL;
	weft_work_info info = {.size = sizeof info};
	for (int i = 0; i < CALLS; i++) {
		x[i] = (float)(me.rank + i);
		weft_tensor t = tensor(&x[i], WEFT_FLOAT32, 1, -1);
		weft_collective_args args = {.size = sizeof args, .collective = WEFT_ALL_REDUCE, .out = &t, .in = &t};
		args.algorithm = i % 2 ? "all-reduce/eager" : NULL;
		OK(weft_group_start(group, NULL, &args, &works[i]));
		if (i == CALLS / 2) {
			OK(weft_barrier(group, NULL));
			OK(weft_work_get(works[i], &info));
			TRUE(info.done && !info.captured && x[i] == sum + (float)(me.ranks * i));
		}
	}
	for (int i = 0; i < CALLS; i++) {
		OK(weft_work_wait(works[i]));
		OK(weft_work_wait(works[i]));
		OK(weft_work_error(works[i]));
		OK(weft_work_get(works[i], &info));
		TRUE(info.done && strcmp(info.algorithm, "all-reduce/eager") == 0 && x[i] == sum + (float)(me.ranks * i));
		UNSUPPORTED(weft_work_wait_on(works[i], NULL), "the host has no streams");
		INVALID(weft_work_receive(works[i], NULL), "is no dispatch's");
		OK(weft_work_release(works[i]));
		GONE(weft_work_release(works[i]));
		GONE(weft_work_wait(works[i]));
	}
	OK(weft_group_algorithm(group, &name));
	TRUE(strncmp(name, "barrier/", 8) == 0);

	/* A call whose peers have not come is not done, and bounded waits for it end. */
	weft_tensor t = tensor(x, WEFT_FLOAT32, 1, -1);
	weft_collective_args args = {.size = sizeof args, .collective = WEFT_BROADCAST, .out = &t, .in = &t};
	if (me.rank == 0) {
		args.root = 1;
		OK(weft_group_start(group, NULL, &args, &works[0]));
		OK(weft_timeout_set(20));
		REFUSED(weft_work_wait(works[0]), WEFT_ERROR_TIMEOUT, "weft_timeout_set");
		OK(weft_timeout_set(0));
		OK(weft_work_get(works[0], &info));
		TRUE(!info.done);
		OK(weft_work_release(works[0])); /* the call goes on */
	} else {
		struct timespec pause = {0, 100 * 1000 * 1000};
		nanosleep(&pause, NULL);
		OK(weft_broadcast(group, NULL, &t, 1));
	}
	OK(weft_barrier(group, NULL));

	/* What one rank's arguments have wrong is that rank's at once, and its peers' when they wait. */
	args.root = 0, args.algorithm = me.rank == 0 ? "broadcast/by mail" : NULL;
	weft_status s = weft_group_start(group, NULL, &args, &works[0]);
	if (s == WEFT_OK) {
		INVALID(weft_work_wait(works[0]), "broadcast/by mail");
		INVALID(weft_work_error(works[0]), "broadcast/by mail");
		OK(weft_work_release(works[0]));
	} else {
		check(s, WEFT_ERROR_INVALID, "broadcast/by mail", "the rank's own", __LINE__);
	}
	OK(weft_barrier(group, NULL));
	args.algorithm = NULL;
	OK(weft_group_start(group, NULL, &args, &works[0]));
	/* and the group's end is the work's */
}

static void algorithms(weft_group group) {
	weft_algorithm a = {.size = sizeof a};
	int n = 0, found = 0;
	for (;; n++) {
		OK(weft_group_algorithm_at(group, n, &a));
		if (a.name == NULL) {
			break;
		}
		found += strcmp(a.name, "all-reduce/eager") == 0 && a.collective == WEFT_ALL_REDUCE;
	}
	TRUE(n > 10 && found == 1);
	INVALID(weft_group_algorithm_at(group, -1, &a), "algorithm -1");

	weft_group_options options = {.size = sizeof options, .dtypes = 1 << WEFT_UE8M0};
	weft_group forced = NULL;
	UNSUPPORTED(weft_group_create(comm, &options, &forced), "cannot be reduced");
	options.dtypes = 1 << WEFT_FLOAT32, options.force = "all-reduce/by-mail";
	INVALID(weft_group_create(comm, &options, &forced), "all-reduce/by-mail");
	options.force = "all-reduce/pipeline all-reduce/eager";
	OK(weft_group_create(comm, &options, &forced));
	float x = 1;
	weft_tensor t = tensor(&x, WEFT_FLOAT32, 1, -1);
	OK(weft_all_reduce(forced, NULL, &t, &t, WEFT_SUM));
	const char *name;
	OK(weft_group_algorithm(forced, &name));
	TRUE(strcmp(name, "all-reduce/pipeline") == 0);
	OK(weft_group_destroy(forced));
}

static void collectives(void) {
	weft_group_options options = {.size = sizeof options, .scratch = 1 << 20};
	weft_group group;
	OK(weft_group_create(comm, &options, &group));
	for (int n = 1; n <= 100000; n = n * 7 + 1) {
		float *in = malloc((size_t)n * 4), *out = malloc((size_t)n * 4),
			  *all = malloc((size_t)n * 4 * (size_t)me.ranks);
		for (int i = 0; i < n; i++) {
			in[i] = (float)(me.rank + i % 11);
		}
		weft_tensor i = tensor(in, WEFT_FLOAT32, n, -1), o = tensor(out, WEFT_FLOAT32, n, -1),
					a = tensor(all, WEFT_FLOAT32, me.ranks, n);
		OK(weft_all_reduce(group, NULL, &o, &i, WEFT_SUM));
		OK(weft_all_gather(group, NULL, &a, &i));
		for (int j = 0; j < n; j++) {
			TRUE(out[j] == (float)(me.ranks * (me.ranks - 1) / 2 + me.ranks * (j % 11)));
			TRUE(all[(me.ranks - 1) * n + j] == (float)(me.ranks - 1 + j % 11));
		}
		OK(weft_all_reduce(group, NULL, &o, &i, WEFT_MAX));
		TRUE(out[0] == (float)(me.ranks - 1));
		OK(weft_broadcast(group, NULL, &i, me.ranks - 1));
		TRUE(in[0] == (float)(me.ranks - 1));
		free(in), free(out), free(all);
		every_collective(group, n);
		messages(group, n);
	}
	algorithms(group);
	float x[2] = {1, 2};
	weft_tensor t = tensor(x, WEFT_FLOAT32, 1 + me.rank % 2, -1);
	REFUSED(weft_all_reduce(group, NULL, &t, &t, WEFT_SUM), WEFT_ERROR_MISMATCH, "");
	OK(weft_barrier(group, NULL));
	started(group);
	OK(weft_group_destroy(group));
}

/* A routing that gets other weights is as good as one that was made with them. */
static void other_weights(weft_ep ep, weft_routing routing, const weft_tensor *rows, int one, int phases) {
	static float others[TOKENS][TOPK];
	static uint16_t sums[2][TOKENS][HIDDEN];
	for (int t = 0; t < TOKENS; t++) {
		for (int k = 0; k < TOPK; k++) {
			others[t][k] = (float)(1 + me.rank + t) / (float)(2 + k);
		}
	}
	weft_tensor tt = tensor(topk, WEFT_INT32, TOKENS, TOPK), tw = tensor(others, WEFT_FLOAT32, TOKENS, TOPK),
				data = {.size = sizeof data}, had = {.size = sizeof had}, want = {.size = sizeof want};
	int part = one ? WEFT_ROW_SELECTION_WEIGHTS : WEFT_ROW_WEIGHTS;
	OK(weft_routing_tensor(routing, part, &had)); /* of before */
	weft_ep_dispatch_args args = {0};
	weft_ep_dispatch_result got = {0};
	args.size = sizeof args, args.routing = routing, args.weights = &tw, args.rows = rows;
	got.size = sizeof got, got.data = &data;
	if (phases) {
		weft_work work;
		OK(weft_ep_dispatch(ep, NULL, &args, NULL, &work));
		OK(weft_work_receive(work, &got));
	} else {
		OK(weft_ep_dispatch(ep, NULL, &args, &got, NULL));
	}
	TRUE(got.routing == routing);
	weft_routing fresh;
	OK(weft_ep_prepare(ep, NULL, &tt, &tw, &fresh));
	OK(weft_routing_tensor(fresh, part, &want));
	TRUE(want.shape[0] == had.shape[0] && memcmp(want.data, had.data, (size_t)want.shape[0] * 4) != 0);
	OK(weft_routing_tensor(routing, part, &had));
	TRUE(memcmp(want.data, had.data, (size_t)(want.shape[0] * (one ? TOPK : 1)) * 4) == 0);
	weft_tensor own = data; /* what was received by one routing is not combined by another where it lies */
	size_t bytes = 2;
	for (int i = 0; i < data.dims; i++) {
		bytes *= (size_t)data.shape[i];
	}
	TRUE((own.data = malloc(bytes + 1)) != NULL);
	memcpy(own.data, data.data, bytes);
	for (int i = 0; i < 2; i++) {
		weft_tensor out = tensor(sums[i], WEFT_BFLOAT16, TOKENS, HIDDEN);
		weft_ep_combine_args home = {
			.size = sizeof home, .routing = i ? fresh : routing, .rows = i ? &own : &data, .out = &out};
		OK(weft_ep_combine(ep, NULL, &home, NULL));
	}
	TRUE(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
	if (!one) { /* at home alone, with the combine */
		weft_tensor first = tensor(weights, WEFT_FLOAT32, TOKENS, TOPK),
					out = tensor(sums[1], WEFT_BFLOAT16, TOKENS, HIDDEN);
		weft_ep_combine_args home = {
			.size = sizeof home, .routing = fresh, .rows = &own, .out = &out, .weights = &first};
		OK(weft_ep_combine(ep, NULL, &home, NULL));
		TRUE(memcmp(sums[0], sums[1], sizeof sums[0]) != 0);
		home.weights = &tw;
		OK(weft_ep_combine(ep, NULL, &home, NULL));
		TRUE(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
	}
	free(own.data);
	OK(weft_received_release(got.received));
	OK(weft_routing_release(fresh));
}

/* What rank 0 combines, and takes back the gradients of, is what it has released: a later batch of the same routing
 * lies there. The others take what they received last. */
static void released(weft_ep ep, weft_routing routing, const weft_tensor *rows) {
	static uint16_t sums[TOKENS][HIDDEN];
	weft_tensor out = tensor(sums, WEFT_BFLOAT16, TOKENS, HIDDEN), data = {0};
	data.size = sizeof data;
	weft_ep_dispatch_args args = {0};
	weft_ep_dispatch_result got = {0}, later = {0};
	args.size = sizeof args, args.routing = routing, args.rows = rows;
	got.size = later.size = sizeof got, got.data = later.data = &data;
	OK(weft_ep_dispatch(ep, NULL, &args, &got, NULL));
	OK(weft_received_release(got.received));
	weft_ep_combine_args home = {.size = sizeof home, .routing = routing, .rows = &data, .out = &out};
	weft_ep_dispatch_backward_args forth = {.size = sizeof forth};
	forth.routing = routing, forth.grad_rows = &data, forth.grad_tokens = &out;
	weft_ep_combine_backward_args back = {
		.size = sizeof back, .routing = routing, .grad_out = rows, .grad_rows = &data};
	INVALID(weft_ep_combine(ep, NULL, &home, NULL), "was released");
	INVALID(weft_ep_combine_backward(ep, NULL, &back), "was released");
	void *memory = data.data;
	OK(weft_ep_dispatch(ep, NULL, &args, &later, NULL));
	TRUE(data.data == memory && later.received != got.received);
	home.received = forth.received = me.rank == 0 ? got.received : later.received;
	INVALID(weft_ep_combine(ep, NULL, &home, NULL), "holds another batch of the routing");
	TRUE(weft_error_rank() == (me.rank == 0 ? -1 : 0));
	INVALID(weft_ep_dispatch_backward(ep, NULL, &forth), "holds another batch of the routing");
	TRUE(weft_error_rank() == (me.rank == 0 ? -1 : 0));
	home.received = later.received;
	OK(weft_ep_combine(ep, NULL, &home, NULL));
	home.received = NULL; /* who says nothing is believed */
	OK(weft_ep_combine(ep, NULL, &home, NULL));
	OK(weft_received_release(later.received));
}

/* A layer in every layout, with rows of one rank scaled by their expert, and the gradients; expert by expert as the
 * routing says. */
static void layout(weft_layout which, int phases) {
	weft_ep_spec spec = {.size = sizeof spec,
						 .experts = me.ranks * LOCAL,
						 .topk = TOPK,
						 .hidden = HIDDEN,
						 .max_tokens = TOKENS,
						 .layout = (int32_t)which,
						 .payload = WEFT_PAYLOAD_BF16};
	spec.alignment = which == WEFT_EXPERT_PACKED ? 4 : 0;
	int one = which == WEFT_RANK_MAJOR || which == WEFT_TOKEN_MAJOR; /* a row per token and rank */
	spec.reduction = one ? WEFT_PARTIAL : WEFT_EXACT;
	spec.weighting = one ? WEFT_PLAIN : WEFT_WEIGHTED;
	OK(weft_ep_check(&spec, WEFT_HOST, me.ranks));
	weft_ep ep;
	OK(weft_ep_create(comm, &spec, &ep));
	weft_ep_info info = {.size = sizeof info};
	OK(weft_ep_get(ep, &info));
	TRUE(info.capacity >= TOKENS && info.memory_bytes > 0 && info.dispatch_sms == 0);
	weft_tensor buffer = {.size = sizeof buffer};
	OK(weft_ep_combine_buffer(ep, &buffer));
	TRUE(buffer.dtype == WEFT_NONE && buffer.data == NULL); /* the host has none */
	OK(weft_ep_gradient_buffer(ep, &buffer));
	TRUE(buffer.dtype == WEFT_NONE && buffer.data == NULL);
	int64_t waits[2][64] = {{0}};
	weft_tensor wait_d = tensor(waits[0], WEFT_INT64, me.ranks, -1),
				wait_c = tensor(waits[1], WEFT_INT64, me.ranks, -1);
	OK(weft_ep_count_waits(ep, &wait_d, &wait_c));

	static uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], bias[TOKENS][HIDDEN];
	for (int t = 0; t < TOKENS; t++) {
		for (int i = 0; i < HIDDEN; i++) {
			x[t][i] = bf16(element(me.rank, t, i));
			bias[t][i] = bf16(1);
		}
	}
	weft_tensor tt = tensor(topk, WEFT_INT32, TOKENS, TOPK), tw = tensor(weights, WEFT_FLOAT32, TOKENS, TOPK);
	weft_tensor tx = tensor(x, WEFT_BFLOAT16, TOKENS, HIDDEN), to = tensor(out, WEFT_BFLOAT16, TOKENS, HIDDEN),
				tb = tensor(bias, WEFT_BFLOAT16, TOKENS, HIDDEN);
	weft_tensor rows = {0}, sources = {0}, tokens = {0}, part = {0};
	rows.size = sources.size = tokens.size = part.size = sizeof rows;
	weft_ep_dispatch_args args = {0};
	weft_ep_dispatch_result got = {0};
	args.size = sizeof args, got.size = sizeof got;
	args.rows = &tx, got.data = &rows;
	if (phases & 1) {
		args.topk = &tt, args.weights = &tw;
	} else {
		OK(weft_ep_prepare(ep, NULL, &tt, &tw, &args.routing));
	}
	weft_work work;
	if (phases & 2) {
		OK(weft_ep_dispatch(ep, NULL, &args, NULL, &work));
		OK(weft_work_receive(work, &got));
	} else {
		OK(weft_ep_dispatch(ep, NULL, &args, &got, NULL));
	}
	TRUE(got.received != NULL && got.routing != NULL && (args.routing == NULL || args.routing == got.routing));
	weft_routing_info numbers = {.size = sizeof numbers};
	OK(weft_routing_get(got.routing, &numbers));
	TRUE(numbers.tokens == TOKENS && numbers.selections == TOKENS * TOPK - 1 &&
		 numbers.rows * HIDDEN >= numbers.received * HIDDEN);

	/* Every row is what its source says that it is. */
	OK(weft_routing_tensor(got.routing, WEFT_SOURCE_RANKS, &sources));
	OK(weft_routing_tensor(got.routing, WEFT_SOURCE_TOKENS, &tokens));
	TRUE(sources.dtype == WEFT_INT32 && sources.shape[0] == numbers.rows);
	int found = 0;
	for (int64_t r = 0; r < numbers.rows; r++) {
		int from = ((int32_t *)sources.data)[r], token = ((int32_t *)tokens.data)[r];
		TRUE((from < 0) == (token < 0));
		for (int i = 0; from >= 0 && i < HIDDEN; i++) {
			TRUE(((uint16_t *)rows.data)[r * HIDDEN + i] == bf16(element(from, token, i)));
		}
		found += from >= 0;
	}
	TRUE(found > 0);
	for (int p = WEFT_EXPERT_COUNTS; p <= WEFT_SOURCE_SELECTIONS; p++) {
		weft_tensor again = {.size = sizeof again};
		OK(weft_routing_tensor(got.routing, p, &part));
		OK(weft_routing_tensor(got.routing, p, &again));
		TRUE(memcmp(&part, &again, sizeof part) == 0); /* the same memory */
	}

	OK(weft_routing_tensor(got.routing, WEFT_ROW_DEMAND, &part));
	TRUE(part.dtype == WEFT_INT32 && part.shape[0] == 1 && ((int32_t *)part.data)[0] == numbers.demand);

	weft_ep_combine_args home = {
		.size = sizeof home, .routing = got.routing, .rows = &rows, .out = &to, .bias[0] = &tb};
	if (phases & 2) {
		OK(weft_ep_combine(ep, NULL, &home, &work));
		OK(weft_work_wait(work));
	} else {
		OK(weft_ep_combine(ep, NULL, &home, NULL));
	}
	for (int t = 0; t < TOKENS; t++) {
		float factor = 0;
		uint64_t ranks = 0;
		for (int k = 0; k < TOPK; k++) {
			int e = topk[t][k];
			if (e >= 0 && !one) {
				factor += weights[t][k];
			} else if (e >= 0 && !(ranks >> (e / LOCAL) & 1)) {
				factor += 1;
				ranks |= (uint64_t)1 << (e / LOCAL);
			}
		}
		for (int i = 0; i < HIDDEN; i++) {
			TRUE(near(out[t][i], factor * element(me.rank, t, i) + 1));
		}
	}
	if (!one) { /* what a weighted sum's gradient is */
		static float gw[TOKENS][TOPK];
		weft_tensor tgw = tensor(gw, WEFT_FLOAT32, TOKENS, TOPK);
		weft_ep_combine_backward_args back = {.size = sizeof back,
											  .routing = got.routing,
											  .grad_out = &tx,
											  .rows = &rows,
											  .grad_rows = &rows,
											  .grad_weights = &tgw};
		OK(weft_ep_combine_backward(ep, NULL, &back));
		for (int t = 0; t < TOKENS; t++) {
			float dot = 0;
			for (int i = 0; i < HIDDEN; i++) {
				dot += element(me.rank, t, i) * element(me.rank, t, i);
			}
			for (int k = 0; k < TOPK; k++) {
				TRUE(gw[t][k] == (topk[t][k] < 0 ? 0 : dot)); /* the sums are whole numbers */
			}
		}
		static uint16_t gx[TOKENS][HIDDEN];
		weft_tensor tgx = tensor(gx, WEFT_BFLOAT16, TOKENS, HIDDEN), row_weights = {0};
		row_weights.size = sizeof row_weights;
		OK(weft_routing_tensor(got.routing, WEFT_ROW_WEIGHTS, &row_weights));
		weft_ep_dispatch_backward_args forth = {.size = sizeof forth,
												.routing = got.routing,
												.grad_rows = &rows,
												.grad_row_weights = &row_weights,
												.grad_tokens = &tgx,
												.grad_weights = &tgw};
		OK(weft_ep_dispatch_backward(ep, NULL, &forth));
		for (int t = 0; t < TOKENS; t++) {
			float factor = 0;
			for (int k = 0; k < TOPK; k++) {
				TRUE(gw[t][k] == (topk[t][k] < 0 ? 0 : weights[t][k])); /* each goes back to where it came from */
				factor += topk[t][k] < 0 ? 0 : weights[t][k];
			}
			for (int i = 0; i < HIDDEN; i++) {
				TRUE(near(gx[t][i], factor * element(me.rank, t, i)));
			}
		}
	}
	OK(weft_received_release(got.received));
	other_weights(ep, got.routing, &tx, one, phases & 2);
	released(ep, got.routing, &tx);
	OK(weft_routing_release(got.routing));
	OK(weft_ep_destroy(ep));
}

/* Rows with scales: numbers that dispatch quantises, and bytes that it only carries. */
static void scales(int opaque) {
	weft_ep_spec spec = {.size = sizeof spec, .experts = me.ranks * LOCAL, .topk = TOPK, .max_tokens = TOKENS};
	if (opaque) {
		spec.payload = WEFT_PAYLOAD_OPAQUE, spec.row_bytes = 48, spec.scale_bytes = 16;
	} else {
		spec.payload = WEFT_PAYLOAD_FP8, spec.hidden = HIDDEN, spec.quantize = WEFT_FLOAT32;
	}
	weft_ep ep;
	OK(weft_ep_create(comm, &spec, &ep));
	static float x[TOKENS][HIDDEN];
	uint8_t bytes[TOKENS][48], marks[TOKENS][16];
	for (int t = 0; t < TOKENS; t++) {
		memset(bytes[t], 16 * me.rank + t, 48);
		memset(marks[t], 100 + 16 * me.rank + t, 16);
		for (int i = 0; i < HIDDEN; i++) {
			x[t][i] = element(me.rank, t, i);
		}
	}
	weft_tensor tt = tensor(topk, WEFT_INT32, TOKENS, TOPK), tw = tensor(weights, WEFT_FLOAT32, TOKENS, TOPK);
	weft_tensor rows = opaque ? tensor(bytes, WEFT_UINT8, TOKENS, 48) : tensor(x, WEFT_FLOAT32, TOKENS, HIDDEN);
	weft_tensor given = tensor(marks, WEFT_UINT8, TOKENS, 16);
	weft_tensor data = {0}, factors = {0}, sources = {0}, tokens = {0};
	data.size = factors.size = sources.size = tokens.size = sizeof data;
	weft_ep_dispatch_args args = {0};
	weft_ep_dispatch_result got = {0};
	args.size = sizeof args, got.size = sizeof got;
	args.topk = &tt, args.weights = &tw, args.rows = &rows, args.scales = opaque ? &given : NULL;
	got.data = &data, got.scales = &factors;
	OK(weft_ep_dispatch(ep, NULL, &args, &got, NULL));
	OK(weft_routing_tensor(got.routing, WEFT_SOURCE_RANKS, &sources));
	OK(weft_routing_tensor(got.routing, WEFT_SOURCE_TOKENS, &tokens));
	TRUE(data.dims == 3 && factors.dims == 3 && data.dtype == (opaque ? WEFT_UINT8 : WEFT_FLOAT8_E4M3) &&
		 factors.dtype == (opaque ? WEFT_UINT8 : WEFT_FLOAT32));
	TRUE(data.shape[2] == (opaque ? 48 : HIDDEN) && factors.shape[2] == (opaque ? 16 : 1));
	for (int64_t r = 0; r < sources.shape[0]; r++) {
		int from = ((int32_t *)sources.data)[r], token = ((int32_t *)tokens.data)[r];
		if (from >= 0 && opaque) {
			TRUE(((uint8_t *)data.data)[r * 48 + 47] == 16 * from + token &&
				 ((uint8_t *)factors.data)[r * 16 + 15] == 100 + 16 * from + token);
		} else if (from >= 0) {
			float want = element(from, token, 4) / 448,
				  had = ((float *)factors.data)[r]; /* the largest number is 448 times its scale */
			TRUE(had - want <= want / 1000 && want - had <= want / 1000);
		}
	}
	OK(weft_comm_error(comm));
	OK(weft_ep_destroy(ep)); /* and all that came from it */
	GONE(weft_received_release(got.received));
}

static void count(void) {
	int32_t rank_tokens[64], node_tokens[64], selections[128];
	uint8_t in_rank[TOKENS * 64];
	weft_tensor t = tensor(topk, WEFT_INT32, TOKENS, TOPK);
	weft_ep_token_counts l = {.size = sizeof l, .experts = me.ranks * LOCAL, .ranks = me.ranks, .ranks_per_node = 1};
	OK(weft_ep_count(&t, &l)); /* nobody wants to know */
	l.rank_tokens = rank_tokens, l.node_tokens = node_tokens, l.expert_selections = selections,
	l.token_in_rank = in_rank;
	OK(weft_ep_count(&t, &l));
	int all = 0, tokens = 0, marks = 0;
	for (int e = 0; e < me.ranks * LOCAL; e++) {
		all += selections[e];
	}
	for (int r = 0; r < me.ranks; r++) {
		tokens += rank_tokens[r];
		TRUE(rank_tokens[r] == node_tokens[r]);
	}
	for (int i = 0; i < TOKENS * me.ranks; i++) {
		marks += in_rank[i];
	}
	TRUE(all == TOKENS * TOPK - 1 && marks == tokens);
	l.experts++;
	INVALID(weft_ep_count(&t, &l), "");
	INVALID(weft_ep_count(NULL, &l), "");
}

/* More rows than the capacity is the same error everywhere, and names who has too many. */
static void overflow(void) {
	weft_ep_spec spec = {
		.size = sizeof spec, .experts = me.ranks * LOCAL, .topk = 1, .hidden = 16, .max_tokens = TOKENS, .capacity = 2};
	weft_ep ep;
	OK(weft_ep_create(comm, &spec, &ep));
	int32_t all_to_one[TOKENS];
	float one[TOKENS];
	for (int t = 0; t < TOKENS; t++) {
		all_to_one[t] = LOCAL * (me.ranks - 1);
		one[t] = 1;
	}
	weft_tensor t = tensor(all_to_one, WEFT_INT32, TOKENS, 1), w = tensor(one, WEFT_FLOAT32, TOKENS, 1);
	weft_routing r;
	REFUSED(weft_ep_prepare(ep, NULL, &t, &w, &r), WEFT_ERROR_OVERFLOW, "raise capacity");
	TRUE(weft_error_rank() == me.ranks - 1);
	/* What is wrong on one rank is refused on all, in the name of that rank. */
	if (me.rank == 0) {
		all_to_one[0] = -7;
	}
	INVALID(weft_ep_prepare(ep, NULL, &t, &w, &r), "-7");
	TRUE(weft_error_rank() == (me.rank == 0 ? -1 : 0));
	OK(weft_comm_error(comm));
	OK(weft_ep_destroy(ep));
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The last rank is killed in the middle; the others are told who it was, leave it out and go on. */
static void death(void) {
	weft_group group;
	OK(weft_group_create(comm, NULL, &group));
	int victim = me.ranks - 1;
	if (me.rank == victim) {
		kill(getpid(), SIGKILL);
	}
	double start = now();
	REFUSED(weft_barrier(group, NULL), WEFT_ERROR_DIED, "");
	TRUE(weft_error_rank() == victim && now() - start < 5);
	REFUSED(weft_comm_error(comm), WEFT_ERROR_DIED, "");
	REFUSED(weft_barrier(group, NULL), WEFT_ERROR_DIED, "");
	OK(weft_comm_set_mask(comm, &(uint64_t){(uint64_t)1 << victim}, 1));
	OK(weft_comm_get(comm, &me));
	uint64_t mask[2] = {0, ~(uint64_t)0};
	OK(weft_comm_mask(comm, mask, 2));
	TRUE(mask[0] == (uint64_t)1 << victim && mask[1] == 0 && me.generation > 0);
	INVALID(weft_comm_mask(comm, mask, 0), "is masked and does not fit");
	OK(weft_comm_error(comm));
	float x = 1;
	weft_tensor t = tensor(&x, WEFT_FLOAT32, 1, -1);
	OK(weft_all_reduce(group, NULL, &t, &t, WEFT_SUM));
	TRUE(x == (float)(me.ranks - 1));
	OK(weft_group_destroy(group));
}

static void *abort_soon(void *unused) {
	usleep(50000);
	OK(weft_comm_abort(comm));
	return unused;
}

/* A rank that waits in vain: until the deadline, and until another of its threads ends it. Calls that come meanwhile
 * are refused, not queued. */
static void timeout(void) {
	weft_group group;
	OK(weft_group_create(comm, NULL, &group));
	if (me.rank == 0) {
		REFUSED(weft_barrier(group, NULL), WEFT_ERROR_TIMEOUT, "");
		TRUE(weft_error_rank() == 1);
	} else {
		while (weft_comm_error(comm) == WEFT_OK) {
			usleep(1000);
		}
		REFUSED(weft_comm_error(comm), WEFT_ERROR_TIMEOUT, "");
	}
	OK(weft_comm_set_mask(comm, NULL, 0)); /* together again */
	OK(weft_barrier(group, NULL));
	if (me.rank == 0) { /* this thread's calls wait less */
		double start = now();
		OK(weft_timeout_set(50));
		REFUSED(weft_barrier(group, NULL), WEFT_ERROR_TIMEOUT, "the 50 ms that weft_timeout_set gives");
		OK(weft_timeout_set(0));
		TRUE(now() - start >= 0.05 && now() - start < 0.4);
	} else {
		while (weft_comm_error(comm) == WEFT_OK) {
			usleep(1000);
		}
		REFUSED(weft_comm_error(comm), WEFT_ERROR_ABORTED, "");
		TRUE(weft_error_rank() == 0);
	}
	OK(weft_comm_set_mask(comm, NULL, 0));
	OK(weft_barrier(group, NULL));
	pthread_t thread;
	TRUE(pthread_create(&thread, NULL, abort_soon, NULL) == 0);
	if (me.rank == 0) {
		REFUSED(weft_barrier(group, NULL), WEFT_ERROR_ABORTED, "");
	}
	TRUE(pthread_join(thread, NULL) == 0);
	OK(weft_comm_set_mask(comm, NULL, 0));
	OK(weft_group_destroy(group));
}

static void exchange(void) {
	route();
	count();
	windows();
	refusals();
	colors();
	collectives();
	for (int which = WEFT_EXPERT_MAJOR; which <= WEFT_TOKEN_MAJOR; which++) {
		for (int phases = 0; phases < 4; phases++) {
			layout((weft_layout)which, phases);
		}
	}
	scales(0);
	scales(1);
	overflow();
}

int main(int argc, char **argv) {
	const char *scenario = argc > 1 ? argv[1] : "exchange";
	weft_comm_options options = {.size = sizeof options};
	options.deadline_ms = strcmp(scenario, "timeout") == 0 ? 500 : 20000;
	OK(weft_comm_create(&options, &comm));
	me.size = sizeof me;
	OK(weft_comm_get(comm, &me));
	TRUE(me.engine == WEFT_HOST && me.deadline_ms == options.deadline_ms && me.local_ranks == me.ranks);
	if (strcmp(scenario, "death") == 0) {
		death();
	} else if (strcmp(scenario, "timeout") == 0) {
		timeout();
	} else {
		exchange();
	}
	OK(weft_comm_destroy(comm));
	printf("ok\n");
	return 0;
}
