/*
 * The library on GPUs: ranks are threads, a GPU each, real or emulated. Each makes every exchange twice, on the GPUs
 * and on the host engine, and what comes out must be the same bits. The argument is the number of ranks.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { MOST_RANKS = 8, LOCAL = 3, TOPK = 3, HIDDEN = 256, MOST_TOKENS = 8, ARENA = 8 << 20 };

/* The GPUs: what a program of CUDA has, or what the emulated library offers in its place. */

static struct {
	int (*init)(unsigned int);
	int (*device)(int *, int);
	int (*retain)(void **, int);
	int (*enter)(void *);
	int (*alloc)(void **, size_t);
	int (*free)(void *);
	int (*copy)(void *, const void *, size_t, void *);
	int (*stream)(void **, unsigned int);
	int (*end)(void *);
	int (*await)(void *);
	void *(*emulated_alloc)(int, size_t);
	void *(*emulated_stream)(int);
} gpu;

static void find(void *function, void *library, const char *name) {
	*(void **)function = dlsym(library, name);
	TRUE(*(void **)function != NULL);
}

static void find_gpus(void) {
	*(void **)&gpu.emulated_alloc = dlsym(RTLD_DEFAULT, "weft_emulated_alloc");
	if (gpu.emulated_alloc != NULL) {
		find(&gpu.emulated_stream, RTLD_DEFAULT, "weft_emulated_stream");
		return;
	}
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	TRUE(driver != NULL);
	find(&gpu.init, driver, "cuInit");
	find(&gpu.device, driver, "cuDeviceGet");
	find(&gpu.retain, driver, "cuDevicePrimaryCtxRetain");
	find(&gpu.enter, driver, "cuCtxSetCurrent");
	find(&gpu.alloc, driver, "cuMemAlloc_v2");
	find(&gpu.free, driver, "cuMemFree_v2");
	find(&gpu.copy, driver, "cuMemcpyAsync");
	find(&gpu.stream, driver, "cuStreamCreate");
	find(&gpu.end, driver, "cuStreamDestroy_v2");
	find(&gpu.await, driver, "cuStreamSynchronize");
	TRUE(gpu.init(0) == 0);
}

static int emulated(void) { return gpu.emulated_alloc != NULL; }

/* One engine of a rank. */
typedef struct side {
	int engine;
	weft_comm comm;
	weft_stream stream; /* the caller's; NULL on the host */
	char *arena, *free_from;
	struct kept {
		const char *what;
		size_t from, bytes;
	} kept[512];
	int entries;
	char *log;
	size_t logged;
} side;

typedef struct rank {
	int number, ranks;
	void *stream;
	weft_comm meeting; /* of the host, where no rank is ever left out */
	weft_group meet;
	side sides[2]; /* the host, the GPU */
} rank;

static void copy(const rank *r, const side *s, void *to, const void *from, size_t bytes) {
	if (s->engine == WEFT_HOST || emulated()) {
		memcpy(to, from, bytes);
		return;
	}
	TRUE(gpu.copy(to, from, bytes, r->stream) == 0 && gpu.await(r->stream) == 0);
}

/* Memory of the side's engine, with what it is to hold, or with a pattern. */
static void *place(const rank *r, side *s, const void *from, size_t bytes) {
	char *to = s->free_from, *pattern = NULL;
	s->free_from += (bytes + 255) / 256 * 256;
	TRUE(s->free_from <= s->arena + ARENA);
	if (from == NULL && bytes > 0) {
		from = pattern = malloc(bytes);
		memset(pattern, 0xA5, bytes);
	}
	copy(r, s, to, from, bytes);
	free(pattern);
	return to;
}

/* Waits until the stream has passed, and keeps what stands somewhere then. */
static void keep(const rank *r, side *s, const char *what, const void *from, size_t bytes) {
	OK(weft_comm_wait(s->comm, s->stream));
	TRUE(s->entries < 512);
	s->kept[s->entries++] = (struct kept){what, s->logged, bytes};
	s->log = realloc(s->log, s->logged + bytes + 1);
	copy(r, s, s->log + s->logged, from, bytes);
	s->logged += bytes;
}

static void same(rank *r, const char *exchange) {
	side *host = &r->sides[0], *other = &r->sides[1];
	TRUE(host->entries == other->entries && host->entries > 0);
	for (int i = 0; i < host->entries; i++) {
		struct kept *a = &host->kept[i], *b = &other->kept[i];
		size_t at = 0;
		while (a->bytes == b->bytes && at < a->bytes && host->log[a->from + at] == other->log[b->from + at]) {
			at++;
		}
		if (a->bytes != b->bytes || at < a->bytes) {
			fprintf(stderr, "rank %d, %s: %s (%zu bytes, %zu on the host) differ from byte %zu on\n", r->number,
					exchange, a->what, b->bytes, a->bytes, at);
			exit(1);
		}
	}
	for (int i = 0; i < 2; i++) {
		side *s = &r->sides[i];
		s->entries = 0, s->logged = 0, s->free_from = s->arena;
	}
}

static void meet(rank *r) { OK(weft_barrier(r->meet, NULL)); }

