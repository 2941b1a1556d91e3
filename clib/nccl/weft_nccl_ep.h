/*
 * NCCL EP as Weft serves it: the eight functions that TransformerEngine calls, in the layout of API version 2. Link
 * with -lnccl_ep; it opens libweft.so by itself.
 *
 * Programs that have NCCL EP's own header use that one. This one is for programs without NCCL: it has the same
 * numbers, sizes and offsets, and names nothing of NCCL's. docs/guides/nccl-ep.md lists what is the same as in NCCL
 * EP and what differs.
 *
 * Structs begin with their size and a magic number: {.size = sizeof s, .magic = NCCL_EP_MAGIC}. Members that the
 * library does not know are not read.
 *
 * Errors. Functions return the numbers of ncclResult_t. weft_error() of weft.h has the sentence of the calling thread's
 * last failure, weft_error_rank() the rank to blame.
 */
#ifndef WEFT_NCCL_EP_H
#define WEFT_NCCL_EP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_EP_VERSION 2u /* of the structs: ncclEpGroupConfig_t.version */
#define NCCL_EP_MAGIC 0xC00FFFEEu
#define NCCL_EP_TENSOR_MAGIC 0xCAFECAFEu         /* of tensors that the caller has filled in */
#define NCCL_EP_TENSOR_MAGIC_LIBRARY 0xBEEFBEEFu /* of tensors that NCCL EP has allocated; taken, too */

/* The numbers of ncclResult_t. */
typedef enum ncclEpResult_t {
	NCCL_EP_SUCCESS = 0,
	NCCL_EP_CUDA_ERROR = 1,
	NCCL_EP_SYSTEM_ERROR = 2,
	NCCL_EP_INTERNAL_ERROR = 3,
	NCCL_EP_INVALID_ARGUMENT = 4,
	NCCL_EP_INVALID_USAGE = 5, /* a call that cannot be made here or now; more rows than there is room for */
	NCCL_EP_REMOTE_ERROR = 6   /* a rank died, left, aborted or did not answer before the deadline */
} ncclEpResult_t;

/* The numbers of ncclDataType_t. */
typedef enum ncclEpDataType_t {
	NCCL_EP_INT8 = 0,
	NCCL_EP_UINT8 = 1,
	NCCL_EP_INT32 = 2,
	NCCL_EP_UINT32 = 3,
	NCCL_EP_INT64 = 4,
	NCCL_EP_UINT64 = 5,
	NCCL_EP_FLOAT16 = 6,
	NCCL_EP_FLOAT32 = 7,
	NCCL_EP_FLOAT64 = 8,
	NCCL_EP_BFLOAT16 = 9,
	NCCL_EP_FLOAT8_E4M3 = 10,
	NCCL_EP_FLOAT8_E5M2 = 11
} ncclEpDataType_t;

typedef enum ncclEpAlgorithm_t { NCCL_EP_LOW_LATENCY = 0, NCCL_EP_HIGH_THROUGHPUT = 1 } ncclEpAlgorithm_t;

typedef enum ncclEpLayout_t {
	NCCL_EP_LAYOUT_UNSET = 0,
	NCCL_EP_EXPERT_MAJOR = 1,
	NCCL_EP_RANK_MAJOR = 2,
	NCCL_EP_FLAT = 3
} ncclEpLayout_t;

typedef enum ncclEpPassDir_t { NCCL_EP_FORWARD = 0, NCCL_EP_BACKWARD = 1 } ncclEpPassDir_t;

typedef enum ncclEpZeroCopyMode_t {
	NCCL_EP_ZERO_COPY_AUTO = 0,
	NCCL_EP_ZERO_COPY_OFF = 1,
	NCCL_EP_ZERO_COPY_ON = 2
} ncclEpZeroCopyMode_t;

typedef enum ncclEpOverflowPolicy_t {
	NCCL_EP_OVERFLOW_AUTO = 0,
	NCCL_EP_OVERFLOW_TRAP = 1,
	NCCL_EP_OVERFLOW_DROP = 2
} ncclEpOverflowPolicy_t;

typedef enum ncclEpExpertIdKind_t {
	NCCL_EP_EXPERT_ID_AUTO = 0,
	NCCL_EP_EXPERT_ID_LOCAL = 1,
	NCCL_EP_EXPERT_ID_GLOBAL = 2
} ncclEpExpertIdKind_t;

