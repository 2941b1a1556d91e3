/*
 * Weft: moves tensors between the ranks of a machine-learning job, for C and for every language that can call C.
 *
 * Link with -lweft, or open libweft.so. The library holds a Go runtime, one for the process: open it once, never unload
 * it.
 *
 * Handles. A handle has the type of a pointer and is a number: it must be neither dereferenced nor incremented. The
 * library refuses a handle that was destroyed, belongs to another library or is NULL, without touching memory.
 *
 * Structs begin with their size: set it to sizeof, and every member that you do not use to 0. Later versions append
 * members; their 0 means what the library did before. A library refuses a newer program's struct if a member that the
 * library does not know is not 0. The library fills in structs up to the given size. weft_tensor follows the same rule.
 *
 * Errors. A function that can fail returns a weft_status; on failure weft_error has the message. The library never
 * throws, exits or aborts. A failed call sets the handles that it would have returned to NULL, except in a forked
 * child, where it does not touch them.
 *
 * Ranks. Every rank of the communicator that is not masked calls the functions marked "collective", in the same order.
 * If a rank's arguments break a rule of Weft, every rank refuses the call. If they are wrong as C (NULL, a short
 * struct, a stale handle), only this rank refuses, and has not made the call: the others wait for it, at most until the
 * deadline.
 *
 * Threads. Any thread may make any call. Calls on one object exclude each other: a second one is refused, not queued. A
 * weft_ep and its routings, received rows and works are one object in this respect. weft_comm_get, weft_comm_error,
 * weft_comm_abort, weft_comm_wait, and what is asked of a work of weft_group_start, may be called at any time. Groups,
 * handles and windows of one communicator are separate objects; every rank makes their collective calls in the same
 * order.
 *
 * Processes. After fork the child can call nothing but weft_error, weft_error_rank, weft_error_set, weft_status_name,
 * weft_version, weft_release, weft_text_free and weft_dlpack_deleter: it has none of the library's threads. Every other
 * function then returns WEFT_ERROR_FORKED. Start ranks by fork and exec, posix_spawn or a launcher.
 *
 * Signals. A handler that is installed after the library was loaded needs SA_ONSTACK: it may interrupt Go code, whose
 * stacks are small, and without the flag it overwrites the memory below such a stack. Loading the library adds the flag
 * to handlers that are already installed. weft_signal_check finds handlers that lack it, and can add it. With the flag
 * a handler has 32 KiB on threads that have called the library, unless the thread set an alternate stack before.
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

/* The version of this interface. A library serves programs of its own version and of earlier ones. */
#define WEFT_VERSION 1

/* The version of the interface that the loaded library has. */
int weft_version(void);

/* The number of the release that this header is of. Programs ask WEFT_VERSION; this is for people. */
#define WEFT_RELEASE "0.1.0"

/* The number of the release that the loaded library is of. */
const char *weft_release(void);

/*
 * A deleter for DLPack's DLManagedTensor. It stores 1 in the int32_t that manager_ctx points to, if that is not NULL,
 * and does nothing else. Any thread and a forked child may call it. The owner of the memory reads the int32_t to learn
 * that the consumer has released the tensor. The Python package uses it because a deleter in Python code could run
 * while the interpreter handles an exception.
 */
void weft_dlpack_deleter(void *managed_tensor);

/* Errors. */

typedef enum weft_status {
	WEFT_OK = 0,
	WEFT_ERROR_INVALID = 1,     /* the arguments contradict each other or the contract; nothing was enqueued */
	WEFT_ERROR_UNSUPPORTED = 2, /* not supported here; nothing was enqueued, and the message names the way out */
	WEFT_ERROR_TIMEOUT = 3,  /* a rank did not answer before the deadline, or ranks wait for each other (the rank is -1,
								the message lists them) */
	WEFT_ERROR_ABORTED = 4,  /* a rank aborted the operation */
	WEFT_ERROR_DIED = 5,     /* a rank's process ended */
	WEFT_ERROR_LEFT = 6,     /* a rank destroyed its communicator */
	WEFT_ERROR_MISMATCH = 7, /* ranks made different calls, or arguments that must be equal on all ranks differ */
	WEFT_ERROR_MASKED = 8,   /* this rank, or the one asked for, is masked */
	WEFT_ERROR_CLOSED = 9,   /* this rank has closed an object that the call needs */
	WEFT_ERROR_OVERFLOW = 10, /* more rows were routed than the capacity; nothing has moved */
	WEFT_ERROR_HANDLE = 11,   /* a handle is NULL, was destroyed, or belongs to another library */
	WEFT_ERROR_BUSY = 12,     /* another thread is inside a call on the same object */
	WEFT_ERROR_FORKED = 13,   /* the process was forked after the library was loaded */
	WEFT_ERROR_SYSTEM = 14,   /* the operating system, the network or the GPU's driver failed; the message quotes it */
	WEFT_ERROR_INTERNAL = 15  /* a defect of the library, or an address that is not mapped; the message says where */
} weft_status;

/* The message of this thread's last failure; "" before the first. It stays valid until the next failure of the same
 * thread. */
const char *weft_error(void);

/* The rank to blame for this thread's last failure, or -1 for none. */
int weft_error_rank(void);

/* Sets this thread's last failure, and returns its status: for libraries that put another interface over this one. */
weft_status weft_error_set(weft_status status, int rank, const char *message);

/*
 * Has this thread's next call that makes an object of a communicator, and is collective, be refused on all ranks, for a
 * reason of at most 1,000 bytes: for libraries that put another interface over this one, and find an argument wrong
 * that they cannot pass. Make that call next, with any other arguments that are right as C. NULL takes the reason back.
 * The same goes for weft_comm_set_mask.
 */
weft_status weft_refuse(const char *reason);

/* The name of a status: "WEFT_ERROR_TIMEOUT". */
const char *weft_status_name(int status);

/*
 * Bounds every later call of this thread that waits on the host, in milliseconds, beside the communicator's deadline; 0
 * removes the bound. A call that reaches it returns WEFT_ERROR_TIMEOUT, and the other ranks get WEFT_ERROR_ABORTED with
 * this rank's number, as after weft_comm_abort. weft_comm_wait is the exception: it aborts no operation, and may be
 * called again. Kernels that are enqueued on the caller's stream wait on the GPU, by the communicator's deadline only.
 */
weft_status weft_timeout_set(int64_t milliseconds);

/* Is asked by a thread whose call waits on the host, every 100 ms or so, whether to go on: 0 is yes. It may make weft_
 * calls on objects that no call is at work on. */
typedef int (*weft_ask_fn)(void *context);

/*
 * Sets what this thread asks while its calls wait; NULL is nothing. Once the answer is not 0 the call ends with
 * WEFT_ERROR_ABORTED, and the other ranks get that with this one's number, as after weft_comm_abort. Interpreters
 * serve signals so.
 */
weft_status weft_ask_set(weft_ask_fn ask, void *context);

/*
 * Has this thread, the main one of a Python interpreter, serve Python's signal handlers while its calls wait.
 * functions are the addresses of PyGILState_Ensure, PyGILState_Release, PyErr_CheckSignals and PyErr_Fetch.
 */
weft_status weft_ask_python(void **functions);

/* The exception with which such a handler has ended the last call: three objects, as PyErr_Fetch gives them. 1 says
 * that there was one, which is the caller's now. */
int weft_python_exception(void **exception);

/*
 * Looks for signal handlers that lack SA_ONSTACK. If there are any it returns WEFT_ERROR_INVALID, and weft_error lists
 * them by signal, and by the function's name where the loader knows it. With repair it adds the flag instead and
 * changes nothing else; no other thread may install handlers meanwhile. Creating a communicator writes such handlers to
 * its log.
 */
weft_status weft_signal_check(int repair);

/* Types. */

typedef struct weft_comm_s *weft_comm;                         /* a communicator: this rank among the others */
typedef struct weft_window_s *weft_window;                     /* symmetric memory */
typedef struct weft_ep_s *weft_ep;                             /* expert parallelism for one spec */
typedef struct weft_routing_s *weft_routing;                   /* which row of which rank each selection goes to */
typedef struct weft_received_s *weft_received;                 /* a received batch */
typedef struct weft_work_s *weft_work;                         /* an operation that was begun */
typedef struct weft_group_s *weft_group;                       /* collectives */
typedef struct weft_ep_token_counter_s *weft_ep_token_counter; /* counts tokens on a GPU */
typedef struct weft_executor_s *weft_executor;                 /* runs plans */
typedef struct weft_port_s *weft_port;                         /* makes channels between ranks */
typedef struct weft_port_memory_s *weft_port_memory;           /* what channels put from and into */
typedef struct weft_port_channel_s *weft_port_channel;         /* a way to a peer's memory, and signals */

