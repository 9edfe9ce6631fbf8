"""The address that NCCL would use in the environment of each launch path, asked of the node's NCCL.

The script runs in the job's interpreter as the job's user. It starts a listener in its own process,
which it then ends.
"""

import binascii
import os
import select
import time

from clusterprep.remote.agent.launched import (
    container,
    kept,
    own_environment,
    printed_by,
    service,
    services,
    slurm,
    task_prolog,
)
from clusterprep.remote.agent.light import loads, signal
from clusterprep.remote.agent.pam import of_sshd
from clusterprep.remote.agent.readers import (
    MAX_TEXT,
    OUR_SCRIPT,
    NoAnswer,
    closed_to_job,
    failed_python,
    offer,
    read_job_python,
    require_python,
)
from clusterprep.remote.agent.shells import (
    LANE,
    account,
    as_user,
    identity,
    sessions,
    start_up,
    take_sessions,
)

PROBE_LIMIT = 10.0  # seconds for the interpreter and NCCL, on network file systems too
MATTER = ("NCCL_", "LD_", "PYTHON")  # beginnings of the variables that can change the answer
FINDING = MATTER[1:]  # beginnings of the variables that decide whether there is an NCCL at all
MOST_UNITS = 8  # systemd units that are asked for
MOST_LOG = 65536  # characters of what NCCL printed that are returned
MOST_OUTPUT = 4 * MAX_TEXT  # bytes of output that are read
NOT_STARTED = 126  # exit code of a child that could not run the interpreter
_without_nccl = {}  # type: ignore[var-annotated]  # (python, user) -> where no NCCL was found


def read_interpreter(python, user, script):
    """Return what `read_job_python` does, and keep for the next read that it found no NCCL.

    That spares a node without NCCL a second start of the interpreter.
    """
    found = read_job_python(python, user, script)
    if isinstance(found, dict):
        is_without = all(found.get(key, "") is None for key in ("nccl_path", "system_path"))
        if is_without:
            _without_nccl[python, user] = what_finds(os.environ)
    return found


def what_finds(environment):
    """Return the variables that decide which NCCL an interpreter finds, as sorted pairs."""
    rows = []
    for row in sorted(environment.items()):
        if row[0].startswith(FINDING):
            rows.append(row)
    return tuple(rows)


def read_nccl_address(python, user, session, script, runtime=None):
    """Return {launch path: texts by name as the script prints them, or {"no", "why"}}.

    Environments that are the same to NCCL are asked once, and no shell is started where there is no
    NCCL. With `runtime`, a text of JSON, NCCL is asked inside.
    """
    inside = None if runtime is None else loads(runtime)
    if inside is None:
        require_python(python, user or os.environ.get("SUDO_USER"))
    entry, given = account(user, session)
    if inside is not None and "container" in inside:
        # What shells and services of the host have is not handed on.
        ask = Asker(entry, python, script, inside)
        return as_user(entry, lambda: {"container": ask({})})
    without_nccl = _without_nccl.pop((python, user), None)
    path, first = first_environment(given)
    # A user's own packages are found by HOME, which is that of the account in what follows.
    has_other_home = entry.pw_uid == os.geteuid() and os.environ.get("HOME") != entry.pw_dir
    if inside is None and not has_other_home and what_finds(first) == without_nccl:
        return {path: {"library": "", "end": "", "log": ""}}
    outside = Outside()
    known_sessions = take_sessions(user, session)
    return as_user(
        entry,
        lambda: answers(
            entry,
            given,
            outside,
            python,
            script,
            known_sessions,
            inside,
        ),
    )


class Outside(object):
    """What is read with the rights of this process, before it becomes the job's user.

    `first` is the environment of a container's first process, as a session.
    """

    def __init__(self):
        self.first = container()
        self.sshd = of_sshd()
        self.units = services()
        self.slurm = slurm()
        self.prolog = task_prolog()


def answers(entry, given, outside, python, script, known_sessions=None, runtime=None):
    """Return the answer of each launch path.

    `given` is the environment of this process if it is an ssh session of the user;
    `known_sessions` are the user's sessions if an earlier read found them.
    """
    ask = Asker(entry, python, script, runtime)
    path, first = first_environment(given)
    by_path = {path: ask(first)}
    if all(answer.get("library") == "" for answer in by_path.values()):
        return by_path
    if known_sessions is None:
        environments = sessions(entry, given, start_up(entry), outside.sshd)
    else:
        environments = dict(known_sessions)
    if environments:
        by_path.pop("a bare process", None)
    if outside.first is not None and outside.first[0] == "ok":
        environments["container"] = outside.first
    for path, environment in environments.items():
        if environment[0] == "ok":
            by_path[path] = ask(environment[1])
        else:
            by_path[path] = {
                "no": environment[1],
                "why": environment[2],
            }
    if outside.slurm is not None:
        by_path["slurm"] = ask(values(outside.slurm + printed_by(outside.prolog)))
    own = own_environment(entry.pw_dir)
    units = {}
    for name, (before, after) in outside.units.items():
        units[name] = before + own + after
    ask_units(ask, units, by_path)
    return by_path


def first_environment(given):
    """Return name and variables of the launch path that is asked first, and alone without NCCL."""
    if given is None:
        return "a bare process", {}
    return "ssh command", kept(given)


