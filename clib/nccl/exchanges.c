/* Dispatch and combine, forward and backward. */
#include "internal.h"

/* The payload of rows of numbers, which can be summed. */
static ncclEpResult_t payload_of(const weft_tensor *rows, const char *name, int32_t *payload) {
	switch (rows->dtype) {
	case WEFT_BFLOAT16: *payload = WEFT_PAYLOAD_BF16; return NCCL_EP_SUCCESS;
	case WEFT_FLOAT16: *payload = WEFT_PAYLOAD_FP16; return NCCL_EP_SUCCESS;
	case WEFT_FLOAT32: *payload = WEFT_PAYLOAD_FP32; return NCCL_EP_SUCCESS;
	default:
		return nep_invalid("%s: rows are bf16, fp16 or fp32; others go with their scales, by a dispatch that forwards "
						   "them (quant_recipe %d)",
						   name, NCCL_EP_DISPATCH_FORWARD_SCALES);
	}
}

static int64_t row_bytes(const weft_tensor *t) { return t->shape[t->dims - 1] * nep_bytes_of(t->dtype); }

static ncclEpResult_t check_row(const nep_handle *h, int64_t bytes, const char *name) {
	int64_t most = h->group->config.max_token_bytes;
	if (bytes > most) {
		return nep_invalid("%s: rows of %lld bytes, and max_token_bytes of the group is %lld: raise it", name,
						   (long long)bytes, (long long)most);
	}
	return NCCL_EP_SUCCESS;
}

/* The exchange that moves rows of numbers. */
static ncclEpResult_t numbers(nep_handle *h, const weft_tensor *rows, const char *name, nep_exchange **exchange) {
	nep_shape shape = {.topk = h->topk, .alignment = h->alignment, .hidden = rows->shape[1]};
	NEP_TRY(payload_of(rows, name, &shape.payload));
	NEP_TRY(check_row(h, row_bytes(rows), name));
	return nep_exchange_of(h->group, &shape, exchange);
}

/* The exchange that moves rows with scales, without interpreting either. */
static ncclEpResult_t opaque(nep_handle *h, const weft_tensor *rows, const weft_tensor *scales,
							 nep_exchange **exchange) {
	nep_shape shape = {
		.topk = h->topk,
		.alignment = h->alignment,
		.payload = WEFT_PAYLOAD_OPAQUE,
		.row_bytes = row_bytes(rows),
		.scale_bytes = row_bytes(scales),
	};
	NEP_TRY(check_row(h, shape.row_bytes + shape.scale_bytes, "in.tokens and in.scales"));
	return nep_exchange_of(h->group, &shape, exchange);
}

/* Rows as bytes, for an opaque exchange. */
static weft_tensor bytes_of(const weft_tensor *t) {
	weft_tensor b = *t;
	b.dtype = WEFT_UINT8;
	b.shape[1] = row_bytes(t);
	return b;
}

/* With zero copy the memory that peers read or write lies in a window. */
static ncclEpResult_t check_window(const nep_handle *h, const ncclEpTensor_t *t, const char *name) {
	if (h->group->config.zero_copy == NCCL_EP_ZERO_COPY_ON && t->win_hdl == NULL) {
		return nep_invalid(
			"%s lies in no window, which zero_copy asks for: set win_hdl and win_offset, or zero_copy of "
			"the group to OFF",
			name);
	}
	return NCCL_EP_SUCCESS;
}

static ncclEpResult_t same_rows(const weft_tensor *a, const weft_tensor *b, const char *names) {
	if (a->dtype != b->dtype || a->shape[1] != b->shape[1]) {
		return nep_invalid("%s have rows of different types or lengths (%lld and %lld)", names, (long long)a->shape[1],
						   (long long)b->shape[1]);
	}
	return NCCL_EP_SUCCESS;
}

/*
 * The number of rows that the tensors of a batch have at least: the group's bound, or without one the rows that
 * arrive.
 */
static ncclEpResult_t rows_of(const nep_handle *h, weft_routing routing, int64_t *rows) {
	*rows = h->group->config.max_recv_tokens_per_rank;
	if (*rows == 0) {
		weft_routing_info info = {.size = sizeof info};
		NEP_WEFT(nep_lib.weft_routing_get(routing, &info));
		*rows = info.received;
	}
	return NCCL_EP_SUCCESS;
}

