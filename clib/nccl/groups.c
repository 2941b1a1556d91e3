#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { DEFAULT_SMS = 16, LEAST_SMS = 2 };

static int32_t sms_of(const ncclEpGroupConfig_t *c) {
	int32_t most = c->max_num_sms > 0 ? (int32_t)c->max_num_sms : DEFAULT_SMS;
	return most < LEAST_SMS ? LEAST_SMS : most;
}

/* The operations of a group follow each other in stream order: NCCL EP demands that. A caller's own handles have
 * other serial groups. */
#define SERIAL_GROUP ((int64_t)1 << 41)

/* The weft_ep_spec of an exchange of a shape. */
static weft_ep_spec spec_of(const nep_group *g, const nep_shape *shape) {
	const ncclEpGroupConfig_t *c = &g->config;
	bool eager = c->max_recv_tokens_per_rank == 0;
	/* On a GPU rows leave before a rank could report an overflow: see nep_overflowed. */
	bool drop = !eager && (c->overflow_policy == NCCL_EP_OVERFLOW_DROP || g->engine == WEFT_GPU);
	weft_ep_spec spec = {
		.size = sizeof spec,
		.experts = c->num_experts,
		.topk = shape->topk,
		.hidden = shape->hidden,
		.max_tokens = c->max_dispatch_tokens_per_rank,
		.layout = WEFT_EXPERT_PACKED,
		.reduction = WEFT_EXACT,
		.weighting = WEFT_PLAIN,
		.payload = shape->payload,
		.counts = eager ? WEFT_HOST_COUNTS : WEFT_DEVICE_COUNTS,
		.overflow = drop ? WEFT_OVERFLOW_DROP : WEFT_OVERFLOW_REFUSE,
		.sms = sms_of(c),
		.serial_group = SERIAL_GROUP,
		.row_bytes = shape->row_bytes,
		.scale_bytes = shape->scale_bytes,
		.capacity = shape->unbounded ? 0 : c->max_recv_tokens_per_rank,
		.alignment = shape->alignment,
		.live = 1, /* received rows are copied at once */
	};
	return spec;
}

ncclEpResult_t nep_exchange_of(nep_group *g, const nep_shape *shape, nep_exchange **exchange) {
	for (nep_exchange *e = g->exchanges; e != NULL; e = e->next) {
		if (memcmp(&e->shape, shape, sizeof *shape) == 0) {
			*exchange = e;
			return NCCL_EP_SUCCESS;
		}
	}
	nep_exchange *e = calloc(1, sizeof *e);
	if (e == NULL) {
		return nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for an exchange");
	}
	weft_ep_spec spec = spec_of(g, shape);
	ncclEpResult_t result = nep_result(nep_lib.weft_ep_create(g->comm, &spec, &e->ep));
	if (result != NCCL_EP_SUCCESS) {
		free(e);
		return result;
	}
	e->shape = *shape;
	e->next = g->exchanges;
	g->exchanges = *exchange = e;
	return NCCL_EP_SUCCESS;
}

static ncclEpResult_t check_config(const ncclEpGroupConfig_t *c) {
	bool eager = c->max_recv_tokens_per_rank == 0;
	if (c->version == 0) {
		return nep_invalid("config has version 0: set it to that of the header, %u", NCCL_EP_VERSION);
	}
	if (c->algorithm != NCCL_EP_HIGH_THROUGHPUT) {
		return nep_misused("algorithm %d: only high throughput (%d) is served here; weft_ep_create has low latency",
						   c->algorithm, NCCL_EP_HIGH_THROUGHPUT);
	}
	if ((c->alloc.alloc_fn == NULL) != (c->alloc.free_fn == NULL)) {
		return nep_invalid("alloc has one function of two: give both or neither");
	}
	if (c->enable_mask != 0) {
		return nep_misused("enable_mask belongs to low latency; weft_comm_set_mask leaves ranks of a weft_comm out");
	}
	if (c->zero_copy > NCCL_EP_ZERO_COPY_ON || c->overflow_policy > NCCL_EP_OVERFLOW_DROP) {
		return nep_invalid("zero_copy %d and overflow_policy %d: want 0 to 2 each", c->zero_copy, c->overflow_policy);
	}
	if (eager && (c->zero_copy == NCCL_EP_ZERO_COPY_ON || c->overflow_policy == NCCL_EP_OVERFLOW_DROP)) {
		return nep_misused("zero copy and dropping need a bound: set max_recv_tokens_per_rank");
	}
	if (!eager && c->max_recv_tokens_per_rank < c->max_dispatch_tokens_per_rank) {
		return nep_invalid("max_recv_tokens_per_rank is %u, less than max_dispatch_tokens_per_rank, %u: raise it",
						   c->max_recv_tokens_per_rank, c->max_dispatch_tokens_per_rank);
	}
	if (c->max_token_bytes == 0 || c->max_token_bytes % 16 != 0) {
		return nep_invalid("max_token_bytes is %u: want a multiple of 16", c->max_token_bytes);
	}
	if (c->max_num_sms > 1024) {
		return nep_invalid("max_num_sms is %u: want 0 (%d) to 1024", c->max_num_sms, DEFAULT_SMS);
	}
	return NCCL_EP_SUCCESS;
}