typedef enum ncclEpDispQuant_t {
	NCCL_EP_DISPATCH_PLAIN = 0,
	NCCL_EP_DISPATCH_FORWARD_SCALES = 1,
	NCCL_EP_DISPATCH_DS_FP8 = 2
} ncclEpDispQuant_t;

typedef enum ncclEpCombQuant_t { NCCL_EP_COMBINE_PLAIN = 0, NCCL_EP_COMBINE_NVFP4 = 1 } ncclEpCombQuant_t;

/* Handles are numbers that point nowhere, so the library refuses a destroyed one. */
typedef struct weft_nccl_group *ncclEpGroup_t;
typedef struct weft_nccl_handle *ncclEpHandle_t;

/* A dense row-major view of the caller's memory. data may be NULL if it is empty, or if there is a window. */
typedef struct ncclEpTensor_t {
	unsigned int size, magic; /* NCCL_EP_TENSOR_MAGIC */
	unsigned int ndim;
	int datatype; /* ncclEpDataType_t */
	void *data;
	void *win_hdl; /* a weft_window of the group's communicator, or an ncclWindow_t; NULL: data is all there is */
	uint64_t win_offset;
	size_t *sizes;
} ncclEpTensor_t;

typedef int (*ncclEpAllocFn_t)(void **ptr, size_t size, void *context);
typedef int (*ncclEpFreeFn_t)(void *ptr, void *context);

typedef struct ncclEpAllocConfig_t {
	ncclEpAllocFn_t alloc_fn;
	ncclEpFreeFn_t free_fn;
	void *context;
} ncclEpAllocConfig_t;

/* The same on every rank. */
typedef struct ncclEpGroupConfig_t {
	unsigned int size, magic, version;
	ncclEpAlgorithm_t algorithm; /* NCCL_EP_HIGH_THROUGHPUT */
	unsigned int num_experts;
	unsigned int max_dispatch_tokens_per_rank;
	unsigned int max_recv_tokens_per_rank; /* rows that a rank has room for, pads included; 0: as many as come, which
											  UpdateHandle waits for */
	unsigned int max_token_bytes;          /* of a row and its scales */
	unsigned long rdma_buffer_size;        /* not used, like the next two */
	unsigned int num_qp_per_rank;
	unsigned int num_channels;
	unsigned int max_num_sms;  /* of each kernel on a GPU; 0 is 16 */
	ncclEpAllocConfig_t alloc; /* not called: ranks reach each other's memory, which a caller's need not allow */
	unsigned int enable_mask;  /* 0: use weft_comm_set_mask */
	uint64_t timeout_ns;       /* bounds every wait; 0 is the communicator's, or a minute */
	ncclEpZeroCopyMode_t zero_copy;
	ncclEpOverflowPolicy_t overflow_policy;
	unsigned int num_topk; /* the most of any handle; 0: not said */
	unsigned char padding_v2[4];
} ncclEpGroupConfig_t;

/* Where counts go, int32 or int64 each; NULL is left out. */
typedef struct ncclEpLayoutInfo_t {
	unsigned int size, magic;
	ncclEpTensor_t *expert_counters;    /* [local experts]: rows of each zone, pads included */
	ncclEpTensor_t *src_rank_counters;  /* [ranks]: tokens that each rank sends here */
	ncclEpTensor_t *expert_offsets;     /* [local experts]: the first row of each zone */
	ncclEpTensor_t *recv_total_counter; /* [1]: rows routed here, pads and dropped ones included */
	ncclEpExpertIdKind_t recv_topk_idx_kind;
	unsigned char padding_v2[4];
} ncclEpLayoutInfo_t;

typedef struct ncclEpDispatchInputs_t {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;       /* [tokens, hidden] */
	ncclEpTensor_t *topk_weights; /* fp32 [tokens, top-k]; NULL on the way back */
	ncclEpTensor_t *scales; /* [tokens, n]: rows of a multiple of 16 bytes; with NCCL_EP_DISPATCH_FORWARD_SCALES only */
} ncclEpDispatchInputs_t;

