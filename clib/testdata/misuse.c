/* Everything that a program can do wrong with the interface, by one rank: each is an error with words, and the rank
 * goes on. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static weft_ep_spec small(void) {
	weft_ep_spec s = {
		.size = sizeof s, .experts = 4, .topk = 2, .hidden = 8, .max_tokens = 4, .payload = WEFT_PAYLOAD_FP32};
	return s;
}

static void plans(void) {
	const char *recording = "{\"name\":\"p\",\"collective\":\"custom\",\"protocol\":\"LL\",\"instances\":2,\"ranks\":"
							"[{\"input\":1,\"ops\":[{\"kind\":\"nop\"}]}]}";
	char *text = NULL, *line = NULL;
	OK(weft_plan_lower(recording, 0, &text));
	OK(weft_plan_lower(recording, 1, &line));
	TRUE(strstr(text, "\n  \"name\": \"p\",\n") != NULL && strstr(line, "\"id\":1,\"ops\":[{\"name\":\"nop\"}]") != NULL &&
		 strlen(line) < strlen(text) && strstr(line, "\"input_chunks\":2,") != NULL);
	weft_text_free(line);
	OK(weft_plan_check(text, &line));
	TRUE(line[0] == '[' && line[strlen(line) - 1] == ']');
	weft_text_free(line);
	weft_text_free(text);
	INVALID(weft_plan_check("{}", &line), "no key");
	TRUE(line == NULL);
	INVALID(weft_plan_check(NULL, &line), "is NULL");
	INVALID(weft_plan_lower("{", 0, &text), "a recording that cannot be read");
	TRUE(text == NULL);
	INVALID(weft_plan_lower("{\"instances\":0}", 0, &text), "0 instances");
	INVALID(weft_plan_lower(NULL, 0, &text), "is NULL");
	INVALID(weft_plan_lower(recording, 0, NULL), "is NULL");
	weft_text_free(NULL);
}

static void handles(weft_comm comm) {
	weft_comm_info info = {.size = sizeof info};
	weft_comm stack = (weft_comm)&info;
	weft_comm heap = malloc(64), wild = (weft_comm) ~(uintptr_t)0, odd = (weft_comm)(uintptr_t)7;
	NO_HANDLE(weft_comm_get(NULL, &info), "weft_comm is NULL");
	NO_HANDLE(weft_comm_get(stack, &info), "no weft_comm of this library");
	NO_HANDLE(weft_comm_get(heap, &info), "no weft_comm of this library");
	NO_HANDLE(weft_comm_get(wild, &info), "no weft_comm of this library");
	NO_HANDLE(weft_comm_get(odd, &info), "no weft_comm of this library");
	free(heap);

	weft_window window;
	OK(weft_window_create(comm, 100, &window));
	NO_HANDLE(weft_comm_get((weft_comm)window, &info), "is a weft_window where a weft_comm belongs");
	NO_HANDLE(weft_ep_destroy((weft_ep)comm), "is a weft_comm where a weft_ep belongs");
	OK(weft_window_destroy(window));
	GONE(weft_window_destroy(window));
	weft_window again;
	OK(weft_window_create(comm, 100, &again));
	TRUE(again != window);
	GONE(weft_window_destroy(window));
	OK(weft_window_destroy(again));

	NO_HANDLE(weft_ep_get(NULL, NULL), "weft_ep is NULL");
	NO_HANDLE(weft_routing_release(NULL), "weft_routing is NULL");
	NO_HANDLE(weft_received_release(NULL), "weft_received is NULL");
	NO_HANDLE(weft_work_wait(NULL), "weft_work is NULL");
	NO_HANDLE(weft_work_receive(NULL, NULL), "weft_work is NULL");
	NO_HANDLE(weft_barrier(NULL, NULL), "weft_group is NULL");
	NO_HANDLE(weft_comm_abort(NULL), "weft_comm is NULL");
}

static void structs(weft_comm comm) {
	weft_comm_info info = {0};
	INVALID(weft_comm_get(comm, NULL), "weft_comm_info is NULL");
	INVALID(weft_comm_get(comm, &info), "set it to sizeof");
	info.size = sizeof info - 8;
	INVALID(weft_comm_get(comm, &info), "size of the weft_comm_info is 32, and must be at least 40");

	/* A program that is newer than the library: what it fills in may be longer; what it passes may, as long as it holds
	 * nothing. */
	struct {
		weft_comm_info info;
		int64_t more;
	} longer = {{0}, 77};
	longer.info.size = sizeof longer;
	OK(weft_comm_get(comm, &longer.info));
	TRUE(longer.info.ranks == 1 && longer.info.size == sizeof longer && longer.more == 77);
	struct {
		weft_ep_spec spec;
		int64_t more;
	} newer = {small(), 0};
	newer.spec.size = sizeof newer;
	OK(weft_ep_check(&newer.spec, WEFT_HOST, 2));
	newer.more = 1;
	UNSUPPORTED(weft_ep_check(&newer.spec, WEFT_HOST, 2), "at byte 152, which this library does not know");
	weft_dlpack_deleter(NULL); /* nothing, as free does */
	newer.spec.size = (size_t)-1;
	INVALID(weft_ep_check(&newer.spec, WEFT_HOST, 2), "set it to sizeof");

	weft_ep ep = (weft_ep)comm;
	weft_ep_spec spec = small();
	INVALID(weft_ep_create(comm, NULL, &ep), "weft_ep_spec is NULL");
	TRUE(ep == NULL);
	INVALID(weft_ep_create(comm, &spec, NULL), "weft_ep is NULL; pass where to put it");
	spec.size = 8;
	INVALID(weft_ep_create(comm, &spec, &ep), "must be at least 128");
	spec = small();
	spec.layout = 256; /* 0, if only its low byte were looked at */
	INVALID(weft_ep_create(comm, &spec, &ep), "layout");
	spec = small();
	spec.topk = 33;
	INVALID(weft_ep_create(comm, &spec, &ep), "");
	INVALID(weft_ep_check(&spec, 7, 1), "engine");
	weft_ep_kernel_tuning tuning = {0};
	spec = small();
	spec.combine_tuning = &tuning;
	INVALID(weft_ep_check(&spec, WEFT_GPU, 2), "size of the weft_ep_kernel_tuning is 0");
	tuning.size = sizeof tuning;
	OK(weft_ep_check(&spec, WEFT_HOST, 2)); /* Weft's choice, of everything */
	tuning.threads = 96, tuning.senders = -1;
	OK(weft_ep_check(&spec, WEFT_GPU, 2));
	UNSUPPORTED(weft_ep_check(&spec, WEFT_HOST, 2), "only kernels of GPUs are tuned");
	tuning.protocol = 256;
	INVALID(weft_ep_check(&spec, WEFT_GPU, 2), "protocol");
	tuning.protocol = 0, tuning.bulk = 1;
	UNSUPPORTED(weft_ep_check(&spec, WEFT_GPU, 2), "combine_tuning: rows of this handle go through slots");
	tuning.bulk = 0, tuning.reserved = 1;
	INVALID(weft_ep_check(&spec, WEFT_GPU, 2), "1 in reserved");
	spec.size = 128; /* what a program of before passes ends before the tuning */
	OK(weft_ep_check(&spec, WEFT_GPU, 2));

	weft_ep_token_counter counter = (weft_ep_token_counter)comm;
	UNSUPPORTED(weft_ep_token_counter_create(comm, 4, 1, 1, &counter), "bound to no GPU");
	TRUE(counter == NULL);
	INVALID(weft_ep_token_counter_create(comm, 4, 1, 1, NULL), "weft_ep_token_counter is NULL");
	NO_HANDLE(weft_ep_token_counter_count((weft_ep_token_counter)comm, NULL, NULL, NULL),
			  "is a weft_comm where a weft_ep_token_counter belongs");
	NO_HANDLE(weft_ep_token_counter_destroy(NULL), "weft_ep_token_counter is NULL");

	INVALID(weft_timeout_set(-1), "fewer than 0");
	OK(weft_timeout_set(5));
	OK(weft_timeout_set(0));

	INVALID(weft_window_create(comm, (size_t)-1, (weft_window *)&ep), "bytes");
	INVALID(weft_window_create_from_fd(comm, -1, 10, (weft_window *)&ep), "descriptor -1");
	INVALID(weft_window_create_from_fd(comm, 0, 10, (weft_window *)&ep), "");
	INVALID(weft_window_create_from_memory(comm, NULL, 10, (weft_window *)&ep), "NULL");
}