/* Numbers that every type has exactly. */
static void fill(void *to, int type, size_t n, unsigned seed) {
	for (size_t i = 0; i < n; i++) {
		float v = (float)((int)((seed * 31 + i * 7 + i / 13) % 61) - 30) / 4;
		uint32_t bits;
		memcpy(&bits, &v, 4);
		if (type == WEFT_FLOAT32) {
			((float *)to)[i] = v;
		} else {
			((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
		}
	}
}

/* The batch of a rank: other numbers of tokens, selections that go nowhere, experts that nobody selects. */
typedef struct batch {
	int tokens;
	int32_t topk[MOST_TOKENS * TOPK];
	int64_t wide[MOST_TOKENS * TOPK];
	float weights[MOST_TOKENS * TOPK], others[MOST_TOKENS * TOPK];
} batch;

static batch batch_of(int number, int ranks) {
	batch b = {.tokens = (3 + 2 * number) % (MOST_TOKENS + 1)};
	int experts = ranks * LOCAL;
	for (int t = 0; t < b.tokens; t++) {
		for (int k = 0; k < TOPK; k++) {
			int i = t * TOPK + k, e = (5 * t + number + k * (1 + t % 2)) % (experts - 1);
			b.topk[i] = (t + k + number) % 6 == 5 ? -1 : e;
			for (int j = t * TOPK; j < i; j++) {
				b.topk[i] = b.topk[j] == e ? -1 : b.topk[i];
			}
			b.wide[i] = b.topk[i];
			b.weights[i] = 0.25f * (float)(k + 1) + (float)number;
			b.others[i] = 0.5f * (float)(t + 2 * k) - (float)number;
		}
	}
	return b;
}

/* What an exchange is like, beside its spec. */
typedef struct way {
	const char *name;
	weft_ep_spec spec;
	int wide, fused, halves; /* experts of 64 bits; routing travels with the rows; operations are cut in two */
	int stream;              /* 0: one of the program's, 1: the default one, 2: the communicator's own */
	weft_status status;      /* of the dispatch, or prepare */
} way;

static void streams(rank *r, side *s, const way *w) {
	if (s->engine == WEFT_GPU) {
		s->stream = w->stream == 0 ? r->stream : w->stream == 1 ? NULL : WEFT_STREAM_OWN;
	}
}

static size_t bytes_of(const weft_tensor *t) {
	static const size_t sizes[] = {0, 2, 2, 4, 8, 1, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1};
	size_t n = sizes[t->dtype];
	for (int i = 0; i < t->dims; i++) {
		n *= (size_t)t->shape[i];
	}
	return n;
}

/* Keeps the rows of a tensor that hold tokens: the others are nobody's. */
static void keep_rows(rank *r, side *s, const char *what, const weft_tensor *t, int64_t rows, const int32_t *sources) {
	size_t width = rows == 0 ? 0 : bytes_of(t) / (size_t)rows;
	for (int64_t i = 0; i < rows; i++) {
		if (sources[i] >= 0) {
			keep(r, s, what, (char *)t->data + (size_t)i * width, width);
		}
	}
}

/* Everything that a routing says. */
static int32_t *keep_routing(rank *r, side *s, weft_routing routing, int64_t *rows) {
	weft_routing_info info = {.size = sizeof info};
	OK(weft_routing_get(routing, &info));
	int64_t numbers[] = {info.tokens,     info.rows,   info.received,   info.demand,
						 info.selections, info.visits, info.remote_rows};
	s->kept[s->entries++] = (struct kept){"numbers of the routing", s->logged, sizeof numbers};
	s->log = realloc(s->log, s->logged + sizeof numbers);
	memcpy(s->log + s->logged, numbers, sizeof numbers);
	s->logged += sizeof numbers;
	int32_t *sources = malloc((size_t)info.rows * 4 + 4);
	for (int p = WEFT_EXPERT_COUNTS; p <= WEFT_SOURCE_SELECTIONS; p++) {
		static const char *const names[] = {
			"expert counts",         "expert demand", "padded counts",    "expert offsets", "ranges",
			"source counts",         "source ranks",  "source tokens",    "row weights",    "row experts",
			"row selection weights", "row demand",    "source selections"};
		weft_tensor t = {.size = sizeof t};
		OK(weft_routing_tensor(routing, p, &t));
		keep(r, s, names[p], t.data, bytes_of(&t));
		if (p == WEFT_SOURCE_RANKS) {
			TRUE(t.shape[0] == info.rows);
			copy(r, s, sources, t.data, (size_t)info.rows * 4);
		}
	}
	*rows = info.rows;
	return sources;
}

static weft_tensor token_rows(const rank *r, side *s, int type, int tokens, unsigned seed) {
	char raw[MOST_TOKENS * HIDDEN * 4];
	fill(raw, type, (size_t)tokens * HIDDEN, seed);
	return tensor(place(r, s, seed == 0 ? NULL : raw, (size_t)tokens * HIDDEN * (type == WEFT_FLOAT32 ? 4 : 2)),
				  (weft_dtype)type, tokens, HIDDEN);
}

static weft_status dispatch(side *s, weft_ep ep, const way *w, const weft_ep_dispatch_args *args,
							weft_ep_dispatch_result *got) {
	if (!w->halves) {
		return weft_ep_dispatch(ep, s->stream, args, got, NULL);
	}
	weft_work work;
	weft_status status = weft_ep_dispatch(ep, s->stream, args, NULL, &work);
	return status == WEFT_OK ? weft_work_receive(work, got) : status;
}

static void combine(side *s, weft_ep ep, const way *w, const weft_ep_combine_args *args) {
	weft_work work;
	OK(weft_ep_combine(ep, s->stream, args, w->halves ? &work : NULL));
	if (w->halves) {
		OK(weft_work_wait(work));
	}
}

/* A tensor like another, in memory that holds a pattern. */
static weft_tensor like(const rank *r, side *s, const weft_tensor *t) {
	weft_tensor other = *t;
	other.data = place(r, s, NULL, bytes_of(t));
	return other;
}

static weft_tensor like_part(const rank *r, side *s, weft_routing routing, int part) {
	weft_tensor t = {.size = sizeof t};
	OK(weft_routing_tensor(routing, part, &t));
	return t.dtype == WEFT_NONE ? t : like(r, s, &t);
}

/* Copies of all that was received. What lies between rows keeps its pattern. */
static void copies(const rank *r, side *s, const way *w, weft_ep ep, const weft_ep_dispatch_result *got) {
	weft_routing of = got->routing;
	weft_tensor all[] = {
		like(r, s, got->data),
		got->scales->dtype == WEFT_NONE ? *got->scales : like(r, s, got->scales),
		like_part(r, s, of, WEFT_SOURCE_TOKENS),
		like_part(r, s, of, WEFT_SOURCE_RANKS),
		like_part(r, s, of, WEFT_ROW_WEIGHTS),
		like_part(r, s, of, WEFT_ROW_EXPERTS),
		like_part(r, s, of, WEFT_ROW_SELECTION_WEIGHTS),
		like_part(r, s, of, WEFT_EXPERT_COUNTS),
		like_part(r, s, of, WEFT_RANGES),
		like_part(r, s, of, WEFT_SOURCE_COUNTS),
	};
	weft_ep_copy_args args = {
		.size = sizeof args,
		.received = got->received,
		.rows = &all[0],
		.scales = &all[1],
		.scale_order = w->spec.scale_order,
		.source_tokens = &all[2],
		.source_ranks = &all[3],
		.row_weights = &all[4],
		.row_experts = &all[5],
		.row_selection_weights = &all[6],
		.expert_counts = &all[7],
		.ranges = &all[8],
		.source_counts = &all[9],
	};
	OK(weft_ep_copy_received(ep, s->stream, &args));
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i].dtype != WEFT_NONE) {
			keep(r, s, "copies", all[i].data, bytes_of(&all[i]));
		}
	}
	weft_tensor wrong = all[0];
	wrong.shape[wrong.dims - 1]--;
	args.rows = &wrong;
	INVALID(weft_ep_copy_received(ep, s->stream, &args), "copy received: rows are");
	args.rows = got->data;
	INVALID(weft_ep_copy_received(ep, s->stream, &args), "overlap the received batch");
	args.received = NULL;
	NO_HANDLE(weft_ep_copy_received(ep, s->stream, &args), "");
}

