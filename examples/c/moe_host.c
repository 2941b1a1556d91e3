/*
 * A mixture-of-experts layer between processes of one host, in C. Every rank sends its tokens to the experts that
 * they select, the experts work on their rows, and the weighted sums come home and are compared with the expected
 * ones.
 *
 *     make clib
 *     cc -o build/moe_host examples/c/moe_host.c $(PKG_CONFIG_PATH=$PWD/build/clib pkg-config --cflags --libs weft)
 *     build/moe_host 4                      # starts its ranks by itself
 *     build/weft run -n 4 build/moe_host    # or a launcher does
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "weft.h"

enum { EXPERTS_PER_RANK = 2, TOPK = 2, HIDDEN = 64, TOKENS = 16 };

extern char **environ;

/* Calls end the program when they fail, with the library's own words. */
static void must(weft_status status, const char *what) {
	if (status != WEFT_OK) {
		fprintf(stderr, "%s: %s: %s\n", what, weft_status_name(status), weft_error());
		exit(1);
	}
}

static weft_tensor matrix(void *data, weft_dtype type, int64_t rows, int64_t columns) {
	weft_tensor t = {.size = sizeof t, .data = data, .dtype = type, .dims = 2, .shape = {rows, columns}};
	return t;
}

/* The number at an index of a token, which every rank can work out. */
static float element(int rank, int token, int column) { return (float)(rank * 1000 + token * 10 + column % 7); }

/* Expert e multiplies its rows by e + 1. */
static void run_experts(int first, const weft_tensor *rows, const int32_t *counts) {
	float *row = rows->data;
	for (int64_t e = 0; e < rows->shape[0]; e++) {
		for (int64_t i = 0; i < counts[e] * HIDDEN; i++) {
			row[e * rows->shape[1] * HIDDEN + i] *= (float)(first + e + 1);
		}
	}
}

static void layer(weft_comm comm) {
	weft_comm_info info = {.size = sizeof info};
	must(weft_comm_get(comm, &info), "info");
	int experts = info.ranks * EXPERTS_PER_RANK;

	weft_ep_spec spec = {.size = sizeof spec,
						 .experts = experts,
						 .topk = TOPK,
						 .hidden = HIDDEN,
						 .max_tokens = TOKENS,
						 .payload = WEFT_PAYLOAD_FP32};
	weft_ep ep;
	must(weft_ep_create(comm, &spec, &ep), "create");

	int32_t topk[TOKENS][TOPK];
	float weights[TOKENS][TOPK], x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
	for (int t = 0; t < TOKENS; t++) {
		topk[t][0] = (info.rank + 3 * t) % experts;
		topk[t][1] = (topk[t][0] + 1 + t % (experts - 1)) % experts;
		weights[t][0] = 0.75f;
		weights[t][1] = 0.25f;
		for (int i = 0; i < HIDDEN; i++) {
			x[t][i] = element(info.rank, t, i);
		}
	}
	weft_tensor topk_tensor = matrix(topk, WEFT_INT32, TOKENS, TOPK);
	weft_tensor weights_tensor = matrix(weights, WEFT_FLOAT32, TOKENS, TOPK);
	weft_tensor x_tensor = matrix(x, WEFT_FLOAT32, TOKENS, HIDDEN);
	weft_tensor out_tensor = matrix(out, WEFT_FLOAT32, TOKENS, HIDDEN);

	/* Three batches: the first by a routing of its own, as in training, the others by one call, as in inference. */
	for (int batch = 0; batch < 3; batch++) {
		weft_tensor rows = {.size = sizeof rows}, counts = {.size = sizeof counts};
		weft_ep_dispatch_args send = {.size = sizeof send, .rows = &x_tensor};
		weft_ep_dispatch_result got = {.size = sizeof got, .data = &rows};
		if (batch == 0) {
			must(weft_ep_prepare(ep, NULL, &topk_tensor, &weights_tensor, &send.routing), "prepare");
		} else {
			send.topk = &topk_tensor;
			send.weights = &weights_tensor;
		}
		must(weft_ep_dispatch(ep, NULL, &send, &got, NULL), "dispatch");
		must(weft_routing_tensor(got.routing, WEFT_EXPERT_COUNTS, &counts), "counts");
		run_experts(info.rank * EXPERTS_PER_RANK, &rows, counts.data);

		weft_ep_combine_args home = {.size = sizeof home, .routing = got.routing, .rows = &rows, .out = &out_tensor};
		memset(out, 0xff, sizeof out);
		must(weft_ep_combine(ep, NULL, &home, NULL), "combine");
		for (int t = 0; t < TOKENS; t++) {
			float factor = 0.75f * (float)(topk[t][0] + 1) + 0.25f * (float)(topk[t][1] + 1);
			for (int i = 0; i < HIDDEN; i++) {
				if (out[t][i] != factor * x[t][i]) {
					fprintf(stderr, "rank %d: token %d, number %d is %g, not %g\n", info.rank, t, i, out[t][i],
							factor * x[t][i]);
					exit(1);
				}
			}
		}
		must(weft_received_release(got.received), "release");
		must(weft_routing_release(got.routing), "release");
	}
	printf("rank %d of %d: %d tokens went to their experts and came home, three times\n", info.rank, info.ranks,
		   TOKENS);
	must(weft_ep_destroy(ep), "destroy");
}

/* Starts ranks 1 and up with the id in their environment; this process is rank 0. */
static void start(const char *program, const char *id, int ranks, pid_t *children) {
	char number[16];
	setenv("MOE_ID", id, 1);
	snprintf(number, sizeof number, "%d", ranks);
	setenv("MOE_RANKS", number, 1);
	for (int r = 1; r < ranks; r++) {
		char *arguments[] = {(char *)program, NULL};
		snprintf(number, sizeof number, "%d", r);
		setenv("MOE_RANK", number, 1);
		if (posix_spawn(&children[r], program, NULL, NULL, arguments, environ) != 0) {
			perror(program);
			exit(1);
		}
	}
}

int main(int argc, char **argv) {
	weft_comm comm;
	weft_comm_options options = {.size = sizeof options, .deadline_ms = 30000};
	const char *id = getenv("MOE_ID");
	pid_t children[64] = {0};
	int ranks = argc > 1 ? atoi(argv[1]) : 4, failed = 0;

	if (getenv("WEFT_RANK") || getenv("RANK") || getenv("SLURM_PROCID")) {
		must(weft_comm_create(&options, &comm), "join");
		ranks = 1;
	} else if (id) {
		must(weft_comm_create_with_id(id, atoi(getenv("MOE_RANK")), atoi(getenv("MOE_RANKS")), &options, &comm),
			 "join");
		ranks = 1;
	} else if (ranks >= 1 && ranks <= 64) {
		char fresh[WEFT_UNIQUE_ID_BYTES];
		must(weft_unique_id_create(fresh, "lo"), "id");
		start("/proc/self/exe", fresh, ranks, children);
		must(weft_comm_create_with_id(fresh, 0, ranks, &options, &comm), "join");
	} else {
		fprintf(stderr, "usage: %s [1 to 64 ranks]\n", argv[0]);
		return 2;
	}
	layer(comm);
	must(weft_comm_destroy(comm), "leave");
	for (int r = 1; r < ranks; r++) {
		int status;
		if (waitpid(children[r], &status, 0) < 0 || status != 0) {
			failed = 1;
		}
	}
	return failed;
}
