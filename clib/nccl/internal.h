/* Declarations that the files of the NCCL EP face share. Names begin with nep_, for all of it is linked into
 * programs. */
#ifndef NEP_INTERNAL_H
#define NEP_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "weft.h"
#include "weft_nccl_ep.h"

/* library.c: libweft.so, opened when it is first needed. */

#define NEP_FUNCTIONS(X)                                                                                               \
	X(weft_version)                                                                                                    \
	X(weft_error_set)                                                                                                  \
	X(weft_error)                                                                                                      \
	X(weft_error_rank)                                                                                                 \
	X(weft_comm_create_with_all_gather)                                                                                \
	X(weft_comm_destroy)                                                                                               \
	X(weft_comm_get)                                                                                                   \
	X(weft_window_get)                                                                                                 \
	X(weft_ep_check)                                                                                                   \
	X(weft_ep_create)                                                                                                  \
	X(weft_ep_destroy)                                                                                                 \
	X(weft_ep_prepare)                                                                                                 \
	X(weft_ep_dispatch)                                                                                                \
	X(weft_ep_copy_received)                                                                                           \
	X(weft_ep_combine)                                                                                                 \
	X(weft_ep_dispatch_backward)                                                                                       \
	X(weft_ep_combine_backward)                                                                                        \
	X(weft_received_release)                                                                                           \
	X(weft_routing_get)                                                                                                \
	X(weft_routing_tensor)                                                                                             \
	X(weft_routing_release)

#define NEP_MEMBER(name) __typeof__(name) *name;
struct nep_library {
	NEP_FUNCTIONS(NEP_MEMBER)
};
#undef NEP_MEMBER

/* The functions of libweft.so; before nep_open has succeeded, NULL. */
extern struct nep_library nep_lib;

/* Begins every call: opens libweft.so, and refuses a forked child. Where there is no library, none keeps the words:
 * they go to standard error, once. */
ncclEpResult_t nep_open(void);

/* errors.c */