static void joining(void) {
	weft_comm comm = (weft_comm)&comm;
	weft_comm_options options = {0};
	INVALID(weft_comm_create(&options, &comm), "weft_comm_options is 0");
	TRUE(comm == NULL);
	INVALID(weft_comm_create(NULL, NULL), "weft_comm is NULL");
	options.size = sizeof options;
	options.engine = 9;
	INVALID(weft_comm_create(&options, &comm), "engine 9");
	options.engine = WEFT_HOST;
	options.deadline_ms = -1;
	INVALID(weft_comm_create(&options, &comm), "deadline");
	options.deadline_ms = 0;
	options.reserved = 1;
	INVALID(weft_comm_create(&options, &comm), "reserved");
	options.reserved = 0;

	if (access("/dev/nvidiactl", F_OK) != 0) {
		options.engine = WEFT_GPU;
		UNSUPPORTED(weft_comm_create(&options, &comm), "no CUDA driver");
		options.engine = WEFT_HOST;
	}

	char id[WEFT_UNIQUE_ID_BYTES];
	INVALID(weft_unique_id_create(NULL, NULL), "id is NULL");
	REFUSED(weft_unique_id_create(id, "no such interface"), WEFT_ERROR_SYSTEM, "no such interface");
	OK(weft_unique_id_create(id, "lo"));
	TRUE(id[sizeof id - 1] == 0);
	INVALID(weft_comm_create_with_id(id, 1, 1, &options, &comm), "rank 1 of 1");
	INVALID(weft_comm_create_with_id(id, -1, 1, &options, &comm), "rank -1 of 1");
	OK(weft_unique_id_release(id));
	memset(id, 'x', sizeof id);
	INVALID(weft_comm_create_with_id(id, 0, 1, &options, &comm), "");
	INVALID(weft_comm_create_with_id(NULL, 0, 1, &options, &comm), "id is NULL");
	INVALID(weft_comm_create_with_all_gather(NULL, NULL, 0, 1, &options, &comm), "NULL");
	setenv("WEFT_RANK", "5", 1);
	setenv("WEFT_SIZE", "2", 1);
	INVALID(weft_comm_create(&options, &comm), "rank 5 of 2 ranks, want 0 to 1");
	unsetenv("WEFT_RANK");
	unsetenv("WEFT_SIZE");
}

