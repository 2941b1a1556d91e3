/* The few functions of CUDA's driver that the face calls, found when they are first needed. */
#ifndef NEP_CUDA_H
#define NEP_CUDA_H

#include "internal.h"

/* CUDA_MEMCPY2D of the driver's second version. */
typedef struct nep_copy_2d {
	size_t from_x, from_y;
	unsigned int from_kind;
	const void *from_host;
	uint64_t from_device;
	void *from_array;
	size_t from_pitch;
	size_t to_x, to_y;
	unsigned int to_kind;
	void *to_host;
	uint64_t to_device;
	void *to_array;
	size_t to_pitch;
	size_t width, height;
} nep_copy_2d;

enum { NEP_CUDA_UNIFIED = 4, NEP_CUDA_NOT_READY = 600, NEP_CUDA_NON_BLOCKING = 1 };

struct nep_cuda {
	int (*cuGetErrorString)(int error, const char **words);
	int (*cuMemAlloc_v2)(uint64_t *memory, size_t bytes);
	int (*cuMemFree_v2)(uint64_t memory);
	int (*cuMemHostAlloc)(void **memory, size_t bytes, unsigned int flags);
	int (*cuMemFreeHost)(void *memory);
	int (*cuMemcpyAsync)(uint64_t to, uint64_t from, size_t bytes, void *stream);
	int (*cuMemcpy2DAsync_v2)(const nep_copy_2d *copy, void *stream);
	int (*cuMemsetD8Async)(uint64_t memory, unsigned char value, size_t bytes, void *stream);
	int (*cuMemsetD32Async)(uint64_t memory, unsigned int value, size_t words, void *stream);
	int (*cuStreamCreate)(void **stream, unsigned int flags);
	int (*cuStreamDestroy_v2)(void *stream);
	int (*cuStreamQuery)(void *stream);
};

ncclEpResult_t nep_cuda(const struct nep_cuda **cuda);

/* Maps the result of a driver function. */
ncclEpResult_t nep_cuda_result(const struct nep_cuda *cuda, int error, const char *function);

/* Waits for a stream, until a deadline. */
ncclEpResult_t nep_cuda_wait(const struct nep_cuda *cuda, void *stream, int64_t deadline_ms);

#endif