typedef struct ncclEpDispatchOutputs_t {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;       /* [rows, hidden] */
	ncclEpTensor_t *topk_weights; /* fp32 [rows], or NULL */
	ncclEpTensor_t *scales;       /* [rows, n] */
	ncclEpTensor_t *topk_idx;     /* NULL */
} ncclEpDispatchOutputs_t;

typedef struct ncclEpCombineInputs_t {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;       /* [rows, hidden] */
	ncclEpTensor_t *topk_weights; /* on the way back fp32 [rows], else NULL */
	ncclEpTensor_t *scales;       /* NULL */
} ncclEpCombineInputs_t;

typedef struct ncclEpCombineOutputs_t {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;       /* [tokens, hidden] */
	ncclEpTensor_t *topk_weights; /* on the way back fp32 [tokens, top-k], else NULL */
} ncclEpCombineOutputs_t;

typedef struct ncclEpHandleConfig_t {
	unsigned int size, magic;
	size_t dispatch_output_per_expert_alignment; /* a power of two to which zones are padded with zeros; 0 and 1 pad
													nothing */
} ncclEpHandleConfig_t;

typedef struct ncclEpDispatchConfig_t {
	unsigned int size, magic;
	unsigned int send_only, round_scales; /* 0 */
	ncclEpPassDir_t pass_direction;
	ncclEpDispQuant_t quant_recipe;
} ncclEpDispatchConfig_t;

typedef struct ncclEpCombineConfig_t {
	unsigned int size, magic;
	unsigned int send_only; /* 0 */
	ncclEpPassDir_t pass_direction;
	ncclEpCombQuant_t quant_recipe; /* NCCL_EP_COMBINE_PLAIN */
} ncclEpCombineConfig_t;

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/*
 * Makes a group of a communicator: an ncclComm_t, whose ranks then meet through it, on their GPUs; or a weft_comm, on
 * the host or on GPUs, made by weft_comm_create_with_id or another function of weft.h. It is borrowed, and outlives
 * the group. A communicator has one group at a time. Collective.
 */
ncclEpResult_t ncclEpCreateGroup(ncclEpGroup_t *group, void *comm, const ncclEpGroupConfig_t *config);

/* Destroys a group and its handles, when the rank's work has ended. NULL is no group. */
ncclEpResult_t ncclEpGroupDestroy(ncclEpGroup_t group);

/* Says how many bytes the memory of a handle needs. Local. */
ncclEpResult_t ncclEpHandleMemSize(ncclEpGroup_t group, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
								   size_t *size_out, int num_topk);

/*
 * Makes a handle: the routing of one layer's batch. handle_mem is memory for it where the rows are, of
 * ncclEpHandleMemSize bytes, beginning on a multiple of 16; NULL: the handle has its own. The memory describes
 * itself: a new handle on it, or on a copy, continues with the last batch, without ncclEpUpdateHandle. Local.
 */
ncclEpResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, ncclEpLayout_t layout,
								const ncclEpHandleConfig_t *config, int num_topk, const ncclEpTensor_t *handle_mem);

/* Destroys the handle; the caller's memory does not change. NULL is no handle. Local. */
ncclEpResult_t ncclEpHandleDestroy(ncclEpHandle_t handle);

/* Gives the handle a batch: topk_idx is int32 or int64 [tokens, top-k], -1 for none, and may be changed afterwards.
 * Collective. */
ncclEpResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
								  const ncclEpLayoutInfo_t *layout_info, void *stream);

/*
 * Forward: copies every token to its experts' zones, and its weights beside it. Backward: the gradient of a forward
 * combine, which is the same move without weights. Pads are zeros; rows behind the last zone are not written.
 * Collective.
 */
ncclEpResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *in,
							  const ncclEpDispatchOutputs_t *out, const ncclEpLayoutInfo_t *layout_info,
							  const ncclEpDispatchConfig_t *config, void *stream);

/*
 * Forward: sums the rows of every token, unweighted, fp32, k ascending, rounded once. Backward: the gradient of a
 * forward dispatch, which sums in the same way and brings each weight's gradient home to its selection. Collective.
 */
ncclEpResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *in, const ncclEpCombineOutputs_t *out,
							 const ncclEpCombineConfig_t *config, void *stream);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