static int broken(void *context, const void *mine, size_t bytes, void *all) {
	(void)mine, (void)bytes, (void)all;
	return *(int *)context;
}

static void callbacks(void) {
	weft_comm comm;
	int code = 41;
	REFUSED(weft_comm_create_with_all_gather(broken, &code, 0, 2, NULL, &comm), WEFT_ERROR_ABORTED,
			"all-gather returned 41");
	code = 0; /* it says that it did, but did not: everyone brings nothing */
	REFUSED(weft_comm_create_with_all_gather(broken, &code, 0, 2, NULL, &comm), WEFT_ERROR_MISMATCH,
			"other bytes for rank 0 than it passed");
}

static weft_status dispatch(weft_ep ep, const weft_ep_dispatch_args *args, weft_ep_dispatch_result *result) {
	return weft_ep_dispatch(ep, NULL, args, result, NULL);
}

static weft_status combine(weft_ep ep, const weft_ep_combine_args *args) {
	return weft_ep_combine(ep, NULL, args, NULL);
}

/* Has an all-reduce be staged. */
static void staged(void *context, const weft_request *request, void *name) {
	TRUE(context == (void *)1 && request->size == sizeof *request && request->ranks == 1);
	if (request->collective == WEFT_ALL_REDUCE) {
		strcpy(name, "all-reduce/pipeline");
	}
}