/*
 * A stream of the caller's: a CUstream or cudaStream_t of the GPU's primary context. The call enqueues on it and
 * returns. NULL is CUDA's legacy default stream. On the host it must be NULL, and a call returns when it is done. The
 * calling thread's CUDA context does not change.
 */
typedef void *weft_stream;

/* The communicator's own stream, on GPUs. It is ordered with no other stream. */
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
	WEFT_BOOL = 16, /* a byte, true if it is not 0 */
	WEFT_ABSENT =
		255 /* no tensor; data is a string that says why. Collective calls refuse it on every rank, with that text */
} weft_dtype;

/* How elements are reduced. */
typedef enum weft_op {
	WEFT_SUM = 0, /* integers wrap; bool: or */
	WEFT_PROD = 1, /* integers wrap; bool: and */
	WEFT_MIN = 2,  /* NaN wins, and -0 is below +0; bool: and */
	WEFT_MAX = 3,  /* the same; bool: or */
	WEFT_AVG = 4,  /* the sum, divided by the ranks that take part; integers truncate towards zero; no bool */
	WEFT_PREMULSUM = 5 /* the sum of the elements times a scalar; no bool */
} weft_op;

#define WEFT_MAX_DIMS 4

/*
 * A dense row-major view of memory: of the host, or of the GPU that the communicator is bound to. As an argument, NULL
 * or a tensor of type WEFT_NONE is no tensor. If a layer over this library refuses an argument of a collective call, it
 * makes the call nevertheless, with a tensor of type WEFT_ABSENT in the argument's place. The other ranks then get the
 * reason and do not wait.
 */
typedef struct weft_tensor {
	size_t size;
	void *data;
	int32_t dtype; /* weft_dtype */
	int32_t dims;  /* 0 to WEFT_MAX_DIMS */
	int64_t shape[WEFT_MAX_DIMS];
} weft_tensor;

/* Communicators. */

/* Takes a line of text without a newline. The library calls it from any thread until weft_comm_destroy has returned.
 * It must make no weft_ call. */
typedef void (*weft_log_fn)(void *context, const char *line);

typedef struct weft_comm_options {
	size_t size;
	int32_t engine;        /* weft_engine; the same on every rank */
	int32_t gpu;           /* WEFT_GPU: its number among the GPUs that the process sees */
	int64_t deadline_ms;   /* bounds every wait after joining; 0 is a minute. Joining takes two minutes at most, or as
							  long as weft_timeout_set says */
	int32_t no_huge_pages; /* 1: windows do not use the system's pool of huge pages */
	int32_t reserved;      /* 0 */
	weft_log_fn log;       /* gets joins, faults, masks and the first call by each algorithm; NULL is no log */
	void *log_context;
} weft_comm_options;

/* Joins by the environment that weft run, torchrun, Slurm, Open MPI, MPICH or Kubernetes sets; without one, as the only
 * rank. Collective. options may be NULL. */
weft_status weft_comm_create(const weft_comm_options *options, weft_comm *comm);

#define WEFT_UNIQUE_ID_BYTES 136

/*
 * Makes the id of a new communicator: a text, ended by 0, in WEFT_UNIQUE_ID_BYTES bytes. It contains a secret. Rank 0
 * makes it and listens from then on; pass it to the other ranks by any means. interface is the network interface to
 * listen on: "lo" for ranks of this host, NULL for all.
 */
weft_status weft_unique_id_create(char *id, const char *interface);

/* Releases an id that no rank 0 of this process has used. */
weft_status weft_unique_id_release(const char *id);

/* Joins the communicator of an id as the given rank of so many. Collective; rank 0 is in the process that made the id.
 */
weft_status weft_comm_create_with_id(const char *id, int rank, int ranks, const weft_comm_options *options,
									 weft_comm *comm);

/*
 * The caller's all-gather: every rank passes the same number of bytes, and gets those of all ranks in rank order, as
 * from MPI_Allgather. 0 is success. Only weft_comm_create_with_all_gather calls it, in the calling thread. It must
 * bound its own waits.
 */
typedef int (*weft_all_gather_fn)(void *context, const void *mine, size_t bytes, void *all);

/* Joins through the caller's all-gather. Collective. */
weft_status weft_comm_create_with_all_gather(weft_all_gather_fn all_gather, void *context, int rank, int ranks,
											 const weft_comm_options *options, weft_comm *comm);

/*
 * Leaves the communicator, and destroys every object that was made from it. It waits for no other rank; peers that
 * still wait for this one get WEFT_ERROR_LEFT. It is refused while another thread is inside a call on the communicator
 * or on such an object (weft_comm_abort ends that call). After any other failure the handle is destroyed nevertheless.
 * Calls that weft_group_start began end first; after weft_comm_abort they do at once.
 */
weft_status weft_comm_destroy(weft_comm comm);

/*
 * The first half of weft_comm_destroy: tells the peers that this rank is gone, but keeps all memory mapped until
 * weft_comm_destroy. Every later call on the communicator fails with WEFT_ERROR_CLOSED. It is refused while another
 * thread is inside a call, as weft_comm_destroy is.
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

/* Writes the set of masked ranks to n words: rank r is bit r % 64 of word r / 64. (ranks + 63) / 64 words are
 * enough. */
weft_status weft_comm_mask(weft_comm comm, uint64_t *words, int n);

/* Writes the host of each of the n ranks. Ranks of one host share memory; hosts are numbered from 0 in the order of
 * their lowest ranks, alike on all ranks. */
weft_status weft_comm_hosts(weft_comm comm, int32_t *hosts, int n);

/* Returns the failure that every operation returns until weft_comm_set_mask, or WEFT_OK. */
weft_status weft_comm_error(weft_comm comm);

/* Makes every pending and later operation of every rank fail with WEFT_ERROR_ABORTED and this rank's number, until
 * weft_comm_set_mask. */
weft_status weft_comm_abort(weft_comm comm);

/*
 * weft_comm_abort for signal handlers: it is async-signal-safe. What waits returns WEFT_ERROR_ABORTED within 0.3 s. A
 * comm of NULL means every communicator, and joins in progress. It says nothing of a comm that is stale.
 *
 * The library changes no signal's disposition: without a handler SIGINT ends the process, which the peers of this rank
 * see at once.
 */
weft_status weft_interrupt(weft_comm comm);

/*
 * Continues after a failure: the ranks of the mask are left out, all others take part. The mask is n words as
 * weft_comm_mask writes them; no words are the empty mask. The ranks that remain call it with the same mask, while none
 * of their operations is in progress. A job never splits in two: if ranks mask each other, one side continues (the
 * first to decide; else the larger, or of equal ones that with the lowest rank), and the others get WEFT_ERROR_MASKED.
 * A masked rank waits here, with a mask that does not contain the ranks that continue, until they take it back.
 *
 * Once it has returned, nothing that a masked rank of another host writes lands in windows or port memories. Such a
 * write ends that rank's connection: it cannot be taken back, which every rank is told by WEFT_ERROR_DIED.
 */
weft_status weft_comm_set_mask(weft_comm comm, const uint64_t *words, int n);

/*
 * Makes a communicator of each color from 0 on: of the ranks that gave it, numbered by their keys and, where those are
 * equal, in the order that they have in comm. A color of -1 joins none, and made is NULL. It is collective over the
 * ranks that are not masked. A new communicator has the options of comm and is on the same GPU. It is destroyed by
 * itself, and writes to comm's log for as long as comm is there. If a rank's color is refused, all ranks get the error.
 */
weft_status weft_comm_split(weft_comm comm, int64_t color, int64_t key, weft_comm *made);

/* weft_comm_split of all ranks, in their order. While ranks are masked it is refused: weft_comm_shrink leaves them
 * out. */
weft_status weft_comm_duplicate(weft_comm comm, weft_comm *made);

