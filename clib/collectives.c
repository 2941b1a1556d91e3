//go:build cgo && linux

// The operations by their names: each is weft_group_run with what it passes.

#include "internal.h"

#define RUN(kind, ...)                                                                                                 \
	weft_group_run(group, stream,                                                                                      \
				   &(weft_collective_args){.size = sizeof(weft_collective_args), .collective = (kind), __VA_ARGS__})

weft_status weft_barrier(weft_group group, weft_stream stream) { return RUN(WEFT_BARRIER, .out = NULL); }

weft_status weft_all_reduce(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							int op) {
	return RUN(WEFT_ALL_REDUCE, .out = out, .in = in, .op = op);
}

weft_status weft_all_gather(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in) {
	return RUN(WEFT_ALL_GATHER, .out = out, .in = in);
}

weft_status weft_all_gather_v(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							  const int64_t *recv, const int64_t *recv_at) {
	return RUN(WEFT_ALL_GATHER_V, .out = out, .in = in, .recv = recv, .recv_at = recv_at);
}

weft_status weft_reduce_scatter(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
								int op) {
	return RUN(WEFT_REDUCE_SCATTER, .out = out, .in = in, .op = op);
}

weft_status weft_reduce_scatter_v(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
								  const int64_t *send, int op) {
	return RUN(WEFT_REDUCE_SCATTER_V, .out = out, .in = in, .send = send, .op = op);
}

weft_status weft_all_to_all(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in) {
	return RUN(WEFT_ALL_TO_ALL, .out = out, .in = in);
}

weft_status weft_all_to_all_v(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							  const int64_t *send, const int64_t *send_at, const int64_t *recv,
							  const int64_t *recv_at) {
	return RUN(WEFT_ALL_TO_ALL_V, .out = out, .in = in, .send = send, .send_at = send_at, .recv = recv,
			   .recv_at = recv_at);
}

weft_status weft_broadcast(weft_group group, weft_stream stream, const weft_tensor *tensor, int root) {
	return RUN(WEFT_BROADCAST, .out = tensor, .in = tensor, .root = root);
}

weft_status weft_reduce(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in, int op,
						int root) {
	return RUN(WEFT_REDUCE, .out = out, .in = in, .op = op, .root = root);
}

weft_status weft_gather(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in, int root) {
	return RUN(WEFT_GATHER, .out = out, .in = in, .root = root);
}

weft_status weft_scatter(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
						 int root) {
	return RUN(WEFT_SCATTER, .out = out, .in = in, .root = root);
}

weft_status weft_send(weft_group group, weft_stream stream, const weft_tensor *tensor, int to) {
	return weft_batch(group, stream, &(weft_transfer){.size = sizeof(weft_transfer), .tensor = tensor, .peer = to}, 1);
}

weft_status weft_recv(weft_group group, weft_stream stream, const weft_tensor *tensor, int from) {
	return weft_batch(
		group, stream,
		&(weft_transfer){.size = sizeof(weft_transfer), .tensor = tensor, .peer = from, .receive = 1}, 1);
}

weft_status weft_batch(weft_group group, weft_stream stream, const weft_transfer *transfers, int64_t count) {
	return RUN(WEFT_POINT_TO_POINT, .transfers = transfers, .transfer_count = count);
}

weft_status weft_all_reduce_norm(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
								 const weft_norm *norm) {
	static const weft_norm none = {.size = sizeof none}; /* is refused, on every rank */
	return RUN(WEFT_ALL_REDUCE, .out = out, .in = in, .norm = norm != NULL ? norm : &none);
}

weft_status weft_all_gather_progress(weft_group group, weft_stream stream, const weft_tensor *out,
									 const weft_tensor *in, const weft_tensor *words) {
	return RUN(WEFT_ALL_GATHER, .out = out, .in = in, .words = words);
}

weft_status weft_reduce_scatter_ready(weft_group group, weft_stream stream, const weft_tensor *out,
									  const weft_tensor *in, const weft_tensor *words, int op) {
	return RUN(WEFT_REDUCE_SCATTER, .out = out, .in = in, .words = words, .op = op);
}