/* Algorithms of the program's own, which the host has none of, and selectors. */
static void own_algorithms(weft_comm comm, const weft_tensor *w) {
	weft_group group;
	weft_own_algorithm own[2] = {{.size = sizeof own[0], .name = "own/sum", .source = "", .collective = WEFT_ALL_REDUCE}};
	INVALID(weft_group_create_own(comm, NULL, NULL, 1, NULL, NULL, &group), "1 algorithms at ");
	INVALID(weft_group_create_own(comm, NULL, own, -1, NULL, NULL, &group), "-1 algorithms");
	INVALID(weft_group_create_own(comm, NULL, own, 2, NULL, NULL, &group), "the size of the weft_own_algorithm is 0");
	INVALID(weft_group_create_own(comm, NULL, own, 0, NULL, NULL, NULL), "weft_group is NULL");
	UNSUPPORTED(weft_group_create_own(comm, NULL, own, 1, NULL, NULL, &group), "own/sum is a kernel");
	own[0].collective = WEFT_ALL_GATHER_V;
	UNSUPPORTED(weft_group_create_own(comm, NULL, own, 1, NULL, NULL, &group), "own/sum: all-gather-v has counts");
	TRUE(group == NULL);
	OK(weft_group_create_own(comm, NULL, NULL, 0, staged, (void *)1, &group));
	const char *name;
	OK(weft_all_reduce(group, NULL, w, w, WEFT_SUM));
	OK(weft_group_algorithm(group, &name));
	TRUE(strcmp(name, "all-reduce/pipeline") == 0);
	OK(weft_barrier(group, NULL));
	OK(weft_group_algorithm(group, &name));
	TRUE(strcmp(name, "all-reduce/pipeline") != 0);
	OK(weft_group_destroy(group));
}

