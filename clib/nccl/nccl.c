/*
 * Meeting through NCCL: a communicator of the caller's gives rank, size, GPU and an all-gather, and Weft joins by that.
 * NCCL is the one that the process has; this library is not built with it. Only joining uses it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

#include "cuda.h"
#include "meeting.h"

/* The first NCCL of the process that has a function. */
static void *find(const char *name) {
	void *found = dlsym(RTLD_DEFAULT, name);
	if (found != NULL) {
		return found;
	}
	void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD); /* loaded, but its names are kept to its users */
	if (library == NULL) {
		library = dlopen("libnccl.so.2", RTLD_NOW);
	}
	return library == NULL ? NULL : dlsym(library, name);
}

static ncclEpResult_t check(int result, const char *function) {
	if (result == NCCL_EP_SUCCESS) {
		return NCCL_EP_SUCCESS;
	}
	return nep_fail(result > 0 && result <= NCCL_EP_REMOTE_ERROR ? (ncclEpResult_t)result : NCCL_EP_INTERNAL_ERROR,
					"%s returned %d", function, result);
}

ncclEpResult_t nep_nccl_open(void *comm, int64_t deadline_ms, nep_meeting *m) {
	*m = (nep_meeting){.comm = comm, .deadline_ms = deadline_ms};
	int (*count)(void *, int *), (*user_rank)(void *, int *), (*device)(void *, int *);
	*(void **)&count = find("ncclCommCount");
	*(void **)&user_rank = find("ncclCommUserRank");
	*(void **)&device = find("ncclCommCuDevice");
	*(void **)&m->all_gather = find("ncclAllGather");
	*(void **)&m->async_error = find("ncclCommGetAsyncError");
	if (count == NULL || user_rank == NULL || device == NULL || m->all_gather == NULL || m->async_error == NULL) {
		return nep_misused(
			"the communicator is no weft_comm, and this process has no libnccl.so.2 that it could be of; "
			"without NCCL make one by weft_comm_create_with_id");
	}
	NEP_TRY(check(count(comm, &m->ranks), "ncclCommCount"));
	NEP_TRY(check(user_rank(comm, &m->rank), "ncclCommUserRank"));
	NEP_TRY(check(device(comm, &m->gpu), "ncclCommCuDevice"));
	NEP_TRY(nep_cuda(&m->cuda));
	return nep_cuda_result(m->cuda, m->cuda->cuStreamCreate(&m->stream, NEP_CUDA_NON_BLOCKING), "cuStreamCreate");
}

void nep_nccl_close(nep_meeting *m) {
	if (m->stream != NULL) {
		m->cuda->cuStreamDestroy_v2(m->stream);
	}
}

/* A communicator that does not block says that it is still at it. */
static ncclEpResult_t await_result(const nep_meeting *m, int result) {
	enum { IN_PROGRESS = 7 };
	const struct timespec pause = {.tv_nsec = 100000};
	for (int64_t waited = 0; result == IN_PROGRESS; waited++) {
		if (waited > 10 * m->deadline_ms) {
			return nep_fail(NCCL_EP_REMOTE_ERROR, "ncclAllGather has not begun within %lld ms",
							(long long)m->deadline_ms);
		}
		nanosleep(&pause, NULL);
		NEP_TRY(check(m->async_error(m->comm, &result), "ncclCommGetAsyncError"));
	}
	return check(result, "ncclAllGather");
}

static ncclEpResult_t gather(const nep_meeting *m, uint64_t device, const void *mine, size_t bytes, void *all) {
	const struct nep_cuda *c = m->cuda;
	uint64_t gathered = device + (bytes + 255) / 256 * 256;
	NEP_TRY(nep_cuda_result(c, c->cuMemcpyAsync(device, (uint64_t)(uintptr_t)mine, bytes, m->stream), "cuMemcpyAsync"));
	NEP_TRY(await_result(m, m->all_gather((const void *)(uintptr_t)device, (void *)(uintptr_t)gathered, bytes,
										   NCCL_EP_UINT8, m->comm, m->stream)));
	NEP_TRY(nep_cuda_result(
		c, c->cuMemcpyAsync((uint64_t)(uintptr_t)all, gathered, bytes * (size_t)m->ranks, m->stream), "cuMemcpyAsync"));
	return nep_cuda_wait(c, m->stream, m->deadline_ms);
}

static ncclEpResult_t all_gather(const nep_meeting *m, const void *mine, size_t bytes, void *all) {
	uint64_t device = 0;
	size_t room = (bytes + 255) / 256 * 256 + bytes * (size_t)m->ranks;
	NEP_TRY(nep_cuda_result(m->cuda, m->cuda->cuMemAlloc_v2(&device, room), "cuMemAlloc"));
	ncclEpResult_t result = gather(m, device, mine, bytes, all);
	if (result != NCCL_EP_REMOTE_ERROR) { /* else the GPU may still write there: the memory is left to it */
		m->cuda->cuMemFree_v2(device);
	}
	return result;
}

int nep_nccl_all_gather(void *context, const void *mine, size_t bytes, void *all) {
	nep_meeting *m = context;
	m->result = all_gather(m, mine, bytes, all);
	if (m->result != NCCL_EP_SUCCESS) {
		snprintf(m->words, sizeof m->words, "%s", nep_lib.weft_error());
	}
	return m->result;
}

ncclEpResult_t nep_join_nccl(void *comm, int64_t deadline_ms, weft_comm *out) {
	nep_meeting m;
	ncclEpResult_t result = nep_nccl_open(comm, deadline_ms, &m);
	if (result == NCCL_EP_SUCCESS) {
		weft_comm_options options = {
			.size = sizeof options, .engine = WEFT_GPU, .gpu = m.gpu, .deadline_ms = deadline_ms};
		result = nep_result(
			nep_lib.weft_comm_create_with_all_gather(nep_nccl_all_gather, &m, m.rank, m.ranks, &options, out));
	}
	nep_nccl_close(&m);
	if (m.result != NCCL_EP_SUCCESS) {
		return nep_fail(m.result, "meeting through NCCL: %s", m.words);
	}
	return result;
}

ncclEpResult_t nep_nccl_window(const nep_group *g, void *window, void **memory) {
	int (*pointer)(void *, void *, void **);
	*(void **)&pointer = find("ncclWinGetUserPtr");
	if (pointer == NULL || nep_is_weft(g->given)) {
		return nep_fail(
			NCCL_EP_INVALID_ARGUMENT,
			"where the window 0x%llx lies cannot be asked for: give the tensor its data, too, or a weft_window",
			(unsigned long long)(uintptr_t)window);
	}
	return check(pointer(g->given, window, memory), "ncclWinGetUserPtr");
}