/* One layer on one engine, by a handle that is there: forward, backward, with other weights. Everything that comes out
 * is kept. */
static void layer(rank *r, side *s, const way *w, weft_ep ep) {
	batch b = batch_of(r->number, r->ranks);
	int one = w->spec.layout == WEFT_RANK_MAJOR || w->spec.layout == WEFT_TOKEN_MAJOR,
		weighted = w->spec.weighting == WEFT_WEIGHTED;
	int output = w->spec.payload == WEFT_PAYLOAD_FP32 ? WEFT_FLOAT32 : WEFT_BFLOAT16,
		in = w->spec.quantize != 0 ? w->spec.quantize : output;
	size_t number = output == WEFT_FLOAT32 ? 4 : 2;
	weft_tensor topk = w->wide ? tensor(place(r, s, b.wide, (size_t)b.tokens * TOPK * 8), WEFT_INT64, b.tokens, TOPK)
							   : tensor(place(r, s, b.topk, (size_t)b.tokens * TOPK * 4), WEFT_INT32, b.tokens, TOPK);
	weft_tensor weights = tensor(place(r, s, b.weights, (size_t)b.tokens * TOPK * 4), WEFT_FLOAT32, b.tokens, TOPK);
	weft_tensor others = tensor(place(r, s, b.others, (size_t)b.tokens * TOPK * 4), WEFT_FLOAT32, b.tokens, TOPK);
	weft_tensor x = token_rows(r, s, in, b.tokens, 1 + (unsigned)r->number);
	weft_tensor rows = {.size = sizeof rows}, scales = {.size = sizeof scales};
	weft_ep_dispatch_args args = {.size = sizeof args, .rows = &x};
	weft_ep_dispatch_result got = {.size = sizeof got, .data = &rows, .scales = &scales};
	weft_status status = WEFT_OK;
	if (w->fused) {
		args.topk = &topk, args.weights = &weights;
	} else {
		status = weft_ep_prepare(ep, s->stream, &topk, &weights, &args.routing);
	}
	if (status == WEFT_OK) {
		status = dispatch(s, ep, w, &args, &got);
	}
	check(status, w->status, w->status == WEFT_OK ? "" : "capacity", w->name, __LINE__);
	if (w->status != WEFT_OK) {
		int blamed = weft_error_rank();
		s->stream = s->engine == WEFT_HOST ? NULL : r->stream;
		char *to = place(r, s, &blamed, sizeof blamed);
		keep(r, s, "the rank to blame", to, sizeof blamed);
		return;
	}
	int64_t n;
	int32_t *sources = keep_routing(r, s, got.routing, &n);
	keep_rows(r, s, "received rows", &rows, n, sources);
	if (scales.dtype != WEFT_NONE) {
		keep_rows(r, s, "received scales", &scales, n, sources);
	}
	copies(r, s, w, ep, &got);

	/* What the experts give: numbers of their own. */
	weft_tensor y = rows;
	y.dtype = output;
	char *raw = malloc((size_t)n * HIDDEN * number + 1);
	fill(raw, output, (size_t)n * HIDDEN, 100 + (unsigned)r->number);
	y.data = place(r, s, raw, (size_t)n * HIDDEN * number);
	weft_tensor bias = token_rows(r, s, output, b.tokens, 50), out = token_rows(r, s, output, b.tokens, 0),
				again = token_rows(r, s, output, b.tokens, 0);
	weft_ep_combine_args home = {
		.size = sizeof home, .routing = got.routing, .rows = &y, .out = &out, .bias = {&bias, NULL}};
	combine(s, ep, w, &home);
	keep(r, s, "combined rows", out.data, bytes_of(&out));
	weft_tensor buffer = {.size = sizeof buffer};
	OK(weft_ep_combine_buffer(ep, &buffer));
	if (buffer.dtype != WEFT_NONE) { /* the same from the memory that spares a copy */
		TRUE(s->engine == WEFT_GPU && (w->spec.layout == WEFT_TOKEN_MAJOR || w->spec.reduction == WEFT_EXACT) &&
			 buffer.shape[0] >= n);
		copy(r, s, buffer.data, raw, (size_t)n * HIDDEN * number);
		weft_tensor first = y;
		first.data = buffer.data;
		home.rows = &first, home.out = &again;
		combine(s, ep, w, &home);
		keep(r, s, "combined rows", again.data, bytes_of(&again));
		s->entries--, s->logged -= bytes_of(&again);
		TRUE(memcmp(s->log + s->logged, s->log + s->logged - bytes_of(&out), bytes_of(&out)) == 0);
		home.rows = &y;
	}

	/* Backward. */
	weft_tensor grad = token_rows(r, s, output, b.tokens, 77), grad_rows = y,
				grad_tokens = token_rows(r, s, output, b.tokens, 0), row_weights = {.size = sizeof row_weights};
	weft_tensor grad_weights = tensor(place(r, s, NULL, (size_t)b.tokens * TOPK * 4), WEFT_FLOAT32, b.tokens, TOPK);
	grad_rows.data = place(r, s, NULL, (size_t)n * HIDDEN * number);
	weft_ep_combine_backward_args back = {
		.size = sizeof back, .routing = got.routing, .grad_out = &grad, .grad_rows = &grad_rows};
	if (weighted) {
		back.rows = &y, back.grad_weights = &grad_weights;
	}
	OK(weft_ep_gradient_buffer(ep, &buffer));
	if (buffer.dtype != WEFT_NONE) { /* from the memory that spares a copy; the host has none */
		TRUE(s->engine == WEFT_GPU && buffer.shape[0] >= b.tokens && buffer.shape[1] == HIDDEN);
		copy(r, s, buffer.data, grad.data, bytes_of(&grad));
		grad.data = buffer.data;
	}
	OK(weft_ep_combine_backward(ep, s->stream, &back));
	keep_rows(r, s, "gradients of rows", &grad_rows, n, sources);
	keep(r, s, "gradients of weights", grad_weights.data, weighted ? bytes_of(&grad_weights) : 0);
	OK(weft_routing_tensor(got.routing, one ? WEFT_ROW_SELECTION_WEIGHTS : WEFT_ROW_WEIGHTS, &row_weights));
	weft_ep_dispatch_backward_args forth = {
		.size = sizeof forth,
		.routing = got.routing,
		.grad_rows = &y,
		.grad_row_weights = &row_weights,
		.grad_tokens = &grad_tokens,
		.grad_weights = &grad_weights,
	};
	OK(weft_ep_dispatch_backward(ep, s->stream, &forth));
	keep(r, s, "gradients of tokens", grad_tokens.data, bytes_of(&grad_tokens));
	keep(r, s, "weights that came home", grad_weights.data, bytes_of(&grad_weights));

	/* Other weights: where sums go by those of home, first there alone. */
	if (weighted && w->spec.reduction == WEFT_EXACT) {
		home.weights = &others, home.out = &again;
		combine(s, ep, w, &home);
		keep(r, s, "combined by weights at home", again.data, bytes_of(&again));
		home.weights = NULL;
		INVALID(weft_ep_combine_backward(ep, s->stream, &back), "sends them to no other");
		meet(r);
	}
	OK(weft_received_release(got.received));
	args.routing = got.routing, args.topk = NULL, args.weights = &others;
	OK(dispatch(s, ep, w, &args, &got));
	TRUE(got.routing == args.routing);
	free(keep_routing(r, s, got.routing, &n));
	keep_rows(r, s, "rows that came with weights", &rows, n, sources);
	home.out = &out;
	combine(s, ep, w, &home);
	keep(r, s, "combined by other weights", out.data, bytes_of(&out));
	OK(weft_received_release(got.received));
	OK(weft_routing_release(got.routing));
	OK(weft_comm_wait(s->comm, s->stream));
	free(sources);
	free(raw);
}

