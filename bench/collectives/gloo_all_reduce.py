"""Time of torch.distributed's all_reduce over gloo (float32, sum, in place).

Usage: gloo_all_reduce.py SECONDS_PER_SIZE BYTES...

Starts two ranks, each pinned to the core of its number. Rank 0 prints one JSON object a line: bytes, median_us, p99_us.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

TRIALS = 20
COUNT_MAX = 200_000


def run(tensor, count):
    """Seconds of each of `count` operations."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        distributed.all_reduce(tensor)
        times.append(time.perf_counter() - start)
    return times


def measure(rank, seconds, size):
    # Zeros stay zeros, however often they are summed up.
    tensor = torch.zeros(size // 4)
    run(tensor, TRIALS)
    each = sum(run(tensor, TRIALS)) / TRIALS
    count = torch.tensor([max(TRIALS, min(COUNT_MAX, int(seconds / each)))])
    distributed.broadcast(count, 0)
    times = sorted(run(tensor, int(count)))
    if rank == 0:
        row = {"bytes": size, "median_us": times[len(times) // 2] * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}
        print(json.dumps(row), flush=True)


def rank_main(rank, port, seconds, sizes):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    # The thread that calls; gloo's own threads are left to the system, which serves gloo best.
    os.sched_setaffinity(0, {rank})
    for size in sizes:
        measure(rank, seconds, size)
    distributed.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    seconds, sizes = float(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    multiprocessing.spawn(rank_main, (free_port(), seconds, sizes), nprocs=2)