static void operations(weft_comm comm) {
	weft_ep ep, other;
	weft_ep_spec spec = small();
	OK(weft_ep_create(comm, &spec, &ep));
	OK(weft_ep_create(comm, &spec, &other));
	int32_t topk[4][2] = {{0, 1}, {2, 3}, {-1, 0}, {3, 2}};
	float weights[4][2] = {{1, 1}, {1, 1}, {1, 1}, {1, 1}}, x[4][8] = {{0}}, out[4][8];
	weft_tensor t = tensor(topk, WEFT_INT32, 4, 2), w = tensor(weights, WEFT_FLOAT32, 4, 2),
				rows = tensor(x, WEFT_FLOAT32, 4, 8), o = tensor(out, WEFT_FLOAT32, 4, 8);
	weft_routing routing, stale;
	INVALID(weft_ep_prepare(ep, NULL, &t, &w, NULL), "weft_routing is NULL");
	UNSUPPORTED(weft_ep_prepare(ep, (weft_stream)0x1234, &t, &w, &routing), "the host engine has no streams");
	INVALID(weft_ep_prepare(ep, NULL, NULL, &w, &routing), "");
	weft_tensor bad;
#define BAD(change, status, words)                                                                                     \
	do {                                                                                                               \
		bad = t;                                                                                                       \
		bad.change;                                                                                                    \
		status(weft_ep_prepare(ep, NULL, &bad, &w, &routing), words);                                                  \
	} while (0)
	BAD(data = NULL, INVALID, "topk tensor: 32 bytes at NULL");
	BAD(size = 16, INVALID, "must be at least 56");
	BAD(dtype = 99, INVALID, "dtype is 99, want a weft_dtype");
	BAD(dims = 5, INVALID, "dims is 5, want 0 to 4");
	BAD(shape[0] = -4, INVALID, "shape [-4 2]");
	BAD(shape[0] = (int64_t)1 << 61, INVALID, "shape");
	BAD(shape[0] = 5, INVALID, "make a handle with a larger max_tokens");
	topk[0][1] = 4;
	INVALID(weft_ep_prepare(ep, NULL, &t, &w, &routing), "expert 4");
	topk[0][1] = 1;
	bad = w;
	bad.shape[1] = 1;
	INVALID(weft_ep_prepare(ep, NULL, &t, &bad, &routing), "weights are");
	TRUE(routing == NULL);
	OK(weft_ep_prepare(ep, NULL, &t, NULL, &routing)); /* weights come later */

	weft_ep_dispatch_args args = {0};
	weft_ep_dispatch_result got = {0};
	weft_tensor data = {0};
	weft_work work;
	args.size = sizeof args, got.size = sizeof got, data.size = sizeof data;
	args.rows = &rows, args.routing = routing, got.data = &data;
	INVALID(weft_ep_dispatch(ep, NULL, NULL, &got, NULL), "weft_ep_dispatch_args is NULL");
	INVALID(weft_ep_dispatch(ep, NULL, &args, NULL, NULL), "pass one of them");
	INVALID(weft_ep_dispatch(ep, NULL, &args, &got, &work), "pass one of them");
	INVALID(weft_ep_dispatch(other, NULL, &args, &got, NULL), "another weft_ep's");
	args.topk = &t;
	INVALID(dispatch(ep, &args, &got), "not by both");
	args.topk = NULL;
	args.weights = &bad;
	INVALID(dispatch(ep, &args, &got), "weights are");
	args.weights = NULL;
	data.size = 4;
	INVALID(dispatch(ep, &args, &got), "tensor of a weft_ep_dispatch_result");
	data.size = sizeof data;
	args.rows = NULL;
	INVALID(dispatch(ep, &args, &got), "");
	args.rows = &rows;
	args.routing = (weft_routing)ep;
	NO_HANDLE(dispatch(ep, &args, &got), "is a weft_ep where a weft_routing belongs");
	args.routing = routing;
	OK(dispatch(ep, &args, &got));
	TRUE(got.routing == routing && got.received != NULL && data.dtype == WEFT_FLOAT32 && data.dims == 3 &&
		 data.shape[0] == 4 && data.shape[2] == 8);

	weft_ep_copy_args copy = {.size = sizeof copy, .received = got.received};
	INVALID(weft_ep_copy_received(ep, NULL, NULL), "weft_ep_copy_args is NULL");
	INVALID(weft_ep_copy_received(other, NULL, &copy), "another weft_ep's");
	copy.rows = &rows;
	INVALID(weft_ep_copy_received(ep, NULL, &copy), "rows are");
	copy.rows = NULL, copy.reserved = 1;
	INVALID(weft_ep_copy_received(ep, NULL, &copy), "reserved");
	copy.reserved = 0, copy.received = (weft_received)routing;
	NO_HANDLE(weft_ep_copy_received(ep, NULL, &copy), "is a weft_routing where a weft_received belongs");
	copy.received = got.received;
	OK(weft_ep_copy_received(ep, NULL, &copy)); /* nothing is wanted */

	weft_tensor part = {.size = sizeof part};
	INVALID(weft_routing_tensor(routing, 13, &part), "part 13");
	INVALID(weft_routing_tensor(routing, -1, &part), "part -1");
	INVALID(weft_routing_tensor(routing, 0, NULL), "tensor is NULL");
	OK(weft_routing_tensor(routing, WEFT_ROW_EXPERTS, &part));
	TRUE(part.dtype == WEFT_NONE && part.data == NULL);

	weft_ep_combine_args home = {.size = sizeof home, .routing = routing, .rows = &data, .out = &o};
	INVALID(combine(ep, &home), "the routing has no weights");
	home.weights = &bad;
	INVALID(combine(ep, &home), "weights are");
	home.weights = &w;
	OK(combine(ep, &home));
	home.weights = NULL;
	OK(combine(ep, &home)); /* it has them now */
	home.size = 48;
	OK(combine(ep, &home)); /* a program of before */
	home.size = sizeof home;
	home.out = NULL;
	INVALID(combine(ep, &home), "");
	home.out = &o;
	OK(weft_ep_combine(ep, NULL, &home, &work));
	INVALID(weft_work_receive(work, &got), "weft_work_wait");
	OK(weft_work_wait(work));
	GONE(weft_work_wait(work));
	OK(weft_received_release(got.received));
	GONE(weft_received_release(got.received));
	NO_HANDLE(weft_ep_copy_received(ep, NULL, &copy), "weft_received");

	/* Rows are those of one batch: not when it was released, and not when a later one of the same routing lies there.
	 */
	INVALID(combine(ep, &home), "was released");
	home.received = got.received;
	INVALID(combine(ep, &home), "was released");
	weft_tensor later_data = {.size = sizeof later_data};
	weft_ep_dispatch_result later = {.size = sizeof later, .data = &later_data};
	OK(weft_ep_dispatch(ep, NULL, &args, &later, NULL));
	TRUE(later_data.data == data.data);
	INVALID(combine(ep, &home), "another batch of the routing");
	home.received = later.received;
	OK(combine(ep, &home));
	home.received = NULL;
	OK(combine(ep, &home)); /* who does not say which batch means the one that is there */
	OK(weft_received_release(later.received));

	OK(weft_ep_dispatch(ep, NULL, &args, NULL, &work));
	INVALID(weft_work_wait(work), "weft_work_receive");
	got.size = 1;
	INVALID(weft_work_receive(work, &got), "must be at least 40");
	got.size = sizeof got;
	OK(weft_work_receive(work, &got));

	OK(weft_routing_release(routing));
	GONE(weft_routing_release(routing));
	NO_HANDLE(combine(ep, &home), "weft_routing");
	OK(weft_ep_prepare(ep, NULL, &t, &w, &stale));
	OK(weft_ep_destroy(ep));
	GONE(weft_routing_release(stale));
	GONE(weft_received_release(got.received));
	GONE(weft_ep_destroy(ep));

	/* Memory that is not there is an error, too, where the library is the one to read it. */
	void *gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TRUE(munmap(gone, 4096) == 0);
	weft_comm_info info = {.size = sizeof info};
	REFUSED(weft_comm_get(comm, gone), WEFT_ERROR_INTERNAL, "");
	OK(weft_comm_get(comm, &info));

	weft_group group;
	OK(weft_group_create(comm, NULL, &group));
	INVALID(weft_all_reduce(group, NULL, NULL, &w, WEFT_SUM), "");
	INVALID(weft_all_reduce(group, NULL, &w, &w, 9), "");
	INVALID(weft_all_reduce(group, NULL, &w, &w, 256), "");
	INVALID(weft_broadcast(group, NULL, &w, 1), "");
	INVALID(weft_reduce(group, NULL, &w, &w, WEFT_SUM, -1), "root -1 of 1 ranks");
	INVALID(weft_all_to_all_v(group, NULL, &w, &w, NULL, NULL, &(int64_t){1}, NULL), "0 input counts for 1 ranks");
	weft_collective_args call = {.size = sizeof call, .collective = 99};
	INVALID(weft_group_run(group, NULL, &call), "there is no collective(99)");
	INVALID(weft_group_run(group, NULL, NULL), "the weft_collective_args is NULL");
	call.size = 8;
	INVALID(weft_group_run(group, NULL, &call), "must be at least 80");
	double elsewhere[64];
	weft_tensor to = w;
	to.data = elsewhere;
	call = (weft_collective_args){.size = sizeof call, .collective = WEFT_ALL_TO_ALL_V, .out = &to, .in = &w};
	call.counts_on_device = 1;
	INVALID(weft_group_run(group, NULL, &call), "four arrays, and one is NULL");
	int64_t count[1] = {1};
	call.send = call.send_at = call.recv = call.recv_at = count;
	UNSUPPORTED(weft_group_run(group, NULL, &call), "reads no counts of a GPU");
	call = (weft_collective_args){.size = sizeof call, .collective = WEFT_BARRIER, .algorithm = "barrier/of reef"};
	INVALID(weft_group_run(group, NULL, &call), "barrier/of reef");
	INVALID(weft_send(group, NULL, &w, 1), "send: rank 1 of 1");
	INVALID(weft_recv(group, NULL, NULL, 0), "receive:");
	INVALID(weft_batch(group, NULL, NULL, 2), "2 transfers at ");
	weft_transfer messages[2] = {{sizeof messages[0], &w, 0, 0}, {8, &w, 0, 1}};
	INVALID(weft_batch(group, NULL, messages, 2), "must be at least 24");
	INVALID(weft_batch(group, NULL, messages, -1), "-1 transfers");
	INVALID(weft_group_algorithm(group, NULL), "NULL");
	INVALID(weft_group_algorithm_at(group, 0, NULL), "weft_algorithm is NULL");

	call.algorithm = NULL;
	work = (weft_work)group;
	INVALID(weft_group_start(group, NULL, &call, NULL), "weft_work is NULL");
	INVALID(weft_group_start(group, NULL, NULL, &work), "weft_collective_args is NULL");
	TRUE(work == NULL);
	NO_HANDLE(weft_work_release(work), "weft_work is NULL");
	NO_HANDLE(weft_work_get((weft_work)group, NULL), "is a weft_group where a weft_work belongs");
	OK(weft_group_start(group, NULL, &call, &work));
	INVALID(weft_work_get(work, NULL), "weft_work_info is NULL");
	OK(weft_work_wait(work));
	weft_work gone_with = work;
	OK(weft_barrier(group, NULL));

	const char *names[] = {"some", "some", NULL};
	weft_launch launch = {.size = sizeof launch, .blocks = 2};
	call.launch = &launch;
	UNSUPPORTED(weft_group_run(group, NULL, &call), "the host engine has neither blocks");
	launch.extras = names;
	INVALID(weft_group_run(group, NULL, &call), "2 extras, and NULL for their addresses");
	launch.addresses = (int64_t[]){0, 0};
	INVALID(weft_group_run(group, NULL, &call), "each has a name of its own");
	launch.size = 8;
	INVALID(weft_group_run(group, NULL, &call), "must be at least 32");
	OK(weft_barrier(group, NULL)); /* how one call is launched is no matter of the next */
	own_algorithms(comm, &w);
	OK(weft_group_destroy(group));
	GONE(weft_barrier(group, NULL));
	GONE(weft_work_wait(gone_with));
}