static void exchange(rank *r, const way *w) {
	for (int i = 0; i < 2; i++) {
		side *s = &r->sides[i];
		weft_ep ep;
		streams(r, s, w);
		OK(weft_ep_create(s->comm, &w->spec, &ep));
		weft_ep_info info = {.size = sizeof info};
		OK(weft_ep_get(ep, &info));
		TRUE(info.capacity > 0 && info.memory_bytes > 0 && (s->engine == WEFT_GPU) == (info.dispatch_sms > 0));
		layer(r, s, w, ep);
		OK(weft_ep_destroy(ep));
		meet(r);
	}
	same(r, w->name);
}

static weft_ep_spec spec_of(int ranks, int layout, int counts) {
	int one = layout == WEFT_RANK_MAJOR || layout == WEFT_TOKEN_MAJOR;
	return (weft_ep_spec){
		.size = sizeof(weft_ep_spec),
		.experts = ranks * LOCAL,
		.topk = TOPK,
		.hidden = HIDDEN,
		.max_tokens = MOST_TOKENS,
		.layout = layout,
		.counts = counts,
		.reduction = one ? WEFT_PARTIAL : WEFT_EXACT,
		.weighting = one ? WEFT_PLAIN : WEFT_WEIGHTED,
	};
}

static void exchanges(rank *r) {
	weft_ep_spec s;
	exchange(r, &(way){.name = "expert-major, exact",
					   .spec = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_DEVICE_COUNTS),
					   .wide = 1});
	exchange(r, &(way){.name = "expert-major, fused",
					   .spec = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_HOST_COUNTS),
					   .fused = 1,
					   .stream = 2});
	s = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_DEVICE_COUNTS);
	s.reduction = WEFT_PARTIAL, s.payload = WEFT_PAYLOAD_FP32;
	exchange(r,
			 &(way){.name = "expert-major, partial, fp32, in halves", .spec = s, .fused = 1, .halves = 1, .stream = 1});
	s = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_HOST_COUNTS);
	s.payload = WEFT_PAYLOAD_FP8, s.quantize = WEFT_BFLOAT16;
	exchange(r, &(way){.name = "expert-major, fp8", .spec = s});
	s = spec_of(r->ranks, WEFT_EXPERT_PACKED, WEFT_HOST_COUNTS);
	s.alignment = 4;
	exchange(r, &(way){.name = "expert-packed, exact sizes", .spec = s, .wide = 1});
	s.counts = WEFT_DEVICE_COUNTS, s.reduction = WEFT_PARTIAL;
	exchange(r, &(way){.name = "expert-packed, device counts, in halves", .spec = s, .halves = 1});
	s = spec_of(r->ranks, WEFT_EXPERT_PACKED, WEFT_HOST_COUNTS);
	s.payload = WEFT_PAYLOAD_FP8, s.quantize = WEFT_FLOAT32, s.power_of_two_scales = 1;
	exchange(r, &(way){.name = "expert-packed, fp8", .spec = s, .fused = 1, .stream = 2});
	exchange(r,
			 &(way){.name = "rank-major", .spec = spec_of(r->ranks, WEFT_RANK_MAJOR, WEFT_DEVICE_COUNTS), .fused = 1});
	exchange(r, &(way){.name = "rank-major, in halves",
					   .spec = spec_of(r->ranks, WEFT_RANK_MAJOR, WEFT_HOST_COUNTS),
					   .halves = 1,
					   .wide = 1});
	exchange(r,
			 &(way){.name = "token-major, exact sizes", .spec = spec_of(r->ranks, WEFT_TOKEN_MAJOR, WEFT_HOST_COUNTS)});
	s = spec_of(r->ranks, WEFT_TOKEN_MAJOR, WEFT_DEVICE_COUNTS);
	s.capacity = 5, s.overflow = WEFT_OVERFLOW_DROP;
	exchange(r, &(way){.name = "token-major, some dropped", .spec = s, .fused = 1, .stream = 1});
	s.counts = WEFT_HOST_COUNTS, s.capacity = 1, s.overflow = WEFT_OVERFLOW_REFUSE;
	exchange(r, &(way){.name = "token-major, too many", .spec = s, .status = WEFT_ERROR_OVERFLOW});
	weft_ep_kernel_tuning flags = {.size = sizeof flags, .protocol = 2, .threads = 128},
						  few = {.size = sizeof few, .threads = 64};
	s = spec_of(r->ranks, WEFT_RANK_MAJOR, WEFT_DEVICE_COUNTS);
	if (r->ranks > 1) { /* the host has nothing to be tuned */
		side *g = &r->sides[1];
		weft_ep ep;
		way tuned = {.name = "rank-major, tuned", .spec = s};
		OK(weft_ep_create(r->sides[0].comm, &s, &ep));
		layer(r, &r->sides[0], &tuned, ep);
		OK(weft_ep_destroy(ep));
		s.dispatch_tuning = &flags, s.combine_tuning = &few;
		streams(r, g, &tuned);
		OK(weft_ep_create(g->comm, &s, &ep));
		layer(r, g, &tuned, ep);
		OK(weft_ep_destroy(ep));
		same(r, tuned.name);
	}
}

