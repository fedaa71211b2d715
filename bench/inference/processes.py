"""Commands as the harness runs them: what they print, when it begins, and how much memory they take."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# How often a process's memory is looked at.
LOOK = 0.005
# A peer that waits for a core that it does not get may take very long.
PATIENCE = 240


class Failed(Exception):
    """A command that failed or took too long."""


def run(command, patience=PATIENCE):
    """What a command prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        raise Failed(f"{shown(command)} took more than {patience} s") from None
    if done.returncode != 0:
        raise Failed(f"{shown(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def together(count, command, patience=PATIENCE):
    """What each of `count` processes prints that start a command at the same time, and how many seconds lie between the end of
    the first and that of the last."""
    def end_of(_):
        output = run(command, patience)
        return output, time.perf_counter()

    with ThreadPoolExecutor(count) as threads:
        outputs, ends = zip(*threads.map(end_of, range(count)))
    return outputs, max(ends) - min(ends)


def drop_from_cache(file):
    """Has the system forget what it holds of a file in memory."""
    os.sync()
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def watch(command):
    """Seconds from the start of a command to the first character that it prints, and the most memory in bytes that it and
    its children take together."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        watcher = MemoryWatcher(process.pid)
        first = None
        while character := process.stdout.read1(4096):
            if first is None and character.strip():
                first = time.perf_counter() - start
        watcher.stop()
        if process.wait(PATIENCE) != 0 or first is None:
            errors.seek(0)
            raise Failed(f"{shown(command)} failed:\n{errors.read()[-2000:].decode(errors='replace')}")
    return first, watcher.peak


class MemoryWatcher(threading.Thread):
    """Adds up the largest resident memory of each process of a tree, as long as it lives. Pages that several of them have
    count several times."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.ended, self.largest = process, threading.Event(), {}
        self.start()

    def run(self):
        while not self.ended.wait(LOOK):
            for process in tree(self.process):
                self.largest[process] = max(self.largest.get(process, 0), largest_memory(process))

    def stop(self):
        self.ended.set()
        self.join()

    @property
    def peak(self):
        return sum(self.largest.values())


def tree(process):
    """A process and all that it has started."""
    yield process
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield from tree(int(child))


def largest_memory(process):
    """The largest resident memory of a process so far in bytes, 0 if that cannot be told."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def busy_core():
    """Meanwhile a process keeps one core busy."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    pin = "" if core is None else f"import os; os.sched_setaffinity(0, {{{core}}})\n"
    process = subprocess.Popen([sys.executable, "-c", f"{pin}while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def shown(command):
    return " ".join(map(str, command))
