/* Ranks that meet through a communicator of NCCL's, a fake one. The archive is linked, for what its library keeps
 * inside is called, too. */
#define _GNU_SOURCE

#include "check.h"
#include "meeting.h"
#include "nccl_fake.h"

enum { RANKS = 3 };

static fake_meeting meeting;
static fake_nccl_comm comms[RANKS];

static ncclEpGroupConfig_t config_of(void) {
	ncclEpGroupConfig_t c = {
		.size = sizeof c,
		.magic = NCCL_EP_MAGIC,
		.version = NCCL_EP_VERSION,
		.algorithm = NCCL_EP_HIGH_THROUGHPUT,
		.num_experts = 2 * RANKS,
		.max_dispatch_tokens_per_rank = 4,
		.max_recv_tokens_per_rank = 32,
		.max_token_bytes = 64,
		.timeout_ns = UINT64_C(20000000000),
	};
	return c;
}

/* The meeting itself: rank, size and all-gather are NCCL's, whatever the ranks then join for. Here they join on the
 * host. */
static void join_on_host(fake_nccl_comm *nccl) {
	nep_meeting m;
	weft_comm comm;
	weft_comm_info info = {.size = sizeof info};
	weft_comm_options options = {.size = sizeof options, .deadline_ms = 20000};
	nccl->slow = 5;
	nccl->gathers = 0;
	TRUE(nep_open() == NCCL_EP_SUCCESS && nep_nccl_open(nccl, 20000, &m) == NCCL_EP_SUCCESS);
	TRUE(m.rank == nccl->rank && m.ranks == RANKS);
	OK(weft_comm_create_with_all_gather(nep_nccl_all_gather, &m, m.rank, m.ranks, &options, &comm));
	nep_nccl_close(&m);
	OK(weft_comm_get(comm, &info));
	TRUE(info.rank == nccl->rank && info.ranks == RANKS && nccl->gathers > 0 && nccl->slow <= 0);

	ncclEpGroup_t group;
	ncclEpGroupConfig_t config = config_of();
	TRUE(ncclEpCreateGroup(&group, comm, &config) == NCCL_EP_SUCCESS && ncclEpGroupDestroy(group) == NCCL_EP_SUCCESS);
	OK(weft_comm_destroy(comm));
}

/* A group of NCCL's communicator is one on GPUs. There is none here, which all ranks say, and none waits for its
 * deadline. */
static void join_on_gpus(fake_nccl_comm *nccl) {
	ncclEpGroup_t group = NULL;
	ncclEpGroupConfig_t config = config_of();
	nccl->gathers = 0;
	ncclEpResult_t result = ncclEpCreateGroup(&group, nccl, &config);
	TRUE(result != NCCL_EP_SUCCESS && result != NCCL_EP_REMOTE_ERROR && group == NULL && nccl->gathers > 0);
	TRUE(strstr(weft_error(), "libcuda.so.1") != NULL || strstr(weft_error(), "cu") != NULL);
}

/* What NCCL says is what the caller hears. */
static void failing(fake_nccl_comm *nccl) {
	ncclEpGroup_t group = NULL;
	ncclEpGroupConfig_t config = config_of();
	nccl->gathers = 0, nccl->fails_at = 1;
	TRUE(ncclEpCreateGroup(&group, nccl, &config) == NCCL_EP_REMOTE_ERROR &&
		 strstr(weft_error(), "meeting through NCCL: ncclAllGather returned 6") != NULL);
	nccl->fails_at = 0, nccl->fails = FAKE_INVALID;
	TRUE(ncclEpCreateGroup(&group, nccl, &config) == NCCL_EP_INVALID_ARGUMENT &&
		 strstr(weft_error(), "ncclCommCuDevice returned 4") != NULL);
	nccl->fails = 0;
}

static void *rank(void *argument) {
	fake_nccl_comm *nccl = argument;
	join_on_host(nccl);
	pthread_barrier_wait(&meeting.barrier);
	join_on_gpus(nccl);
	pthread_barrier_wait(&meeting.barrier);
	failing(nccl);
	return NULL;
}

/* Copies between memory of a GPU's: that of the fake driver is the host's. */
static void copies(void) {
	nep_group g = {.engine = WEFT_GPU, .given = &comms[0]};
	const int32_t counts[5] = {3, 0, 70000, 2147483647, 1};
	int64_t wide[6];
	char *memory = NULL, back[16];
	memset(wide, 0x55, sizeof wide);
	TRUE(nep_widen(&g, wide, counts, 5, NULL) == NCCL_EP_SUCCESS);
	for (int i = 0; i < 5; i++) {
		TRUE(wide[i] == counts[i]);
	}
	TRUE(wide[5] == 0x5555555555555555);
	TRUE(nep_alloc(&g, 64, &memory) == NCCL_EP_SUCCESS &&
		 nep_copy(&g, memory, "sixteen letters", 16, NULL) == NCCL_EP_SUCCESS);
	TRUE(nep_read(&g, back, memory, 16) == NCCL_EP_SUCCESS && strcmp(back, "sixteen letters") == 0);

	/* A window of NCCL's is asked where it lies. */
	size_t sizes[1] = {8};
	ncclEpTensor_t t = {.size = sizeof t,
						.magic = NCCL_EP_TENSOR_MAGIC,
						.ndim = 1,
						.datatype = NCCL_EP_UINT8,
						.win_hdl = memory,
						.win_offset = 8,
						.sizes = sizes};
	weft_tensor found;
	TRUE(nep_tensor(&g, &t, 1, "t", &found) == NCCL_EP_SUCCESS && (char *)found.data == memory + 8);
	nep_free(&g, memory);
}

int main(void) {
	pthread_t threads[RANKS];
	pthread_barrier_init(&meeting.barrier, NULL, RANKS);
	for (int r = 0; r < RANKS; r++) {
		comms[r] = (fake_nccl_comm){.meeting = &meeting, .rank = r, .ranks = RANKS};
		TRUE(pthread_create(&threads[r], NULL, rank, &comms[r]) == 0);
	}
	join_threads(threads, RANKS);
	copies();
	printf("ok\n");
	return 0;
}