/* Makes a communicator of the ranks that are not masked, numbered anew in their order: after a rank has died and
 * weft_comm_set_mask. */
weft_status weft_comm_shrink(weft_comm comm, weft_comm *made);

/* Waits until the work that was enqueued on the stream has ended, and returns the failure that an operation has met
 * meanwhile. On the host it only returns the failure. */
weft_status weft_comm_wait(weft_comm comm, weft_stream stream);

/* Windows. */

/* Makes a window of so many bytes on each rank, zeroed: memory of the host, or of the rank's GPU. Collective. */
weft_status weft_window_create(weft_comm comm, size_t bytes, weft_window *window);

/* Makes a window of a memfd on the host: at least so many bytes, sealed against shrinking. The caller keeps the
 * descriptor. Collective. */
weft_status weft_window_create_from_fd(weft_comm comm, int fd, size_t bytes, weft_window *window);

/*
 * Makes a window of the caller's memory, which must outlive the window on every rank: on a GPU, device memory of one
 * allocation; on the host, any memory, but only if all ranks are in this process. Memory of a GPU must outlive the
 * communicator where ranks of several hosts have met a failure. Collective.
 */
weft_status weft_window_create_from_memory(weft_comm comm, void *memory, size_t bytes, weft_window *window);

typedef struct weft_window_info {
	size_t size;
	uint64_t id; /* the same on every rank */
	uint64_t bytes;
	void *memory; /* this rank's segment */
} weft_window_info;

weft_status weft_window_get(weft_window window, weft_window_info *info);

/* The address at which this rank's processor or GPU reaches another rank's segment. NULL for a rank that was masked
 * when the window was made. */
weft_status weft_window_peer(weft_window window, int rank, void **memory);

/* Destroys the window on this rank; its pointers are then invalid. On a GPU no work may still use it. */
weft_status weft_window_destroy(weft_window window);

/* Expert parallelism. docs/guides/ep-support.md says which combinations are supported. */

/* The order in which a rank receives rows. */
typedef enum weft_layout {
	WEFT_EXPERT_MAJOR = 0,  /* received rows are [local experts, rows per expert, hidden] */
	WEFT_EXPERT_PACKED = 1, /* [rows, hidden]: the experts' rows follow each other, padded to the alignment */
	WEFT_RANK_MAJOR = 2,    /* [ranks * max_tokens, hidden]: a token stands at its own index in its rank's zone */
	WEFT_TOKEN_MAJOR = 3    /* [rows, hidden]: one row per token and rank, by source rank, then token */
} weft_layout;

/* Where rows are summed. */
typedef enum weft_reduction {
	WEFT_EXACT = 0,                /* at home: fp32 fused multiply-adds, k ascending, rounded once */
	WEFT_PARTIAL = 1,              /* each rank sums its rows of a token, the home sums these in rank order */
	WEFT_PARTIAL_BY_SELECTION = 2, /* the same, but the home goes by each rank's last selection that has a row */
	WEFT_PARTIAL_BY_HOST = 3,      /* each host sums its rows of a token, the home sums these; not on one host's GPUs */
	WEFT_PARTIAL_BY_HOST_FP32 = 4  /* the same, with sums of fp32 on their way home */
} weft_reduction;

/* Whether combine applies the weights. */
typedef enum weft_weighting { WEFT_WEIGHTED = 0, WEFT_PLAIN = 1 } weft_weighting;

/* The elements of a dispatched row. */
typedef enum weft_payload {
	WEFT_PAYLOAD_BF16 = 0,
	WEFT_PAYLOAD_FP16 = 1,
	WEFT_PAYLOAD_FP32 = 2,
	WEFT_PAYLOAD_FP8 = 3,       /* e4m3 and an fp32 scale for each 128 numbers */
	WEFT_PAYLOAD_FP8_UE8M0 = 4, /* e4m3 and a power-of-two scale for each 128 numbers */
	WEFT_PAYLOAD_OPAQUE = 5     /* row_bytes and scale_bytes that are moved, not interpreted */
} weft_payload;

/* The order of received scales. */
typedef enum weft_scale_order { WEFT_ROW_MAJOR_SCALES = 0, WEFT_COLUMN_MAJOR_SCALES = 1 } weft_scale_order;

/* Whether the host learns how many rows arrive, or only the GPU. */
typedef enum weft_counts {
	WEFT_HOST_COUNTS = 0,  /* tensors of exactly the rows that arrive; the host waits for the counts */
	WEFT_DEVICE_COUNTS = 1 /* tensors of the capacity, with counts beside them; the host does not wait */
} weft_counts;

/* What happens to rows beyond the capacity. */
typedef enum weft_overflow { WEFT_OVERFLOW_REFUSE = 0, WEFT_OVERFLOW_DROP = 1 } weft_overflow;

/*
 * How a GPU kernel moves rows. It changes how long an operation takes, never its result. 0 is Weft's choice. Some
 * members are for handles in slot mode, some for handles in direct mode; docs/design/gpu-engine.md says which handle
 * has which mode. A member that does not fit the mode is refused.
 */
typedef struct weft_ep_kernel_tuning {
	size_t size;
	int32_t threads;   /* of a block: 64 to 512, a multiple of 32 */
	int32_t protocol;  /* slot mode: 1: values are their own flags; 2: flags */
	int32_t units;     /* slot mode, dispatch: units of 512 bytes that a warp moves at a time: 1, 2 or 4 */
	int32_t senders;   /* slot mode: how many of 16 blocks send while the others receive; -1: all do both */
	int32_t dependent; /* slot mode: 1: the next kernel may be scheduled while this one ends; -1: it may not */
	int32_t blocks;    /* direct mode: the most blocks */
	int32_t bulk;      /* direct mode: 1: bulk copies move rows; -1: threads do */
	int32_t warps;     /* direct mode: warps of a block that move rows by bulk copies */
	int32_t parts;     /* direct mode: parts of a row that a warp moves by bulk copies one after the other */
	int32_t reserved;  /* 0 */
} weft_ep_kernel_tuning;

/* Describes a handle's exchanges. It is the same on every rank. */
typedef struct weft_ep_spec {
	size_t size;
	int64_t experts;             /* of all ranks; rank r has the r-th share of experts / ranks */
	int64_t topk;                /* selections a token, 1 to 32 */
	int64_t hidden;              /* numbers a row */
	int64_t max_tokens;          /* the most that any rank dispatches at once */
	int32_t layout;              /* weft_layout */
	int32_t reduction;           /* weft_reduction */
	int32_t weighting;           /* weft_weighting */
	int32_t payload;             /* weft_payload */
	int32_t quantize;            /* weft_dtype of rows that dispatch quantises to FP8; 0: rows are quantised already */
	int32_t power_of_two_scales; /* 1: scales of quantised rows are powers of two, rounded up */
	int32_t scale_order;         /* weft_scale_order of received scales */
	int32_t output;              /* weft_dtype that combine takes and returns; 0: the payload's, or bf16 */
	int32_t counts;              /* weft_counts */
	int32_t overflow;            /* weft_overflow */
	int32_t sms;                 /* GPU: SMs that the kernels may fill; 0: three quarters of the free ones */
	int32_t reserved;            /* 0 */
	int64_t row_bytes;           /* opaque payload: bytes of a row */
	int64_t scale_bytes;         /* opaque payload: bytes of its scales, or 0 */
	int64_t capacity; /* the most rows that a rank (expert-major: an expert) can receive; 0 is the worst case */
	int64_t
		alignment; /* expert-packed: the multiple to which the experts' rows are padded, a power of two up to 65536 */
	int64_t live;  /* received batches that may be unreleased at once; 0 is 2 */
	const weft_ep_kernel_tuning *dispatch_tuning; /* GPU; NULL is Weft's choice */
	const weft_ep_kernel_tuning *combine_tuning;
	/* GPU: the number of a serial group; 0: none. Operations of its handles never run at once: they follow each other
	 * in stream order, in the same order on every rank. The handles therefore share one reservation of SMs. */
	int64_t serial_group;
} weft_ep_spec;

/* Checks whether a spec is supported for an engine and a number of ranks; weft_error says why not. Local. */
weft_status weft_ep_check(const weft_ep_spec *spec, int engine, int ranks);