/* Takes the caller's communicator, or makes one of its ranks. */
static ncclEpResult_t join(nep_group *g) {
	const int64_t minute = 60000, ms = 1000000;
	uint64_t timeout = g->config.timeout_ns;
	int64_t deadline = timeout == 0                         ? minute
					   : timeout < (uint64_t)ms             ? 1
					   : timeout / (uint64_t)ms > INT32_MAX ? INT32_MAX
															: (int64_t)(timeout / (uint64_t)ms);
	if (!nep_is_weft(g->given)) {
		NEP_TRY(nep_join_nccl(g->given, deadline, &g->comm));
		g->own = true;
	} else {
		g->comm = (weft_comm)g->given;
	}
	weft_comm_info info = {.size = sizeof info};
	NEP_WEFT(nep_lib.weft_comm_get(g->comm, &info));
	if (timeout != 0 && info.deadline_ms != deadline) {
		return nep_invalid("timeout_ns asks for %lld ms, and the weft_comm has a deadline of %lld ms: set "
						   "weft_comm_options.deadline_ms, and timeout_ns to 0",
						   (long long)deadline, (long long)info.deadline_ms);
	}
	g->rank = info.rank;
	g->ranks = info.ranks;
	g->engine = info.engine;
	return NCCL_EP_SUCCESS;
}

/* Refuses here, not at the first call that needs it, the values that all shapes share. */
static ncclEpResult_t check_spec(const nep_group *g) {
	nep_shape shape = {
		.topk = g->config.num_topk > 0 ? g->config.num_topk : 1, .payload = WEFT_PAYLOAD_OPAQUE, .row_bytes = 16};
	weft_ep_spec spec = spec_of(g, &shape);
	return nep_result(nep_lib.weft_ep_check(&spec, g->engine, g->ranks));
}

static ncclEpResult_t start(nep_group *g) {
	NEP_TRY(check_config(&g->config));
	NEP_TRY(join(g));
	NEP_TRY(check_spec(g));
	uint64_t id;
	NEP_TRY(nep_add(NEP_GROUP, g, &id));
	g->id = (ncclEpGroup_t)(uintptr_t)id;
	return NCCL_EP_SUCCESS;
}

static void discard(nep_group *g) {
	if (g->own) {
		nep_lib.weft_comm_destroy(g->comm);
	}
	pthread_mutex_destroy(&g->gate);
	free(g);
}

ncclEpResult_t ncclEpCreateGroup(ncclEpGroup_t *group, void *comm, const ncclEpGroupConfig_t *config) {
	NEP_TRY(nep_open());
	if (group == NULL || comm == NULL) {
		return nep_invalid("%s is NULL", group == NULL ? "group" : "comm");
	}
	NEP_TRY(nep_check_free(comm));
	nep_group *g = calloc(1, sizeof *g);
	if (g == NULL) {
		return nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for a group");
	}
	pthread_mutex_init(&g->gate, NULL);
	g->given = comm;
	const size_t first_version = 96;
	ncclEpResult_t result = NEP_STRUCT(g->config, config, first_version);
	if (result == NCCL_EP_SUCCESS) {
		result = start(g);
	}
	if (result != NCCL_EP_SUCCESS) {
		discard(g);
		return result;
	}
	*group = g->id;
	return NCCL_EP_SUCCESS;
}

/* Destroys the objects of the group. Objects that are still in use after the deadline remain; another call destroys
 * them. */
static ncclEpResult_t dismantle(nep_group *g) {
	for (nep_handle *h = g->handles; h != NULL; h = h->next) {
		nep_unroute(h);
	}
	while (g->exchanges != NULL) {
		nep_exchange *e = g->exchanges;
		weft_status status = nep_lib.weft_ep_destroy(e->ep);
		if (status == WEFT_ERROR_TIMEOUT || status == WEFT_ERROR_BUSY) {
			return nep_result(status);
		}
		g->exchanges = e->next;
		free(e);
	}
	while (g->handles != NULL) {
		nep_handle *h = g->handles;
		g->handles = h->next;
		nep_remove((uint64_t)(uintptr_t)h->id);
		nep_discard(h);
	}
	return NCCL_EP_SUCCESS;
}

ncclEpResult_t ncclEpGroupDestroy(ncclEpGroup_t group) {
	if (group == NULL) {
		return NCCL_EP_SUCCESS;
	}
	NEP_TRY(nep_open());
	nep_group *g;
	NEP_TRY(nep_enter_group(group, &g));
	ncclEpResult_t result = dismantle(g);
	if (result != NCCL_EP_SUCCESS) {
		nep_leave(g);
		return result;
	}
	nep_remove((uint64_t)(uintptr_t)g->id);
	nep_leave(g);
	discard(g);
	return NCCL_EP_SUCCESS;
}
