// Time of MPI_Allreduce (float32, sum, in place): mpi_all_reduce SECONDS_PER_SIZE BYTES...
//
// Each rank pins itself to the core of its number. Rank 0 prints one JSON object a line: bytes, median_us, p99_us.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

// Runs `count` operations and notes how long each took, in seconds.
static void run(float *buffer, int floats, int count, double *times) {
    for (int index = 0; index < count; index++) {
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, buffer, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[index] = MPI_Wtime() - start;
    }
}

static void measure(int rank, double seconds, int bytes) {
    enum { TRIALS = 20, COUNT_MAX = 200000 };
    int floats = bytes / (int)sizeof(float);
    float *buffer = aligned_alloc(4096, ((size_t)bytes + 4095) / 4096 * 4096);
    double *times = malloc(COUNT_MAX * sizeof(double));
    // Zeros stay zeros, however often they are summed up.
    for (int index = 0; index < floats; index++) buffer[index] = 0;

    run(buffer, floats, TRIALS, times);
    double start = MPI_Wtime();
    run(buffer, floats, TRIALS, times);
    double wanted = seconds / ((MPI_Wtime() - start) / TRIALS);
    int count = wanted < TRIALS ? TRIALS : wanted > COUNT_MAX ? COUNT_MAX : (int)wanted;
    MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);

    run(buffer, floats, count, times);
    if (rank == 0) {
        qsort(times, count, sizeof(double), by_value);
        printf("{\"bytes\": %d, \"median_us\": %.3f, \"p99_us\": %.3f}\n", bytes, times[count / 2] * 1e6,
               times[count * 99L / 100] * 1e6);
        fflush(stdout);
    }
    free(times);
    free(buffer);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(rank, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
        fprintf(stderr, "rank %d has no core of its own\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int index = 2; index < argc; index++) measure(rank, atof(argv[1]), atoi(argv[index]));
    MPI_Finalize();
    return 0;
}