/* Makes the handle, and all the memory that its exchanges need. Collective. */
weft_status weft_ep_create(weft_comm comm, const weft_ep_spec *spec, weft_ep *ep);

/*
 * Destroys the handle and every object that was made from it; received rows must not be read after. On a GPU it first
 * waits for the rank's work. If that has not ended by the deadline the handle remains, and is to be destroyed again.
 */
weft_status weft_ep_destroy(weft_ep ep);

typedef struct weft_ep_info {
	size_t size;
	int64_t capacity;                                /* rows of the largest received tensor */
	int64_t memory_bytes;                            /* of the handle's windows on this rank */
	int32_t dispatch_sms, combine_sms, gradient_sms; /* on a GPU: SMs that the kernels run on */
	int32_t reserved;
} weft_ep_info;

weft_status weft_ep_get(weft_ep ep, weft_ep_info *info);

/*
 * The handle's buffer for the rows of a combine or dispatch_backward: [capacity, hidden] of the output type. Rows that
 * begin at its start need no copy. It exists on GPUs where homes read rows in place: for token-major and packed
 * layouts and for a capacity that can overflow, unless ranks sum first (partial sums, by expert) or the buffer would be
 * too large. Else the tensor is WEFT_NONE. A handle has one such buffer. It is free again when the operation that read
 * it has ended on its stream. weft_comm_set_mask may move it.
 */
weft_status weft_ep_combine_buffer(weft_ep ep, weft_tensor *tensor);

/*
 * The handle's buffer for the grad_out of a combine_backward: [max_tokens, hidden] of the output type. On GPUs it saves
 * a copy; on the host the tensor is WEFT_NONE.
 */
weft_status weft_ep_gradient_buffer(weft_ep ep, weft_tensor *tensor);

/* How many tokens go to each rank, node and expert. weft_ep_count reads the first three numbers and fills in the
 * arrays, which are in host memory; it skips those that are NULL. */
typedef struct weft_ep_token_counts {
	size_t size;
	int64_t experts, ranks, ranks_per_node;
	int32_t *rank_tokens;       /* [ranks]: tokens with an expert there */
	int32_t *node_tokens;       /* [ranks / ranks_per_node] */
	int32_t *expert_selections; /* [experts] */
	uint8_t *token_in_rank;     /* [tokens, ranks]: 1 or 0 */
} weft_ep_token_counts;

/* Counts where tokens go: topk is int32 or int64 [tokens, top-k] on the host, -1 for none. Local: it needs no handle
 * and no communicator. */
weft_status weft_ep_count(const weft_tensor *topk, const weft_ep_token_counts *counts);

/* Makes a token counter: it counts where tokens go on the GPU of a communicator, for experts in equal shares on the
 * given number of ranks, ranks_per_node on each node. Local: ranks may pass different numbers. */
weft_status weft_ep_token_counter_create(weft_comm comm, int64_t experts, int64_t ranks, int64_t ranks_per_node,
										 weft_ep_token_counter *counter);

/* The same counts, as tensors in the GPU's memory. A count whose tensor is NULL is not taken. */
typedef struct weft_ep_device_token_counts {
	size_t size;
	const weft_tensor *rank_tokens;       /* int32 [ranks]: tokens with an expert there */
	const weft_tensor *node_tokens;       /* int32 [ranks / ranks_per_node] */
	const weft_tensor *expert_selections; /* int32 [experts] */
	const weft_tensor *token_in_rank;     /* uint8 [tokens, ranks]: 1 or 0 */
} weft_ep_device_token_counts;

/* Enqueues one kernel that counts: topk is int32 or int64 [tokens, top-k] in the GPU's memory; it ignores selections
 * that are no expert. Local. */
weft_status weft_ep_token_counter_count(weft_ep_token_counter counter, weft_stream stream, const weft_tensor *topk,
										const weft_ep_device_token_counts *into);

/* Destroys the counter. It first waits for the rank's work. If that has not ended by the deadline the counter remains,
 * and is to be destroyed again. */
weft_status weft_ep_token_counter_destroy(weft_ep_token_counter counter);

/*
 * Turns selections into a routing for dispatches and combines. topk holds the experts of each token: int32 or int64
 * [tokens, top-k], -1 for none; a token selects an expert at most once. weights is fp32 [tokens, top-k]; it may be NULL
 * if sums are plain, or if a dispatch or a combine brings weights later. The caller may change both tensors afterwards,
 * on a GPU once the stream has passed the call. Collective.
 */
weft_status weft_ep_prepare(weft_ep ep, weft_stream stream, const weft_tensor *topk, const weft_tensor *weights,
							weft_routing *routing);

typedef struct weft_ep_dispatch_args {
	size_t size;
	weft_routing routing;       /* or NULL: the dispatch prepares, from the next two */
	const weft_tensor *topk;    /* as for weft_ep_prepare; NULL with a routing */
	const weft_tensor *weights; /* with a routing, on every rank or on none: they replace the routing's weights here and
								   where the rows arrive */
	const weft_tensor *rows;    /* [tokens, hidden]; opaque: uint8 [tokens, row_bytes] */
	const weft_tensor
		*scales; /* FP8: fp32 [tokens, hidden / 128]; UE8M0: ue8m0; opaque: uint8 [tokens, scale_bytes]; else NULL */
} weft_ep_dispatch_args;

typedef struct weft_ep_dispatch_result {
	size_t size;
	weft_received received; /* released by weft_received_release */
	weft_routing routing;   /* that of the arguments, or a new one, released by weft_routing_release */
	weft_tensor *data;      /* given by the caller, or NULL: the call fills it in with the received rows */
	weft_tensor *scales;    /* the same for scales */
} weft_ep_dispatch_result;

/*
 * Sends the rows of this rank's tokens to their experts, and receives the rows of this rank's experts. With work
 * instead of result it only sends: rows and scales stay borrowed, and the next call on the ep handle is
 * weft_work_receive. One of result and work is NULL. Collective.
 */
weft_status weft_ep_dispatch(weft_ep ep, weft_stream stream, const weft_ep_dispatch_args *args,
							 weft_ep_dispatch_result *result, weft_work *work);

/*
 * The destinations of weft_ep_copy_received; NULL members are skipped. "rows" below is the number of rows of the
 * received data, all experts together; with a packed layout tensors may have more. They may have fewer if the host has
 * no counts: what one of them has no room for is not copied to any.
 */
typedef struct weft_ep_copy_args {
	size_t size;
	weft_received received;
	const weft_tensor *rows;   /* of the type and shape of a weft_ep_dispatch_result's data */
	const weft_tensor *scales; /* of the type and shape that received scales have in scale_order */
	int32_t scale_order;       /* weft_scale_order */
	int32_t reserved;          /* 0 */
	const weft_tensor *source_tokens, *source_ranks; /* int32 [rows]; all that follow are as for weft_routing_part */
	const weft_tensor *row_weights;                  /* fp32 [rows], layouts by expert */
	const weft_tensor *row_experts,
		*row_selection_weights; /* int32 or int64, and fp32 [rows, top-k], layouts of one row per rank */
	const weft_tensor *expert_counts, *ranges, *source_counts;
} weft_ep_copy_args;

/*
 * Copies a received batch to the caller's memory: the rows that exist, pads included, their scales, and their routing
 * metadata. It does not write the rest of the tensors. On a GPU it enqueues one kernel, which reads the counts from the
 * GPU's memory, in the stream of the dispatch or in one that waits for it; it may be captured. There rows begin on
 * multiples of 16 bytes and scales on multiples of 4. Tensors overlap neither each other nor the received batch. A call
 * that is refused has written nothing. Local.
 */
weft_status weft_ep_copy_received(weft_ep ep, weft_stream stream, const weft_ep_copy_args *args);

typedef struct weft_ep_combine_args {
	size_t size;
	weft_routing routing;
	const weft_tensor *rows; /* in the shape of the dispatched rows, of the output type; with a packed layout and device
								counts, the rows that have arrived are enough */
	const weft_tensor *out;  /* [tokens, hidden]: written; overlaps no row */
	const weft_tensor *bias[2]; /* [tokens, hidden], added first; or NULL */
	/*
	 * fp32 [tokens, top-k], for the exact weighted reduction, which uses weights at home only; or NULL. They replace
	 * the routing's weights at home. Wrong ones are refused on this rank only.
	 */
	const weft_tensor *weights;
	/*
	 * The received batch whose memory holds the rows, or NULL. Rows in a receive buffer are refused once that was
	 * released or holds another routing's batch, and if it is another weft_ep's of the communicator. With this member
	 * rows are also refused if the buffer holds a later batch of the same routing. It means nothing for rows in other
	 * memory.
	 */
	weft_received received;
} weft_ep_combine_args;

