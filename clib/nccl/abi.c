/* The layout of NCCL EP's API version 2 on 64-bit systems: programs were compiled with it. */
#include "weft_nccl_ep.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define AT(member, offset) _Static_assert(offsetof(STRUCT, member) == (offset), #member " is elsewhere")
#define IS(name, value) _Static_assert((int)(name) == (value), #name " is another number")

#define STRUCT ncclEpTensor_t
SIZE(STRUCT, 48);
AT(size, 0);
AT(magic, 4);
AT(ndim, 8);
AT(datatype, 12);
AT(data, 16);
AT(win_hdl, 24);
AT(win_offset, 32);
AT(sizes, 40);
#undef STRUCT

#define STRUCT ncclEpAllocConfig_t
SIZE(STRUCT, 24);
AT(alloc_fn, 0);
AT(free_fn, 8);
AT(context, 16);
#undef STRUCT

#define STRUCT ncclEpGroupConfig_t
SIZE(STRUCT, 112);
AT(size, 0);
AT(magic, 4);
AT(version, 8);
AT(algorithm, 12);
AT(num_experts, 16);
AT(max_dispatch_tokens_per_rank, 20);
AT(max_recv_tokens_per_rank, 24);
AT(max_token_bytes, 28);
AT(rdma_buffer_size, 32);
AT(num_qp_per_rank, 40);
AT(num_channels, 44);
AT(max_num_sms, 48);
AT(alloc, 56);
AT(enable_mask, 80);
AT(timeout_ns, 88);
AT(zero_copy, 96);
AT(overflow_policy, 100);
AT(num_topk, 104);
AT(padding_v2, 108);
#undef STRUCT

#define STRUCT ncclEpLayoutInfo_t
SIZE(STRUCT, 48);
AT(size, 0);
AT(magic, 4);
AT(expert_counters, 8);
AT(src_rank_counters, 16);
AT(expert_offsets, 24);
AT(recv_total_counter, 32);
AT(recv_topk_idx_kind, 40);
AT(padding_v2, 44);
#undef STRUCT

#define STRUCT ncclEpDispatchInputs_t
SIZE(STRUCT, 32);
AT(size, 0);
AT(magic, 4);
AT(tokens, 8);
AT(topk_weights, 16);
AT(scales, 24);
#undef STRUCT

#define STRUCT ncclEpDispatchOutputs_t
SIZE(STRUCT, 40);
AT(size, 0);
AT(magic, 4);
AT(tokens, 8);
AT(topk_weights, 16);
AT(scales, 24);
AT(topk_idx, 32);
#undef STRUCT

#define STRUCT ncclEpCombineInputs_t
SIZE(STRUCT, 32);
AT(size, 0);
AT(magic, 4);
AT(tokens, 8);
AT(topk_weights, 16);
AT(scales, 24);
#undef STRUCT

#define STRUCT ncclEpCombineOutputs_t
SIZE(STRUCT, 24);
AT(size, 0);
AT(magic, 4);
AT(tokens, 8);
AT(topk_weights, 16);
#undef STRUCT

#define STRUCT ncclEpHandleConfig_t
SIZE(STRUCT, 16);
AT(size, 0);
AT(magic, 4);
AT(dispatch_output_per_expert_alignment, 8);
#undef STRUCT

#define STRUCT ncclEpDispatchConfig_t
SIZE(STRUCT, 24);
AT(size, 0);
AT(magic, 4);
AT(send_only, 8);
AT(round_scales, 12);
AT(pass_direction, 16);
AT(quant_recipe, 20);
#undef STRUCT

#define STRUCT ncclEpCombineConfig_t
SIZE(STRUCT, 20);
AT(size, 0);
AT(magic, 4);
AT(send_only, 8);
AT(pass_direction, 12);
AT(quant_recipe, 16);
#undef STRUCT

IS(NCCL_EP_LOW_LATENCY, 0);
IS(NCCL_EP_HIGH_THROUGHPUT, 1);
IS(NCCL_EP_LAYOUT_UNSET, 0);
IS(NCCL_EP_EXPERT_MAJOR, 1);
IS(NCCL_EP_RANK_MAJOR, 2);
IS(NCCL_EP_FLAT, 3);
IS(NCCL_EP_FORWARD, 0);
IS(NCCL_EP_BACKWARD, 1);
IS(NCCL_EP_ZERO_COPY_AUTO, 0);
IS(NCCL_EP_ZERO_COPY_OFF, 1);
IS(NCCL_EP_ZERO_COPY_ON, 2);
IS(NCCL_EP_OVERFLOW_AUTO, 0);
IS(NCCL_EP_OVERFLOW_TRAP, 1);
IS(NCCL_EP_OVERFLOW_DROP, 2);
IS(NCCL_EP_EXPERT_ID_AUTO, 0);
IS(NCCL_EP_EXPERT_ID_LOCAL, 1);
IS(NCCL_EP_EXPERT_ID_GLOBAL, 2);
IS(NCCL_EP_DISPATCH_PLAIN, 0);
IS(NCCL_EP_DISPATCH_FORWARD_SCALES, 1);
IS(NCCL_EP_DISPATCH_DS_FP8, 2);
IS(NCCL_EP_COMBINE_PLAIN, 0);
IS(NCCL_EP_COMBINE_NVFP4, 1);

/* Enums and results cross as int. */
SIZE(ncclEpResult_t, 4);
SIZE(ncclEpAlgorithm_t, 4);
SIZE(ncclEpLayout_t, 4);
IS(NCCL_EP_SUCCESS, 0);
IS(NCCL_EP_CUDA_ERROR, 1);
IS(NCCL_EP_SYSTEM_ERROR, 2);
IS(NCCL_EP_INTERNAL_ERROR, 3);
IS(NCCL_EP_INVALID_ARGUMENT, 4);
IS(NCCL_EP_INVALID_USAGE, 5);
IS(NCCL_EP_REMOTE_ERROR, 6);
IS(NCCL_EP_INT8, 0);
IS(NCCL_EP_UINT8, 1);
IS(NCCL_EP_INT32, 2);
IS(NCCL_EP_INT64, 4);
IS(NCCL_EP_FLOAT16, 6);
IS(NCCL_EP_FLOAT32, 7);
IS(NCCL_EP_BFLOAT16, 9);
IS(NCCL_EP_FLOAT8_E4M3, 10);
IS(NCCL_EP_FLOAT8_E5M2, 11);
