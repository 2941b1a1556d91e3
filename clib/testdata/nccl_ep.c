/*
 * The NCCL EP face. The first argument says which of the scenarios below it plays; ranks are threads here, on the host
 * or on a GPU each, also with groups of communicators of NCCL's, or processes that a launcher has started, on the host.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "weft_nccl_ep.h"

enum { LOCAL = 3, MOST = 7, HIDDEN = 32, WIDEST = 3, MOST_RANKS = 4, ROWS = 256 };

#define EP(call) ep_check((call), NCCL_EP_SUCCESS, "", #call, __LINE__)
#define EP_REFUSED(call, result, words) ep_check((call), (result), (words), #call, __LINE__)
#define EP_INVALID(call, words) EP_REFUSED(call, NCCL_EP_INVALID_ARGUMENT, words)
#define EP_MISUSED(call, words) EP_REFUSED(call, NCCL_EP_INVALID_USAGE, words)

/* How every struct begins. */
#define HEAD(of) .size = sizeof(of), .magic = NCCL_EP_MAGIC

static void ep_check(ncclEpResult_t got, ncclEpResult_t want, const char *words, const char *call, int line) {
	if (got != want || (got != NCCL_EP_SUCCESS && (strstr(weft_error(), words) == NULL || weft_error()[0] == 0))) {
		fprintf(stderr, "line %d: %s: %d: %s; want %d and \"%s\"\n", line, call, (int)got,
				got == NCCL_EP_SUCCESS ? "" : weft_error(), (int)want, words);
		exit(1);
	}
}

/* A dispatch as most are. */
static ncclEpResult_t forward(ncclEpHandle_t h, ncclEpDispatchInputs_t *in, ncclEpDispatchOutputs_t *out) {
	return ncclEpDispatch(h, in, out, NULL, NULL, NULL);
}

/* A tensor of the caller's, with its sizes. */
typedef struct view {
	size_t sizes[2];
	ncclEpTensor_t t;
} view;

static ncclEpTensor_t *look(view *v, void *data, int type, size_t rows, size_t columns) {
	v->sizes[0] = rows;
	v->sizes[1] = columns;
	v->t = (ncclEpTensor_t){.size = sizeof v->t,
							.magic = NCCL_EP_TENSOR_MAGIC,
							.ndim = columns == 0 ? 1 : 2,
							.datatype = type,
							.data = data,
							.sizes = v->sizes};
	return &v->t;
}

/* Numbers of a type, few enough bits each to be exact in all of them. */

static size_t width(int type) { return type == NCCL_EP_FLOAT32 ? 4 : type == NCCL_EP_UINT8 ? 1 : 2; }

static void put(void *rows, int type, size_t i, float v) {
	uint32_t bits;
	memcpy(&bits, &v, 4);
	switch (type) {
	case NCCL_EP_FLOAT32: ((float *)rows)[i] = v; break;
	case NCCL_EP_BFLOAT16: ((uint16_t *)rows)[i] = (uint16_t)(bits >> 16); break;
	case NCCL_EP_FLOAT16:
		((uint16_t *)rows)[i] =
			v == 0 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xFF) - 112) << 10) | (bits >> 13 & 0x3FF));
		break;
	default: ((uint8_t *)rows)[i] = (uint8_t)v;
	}
}

static int is(const void *rows, int type, size_t i, float v) {
	uint8_t want[4];
	put(want, type, 0, v);
	return memcmp((const char *)rows + i * width(type), want, width(type)) == 0;
}

/* The model: what every rank routes, sends and receives, each of which all can work out. */

typedef struct layer {
	int topk, alignment, batch, type, ranks;
	int wide; /* the experts are int64 */
} layer;

/* Ranks send different numbers of tokens, and the last one, in every other batch, none. */
static int tokens_of(const layer *l, int rank) {
	return rank == l->ranks - 1 && l->batch % 2 == 1 ? 0 : MOST - (rank + l->batch) % 3;
}

static int expert_of(const layer *l, int rank, int t, int k) {
	if ((t + k + l->batch) % 6 == 5) {
		return -1;
	}
	return (rank + 2 * t + k + l->batch) % (LOCAL * l->ranks);
}

static float weight_of(int rank, int t, int k) { return (float)(rank + 1) + 0.25f * (float)t + 0.0625f * (float)k; }

static float element(const layer *l, int rank, int t, int i) {
	return (float)((rank * 5 + t * 3 + i + l->batch) % 13 + 1);
}

/* A row that a rank receives. */
typedef struct row {
	int rank, token, k, expert; /* rank is -1 for a pad */
} row;

typedef struct zones {
	int counts[LOCAL], offsets[LOCAL], sources[MOST_RANKS], total;
	row rows[ROWS];
} zones;

static zones model(const layer *l, int me) {
	zones z = {.total = 0};
	for (int e = 0; e < LOCAL; e++) {
		z.offsets[e] = z.total;
		for (int r = 0; r < l->ranks; r++) {
			for (int t = 0; t < tokens_of(l, r); t++) {
				for (int k = 0; k < l->topk; k++) {
					if (expert_of(l, r, t, k) == me * LOCAL + e) {
						z.rows[z.total++] = (row){r, t, k, e};
					}
				}
			}
		}
		while (z.total % l->alignment != 0) {
			z.rows[z.total++] = (row){-1, 0, 0, e};
		}
		z.counts[e] = z.total - z.offsets[e];
	}
	for (int r = 0; r < l->ranks; r++) {
		for (int t = 0; t < tokens_of(l, r); t++) {
			int here = 0;
			for (int k = 0; k < l->topk; k++) {
				int e = expert_of(l, r, t, k);
				here = here || (e >= 0 && e / LOCAL == me);
			}
			z.sources[r] += here;
		}
	}
	return z;
}

/* One rank: its group and what it sends and receives. */

typedef struct rank {
	weft_comm comm;
	weft_comm_info info;
	void *of; /* what groups are made of: that, or a communicator of NCCL's */
	ncclEpGroup_t group;
	ncclEpGroupConfig_t config;
	weft_window memory; /* on emulated GPUs, where all of this is the GPU's */
	size_t used;        /* of the pool */
	_Alignas(64) int64_t counts[LOCAL], total;
	_Alignas(64) int32_t offsets[LOCAL], sources[MOST_RANKS];
	_Alignas(64) int32_t narrow[MOST * WIDEST];
	_Alignas(64) int64_t wide[MOST * WIDEST];
	_Alignas(64) float weights[MOST * WIDEST];
	_Alignas(64) float row_weights[ROWS];
	_Alignas(64) float grad_weights[MOST * WIDEST];
	_Alignas(64) char x[MOST * HIDDEN * 4];
	_Alignas(64) char rows[ROWS * HIDDEN * 4];
	_Alignas(64) char out[MOST * HIDDEN * 4];
	_Alignas(64) char pool[1 << 14];
} rank;