static void windows(rank *r) {
	side *g = &r->sides[1];
	weft_window window;
	weft_window_info info = {.size = sizeof info};
	static int words[MOST_RANKS];
	words[r->number] = 4000 + r->number;
	for (int i = 0; i < 2; i++) {
		if (i == 0) {
			OK(weft_window_create(g->comm, 4096, &window));
		} else { /* of the program's own device memory, somewhere in an allocation */
			OK(weft_window_create_from_memory(g->comm, g->arena + 4096, 4096, &window));
		}
		OK(weft_window_get(window, &info));
		TRUE(info.bytes == 4096 && info.memory != NULL && (i == 0 || info.memory == g->arena + 4096));
		copy(r, g, info.memory, &words[r->number], sizeof words[0]);
		meet(r);
		for (int p = 0; p < r->ranks; p++) {
			void *peer;
			int word = 0;
			OK(weft_window_peer(window, p, &peer));
			copy(r, g, &word, peer, sizeof word);
			TRUE(word == 4000 + p);
		}
		meet(r);
		OK(weft_window_destroy(window));
		meet(r);
	}
	static char plain[4096];
	UNSUPPORTED(weft_window_create_from_memory(g->comm, plain, sizeof plain, &window),
				"host memory that CUDA does not know");
	TRUE(window == NULL);
	meet(r);
}