/*
 * Sends the experts' rows home, where they are summed. With work it only sends: all operands stay borrowed, and
 * weft_work_wait is the second half; work may be NULL. Collective.
 */
weft_status weft_ep_combine(weft_ep ep, weft_stream stream, const weft_ep_combine_args *args, weft_work *work);

typedef struct weft_ep_dispatch_backward_args {
	size_t size;
	weft_routing routing;
	const weft_tensor *grad_rows; /* in the shape of the dispatched rows, of the output type */
	const weft_tensor
		*grad_row_weights;          /* fp32 [rows], with top-k numbers a row for layouts of one row per rank; or NULL */
	const weft_tensor *grad_tokens; /* [tokens, hidden]: written */
	const weft_tensor *grad_weights; /* fp32 [tokens, top-k]: written; NULL with grad_row_weights */
	weft_received received;          /* the batch whose memory holds grad_rows, or NULL: see weft_ep_combine_args */
} weft_ep_dispatch_backward_args;

/* The gradient of dispatch: a combine without weights. Collective. */
weft_status weft_ep_dispatch_backward(weft_ep ep, weft_stream stream, const weft_ep_dispatch_backward_args *args);

typedef struct weft_ep_combine_backward_args {
	size_t size;
	weft_routing routing;
	const weft_tensor *grad_out;     /* [tokens, hidden] */
	const weft_tensor *rows;         /* the rows of the combine; or NULL */
	const weft_tensor *grad_rows;    /* written; may be rows */
	const weft_tensor *grad_weights; /* fp32 [tokens, top-k]: written; NULL with rows */
	weft_received received;          /* the batch whose memory holds rows, or NULL: see weft_ep_combine_args */
} weft_ep_combine_backward_args;

/* The gradient of combine: a dispatch with weights. Collective. */
weft_status weft_ep_combine_backward(weft_ep ep, weft_stream stream, const weft_ep_combine_backward_args *args);

/*
 * Sets the counters of waits for later operations: int64 [ranks]. Every operation adds, for each rank, the nanoseconds
 * that this rank waited for it to begin the same operation; NULL counts nothing. The memory is borrowed as long as such
 * operations may run. Local.
 */
weft_status weft_ep_count_waits(weft_ep ep, const weft_tensor *dispatch, const weft_tensor *combine);

/* The second half of a dispatch. The work ends here, unless the call returns WEFT_ERROR_HANDLE or WEFT_ERROR_BUSY or
 * refuses result itself. Collective. */
weft_status weft_work_receive(weft_work work, weft_ep_dispatch_result *result);

/*
 * The second half of a combine, by the same rules. Collective. For a work of weft_group_start: waits until the call has
 * ended, and returns its failure. That is local, may be repeated, and keeps the work. If the time of weft_timeout_set
 * ends first, the call goes on.
 */
weft_status weft_work_wait(weft_work work);

/* Releases a received batch. Its rows must not be read after. A combine of them must have returned; a later one is
 * refused. Local. */
weft_status weft_received_release(weft_received received);

/* Numbers of a routing. weft_routing_get waits for those that the GPU counts; they are 0 while the stream captures. */
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

/* A tensor of routing metadata, in the memory that the handle's rows are in: the host's or the GPU's. It is valid as
 * long as the routing, weights until a dispatch brings others. One that the layout does not have is WEFT_NONE. */
weft_status weft_routing_tensor(weft_routing routing, int part, weft_tensor *tensor);

/* Arrays in host memory for routing metadata, as large as weft_routing_part says. NULL members are skipped. */
typedef struct weft_routing_description {
	size_t size;
	int32_t *expert_counts, *expert_demand, *padded_counts, *expert_offsets;
	int64_t *ranges;
	int32_t *source_counts, *source_ranks, *source_tokens;
	float *row_weights;
	int64_t *row_experts; /* 64 bits here, 32 in WEFT_ROW_EXPERTS */
	float *row_selection_weights;
	int32_t *source_selections;
} weft_routing_description;

/* Copies the tensors of weft_routing_tensor to the caller's memory, in one call. On the host only; on GPUs use the
 * tensors. Local. */
weft_status weft_routing_describe(weft_routing routing, const weft_routing_description *description);

/* Releases a routing. Local. */
weft_status weft_routing_release(weft_routing routing);

/*
 * Collectives, between ranks on the host and between GPUs. Results are the same bits on every rank, in every run and on
 * both engines: ranks' elements are reduced in rank order, floats of 8 and 16 bits in fp32, and rounded once.
 *
 * Shapes play no part: an operand is its elements, in order. With R ranks and n elements a part:
 *
 *   operation        in       out      in place
 *   all-reduce       n        n        the same memory
 *   all-gather       n        R * n    in is this rank's part of out
 *   reduce-scatter   R * n    n        out is this rank's part of in
 *   all-to-all       R * n    R * n    the same memory
 *   broadcast        n        n        the same memory
 *   reduce           n        n        the same memory
 *   gather           n        R * n    root's in is its part of out
 *   scatter          R * n    n        root's out is its part of in
 *
 * The part of rank r stands at element r * n. Parts of different lengths (the functions that end in _v) stand where
 * counts say. Operands that are not in place must not overlap. Only root has an output of a reduce and a gather, and
 * an input of a broadcast and a scatter: the other ranks' is not looked at and may be NULL. Masked ranks count in R;
 * their parts are neither read nor written.
 *
 * On the host a call returns when this rank's result is complete, and a call that Weft refuses has moved nothing on any
 * rank. On GPUs it enqueues on the stream. Ranks do not meet before that: a rank whose own arguments are refused has
 * enqueued nothing, and the others wait for its correct call, at most until the deadline.
 */

/* All ranks pass the same. */
typedef struct weft_group_options {
	size_t size;
	int64_t scratch; /* host: bytes of the staging buffer, for operands that lie in no window; 0 is 4 MiB */
	int64_t staging; /* GPUs: bytes of each GPU's memory for what peers send; larger operands take several launches. 0
						is 64 MiB */
	int32_t sms;     /* GPUs: the most multiprocessors that kernels fill; 0 is three quarters of the free ones */
	int32_t reserved;
	int64_t serial_group; /* GPUs: as weft_ep_spec.serial_group, whose handles may be in the same; 0: none */
	uint64_t dtypes;      /* GPUs: types, bit t for weft_dtype t, whose kernels are loaded when the group is made, and not
							 by the first reduction of that type. A captured call can load none */
	const char *force;    /* names of algorithms, with spaces between: used where they support the call, in this order,
							 instead of those that are faster; NULL: none */
} weft_group_options;

/* Makes the handle of collectives, and all the memory that they need. Collective. options may be NULL. */
weft_status weft_group_create(weft_comm comm, const weft_group_options *options, weft_group *group);

/* Gives up the group's memory on this rank, and the works of calls that it has started. Local. It first waits until
 * those calls have ended, and on a GPU until none of the group's work runs, at most until the deadline: after
 * WEFT_ERROR_TIMEOUT the handle is still there, and may be destroyed later. */
weft_status weft_group_destroy(weft_group group);

typedef enum weft_collective {
	WEFT_BARRIER = 0,
	WEFT_ALL_REDUCE = 1,
	WEFT_ALL_GATHER = 2,
	WEFT_ALL_GATHER_V = 3,
	WEFT_REDUCE_SCATTER = 4,
	WEFT_REDUCE_SCATTER_V = 5,
	WEFT_ALL_TO_ALL = 6,
	WEFT_ALL_TO_ALL_V = 7,
	WEFT_BROADCAST = 8,
	WEFT_REDUCE = 9,
	WEFT_GATHER = 10,
	WEFT_SCATTER = 11,
	WEFT_POINT_TO_POINT = 100 /* no collective: messages between pairs of ranks */
} weft_collective;

/* A message to a rank, or from one. */
typedef struct weft_transfer {
	size_t size;
	const weft_tensor *tensor; /* of the same type and number of elements on both sides */
	int32_t peer;
	int32_t receive; /* 1: the message comes from peer; 0: it goes there */
} weft_transfer;

