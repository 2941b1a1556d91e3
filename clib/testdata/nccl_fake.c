/*
 * As much of NCCL and of CUDA's driver as joining through NCCL calls, for ranks that are threads: device memory is
 * memory of the host, streams are done when they are asked. What NCCL gets wrong, it gets wrong on purpose: see
 * fake_nccl_comm.
 */
#define _GNU_SOURCE
#include "nccl_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GIVES(result) __attribute__((visibility("default"))) result

GIVES(int) ncclCommCount(fake_nccl_comm *comm, int *count) { return *count = comm->ranks, 0; }

GIVES(int) ncclCommUserRank(fake_nccl_comm *comm, int *rank) { return *rank = comm->rank, 0; }

GIVES(int) ncclCommCuDevice(fake_nccl_comm *comm, int *device) { return *device = 0, comm->fails; }

GIVES(int) ncclCommGetAsyncError(fake_nccl_comm *comm, int *result) {
	return *result = --comm->slow > 0 ? FAKE_IN_PROGRESS : 0, 0;
}

GIVES(int) ncclAllGather(const void *from, void *to, size_t count, int type, fake_nccl_comm *comm, void *stream) {
	if (type != 1 || stream == NULL) {
		return FAKE_INVALID;
	}
	comm->gathers++;
	if (comm->gathers == comm->fails_at) {
		return FAKE_REMOTE;
	}
	memcpy(comm->meeting->bytes + (size_t)comm->rank * count, from, count);
	pthread_barrier_wait(&comm->meeting->barrier);
	memcpy(to, comm->meeting->bytes, (size_t)comm->ranks * count);
	pthread_barrier_wait(&comm->meeting->barrier);
	return comm->slow > 0 ? FAKE_IN_PROGRESS : 0;
}

GIVES(int) ncclWinGetUserPtr(fake_nccl_comm *comm, void *window, void **memory) {
	(void)comm;
	*memory = window;
	return 0;
}

GIVES(int) cuGetErrorString(int error, const char **words) {
	(void)error;
	*words = "a fake error";
	return 0;
}

GIVES(int) cuMemAlloc_v2(uint64_t *memory, size_t bytes) { return *memory = (uint64_t)(uintptr_t)malloc(bytes), 0; }

GIVES(int) cuMemFree_v2(uint64_t memory) {
	free((void *)(uintptr_t)memory);
	return 0;
}

GIVES(int) cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags) {
	return *memory = malloc(bytes), flags == 0 ? 0 : 1;
}

GIVES(int) cuMemFreeHost(void *memory) {
	free(memory);
	return 0;
}

GIVES(int) cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
	(void)stream;
	memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
	return 0;
}

GIVES(int) cuMemcpy2DAsync_v2(const fake_copy_2d *c, void *stream) {
	(void)stream;
	if (c->from_kind != 4 || c->to_kind != 4) {
		return 1;
	}
	for (size_t i = 0; i < c->height; i++) {
		memcpy((char *)(uintptr_t)c->to_device + i * c->to_pitch,
			   (const char *)(uintptr_t)c->from_device + i * c->from_pitch, c->width);
	}
	return 0;
}

GIVES(int) cuMemsetD8Async(uint64_t memory, unsigned char value, size_t bytes, void *stream) {
	(void)stream;
	memset((void *)(uintptr_t)memory, value, bytes);
	return 0;
}

GIVES(int) cuMemsetD32Async(uint64_t memory, unsigned int value, size_t words, void *stream) {
	(void)stream;
	for (size_t i = 0; i < words; i++) {
		((uint32_t *)(uintptr_t)memory)[i] = value;
	}
	return 0;
}

GIVES(int) cuStreamCreate(void **stream, unsigned int flags) { return *stream = malloc(1), flags == 1 ? 0 : 1; }

GIVES(int) cuStreamDestroy_v2(void *stream) {
	free(stream);
	return 0;
}

GIVES(int) cuStreamQuery(void *stream) {
	(void)stream;
	return 0;
}