/* What is refused has not been made: it is made as it should be, and works. */
static void refusals(rank *r) {
	side *g = &r->sides[1];
	g->stream = r->stream;
	batch b = batch_of(r->number, r->ranks);
	weft_ep_spec spec = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_DEVICE_COUNTS);
	weft_ep ep;
	OK(weft_ep_create(g->comm, &spec, &ep));
	weft_tensor topk = tensor(place(r, g, b.topk, (size_t)b.tokens * TOPK * 4), WEFT_INT32, b.tokens, TOPK);
	weft_tensor weights = tensor(place(r, g, b.weights, (size_t)b.tokens * TOPK * 4), WEFT_FLOAT32, b.tokens, TOPK);
	weft_tensor x = token_rows(r, g, WEFT_BFLOAT16, b.tokens, 3), odd = x, rows = {.size = sizeof rows};
	weft_ep_dispatch_args args = {.size = sizeof args, .topk = &topk, .weights = &weights, .rows = &odd};
	weft_ep_dispatch_result got = {.size = sizeof got, .data = &rows};
	odd.data = (char *)x.data + 2;
	UNSUPPORTED(weft_ep_dispatch(ep, g->stream, &args, &got, NULL), "multiples of 16 bytes");
	args.rows = &x;
	if (emulated()) { /* a real driver follows the address of what is no stream */
		weft_stream none = (weft_stream)(uintptr_t)0x1238, another = gpu.emulated_stream((r->number + 1) % 4);
		REFUSED(weft_ep_dispatch(ep, none, &args, &got, NULL), WEFT_ERROR_SYSTEM, "");
		REFUSED(weft_comm_wait(g->comm, none), WEFT_ERROR_SYSTEM, "");
		REFUSED(weft_ep_dispatch(ep, another, &args, &got, NULL), WEFT_ERROR_SYSTEM, "");
	}
	OK(weft_ep_dispatch(ep, g->stream, &args, &got, NULL));
	weft_tensor out = token_rows(r, g, WEFT_BFLOAT16, b.tokens, 0), bytes = x;
	weft_ep_combine_args home = {.size = sizeof home, .routing = got.routing, .rows = &rows, .out = &out};
	bytes.dtype = WEFT_UINT8;
	home.out = &bytes;
	INVALID(weft_ep_combine(ep, g->stream, &home, NULL), "want bf16");
	home.out = &out;
	OK(weft_ep_combine(ep, g->stream, &home, NULL));
	OK(weft_comm_wait(g->comm, g->stream));
	weft_routing routing = got.routing;
	OK(weft_ep_destroy(ep));
	GONE(weft_routing_release(routing));
	GONE(weft_ep_dispatch(ep, g->stream, &args, &got, NULL));
	meet(r);

	/* A thread that waits no longer than it has said. The others are told, and all go on together. */
	if (r->ranks > 1) {
		weft_window window;
		way w = {.name = "after a rank has given up", .spec = spec_of(r->ranks, WEFT_EXPERT_PACKED, WEFT_HOST_COUNTS)};
		weft_ep handles[2];
		for (int i = 0; i < 2; i++) {
			OK(weft_ep_create(r->sides[i].comm, &w.spec, &handles[i]));
		}
		if (r->number == 0) {
			OK(weft_timeout_set(100));
			OK(weft_comm_wait(g->comm, g->stream)); /* nothing is there to wait for */
			REFUSED(weft_window_create(g->comm, 4096, &window), WEFT_ERROR_TIMEOUT,
					"the 100 ms that weft_timeout_set gives");
			OK(weft_timeout_set(0));
		} else {
			while (weft_comm_error(g->comm) == WEFT_OK) {
				usleep(1000);
			}
			REFUSED(weft_ep_prepare(handles[1], g->stream, &topk, &weights, &routing), WEFT_ERROR_ABORTED, "");
			TRUE(weft_error_rank() == 0);
		}
		meet(r);
		OK(weft_comm_set_mask(g->comm, NULL, 0));
		for (int i = 0; i < 2; i++) {
			streams(r, &r->sides[i], &w);
			r->sides[i].free_from = r->sides[i].arena;
			layer(r, &r->sides[i], &w, handles[i]);
			OK(weft_ep_destroy(handles[i]));
		}
		same(r, w.name);
	}
	g->free_from = g->arena;
	meet(r);
}

/* The layout step, which needs no other rank. */
static void count(rank *r) {
	side *g = &r->sides[1];
	g->stream = r->stream;
	batch b = batch_of(r->number, r->ranks);
	int experts = r->ranks * LOCAL;
	int32_t want[3][MOST_RANKS * LOCAL], have[MOST_RANKS * LOCAL];
	uint8_t in[MOST_TOKENS * MOST_RANKS], have_in[MOST_TOKENS * MOST_RANKS];
	weft_tensor host = tensor(b.topk, WEFT_INT32, b.tokens, TOPK);
	weft_ep_token_counts layout = {.size = sizeof layout,
								   .experts = experts,
								   .ranks = r->ranks,
								   .ranks_per_node = 1,
								   .rank_tokens = want[0],
								   .node_tokens = want[1],
								   .expert_selections = want[2],
								   .token_in_rank = in};
	OK(weft_ep_count(&host, &layout));
	weft_ep_token_counter counter;
	INVALID(weft_ep_token_counter_create(g->comm, experts, 2 * experts, 1, &counter), "equal shares");
	OK(weft_ep_token_counter_create(g->comm, experts, r->ranks, 1, &counter));
	weft_tensor topk = tensor(place(r, g, b.wide, (size_t)b.tokens * TOPK * 8), WEFT_INT64, b.tokens, TOPK);
	weft_tensor counts[3],
		tokens = tensor(place(r, g, NULL, (size_t)b.tokens * (size_t)r->ranks), WEFT_UINT8, b.tokens, r->ranks);
	for (int i = 0; i < 3; i++) {
		int n = i == 2 ? experts : r->ranks;
		counts[i] = tensor(place(r, g, NULL, (size_t)n * 4), WEFT_INT32, n, -1);
	}
	weft_ep_device_token_counts into = {.size = sizeof into};
	INVALID(weft_ep_token_counter_count(counter, g->stream, &topk, &into), "at least one");
	into.rank_tokens = &counts[2];
	INVALID(weft_ep_token_counter_count(counter, g->stream, &topk, &into), "tokens of ranks");
	into = (weft_ep_device_token_counts){.size = sizeof into,
										 .rank_tokens = &counts[0],
										 .node_tokens = &counts[1],
										 .expert_selections = &counts[2],
										 .token_in_rank = &tokens};
	OK(weft_ep_token_counter_count(counter, g->stream, &topk, &into));
	OK(weft_comm_wait(g->comm, g->stream));
	for (int i = 0; i < 3; i++) {
		size_t bytes = (size_t)(i == 2 ? experts : r->ranks) * 4;
		copy(r, g, have, counts[i].data, bytes);
		TRUE(memcmp(have, want[i], bytes) == 0);
	}
	copy(r, g, have_in, tokens.data, (size_t)b.tokens * (size_t)r->ranks);
	TRUE(memcmp(have_in, in, (size_t)b.tokens * (size_t)r->ranks) == 0);
	OK(weft_ep_token_counter_destroy(counter));
	GONE(weft_ep_token_counter_count(counter, g->stream, &topk, &into));
	g->free_from = g->arena;
	meet(r);
}

