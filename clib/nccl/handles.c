#include <stdlib.h>
#include <string.h>

#include "internal.h"

_Static_assert(sizeof(nep_header) == 64 && offsetof(nep_header, batch) == 48,
			   "the header of a handle's memory has another layout");

enum { HEADER_BYTES = 256, HEADER_VERSION = 1 };
static const uint64_t header_magic = UINT64_C(0x4E454C444E414857);

/* FNV-1a: memory that was never written, or was written over, has another. */
static uint64_t sum_of(const nep_header *header) {
	uint64_t sum = UINT64_C(0xCBF29CE484222325);
	const unsigned char *bytes = (const unsigned char *)header;
	for (size_t i = 0; i < offsetof(nep_header, sum); i++) {
		sum = (sum ^ bytes[i]) * UINT64_C(0x100000001B3);
	}
	return sum;
}

static nep_header header_of(const nep_handle *h) {
	const nep_group *g = h->group;
	nep_header header = {
		.magic = header_magic,
		.version = HEADER_VERSION,
		.topk = (uint32_t)h->topk,
		.alignment = (uint64_t)h->alignment,
		.experts = g->config.num_experts,
		.ranks = (uint32_t)g->ranks,
		.rank = (uint32_t)g->rank,
		.max_tokens = g->config.max_dispatch_tokens_per_rank,
	};
	header.sum = sum_of(&header);
	return header;
}

static size_t memory_size(const nep_group *g, int64_t topk) {
	const size_t widest = sizeof(int64_t);
	return HEADER_BYTES + ((size_t)g->config.max_dispatch_tokens_per_rank * (size_t)topk * widest + 255) / 256 * 256;
}

/* The top-k and alignment of a handle, once they are known to be good. */
static ncclEpResult_t check_layer(const nep_group *g, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
								  int num_topk, int64_t *alignment) {
	const int most_topk = 32;
	const size_t most_alignment = 1 << 16;
	ncclEpHandleConfig_t c = {0};
	if (config != NULL) {
		NEP_TRY(NEP_STRUCT(c, config, sizeof c));
	}
	if (layout != NCCL_EP_EXPERT_MAJOR) {
		return nep_misused("layout %d: only expert-major (%d) is served here; weft_ep_create has the others", layout,
						   NCCL_EP_EXPERT_MAJOR);
	}
	if (num_topk < 1 || num_topk > most_topk || (g->config.num_topk > 0 && (unsigned)num_topk > g->config.num_topk)) {
		int most = g->config.num_topk > 0 ? (int)g->config.num_topk : most_topk;
		return nep_invalid("num_topk is %d: want 1 to %d%s", num_topk, most,
						   most == most_topk ? "" : ", the num_topk of the group");
	}
	size_t a = c.dispatch_output_per_expert_alignment;
	if (a > most_alignment || (a & (a - 1)) != 0) {
		return nep_invalid("dispatch_output_per_expert_alignment is %zu: want a power of two up to %zu, or 0", a,
						   most_alignment);
	}
	*alignment = a == 0 ? 1 : (int64_t)a;
	return NCCL_EP_SUCCESS;
}

ncclEpResult_t ncclEpHandleMemSize(ncclEpGroup_t group, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
								   size_t *size_out, int num_topk) {
	NEP_TRY(nep_open());
	nep_group *g;
	int64_t alignment;
	NEP_TRY(nep_enter_group(group, &g));
	ncclEpResult_t result = check_layer(g, layout, config, num_topk, &alignment);
	if (result == NCCL_EP_SUCCESS && size_out == NULL) {
		result = nep_invalid("size_out is NULL");
	}
	if (result == NCCL_EP_SUCCESS) {
		*size_out = memory_size(g, num_topk);
	}
	nep_leave(g);
	return result;
}

/* Gives the handle the caller's memory, or its own. */
static ncclEpResult_t use_memory(nep_handle *h, const ncclEpTensor_t *handle_mem) {
	size_t need = memory_size(h->group, h->topk);
	if (handle_mem == NULL) {
		h->own = true;
		return nep_alloc(h->group, need, &h->memory);
	}
	weft_tensor memory;
	NEP_TRY(nep_tensor(h->group, handle_mem, 1, "handle_mem", &memory));
	size_t bytes = (size_t)(nep_elements(&memory) * nep_bytes_of(memory.dtype));
	if (bytes < need || (uintptr_t)memory.data % 16 != 0) {
		return nep_fail(
			NCCL_EP_INVALID_ARGUMENT,
			"handle_mem has %zu bytes at 0x%llx: want %zu, as ncclEpHandleMemSize says, on a multiple of 16", bytes,
			(unsigned long long)(uintptr_t)memory.data, need);
	}
	h->memory = memory.data;
	return NCCL_EP_SUCCESS;
}

