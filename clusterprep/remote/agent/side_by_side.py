"""Work that may wait for others for ever, done side by side in children with one limit for all."""

import os
import select
import time

from clusterprep.remote.agent.light import dumps, loads, signal

# Seconds that killed children get to disappear, also where the processors are busy; one that the
# kernel holds does not.
REAP_SECONDS = 1.0


def run_all(jobs, seconds):
    """Return (result or None, last step begun) of each job, in this order.

    A job is called as job(begin) in a child and returns JSON; `begin(step)` notes what it is about
    to do. A line of both has to fit into PIPE_BUF, 4,096 bytes.
    """
    end = time.monotonic() + seconds
    source, sink = os.pipe()
    children = []
    for number, job in enumerate(jobs):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(source)
                _run(job, number, sink)
            finally:
                os._exit(0)
        children.append(pid)
    os.close(sink)
    steps = [""] * len(children)
    results = [None] * len(children)
    for number, kind, value in _messages(source, end):
        if kind == "step":
            steps[number] = value
        else:
            results[number] = value
    os.close(source)
    _end(children)
    return list(zip(results, steps))


def _run(job, number, sink):
    def tell(kind, value):
        os.write(sink, dumps([number, kind, value]).encode("ascii") + b"\n")

    result = job(lambda step: tell("step", step))
    tell("result", result)


def _messages(source, end):
    """Yield the messages of the children until all have ended or the time is over."""
    data = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            return
        piece = os.read(source, 1 << 16)
        if not piece:
            return
        lines = (data + piece).split(b"\n")
        data = lines.pop()
        for line in lines:
            yield loads(line.decode("ascii"))


def _end(children):
    """Kill and reap children; one that is stuck in the kernel is left."""
    for pid in children:
        os.kill(pid, signal.SIGKILL)  # until it is reaped the number is its own
    end = time.monotonic() + REAP_SECONDS
    while children:
        children = [pid for pid in children if not os.waitpid(pid, os.WNOHANG)[0]]
        if time.monotonic() > end:
            return
        time.sleep(0.002)
