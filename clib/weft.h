/*
 * Weft: tensors between the ranks of a machine-learning job, for C and for whatever can call C.
 *
 * Link with -lweft, or open libweft.so. The library holds a Go runtime, one for the process: open it once, never unload
 * it.
 *
 * Handles. A handle is a number in the clothes of a pointer: it points nowhere, and must be neither followed nor
 * counted up. The library therefore tells a handle that was destroyed, that is another library's or that is NULL from a
 * good one without touching memory, and refuses it.
 *
 * Structs begin with their size: set it to sizeof, and every member that you do not use to 0. Later versions append
 * members, whose 0 means what the library did before; a program that is newer than the library is refused if it uses
 * what the library does not know. Members of structs that the library fills in are written as far as the given size
 * goes. weft_tensor keeps to the same rule.
 *
 * Errors. A function that can fail returns a weft_status, and on failure weft_error has the sentence. Nothing throws,
 * exits or aborts. Handles that a failed call was to return are NULL (in a forked child they are left alone).
 *
 * Ranks. Functions marked "collective" are called by every rank of the communicator, masked ones excepted, in the same
 * order. What a rank's own arguments do wrong by the rules of Weft is refused on every rank; what is wrong with them as
 * C (NULL, a short struct, a stale handle) is refused on this rank, and counts as a call that was not made: the others
 * wait for it, at most until the deadline.
 *
 * Threads. Any thread may make any call. Calls on one object exclude each other, as do those on a weft_ep and on its
 * routings, received rows and works: a second one is refused, not queued. weft_comm_get, weft_comm_error,
 * weft_comm_abort and weft_comm_wait are the exceptions, which may be called at any time. Groups, handles and windows
 * of one communicator are objects of their own; their collective calls are made in the same order on every rank.
 *
 * Processes. After fork the child can call nothing but weft_error, weft_error_rank, weft_error_set, weft_status_name,
 * weft_version and weft_dlpack_deleter: it has none of the library's threads. Every other function then returns
 * WEFT_ERROR_FORKED. Start ranks by fork and exec, posix_spawn or a launcher.
 *
 * Signals. A handler that is installed when the library is already loaded needs SA_ONSTACK: it may interrupt Go's code,
 * whose stacks are small, and without the flag it then overwrites the memory below them. Those of before got the flag
 * when the library was loaded. weft_signal_check finds the ones that lack it, and can add it. With the flag a handler
 * has 32 KiB on threads that have called the library, unless they have given themselves an alternate stack before.
 *
 * Memory. Tensors are borrowed for the call, on a GPU until the stream has passed the operation. Structs and strings
 * are borrowed for the call.
 */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface: a library serves programs of its own version and of earlier ones. */
#define WEFT_VERSION 1

/* The version that the library serves. */
int weft_version(void);

/*
 * A deleter for managed tensors of DLPack, DLManagedTensor: it stores 1 in the int32_t that manager_ctx points to, if
 * there is one, and does nothing else, in any thread and in a child of fork too. So who shows memory that way sees that
 * its taker has given it back. Python's package does: a deleter of Python's own would run amid whatever fails there.
 */
void weft_dlpack_deleter(void *managed_tensor);

/* Errors. */

typedef enum weft_status {
	WEFT_OK = 0,
	WEFT_ERROR_INVALID = 1,     /* the arguments contradict each other or the contract; nothing was enqueued */
	WEFT_ERROR_UNSUPPORTED = 2, /* it cannot be done here; nothing was enqueued, and the message names the way out */
	WEFT_ERROR_TIMEOUT = 3,  /* a rank did not answer before the deadline, or ranks wait for each other (the rank is -1,
								the message lists them) */
	WEFT_ERROR_ABORTED = 4,  /* a rank gave the operation up */
	WEFT_ERROR_DIED = 5,     /* a rank's process ended */
	WEFT_ERROR_LEFT = 6,     /* a rank destroyed its communicator */
	WEFT_ERROR_MISMATCH = 7, /* ranks made different calls, or with arguments that had to agree and did not */
	WEFT_ERROR_MASKED = 8,   /* this rank, or the one asked for, is masked */
	WEFT_ERROR_CLOSED = 9,   /* what the call needs was closed by this rank */
	WEFT_ERROR_OVERFLOW = 10, /* more rows were routed than the capacity; nothing has moved */
	WEFT_ERROR_HANDLE = 11,   /* a handle is NULL, was destroyed, or is none of this library's */
	WEFT_ERROR_BUSY = 12,     /* another thread is inside a call on the same object */
	WEFT_ERROR_FORKED = 13,   /* the process was forked after the library was loaded */
	WEFT_ERROR_SYSTEM = 14,   /* the operating system, the network or the GPU's driver; the message has its words */
	WEFT_ERROR_INTERNAL = 15  /* a defect of the library, or memory that is not there; the message says where */
} weft_status;