void nep_discard(nep_handle *h) {
	nep_unroute(h);
	if (h->own) {
		nep_free(h->group, h->memory);
	}
	nep_free_pinned(h->group, h->pinned);
	free(h);
}

static ncclEpResult_t init(nep_group *g, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config, int num_topk,
						   const ncclEpTensor_t *handle_mem, nep_handle *h) {
	h->group = g; /* later steps may fail, and then the group discards the exchange */
	NEP_TRY(check_layer(g, layout, config, num_topk, &h->alignment));
	h->topk = num_topk;
	NEP_TRY(use_memory(h, handle_mem));
	NEP_TRY(nep_alloc_pinned(g, sizeof *h->pinned, (void **)&h->pinned));
	h->pinned->header = header_of(h);
	uint64_t id;
	NEP_TRY(nep_add(NEP_HANDLE, h, &id));
	h->id = (ncclEpHandle_t)(uintptr_t)id;
	h->next = g->handles;
	g->handles = h;
	return NCCL_EP_SUCCESS;
}

ncclEpResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, ncclEpLayout_t layout,
								const ncclEpHandleConfig_t *config, int num_topk, const ncclEpTensor_t *handle_mem) {
	NEP_TRY(nep_open());
	if (handle == NULL) {
		return nep_invalid("handle is NULL");
	}
	nep_group *g;
	NEP_TRY(nep_enter_group(group, &g));
	nep_handle *h = calloc(1, sizeof *h);
	ncclEpResult_t result = h == NULL ? nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for a handle")
									  : init(g, layout, config, num_topk, handle_mem, h);
	if (result == NCCL_EP_SUCCESS) {
		*handle = h->id;
	} else if (h != NULL) {
		nep_discard(h);
	}
	nep_leave(g);
	return result;
}

ncclEpResult_t ncclEpHandleDestroy(ncclEpHandle_t handle) {
	if (handle == NULL) {
		return NCCL_EP_SUCCESS;
	}
	NEP_TRY(nep_open());
	nep_handle *h;
	NEP_TRY(nep_enter(handle, &h));
	nep_group *g = h->group;
	nep_handle **at = &g->handles;
	while (*at != h) {
		at = &(*at)->next;
	}
	*at = h->next;
	nep_remove((uint64_t)(uintptr_t)h->id);
	nep_discard(h);
	nep_leave(g);
	return NCCL_EP_SUCCESS;
}

weft_tensor nep_topk(const nep_handle *h) {
	weft_tensor t = {.size = sizeof t,
					 .data = h->memory + HEADER_BYTES,
					 .dtype = h->topk_type,
					 .dims = 2,
					 .shape = {h->tokens, h->topk}};
	return t;
}

ncclEpResult_t nep_batch(nep_handle *h, const char *op) {
	if (h->ready) {
		return NCCL_EP_SUCCESS;
	}
	nep_header found = {0};
	if (!h->own && !h->refused) {
		NEP_TRY(nep_read(h->group, &found, h->memory, sizeof found));
	}
	if (found.magic != header_magic || found.version != HEADER_VERSION || found.sum != sum_of(&found)) {
		return nep_misused("%s: the handle has no batch: call ncclEpUpdateHandle first", op);
	}
	uint32_t tokens = found.batch & ~NEP_WIDE;
	if (memcmp(&h->pinned->header, &found, offsetof(nep_header, batch)) != 0 || tokens > found.max_tokens) {
		return nep_misused(
			"%s: the handle's memory has a batch of top-k %u, alignment %llu, rank %u of %u with at most "
			"%u tokens, and the handle is of "
			"another layer or group: call ncclEpUpdateHandle",
			op, found.topk, (unsigned long long)found.alignment, found.rank, found.ranks, found.max_tokens);
	}
	h->tokens = tokens;
	h->topk_type = found.batch & NEP_WIDE ? WEFT_INT64 : WEFT_INT32;
	h->ready = true;
	return NCCL_EP_SUCCESS;
}

static nep_route *find(const nep_handle *h, const nep_exchange *exchange) {
	nep_route *r = h->routes;
	while (r != NULL && r->exchange != exchange) {
		r = r->next;
	}
	return r;
}

