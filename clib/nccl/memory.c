/* Memory where the group's rows are. On GPUs the calling thread's current device is the group's, as it is for every
 * call that takes a stream. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

ncclEpResult_t nep_alloc(const nep_group *g, size_t bytes, char **memory) {
	if (g->engine == WEFT_HOST) {
		*memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
		return *memory != NULL ? NCCL_EP_SUCCESS
							   : nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for %zu bytes", bytes);
	}
	const struct nep_cuda *cuda;
	uint64_t device = 0;
	NEP_TRY(nep_cuda(&cuda));
	NEP_TRY(nep_cuda_result(cuda, cuda->cuMemAlloc_v2(&device, bytes), "cuMemAlloc"));
	*memory = (char *)(uintptr_t)device;
	return NCCL_EP_SUCCESS;
}

void nep_free(const nep_group *g, char *memory) {
	const struct nep_cuda *cuda;
	if (g->engine == WEFT_HOST) {
		free(memory);
	} else if (memory != NULL && nep_cuda(&cuda) == NCCL_EP_SUCCESS) {
		cuda->cuMemFree_v2(address(memory));
	}
}

ncclEpResult_t nep_alloc_pinned(const nep_group *g, size_t bytes, void **memory) {
	if (g->engine == WEFT_HOST) {
		*memory = calloc(1, bytes);
		return *memory != NULL ? NCCL_EP_SUCCESS
							   : nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for %zu bytes", bytes);
	}
	const struct nep_cuda *cuda;
	NEP_TRY(nep_cuda(&cuda));
	NEP_TRY(nep_cuda_result(cuda, cuda->cuMemHostAlloc(memory, bytes, 0), "cuMemHostAlloc"));
	memset(*memory, 0, bytes);
	return NCCL_EP_SUCCESS;
}

void nep_free_pinned(const nep_group *g, void *memory) {
	const struct nep_cuda *cuda;
	if (g->engine == WEFT_HOST) {
		free(memory);
	} else if (memory != NULL && nep_cuda(&cuda) == NCCL_EP_SUCCESS) {
		cuda->cuMemFreeHost(memory);
	}
}

ncclEpResult_t nep_write(const nep_group *g, void *to, uint32_t word, weft_stream stream) {
	if (g->engine == WEFT_HOST) {
		memcpy(to, &word, sizeof word);
		return NCCL_EP_SUCCESS;
	}
	const struct nep_cuda *cuda;
	NEP_TRY(nep_cuda(&cuda));
	return nep_cuda_result(cuda, cuda->cuMemsetD32Async(address(to), word, 1, stream), "cuMemsetD32Async");
}

ncclEpResult_t nep_copy(const nep_group *g, void *to, const void *from, size_t bytes, weft_stream stream) {
	if (bytes == 0 || to == from) {
		return NCCL_EP_SUCCESS;
	}
	if (g->engine == WEFT_HOST) {
		memmove(to, from, bytes);
		return NCCL_EP_SUCCESS;
	}
	const struct nep_cuda *cuda;
	NEP_TRY(nep_cuda(&cuda));
	return nep_cuda_result(cuda, cuda->cuMemcpyAsync(address(to), address(from), bytes, stream), "cuMemcpyAsync");
}

ncclEpResult_t nep_widen(const nep_group *g, int64_t *to, const int32_t *from, size_t count, weft_stream stream) {
	if (count == 0) {
		return NCCL_EP_SUCCESS;
	}
	if (g->engine == WEFT_HOST) {
		for (size_t i = 0; i < count; i++) {
			to[i] = from[i];
		}
		return NCCL_EP_SUCCESS;
	}
	/* Zeros, and the lower halves over them: a copy of rows of four bytes, eight apart. */
	const struct nep_cuda *cuda;
	NEP_TRY(nep_cuda(&cuda));
	NEP_TRY(
		nep_cuda_result(cuda, cuda->cuMemsetD8Async(address(to), 0, count * sizeof *to, stream), "cuMemsetD8Async"));
	nep_copy_2d halves = {
		.from_kind = NEP_CUDA_UNIFIED,
		.from_device = address(from),
		.from_pitch = sizeof *from,
		.to_kind = NEP_CUDA_UNIFIED,
		.to_device = address(to),
		.to_pitch = sizeof *to,
		.width = sizeof *from,
		.height = count,
	};
	return nep_cuda_result(cuda, cuda->cuMemcpy2DAsync_v2(&halves, stream), "cuMemcpy2DAsync");
}

ncclEpResult_t nep_read(const nep_group *g, void *to, const char *from, size_t bytes) {
	if (g->engine == WEFT_HOST) {
		memcpy(to, from, bytes);
		return NCCL_EP_SUCCESS;
	}
	/* The legacy default stream comes after the work of other streams. */
	const struct nep_cuda *cuda;
	NEP_TRY(nep_cuda(&cuda));
	NEP_TRY(nep_cuda_result(cuda, cuda->cuMemcpyAsync(address(to), address(from), bytes, NULL), "cuMemcpyAsync"));
	return nep_cuda_wait(cuda, NULL, 60000);
}