/* The message of this thread's last failure; "" before the first. It stays valid until the next failure of the same
 * thread. */
const char *weft_error(void);

/* The rank to blame for this thread's last failure, or -1 for none. */
int weft_error_rank(void);

/* Makes a failure this thread's last, and returns its status: for libraries that give other interfaces to this one. */
weft_status weft_error_set(weft_status status, int rank, const char *message);

/* The name of a status: "WEFT_ERROR_TIMEOUT". */
const char *weft_status_name(int status);

/*
 * Bounds each later call of this thread that waits on the host, in milliseconds, beside the communicator's deadline; 0
 * ends that. Who gives up so gets WEFT_ERROR_TIMEOUT, and the others WEFT_ERROR_ABORTED with this rank's number, as
 * after weft_comm_abort; weft_comm_wait disturbs nobody, and may be called again. It bounds no waits of kernels on a
 * GPU: what is enqueued on a stream of the caller's waits there, by the communicator's deadline.
 */
weft_status weft_timeout_set(int64_t milliseconds);

/*
 * Looks for handlers of signals that lack SA_ONSTACK. If there are any it is WEFT_ERROR_INVALID, and weft_error lists
 * them by signal and by the function's name where the loader knows it. With repair they get the flag instead, and
 * nothing else of theirs changes; no other thread may install handlers meanwhile. A communicator's log is told of them
 * when it is made.
 */
weft_status weft_signal_check(int repair);

/* Types. */

typedef struct weft_comm_s *weft_comm;             /* a communicator: this rank among the others */
typedef struct weft_window_s *weft_window;         /* symmetric memory */
typedef struct weft_ep_s *weft_ep;                 /* expert parallelism of one spec */
typedef struct weft_routing_s *weft_routing;       /* where tokens and rows go */
typedef struct weft_received_s *weft_received;     /* rows that arrived */
typedef struct weft_work_s *weft_work;             /* an operation whose second half is to come */
typedef struct weft_group_s *weft_group;           /* collectives */
typedef struct weft_ep_token_counter_s *weft_ep_token_counter; /* the layout step on a GPU */

/*
 * A stream of the caller's: a CUstream or cudaStream_t of the GPU's primary context, on which the call enqueues and
 * returns. NULL is the legacy default stream, as it is to CUDA. On the host it must be NULL, and a call returns when it
 * is done. The calling thread's CUDA context stays what it was.
 */
typedef void *weft_stream;

/* The stream of the communicator's own, on GPUs. It is ordered with nothing but itself. */
#define WEFT_STREAM_OWN ((weft_stream) ~(uintptr_t)0)

typedef enum weft_engine {
	WEFT_HOST = 0, /* memory of the host */
	WEFT_GPU = 1   /* memory of one GPU */
} weft_engine;

typedef enum weft_dtype {
	WEFT_NONE = 0,
	WEFT_BFLOAT16 = 1,
	WEFT_FLOAT16 = 2,
	WEFT_FLOAT32 = 3,
	WEFT_FLOAT64 = 4,
	WEFT_FLOAT8_E4M3 = 5,
	WEFT_FLOAT8_E5M2 = 6,
	WEFT_UE8M0 = 7, /* a power of two: the type of block scales */
	WEFT_INT8 = 8,
	WEFT_INT16 = 9,
	WEFT_INT32 = 10,
	WEFT_INT64 = 11,
	WEFT_UINT8 = 12,
	WEFT_UINT16 = 13,
	WEFT_UINT32 = 14,
	WEFT_UINT64 = 15,
	WEFT_ABSENT =
		255 /* no tensor, and why: data is a string. Collective calls refuse it on every rank with these words */
} weft_dtype;

/* How elements are reduced. */
typedef enum weft_op { WEFT_SUM = 0, WEFT_PROD = 1, WEFT_MIN = 2, WEFT_MAX = 3, WEFT_AVG = 4 } weft_op;

#define WEFT_MAX_DIMS 4

/*
 * A dense row-major view of memory: of the host, or of the GPU that the communicator is bound to. As an argument NULL,
 * or a tensor of type WEFT_NONE, is no tensor. A layer over this library that refuses its caller a collective call
 * makes the call all the same, with a tensor of type WEFT_ABSENT in place of what it refuses: then the other ranks are
 * told why instead of left to wait.
 */
typedef struct weft_tensor {
	size_t size;
	void *data;
	int32_t dtype; /* weft_dtype */
	int32_t dims;  /* 0 to WEFT_MAX_DIMS */
	int64_t shape[WEFT_MAX_DIMS];
} weft_tensor;

