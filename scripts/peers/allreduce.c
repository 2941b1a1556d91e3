// Times MPI_Allreduce of float32 sums and verifies them. One JSON object a size on standard output, from rank 0.
//
//   allreduce NAME SECONDS BYTES...
//
// Every call follows a barrier, which is not timed, and every rank times its own call. The figure is the median over
// the calls of the slowest rank's time. Sizes take about SECONDS each.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 5, FEWEST = 7, MOST = 100000 };

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double timed(const float *in, float *out, int count) {
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	return MPI_Wtime() - start;
}

// calls is how many calls fill the time for a size: rank 0 decides for all.
static int calls(const float *in, float *out, int count, double seconds) {
	for (int i = 0; i < WARMUP; i++) timed(in, out, count);
	double start = MPI_Wtime();
	for (int i = 0; i < WARMUP; i++) timed(in, out, count);
	double n = seconds / ((MPI_Wtime() - start) / WARMUP);
	int result = n < FEWEST ? FEWEST : n > MOST ? MOST : (int)n;
	MPI_Bcast(&result, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return result;
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	int rank, ranks;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 4) {
		if (rank == 0) fprintf(stderr, "usage: allreduce NAME SECONDS BYTES...\n");
		MPI_Finalize();
		return 2;
	}
	double seconds = atof(argv[2]);
	double *times = malloc(MOST * sizeof *times), *slowest = calloc(MOST, sizeof *slowest);

	for (int a = 3; a < argc; a++) {
		long bytes = atol(argv[a]);
		int count = (int)(bytes / (long)sizeof(float));
		float *in = malloc(bytes), *out = malloc(bytes);
		// Small integers: every order of addition gives the same float.
		for (int i = 0; i < count; i++) in[i] = (float)(rank + 1 + i % 1000);
		memset(out, 0, bytes);

		int n = calls(in, out, count, seconds);
		for (int i = 0; i < n; i++) times[i] = timed(in, out, count);

		int good = 1;
		for (int i = 0; i < count; i++) good &= out[i] == (float)(ranks * (ranks + 1) / 2 + ranks * (i % 1000));
		int verified;
		MPI_Reduce(&good, &verified, 1, MPI_INT, MPI_LAND, 0, MPI_COMM_WORLD);
		MPI_Reduce(times, slowest, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
		qsort(slowest, n, sizeof *slowest, compare);
		if (rank == 0) {
			printf(
				"{\"op\":\"allreduce\",\"engine\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"p50_us\":%.3f,\"verified\":%s}\n",
				argv[1], ranks, bytes, slowest[n / 2] * 1e6, verified ? "true" : "false");
			fflush(stdout);
		}
		free(in);
		free(out);
	}
	free(times);
	free(slowest);
	MPI_Finalize();
	return 0;
}
