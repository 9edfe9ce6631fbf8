"""Whether the job's user gets from here to other nodes by ssh, as mpirun and DeepSpeed start ranks.

The system's own ssh is run as that user, with the user's own configuration and keys, and runs
`true` there. It asks for nothing, accepts no key that is not known, and writes nothing: neither
known_hosts nor the socket of a shared connection.
"""

import os
import subprocess
import time

from clusterprep.remote.agent.readers import NoAnswer, offer
from clusterprep.remote.agent.shells import LANE, account, as_user

SECONDS = 40.0  # for all of them together
CONNECT_SECONDS = 5
# At once from each node. As many come in to each; sshd drops some above ten (its MaxStartups).
AT_ONCE = 4
ATTEMPTS = 3  # where sshd closes the connection before it has spoken
PAUSE = 0.3  # seconds before the next attempt
LONGEST = 300  # bytes of what ssh says
PATH = "/usr/local/bin:/usr/bin:/bin"
OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    "ConnectTimeout=%d" % CONNECT_SECONDS,
    "ConnectionAttempts=1",
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "LogLevel=ERROR",
)
# What ssh prints (sshconnect.c, sshconnect2.c and misc.c of OpenSSH), by what it means.
MEANINGS = (
    ("host key changed", "HOST IDENTIFICATION HAS CHANGED"),
    ("host key not known", "host key is known for"),
    ("host key not known", "Host key verification failed"),
    ("no key", "Permission denied"),
    ("no key", "Too many authentication failures"),
    ("refused", "Connection refused"),
    ("no route", "No route to host"),
    ("no route", "Network is unreachable"),
    ("no answer", "timed out"),
    ("no name", "Could not resolve hostname"),
    ("closed", "Connection closed by"),
    ("closed", "Connection reset by"),
)


class Try(object):
    """One ssh to one host, up to ATTEMPTS times."""

    def __init__(self, program, host, env):
        self.host, self.attempts = host, 0
        self._argv = [program, "-n", "-T"]
        for option in OPTIONS:
            self._argv += ["-o", option]
        self._argv += ["--", host, "true"]
        self._env = env
        self._process = None
        self._next = 0.0
        self.result = None  # (meaning, what was said); ("", "") where the login succeeded

    def look(self, now):
        """Start ssh, or notice its end. Returns whether the result is known."""
        if self._process is None:
            if now >= self._next:
                self.attempts += 1
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                )
            return False
        code = self._process.poll()
        if code is None:
            return False
        # What ssh started, such as a ProxyCommand, may hold the other end for ever.
        os.set_blocking(self._process.stderr.fileno(), False)
        said = (self._process.stderr.read(1 << 16) or b"").decode("utf-8", "replace")
        self._process.stderr.close()
        self._process = None
        meaning, text = explain(code, said)
        if meaning == "closed" and self.attempts < ATTEMPTS:
            self._next = now + PAUSE * self.attempts
            return False
        self.result = (meaning, text)
        return True

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stderr.close()


def explain(code, said):
    """Return what an exit code and stderr of ssh mean, and the line that says so."""
    if code == 0:
        return "", ""
    lines = [line.strip() for line in said.splitlines() if line.strip(" @\r\n")]
    for meaning, words in MEANINGS:
        for line in lines:
            if words in line:
                return meaning, line[:LONGEST]
    last = lines[-1][:LONGEST] if lines else ""
    return "other", last or "exit code %d" % code


def read_ssh_mesh(user, session, *hosts, seconds=SECONDS, program="ssh"):
    """Try ssh to each host as `user` (None: who logged in).

    {"user": name, "tried": count, "failed": [[meaning, a line of ssh, [hosts]]], "untried":
    [hosts for which there was no time]}. Failures that mean the same are one row.
    """
    entry, _ = account(user, session)
    env = {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "PATH": PATH,
        "LC_ALL": "C",
    }
    answer = as_user(entry, lambda: try_all(program, hosts, env, seconds))
    return dict(answer, user=entry.pw_name)


def try_all(program, hosts, env, seconds):
    """Return what `read_ssh_mesh` does, but for the user; this process is one of the user."""
    waiting = [Try(program, host, env) for host in hosts]
    waiting.reverse()
    running, done = [], []
    try:
        _run(waiting, running, done, time.monotonic() + seconds)
    except FileNotFoundError as error:
        raise NoAnswer("missing_tool", "%s: %s" % (program, error.strerror))
    finally:
        for one in running:
            one.stop()
    return {
        "tried": len(done),
        "failed": _failures(done),
        "untried": [one.host for one in running + waiting],
    }


def _run(waiting, running, done, end):
    """Move tries from `waiting` to `done`, AT_ONCE at a time, until all are or the time is over."""
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < AT_ONCE:
            running.append(waiting.pop())
        now = time.monotonic()
        ended = [one for one in running if one.look(now)]
        done.extend(ended)
        running[:] = [one for one in running if one.result is None]
        if not ended:
            time.sleep(0.01)


def _failures(done):
    """Return [meaning, a line of ssh, [hosts]] of the tries that failed, sorted by the meaning."""
    rows = {}
    for one in done:
        meaning, text = one.result
        if meaning:
            rows.setdefault(meaning, [meaning, text, []])[2].append(one.host)
    return [rows[meaning] for meaning in sorted(rows)]


def install(agent):
    """Register the kind of read of this part, beside the others of the job's user."""
    offer({"ssh_mesh": read_ssh_mesh}, lane=LANE)
