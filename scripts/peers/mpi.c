// Times a collective of MPI on float32 and verifies it. One JSON object a size on standard output, from rank 0.
//
//   mpi NAME OP SECONDS BYTES...
//
// BYTES are nccl-tests' size, rounded down to whole elements of each rank. Every call follows a barrier, which is not
// timed, and every rank times its own call. The figure is the median over the calls of the slowest rank's time. Sizes
// take about SECONDS each.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 5, FEWEST = 7, MOST = 100000 };

static int rank, ranks, count; // elements of a part
static float *in, *out;

static void allreduce(void) { MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void reduce(void) { MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); }
static void reducescatter(void) {
	MPI_Reduce_scatter_block(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void allgather(void) { MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD); }
static void alltoall(void) { MPI_Alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD); }
static void broadcast(void) { MPI_Bcast(rank == 0 ? in : out, count, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void sendrecv(void) {
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	MPI_Sendrecv(in, count, MPI_FLOAT, next, 0, out, count, MPI_FLOAT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// An operation's operands may have a part for each rank.
static const struct op {
	const char *name;
	int in_parts, out_parts, reduces;
	void (*call)(void);
} ops[] = {
	{"allreduce", 0, 0, 1, allreduce}, {"reduce", 0, 0, 1, reduce}, {"reducescatter", 1, 0, 1, reducescatter},
	{"allgather", 0, 1, 0, allgather}, {"alltoall", 1, 1, 0, alltoall}, {"broadcast", 0, 0, 0, broadcast},
	{"sendrecv", 0, 0, 0, sendrecv},
};

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double timed(const struct op *op) {
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	op->call();
	return MPI_Wtime() - start;
}

// calls is how many calls fill the time for a size: rank 0 decides for all.
static int calls(const struct op *op, double seconds) {
	for (int i = 0; i < WARMUP; i++) timed(op);
	double start = MPI_Wtime();
	for (int i = 0; i < WARMUP; i++) timed(op);
	double n = seconds / ((MPI_Wtime() - start) / WARMUP);
	int result = n < FEWEST ? FEWEST : n > MOST ? MOST : (int)n;
	MPI_Bcast(&result, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return result;
}

// moved is element i of what a rank sends a rank, and summand of what it brings to a sum. They are small integers:
// every order of addition gives the same float.
static float moved(int from, int to, long i) { return (float)((31 * from + 17 * to + i) % 4093); }
static float summand(int from, long i) { return (float)(from + 1 + i % 1000); }

static void fill(const struct op *op) {
	for (int part = 0; part < (op->in_parts ? ranks : 1); part++)
		for (int i = 0; i < count; i++) {
			long at = (long)part * count + i;
			in[at] = op->reduces ? summand(rank, at) : moved(rank, part, i);
		}
}

static int verify(const struct op *op) {
	int good = 1, root = op->call == broadcast || op->call == reduce;
	if (root && (rank == 0) != (op->call == reduce)) return 1; // it has no output
	for (int part = 0; part < (op->out_parts ? ranks : 1); part++)
		for (int i = 0; i < count; i++) {
			int from = op->call == sendrecv ? (rank + ranks - 1) % ranks : part;
			float want = moved(from, op->in_parts ? rank : 0, i);
			if (op->reduces) {
				long at = (op->in_parts ? (long)rank * count : 0) + i;
				want = (float)(ranks * (ranks + 1) / 2 + ranks * (at % 1000));
			}
			good &= out[(long)part * count + i] == want;
		}
	return good;
}

static void measure(const struct op *op, const char *name, double seconds, long bytes, double *times, double *slowest) {
	long parts = op->in_parts || op->out_parts ? ranks : 1;
	count = (int)(bytes / (long)sizeof(float) / parts);
	if (count < 1) count = 1;
	bytes = count * parts * (long)sizeof(float);
	in = malloc(bytes), out = malloc(bytes);
	fill(op);
	memset(out, 0, bytes);

	int n = calls(op, seconds);
	for (int i = 0; i < n; i++) times[i] = timed(op);

	int good = verify(op), verified;
	MPI_Reduce(&good, &verified, 1, MPI_INT, MPI_LAND, 0, MPI_COMM_WORLD);
	MPI_Reduce(times, slowest, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	qsort(slowest, n, sizeof *slowest, compare);
	if (rank == 0) {
		printf("{\"op\":\"%s\",\"engine\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"p50_us\":%.3f,\"verified\":%s}\n", op->name,
			name, ranks, bytes, slowest[n / 2] * 1e6, verified ? "true" : "false");
		fflush(stdout);
	}
	free(in);
	free(out);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	const struct op *op = NULL;
	for (size_t i = 0; argc > 4 && i < sizeof ops / sizeof *ops; i++)
		if (strcmp(ops[i].name, argv[2]) == 0) op = &ops[i];
	if (op == NULL) {
		if (rank == 0) fprintf(stderr, "usage: mpi NAME OP SECONDS BYTES...\n");
		MPI_Finalize();
		return 2;
	}
	double *times = malloc(MOST * sizeof *times), *slowest = calloc(MOST, sizeof *slowest);
	for (int a = 4; a < argc; a++) measure(op, argv[1], atof(argv[3]), atol(argv[a]), times, slowest);
	free(times);
	free(slowest);
	MPI_Finalize();
	return 0;
}
