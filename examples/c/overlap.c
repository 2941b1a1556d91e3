/*
 * Sums gradients of all ranks while the next ones are computed: calls that are started, and waited for at the end.
 *
 *     make clib
 *     cc -o overlap examples/c/overlap.c -Ibuild/clib -Lbuild/clib -Wl,-rpath,$PWD/build/clib -lweft
 *     build/weft run -n 2 ./overlap
 */
#include <stdio.h>
#include <stdlib.h>

#include "weft.h"

enum { LAYERS = 8, N = 100000 };

static void must(weft_status status) {
	if (status != WEFT_OK) {
		fprintf(stderr, "%s: %s\n", weft_status_name(status), weft_error());
		exit(1);
	}
}

int main(void) {
	weft_comm comm;
	weft_group group;
	must(weft_comm_create(NULL, &comm));
	must(weft_group_create(comm, NULL, &group));
	weft_comm_info me = {.size = sizeof me};
	must(weft_comm_get(comm, &me));

	static float gradients[LAYERS][N];
	weft_work works[LAYERS];
	for (int layer = LAYERS - 1; layer >= 0; layer--) {
		for (int i = 0; i < N; i++) { /* the backward pass */
			gradients[layer][i] = (float)(layer + me.rank);
		}
		weft_tensor t = {.size = sizeof t, .data = gradients[layer], .dtype = WEFT_FLOAT32, .dims = 1, .shape = {N}};
		weft_collective_args call = {
			.size = sizeof call, .collective = WEFT_ALL_REDUCE, .op = WEFT_AVG, .out = &t, .in = &t};
		must(weft_group_start(group, NULL, &call, &works[layer])); /* the elements are borrowed from here on */
	}
	for (int layer = 0; layer < LAYERS; layer++) {
		must(weft_work_wait(works[layer])); /* to here */
		must(weft_work_release(works[layer]));
		if (gradients[layer][N - 1] != (float)layer + (float)(me.ranks - 1) / 2) {
			fprintf(stderr, "layer %d: %g\n", layer, gradients[layer][N - 1]);
			return 1;
		}
	}
	printf("rank %d of %d: %d layers averaged\n", me.rank, me.ranks, LAYERS);
	must(weft_comm_destroy(comm)); /* and the group */
	return 0;
}