/* What it takes to be on a real GPU: memory that the host and the GPU can both use. Emulated ones have none of it, for
 * their memory is the host's. */
static struct driver {
	int (*device)(int *device, int number);
	int (*retain)(void **context, int device);
	int (*enter)(void *context);
	int (*managed)(void **memory, size_t bytes, unsigned flags);
	int (*free)(void *memory);
	int (*copy)(void *to, const void *from, size_t bytes);
} driver;

static void find_driver(void) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library != NULL) {
		*(void **)&driver.device = dlsym(library, "cuDeviceGet");
		*(void **)&driver.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
		*(void **)&driver.enter = dlsym(library, "cuCtxSetCurrent");
		*(void **)&driver.managed = dlsym(library, "cuMemAllocManaged");
		*(void **)&driver.free = dlsym(library, "cuMemFree_v2");
		*(void **)&driver.copy = dlsym(library, "cuMemcpy");
	}
}

/* NCCL, where ranks meet through it, and what they have in common. */
typedef struct unique {
	char bytes[128];
} unique;

static struct nccl {
	unique id;
	int (*unique_id)(unique *id);
	int (*init)(void **comm, int ranks, unique id, int rank);
	int (*destroy)(void *comm);
	int (*alloc)(void **memory, size_t bytes);
	int (*free)(void *memory);
	int (*window)(void *comm, void *memory, size_t bytes, void **window, int flags);
	int (*unwindow)(void *comm, void *window);
	int says_where; /* its windows are; older ones do not say it */
} nccl;

static void find_nccl(void) {
	void *library = dlopen("libnccl.so.2", RTLD_NOW);
	TRUE(library != NULL);
	*(void **)&nccl.unique_id = dlsym(library, "ncclGetUniqueId");
	*(void **)&nccl.init = dlsym(library, "ncclCommInitRank");
	*(void **)&nccl.destroy = dlsym(library, "ncclCommDestroy");
	*(void **)&nccl.alloc = dlsym(library, "ncclMemAlloc");
	*(void **)&nccl.free = dlsym(library, "ncclMemFree");
	*(void **)&nccl.window = dlsym(library, "ncclCommWindowRegister");
	*(void **)&nccl.unwindow = dlsym(library, "ncclCommWindowDeregister");
	nccl.says_where = dlsym(library, "ncclWinGetUserPtr") != NULL;
	TRUE(nccl.unique_id(&nccl.id) == 0);
}

static int on_real_gpu(const weft_comm_info *info) { return info->engine == WEFT_GPU && driver.managed != NULL; }

/* Takes a rank's seat: memory where the rows of its communicator are, that the host can use as well. */
static rank *sit(weft_comm comm) {
	weft_comm_info info = {.size = sizeof info};
	weft_window_info memory = {.size = sizeof memory};
	weft_window window = NULL;
	OK(weft_comm_get(comm, &info));
	if (on_real_gpu(&info)) {
		int device;
		void *context;
		TRUE(driver.device(&device, info.rank) == 0 && driver.retain(&context, device) == 0 &&
			 driver.enter(context) == 0);
		TRUE(driver.managed(&memory.memory, sizeof(rank), 1) == 0);
	} else if (info.engine == WEFT_GPU) {
		OK(weft_window_create(comm, sizeof(rank), &window));
		OK(weft_window_get(window, &memory));
	} else {
		memory.memory = aligned_alloc(64, (sizeof(rank) + 63) / 64 * 64);
	}
	rank *r = memory.memory;
	memset(r, 0, sizeof *r);
	r->comm = r->of = comm;
	r->info = info;
	r->memory = window;
	return r;
}

static void leave(rank *r) {
	weft_comm comm = r->comm;
	if (on_real_gpu(&r->info)) {
		TRUE(driver.free(r) == 0);
	} else if (r->memory == NULL) {
		free(r);
	}
	OK(weft_comm_destroy(comm)); /* and the window */
}

/* Copies to or from a window. */
static void copy(const rank *r, void *to, const void *from, size_t bytes) {
	if (on_real_gpu(&r->info)) {
		TRUE(driver.copy(to, from, bytes) == 0);
	} else {
		memcpy(to, from, bytes);
	}
}

/* Waits until what was enqueued has happened. */
static void synchronize(const rank *r) { OK(weft_comm_wait(r->comm, NULL)); }

/* Memory of the seat's, until the next scenario. */
static void *take(rank *r, size_t bytes) {
	void *p = r->pool + r->used;
	r->used += (bytes + 63) / 64 * 64;
	TRUE(r->used <= sizeof r->pool);
	return p;
}

static ncclEpGroupConfig_t bounds(int rows) {
	ncclEpGroupConfig_t c = {
		HEAD(c),
		.version = NCCL_EP_VERSION,
		.algorithm = NCCL_EP_HIGH_THROUGHPUT,
		.max_dispatch_tokens_per_rank = MOST,
		.max_recv_tokens_per_rank = (unsigned)rows,
		.max_token_bytes = HIDDEN * 4,
		.max_num_sms = 4,
	};
	return c;
}

static void group(rank *r, ncclEpGroupConfig_t config) {
	config.num_experts = (unsigned)(LOCAL * r->info.ranks);
	r->config = config;
	EP(ncclEpCreateGroup(&r->group, r->of, &config));
}

static size_t memory_bytes(rank *r, const layer *l) {
	size_t bytes = 0;
	ncclEpHandleConfig_t config = {HEAD(config), .dispatch_output_per_expert_alignment = (size_t)l->alignment};
	EP(ncclEpHandleMemSize(r->group, NCCL_EP_EXPERT_MAJOR, &config, &bytes, l->topk));
	TRUE(bytes >= (size_t)(MOST * l->topk) * 8);
	return bytes;
}

/* Without memory the handle has its own. That would be the driver's, which is a fake where GPUs are emulated, so there
 * it is the seat's. */
static ncclEpHandle_t handle_on(rank *r, const layer *l, ncclEpTensor_t *memory) {
	ncclEpHandle_t h = NULL;
	view v;
	ncclEpHandleConfig_t config = {HEAD(config), .dispatch_output_per_expert_alignment = (size_t)l->alignment};
	if (memory == NULL && r->info.engine == WEFT_GPU) {
		size_t bytes = memory_bytes(r, l);
		memory = look(&v, take(r, bytes), NCCL_EP_UINT8, bytes, 0);
	}
	EP(ncclEpInitHandle(&h, r->group, NCCL_EP_EXPERT_MAJOR, &config, l->topk, memory));
	return h;
}