static ncclEpResult_t check_room(const weft_tensor *t, int64_t rows, const char *name) {
	if (t->shape[0] < rows) {
		return nep_invalid("%s has room for %lld rows, and %lld are needed: max_recv_tokens_per_rank of the group, or "
						   "without one the value of recv_total_counter",
						   name, (long long)t->shape[0], (long long)rows);
	}
	return NCCL_EP_SUCCESS;
}

/* Known before anything moves: a bounded group's tensors have room for its bound. */
static ncclEpResult_t check_bound(const nep_handle *h, const weft_tensor *t, const char *name) {
	return check_room(t, h->group->config.max_recv_tokens_per_rank, name);
}

/* The same for memory that kernels store received rows in. */
static ncclEpResult_t check_place(const nep_handle *h, const weft_tensor *t, uintptr_t multiple, const char *name) {
	if (h->group->engine == WEFT_GPU && (uintptr_t)t->data % multiple != 0) {
		return nep_invalid("%s begin at %p: on GPUs they begin on multiples of %zu bytes", name, t->data,
						   (size_t)multiple);
	}
	return NCCL_EP_SUCCESS;
}

/* The destinations of a dispatch; one that is not wanted, or does not exist, has the type WEFT_NONE. */
typedef struct destination {
	weft_tensor rows, scales, weights;
} destination;

/* How many of the received rows are worth a copy: a GPU's host does not know how many there are. */
static ncclEpResult_t rows_to_copy(const nep_handle *h, weft_routing routing, int64_t *rows) {
	if (h->group->engine == WEFT_GPU) {
		return rows_of(h, routing, rows);
	}
	weft_routing_info info = {.size = sizeof info};
	NEP_WEFT(nep_lib.weft_routing_get(routing, &info));
	*rows = info.received;
	return NCCL_EP_SUCCESS;
}

/* Weights of rows that went straight to where the caller wants them. */
static ncclEpResult_t deliver_weights(const nep_handle *h, weft_routing routing, const weft_tensor *to,
									  weft_stream stream) {
	int64_t rows;
	weft_tensor weights = {.size = sizeof weights};
	if (to->dtype == WEFT_NONE) {
		return NCCL_EP_SUCCESS;
	}
	NEP_TRY(rows_to_copy(h, routing, &rows));
	NEP_WEFT(nep_lib.weft_routing_tensor(routing, WEFT_ROW_WEIGHTS, &weights));
	if (rows > 0 && weights.data == NULL) {
		return nep_fail(
			NCCL_EP_INVALID_USAGE,
			"the weights of rows cannot be had for the first time while the stream captures: dispatch once before");
	}
	NEP_TRY(check_room(to, rows, "out.topk_weights"));
	return nep_copy(h->group, to->data, weights.data, (size_t)rows * sizeof(float), stream);
}

/* Copies the rows that have arrived; the rest of the caller's tensors is not written. */
static ncclEpResult_t deliver(const nep_handle *h, weft_ep ep, const weft_ep_dispatch_result *got,
							  const destination *to, weft_stream stream) {
	int64_t rows;
	weft_tensor bytes = bytes_of(&to->rows), scale_bytes = to->scales;
	weft_ep_copy_args args = {.size = sizeof args, .received = got->received, .rows = &to->rows};
	NEP_TRY(rows_of(h, got->routing, &rows));
	NEP_TRY(check_room(&to->rows, rows, "out.tokens"));
	if (to->scales.dtype != WEFT_NONE) {
		NEP_TRY(check_room(&to->scales, rows, "out.scales"));
		scale_bytes = bytes_of(&to->scales);
		args.rows = &bytes, args.scales = &scale_bytes;
	}
	if (to->weights.dtype != WEFT_NONE) {
		NEP_TRY(check_room(&to->weights, rows, "out.topk_weights"));
		args.row_weights = &to->weights;
	}
	return nep_result(nep_lib.weft_ep_copy_received(ep, stream, &args));
}

/* Moves rows and puts them where the caller wants them. Weights travel along, for the existing routing or for the one
 * that the dispatch makes. */
