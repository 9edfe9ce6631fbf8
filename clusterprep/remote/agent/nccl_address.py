"""The address that NCCL would use, as the node's own NCCL answers it to a process started in each way that matters.

The script runs in the job's interpreter as the job's user; it starts a listener in its own process, which it then ends.
"""

import binascii
import os
import select
import time

from clusterprep.remote.agent.launched import container, kept, service, services, slurm
from clusterprep.remote.agent.light import signal
from clusterprep.remote.agent.readers import MAX_TEXT, NoAnswer, offer
from clusterprep.remote.agent.shells import (
    LANE,
    account,
    as_user,
    identity,
    sessions,
    start_up,
    take,
)

PROBE_LIMIT = 10.0  # seconds for the interpreter and NCCL, on network file systems too
MATTER = ("NCCL_", "LD_", "PYTHON")  # beginnings of the variables that can change the answer
FINDING = MATTER[1:]  # likewise, whether there is an NCCL at all
MOST_UNITS = 8


def read_nccl_address(python, user, session, script):
    """{path: answer}: texts by name as the script says them, or {"no", "why"}.

    Nobody is asked twice in environments that are the same to NCCL, and no shell is started where there is no NCCL.
    """
    if not os.path.exists(python):
        raise NoAnswer("missing_tool", "%s does not exist" % python)
    entry, given = account(user, session)
    first = container()
    ways = take(user, session)
    return as_user(entry, lambda: answers(entry, given, first, python, script, ways))


def answers(entry, given, first, python, script, ways=None):
    """The answer of each launch path; `first` is what the first process of a container was given.

    `ways` are the user's sessions where they are known already.
    """
    ask = Asker(entry, python, script)
    found = {
        "ssh command" if given is not None else "a bare process": ask(
            {} if given is None else kept(given)
        )
    }
    if all(answer.get("library") == "" for answer in found.values()):
        return found
    ways = sessions(entry, given, start_up(entry)) if ways is None else dict(ways)
    if ways:
        found.pop("a bare process", None)
    if first is not None and first[0] == "ok":
        ways["container"] = first
    for path, way in ways.items():
        found[path] = ask(way[1]) if way[0] == "ok" else {"no": way[1], "why": way[2]}
    prolog = slurm()
    if prolog is not None:
        found["slurm"] = ask(values(prolog))
    for unit, files in sorted(services(entry.pw_dir).items())[:MOST_UNITS]:
        found["systemd (%s)" % unit] = ask(values(files))
    return found


def values(files):
    """The variables that the lines of some files give to a service."""
    rows = [(path, number, text) for path, lines in files for number, text in lines]
    return dict((name, row[0]) for name, row in service(rows).items())


class Asker(object):
    """Asks NCCL in an environment, once for all that are the same to it."""

    def __init__(self, entry, python, script):
        self.base, self.python, self.script = identity(entry), python, script
        self.known, self.slow = {}, None

    def __call__(self, variables):
        """An answer, or the reason why there is none: one launch path does not cost the others theirs."""
        key = tuple(sorted(row for row in variables.items() if row[0].startswith(MATTER)))
        without = tuple(row for row in key if row[0].startswith(FINDING))
        for known in (key, ("none", without)):
            if known in self.known:
                return self.known[known]
        answer = self.slow or self.attempt(dict(self.base, **variables))
        self.known[("none", without) if answer.get("library") == "" else key] = answer
        return answer

    def attempt(self, environment):
        try:
            return probed(self.python, self.script, environment)
        except NoAnswer as no:
            answer = {"no": no.reason, "why": no.why}
            if no.reason == "timed_out":
                self.slow = answer  # the others would wait as long for the same
            return answer


def probed(python, script, environment):
    """What the script says in this environment; what NCCL and start-up files print is its log."""
    nonce = binascii.hexlify(os.urandom(8)).decode("ascii")
    text, code = output([python, "-c", script, nonce], environment, PROBE_LIMIT)
    said, log = {}, []
    for line in text.decode("utf-8", "replace").split("\n"):
        words = line.split(" ")
        if words[0] == nonce and len(words) == 3:
            said[words[1]] = binascii.unhexlify(words[2]).decode("utf-8", "replace")
        else:
            log.append(line)
    if "end" not in said:
        why = "signal %d" % -code if code < 0 else "code %d" % code
        raise NoAnswer("garbled", "asking NCCL ended with %s: %s" % (why, shown(text)))
    return dict(said, log="\n".join(log)[-16384:])


def shown(text):
    """The end of an output, for a message."""
    return text.decode("utf-8", "replace").strip()[-300:]


def output(argv, environment, seconds):
    """Both streams of a program as one, and its exit code; it is ended after `seconds`.

    What it leaves running ends with the process group of this read.
    """
    out, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.execve(argv[0], argv, environment)
        finally:
            os._exit(126)
    os.close(sink)
    text, end = b"", time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([out], [], [], left)[0]:
            break
        data = os.read(out, 1 << 16)
        if not data:
            break
        text = (text + data)[: 4 * MAX_TEXT]
    late = time.monotonic() >= end
    os.close(out)
    os.kill(pid, signal.SIGKILL)
    code = os.waitpid(pid, 0)[1]
    if late:
        raise NoAnswer(
            "timed_out", "%s did not end within %g s: %s" % (argv[0], seconds, shown(text))
        )
    code = os.WEXITSTATUS(code) if os.WIFEXITED(code) else -os.WTERMSIG(code)
    if code == 126 and not text:
        raise NoAnswer("denied", "%s could not be run" % argv[0])
    return text, code


def install(agent):
    """Register the reader of this part: in the child of those that run profile scripts and code of others."""
    offer({"nccl_address": read_nccl_address}, lane=LANE)