/* What an all-reduce of sums goes on to do with each row: y = sum, rounded; r = y + residual, rounded; x = r /
 * sqrt(mean(r * r) + eps) * gamma, in fp32 and rounded once; and if out is e4m3, its numbers. The bits are those of
 * each step alone. A row has as many elements as gamma. */
typedef struct weft_norm {
	size_t size;
	const weft_tensor *gamma;
	const weft_tensor *residual, *residual_out; /* NULL: none. residual_out gets r, and may be residual */
	/* Of an e4m3 out, one of these: scales gets a scale for each 128 columns, fp32 or UE8M0; or x is divided by scale,
	 * one fp32 number where operands are. */
	const weft_tensor *scales, *scale;
	float eps;
	int32_t power_of_two_scales; /* 1: fp32 scales are powers of two */
} weft_norm;

/* How a call is launched on GPUs, on all ranks alike. */
typedef struct weft_launch {
	size_t size;
	int32_t blocks;           /* at most; 0: as the algorithm does */
	int32_t threads;          /* of an algorithm of the caller's own; 0: as it says */
	const char **extras;      /* names of what such an algorithm takes, ended by NULL; NULL: none */
	const int64_t *addresses; /* where each is in the GPU's memory */
} weft_launch;

/* A call with all that one can say; what it does not have is ignored. Everything is borrowed for the call, memory of a
 * GPU until the stream has passed. */
typedef struct weft_collective_args {
	size_t size;
	int32_t collective;       /* weft_collective */
	int32_t op;               /* weft_op, of a reduction */
	int32_t root;             /* of a broadcast, reduce, gather or scatter */
	int32_t scalar_on_device; /* 1: the scalar is in the GPU's memory, and the kernel reads it */
	const weft_tensor *out, *in;
	const weft_tensor *scalar; /* of WEFT_PREMULSUM, the same on all ranks: one element, fp32 for floats of 8 and 16
								  bits, else of the operands' type */
	/* Elements and positions of the parts of in (send) and of out (recv), one for each rank of the communicator. Without
	 * positions parts stand one after the other. */
	const int64_t *send, *send_at, *recv, *recv_at;
	const char *algorithm;    /* by name, the same on all ranks; NULL: the fastest */
	int32_t symmetric;        /* 1: operands in windows lie at the same place of the same window on every rank. GPUs read
								 and write no other operand of a peer */
	int32_t counts_on_device; /* 1: all four arrays of an all-to-all-v are given, and in the GPU's memory: the kernel reads
								 them, and a replayed graph finds what is there then */
	const weft_transfer *transfers; /* messages, of the same size each, one after the other */
	int64_t transfer_count;
	const weft_norm *norm;     /* of an all-reduce of sums */
	const weft_tensor *words;  /* of an all-gather or a reduce-scatter: see weft_all_gather_progress */
	const weft_launch *launch; /* NULL: as the algorithm does */
} weft_collective_args;

/* Runs a call. Collective, unless it is of messages: see weft_batch. The functions below are this one with what they
 * pass. */
weft_status weft_group_run(weft_group group, weft_stream stream, const weft_collective_args *args);

/*
 * Begins a call, as weft_group_run does, and does not wait for it. Calls of a group run in the order in which they
 * begin: one that does not start waits for those that did. What is wrong with this rank's arguments is returned here;
 * the other ranks get it from their works.
 *
 * Structs are borrowed for weft_group_start. What they point to (elements, counts, scalar) is borrowed until the call
 * has ended: on the host the library works on it in a thread of its own. On a GPU the work is enqueued on the stream.
 */
weft_status weft_group_start(weft_group group, weft_stream stream, const weft_collective_args *args, weft_work *work);

typedef struct weft_work_info {
	size_t size;
	const char *algorithm; /* by name, of a call that has ended or is on a GPU; messages have none. "" or a name, valid
							  as long as the process */
	int32_t done;          /* 1: the call has ended, well or not */
	int32_t captured;      /* 1: a graph has captured the call, which is never done: the graph is what runs */
} weft_work_info;

/* Says how far a work of weft_group_start is. It does not wait. Local. */
weft_status weft_work_get(weft_work work, weft_work_info *info);

/* Makes a stream wait for the call, without waiting itself. If the call fails the stream goes on. On GPUs. Local. */
weft_status weft_work_wait_on(weft_work work, weft_stream stream);

/* Returns the failure of a call that has ended; of one that has not, the communicator's. It does not wait. Local. */
weft_status weft_work_error(weft_work work);

/* Gives up a work of weft_group_start. The call goes on, and so does the borrowing, if it has not ended. Local. */
weft_status weft_work_release(weft_work work);

/* Writes the name of the algorithm of the group's last call that was not started: "" before the first, and after one
 * that was refused. It is valid as long as the process. Local. */
weft_status weft_group_algorithm(weft_group group, const char **name);

/* An algorithm of a group. */
typedef struct weft_algorithm {
	size_t size;
	const char *name;              /* "all-reduce/pipeline", valid as long as the process; NULL behind the last */
	int64_t min_bytes, max_bytes;  /* of a part; 0: no bound */
	int32_t collective;            /* weft_collective */
	int32_t ranks;                 /* for which it is; 0: any number */
} weft_algorithm;

/* Writes the index-th algorithm of a group. Local. */
weft_status weft_group_algorithm_at(weft_group group, int index, weft_algorithm *algorithm);

/* Returns when every rank has entered; on GPUs the stream goes on then. Collective. */
weft_status weft_barrier(weft_group group, weft_stream stream);

/* Reduces elementwise. Collective. */
weft_status weft_all_reduce(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							int op);

/* Gives every rank the inputs of all. Collective. */
weft_status weft_all_gather(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in);

/* The same, of inputs of recv[r] elements, which go to recv_at[r] in out; NULL: one after the other. Both are the same
 * on all ranks. Collective. */
weft_status weft_all_gather_v(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							  const int64_t *recv, const int64_t *recv_at);

/* Reduces elementwise, and gives every rank its part of the result. Collective. */
weft_status weft_reduce_scatter(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
								int op);

/* The same, with parts of send[r] elements, the same counts on all ranks, one after the other. Collective. */
weft_status weft_reduce_scatter_v(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
								  const int64_t *send, int op);

/* Gives every rank its part of all inputs. Collective. */
weft_status weft_all_to_all(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in);

/* The same with parts of different lengths: a rank sends send[r] elements to rank r, from send_at[r] on, which is what
 * that one's recv says of this rank. NULL positions: one after the other. It is never in place. Collective. */
weft_status weft_all_to_all_v(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
							  const int64_t *send, const int64_t *send_at, const int64_t *recv, const int64_t *recv_at);

/* Gives every rank the contents of root's tensor, in place. Collective. Out of place by weft_group_run, where root has
 * both operands. */
weft_status weft_broadcast(weft_group group, weft_stream stream, const weft_tensor *tensor, int root);

/* Reduces elementwise, and gives root the result. Collective. */
weft_status weft_reduce(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in, int op,
						int root);

/* Gives root the inputs of all. Collective. */
weft_status weft_gather(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in, int root);

/* Gives every rank its part of root's input. Collective. */
weft_status weft_scatter(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in, int root);

/*
 * Sends a message to another rank, which receives it, and no other rank takes part. It returns, or on a GPU the stream
 * goes on, when that rank has taken the message, whatever its size: two ranks that both send first wait for each other.
 * Messages between two ranks are matched in their order.
 */
weft_status weft_send(weft_group group, weft_stream stream, const weft_tensor *tensor, int to);

/* Receives a message from another rank, of the type and the number of elements that it sends. If they differ both
 * ranks return WEFT_ERROR_MISMATCH. */
weft_status weft_recv(weft_group group, weft_stream stream, const weft_tensor *tensor, int from);

/*
 * Sends and receives messages together. They go on side by side, so ranks may exchange them in any pattern, and a rank
 * may send to itself. Tensors that are received into overlap no other tensor of the batch. Batches of different ranks
 * need not be alike, as long as the messages of each pair of ranks are in the same order.
 */
weft_status weft_batch(weft_group group, weft_stream stream, const weft_transfer *transfers, int64_t count);