/* Communicators. */

/* Takes a line of text, without a newline at its end. Any thread may call it, until weft_comm_destroy has returned. It
 * makes no weft_ call. */
typedef void (*weft_log_fn)(void *context, const char *line);

typedef struct weft_comm_options {
	size_t size;
	int32_t engine;        /* weft_engine; the same on every rank */
	int32_t gpu;           /* WEFT_GPU: its number among those that the process sees */
	int64_t deadline_ms;   /* bounds every wait of what has joined; 0 is a minute. Joining takes two at most, or as long
							  as weft_timeout_set says */
	int32_t no_huge_pages; /* 1: windows keep off the system's pool of huge pages */
	int32_t reserved;      /* 0 */
	weft_log_fn log;       /* told of joins, faults and masks; NULL is silence */
	void *log_context;
} weft_comm_options;

/* Joins as the environment says: weft run, torchrun, Slurm, Open MPI, MPICH or Kubernetes; alone if it says nothing.
 * Collective. options may be NULL. */
weft_status weft_comm_create(const weft_comm_options *options, weft_comm *comm);

#define WEFT_UNIQUE_ID_BYTES 136

/*
 * Makes the id of a new communicator: a text, ended by 0, in WEFT_UNIQUE_ID_BYTES bytes. It contains a secret. Rank 0
 * makes it and listens from then on; hand it to the others by any means. interface is the network interface to listen
 * on: "lo" for ranks of this host, NULL for all.
 */
weft_status weft_unique_id_create(char *id, const char *interface);

/* Gives up an id that no rank 0 of this process has used. */
weft_status weft_unique_id_release(const char *id);

/* Joins the communicator of an id as one rank of so many. Collective; rank 0 is in the process that made the id. */
weft_status weft_comm_create_with_id(const char *id, int rank, int ranks, const weft_comm_options *options,
									 weft_comm *comm);

/*
 * An all-gather of the caller's: gives every rank the same number of bytes of every other, in the order of ranks, as
 * MPI_Allgather does. 0 is success. It is called inside weft_comm_create_with_all_gather only, by the same thread, and
 * bounds its own waits.
 */
typedef int (*weft_all_gather_fn)(void *context, const void *mine, size_t bytes, void *all);

/* Joins through an all-gather of the caller's. Collective. */
weft_status weft_comm_create_with_all_gather(weft_all_gather_fn all_gather, void *context, int rank, int ranks,
											 const weft_comm_options *options, weft_comm *comm);

/*
 * Leaves, and destroys all that was made from the communicator. It waits for no other rank; peers that still wait for
 * this one get WEFT_ERROR_LEFT. It is refused while another thread is inside a call on it or on what was made from it
 * (weft_comm_abort ends such a call). After any other failure the handle is gone all the same.
 */
weft_status weft_comm_destroy(weft_comm comm);

/*
 * The first half of weft_comm_destroy, for who still has memory of the communicator's in use: it leaves, from when on
 * everything on it is WEFT_ERROR_CLOSED, and keeps all memory as it is until weft_comm_destroy. It is refused while
 * another thread is inside a call, as that is.
 */
weft_status weft_comm_leave(weft_comm comm);

typedef struct weft_comm_info {
	size_t size;
	int32_t rank, ranks;
	int32_t local_ranks; /* on this host */
	int32_t engine;      /* weft_engine */
	int64_t deadline_ms;
	uint64_t generation; /* grows with every weft_comm_set_mask */
} weft_comm_info;

weft_status weft_comm_get(weft_comm comm, weft_comm_info *info);

/* Writes the set of masked ranks to n words, for which (ranks + 63) / 64 are enough: rank r is bit r % 64 of word
 * r / 64. */
weft_status weft_comm_mask(weft_comm comm, uint64_t *words, int n);

/* Returns the failure that operations return from now on, or WEFT_OK. */
weft_status weft_comm_error(weft_comm comm);

/* Makes every pending and later operation of every rank fail with WEFT_ERROR_ABORTED and this rank's number, until
 * weft_comm_set_mask. */
weft_status weft_comm_abort(weft_comm comm);

/*
 * Goes on after a failure without the ranks of the mask, n words as weft_comm_mask writes them (no words: the empty
 * mask), and with all others. The ranks that remain call it with the same mask, when none of their operations is in
 * progress. A job never becomes two: of ranks that leave each other out one side goes on, the larger or that with the
 * lowest rank, or the one that was first, and the others get WEFT_ERROR_MASKED. A rank that was left out waits here to
 * be taken back, without those that go on in its mask.
 */
weft_status weft_comm_set_mask(weft_comm comm, const uint64_t *words, int n);

