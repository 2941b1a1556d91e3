/* The fake NCCL's communicator, which tests make by hand. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_INVALID = 4, FAKE_REMOTE = 6, FAKE_IN_PROGRESS = 7 };

typedef struct fake_meeting {
	pthread_barrier_t barrier;
	char bytes[1 << 20];
} fake_meeting;

typedef struct fake_nccl_comm {
	fake_meeting *meeting;
	int rank, ranks;
	int fails;    /* what asking for the GPU returns */
	int fails_at; /* the all-gather that fails, counted from 1; 0: none */
	int slow;     /* how often a call is still in progress */
	int gathers;
} fake_nccl_comm;

/* CUDA_MEMCPY2D, as cuda.h has it. */
typedef struct fake_copy_2d {
	size_t from_x, from_y;
	unsigned int from_kind;
	const void *from_host;
	uint64_t from_device;
	void *from_array;
	size_t from_pitch, to_x, to_y;
	unsigned int to_kind;
	void *to_host;
	uint64_t to_device;
	void *to_array;
	size_t to_pitch, width, height;
} fake_copy_2d;