/* Makes words this thread's last failure, and returns its number. */
ncclEpResult_t nep_fail(ncclEpResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define nep_invalid(...) nep_fail(NCCL_EP_INVALID_ARGUMENT, __VA_ARGS__)
#define nep_misused(...) nep_fail(NCCL_EP_INVALID_USAGE, __VA_ARGS__)

/* Maps a status; libweft.so has the message. */
ncclEpResult_t nep_result(weft_status status);

#define NEP_TRY(call)                                                                                                  \
	do {                                                                                                               \
		ncclEpResult_t nep_tried = (call);                                                                             \
		if (nep_tried != NCCL_EP_SUCCESS) {                                                                            \
			return nep_tried;                                                                                          \
		}                                                                                                              \
	} while (0)
#define NEP_WEFT(call) NEP_TRY(nep_result(call))

/* structs.c */

/* Copies the members that both the caller's struct and this library have; the rest is 0. It is at least so long as
 * the first version was. */
ncclEpResult_t nep_struct(void *to, size_t known, const void *from, size_t least, const char *name);

#define NEP_STRUCT(to, from, least) nep_struct(&(to), sizeof(to), (from), (least), #from)

/* groups.c */

typedef struct nep_exchange nep_exchange;
typedef struct nep_group nep_group;
typedef struct nep_handle nep_handle;

struct nep_group {
	pthread_mutex_t gate; /* held by the call that is inside */
	ncclEpGroup_t id;
	void *given; /* the communicator that the caller has named */
	weft_comm comm;
	bool own; /* the weft_comm was made here */
	int rank, ranks, engine;
	ncclEpGroupConfig_t config;
	nep_exchange *exchanges;
	nep_handle *handles;
};

/* The rows that an exchange moves: those of one type and size, for handles of one top-k and alignment. */
typedef struct nep_shape {
	int64_t topk, alignment;
	int32_t payload, unbounded; /* unbounded: room for the worst case, regardless of the group */
	int64_t hidden, row_bytes, scale_bytes;
} nep_shape;

struct nep_exchange {
	nep_shape shape;
	weft_ep ep;
	nep_exchange *next;
};

/* The exchange of a shape, made when it is first asked for: collective then. */
ncclEpResult_t nep_exchange_of(nep_group *group, const nep_shape *shape, nep_exchange **exchange);

/* handles.c */

typedef struct nep_route {
	nep_exchange *exchange;
	weft_routing routing;
	struct nep_route *next;
} nep_route;

/*
 * The beginning of a handle's memory. A handle that is made on memory with a batch continues with that batch: a cache
 * may move the memory and make handles on it anew.
 */
typedef struct nep_header {
	uint64_t magic;
	uint32_t version, topk;
	uint64_t alignment;
	uint32_t experts, ranks, rank, max_tokens;
	uint64_t sum; /* of the members before it */
	uint32_t
		batch; /* the number of tokens, and NEP_WIDE if their experts are int64: all that changes from batch to batch */
	uint32_t reserved[3];
} nep_header;

#define NEP_WIDE UINT32_C(0x80000000)

/* Memory of the host's that a GPU's copies use, now or when a graph is replayed. */
typedef struct nep_pinned {
	nep_header header;       /* the handle's, without a batch */
	volatile int32_t demand; /* how many rows came, if the group refuses too many */
} nep_pinned;

struct nep_handle {
	nep_group *group;
	ncclEpHandle_t id;
	int64_t topk, alignment;
	char *memory; /* a nep_header, and the batch's experts behind it */
	bool own;     /* the memory was made here */
	bool ready;   /* there is a batch: tokens and topk_type are set */
	bool refused; /* the last ncclEpUpdateHandle failed: the memory may still have the batch before */
	int64_t tokens;
	int32_t topk_type;  /* weft_dtype */
	nep_route *routes;  /* of this batch, by exchange */
	nep_exchange *last; /* that a forward dispatch went by: the next batch is mostly alike, and is prepared there */
	nep_pinned *pinned;
	nep_handle *next;
};

/* The batch's experts, where the handle keeps them. */
weft_tensor nep_topk(const nep_handle *h);

/* Ensures that there is a batch: that of ncclEpUpdateHandle, or one that a former handle left in the memory. */
ncclEpResult_t nep_batch(nep_handle *h, const char *op);

/*
 * The host does not wait for a GPU's overflow. Rows that do not fit are dropped. A later call on the handle, which
 * runs nevertheless, because the other ranks make it too, returns the error at its end.
 */
ncclEpResult_t nep_overflowed(const nep_handle *h);

/* The batch's routing by an exchange, prepared without weights if it is not there: collective then. */
ncclEpResult_t nep_route_of(nep_handle *h, nep_exchange *exchange, weft_stream stream, weft_routing *routing);

/* The same if it exists, or NULL. */
weft_routing nep_route_at(const nep_handle *h, const nep_exchange *exchange);

/* Puts a routing in the place of the one by the same exchange. It is the handle's even if that fails. */
ncclEpResult_t nep_reroute(nep_handle *h, nep_exchange *exchange, weft_routing routing);

/* Gives all routings of the batch up. */
void nep_unroute(nep_handle *h);

/* Frees a handle that is in no list any more. */
void nep_discard(nep_handle *h);

/* Writes the counts of a routing to the caller's tensors. */
ncclEpResult_t nep_tell(nep_handle *h, weft_routing routing, const ncclEpLayoutInfo_t *info, weft_stream stream);

/* objects.c: the numbers that callers hold. */

typedef enum nep_kind { NEP_GROUP, NEP_HANDLE } nep_kind;

/* Gives an object a number. */
ncclEpResult_t nep_add(nep_kind kind, void *object, uint64_t *id);
void nep_remove(uint64_t id);

/* Finds a group, or a handle and its group, and takes the group's gate for the caller alone. */
ncclEpResult_t nep_enter_group(ncclEpGroup_t id, nep_group **group);
ncclEpResult_t nep_enter(ncclEpHandle_t id, nep_handle **handle);
void nep_leave(nep_group *group);

/* Refuses a communicator on which a group stands. */
ncclEpResult_t nep_check_free(const void *comm);

/* tensors.c */

/* Turns a caller's tensor of the given number of dimensions into Weft's, its window resolved. */
ncclEpResult_t nep_tensor(const nep_group *g, const ncclEpTensor_t *t, unsigned dims, const char *name,
						  weft_tensor *out);

int64_t nep_elements(const weft_tensor *t);
int64_t nep_bytes_of(int32_t type);

/* memory.c: memory of the host or of the GPU, by the group's engine. */

ncclEpResult_t nep_alloc(const nep_group *g, size_t bytes, char **memory);
void nep_free(const nep_group *g, char *memory);

/* Zeroed memory of the host's that copies may use at any time. */
ncclEpResult_t nep_alloc_pinned(const nep_group *g, size_t bytes, void **memory);
void nep_free_pinned(const nep_group *g, void *memory);

/* Copies in the order of the stream; on the host at once. */
ncclEpResult_t nep_copy(const nep_group *g, void *to, const void *from, size_t bytes, weft_stream stream);

/* The same for int32 that become int64; none is negative. */
ncclEpResult_t nep_widen(const nep_group *g, int64_t *to, const int32_t *from, size_t count, weft_stream stream);

/* Writes a word in stream order; the caller's word is copied at the call. */
ncclEpResult_t nep_write(const nep_group *g, void *to, uint32_t word, weft_stream stream);

/* Reads memory of the group's, and waits for it. */
ncclEpResult_t nep_read(const nep_group *g, void *to, const char *from, size_t bytes);

/* nccl.c */

/* Whether a communicator or window is Weft's: its handles are no addresses that a process can have. */
static inline bool nep_is_weft(const void *p) { return (uintptr_t)p >> 63 != 0; }

/* Makes the communicator of an ncclComm_t's ranks, on their GPUs, meeting through it. */
ncclEpResult_t nep_join_nccl(void *comm, int64_t deadline_ms, weft_comm *out);

/* Where the rank's segment of an ncclWindow_t lies. */
ncclEpResult_t nep_nccl_window(const nep_group *g, void *window, void **memory);

#endif