/* Waits until what was enqueued on the stream has happened, and returns the failure that an operation has met
 * meanwhile. On the host, the failure only. */
weft_status weft_comm_wait(weft_comm comm, weft_stream stream);

/* Windows. */

/* Makes symmetric memory of so many bytes a rank, zeroed: of the host, or of the rank's GPU. Collective. */
weft_status weft_window_create(weft_comm comm, size_t bytes, weft_window *window);

/* Makes a window of a memfd of at least so many bytes, sealed against shrinking, on the host. The descriptor stays the
 * caller's. Collective. */
weft_status weft_window_create_from_fd(weft_comm comm, int fd, size_t bytes, weft_window *window);

/*
 * Makes a window of memory of the caller's, which must outlive it on every rank: on a GPU, device memory of one
 * allocation; on the host, any memory, but only if all ranks are in this process. Collective.
 */
weft_status weft_window_create_from_memory(weft_comm comm, void *memory, size_t bytes, weft_window *window);

typedef struct weft_window_info {
	size_t size;
	uint64_t id; /* the same on every rank */
	uint64_t bytes;
	void *memory; /* this rank's part */
} weft_window_info;

weft_status weft_window_get(weft_window window, weft_window_info *info);

/* Another rank's part, as this rank's processor or GPU reaches it. NULL for a rank that was masked when the window was
 * made. */
weft_status weft_window_peer(weft_window window, int rank, void **memory);

/* Gives the window up on this rank; the pointers that it gave are then invalid. On a GPU no work may still use it. */
weft_status weft_window_destroy(weft_window window);

/* Expert parallelism. docs/guides/ep-support.md says which combinations are supported. */

/* Where received rows stand. */
typedef enum weft_layout {
	WEFT_EXPERT_MAJOR = 0,  /* received rows are [local experts, rows per expert, hidden] */
	WEFT_EXPERT_PACKED = 1, /* [rows, hidden]: the experts' rows follow each other, padded to the alignment */
	WEFT_RANK_MAJOR = 2,    /* [ranks * max_tokens, hidden]: a token stands by its own index in its rank's zone */
	WEFT_TOKEN_MAJOR = 3    /* [rows, hidden]: one row per token and rank, by source rank, then token */
} weft_layout;

/* Where rows are summed. */
typedef enum weft_reduction {
	WEFT_EXACT = 0,               /* at home: fp32 fused multiply-adds, k ascending, rounded once */
	WEFT_PARTIAL = 1,             /* the rows of one rank there, the ranks' sums at home, in rank order */
	WEFT_PARTIAL_BY_SELECTION = 2 /* the same, in the order of the token's last selections which have a row there */
} weft_reduction;

/* Whether combine applies the weights. */
typedef enum weft_weighting { WEFT_WEIGHTED = 0, WEFT_PLAIN = 1 } weft_weighting;

/* What a row is made of. */
typedef enum weft_payload {
	WEFT_PAYLOAD_BF16 = 0,
	WEFT_PAYLOAD_FP16 = 1,
	WEFT_PAYLOAD_FP32 = 2,
	WEFT_PAYLOAD_FP8 = 3,       /* e4m3 and an fp32 scale for each 128 numbers */
	WEFT_PAYLOAD_FP8_UE8M0 = 4, /* e4m3 and a power-of-two scale for each 128 numbers */
	WEFT_PAYLOAD_OPAQUE = 5     /* row_bytes and scale_bytes that are moved, not looked at */
} weft_payload;

/* The order of received scales. */
typedef enum weft_scale_order { WEFT_ROW_MAJOR_SCALES = 0, WEFT_COLUMN_MAJOR_SCALES = 1 } weft_scale_order;

/* Who learns how many rows arrive. */
typedef enum weft_counts {
	WEFT_HOST_COUNTS = 0,  /* tensors of exactly the rows that arrive */
	WEFT_DEVICE_COUNTS = 1 /* tensors of the capacity, and the counts beside them: nothing waits for the host */
} weft_counts;

/* What happens to rows beyond the capacity. */
typedef enum weft_overflow { WEFT_OVERFLOW_REFUSE = 0, WEFT_OVERFLOW_DROP = 1 } weft_overflow;

/*
 * How a kernel on a GPU goes about moving rows, which decides how long it takes and never what it gives. 0 is Weft's
 * choice. Some is about rows that move through slots, some about rows that have their places before they leave;
 * docs/design/gpu-engine.md says which do which, and what does not fit is refused.
 */
