/* What a call costs, by one rank: the best of several rounds, in nanoseconds, one name and number a line. */
#define _GNU_SOURCE
#include <time.h>

#include "check.h"

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

#define MEASURE(name, call)                                                                                            \
	do {                                                                                                               \
		double best = 1e18;                                                                                            \
		for (int round = 0; round < 30; round++) {                                                                     \
			double start = now();                                                                                      \
			for (int i = 0; i < 5000; i++) {                                                                           \
				OK(call);                                                                                              \
			}                                                                                                          \
			double took = (now() - start) / 5000;                                                                      \
			best = took < best ? took : best;                                                                          \
		}                                                                                                              \
		printf("%s %.1f\n", name, best);                                                                               \
	} while (0)

int main(void) {
	weft_comm comm;
	weft_ep ep;
	weft_group group;
	weft_ep_spec spec = {
		.size = sizeof spec, .experts = 2, .topk = 1, .hidden = 4, .max_tokens = 1, .payload = WEFT_PAYLOAD_FP32};
	OK(weft_comm_create(NULL, &comm));
	OK(weft_ep_create(comm, &spec, &ep));
	OK(weft_group_create(comm, NULL, &group));
	int32_t expert = 1;
	float weight = 1, x[4] = {1, 2, 3, 4}, out[4];
	weft_tensor topk = tensor(&expert, WEFT_INT32, 1, 1), weights = tensor(&weight, WEFT_FLOAT32, 1, 1),
				rows = tensor(x, WEFT_FLOAT32, 1, 4);
	weft_tensor to = tensor(out, WEFT_FLOAT32, 1, 4), data = {.size = sizeof data};
	weft_ep_dispatch_args args = {0};
	weft_ep_dispatch_result got = {0};
	weft_ep_combine_args home = {0};
	args.size = sizeof args, got.size = sizeof got, home.size = sizeof home;
	args.rows = &rows, got.data = &data, home.rows = &data, home.out = &to;
	OK(weft_ep_prepare(ep, NULL, &topk, &weights, &args.routing));
	OK(weft_ep_dispatch(ep, NULL, &args, &got, NULL));
	home.routing = args.routing;

	MEASURE("error", weft_comm_error(comm));
	MEASURE("barrier", weft_barrier(group, NULL));
	MEASURE("combine", weft_ep_combine(ep, NULL, &home, NULL));
	OK(weft_received_release(got.received));
	MEASURE("dispatch+release", (weft_ep_dispatch(ep, NULL, &args, &got, NULL), weft_received_release(got.received)));
	return 0;
}