/* The elements that a collective of GPUs has written are these. */
static void written(rank *r, side *g, const float *want, const weft_tensor *t) {
	float got[MOST_RANKS * 40];
	OK(weft_comm_wait(g->comm, g->stream));
	copy(r, g, got, t->data, bytes_of(t));
	TRUE(memcmp(got, want, bytes_of(t)) == 0);
}

/* The collectives of GPUs, with parts of n numbers: what a rank gives to another is a number of both. */
static void collectives(rank *r, int n) {
	side *g = &r->sides[1];
	g->stream = r->stream;
	weft_group_options options = {.size = sizeof options, .staging = 1 << 20, .sms = 4};
	weft_group group;
	OK(weft_group_create(g->comm, &options, &group));
	int ranks = r->ranks, sum = ranks * (ranks - 1) / 2, root = ranks - 1, at_root = r->number == root;
	float in[MOST_RANKS * 40] = {0}, all[MOST_RANKS * 40] = {0}, one[40] = {0}, two = 2;
	for (int j = 0; j < ranks * n; j++) {
		in[j] = (float)(r->number * 100 + j / n * 10 + j % n % 7);
	}
	size_t bytes = (size_t)n * 4;
	weft_tensor parts = tensor(place(r, g, in, (size_t)ranks * bytes), WEFT_FLOAT32, ranks, n),
				part = tensor(parts.data, WEFT_FLOAT32, n, -1), outs = like(r, g, &parts), mine = like(r, g, &part);
	weft_tensor scalar = tensor(&two, WEFT_FLOAT32, 1, -1);

	OK(weft_barrier(group, g->stream));
	for (int i = 0; i < n; i++) {
		one[i] = (float)(100 * sum + ranks * (10 * r->number + i % 7));
	}
	OK(weft_reduce_scatter(group, g->stream, &mine, &parts, WEFT_SUM));
	written(r, g, one, &mine);
	for (int i = 0; i < n; i++) {
		one[i] = (float)(200 * sum + 2 * ranks * (i % 7));
	}
	for (int on_device = 0; on_device < 2; on_device++) {
		weft_collective_args args = {.size = sizeof args,
									 .collective = WEFT_ALL_REDUCE,
									 .op = WEFT_PREMULSUM,
									 .out = &mine,
									 .in = &part,
									 .scalar = &scalar,
									 .scalar_on_device = on_device};
		OK(weft_group_run(group, g->stream, &args));
		written(r, g, one, &mine);
		scalar.data = place(r, g, &two, sizeof two);
	}
	for (int i = 0; i < n; i++) {
		one[i] = (float)(root * 100 + i % 7);
	}
	OK(weft_reduce(group, g->stream, at_root ? &mine : NULL, &part, WEFT_MAX, root));
	if (at_root) {
		written(r, g, one, &mine);
	}
	weft_tensor other = like(r, g, &part);
	weft_collective_args out_of_place = {.size = sizeof out_of_place,
										 .collective = WEFT_BROADCAST,
										 .root = root,
										 .out = &other,
										 .in = at_root ? &part : NULL};
	OK(weft_group_run(group, g->stream, &out_of_place));
	written(r, g, one, &other);
	for (int i = 0; i < n; i++) {
		one[i] += (float)(10 * r->number);
	}
	OK(weft_scatter(group, g->stream, &mine, at_root ? &parts : NULL, root));
	written(r, g, one, &mine);
	for (int j = 0; j < ranks * n; j++) {
		all[j] = (float)(j / n * 100 + r->number * 10 + j % n % 7);
	}
	OK(weft_all_to_all(group, g->stream, &outs, &parts));
	written(r, g, all, &outs);
	for (int j = 0; j < ranks * n; j++) {
		all[j] = (float)(j / n * 100 + j % n % 7);
	}
	OK(weft_all_gather(group, g->stream, &outs, &part));
	written(r, g, all, &outs);
	outs = like(r, g, &outs);
	OK(weft_gather(group, g->stream, at_root ? &outs : NULL, &part, root));
	if (at_root) {
		written(r, g, all, &outs);
	}
	OK(weft_broadcast(group, g->stream, &part, 0));
	written(r, g, all, &part);

	/* What is started is waited for by the host, and by the communicator's own stream. */
	weft_collective_args args = {.size = sizeof args, .collective = WEFT_ALL_TO_ALL_V, .out = &outs, .in = &parts};
	int64_t counts[2][MOST_RANKS];
	for (int p = 0; p < ranks; p++) {
		counts[0][p] = n, counts[1][p] = (ranks - 1 - p) * n; /* the parts stand in reverse order */
		for (int i = 0; i < n; i++) {
			all[(ranks - 1 - p) * n + i] = (float)(p * 100 + r->number * 10 + i % 7);
		}
	}
	outs = like(r, g, &outs);
	args.send = args.recv = place(r, g, counts[0], sizeof counts[0]);
	args.recv_at = place(r, g, counts[1], sizeof counts[1]);
	for (int p = 0; p < ranks; p++) {
		counts[1][p] = p * n;
	}
	args.send_at = place(r, g, counts[1], sizeof counts[1]);
	args.counts_on_device = 1;
	weft_tensor again = tensor(place(r, g, in, (size_t)ranks * bytes), WEFT_FLOAT32, ranks, n);
	args.in = &again;
	weft_work work;
	weft_work_info info = {.size = sizeof info};
	OK(weft_group_start(group, g->stream, &args, &work));
	OK(weft_work_wait_on(work, WEFT_STREAM_OWN));
	OK(weft_comm_wait(g->comm, WEFT_STREAM_OWN));
	OK(weft_work_get(work, &info));
	TRUE(info.done && !info.captured && strncmp(info.algorithm, "all-to-all-v/", 13) == 0);
	OK(weft_work_wait(work));
	OK(weft_work_release(work));
	written(r, g, all, &outs);

	/* What a rank refuses it has not enqueued. */
	weft_tensor longer = tensor(mine.data, WEFT_FLOAT32, n + 1, -1);
	INVALID(weft_all_reduce(group, g->stream, &longer, &part, WEFT_SUM), "output of");
	OK(weft_barrier(group, g->stream));
	OK(weft_group_destroy(group));
	g->free_from = g->arena;
	meet(r);
}

