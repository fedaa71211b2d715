"""Servers under test, started for the measurements and ended after them."""

import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Seconds that a server may take to load its model.
START = 180


@contextlib.contextmanager
def ropewalk(program, model, options):
    """The address of `ropewalk serve`."""
    command = [program, "serve", model, "--listen", "127.0.0.1:0", "--parallel", str(options.clients), "-c",
               str(options.context), "--threads", str(options.threads), "--token-latency", str(options.latency_budget)]
    if options.ropewalk_flags:
        command += options.ropewalk_flags.split()
    with running(command) as (process, log):
        yield until_ready(process, log, lambda: announced(log))


@contextlib.contextmanager
def llama(program, model, options):
    """The address of `llama-server`. Its context is shared out over the slots."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-np", str(options.clients), "-c",
               str(options.context * options.clients), "-t", str(options.threads), "-tb", str(options.threads)]
    if options.llama_flags:
        command += options.llama_flags.split()
    with running(command) as (process, log):
        yield until_ready(process, log, lambda: healthy(port))


@contextlib.contextmanager
def running(command):
    """A process with its output in a file."""
    with tempfile.NamedTemporaryFile(prefix="serving-") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process, log.name
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_ready(process, log, address):
    """Waits until `address` gives one."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        if found := address():
            return found
        time.sleep(0.1)
    sys.exit(f"{process.args[0]} did not start:\n{tail(log)}")


def announced(log):
    """The address that Ropewalk says it is served at."""
    found = re.search(r"served at http://([^:\s]+):(\d+)", tail(log))
    return (found[1], int(found[2])) if found else None


def healthy(port):
    with contextlib.suppress(urllib.error.URLError, OSError):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return ("127.0.0.1", port) if answer.status == 200 else None


def tail(log):
    with open(log, "rb") as file:
        return file.read()[-4000:].decode(errors="replace")