static ncclEpResult_t move(nep_handle *h, nep_exchange *exchange, const weft_tensor *rows, const weft_tensor *scales,
						   const weft_tensor *weights, const destination *to, weft_stream stream,
						   weft_routing *routing) {
	weft_tensor topk = nep_topk(h), data = {.size = sizeof data}, data_scales = {.size = sizeof data_scales};
	weft_ep_dispatch_args args = {.size = sizeof args, .rows = rows, .scales = scales};
	weft_ep_dispatch_result got = {.size = sizeof got, .data = &data, .scales = &data_scales};
	args.weights = weights;
	args.routing = nep_route_at(h, exchange);
	if (args.routing == NULL && weights != NULL) {
		args.topk = &topk;
	} else {
		NEP_TRY(nep_route_of(h, exchange, stream, &args.routing));
	}
	NEP_WEFT(nep_lib.weft_ep_dispatch(exchange->ep, stream, &args, &got, NULL));
	ncclEpResult_t result = deliver(h, exchange->ep, &got, to, stream);
	ncclEpResult_t released = nep_result(nep_lib.weft_received_release(got.received));
	if (args.routing == NULL) {
		ncclEpResult_t kept = nep_reroute(h, exchange, got.routing);
		released = released == NCCL_EP_SUCCESS ? kept : released;
	}
	if (weights != NULL) {
		h->last = exchange;
	}
	*routing = got.routing;
	return result == NCCL_EP_SUCCESS ? released : result;
}

/* A dispatch's tensors, checked. */
typedef struct dispatch_call {
	bool forward, scaled;
	weft_tensor rows, scales, weights;
	destination to;
} dispatch_call;

static ncclEpResult_t read_dispatch(const nep_handle *h, const ncclEpDispatchInputs_t *in,
									const ncclEpDispatchOutputs_t *out, const ncclEpDispatchConfig_t *config,
									dispatch_call *d) {
	if (config->send_only != 0) {
		return nep_misused("send_only belongs to low latency: set it to 0, or use weft_ep_dispatch with work");
	}
	if (config->pass_direction != NCCL_EP_FORWARD && config->pass_direction != NCCL_EP_BACKWARD) {
		return nep_invalid("pass_direction is %d: want forward (0) or backward (1)", config->pass_direction);
	}
	if (config->quant_recipe != NCCL_EP_DISPATCH_PLAIN && config->quant_recipe != NCCL_EP_DISPATCH_FORWARD_SCALES) {
		return nep_misused("quant_recipe %d: want rows of numbers (0), or rows forwarded with their scales (1); "
						   "weft_ep_create quantises to FP8",
						   config->quant_recipe);
	}
	d->forward = config->pass_direction == NCCL_EP_FORWARD;
	d->scaled = config->quant_recipe == NCCL_EP_DISPATCH_FORWARD_SCALES;
	if (out->topk_idx != NULL) {
		return nep_fail(
			NCCL_EP_INVALID_USAGE,
			"out.topk_idx belongs to other layouts: a row of expert-major is of its zone's expert; leave it NULL");
	}
	if (d->forward != (in->topk_weights != NULL)) {
		return nep_invalid(d->forward ? "in.topk_weights is NULL, and a forward dispatch takes them along"
									  : "in.topk_weights: a backward dispatch has none; leave them NULL");
	}
	if (!d->forward && out->topk_weights != NULL) {
		return nep_invalid("out.topk_weights: a backward dispatch has none; leave them NULL");
	}
	if (d->scaled != (in->scales != NULL) || d->scaled != (out->scales != NULL)) {
		return nep_invalid("in.scales and out.scales go with quant_recipe %d, and only with it",
						   NCCL_EP_DISPATCH_FORWARD_SCALES);
	}
	NEP_TRY(nep_tensor(h->group, in->tokens, 2, "in.tokens", &d->rows));
	NEP_TRY(nep_tensor(h->group, out->tokens, 2, "out.tokens", &d->to.rows));
	NEP_TRY(same_rows(&d->rows, &d->to.rows, "in.tokens and out.tokens"));
	NEP_TRY(check_bound(h, &d->to.rows, "out.tokens"));
	NEP_TRY(check_place(h, &d->to.rows, 16, "out.tokens"));
	NEP_TRY(check_window(h, out->tokens, "out.tokens"));
	if (d->forward) {
		NEP_TRY(nep_tensor(h->group, in->topk_weights, 2, "in.topk_weights", &d->weights));
	}
	if (out->topk_weights != NULL) {
		NEP_TRY(nep_tensor(h->group, out->topk_weights, 1, "out.topk_weights", &d->to.weights));
		NEP_TRY(check_bound(h, &d->to.weights, "out.topk_weights"));
		NEP_TRY(check_place(h, &d->to.weights, sizeof(float), "out.topk_weights"));
		if (d->to.weights.dtype != WEFT_FLOAT32) {
			return nep_invalid("out.topk_weights are fp32");
		}
	}
	if (d->scaled) {
		NEP_TRY(nep_tensor(h->group, in->scales, 2, "in.scales", &d->scales));
		NEP_TRY(nep_tensor(h->group, out->scales, 2, "out.scales", &d->to.scales));
		NEP_TRY(same_rows(&d->scales, &d->to.scales, "in.scales and out.scales"));
		NEP_TRY(check_bound(h, &d->to.scales, "out.scales"));
		NEP_TRY(check_place(h, &d->to.scales, 4, "out.scales"));
	}
	return NCCL_EP_SUCCESS;
}

