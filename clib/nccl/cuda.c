#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

#include "cuda.h"

_Static_assert(sizeof(nep_copy_2d) == 128 && offsetof(nep_copy_2d, to_x) == 56 && offsetof(nep_copy_2d, width) == 112,
			   "CUDA_MEMCPY2D has another layout");

static struct nep_cuda driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *missing; /* why there is none */

static void open_driver(void) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		missing = "libcuda.so.1, which comes with the GPU's driver, cannot be opened";
		return;
	}
#define FIND(name)                                                                                                     \
	if ((*(void **)&driver.name = dlsym(library, #name)) == NULL) {                                                    \
		missing = "libcuda.so.1 has no " #name "; update the GPU's driver";                                            \
		return;                                                                                                        \
	}
	FIND(cuGetErrorString)
	FIND(cuMemAlloc_v2)
	FIND(cuMemFree_v2)
	FIND(cuMemHostAlloc)
	FIND(cuMemFreeHost)
	FIND(cuMemcpyAsync)
	FIND(cuMemcpy2DAsync_v2)
	FIND(cuMemsetD8Async)
	FIND(cuMemsetD32Async)
	FIND(cuStreamCreate)
	FIND(cuStreamDestroy_v2)
	FIND(cuStreamQuery)
#undef FIND
}

ncclEpResult_t nep_cuda(const struct nep_cuda **cuda) {
	pthread_once(&once, open_driver);
	*cuda = &driver;
	return missing == NULL ? NCCL_EP_SUCCESS : nep_fail(NCCL_EP_CUDA_ERROR, "%s", missing);
}

ncclEpResult_t nep_cuda_result(const struct nep_cuda *cuda, int error, const char *function) {
	if (error == 0) {
		return NCCL_EP_SUCCESS;
	}
	const char *words = NULL;
	if (cuda->cuGetErrorString(error, &words) != 0 || words == NULL) {
		words = "an error that the driver has no words for";
	}
	return nep_fail(NCCL_EP_CUDA_ERROR, "%s: %s (%d)", function, words, error);
}

ncclEpResult_t nep_cuda_wait(const struct nep_cuda *cuda, void *stream, int64_t deadline_ms) {
	const struct timespec pause = {.tv_nsec = 50000};
	struct timespec now, began;
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (;;) {
		int state = cuda->cuStreamQuery(stream);
		if (state != NEP_CUDA_NOT_READY) {
			return nep_cuda_result(cuda, state, "cuStreamQuery");
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000 > deadline_ms) {
			return nep_fail(NCCL_EP_REMOTE_ERROR, "the GPU's work has not ended within %lld ms",
							(long long)deadline_ms);
		}
		nanosleep(&pause, NULL);
	}
}