typedef struct weft_ep_kernel_tuning {
	size_t size;
	int32_t threads;   /* of a block: 64 to 512, a multiple of 32 */
	int32_t protocol;  /* slots: 1: values are their own flags; 2: flags */
	int32_t units;     /* slots, dispatch: pieces of 512 bytes that a warp moves at a time: 1, 2 or 4 */
	int32_t senders;   /* slots: of 16 blocks, those that send while the others receive; -1: all do both */
	int32_t dependent; /* slots: 1: the next kernel may be placed while this one ends; -1: it may not */
	int32_t blocks;    /* places: at most so many */
	int32_t bulk;      /* places: 1: rows go by bulk copies; -1: threads move them */
	int32_t warps;     /* places: of a block, that move rows by bulk copies */
	int32_t parts;     /* places: of a row, that a warp moves by bulk copies one after the other */
	int32_t reserved;  /* 0 */
} weft_ep_kernel_tuning;

/* What exchanges look like. It is the same on every rank. */
typedef struct weft_ep_spec {
	size_t size;
	int64_t experts;    /* in all; rank r has the r-th share of experts / ranks */
	int64_t topk;       /* selections a token, 1 to 32 */
	int64_t hidden;     /* numbers a row */
	int64_t max_tokens; /* the most that any rank dispatches at once */
	int32_t layout;     /* weft_layout */
	int32_t reduction;  /* weft_reduction */
	int32_t weighting;  /* weft_weighting */
	int32_t payload;    /* weft_payload */
	int32_t quantize;   /* weft_dtype that dispatch quantises to FP8 on the way; 0: rows and scales come quantised */
	int32_t power_of_two_scales; /* 1: scales of quantised rows are rounded up to powers of two */
	int32_t scale_order;         /* weft_scale_order of received scales */
	int32_t output;              /* weft_dtype that combine takes and returns; 0: the payload's, or bf16 */
	int32_t counts;              /* weft_counts */
	int32_t overflow;            /* weft_overflow */
	int32_t sms;         /* GPU: multiprocessors that the kernels may fill; 0: three quarters of the free ones */
	int32_t reserved;    /* 0 */
	int64_t row_bytes;   /* opaque payload: bytes of a row */
	int64_t scale_bytes; /* opaque payload: bytes of its scales, or 0 */
	int64_t capacity;    /* the most rows that a rank (expert-major: an expert) can receive; 0 is the worst case */
	int64_t
		alignment; /* expert-packed: the multiple to which the experts' rows are padded, a power of two up to 65536 */
	int64_t live;  /* received tensors that may be alive at once; 0 is 2 */
	const weft_ep_kernel_tuning *dispatch_tuning; /* GPU; NULL is Weft's choice */
	const weft_ep_kernel_tuning *combine_tuning;
	/* GPU: a number that handles of a communicator share whose operations follow each other in stream order, in the
	 * same order on every rank: they fill the same SMs; 0: none */
	int64_t serial_group;
} weft_ep_spec;

/* Says whether a spec is supported for an engine and a number of ranks, and if not, why. Local. */
weft_status weft_ep_check(const weft_ep_spec *spec, int engine, int ranks);

/* Makes the handle, and all the memory that its exchanges need. Collective. */
weft_status weft_ep_create(weft_comm comm, const weft_ep_spec *spec, weft_ep *ep);

/*
 * Destroys the handle and what was made from it: rows that were received are then gone. On a GPU it first waits for the
 * rank's work, and keeps the handle, to be destroyed again, if that has not ended by the deadline.
 */
weft_status weft_ep_destroy(weft_ep ep);

typedef struct weft_ep_info {
	size_t size;
	int64_t capacity;                                /* rows of a received tensor at its largest */
	int64_t memory_bytes;                            /* of the handle's windows on this rank */
	int32_t dispatch_sms, combine_sms, gradient_sms; /* on a GPU: multiprocessors that their kernels run on */
	int32_t reserved;
} weft_ep_info;

weft_status weft_ep_get(weft_ep ep, weft_ep_info *info);

/*
 * Memory of the handle's for rows that combine or dispatch_backward is to take: [capacity, hidden] of the output type,
 * of which the tensor that they are given is the first rows. On GPUs it spares a copy of rows that their homes read:
 * token-major and packed ones and those of a capacity that can overflow, unless ranks sum first (partial sums, by
 * expert) or it would be too large. For everything else no memory is better than another, and the tensor is WEFT_NONE.
 * There is one, free again when the operation that took it has ended on its stream; weft_comm_set_mask may move it.
 */
weft_status weft_ep_combine_buffer(weft_ep ep, weft_tensor *tensor);

/*
 * The same for the gradients of the output that combine_backward is to take: [max_tokens, hidden] of the output type.
 * On GPUs it spares a copy of them; on the host the tensor is WEFT_NONE.
 */
weft_status weft_ep_gradient_buffer(weft_ep ep, weft_tensor *tensor);