static ncclEpTensor_t *topk_of(rank *r, const layer *l, view *v) {
	int n = tokens_of(l, r->info.rank);
	for (int i = 0; i < n * l->topk; i++) {
		r->wide[i] = r->narrow[i] = expert_of(l, r->info.rank, i / l->topk, i % l->topk);
	}
	/* A rank without tokens has no memory for them either. */
	void *data = n == 0 ? NULL : l->wide ? (void *)r->wide : (void *)r->narrow;
	return look(v, data, l->wide ? NCCL_EP_INT64 : NCCL_EP_INT32, (size_t)n, (size_t)l->topk);
}

/* Gives the handle the batch, and checks what is counted. */
static void update(rank *r, const layer *l, ncclEpHandle_t h) {
	const zones z = model(l, r->info.rank);
	view topk, a, b, c, d;
	ncclEpLayoutInfo_t info = {
		HEAD(info),
		.expert_counters = look(&a, r->counts, NCCL_EP_INT64, LOCAL, 0),
		.src_rank_counters = look(&b, r->sources, NCCL_EP_INT32, (size_t)l->ranks, 0),
		.expert_offsets = look(&c, r->offsets, NCCL_EP_INT32, LOCAL, 0),
		.recv_total_counter = look(&d, &r->total, NCCL_EP_INT64, 1, 0),
	};
	EP(ncclEpUpdateHandle(h, topk_of(r, l, &topk), &info, NULL));
	synchronize(r);
	TRUE(r->total == z.total);
	for (int e = 0; e < LOCAL; e++) {
		TRUE(r->counts[e] == z.counts[e] && r->offsets[e] == z.offsets[e]);
	}
	for (int s = 0; s < l->ranks; s++) {
		TRUE(r->sources[s] == z.sources[s]);
	}
	memset(r->narrow, 0x55, sizeof r->narrow); /* the handle has its own */
	memset(r->wide, 0x55, sizeof r->wide);
}

static ncclEpTensor_t *weights_of(rank *r, const layer *l, view *v) {
	int n = tokens_of(l, r->info.rank);
	for (int i = 0; i < n * l->topk; i++) {
		r->weights[i] = weight_of(r->info.rank, i / l->topk, i % l->topk);
	}
	return look(v, n == 0 ? NULL : r->weights, NCCL_EP_FLOAT32, (size_t)n, (size_t)l->topk);
}

/* Rows of a tensor: as many as come, or more than the bound, which the library is to do without. */
static size_t room(const rank *r, int total) {
	return r->config.max_recv_tokens_per_rank > 0 ? r->config.max_recv_tokens_per_rank + 5 : (size_t)total;
}

static void dispatch(rank *r, const layer *l, ncclEpHandle_t h) {
	const zones z = model(l, r->info.rank);
	const int n = tokens_of(l, r->info.rank);
	view x, w, rows, rw;
	for (int i = 0; i < n * HIDDEN; i++) {
		put(r->x, l->type, (size_t)i, element(l, r->info.rank, i / HIDDEN, i % HIDDEN));
	}
	memset(r->rows, 0x7E, sizeof r->rows);
	memset(r->row_weights, 0x7E, sizeof r->row_weights);
	ncclEpDispatchInputs_t in = {
		HEAD(in),
		.tokens = look(&x, n == 0 ? NULL : r->x, l->type, (size_t)n, HIDDEN),
		.topk_weights = weights_of(r, l, &w),
	};
	ncclEpDispatchOutputs_t out = {
		HEAD(out),
		.tokens = look(&rows, r->rows, l->type, room(r, z.total), HIDDEN),
		.topk_weights = look(&rw, r->row_weights, NCCL_EP_FLOAT32, room(r, z.total), 0),
	};
	EP(forward(h, &in, &out));
	synchronize(r);
	for (int i = 0; i < z.total; i++) {
		const row *w = &z.rows[i];
		TRUE(r->row_weights[i] == (w->rank < 0 ? 0 : weight_of(w->rank, w->token, w->k)));
		for (int j = 0; j < HIDDEN; j++) {
			TRUE(is(r->rows, l->type, (size_t)(i * HIDDEN + j), w->rank < 0 ? 0 : element(l, w->rank, w->token, j)));
		}
	}
	/* Nothing is written behind the last zone; on GPUs behind the group's bound. */
	int written = r->info.engine == WEFT_GPU ? (int)room(r, z.total) : z.total;
	for (size_t i = (size_t)(written * HIDDEN) * width(l->type); i < sizeof r->rows; i++) {
		TRUE(r->rows[i] == 0x7E);
	}
}

/* Every expert multiplies its rows by its number among the rank's, and one more. */
static void combine(rank *r, const layer *l, ncclEpHandle_t h, ncclEpTensor_t *given) {
	const zones z = model(l, r->info.rank);
	const int n = tokens_of(l, r->info.rank);
	view rows, out;
	for (int i = 0; i < z.total * HIDDEN; i++) {
		const row *w = &z.rows[i / HIDDEN];
		put(r->rows, l->type, (size_t)i,
			w->rank < 0 ? 99 : (float)(w->expert + 1) * element(l, w->rank, w->token, i % HIDDEN));
	}
	if (given != NULL) {
		copy(r, given->data, r->rows, (size_t)(z.total * HIDDEN) * width(l->type));
	}
	memset(r->out, 0x7E, sizeof r->out);
	ncclEpCombineInputs_t in = {
		HEAD(in),
		.tokens = given != NULL ? given : look(&rows, r->rows, l->type, room(r, z.total), HIDDEN),
	};
	ncclEpCombineOutputs_t sums = {HEAD(sums),
								   .tokens = look(&out, n == 0 ? NULL : r->out, l->type, (size_t)n, HIDDEN)};
	EP(ncclEpCombine(h, &in, &sums, NULL, NULL));
	synchronize(r);
	for (int i = 0; i < n * HIDDEN; i++) {
		float sum = 0;
		for (int k = 0; k < l->topk; k++) {
			int e = expert_of(l, r->info.rank, i / HIDDEN, k);
			sum += e < 0 ? 0 : (float)(e % LOCAL + 1) * element(l, r->info.rank, i / HIDDEN, i % HIDDEN);
		}
		TRUE(is(r->out, l->type, (size_t)i, sum));
	}
}