/* The child of a fork gets an error at once, whatever it calls; what needs no Go goes on working. */
static void forks(weft_comm comm) {
	pid_t child = fork();
	if (child == 0) {
		alarm(20); /* a hang would end it */
		weft_comm_info info = {.size = sizeof info};
		weft_comm made;
		FORKED(weft_comm_get(comm, &info), "forked after libweft.so was loaded");
		FORKED(weft_comm_create(NULL, &made), "fork and exec");
		FORKED(weft_comm_destroy(comm), "forked");
		FORKED(weft_timeout_set(1), "forked");
		FORKED(weft_signal_check(1), "forked");
		TRUE(weft_error_rank() == -1 && weft_version() == WEFT_VERSION);
		TRUE(strcmp(weft_release(), WEFT_RELEASE) == 0);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			FORKED(weft_comm_get(comm, &info), "forked");
			_exit(0);
		}
		int status;
		TRUE(waitpid(grandchild, &status, 0) == grandchild && status == 0);
		_exit(0);
	}
	int status;
	TRUE(waitpid(child, &status, 0) == child && status == 0);
	weft_comm_info info = {.size = sizeof info};
	OK(weft_comm_get(comm, &info));
}

/* Messages are the thread's own. */
static void *elsewhere(void *comm) {
	TRUE(weft_error()[0] == 0 && weft_error_rank() == -1);
	INVALID(weft_comm_get(comm, NULL), "weft_comm_info is NULL");
	return NULL;
}