/* The last rank is left out: handles that are there go on without it, on both engines alike. */
static void masks(rank *r) {
	int out = r->ranks - 1;
	way ways[] = {
		{.name = "expert-major, without a rank", .spec = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_DEVICE_COUNTS)},
		{.name = "expert-packed, without a rank",
		 .spec = spec_of(r->ranks, WEFT_EXPERT_PACKED, WEFT_HOST_COUNTS),
		 .fused = 1},
	};
	weft_ep eps[2][2];
	for (int i = 0; i < 2; i++) {
		for (int w = 0; w < 2; w++) {
			side *s = &r->sides[i];
			streams(r, s, &ways[w]);
			OK(weft_ep_create(s->comm, &ways[w].spec, &eps[i][w]));
			layer(r, s, &ways[w], eps[i][w]);
		}
	}
	same(r, "before a rank is left out");
	meet(r);
	if (r->number != out) {
		for (int i = 0; i < 2; i++) {
			OK(weft_comm_set_mask(r->sides[i].comm, &(uint64_t){(uint64_t)1 << out}, 1));
		}
	}
	meet(r);
	for (int w = 0; w < 2; w++) {
		for (int i = 0; i < 2; i++) {
			streams(r, &r->sides[i], &ways[w]);
			if (r->number != out) {
				layer(r, &r->sides[i], &ways[w], eps[i][w]);
			} else { /* where the others meet */
				meet(r);
			}
		}
		if (r->number != out) {
			same(r, ways[w].name);
		}
		meet(r);
	}
}

/* How ranks meet, and part. */

static char ids[3][WEFT_UNIQUE_ID_BYTES];
static int threads;

static void join(rank *r, const char *id, int engine, weft_comm *comm) {
	weft_comm_options options = {.size = sizeof options, .engine = engine, .gpu = r->number, .deadline_ms = 60000};
	weft_comm_info info = {.size = sizeof info};
	OK(weft_comm_create_with_id(id, r->number, r->ranks, &options, comm));
	OK(weft_comm_get(*comm, &info));
	TRUE(info.engine == engine && info.rank == r->number && info.ranks == r->ranks);
}

static void *play(void *number) {
	rank *r = calloc(1, sizeof *r);
	r->number = (int)(intptr_t)number;
	r->ranks = threads;
	join(r, ids[0], WEFT_HOST, &r->meeting);
	OK(weft_group_create(r->meeting, NULL, &r->meet));
	join(r, ids[1], WEFT_HOST, &r->sides[0].comm);
	join(r, ids[2], WEFT_GPU, &r->sides[1].comm);
	r->sides[1].engine = WEFT_GPU;
	r->sides[0].arena = aligned_alloc(256, ARENA);
	if (emulated()) {
		r->sides[1].arena = gpu.emulated_alloc(r->number, ARENA);
		r->stream = gpu.emulated_stream(r->number);
	} else {
		int device;
		void *context;
		TRUE(gpu.device(&device, r->number) == 0 && gpu.retain(&context, device) == 0 && gpu.enter(context) == 0);
		TRUE(gpu.alloc((void **)&r->sides[1].arena, ARENA) == 0 && gpu.stream(&r->stream, 1) == 0);
	}
	TRUE(r->sides[1].arena != NULL && r->stream != NULL);
	for (int i = 0; i < 2; i++) {
		r->sides[i].free_from = r->sides[i].arena;
	}
	meet(r);
	windows(r);
	exchanges(r);
	refusals(r);
	count(r);
	collectives(r, 1);
	collectives(r, 37);
	if (r->ranks > 1) {
		masks(r);
	}
	meet(r);
	OK(weft_comm_leave(r->sides[1].comm));
	weft_ep_spec spec = spec_of(r->ranks, WEFT_EXPERT_MAJOR, WEFT_DEVICE_COUNTS);
	weft_ep ep;
	REFUSED(weft_ep_create(r->sides[1].comm, &spec, &ep), WEFT_ERROR_CLOSED, "");
	meet(r);
	for (int i = 0; i < 2; i++) {
		OK(weft_comm_destroy(r->sides[i].comm));
	}
	meet(r);
	OK(weft_comm_destroy(r->meeting));
	if (!emulated()) {
		TRUE(gpu.end(r->stream) == 0 && gpu.free(r->sides[1].arena) == 0);
	}
	return NULL;
}

int main(int argc, char **argv) {
	threads = argc > 1 ? atoi(argv[1]) : 1;
	TRUE(threads >= 1 && threads <= MOST_RANKS);
	find_gpus();
	for (int i = 0; i < 3; i++) {
		OK(weft_unique_id_create(ids[i], "lo"));
	}
	run_threads(threads, play);
	printf("ok\n");
	return 0;
}