/* The gradient of combine is a dispatch without weights, that of dispatch a combine with them. */
static void backward(rank *r, const layer *l, ncclEpHandle_t h) {
	const zones z = model(l, r->info.rank);
	const int n = tokens_of(l, r->info.rank);
	view x, rows, rw, sums, w;
	ncclEpDispatchConfig_t back = {HEAD(back), .pass_direction = NCCL_EP_BACKWARD};
	ncclEpCombineConfig_t home = {HEAD(home), .pass_direction = NCCL_EP_BACKWARD};
	for (int i = 0; i < n * HIDDEN; i++) {
		put(r->x, l->type, (size_t)i, element(l, r->info.rank, i / HIDDEN, i % HIDDEN) + 1);
	}
	memset(r->rows, 0x7E, sizeof r->rows);
	ncclEpDispatchInputs_t in = {HEAD(in), .tokens = look(&x, n == 0 ? NULL : r->x, l->type, (size_t)n, HIDDEN)};
	ncclEpDispatchOutputs_t out = {HEAD(out), .tokens = look(&rows, r->rows, l->type, room(r, z.total), HIDDEN)};
	EP(ncclEpDispatch(h, &in, &out, NULL, &back, NULL));
	synchronize(r);
	for (int i = 0; i < z.total * HIDDEN; i++) {
		const row *v = &z.rows[i / HIDDEN];
		TRUE(is(r->rows, l->type, (size_t)i, v->rank < 0 ? 0 : element(l, v->rank, v->token, i % HIDDEN) + 1));
	}

	for (int i = 0; i < z.total; i++) {
		const row *v = &z.rows[i];
		r->row_weights[i] = v->rank < 0 ? 77 : 100.0f * weight_of(v->rank, v->token, v->k);
	}
	memset(r->out, 0x7E, sizeof r->out);
	memset(r->grad_weights, 0x7E, sizeof r->grad_weights);
	ncclEpCombineInputs_t grads = {
		HEAD(grads),
		.tokens = &rows.t,
		.topk_weights = look(&rw, r->row_weights, NCCL_EP_FLOAT32, room(r, z.total), 0),
	};
	ncclEpCombineOutputs_t to = {
		HEAD(to),
		.tokens = look(&sums, n == 0 ? NULL : r->out, l->type, (size_t)n, HIDDEN),
		.topk_weights = look(&w, n == 0 ? NULL : r->grad_weights, NCCL_EP_FLOAT32, (size_t)n, (size_t)l->topk),
	};
	EP(ncclEpCombine(h, &grads, &to, &home, NULL));
	synchronize(r);
	for (int t = 0; t < n; t++) {
		int selected = 0;
		for (int k = 0; k < l->topk; k++) {
			int some = expert_of(l, r->info.rank, t, k) >= 0;
			selected += some;
			TRUE(r->grad_weights[t * l->topk + k] == (some ? 100.0f * weight_of(r->info.rank, t, k) : 0));
		}
		for (int i = 0; i < HIDDEN; i++) {
			TRUE(is(r->out, l->type, (size_t)(t * HIDDEN + i), (float)selected * (element(l, r->info.rank, t, i) + 1)));
		}
	}
}

static const int types[] = {NCCL_EP_FLOAT32, NCCL_EP_BFLOAT16, NCCL_EP_FLOAT16};

/* Layers of different top-k and alignment at once in one group, batch after batch, in all types. */
static void layers(rank *r) {
	enum { HANDLES = 3 };
	layer l[HANDLES] = {
		{.topk = 2, .alignment = 4}, {.topk = 3, .alignment = 16, .wide = 1}, {.topk = 1, .alignment = 1}};
	ncclEpHandle_t h[HANDLES];
	for (int i = 0; i < HANDLES; i++) {
		l[i].ranks = r->info.ranks;
		view v;
		size_t bytes = memory_bytes(r, &l[i]);
		h[i] = handle_on(r, &l[i], i == 2 ? NULL : look(&v, take(r, bytes), NCCL_EP_UINT8, bytes, 0));
	}
	for (int batch = 0; batch < 6; batch++) {
		for (int i = 0; i < HANDLES; i++) {
			l[i].batch = batch + i;
			l[i].type = types[(batch + i) % 3];
			update(r, &l[i], h[i]);
		}
		for (int i = 0; i < HANDLES; i++) {
			dispatch(r, &l[i], h[i]);
		}
		for (int i = HANDLES - 1; i >= 0; i--) {
			combine(r, &l[i], h[i], NULL);
			backward(r, &l[i], h[i]);
		}
	}
	for (int i = 0; i < HANDLES; i++) {
		EP(ncclEpHandleDestroy(h[i]));
	}
}

/* What was prepared by one handle is there for another, on the same memory or on a copy of it. */
static void relocate(rank *r) {
	layer l = {.topk = 2, .alignment = 8, .batch = 2, .wide = 1, .ranks = r->info.ranks, .type = NCCL_EP_FLOAT32};
	size_t bytes = memory_bytes(r, &l);
	char *first = take(r, bytes), *second = take(r, bytes);
	view v;
	memset(first, 0x11, bytes);
	ncclEpHandle_t h = handle_on(r, &l, look(&v, first, NCCL_EP_UINT8, bytes, 0));
	ncclEpDispatchInputs_t in = {HEAD(in)};
	ncclEpDispatchOutputs_t out = {HEAD(out)};
	EP_MISUSED(forward(h, &in, &out), "call ncclEpUpdateHandle first");
	update(r, &l, h);
	dispatch(r, &l, h);
	EP(ncclEpHandleDestroy(h));
	memcpy(second, first, bytes);
	memset(first, 0x22, bytes);

	h = handle_on(r, &l, look(&v, second, NCCL_EP_UINT8, bytes, 0));
	combine(r, &l, h, NULL);
	backward(r, &l, h);
	dispatch(r, &l, h);
	EP(ncclEpHandleDestroy(h));

	/* It says what it is: a handle of another layer is told so. */
	l.alignment = 4;
	h = handle_on(r, &l, look(&v, second, NCCL_EP_UINT8, bytes, 0));
	EP_MISUSED(forward(h, &in, &out), "alignment 8");
	EP(ncclEpHandleDestroy(h));
}

/* As many rows as come. */
static void eager(rank *r) {
	ncclEpGroupConfig_t c = bounds(0);
	layer l = {.topk = 3, .alignment = 8, .ranks = r->info.ranks, .type = NCCL_EP_BFLOAT16};
	group(r, c);
	ncclEpHandle_t h = handle_on(r, &l, NULL);
	for (l.batch = 0; l.batch < 3; l.batch++) {
		update(r, &l, h);
		dispatch(r, &l, h);
		combine(r, &l, h, NULL);
		backward(r, &l, h);
	}
	EP(ncclEpGroupDestroy(r->group));
}