/* Sums, adds a residual and normalises the rows: see weft_norm. out may be in. Collective. */
weft_status weft_all_reduce_norm(weft_group group, weft_stream stream, const weft_tensor *out, const weft_tensor *in,
								 const weft_norm *norm);

/* An all-gather that raises words as parts of out land: k 64-bit integers for each rank, in rank order, which cut its
 * part of B bytes into chunks of 16 * ceil(B / (16 * k)) bytes, of which the last ones may be shorter. Each is raised
 * by one a call, by a release. All ranks pass words. Collective. */
weft_status weft_all_gather_progress(weft_group group, weft_stream stream, const weft_tensor *out,
									 const weft_tensor *in, const weft_tensor *words);

/* A reduce-scatter that reads a chunk of in, of the part for a rank, when its word is not 0, by an acquire, and makes
 * the word 0 when it has. Words are as above. Collective. */
weft_status weft_reduce_scatter_ready(weft_group group, weft_stream stream, const weft_tensor *out,
									  const weft_tensor *in, const weft_tensor *words, int op);

/*
 * Algorithms of the caller's own, on GPUs: kernels that are compiled when the group is made, and run beside the
 * library's. What such a kernel is given and does is in the headers that it includes: "weft.cuh" and others, which the
 * library has.
 *
 * Lists of strings end with NULL, and NULL is none.
 */

/* What the choice of an algorithm, or a key, depends on: the same on every rank. */
typedef struct weft_request {
	size_t size;
	int32_t collective; /* weft_collective */
	int32_t dtype;      /* weft_dtype */
	int32_t op;         /* weft_op, of a reduction */
	int32_t root;
	int32_t ranks; /* that take part */
	int32_t windows; /* operands that are known to lie in windows, or in place: 1 inputs, 2 outputs, 4 in place */
	int64_t count; /* elements of a rank's part */
	int64_t bytes;
} weft_request;

/* Writes the algorithm of a call that names none, a string of at most 127 bytes, into name, where zeros are; nothing:
 * the group chooses. It depends on the request alone, calls nothing of this library, and may be called by any thread
 * until the group is destroyed. */
typedef void (*weft_select_fn)(void *context, const weft_request *request, void *name);

#define WEFT_VALUES 8

/* What the kernels of a key have beside what each call says. */
typedef struct weft_own_context {
	size_t size;
	const char *key;              /* "" of an algorithm without keys */
	int64_t scratch, local;       /* the algorithm's; may be changed, to the same on all ranks */
	uint64_t values[WEFT_VALUES]; /* those of the kernel's parameter in each call of the key; zeros at first */
	void *state;                  /* what weft_release_fn is given */
} weft_own_context;

/*
 * Hooks of an algorithm, beside its context. They are called by the thread that makes the group or the call, on each
 * rank alone. They return WEFT_OK; or what weft_error_set returned, or a failed call, and then the call fails with that
 * message.
 */

/* Writes the key of a call, a string of at most 127 bytes, into key, where zeros are: the same on all ranks. It depends
 * on the request alone, and calls nothing else of this library. A group has at most 64 keys of an algorithm. */
typedef int (*weft_key_fn)(void *context, const weft_request *request, void *key);

/* Makes the context of a key, on all ranks at the same time: with the group, or, of an algorithm with keys, in the
 * first call of the key, which cannot be captured. It may make calls of other groups, the same on all ranks; none of
 * the communicator, which is busy while it makes the group, and none of the group. */
typedef int (*weft_prepare_fn)(void *context, weft_own_context *made);

/* Gives up what weft_prepare_fn has made, when the group is destroyed and its work has ended. */
typedef void (*weft_release_fn)(void *context, void *state);

/* The same on all ranks; strings are borrowed for the call. */
typedef struct weft_own_algorithm {
	size_t size;
	const char *name;     /* unique in the group */
	const char *source;   /* CUDA C++17 */
	const char *kernel;   /* the name of the kernel in it */
	const char **headers; /* names and texts in turn: more headers for the source */
	const char **defines; /* names and values in turn: macros */
	const char **extras;  /* names of what weft_launch gives the kernel */
	const char **tags;    /* names and values in turn, for selectors and reports */
	int32_t collective;   /* weft_collective */
	int32_t in_place;     /* 1: only operands in place, 2: only others, on all ranks alike; 0: both */
	int64_t min_bytes;    /* of a rank's part */
	int64_t max_bytes;    /* 0: no bound */
	int32_t ranks;        /* the only number of ranks; 0: any */
	int32_t needs;        /* operands that lie in windows: 1 inputs, 2 outputs */
	uint64_t dtypes;      /* a set of bits: 1 << WEFT_FLOAT32, say; 0: all */
	uint64_t ops;         /* the same of weft_op */
	int32_t blocks;       /* the most of a launch; 0: as many as there is room for */
	int32_t threads;      /* of a block; 0: 512 */
	int64_t shared;       /* bytes of a block's dynamic shared memory */
	int64_t scratch;      /* bytes of each rank's memory that all ranks reach, zeros in the beginning */
	int64_t local;        /* bytes that only this rank's GPU reaches */

	/* Hooks, or NULL. Without key there is one context, which is made with the group; without prepare a context is the
	 * memory above, and its values are zeros. */
	weft_key_fn key;
	weft_prepare_fn prepare;
	weft_release_fn release;
	void *context; /* of the hooks */
} weft_own_algorithm;

/* weft_group_create with algorithms of the caller's own, which stand one after the other, and a selector or NULL.
 * WEFT_ERROR_MISMATCH names an algorithm that differs between ranks. If a source does not compile, weft_error has what
 * the compiler says. Collective. */
weft_status weft_group_create_own(weft_comm comm, const weft_group_options *options,
								  const weft_own_algorithm *algorithms, int count, weft_select_fn select, void *context,
								  weft_group *group);

/* Plans. */

/* Makes a communication plan of a recorded program, and writes the text of its file: over lines with two spaces a
 * level, or on one line without spaces if compact is not 0. The recording is JSON; the Go package plan/lowering says
 * what is in it. weft_text_free gives the text back. Local. */
weft_status weft_plan_lower(const char *recording, int compact, char **text);

/* Verifies a plan: that it ends, races with nothing and gives what its collective defines, in every order of events.
 * The text may be a recording, too, as weft_plan_lower takes it: then it also says where fused operations mean
 * something else. Writes what it found as JSON: an array, errors first, whose elements have "class", as "deadlock",
 * "warning", which is whether the plan may run, and "text", a line. A text that is no plan is WEFT_ERROR_INVALID.
 * weft_text_free gives the findings back. Local. */
weft_status weft_plan_check(const char *plan, char **findings);

/* Makes the handle of what runs plans. With unverified not 0, the same on all ranks, plans run in which
 * weft_plan_check finds errors, but for broken rules and deadlocks. Collective. */
weft_status weft_executor_create(weft_comm comm, int unverified, weft_executor *executor);

/* Makes a plan ready to run: verifies it, compares it among the ranks, and writes its number, which a plan of the same
 * content has had before. A plan that is wrong, or differs, is refused on every rank. Collective. */
weft_status weft_executor_load(weft_executor executor, const char *plan, int64_t *number);

/* Runs a plan on this rank's operands, of one element type, of which a plan may lack either: NULL. They have the
 * plan's chunks, all of as many bytes, a multiple of its alignment, and are in place if the plan was written for that.
 * On the host it returns when this rank's result is complete; on GPUs it enqueues on the stream. Collective. */
weft_status weft_executor_run(weft_executor executor, weft_stream stream, int64_t plan, const weft_tensor *out,
							  const weft_tensor *in);

/* Gives up all plans that were loaded, whose numbers then begin anew. No rank runs any of them. Local. */
weft_status weft_executor_reset(weft_executor executor);

/* Gives up the executor's memory on this rank. On a GPU it first waits until none of its work runs, at most until the
 * deadline: after WEFT_ERROR_TIMEOUT the handle is still there. Local. */
weft_status weft_executor_destroy(weft_executor executor);

