/* The layout of NCCL EP's API version 2 on 64-bit systems: programs were compiled with it. */
#include "weft_nccl_ep.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member " is elsewhere")
#define IS(name, value) _Static_assert((int)(name) == (value), #name " is another number")

SIZE(ncclEpTensor_t, 48);
AT(ncclEpTensor_t, size, 0);
AT(ncclEpTensor_t, magic, 4);
AT(ncclEpTensor_t, ndim, 8);
AT(ncclEpTensor_t, datatype, 12);
AT(ncclEpTensor_t, data, 16);
AT(ncclEpTensor_t, win_hdl, 24);
AT(ncclEpTensor_t, win_offset, 32);
AT(ncclEpTensor_t, sizes, 40);

SIZE(ncclEpAllocConfig_t, 24);
AT(ncclEpAllocConfig_t, alloc_fn, 0);
AT(ncclEpAllocConfig_t, free_fn, 8);
AT(ncclEpAllocConfig_t, context, 16);

SIZE(ncclEpGroupConfig_t, 112);
AT(ncclEpGroupConfig_t, size, 0);
AT(ncclEpGroupConfig_t, magic, 4);
AT(ncclEpGroupConfig_t, version, 8);
AT(ncclEpGroupConfig_t, algorithm, 12);
AT(ncclEpGroupConfig_t, num_experts, 16);
AT(ncclEpGroupConfig_t, max_dispatch_tokens_per_rank, 20);
AT(ncclEpGroupConfig_t, max_recv_tokens_per_rank, 24);
AT(ncclEpGroupConfig_t, max_token_bytes, 28);
AT(ncclEpGroupConfig_t, rdma_buffer_size, 32);
AT(ncclEpGroupConfig_t, num_qp_per_rank, 40);
AT(ncclEpGroupConfig_t, num_channels, 44);
AT(ncclEpGroupConfig_t, max_num_sms, 48);
AT(ncclEpGroupConfig_t, alloc, 56);
AT(ncclEpGroupConfig_t, enable_mask, 80);
AT(ncclEpGroupConfig_t, timeout_ns, 88);
AT(ncclEpGroupConfig_t, zero_copy, 96);
AT(ncclEpGroupConfig_t, overflow_policy, 100);
AT(ncclEpGroupConfig_t, num_topk, 104);
AT(ncclEpGroupConfig_t, padding_v2, 108);

SIZE(ncclEpLayoutInfo_t, 48);
AT(ncclEpLayoutInfo_t, size, 0);
AT(ncclEpLayoutInfo_t, magic, 4);
AT(ncclEpLayoutInfo_t, expert_counters, 8);
AT(ncclEpLayoutInfo_t, src_rank_counters, 16);
AT(ncclEpLayoutInfo_t, expert_offsets, 24);
AT(ncclEpLayoutInfo_t, recv_total_counter, 32);
AT(ncclEpLayoutInfo_t, recv_topk_idx_kind, 40);
AT(ncclEpLayoutInfo_t, padding_v2, 44);

SIZE(ncclEpDispatchInputs_t, 32);
AT(ncclEpDispatchInputs_t, size, 0);
AT(ncclEpDispatchInputs_t, magic, 4);
AT(ncclEpDispatchInputs_t, tokens, 8);
AT(ncclEpDispatchInputs_t, topk_weights, 16);
AT(ncclEpDispatchInputs_t, scales, 24);

SIZE(ncclEpDispatchOutputs_t, 40);
AT(ncclEpDispatchOutputs_t, size, 0);
AT(ncclEpDispatchOutputs_t, magic, 4);
AT(ncclEpDispatchOutputs_t, tokens, 8);
AT(ncclEpDispatchOutputs_t, topk_weights, 16);
AT(ncclEpDispatchOutputs_t, scales, 24);
AT(ncclEpDispatchOutputs_t, topk_idx, 32);

SIZE(ncclEpCombineInputs_t, 32);
AT(ncclEpCombineInputs_t, size, 0);
AT(ncclEpCombineInputs_t, magic, 4);
AT(ncclEpCombineInputs_t, tokens, 8);
AT(ncclEpCombineInputs_t, topk_weights, 16);
AT(ncclEpCombineInputs_t, scales, 24);

SIZE(ncclEpCombineOutputs_t, 24);
AT(ncclEpCombineOutputs_t, size, 0);
AT(ncclEpCombineOutputs_t, magic, 4);
AT(ncclEpCombineOutputs_t, tokens, 8);
AT(ncclEpCombineOutputs_t, topk_weights, 16);

SIZE(ncclEpHandleConfig_t, 16);
AT(ncclEpHandleConfig_t, size, 0);
AT(ncclEpHandleConfig_t, magic, 4);
AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment, 8);

SIZE(ncclEpDispatchConfig_t, 24);
AT(ncclEpDispatchConfig_t, size, 0);
AT(ncclEpDispatchConfig_t, magic, 4);
AT(ncclEpDispatchConfig_t, send_only, 8);
AT(ncclEpDispatchConfig_t, round_scales, 12);
AT(ncclEpDispatchConfig_t, pass_direction, 16);
AT(ncclEpDispatchConfig_t, quant_recipe, 20);

SIZE(ncclEpCombineConfig_t, 20);
AT(ncclEpCombineConfig_t, size, 0);
AT(ncclEpCombineConfig_t, magic, 4);
AT(ncclEpCombineConfig_t, send_only, 8);
AT(ncclEpCombineConfig_t, pass_direction, 12);
AT(ncclEpCombineConfig_t, quant_recipe, 16);

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