/* Rows that cannot all be taken: refused on every rank, who learn how many there would be, or left out. */
static void overflow(rank *r) {
	layer l = {.topk = 2, .alignment = 8, .ranks = r->info.ranks, .type = NCCL_EP_FLOAT32};
	int most = 0, mine = model(&l, r->info.rank).total;
	for (int p = 0; p < r->info.ranks; p++) {
		int total = model(&l, p).total;
		most = total > most ? total : most;
	}
	ncclEpGroupConfig_t c = bounds(most - 1);
	TRUE(most - 1 >= MOST);
	for (int drop = 0; drop < 2; drop++) {
		view topk, a, b;
		ncclEpLayoutInfo_t info = {
			HEAD(info),
			.recv_total_counter = look(&a, &r->total, NCCL_EP_INT64, 1, 0),
			.expert_counters = look(&b, r->offsets, NCCL_EP_INT32, LOCAL, 0),
		};
		r->total = -1;
		c.overflow_policy = drop ? NCCL_EP_OVERFLOW_DROP : NCCL_EP_OVERFLOW_TRAP;
		group(r, c);
		size_t bytes = memory_bytes(r, &l);
		ncclEpHandle_t h = handle_on(r, &l, look(&a, take(r, bytes), NCCL_EP_UINT8, bytes, 0));
		EP(ncclEpUpdateHandle(h, look(&topk, NULL, NCCL_EP_INT32, 0, (size_t)l.topk), NULL,
							  NULL)); /* a batch of nothing, which is to be gone */
		look(&a, &r->total, NCCL_EP_INT64, 1, 0);
		if (!drop && r->info.engine == WEFT_GPU) { /* where it is known late: by the next call at the latest, if that
													  comes after the first one's end */
			int refused = 0;
			for (int i = 0; i < 2; i++) {
				ncclEpResult_t result = ncclEpUpdateHandle(h, topk_of(r, &l, &topk), &info, NULL);
				TRUE(result == NCCL_EP_SUCCESS || (result == NCCL_EP_INVALID_USAGE &&
												   strstr(weft_error(), "raise max_recv_tokens_per_rank") != NULL));
				refused += result != NCCL_EP_SUCCESS;
				synchronize(r);
				TRUE(r->total == mine);
			}
			TRUE((refused > 0) == (mine == most));
		} else if (!drop) {
			EP_MISUSED(ncclEpUpdateHandle(h, topk_of(r, &l, &topk), &info, NULL), "rows");
			TRUE(r->total == mine && model(&l, weft_error_rank()).total == most);
			ncclEpDispatchInputs_t in = {HEAD(in)};
			ncclEpDispatchOutputs_t out = {HEAD(out)};
			EP_MISUSED(forward(h, &in, &out), "ncclEpUpdateHandle first");
		} else {
			EP(ncclEpUpdateHandle(h, topk_of(r, &l, &topk), &info, NULL));
			int kept = 0;
			synchronize(r);
			for (int e = 0; e < LOCAL; e++) {
				kept += r->offsets[e];
			}
			TRUE(r->total == mine && kept == (mine < most - 1 ? mine : most - 1));
		}
		EP(ncclEpGroupDestroy(r->group));
	}

	/* The way out: room for what was asked for. */
	group(r, bounds(most));
	ncclEpHandle_t h = handle_on(r, &l, NULL);
	update(r, &l, h);
	dispatch(r, &l, h);
	combine(r, &l, h, NULL);
	EP(ncclEpGroupDestroy(r->group));
}

/* Rows and scales of any bits. */
static void scaled(rank *r) {
	enum { SCALES = 16 };
	layer l = {.topk = 2, .alignment = 4, .ranks = r->info.ranks, .type = NCCL_EP_UINT8};
	ncclEpHandle_t h = handle_on(r, &l, NULL);
	for (int back = 0; back < 2; back++) {
		l.batch = back;
		update(r, &l, h);
		const zones z = model(&l, r->info.rank);
		const int n = tokens_of(&l, r->info.rank);
		uint8_t (*in_scales)[SCALES] = take(r, MOST * SCALES), (*out_scales)[SCALES] = take(r, ROWS * SCALES);
		for (int i = 0; i < n * HIDDEN; i++) {
			put(r->x, l.type, (size_t)i, element(&l, r->info.rank, i / HIDDEN, i % HIDDEN));
		}
		for (int i = 0; i < n * SCALES; i++) {
			in_scales[i / SCALES][i % SCALES] = (uint8_t)(200 + element(&l, r->info.rank, i / SCALES, i % SCALES));
		}
		view x, w, s, rows, rs;
		ncclEpDispatchConfig_t config = {
			HEAD(config),
			.pass_direction = back ? NCCL_EP_BACKWARD : NCCL_EP_FORWARD,
			.quant_recipe = NCCL_EP_DISPATCH_FORWARD_SCALES,
		};
		ncclEpDispatchInputs_t in = {
			HEAD(in),
			.tokens = look(&x, r->x, NCCL_EP_FLOAT8_E4M3, (size_t)n, HIDDEN),
			.topk_weights = back ? NULL : weights_of(r, &l, &w),
			.scales = look(&s, in_scales, NCCL_EP_UINT8, (size_t)n, SCALES),
		};
		ncclEpDispatchOutputs_t out = {
			HEAD(out),
			.tokens = look(&rows, r->rows, NCCL_EP_FLOAT8_E4M3, room(r, 0), HIDDEN),
			.scales = look(&rs, out_scales, NCCL_EP_UINT8, room(r, 0), SCALES),
		};
		EP(ncclEpDispatch(h, &in, &out, NULL, &config, NULL));
		synchronize(r);
		for (int i = 0; i < z.total; i++) {
			const row *v = &z.rows[i];
			for (int j = 0; j < HIDDEN; j++) {
				TRUE(
					is(r->rows, l.type, (size_t)(i * HIDDEN + j), v->rank < 0 ? 0 : element(&l, v->rank, v->token, j)));
			}
			for (int j = 0; j < SCALES; j++) {
				TRUE(out_scales[i][j] == (v->rank < 0 ? 0 : (uint8_t)(200 + element(&l, v->rank, v->token, j))));
			}
		}
		l.type = NCCL_EP_BFLOAT16; /* what the experts make of them are numbers */
		combine(r, &l, h, NULL);
		l.type = NCCL_EP_UINT8;
	}
	EP(ncclEpHandleDestroy(h));
}

static void window_open(rank *r, size_t bytes, void **window, void **memory) {
	if (r->of == r->comm) {
		weft_window made;
		weft_window_info info = {.size = sizeof info};
		OK(weft_window_create(r->comm, bytes, &made));
		OK(weft_window_get(made, &info));
		*window = made, *memory = info.memory;
		return;
	}
	TRUE(nccl.alloc(memory, bytes) == 0 && nccl.window(r->of, *memory, bytes, window, 0) == 0);
}