static void threads(weft_comm comm) {
	NO_HANDLE(weft_window_destroy(NULL), "weft_window is NULL");
	for (int i = 0; i < 50; i++) {
		pthread_t thread;
		TRUE(pthread_create(&thread, NULL, elsewhere, comm) == 0 && pthread_join(thread, NULL) == 0);
	}
	TRUE(strstr(weft_error(), "weft_window is NULL") != NULL);
}

/* A call on an object that breaks off inside, here at memory that is not there, may have left others waiting: it ends
 * what the communicator does. */
static void broken_off(void) {
	weft_comm comm;
	weft_window window;
	weft_window_info info = {.size = sizeof info};
	OK(weft_comm_create(NULL, &comm));
	OK(weft_window_create(comm, 64, &window));
	void *gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TRUE(munmap(gone, 4096) == 0);
	REFUSED(weft_window_get(window, gone), WEFT_ERROR_INTERNAL, "is not mapped, in clib.");
	TRUE(!strchr(weft_error(), '\n'));
	REFUSED(weft_comm_error(comm), WEFT_ERROR_ABORTED, "");
	OK(weft_window_get(window, &info)); /* nobody is inside any more */
	OK(weft_comm_set_mask(comm, NULL, 0));
	OK(weft_comm_error(comm));
	OK(weft_comm_destroy(comm));
}