/* Where to put what routing alone says. Members that are NULL are left out; all memory is the host's. */
typedef struct weft_ep_token_counts {
	size_t size;
	int64_t experts, ranks, ranks_per_node;
	int32_t *rank_tokens;       /* [ranks]: tokens with an expert there */
	int32_t *node_tokens;       /* [ranks / ranks_per_node] */
	int32_t *expert_selections; /* [experts] */
	uint8_t *token_in_rank;     /* [tokens, ranks]: 1 or 0 */
} weft_ep_token_counts;

/* Counts where tokens go: topk is int32 or int64 [tokens, top-k] on the host, -1 for none. Local: it needs no handle
 * and no rank. */
weft_status weft_ep_count(const weft_tensor *topk, const weft_ep_token_counts *layout);

/* Makes what counts where tokens go on the GPU of a communicator, for experts in equal shares on so many ranks, so many
 * of them a node. Local: ranks may differ. */
weft_status weft_ep_token_counter_create(weft_comm comm, int64_t experts, int64_t ranks, int64_t ranks_per_node,
								   weft_ep_token_counter *counter);

/* Where to put what is counted, in the GPU's memory. Tensors that are NULL are left out. */
typedef struct weft_ep_device_token_counts {
	size_t size;
	const weft_tensor *rank_tokens;       /* int32 [ranks]: tokens with an expert there */
	const weft_tensor *node_tokens;       /* int32 [ranks / ranks_per_node] */
	const weft_tensor *expert_selections; /* int32 [experts] */
	const weft_tensor *token_in_rank;     /* uint8 [tokens, ranks]: 1 or 0 */
} weft_ep_device_token_counts;

/* Enqueues one kernel that counts: topk is int32 or int64 [tokens, top-k] in the GPU's memory; what is no expert counts
 * as none. Local. */
weft_status weft_ep_token_counter_count(weft_ep_token_counter counter, weft_stream stream, const weft_tensor *topk,
								  const weft_ep_device_token_counts *into);

/* Gives the counter up. It first waits for the rank's work, and keeps the counter, to be destroyed again, if that has
 * not ended by the deadline. */
weft_status weft_ep_token_counter_destroy(weft_ep_token_counter counter);

/*
 * Turns routing into a handle for dispatches and combines: topk holds the experts of each token, int32 or int64
 * [tokens, top-k], -1 for none, those of a token distinct; weights, fp32 [tokens, top-k], may be NULL if sums are plain
 * or weights come later, with a dispatch or a combine. Both may be changed afterwards, on a GPU once the stream has
 * passed. Collective.
 */
weft_status weft_ep_prepare(weft_ep ep, weft_stream stream, const weft_tensor *topk, const weft_tensor *weights,
							weft_routing *routing);

typedef struct weft_ep_dispatch_args {
	size_t size;
	weft_routing routing;       /* or NULL: prepare, too, by the next two */
	const weft_tensor *topk;    /* as weft_ep_prepare has them; NULL with a routing */
	const weft_tensor *weights; /* with a routing, on every rank or on none: they take the place of those that it had,
								   here and where the rows arrive */
	const weft_tensor *rows;    /* [tokens, hidden]; opaque: uint8 [tokens, row_bytes] */
	const weft_tensor
		*scales; /* FP8: fp32 [tokens, hidden / 128]; UE8M0: ue8m0; opaque: uint8 [tokens, scale_bytes]; else NULL */
} weft_ep_dispatch_args;

typedef struct weft_ep_dispatch_result {
	size_t size;
	weft_received received; /* released by weft_received_release */
	weft_routing routing;   /* that of the arguments, or a new one, released by weft_routing_release */
	weft_tensor *data;      /* given by the caller, or NULL: filled in with where the rows are */
	weft_tensor *scales;    /* the same for scales */
} weft_ep_dispatch_result;

/*
 * Sends the rows of this rank's tokens to their experts, and receives those that come. With work instead of result it
 * sends only, rows and scales stay borrowed, and weft_work_receive is the second half, before which the ep handle does
 * nothing else. One of the two is NULL. Collective.
 */
weft_status weft_ep_dispatch(weft_ep ep, weft_stream stream, const weft_ep_dispatch_args *args,
							 weft_ep_dispatch_result *result, weft_work *work);

/*
 * Where to put copies of what was received; members that are NULL are left out. rows is that of the received data,
 * counted as one for all experts; with a packed layout tensors may have more.
 */