/*
 * Channels between two ranks, which put bytes into each other's memory and count each other's signals: memory channels
 * where ranks map each other's memory, port channels through libfabric everywhere else, also between hosts. Both are
 * called alike. docs/guides/port-channels.md has a program.
 *
 * What is asked of a channel takes effect in that order, as far as the peer can tell: whoever has waited for a signal
 * sees all that was put and added before. Any thread may call any function of a channel at any time. A call is refused
 * before anything moves if it reaches outside of the memories.
 *
 * Calls wait at most until the communicator's deadline, end by weft_comm_abort, and fail while the communicator has
 * failed; after weft_comm_set_mask the channels between the ranks that remain go on. Those to a masked rank of another
 * host end: once it is taken back, all create a new weft_port. WEFT_ERROR_DIED also says that the network has lost the
 * peer. A call of a channel that reaches the bound of weft_timeout_set aborts nothing, and may be made again.
 */

/* channels, spread and the number of sources are the same on every rank. */
typedef struct weft_port_options {
	size_t size;
	const char *provider; /* of libfabric; NULL: the first that the machine has and Weft takes */
	const char **sources; /* addresses of network interfaces, ended by NULL: each is a rail. NULL: one rail, by the
							 interface by which ranks of different hosts have met, WEFT_INTERFACE if that is set */
	int64_t channels;     /* the most between two ranks, up to 65535; 0 is 64. They are never given up */
	int64_t depth;        /* of the ring that kernels and threads push to, a power of two; 0 is 512 */
	int64_t spread;       /* bytes from which a channel that spreads divides a put; 0 is 512 KiB */
	int64_t spin_us;      /* how long what moves the network polls before it sleeps; 0 is 200 */
} weft_port_options;

/* Makes what channels are made of: the ranks tell each other how to reach them. Without libfabric there are memory
 * channels, where all ranks are on one host. Collective. options may be NULL. */
weft_status weft_port_create(weft_comm comm, const weft_port_options *options, weft_port *port);

typedef struct weft_port_info {
	size_t size;
	const char *provider; /* of libfabric, valid as long as the process; "" where there is none */
	int64_t channels;     /* the most between two ranks */
	int32_t rails;        /* 0 where there is no libfabric */
	int32_t reserved;
} weft_port_info;

weft_status weft_port_get(weft_port port, weft_port_info *info);

/* Destroys the port, its channels and its memories. It first waits until what was put and signalled has left this rank,
 * for seconds at most, and on a GPU for the rank's work. Where a channel has dropped something, and no call of it has
 * said so, the call says it; the port is destroyed all the same. Local. */
weft_status weft_port_destroy(weft_port port);

/*
 * Makes a memory of each rank known to all: of any length, also none. It must outlive the handle. Peers of the host map
 * memory that lies in a window. On GPUs it is memory of the host, pinned if kernels are to fill it. Collective.
 */
weft_status weft_port_memory_create(weft_port port, void *memory, size_t bytes, weft_port_memory *made);

/* Makes a memory of this rank alone, of which the others learn by its card: a way to them is the caller's. What holds
 * of weft_port_memory_create's memory holds of it. Local. */
weft_status weft_port_memory_expose(weft_port port, void *memory, size_t bytes, weft_port_memory *made);

/* Writes the card by which another rank imports this rank's part, of at most *bytes bytes, and its length to *bytes. It
 * is valid until the memory is destroyed. If it does not fit, the call is refused with the length in *bytes. Local. */
weft_status weft_port_memory_card(weft_port_memory memory, void *card, size_t *bytes);

/* Makes a memory of another rank, a destination of channels to it, by the card that the rank has made. Local. */
weft_status weft_port_memory_import(weft_port port, const void *card, size_t bytes, weft_port_memory *made);

/* The length of a rank's part: 0 for a rank that was masked when the memory was made. Local. */
weft_status weft_port_memory_size(weft_port_memory memory, int rank, uint64_t *bytes);

/* Has no rank put into this rank's part any more. What was put from it must have been flushed: else it may be dropped
 * with all that follows in its channel, which the channel's next calls and weft_port_destroy say. Local. */
weft_status weft_port_memory_destroy(weft_port_memory memory);

/* What carries a channel. */
typedef enum weft_port_kind {
	WEFT_PORT_AUTO = 0,   /* copies where both ranks map the destination that they have given, else the network */
	WEFT_PORT_MEMORY = 1, /* copies into mapped memory */
	WEFT_PORT_FABRIC = 2  /* the network */
} weft_port_kind;

/* The same on both ranks. */
typedef struct weft_port_channel_options {
	size_t size;
	int32_t kind;   /* weft_port_kind */
	int32_t spread; /* 1: large puts are divided among all rails; such a channel has no adds */
} weft_port_channel_options;

/* Makes a channel to a peer, from this rank's part of src to the peer's of dst. Both ranks call it, with memories that
 * may differ; channels of two ranks are made in the same order on both. If the arguments of one break a rule both
 * refuse. After WEFT_ERROR_TIMEOUT of weft_timeout_set it is called again with the same arguments. options may be
 * NULL. */
weft_status weft_port_connect(weft_port port, int peer, const weft_port_channel_options *options, weft_port_memory dst,
							  weft_port_memory src, weft_port_channel *channel);

/* Makes the channel of a number, from 1 to weft_port_info.channels, to a peer to which this rank has connected a
 * channel of the network before. Both ranks open the number that they have agreed on, with equal options whose kind is
 * not WEFT_PORT_AUTO, and neither waits. weft_port_connect takes the lowest number that is free. Local. */
weft_status weft_port_open(weft_port port, int peer, int number, const weft_port_channel_options *options,
						   weft_port_memory dst, weft_port_memory src, weft_port_channel *channel);

/* Makes another handle of the same channel, with the same signals and the same order, between other memories. Local. */
weft_status weft_port_channel_with(weft_port_channel channel, weft_port_memory dst, weft_port_memory src,
								   weft_port_channel *made);

typedef struct weft_port_channel_info {
	size_t size;
	int32_t peer;
	int32_t kind; /* weft_port_kind: never WEFT_PORT_AUTO */
	uint64_t dst_bytes, src_bytes;
} weft_port_channel_info;

weft_status weft_port_channel_get(weft_port_channel channel, weft_port_channel_info *info);

/* Returns why nothing can be asked of the channel, or WEFT_OK. Local. */
weft_status weft_port_channel_error(weft_port_channel channel);

/* Gives the handle up. The channel's number is not used again. Local. */
weft_status weft_port_channel_destroy(weft_port_channel channel);

/* Writes bytes at src of this rank's memory to dst of the peer's. They must stay as they are until a flush, and the
 * peer sees them after the next signal. Local, as all that follow are: a call returns when the request was taken. */
weft_status weft_port_put(weft_port_channel channel, uint64_t dst, uint64_t src, uint64_t bytes);

/* Raises the peer's count of signals by one, behind all that was asked for before. */
weft_status weft_port_signal(weft_port_channel channel);

/* weft_port_put and weft_port_signal, in one request. */
weft_status weft_port_put_with_signal(weft_port_channel channel, uint64_t dst, uint64_t src, uint64_t bytes);

/* The same, and weft_port_flush. */
weft_status weft_port_put_with_signal_and_flush(weft_port_channel channel, uint64_t dst, uint64_t src, uint64_t bytes);

/* Waits until the sources of what was put may change, and adds have taken effect. It fails if the peer leaves before
   that. */
weft_status weft_port_flush(weft_port_channel channel);

/* Adds to the 64-bit word at dst of the peer's memory, at an address that is a multiple of 8. Processors of ranks do
 * it; a GPU that adds to the word loses sums. */
weft_status weft_port_atomic_add(weft_port_channel channel, uint64_t dst, uint64_t value);

/* Consumes a signal of the peer, if there is one, and writes 1, else 0. */
weft_status weft_port_poll(weft_port_channel channel, int *consumed);

/* Waits for a signal of the peer, and consumes it. A call that fails consumes none. */
weft_status weft_port_wait(weft_port_channel channel);

#define WEFT_PORT_KERNEL_BYTES 88

/* Writes a port channel as kernels of this rank's GPU take it: the struct PortChannel of "port.cuh", of
 * WEFT_PORT_KERNEL_BYTES bytes. Signals of a channel are consumed either by the host or by kernels. */
weft_status weft_port_kernel(weft_port_channel channel, void *kernel, size_t bytes);

/* Gives a text back that the library wrote; NULL is none. */
void weft_text_free(void *text);

#ifdef __cplusplus
}
#endif

#endif