static void window_close(rank *r, void *window, void *memory) {
	if (r->of == r->comm) {
		OK(weft_window_destroy(window));
		return;
	}
	TRUE(nccl.unwindow(r->of, window) == 0 && nccl.free(memory) == 0);
}

/* With zero copy, what peers reach lies in windows: a window and an offset say where. */
static void windows(rank *r) {
	enum { OFFSET = 4096 };
	ncclEpGroupConfig_t c = bounds(96);
	layer l = {.topk = 2, .alignment = 4, .ranks = r->info.ranks, .type = NCCL_EP_FLOAT32};
	c.zero_copy = NCCL_EP_ZERO_COPY_ON;
	group(r, c);
	ncclEpHandle_t h = handle_on(r, &l, NULL);
	void *window, *memory;
	window_open(r, OFFSET + 96 * HIDDEN * 4, &window, &memory);
	update(r, &l, h);
	view x, w, rows;
	const int n = tokens_of(&l, r->info.rank);
	for (int i = 0; i < n * HIDDEN; i++) {
		put(r->x, l.type, (size_t)i, element(&l, r->info.rank, i / HIDDEN, i % HIDDEN));
	}
	ncclEpDispatchInputs_t in = {
		HEAD(in),
		.tokens = look(&x, r->x, l.type, (size_t)n, HIDDEN),
		.topk_weights = weights_of(r, &l, &w),
	};
	ncclEpDispatchOutputs_t out = {HEAD(out), .tokens = look(&rows, NULL, l.type, 96, HIDDEN)};
	EP_INVALID(forward(h, &in, &out), "at NULL");
	rows.t.data = r->rows;
	EP_INVALID(forward(h, &in, &out), "lies in no window");
	rows.t.data = NULL, rows.t.win_hdl = window, rows.t.win_offset = OFFSET + 16;
	if (r->of == r->comm) {
		EP_INVALID(forward(h, &in, &out), "do not fit into its window");
	} else if (!nccl.says_where) {
		EP_INVALID(forward(h, &in, &out), "give the tensor its data, too");
		rows.t.data = (char *)memory + OFFSET;
	}
	rows.t.win_offset = OFFSET;
	EP(forward(h, &in, &out));
	synchronize(r);
	const zones z = model(&l, r->info.rank);
	copy(r, r->rows, (char *)memory + OFFSET, (size_t)(z.total * HIDDEN) * width(l.type));
	for (int i = 0; i < z.total * HIDDEN; i++) {
		const row *v = &z.rows[i / HIDDEN];
		TRUE(is(r->rows, l.type, (size_t)i, v->rank < 0 ? 0 : element(&l, v->rank, v->token, i % HIDDEN)));
	}
	rows.t.data = (char *)memory + OFFSET;
	combine(r, &l, h, &rows.t);
	EP(ncclEpGroupDestroy(r->group));
	window_close(r, window, memory);
}

/* Init, shutdown, init again; a second group on one communicator, and what is destroyed. */
static void again(rank *r) {
	layer l = {.topk = 2, .alignment = 2, .ranks = r->info.ranks, .type = NCCL_EP_FLOAT32};
	for (int i = 0; i < 3; i++) {
		group(r, bounds(96));
		ncclEpGroup_t second = NULL;
		EP_MISUSED(ncclEpCreateGroup(&second, r->of, &r->config),
				   "call ncclEpGroupDestroy before another ncclEpCreateGroup");
		TRUE(second == NULL);
		ncclEpHandle_t h = handle_on(r, &l, NULL), other = handle_on(r, &l, NULL);
		update(r, &l, h);
		dispatch(r, &l, h);
		EP(ncclEpHandleDestroy(other));
		EP_INVALID(ncclEpHandleDestroy(other), "destroyed before");
		EP(ncclEpGroupDestroy(r->group));
		EP_INVALID(ncclEpGroupDestroy(r->group), "destroyed before");
		EP_INVALID(ncclEpHandleDestroy(h), "destroyed before");
	}
}

/* Calls on a group take turns: while one waits for the other ranks, a second is refused. Where ranks are threads they
 * can wait for that. */
static int threads;
static volatile int refused;

static void *second(void *argument) {
	rank *r = argument;
	size_t bytes;
	ncclEpResult_t result = NCCL_EP_SUCCESS;
	for (int i = 0; i < 10000 && result == NCCL_EP_SUCCESS; i++) {
		usleep(1000);
		result = ncclEpHandleMemSize(r->group, NCCL_EP_EXPERT_MAJOR, NULL, &bytes, 2);
	}
	ep_check(result, NCCL_EP_INVALID_USAGE, "another thread is inside a call", "a second call", __LINE__);
	refused = 1;
	return NULL;
}

static void turns(rank *r) {
	if (threads < 2 || r->info.engine == WEFT_GPU) {
		return;
	}
	layer l = {.topk = 2, .alignment = 1, .ranks = r->info.ranks, .type = NCCL_EP_FLOAT32};
	pthread_t other;
	group(r, bounds(96));
	ncclEpHandle_t h = handle_on(r, &l, NULL);
	update(r, &l, h);
	if (r->info.rank == 0) {
		TRUE(pthread_create(&other, NULL, second, r) == 0);
	}
	while (r->info.rank != 0 && !refused) {
		usleep(1000);
	}
	view topk;
	ncclEpResult_t result;
	do { /* this one may be the one that is refused */
		result = ncclEpUpdateHandle(h, topk_of(r, &l, &topk), NULL, NULL);
	} while (result == NCCL_EP_INVALID_USAGE && strstr(weft_error(), "another thread") != NULL);
	TRUE(result == NCCL_EP_SUCCESS);
	if (r->info.rank == 0) {
		TRUE(pthread_join(other, NULL) == 0);
	}
	EP(ncclEpGroupDestroy(r->group));
}

static void bounded(rank *r) {
	group(r, bounds(96));
	layers(r);
	relocate(r);
	scaled(r);
	EP(ncclEpGroupDestroy(r->group));
}

static void exchange(rank *r) {
	void (*const scenarios[])(rank *) = {bounded, eager, overflow, windows, turns, again};
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		r->used = 0;
		scenarios[i](r);
	}
}

/* Ranks as threads, which meet by an id. */

static char id[WEFT_UNIQUE_ID_BYTES];
static weft_engine engine;