/* The gradient of a combine, which is a dispatch without weights, stands where the caller wants it at once. */
static ncclEpResult_t combine_backward(nep_handle *h, nep_exchange *exchange, const dispatch_call *d,
									   weft_stream stream, weft_routing *routing) {
	weft_tensor out = d->to.rows;
	NEP_TRY(nep_route_of(h, exchange, stream, routing));
	NEP_TRY(rows_of(h, *routing, &out.shape[0]));
	NEP_TRY(check_room(&d->to.rows, out.shape[0], "out.tokens"));
	weft_ep_combine_backward_args args = {
		.size = sizeof args, .routing = *routing, .grad_out = &d->rows, .grad_rows = &out};
	return nep_result(nep_lib.weft_ep_combine_backward(exchange->ep, stream, &args));
}

/*
 * Whether a dispatch moves rows of numbers straight into the caller's tensors: as the gradient of a combine, whose
 * receivers read rows. On the host every dispatch is a read, so this costs nothing. On GPUs senders write dispatched
 * rows into Weft's memory, which is faster, but then a copy follows, which may take longer. There zero_copy decides.
 */
static bool direct(const nep_handle *h) {
	return h->group->engine == WEFT_HOST || h->group->config.zero_copy == NCCL_EP_ZERO_COPY_ON;
}

static ncclEpResult_t dispatch_directly(nep_handle *h, nep_exchange *exchange, const dispatch_call *d,
										weft_stream stream, weft_routing *routing) {
	weft_tensor topk = nep_topk(h);
	NEP_WEFT(nep_lib.weft_ep_prepare(exchange->ep, stream, &topk, &d->weights, routing));
	NEP_TRY(nep_reroute(h, exchange, *routing));
	NEP_TRY(combine_backward(h, exchange, d, stream, routing));
	return deliver_weights(h, *routing, &d->to.weights, stream);
}

static ncclEpResult_t dispatch(nep_handle *h, const ncclEpDispatchInputs_t *inputs,
							   const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info,
							   const ncclEpDispatchConfig_t *config, weft_stream stream) {
	const size_t first_info = 40, first_config = 20;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info = {0};
	ncclEpDispatchConfig_t c = {0};
	dispatch_call d = {0};
	nep_exchange *exchange;
	weft_routing routing;
	NEP_TRY(NEP_STRUCT(in, inputs, sizeof in));
	NEP_TRY(NEP_STRUCT(out, outputs, sizeof out));
	if (layout_info != NULL) {
		NEP_TRY(NEP_STRUCT(info, layout_info, first_info));
	}
	if (config != NULL) {
		NEP_TRY(NEP_STRUCT(c, config, first_config));
	}
	NEP_TRY(nep_batch(h, "ncclEpDispatch"));
	NEP_TRY(read_dispatch(h, &in, &out, &c, &d));
	if (d.scaled) {
		NEP_TRY(opaque(h, &d.rows, &d.scales, &exchange));
		weft_tensor rows = bytes_of(&d.rows), scales = bytes_of(&d.scales);
		NEP_TRY(move(h, exchange, &rows, &scales, d.forward ? &d.weights : NULL, &d.to, stream, &routing));
	} else {
		NEP_TRY(numbers(h, &d.rows, "in.tokens", &exchange));
		if (d.forward && direct(h)) {
			NEP_TRY(dispatch_directly(h, exchange, &d, stream, &routing));
		} else if (d.forward) {
			NEP_TRY(move(h, exchange, &d.rows, NULL, &d.weights, &d.to, stream, &routing));
		} else {
			NEP_TRY(combine_backward(h, exchange, &d, stream, &routing));
		}
	}
	return nep_tell(h, routing, &info, stream);
}

ncclEpResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *in,
							  const ncclEpDispatchOutputs_t *out, const ncclEpLayoutInfo_t *layout_info,
							  const ncclEpDispatchConfig_t *config, void *stream) {
	NEP_TRY(nep_open());
	nep_handle *h;
	NEP_TRY(nep_enter(handle, &h));
	nep_group *g = h->group;
	ncclEpResult_t result = dispatch(h, in, out, layout_info, config, stream);
	if (result == NCCL_EP_SUCCESS) {
		result = nep_overflowed(h);
	}
	nep_leave(g);
	return result;
}

