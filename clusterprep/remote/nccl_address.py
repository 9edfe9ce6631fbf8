"""The address that NCCL would use, as the node's own NCCL answers it to a process started in each way that matters.

The script runs in the job's interpreter as the job's user; it starts a listener in its own process, which it then ends.
"""

import binascii
import os
import select
import time

from clusterprep.remote.light import signal
from clusterprep.remote.readers import MAX_TEXT, NoAnswer, become, is_own, offer

SHELL_LIMIT = 8.0  # seconds that a login shell may take, profile scripts on network file systems included
PROBE_LIMIT = 10.0  # seconds for the interpreter and NCCL, likewise
MATTER = ("NCCL_", "LD_", "PYTHON", "HOME=")  # beginnings of the variables that can change the answer
NO_SHELLS = ("nologin", "false")


def read_nccl_address(python, user, script):
    """{"ssh command": answer, "login shell": answer}: texts by name as the script says them, or {"no", "why"}.

    A login shell without another environment for NCCL is not asked twice, and none is started where there is no NCCL.
    """
    if not os.path.exists(python):
        raise NoAnswer("missing_tool", "%s does not exist" % python)
    if os.geteuid() != 0 and not is_own(user):
        raise NoAnswer("denied", "only root can look as %s" % user)
    entry = account(user)
    bare = dict(os.environb)
    found = {"ssh command": attempt(probed, python, user, script, bare)}
    if found["ssh command"].get("library") == "":
        return dict(found, **{"login shell": found["ssh command"]})
    found["login shell"] = attempt(through_login, python, user, script, bare, found["ssh command"], entry)
    return found


def attempt(ask, *args):
    """An answer, or the reason why there is none: one launch path does not cost the other its answer."""
    try:
        return ask(*args)
    except NoAnswer as no:
        return {"no": no.reason, "why": no.why}


def account(user):
    """The line of the job's user in the password database."""
    import pwd

    try:
        return pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise NoAnswer("denied", "there is no user %s" % (user or os.geteuid()))


def through_login(python, user, script, bare, before, entry):
    """The same in the environment that a login shell of the user makes of the session's."""
    shell = entry.pw_shell or "/bin/sh"
    if os.path.basename(shell) in NO_SHELLS:
        raise NoAnswer("not_applicable", "%s has no login shell, but %s" % (entry.pw_name, shell))
    fence = binascii.hexlify(os.urandom(8))
    line = b"echo %s; env -0; echo %s" % (fence, fence)
    text = output([shell, "-l", "-c", line], bare, user, SHELL_LIMIT, fence + b"\n", 2)[0]
    parts = text.split(fence + b"\n")
    if len(parts) < 3:
        raise NoAnswer("garbled", "%s -l printed no environment: %s" % (shell, shown(text)))
    made = dict(row.split(b"=", 1) for row in parts[1].split(b"\0") if b"=" in row)
    if "no" not in before and matter(made, user) == matter(bare, user):
        return before
    return probed(python, user, script, made)


def matter(environment, user):
    """The part of an environment that can change what NCCL answers; HOME is the user's own where we become him."""
    rows = [name + b"=" + value for name, value in environment.items()]
    beginnings = tuple(word.encode() for word in MATTER if is_own(user) or word != "HOME=")
    return sorted(row for row in rows if row.startswith(beginnings))


def probed(python, user, script, environment):
    """What the script says in this environment; what NCCL and start-up files print is its log."""
    nonce = binascii.hexlify(os.urandom(8)).decode("ascii")
    text, code = output([python, "-c", script, nonce], environment, user, PROBE_LIMIT)
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


def output(argv, environment, user, seconds, fence=None, count=0):
    """Both streams of a program as one, and its exit code; it is ended after `seconds`, or once the fence has come.

    What it leaves running ends with the process group of this read.
    """
    own_already = is_own(user)
    out, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(user)
            own = dict((name, os.environb[name]) for name in (b"HOME", b"USER", b"LOGNAME") if name in os.environb)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.execve(argv[0], argv, environment if own_already else merged(environment, own))
        finally:
            os._exit(126)
    os.close(sink)
    text, end = b"", time.monotonic() + seconds
    while not (fence and text.count(fence) >= count):
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
        raise NoAnswer("timed_out", "%s did not end within %g s: %s" % (argv[0], seconds, shown(text)))
    code = os.WEXITSTATUS(code) if os.WIFEXITED(code) else -os.WTERMSIG(code)
    if code == 126 and not text:
        raise NoAnswer("denied", "%s could not be run" % argv[0])
    return text, code


def merged(environment, own):
    """An environment with what becoming another user changes of it."""
    both = dict(environment)
    both.update(own)
    return both


def install(agent):
    """Register the reader of this part: in a child of its own, for it runs profile scripts and code of others."""
    offer({"nccl_address": read_nccl_address})