weft_routing nep_route_at(const nep_handle *h, const nep_exchange *exchange) {
	nep_route *r = find(h, exchange);
	return r == NULL ? NULL : r->routing;
}

ncclEpResult_t nep_reroute(nep_handle *h, nep_exchange *exchange, weft_routing routing) {
	nep_route *r = find(h, exchange);
	if (r != NULL) {
		weft_routing former = r->routing;
		r->routing = routing;
		NEP_WEFT(nep_lib.weft_routing_release(former));
		return NCCL_EP_SUCCESS;
	}
	r = calloc(1, sizeof *r);
	if (r == NULL) {
		nep_lib.weft_routing_release(routing);
		return nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for a routing");
	}
	*r = (nep_route){exchange, routing, h->routes};
	h->routes = r;
	return NCCL_EP_SUCCESS;
}

ncclEpResult_t nep_route_of(nep_handle *h, nep_exchange *exchange, weft_stream stream, weft_routing *routing) {
	*routing = nep_route_at(h, exchange);
	if (*routing != NULL) {
		return NCCL_EP_SUCCESS;
	}
	weft_tensor topk = nep_topk(h);
	NEP_WEFT(nep_lib.weft_ep_prepare(exchange->ep, stream, &topk, NULL, routing));
	return nep_reroute(h, exchange, *routing);
}

void nep_unroute(nep_handle *h) {
	while (h->routes != NULL) {
		nep_route *r = h->routes;
		h->routes = r->next;
		nep_lib.weft_routing_release(r->routing);
		free(r);
	}
}

/* Writes one part of a routing to a tensor of the caller's, int32 or int64. */
static ncclEpResult_t tell(const nep_handle *h, weft_routing routing, weft_routing_part part, const ncclEpTensor_t *to,
						   const char *name, weft_stream stream) {
	if (to == NULL) {
		return NCCL_EP_SUCCESS;
	}
	weft_tensor from = {.size = sizeof from}, out;
	NEP_TRY(nep_tensor(h->group, to, 1, name, &out));
	NEP_WEFT(nep_lib.weft_routing_tensor(routing, part, &from));
	if (out.shape[0] < from.shape[0] || (out.dtype != WEFT_INT32 && out.dtype != WEFT_INT64)) {
		return nep_invalid("%s has room for %lld numbers of %lld bytes: want %lld, int32 or int64", name,
						   (long long)out.shape[0], (long long)nep_bytes_of(out.dtype), (long long)from.shape[0]);
	}
	if (out.dtype == WEFT_INT64) {
		return nep_widen(h->group, out.data, from.data, (size_t)from.shape[0], stream);
	}
	return nep_copy(h->group, out.data, from.data, (size_t)from.shape[0] * sizeof(int32_t), stream);
}

ncclEpResult_t nep_tell(nep_handle *h, weft_routing routing, const ncclEpLayoutInfo_t *info, weft_stream stream) {
	NEP_TRY(tell(h, routing, WEFT_PADDED_COUNTS, info->expert_counters, "expert_counters", stream));
	NEP_TRY(tell(h, routing, WEFT_SOURCE_COUNTS, info->src_rank_counters, "src_rank_counters", stream));
	NEP_TRY(tell(h, routing, WEFT_EXPERT_OFFSETS, info->expert_offsets, "expert_offsets", stream));
	return tell(h, routing, WEFT_ROW_DEMAND, info->recv_total_counter, "recv_total_counter", stream);
}

ncclEpResult_t nep_overflowed(const nep_handle *h) {
	unsigned most = h->group->config.max_recv_tokens_per_rank;
	int32_t rows = h->pinned->demand;
	if (rows <= 0 || (unsigned)rows <= most) {
		return NCCL_EP_SUCCESS;
	}
	h->pinned->demand = 0; /* reported once */
	return nep_misused("%d rows came to rank %d, which has room for %u, and the last ones were left out: raise "
					   "max_recv_tokens_per_rank, set it to 0, or "
					   "let overflow_policy drop them",
					   rows, h->group->rank, most);
}

/* The exchange that counts: its rows are as small as rows can be. */
static nep_shape counting(const nep_handle *h, bool unbounded) {
	nep_shape shape = {.topk = h->topk,
					   .alignment = h->alignment,
					   .payload = WEFT_PAYLOAD_OPAQUE,
					   .unbounded = unbounded,
					   .row_bytes = 16};
	return shape;
}

/*
 * More rows go to some rank than it has room for, and all ranks have got that error. The number of this rank's rows
 * is still useful: a caller that grows its memory reads it. The failure's words stay.
 */