def ask_units(ask, units, by_path):
    """Add the answers of systemd units to those of the other launch paths."""
    names = sorted(units)
    for name in names[:MOST_UNITS]:
        by_path["systemd (%s)" % name] = ask(values(units[name]))
    for name in names[MOST_UNITS:]:
        by_path["systemd (%s)" % name] = {
            "no": "truncated",
            "why": "no more than %d units are asked for" % MOST_UNITS,
        }


def values(files):
    """Return the variables that the lines of some files give to a service."""
    rows = []
    for path, lines in files:
        for number, text in lines:
            rows.append((path, number, text))
    return dict((name, row[0]) for name, row in service(rows).items())


class Asker(object):
    """Asks NCCL for its address in an environment, once for all that are the same to NCCL."""

    def __init__(self, entry, python, script, runtime=None):
        self.base = identity(entry)
        self.runtime = runtime
        self.python = python
        self.script = script
        self.known = {}  # relevant variables -> answer
        self.slow = None  # the answer of an environment in which NCCL took too long

    def __call__(self, variables):
        """Return an answer, or a reason: a failure spoils one launch path only."""
        relevant = []
        for row in sorted(variables.items()):
            if row[0].startswith(MATTER):
                relevant.append(row)
        key = tuple(relevant)
        key_without_library = ("none", what_finds(variables))
        for known in (key, key_without_library):
            if known in self.known:
                return self.known[known]
        answer = self.slow or self.attempt(dict(self.base, **variables))
        if answer.get("library") == "":
            key = key_without_library
        self.known[key] = answer
        return answer

    def attempt(self, environment):
        """Ask NCCL; return its answer, or the reason why there is none."""
        try:
            return probed(self.python, self.script, environment, self.runtime)
        except NoAnswer as no:
            answer = {
                "no": no.reason,
                "why": no.why,
            }
            if no.reason == "timed_out":
                self.slow = answer  # all others would take as long to fail
            return answer


def probed(python, script, environment, runtime=None):
    """Return what the script prints in this environment; all other output is in "log"."""
    nonce = binascii.hexlify(os.urandom(8)).decode("ascii")
    argv = [python, "-c", script, nonce]
    if runtime is None:
        text, code = output(argv, environment, PROBE_LIMIT)
    else:
        # This part is sent where a runtime is declared.
        from clusterprep.remote.agent.inside import run_inside

        result = run_inside(runtime, argv, None, environment, PROBE_LIMIT)
        text, code = (result["out"] + result["err"]).encode("utf-8"), result["code"]
    answer = {}
    log = []
    for line in text.decode("utf-8", "replace").split("\n"):
        fields = line.split(" ")
        if fields[0] == nonce and len(fields) == 3:
            _, name, digits = fields
            answer[name] = binascii.unhexlify(digits).decode("utf-8", "replace")
        else:
            log.append(line)
    if "end" not in answer:
        raise unanswered(python, code, text, answer)
    answer["log"] = "\n".join(log)
    if len(answer["log"]) > MOST_LOG:
        raise NoAnswer("truncated", "NCCL prints more than %d characters" % MOST_LOG)
    return answer


def unanswered(python, code, text, answer):
    """Return the NoAnswer of a probe that ended before its last line.

    One that has not printed a line of ours and does not show our script never came to it.
    """
    err = text.decode("utf-8", "replace")
    came_to_it = bool(answer) or OUR_SCRIPT in err or "NCCL" in err
    if code > 0 and not came_to_it:
        return failed_python(python, code, err)
    how = "signal %d" % -code if code < 0 else "code %d" % code
    return NoAnswer("garbled", "asking NCCL ended with %s: %s" % (how, shown(text)))


def shown(text):
    """Return the end of an output, for a message."""
    return text.decode("utf-8", "replace").strip()[-300:]


def output(argv, environment, seconds):
    """Run a program for at most `seconds`; return both its streams as one, and its exit code.

    Processes that it leaves running end with the process group of this read.
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
            os._exit(NOT_STARTED)
    os.close(sink)
    end = time.monotonic() + seconds
    text = _read_until(out, end)
    late = time.monotonic() >= end
    os.close(out)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if late:
        why = "%s did not end within %g s: %s" % (argv[0], seconds, shown(text))
        raise NoAnswer("timed_out", why)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    if code == NOT_STARTED and not text:
        # This process is the job's user already.
        if not os.access(argv[0], os.X_OK):
            raise closed_to_job(argv[0], None)
        raise NoAnswer("denied", "%s could not be run" % argv[0])
    return text, code


def _read_until(source, end):
    """Return what comes through a pipe until its end or until the time `end`."""
    text = b""
    while True:
        seconds = end - time.monotonic()
        if seconds <= 0 or not select.select([source], [], [], seconds)[0]:
            return text
        data = os.read(source, 1 << 16)
        if not data:
            return text
        text = (text + data)[:MOST_OUTPUT]


def install(agent):
    """Register the reader of this part, in the child of those that run code of others.

    The interpreter is read there too, so that what it found is known to the reader of this part.
    """
    offer({"job_python": read_interpreter, "nccl_address": read_nccl_address}, lane=LANE)