static void *thread(void *number) {
	int me = (int)(intptr_t)number;
	weft_comm comm;
	weft_comm_options options = {
		.size = sizeof options, .engine = (int32_t)engine, .gpu = engine == WEFT_GPU ? me : 0, .deadline_ms = 40000};
	OK(weft_comm_create_with_id(id, me, threads, &options, &comm));
	rank *r = sit(comm);
	TRUE(r->info.engine == (int32_t)engine);
	if (nccl.init != NULL) {
		TRUE(nccl.init(&r->of, threads, nccl.id, me) == 0);
	}
	exchange(r);
	if (nccl.init != NULL) {
		TRUE(nccl.destroy(r->of) == 0);
	}
	leave(r);
	return NULL;
}

static void in_threads(int n) {
	threads = n;
	OK(weft_unique_id_create(id, "lo"));
	run_threads(n, thread);
}

/* The last rank dies while the others wait for it: the others are told so before their deadline, and of whom. */
static void death(rank *r) {
	layer l = {.topk = 2, .alignment = 4, .ranks = r->info.ranks, .type = NCCL_EP_FLOAT32};
	group(r, bounds(96));
	ncclEpHandle_t h = handle_on(r, &l, NULL);
	update(r, &l, h);
	dispatch(r, &l, h);
	weft_group meeting;
	OK(weft_group_create(r->comm, NULL, &meeting));
	OK(weft_barrier(meeting, NULL)); /* all have what was dispatched */
	if (r->info.rank == r->info.ranks - 1) {
		usleep(300000); /* and are inside the combine */
		raise(SIGKILL);
	}
	struct timespec began, ended;
	view rows, out, topk;
	ncclEpCombineInputs_t in = {HEAD(in), .tokens = look(&rows, r->rows, l.type, 96, HIDDEN)};
	ncclEpCombineOutputs_t sums = {
		HEAD(sums),
		.tokens = look(&out, r->out, l.type, (size_t)tokens_of(&l, r->info.rank), HIDDEN),
	};
	clock_gettime(CLOCK_MONOTONIC, &began);
	EP_REFUSED(ncclEpCombine(h, &in, &sums, NULL, NULL), NCCL_EP_REMOTE_ERROR, "rank 2");
	clock_gettime(CLOCK_MONOTONIC, &ended);
	TRUE(ended.tv_sec - began.tv_sec < 10 && weft_error_rank() == r->info.ranks - 1);
	EP_REFUSED(ncclEpUpdateHandle(h, topk_of(r, &l, &topk), NULL, NULL), NCCL_EP_REMOTE_ERROR,
			   "rank 2"); /* it stays so */
	EP(ncclEpHandleDestroy(h));
	EP(ncclEpGroupDestroy(r->group));
}