static void read_demand(nep_handle *h, const weft_tensor *topk, const ncclEpLayoutInfo_t *info, weft_stream stream) {
	nep_shape shape = counting(h, true);
	nep_exchange *exchange;
	weft_routing routing;
	if (nep_exchange_of(h->group, &shape, &exchange) == NCCL_EP_SUCCESS &&
		nep_lib.weft_ep_prepare(exchange->ep, stream, topk, NULL, &routing) == WEFT_OK) {
		tell(h, routing, WEFT_ROW_DEMAND, info->recv_total_counter, "recv_total_counter", stream);
		nep_lib.weft_routing_release(routing);
	}
}

static ncclEpResult_t refused(nep_handle *h, const weft_tensor *topk, const ncclEpLayoutInfo_t *info,
							  weft_stream stream) {
	char words[1024];
	strncpy(words, nep_lib.weft_error(), sizeof words - 1);
	words[sizeof words - 1] = 0;
	int rank = nep_lib.weft_error_rank();
	read_demand(h, topk, info, stream);
	return nep_result(nep_lib.weft_error_set(WEFT_ERROR_OVERFLOW, rank, words));
}

/* Writes the batch to the handle's memory. */
static ncclEpResult_t sign(const nep_handle *h, weft_stream stream) {
	const size_t batch = offsetof(nep_header, batch);
	uint32_t wide = h->topk_type == WEFT_INT64 ? NEP_WIDE : 0;
	NEP_TRY(nep_copy(h->group, h->memory, &h->pinned->header, batch, stream));
	return nep_write(h->group, h->memory + batch, (uint32_t)h->tokens | wide, stream);
}

/* Has a GPU report how many rows came, where the handle does not drop rows silently. */
static ncclEpResult_t watch(const nep_handle *h, weft_routing routing, weft_stream stream) {
	const nep_group *g = h->group;
	if (g->engine == WEFT_HOST || g->config.max_recv_tokens_per_rank == 0 ||
		g->config.overflow_policy == NCCL_EP_OVERFLOW_DROP) {
		return NCCL_EP_SUCCESS;
	}
	weft_tensor demand = {.size = sizeof demand};
	NEP_WEFT(nep_lib.weft_routing_tensor(routing, WEFT_ROW_DEMAND, &demand));
	return nep_copy(g, (void *)(uintptr_t)&h->pinned->demand, demand.data, sizeof h->pinned->demand, stream);
}

static ncclEpResult_t update(nep_handle *h, const ncclEpTensor_t *topk_idx, const ncclEpLayoutInfo_t *layout_info,
							 weft_stream stream) {
	const size_t first_version = 40;
	ncclEpLayoutInfo_t info = {0};
	weft_tensor topk;
	nep_exchange *exchange;
	weft_routing routing;
	if (layout_info != NULL) {
		NEP_TRY(NEP_STRUCT(info, layout_info, first_version));
	}
	NEP_TRY(nep_tensor(h->group, topk_idx, 2, "topk_idx", &topk));
	nep_unroute(h);
	h->ready = false;
	h->refused = true;
	exchange = h->last;
	if (exchange == NULL) {
		nep_shape shape = counting(h, false);
		NEP_TRY(nep_exchange_of(h->group, &shape, &exchange));
	}
	weft_status status = nep_lib.weft_ep_prepare(exchange->ep, stream, &topk, NULL, &routing);
	if (status == WEFT_ERROR_OVERFLOW) {
		return refused(h, &topk, &info, stream);
	}
	NEP_WEFT(status);
	NEP_TRY(nep_reroute(h, exchange, routing));
	h->tokens = topk.shape[0];
	h->topk_type = topk.dtype;
	weft_tensor kept = nep_topk(h);
	NEP_TRY(nep_copy(h->group, kept.data, topk.data, (size_t)(nep_elements(&topk) * nep_bytes_of(topk.dtype)), stream));
	NEP_TRY(sign(h, stream));
	h->ready = true;
	h->refused = false;
	NEP_TRY(watch(h, routing, stream));
	return nep_tell(h, routing, &info, stream);
}

ncclEpResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
								  const ncclEpLayoutInfo_t *layout_info, void *stream) {
	NEP_TRY(nep_open());
	nep_handle *h;
	NEP_TRY(nep_enter(handle, &h));
	nep_group *g = h->group;
	ncclEpResult_t result = update(h, topk_idx, layout_info, stream);
	if (result == NCCL_EP_SUCCESS) {
		result = nep_overflowed(h);
	}
	nep_leave(g);
	return result;
}