static ncclEpResult_t check_combine(const ncclEpCombineInputs_t *in, const ncclEpCombineOutputs_t *out,
									const ncclEpCombineConfig_t *config) {
	bool backward = config->pass_direction == NCCL_EP_BACKWARD;
	if (config->send_only != 0) {
		return nep_misused("send_only belongs to low latency: set it to 0, or use weft_ep_combine with work");
	}
	if (!backward && config->pass_direction != NCCL_EP_FORWARD) {
		return nep_invalid("pass_direction is %d: want forward (0) or backward (1)", config->pass_direction);
	}
	if (config->quant_recipe != NCCL_EP_COMBINE_PLAIN || in->scales != NULL) {
		return nep_misused("a combine sums rows of numbers: leave quant_recipe 0 and in.scales NULL");
	}
	if (backward != (in->topk_weights != NULL) || backward != (out->topk_weights != NULL)) {
		return nep_fail(
			NCCL_EP_INVALID_ARGUMENT,
			backward ? "a backward combine brings gradients of weights home: give in.topk_weights and out.topk_weights"
					 : "a forward combine sums without weights: leave in.topk_weights and out.topk_weights NULL");
	}
	return NCCL_EP_SUCCESS;
}

static ncclEpResult_t combine(nep_handle *h, const ncclEpCombineInputs_t *inputs, const ncclEpCombineOutputs_t *outputs,
							  const ncclEpCombineConfig_t *config, weft_stream stream) {
	const size_t first_inputs = 24, first_config = 16;
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t c = {0};
	weft_tensor rows, sums, row_weights, weights;
	nep_exchange *exchange;
	weft_routing routing;
	NEP_TRY(NEP_STRUCT(in, inputs, first_inputs));
	NEP_TRY(NEP_STRUCT(out, outputs, sizeof out));
	if (config != NULL) {
		NEP_TRY(NEP_STRUCT(c, config, first_config));
	}
	NEP_TRY(nep_batch(h, "ncclEpCombine"));
	NEP_TRY(check_combine(&in, &out, &c));
	NEP_TRY(nep_tensor(h->group, in.tokens, 2, "in.tokens", &rows));
	NEP_TRY(nep_tensor(h->group, out.tokens, 2, "out.tokens", &sums));
	NEP_TRY(same_rows(&rows, &sums, "in.tokens and out.tokens"));
	NEP_TRY(check_bound(h, &rows, "in.tokens"));
	NEP_TRY(check_window(h, in.tokens, "in.tokens"));
	if (c.pass_direction == NCCL_EP_BACKWARD) {
		NEP_TRY(nep_tensor(h->group, in.topk_weights, 1, "in.topk_weights", &row_weights));
		NEP_TRY(nep_tensor(h->group, out.topk_weights, 2, "out.topk_weights", &weights));
		NEP_TRY(check_bound(h, &row_weights, "in.topk_weights"));
	}
	NEP_TRY(numbers(h, &rows, "in.tokens", &exchange));
	NEP_TRY(nep_route_of(h, exchange, stream, &routing));
	int64_t count;
	NEP_TRY(rows_of(h, routing, &count));
	NEP_TRY(check_room(&rows, count, "in.tokens"));
	rows.shape[0] = count;
	if (c.pass_direction == NCCL_EP_FORWARD) {
		weft_ep_combine_args args = {.size = sizeof args, .routing = routing, .rows = &rows, .out = &sums};
		return nep_result(nep_lib.weft_ep_combine(exchange->ep, stream, &args, NULL));
	}
	NEP_TRY(check_room(&row_weights, count, "in.topk_weights"));
	row_weights.shape[0] = count;
	weft_ep_dispatch_backward_args args = {
		.size = sizeof args,
		.routing = routing,
		.grad_rows = &rows,
		.grad_row_weights = &row_weights,
		.grad_tokens = &sums,
		.grad_weights = &weights,
	};
	return nep_result(nep_lib.weft_ep_dispatch_backward(exchange->ep, stream, &args));
}

ncclEpResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *in, const ncclEpCombineOutputs_t *out,
							 const ncclEpCombineConfig_t *config, void *stream) {
	NEP_TRY(nep_open());
	nep_handle *h;
	NEP_TRY(nep_enter(handle, &h));
	nep_group *g = h->group;
	ncclEpResult_t result = combine(h, in, out, config, stream);
	if (result == NCCL_EP_SUCCESS) {
		result = nep_overflowed(h);
	}
	nep_leave(g);
	return result;
}
