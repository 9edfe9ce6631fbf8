"""Recognises lines that need no explanation: they repeat a failure or say nothing of a cause."""

from __future__ import annotations

import functools
import re

from clusterprep.jobs.diagnose.model import LogLine

OWN = "the program's own"  # what begins so is a failure of the program, and no echo

# (needle: part of the line in small letters, pattern of the message, what it means)
KNOWN: tuple[tuple[str, str, str], ...] = (
    ("->", r"(?:\.(?:cc|cu|h|cpp):\d+|\w) -> \d+(?: \[.*\])?$", "a result that is handed up"),
    ("closed by remote peer", r"Connection closed by remote peer", "the peer ended first"),
    ("connection closed by peer", r"Connection closed by peer", "the peer ended first"),
    ("connection reset by peer", r"Connection reset by peer", "the peer ended first"),
    ("broken pipe", r"Broken pipe", "the peer ended first"),
    ("failed to recv", r"Failed to recv, got 0 bytes|failed to recv", "the store ended first"),
    ("failed to send", r"failed to send", "the store ended first"),
    ("recvvalue failed", r"recvValue failed", "the store ended first"),
    ("sendbytes failed", r"sendBytes failed", "the store ended first"),
    (
        "remote process exited",
        r"remote process exited or there was a network error",
        "the peer ended first",
    ),
    ("ncclremoteerror", r"ncclRemoteError", "the peer ended first"),
    ("ncclsystemerror", r"ncclSystemError", "a system call failed; another line says which"),
    ("ncclunhandledcudaerror", r"ncclUnhandledCudaError", "CUDA failed; another line says how"),
    ("ncclinvalidusage", r"ncclInvalidUsage", "another line says what was wrong"),
    ("ncclinternalerror", r"ncclInternalError", "another line says what failed"),
    (
        "unhandled system error",
        r"unhandled system error",
        "a system call failed; another line says which",
    ),
    ("unhandled cuda error", r"unhandled cuda error", "CUDA failed; another line says how"),
    ("invalid usage", r"invalid usage \(run with", "another line says what was wrong"),
    ("invalid argument (run", r"invalid argument \(run with", "another line says what was wrong"),
    ("nccl operation in progress", r"NCCL operation in progress", "not finished yet"),
    ("nccl error in", r"NCCL error in", "torch's wrapper; another line says what failed"),
    ("nccl communicator was aborted", r"NCCL communicator was aborted", "after an earlier failure"),
    ("nccl timeout in", r"NCCL timeout in", "a peer is missing"),
    (
        "acl stream synchronize failed",
        r"ACL stream synchronize failed",
        "the device stopped; another line says why",
    ),
    (
        "inner error is reported as above",
        r"The Inner error is reported as above",
        "the device stopped; another line says why",
    ),
    ("pta call acl api failed", r"PTA call acl api failed", "another line says what failed"),
    (
        "inconsistent 0 params",
        r"but Rank \d+ has \d+ params, while rank \d+ has inconsistent 0 params",
        "the ranks could not exchange their numbers of parameters; another line says why",
    ),
    (
        "some nccl operations have failed",
        r"Some NCCL operations have failed or timed out",
        "after an earlier failure",
    ),
    (
        "taking the entire process down",
        r"taking the entire process down",
        "after an earlier failure",
    ),
    (
        "watchdog thread terminated",
        r"watchdog thread terminated with exception",
        "after an earlier failure",
    ),
    ("dump", r"(?:received|observed|signal).{0,40}dump", "another rank timed out first"),
    ("flightrecorder", r"FlightRecorder", "the recorder of collectives, not a failure"),
    ("flight recorder", r"flight recorder", "the recorder of collectives, not a failure"),
    ("acquire gil", r"Could not acquire GIL", "Python was busy at the end"),
    ("[service thread]", r"\[Service thread\]", "a neighbour on this host ended first"),
    ("[proxy service", r"\[Proxy Service", "another line says what failed"),
    ("proxy progress", r"\[Proxy Progress\]", "another line says what failed"),
    ("ncclproxy", r"ncclProxy\w+", "another line says what failed"),
    (
        "could not find a path for pattern",
        r"Could not find a path for pattern",
        "NCCL takes a simple order",
    ),
    ("socket progress error", r"socket progress error", "the peer ended first"),
    (
        "detected mixed local",
        r"Detected mixed local",
        "NCCL goes on with what all have; a warning of it is a cause",
    ),
    ("call to ", r"Call to (?:recv|send|poll)\b", "the peer ended first"),
    ("sym failed on", r"dlv?sym failed on", "an older library, which NCCL can do without"),
    ("gdr", r"\bgdr_\w+|GDRCOPY|gdrapi", "gdrcopy, which NCCL can do without"),
    (
        "encountered a fatal error",
        r"communicator encountered a fatal error",
        "another line says which",
    ),
    ("uds:", r"UDS: ", "a neighbour on this host ended first, or is in another network namespace"),
    ("status=5", r"status=5\b", "the queue pair had failed before"),
    ("wr_flush", r"IBV_WC_WR_FLUSH_ERR", "the queue pair had failed before"),
    ("with error 5", r"completion.*with error 5\b", "the queue pair had failed before"),
    (
        "closing signal",
        r"Sending process \w+ closing signal",
        "torchrun ends the others after one failed",
    ),
    ("childfailederror", r"ChildFailedError", "torchrun's summary; the first failure is in it"),
    ("root cause (first observed", r"Root Cause \(first observed failure\)", "torchrun's summary"),
    ("failed (exitcode", r"failed \(exitcode: ", "torchrun's word for a worker that ended"),
    ("magic", r"magic mismatch|wrong magic", "an unknown client at the port, dropped"),
    ("wrong socket type", r"wrong socket type", "an unknown client at the port, dropped"),
    (
        "gid table change",
        r"GID table change",
        "NCCL goes on; a queue pair that fails after it is a cause",
    ),
    ("ras ", r"\bRAS\b", "NCCL's monitoring, which the job does not need"),
    ("will retry", r"listening yet, will retry", "the store is not there yet"),
    (
        "is greater than the maximum",
        r"is greater than the maximum allowed",
        "NCCL takes the maximum",
    ),
    ("is being ignored", r"is being ignored because", "NCCL takes its default"),
    ("param/env: invalid value", r"PARAM/ENV: Invalid value", "NCCL takes its default"),
    ("cannot initialize collnet", r"Cannot initialize CollNet", "NCCL goes on without SHARP"),
    (
        "external network plugin",
        r"External network plugin .* is unsupported",
        "NCCL takes the next one",
    ),
    (
        "collective operation timeout",
        r"collective operation timeout",
        "a collective did not end in time",
    ),
    ("job step aborted", r"Job step aborted", "Slurm ends the others after one failed"),
    (": terminated", r"\btasks? [\d,-]+: Terminated\b", "Slurm ends the others after one failed"),
    ("terminate called", r"terminate called after throwing", "the error itself follows"),
    (
        "terminated with the following error",
        r"^-- Process \d+ terminated with the following error",
        "the error itself follows",
    ),
    (
        "before the previous operation returned",
        r"before the previous operation returned ncclSuccess",
        "the program's own",
    ),
    (
        "is not a valid pointer",
        r"is not a valid pointer",
        "the program's own: memory of the host where that of a GPU is wanted",
    ),
    ("argument is null", r"argument is NULL", "the program's own"),
    (
        "must either be all uncaptured",
        r"must either be all uncaptured or all captured",
        "the program's own",
    ),
    (
        "no backend type associated",
        r"No backend type associated with device type",
        "the program's own: a tensor of the host",
    ),
    (
        "tensors must be cuda",
        r"Tensors must be CUDA and dense",
        "the program's own: a tensor of the host",
    ),
    (
        "process group has not been initialized",
        r"process group has not been initialized",
        "the program's own order of calls",
    ),
    (
        "process group twice",
        r"trying to initialize the default process group twice",
        "the program's own order of calls",
    ),
    (
        "initialization error",
        r"Cuda failure.*initialization error",
        "the program's own: CUDA in a forked child",
    ),
    (
        "pollconnect",
        r"PollConnect to \S+ failed with error",
        "a connection that failed; another line says how",
    ),
    ("loopback address as fallback", r"loopback address as fallback", "harmless on one host alone"),
    ("last error:", r"^Last error:\s*$", "the error itself follows"),
    ("traceback (most", r"Traceback \(most recent call last\)", "the error itself follows"),
    ("exception raised from", r"Exception raised from", "the place in torch's source"),
)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def meaning(line: LogLine) -> str | None:
    """Return what a line means that explains nothing, or None if it may tell of a cause."""
    lowered = line.message.lower()
    for needle, pattern, what in KNOWN:
        if needle in lowered and _compiled(pattern).search(line.message):
            return what
    return None
