/* A meeting of ranks through NCCL. */
#ifndef NEP_MEETING_H
#define NEP_MEETING_H

#include "cuda.h"

typedef struct nep_meeting {
	void *comm;
	int64_t deadline_ms;
	int rank, ranks, gpu;
	int (*all_gather)(const void *from, void *to, size_t count, int type, void *comm, void *stream);
	int (*async_error)(void *comm, int *result);
	const struct nep_cuda *cuda;
	void *stream;
	ncclEpResult_t result; /* of the last all-gather, and its words: Weft has others for it */
	char words[512];
} nep_meeting;

ncclEpResult_t nep_nccl_open(void *comm, int64_t deadline_ms, nep_meeting *m);
void nep_nccl_close(nep_meeting *m);

/* A weft_all_gather_fn. */
int nep_nccl_all_gather(void *context, const void *mine, size_t bytes, void *all);

#endif