/* What callers get wrong, alone. */
static void misuse(rank *r) {
	ncclEpGroup_t g = NULL;
	ncclEpHandle_t h = NULL;
	size_t bytes;
	view v, x;
	EP(ncclEpGroupDestroy(NULL));
	EP(ncclEpHandleDestroy(NULL));
	ncclEpGroupConfig_t good = bounds(96), c;
	good.num_experts = LOCAL;
	EP_INVALID(ncclEpCreateGroup(NULL, r->comm, &good), "group is NULL");
	EP_INVALID(ncclEpCreateGroup(&g, NULL, &good), "comm is NULL");
	EP_INVALID(ncclEpCreateGroup(&g, r->comm, NULL), "config is NULL");
#define BAD(change, result, words)                                                                                     \
	do {                                                                                                               \
		c = good;                                                                                                      \
		change;                                                                                                        \
		EP_REFUSED(ncclEpCreateGroup(&g, r->comm, &c), NCCL_EP_INVALID_##result, words);                               \
	} while (0)
	BAD(c.magic = 0, ARGUMENT, "NCCL_EP_MAGIC");
	BAD(c.size = 95, ARGUMENT, "at least 96");
	BAD(c.version = 0, ARGUMENT, "version 0");
	BAD(c.algorithm = NCCL_EP_LOW_LATENCY, USAGE, "high throughput");
	BAD(c.num_experts = 0, ARGUMENT, "experts is 0");
	BAD(c.max_dispatch_tokens_per_rank = 0, ARGUMENT, "max_tokens is 0");
	BAD(c.max_recv_tokens_per_rank = MOST - 1, ARGUMENT, "raise it");
	BAD(c.max_token_bytes = 24, ARGUMENT, "multiple of 16");
	BAD(c.alloc.context = c.alloc.alloc_fn = (ncclEpAllocFn_t)(void *)1, ARGUMENT, "both or neither");
	BAD(c.max_num_sms = 2000, ARGUMENT, "max_num_sms");
	BAD(c.enable_mask = 1, USAGE, "weft_comm_set_mask");
	BAD(c.zero_copy = 3, ARGUMENT, "zero_copy 3");
	BAD(c.overflow_policy = -1, ARGUMENT, "overflow_policy -1");
	BAD((c.max_recv_tokens_per_rank = 0, c.overflow_policy = NCCL_EP_OVERFLOW_DROP), USAGE,
		"set max_recv_tokens_per_rank");
	BAD(c.timeout_ns = 5000000, ARGUMENT, "weft_comm_options.deadline_ms");
	BAD(c.num_topk = 99, ARGUMENT, "topk is 99");
	TRUE(g == NULL);
	EP_INVALID(ncclEpCreateGroup(&g, (char *)r->comm + 1, &good), "weft_comm");
	EP_MISUSED(ncclEpCreateGroup(&g, &good, &good), "libnccl.so.2");

	/* A program of the first version knows less, one of a later version more. */
	struct {
		ncclEpGroupConfig_t known;
		char more[32];
	} later;
	memset(&later, 0xFF, sizeof later);
	later.known = good;
	later.known.size = sizeof later;
	EP(ncclEpCreateGroup(&g, r->comm, &later.known));
	EP(ncclEpGroupDestroy(g));
	c = good;
	c.size = 96;
	c.overflow_policy = -1; /* behind what it says it has */
	EP(ncclEpCreateGroup(&g, r->comm, &c));

	ncclEpHandleConfig_t a = {HEAD(a), .dispatch_output_per_expert_alignment = 3};
	EP_INVALID(ncclEpHandleMemSize(g, NCCL_EP_EXPERT_MAJOR, &a, &bytes, 2), "power of two");
	EP_MISUSED(ncclEpHandleMemSize(g, NCCL_EP_FLAT, NULL, &bytes, 2), "expert-major");
	EP_MISUSED(ncclEpHandleMemSize(g, NCCL_EP_LAYOUT_UNSET, NULL, &bytes, 2), "expert-major");
	EP_INVALID(ncclEpHandleMemSize(g, NCCL_EP_EXPERT_MAJOR, NULL, &bytes, 0), "num_topk is 0");
	EP_INVALID(ncclEpHandleMemSize(g, NCCL_EP_EXPERT_MAJOR, NULL, NULL, 2), "size_out is NULL");
	EP_INVALID(ncclEpHandleMemSize((ncclEpGroup_t)(void *)&c, NCCL_EP_EXPERT_MAJOR, NULL, &bytes, 2),
			   "is no ncclEpGroup_t");
	EP_INVALID(ncclEpInitHandle(&h, g, NCCL_EP_EXPERT_MAJOR, &a, 2, NULL), "power of two");
	EP_MISUSED(ncclEpInitHandle(&h, g, NCCL_EP_FLAT, NULL, 2, NULL), "expert-major");
	EP_INVALID(ncclEpInitHandle(&h, g, NCCL_EP_EXPERT_MAJOR, NULL, 0, NULL), "num_topk is 0");
	EP_INVALID(ncclEpInitHandle(&h, g, NCCL_EP_EXPERT_MAJOR, NULL, 33, NULL), "num_topk is 33");
	a.size = 4;
	EP_INVALID(ncclEpInitHandle(&h, g, NCCL_EP_EXPERT_MAJOR, &a, 2, NULL), "size");
	EP_INVALID(ncclEpInitHandle(NULL, g, NCCL_EP_EXPERT_MAJOR, NULL, 2, NULL), "handle is NULL");
	EP_INVALID(ncclEpInitHandle(&h, g, NCCL_EP_EXPERT_MAJOR, NULL, 2, look(&v, r->rows, NCCL_EP_UINT8, 64, 0)),
			   "ncclEpHandleMemSize");
	EP(ncclEpInitHandle(&h, g, NCCL_EP_EXPERT_MAJOR, NULL, 2, NULL));
	EP_INVALID(ncclEpGroupDestroy((ncclEpGroup_t)(void *)h), "is no ncclEpGroup_t");
	EP_INVALID(ncclEpUpdateHandle(h, NULL, NULL, NULL), "topk_idx is NULL");
	EP_INVALID(ncclEpUpdateHandle(h, look(&v, r->narrow, NCCL_EP_FLOAT32, 2, 2), NULL, NULL), "int");
	EP_INVALID(ncclEpUpdateHandle(h, look(&v, r->narrow, NCCL_EP_INT32, 2, 3), NULL, NULL), "");
	EP_INVALID(ncclEpUpdateHandle(h, look(&v, r->narrow, NCCL_EP_INT32, MOST + 1, 2), NULL, NULL), "at most 7");
	EP_INVALID(ncclEpUpdateHandle(h, look(&v, r->narrow, 55, 2, 2), NULL, NULL), "data type 55");
	EP_MISUSED(ncclEpUpdateHandle(h, look(&v, r->narrow, NCCL_EP_INT32, 2, 2), NULL, (void *)8), "streams");
	look(&v, r->narrow, NCCL_EP_INT32, 2, 2);
	v.t.magic = 7;
	EP_INVALID(ncclEpUpdateHandle(h, &v.t, NULL, NULL), "NCCL_EP_TENSOR_MAGIC");
	r->narrow[0] = 0, r->narrow[1] = 1, r->narrow[2] = 2, r->narrow[3] = 0;
	v.t.magic = NCCL_EP_TENSOR_MAGIC_LIBRARY; /* as NCCL EP's own allocator leaves it */
	EP(ncclEpUpdateHandle(h, &v.t, NULL, NULL));

	ncclEpDispatchInputs_t in = {HEAD(in), .tokens = look(&x, r->x, NCCL_EP_FLOAT32, 2, HIDDEN)};
	ncclEpDispatchOutputs_t out = {HEAD(out), .tokens = look(&v, r->rows, NCCL_EP_FLOAT32, 96, HIDDEN)};
	ncclEpDispatchConfig_t d = {HEAD(d), .send_only = 1};
	view w;
	EP_INVALID(ncclEpDispatch(h, NULL, &out, NULL, NULL, NULL), "is NULL");
	EP_INVALID(forward(h, &in, &out), "in.topk_weights is NULL");
	EP_MISUSED(ncclEpDispatch(h, &in, &out, NULL, &d, NULL), "send_only");
	d.send_only = 0, d.quant_recipe = NCCL_EP_DISPATCH_DS_FP8;
	EP_MISUSED(ncclEpDispatch(h, &in, &out, NULL, &d, NULL), "quant_recipe 2");
	in.topk_weights = look(&w, r->weights, NCCL_EP_FLOAT32, 2, 2);
	v.sizes[0] = 95;
	EP_INVALID(forward(h, &in, &out), "room for 95 rows");
	v.sizes[0] = 96, v.sizes[1] = HIDDEN / 2;
	EP_INVALID(forward(h, &in, &out), "different types or lengths");
	v.sizes[1] = x.sizes[1] = HIDDEN * 2;
	EP_INVALID(forward(h, &in, &out), "max_token_bytes");
	v.sizes[1] = x.sizes[1] = HIDDEN;
	v.t.datatype = x.t.datatype = NCCL_EP_FLOAT8_E4M3;
	EP_INVALID(forward(h, &in, &out), "quant_recipe 1");
	v.t.datatype = x.t.datatype = NCCL_EP_FLOAT32;
	EP(forward(h, &in, &out));

	/* In a child of fork every call fails, with words. */
	pid_t child = fork();
	if (child == 0) {
		ncclEpResult_t result = forward(h, &in, &out);
		_exit(result == NCCL_EP_INVALID_USAGE && strstr(weft_error(), "forked") != NULL &&
					  ncclEpCreateGroup(&g, r->comm, &good) == NCCL_EP_INVALID_USAGE
				  ? 0
				  : 1);
	}
	int status = -1;
	TRUE(waitpid(child, &status, 0) == child && status == 0);
	EP(ncclEpGroupDestroy(g));
}

int main(int argc, char **argv) {
	TRUE(argc >= 2);
	if (argc == 3) {
		engine = strcmp(argv[1], "threads") == 0 ? WEFT_HOST : WEFT_GPU;
		find_driver();
		if (strcmp(argv[1], "nccl") == 0) {
			find_nccl();
		}
		in_threads(atoi(argv[2]));
		printf("ok\n");
		return 0;
	}
	weft_comm comm;
	weft_comm_options options = {.size = sizeof options, .deadline_ms = 20000};
	OK(weft_comm_create(&options, &comm));
	rank *r = sit(comm);
	if (strcmp(argv[1], "exchange") == 0) {
		exchange(r);
	} else if (strcmp(argv[1], "death") == 0) {
		death(r);
	} else {
		misuse(r);
	}
	leave(r);
	printf("ok\n");
	return 0;
}