typedef struct weft_ep_copy_args {
	size_t size;
	weft_received received;
	const weft_tensor *rows;                         /* of the type and shape of a weft_ep_dispatch_result's data */
	const weft_tensor *scales;                       /* the same for scales, or as they would be there in this order */
	int32_t scale_order;                             /* weft_scale_order */
	int32_t reserved;                                /* 0 */
	const weft_tensor *source_tokens, *source_ranks; /* int32 [rows], and what follows: as weft_routing_part has them */
	const weft_tensor *row_weights;                  /* fp32 [rows], layouts by expert */
	const weft_tensor *row_experts,
		*row_selection_weights; /* int32 and fp32 [rows, top-k], layouts of one row per rank */
	const weft_tensor *expert_counts, *ranges, *source_counts;
} weft_ep_copy_args;

/*
 * Copies what a dispatch has received to memory of the caller's: the rows that exist, pads included, their scales, and
 * what the routing says of them. All else in the tensors stays as it was. On a GPU it is one kernel that goes by the
 * counts in the GPU's memory, in the stream of the dispatch or one that waits for it, and may be captured; rows begin
 * on multiples of 16 bytes and scales on multiples of 4. Tensors may overlap neither each other nor what was received.
 * What is refused has written nothing. Local.
 */
weft_status weft_ep_copy_received(weft_ep ep, weft_stream stream, const weft_ep_copy_args *args);

typedef struct weft_ep_combine_args {
	size_t size;
	weft_routing routing;
	const weft_tensor *rows; /* as dispatch gave them, of the output type; packed, with counts on the device, the first
								may be enough: all that have come */
	const weft_tensor *out;  /* [tokens, hidden]: written; overlaps no row */
	const weft_tensor *bias[2]; /* [tokens, hidden], added first; or NULL */
	/*
	 * fp32 [tokens, top-k], for the exact weighted reduction, which needs weights at home alone; or NULL. They take the
	 * place of those that the routing had at home. What is wrong with them is refused on this rank only.
	 */
	const weft_tensor *weights;
	/*
	 * Whose rows these are, or NULL. Rows in memory for received rows are refused once that was released or holds
	 * another routing's batch, and in that of another weft_ep of the communicator; this tells them from a later batch
	 * of the same routing, too. Rows in any other memory are the caller's, whatever stands here.
	 */
	weft_received received;
} weft_ep_combine_args;

/*
 * Brings the experts' rows home and sums them. With work it sends only, all operands stay borrowed, and weft_work_wait
 * is the second half; work may be NULL. Collective.
 */
weft_status weft_ep_combine(weft_ep ep, weft_stream stream, const weft_ep_combine_args *args, weft_work *work);

typedef struct weft_ep_dispatch_backward_args {
	size_t size;
	weft_routing routing;
	const weft_tensor *grad_rows; /* as dispatch gave the rows */
	const weft_tensor
		*grad_row_weights;          /* fp32 [rows], with top-k numbers a row for layouts of one row per rank; or NULL */
	const weft_tensor *grad_tokens; /* [tokens, hidden]: written */
	const weft_tensor *grad_weights; /* fp32 [tokens, top-k]: written; NULL with grad_row_weights */
	weft_received received;          /* in whose memory grad_rows are, or NULL: as weft_ep_combine_args has it */
} weft_ep_dispatch_backward_args;

/* The gradient of dispatch: what a combine does, without weights. Collective. */
weft_status weft_ep_dispatch_backward(weft_ep ep, weft_stream stream, const weft_ep_dispatch_backward_args *args);

typedef struct weft_ep_combine_backward_args {
	size_t size;
	weft_routing routing;
	const weft_tensor *grad_out;     /* [tokens, hidden] */
	const weft_tensor *rows;         /* what was combined; or NULL */
	const weft_tensor *grad_rows;    /* written; may be rows */
	const weft_tensor *grad_weights; /* fp32 [tokens, top-k]: written; NULL with rows */
	weft_received received;          /* in whose memory rows are, or NULL: as weft_ep_combine_args has it */
} weft_ep_combine_backward_args;

/* The gradient of combine: what a dispatch does, with weights. Collective. */
weft_status weft_ep_combine_backward(weft_ep ep, weft_stream stream, const weft_ep_combine_backward_args *args);

/*
 * Says where later operations count for how many nanoseconds this rank waited for each of the others: int64 [ranks], to
 * which every operation adds; NULL counts nothing. The memory is borrowed as long as such operations may run. Local.
 */
weft_status weft_ep_count_waits(weft_ep ep, const weft_tensor *dispatch, const weft_tensor *combine);

/* The second half of a dispatch. The work is over, whatever it returns but WEFT_ERROR_HANDLE, WEFT_ERROR_BUSY and
 * refusals of result itself. Collective. */
weft_status weft_work_receive(weft_work work, weft_ep_dispatch_result *result);

/* The second half of a combine, by the same rules. Collective. */
weft_status weft_work_wait(weft_work work);

/* Gives received rows back: they must not be read after, and a combine of them must have returned; one that comes later
 * is refused. Local. */