static int lines;
static void count_lines(void *context, const char *line) {
	__atomic_add_fetch((int *)context, strlen(line) > 0, __ATOMIC_RELAXED);
}

int main(void) {
	TRUE(weft_error()[0] == 0 && weft_error_rank() == -1);
	TRUE(weft_error_set(WEFT_ERROR_OVERFLOW, 3, "words") == WEFT_ERROR_OVERFLOW && strcmp(weft_error(), "words") == 0 &&
		 weft_error_rank() == 3);
	TRUE(weft_error_set(WEFT_ERROR_SYSTEM, -1, NULL) == WEFT_ERROR_SYSTEM && weft_error()[0] == 0 &&
		 weft_error_rank() == -1);
	TRUE(strcmp(weft_status_name(WEFT_ERROR_TIMEOUT), "WEFT_ERROR_TIMEOUT") == 0 &&
		 strcmp(weft_status_name(99), "no status of weft") == 0);
	plans();
	joining();
	callbacks();
	weft_comm_options options = {
		.size = sizeof options, .deadline_ms = 5000, .log = count_lines, .log_context = &lines};
	weft_comm comm;
	OK(weft_comm_create(&options, &comm));
	TRUE(__atomic_load_n(&lines, __ATOMIC_RELAXED) > 0);
	handles(comm);
	structs(comm);
	operations(comm);
	forks(comm);
	threads(comm);
	broken_off();
	OK(weft_comm_error(comm));
	OK(weft_comm_wait(comm, NULL));
	REFUSED(weft_comm_set_mask(comm, &(uint64_t){1}, 1), WEFT_ERROR_MASKED, "");
	INVALID(weft_comm_set_mask(comm, &(uint64_t){2}, 1), "rank 1 of 1");
	uint64_t words[20] = {[1] = 1};
	INVALID(weft_comm_set_mask(comm, words, 20), "rank 64 of 1");
	words[1] = 0;
	words[19] = 1;
	INVALID(weft_comm_set_mask(comm, words, 20), "a communicator has at most");
	INVALID(weft_comm_set_mask(comm, NULL, 1), "a set of ranks of 1 words");
	INVALID(weft_comm_set_mask(comm, words, -1), "a set of ranks of -1 words");
	OK(weft_comm_mask(comm, words, 20));
	TRUE(words[0] == 0 && words[19] == 0);
	INVALID(weft_comm_mask(comm, NULL, 1), "a set of ranks of 1 words");

	/* Destroying the communicator destroys what was made from it. */
	weft_window window;
	weft_ep ep;
	weft_group group;
	weft_ep_spec spec = small();
	OK(weft_window_create(comm, 1, &window));
	OK(weft_ep_create(comm, &spec, &ep));
	OK(weft_group_create(comm, NULL, &group));

	/* Leaving first keeps its memory until then. */
	weft_window_info memory = {.size = sizeof memory};
	OK(weft_window_get(window, &memory));
	OK(weft_comm_leave(comm));
	REFUSED(weft_barrier(group, NULL), WEFT_ERROR_CLOSED, "closed");
	REFUSED(weft_comm_error(comm), WEFT_ERROR_CLOSED, "closed");
	*(char *)memory.memory = 1;
	OK(weft_comm_leave(comm));

	OK(weft_comm_destroy(comm));
	GONE(weft_window_destroy(window));
	GONE(weft_ep_destroy(ep));
	GONE(weft_group_destroy(group));
	GONE(weft_comm_destroy(comm));
	GONE(weft_comm_abort(comm));
	printf("ok\n");
	return 0;
}