weft_status weft_received_release(weft_received received);

/* Numbers of a routing. Where they are counted on a GPU, asking waits for it; they are 0 while the stream captures. */
typedef struct weft_routing_info {
	size_t size;
	int64_t tokens;      /* that this rank dispatches */
	int64_t rows;        /* of the tensors that dispatch returns */
	int64_t received;    /* rows that exist here, pads included */
	int64_t demand;      /* rows routed here, dropped ones included */
	int64_t selections;  /* of this rank's tokens */
	int64_t visits;      /* distinct pairs of this rank's tokens and a rank */
	int64_t remote_rows; /* that cross to other ranks */
} weft_routing_info;

weft_status weft_routing_get(weft_routing routing, weft_routing_info *info);

typedef enum weft_routing_part {
	WEFT_EXPERT_COUNTS = 0,  /* int32 [local experts]: rows in each expert's zone, pads not counted */
	WEFT_EXPERT_DEMAND = 1,  /* int32 [local experts]: selections of each expert, dropped ones included */
	WEFT_PADDED_COUNTS = 2,  /* int32 [local experts]: rows of each zone, pads included */
	WEFT_EXPERT_OFFSETS = 3, /* int32 [local experts]: the first row of each zone */
	WEFT_RANGES = 4, /* int64 [local experts, ranks]: begin << 32 | count of each source rank's rows, in the zone */
	WEFT_SOURCE_COUNTS = 5,          /* int32 [ranks]: tokens that each rank sends here */
	WEFT_SOURCE_RANKS = 6,           /* int32 [rows]: -1 for rows that hold no token */
	WEFT_SOURCE_TOKENS = 7,          /* int32 [rows]: the token's index at its source */
	WEFT_ROW_WEIGHTS = 8,            /* fp32 [rows], layouts by expert: the weight of each row's selection */
	WEFT_ROW_EXPERTS = 9,            /* int32 [rows, top-k], layouts of one row per rank: local experts, or -1 */
	WEFT_ROW_SELECTION_WEIGHTS = 10, /* fp32 [rows, top-k], layouts of one row per rank */
	WEFT_ROW_DEMAND = 11,            /* int32 [1]: rows routed here, pads and dropped ones included */
	WEFT_SOURCE_SELECTIONS = 12 /* int32 [rows], layouts by expert: which of its token's selections the row is; -1 for
								   rows that hold no token */
} weft_routing_part;

/* A tensor that describes the routing, where the handle's rows are. It lives as long as the routing, weights until a
 * dispatch brings others. One that the layout does not have is WEFT_NONE. */
weft_status weft_routing_tensor(weft_routing routing, int part, weft_tensor *tensor);

/* Where to put what describes a routing; members that are NULL are left out. All memory is the host's, of as many
 * numbers as weft_routing_part says. */
typedef struct weft_routing_description {
	size_t size;
	int32_t *expert_counts, *expert_demand, *padded_counts, *expert_offsets;
	int64_t *ranges;
	int32_t *source_counts, *source_ranks, *source_tokens;
	float *row_weights;
	int64_t *row_experts; /* wider than the part */
	float *row_selection_weights;
	int32_t *source_selections;
} weft_routing_description;

/* Writes what weft_routing_tensor gives to memory of the caller's, all in one call. On the host only: on GPUs take the
 * tensors. Local. */
weft_status weft_routing_describe(weft_routing routing, const weft_routing_description *description);

/* Gives a routing back, for the handle's next prepare. Local. */
weft_status weft_routing_release(weft_routing routing);

/* Collectives, between ranks on the host. Results are the same bits on every rank and in every run. */

typedef struct weft_group_options {
	size_t size;
	int64_t scratch; /* bytes that stage operands which lie in no window; 0 is 4 MiB */
} weft_group_options;

/* Makes the handle of collectives, and all the memory that they need. Collective. options may be NULL. */
weft_status weft_group_create(weft_comm comm, const weft_group_options *options, weft_group *group);

weft_status weft_group_destroy(weft_group group);

/* Returns when every rank has entered. Collective. */
weft_status weft_barrier(weft_group group, weft_stream stream);

/* Reduces elementwise, in rank order. out and in have the same number of elements, and may be the same memory.
 * Collective. */
weft_status weft_all_reduce(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							int op);

/* Gives every rank the inputs of all: rank r's at r times the elements of in. in may be this rank's part of out.
 * Collective. */
weft_status weft_all_gather(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in);

/* Gives every rank the contents of root's tensor. Collective. */
weft_status weft_broadcast(weft_group group, weft_stream stream, const weft_tensor *tensor, int root);

#ifdef __cplusplus
}
#endif

#endif
