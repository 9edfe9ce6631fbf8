"""What the shells of the job's user give to a process, asked as that user.

A login shell is started as login(1) does, a shell for one command as sshd does, each between fences that nothing else
prints and with a limit of its own.
"""

import os
import select
import time

from clusterprep.remote.agent.launched import kept, named, text_of, wanted
from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.readers import NoAnswer, become, paths

SHELL_LIMIT = 4.0  # seconds for one shell with its start-up files
TRACE_LIMIT = 0.5  # seconds of another look at a shell that hangs, to see in which line
MOST = 4 << 20  # bytes that start-up files may print
NO_LOGIN = ("nologin", "false", "sync", "halt", "shutdown")
TRACED = ("bash", "sh", "dash", "ksh", "zsh")
LANE = "sessions"  # of the reads that start shells: one child for all of them, so that the first can ask for the others
_asked_before = {}  # type: ignore[var-annotated]  # (user, session) -> sessions, until the next read takes them


def account(user, session):
    """The user's line of the password database, and the environment of this process where it is a session of his.

    `user` None is who logged in; `session` says that this process is an ssh command's.
    """
    import pwd

    user = user or os.environ.get("SUDO_USER")
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise NoAnswer("missing", "there is no user %s" % (user or os.geteuid()))
    own = entry.pw_uid == os.geteuid()
    if not own and os.geteuid() != 0:
        raise NoAnswer("denied", "a session of %s cannot be opened" % entry.pw_name)
    return entry, dict(os.environ) if own and session and "SUDO_USER" not in os.environ else None


def as_user(entry, look):
    """What `look` answers in a process of the user; it stays in the group of its parent, which is killed as a whole."""
    if entry.pw_uid == os.geteuid():
        return look()
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(source)
            become(entry.pw_name)
            try:
                answer = ["ok", look()]
            except NoAnswer as no:
                answer = ["no", no.reason, no.why]
            except Exception as error:  # noqa: BLE001 - it travels home as the reason
                answer = ["no", "garbled", "%s: %s" % (type(error).__name__, error)]
            data = dumps(answer).encode("ascii")
            while data:
                data = data[os.write(sink, data) :]
        finally:
            os._exit(0)
    os.close(sink)
    pieces = []
    while True:
        piece = os.read(source, 1 << 16)
        if not piece:
            break
        pieces.append(piece)
    os.close(source)
    os.waitpid(pid, 0)
    if not pieces:
        raise NoAnswer("garbled", "the look as %s ended early" % entry.pw_name)
    answer = loads(b"".join(pieces).decode("ascii"))
    if answer[0] != "ok":
        raise NoAnswer(answer[1], answer[2])
    return answer[1]


def keep(user, session, found):
    """Leave what `sessions` found to the next read of this child: start-up files may take a tenth of a second."""
    _asked_before[user, session] = found


def take(user, session):
    """What an earlier read of this child has left, once; None where the shells are to be asked."""
    return _asked_before.pop((user, session), None)


# ---------------------------------------------------------------- start-up files


def start_up(entry):
    """The start-up files of a user's shell that are there, as [path, text], as an interactive login reads them.

    A file that one of them takes in by name comes behind it.
    """
    home, shell = entry.pw_dir.rstrip("/"), os.path.basename(entry.pw_shell or "/bin/sh")
    if shell == "zsh":
        order = [
            "/etc/zshenv",
            "/etc/zsh/zshenv",
            home + "/.zshenv",
            "/etc/zprofile",
            "/etc/zsh/zprofile",
        ]
        order += [
            home + "/.zprofile",
            "/etc/zshrc",
            "/etc/zsh/zshrc",
            home + "/.zshrc",
            home + "/.zlogin",
        ]
    elif shell in ("csh", "tcsh"):
        order = [
            "/etc/csh.cshrc",
            "/etc/csh.login",
            home + "/.tcshrc",
            home + "/.cshrc",
            home + "/.login",
        ]
    elif shell == "fish":
        order = ["/etc/fish/config.fish", home + "/.config/fish/config.fish"]
    else:
        order = ["/etc/profile"] + [
            path for path in paths("/etc/profile.d/*") if path.endswith(".sh")
        ]
        if shell == "bash":
            own = [home + name for name in ("/.bash_profile", "/.bash_login", "/.profile")]
            order += ["/etc/bash.bashrc", "/etc/bashrc"] + [
                path for path in own if os.path.exists(path)
            ][:1]
            order += [home + "/.bashrc", home + "/.bash_aliases"]
        else:
            order += [home + "/.profile"]
    found = []
    for path in ["/etc/environment"] + order:
        _add(path, home, found)
    return found


def _add(path, home, found):
    if path[:1] != "/" or "$" in path or len(found) > 128 or path in [known for known, _ in found]:
        return
    text = text_of(path)
    if text is None:
        return
    found.append([path, text])
    for line in text.splitlines() if ". " in text or "source " in text else ():
        words = line.replace(";", " ").replace('"', " ").split()
        for at in range(len(words) - 1):
            if words[at] in (".", "source"):
                _add(_expanded(words[at + 1], home), home, found)


def _expanded(word, home):
    for start in ("~", "$HOME", "${HOME}"):
        if word.startswith(start + "/"):
            return home + word[len(start) :]
    return word


# ---------------------------------------------------------------- shells


def identity(entry):
    """What every process of a user has, whoever starts it."""
    shell = entry.pw_shell or "/bin/sh"
    found = {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": shell,
        "TERM": "dumb",
    }
    return dict(found, PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def sessions(entry, given, texts):
    """{path: ["ok", {name: value}] or ["no", reason, why]}; nothing for a user who cannot log in.

    `given` is the environment of the session that this process runs in, None where it is not the user's; `texts` are
    his start-up files.
    """
    shell = entry.pw_shell or "/bin/sh"
    if os.path.basename(shell) in NO_LOGIN:
        return {}
    pam = _pam(dict(map(tuple, texts)).get("/etc/environment", ""))
    base = dict(identity(entry), **pam)
    if given is not None:
        # What start-up files have set is not what the session began with.
        again = set(
            name for path, text in texts if path != "/etc/environment" for name in _names(text)
        )
        base.update(
            (name, value) for name, value in given.items() if wanted(name) and name not in again
        )
        command = ["ok", kept(given)]
    else:
        # bash reads ~/.bashrc where sshd started it, which it tells by this variable
        command = _asked(shell, dict(base, SSH_CLIENT="127.0.0.1 1 22"), texts, False, False)
    # Most people write behind the line that ends ~/.bashrc in scripts, so a terminal's shell is asked where that says
    # anything; it reads completions and prompts too.
    rc = [text for path, text in texts if path.endswith(("rc", ".bash_aliases"))]
    talks = any(wanted(name) for text in rc for name in _names(text))
    login = _asked(shell, base, texts, True, talks)
    if talks and login[0] == "no" and login[1] != "hung":
        login = _asked(shell, base, texts, True, False)
    return {"login shell": login, "ssh command": command}


def _names(text):
    return [
        name
        for line in text.splitlines()
        if "=" in line or "env" in line
        for name in named(line)
        if wanted(name)
    ]


def _pam(text):
    """/etc/environment as pam_env(8) reads it."""
    found = {}
    for line in text.splitlines():
        bare = line.strip()
        bare = bare[7:].lstrip() if bare.startswith("export ") else bare
        name, sign, value = bare.partition("#")[0].partition("=")
        if sign and name:
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name] = value[1:-1] if quoted else value
    return found


def _asked(shell, env, texts, login, interactive):
    """The variables of a shell of that kind, between fences that nothing else prints."""
    fence = "clusterprep-" + "".join("%02x" % byte for byte in bytearray(os.urandom(16)))
    command = "printf '\\0%s\\0' " + fence + "; /usr/bin/env -0; printf '%s' " + fence
    env = dict(env, HISTFILE="/dev/null")  # a terminal's shell cuts its history file when it starts
    argv = (
        [("-" if login else "") + os.path.basename(shell)]
        + (["-i"] if interactive else [])
        + ["-c", command]
    )
    mark = b"\0" + fence.encode("ascii") + b"\0"
    data, why = _run(shell, argv, env, 1, mark, fence.encode("ascii"), SHELL_LIMIT)
    rest = data.partition(mark)[2]
    whole, sign, _ = rest.rpartition(fence.encode("ascii"))
    if sign:
        pairs = [row.decode("utf-8", "replace").partition("=") for row in whole.split(b"\0")]
        return ["ok", kept(dict((name, value) for name, _, value in pairs))]
    where = _where(shell, argv, env, texts, why == "hung")
    if why == "hung":
        return ["no", "hung", "a start-up file of %s hangs%s" % (env["USER"], where)]
    if why is not None:
        return ["no", why, "%s cannot be run" % shell]
    return ["no", "garbled", "a start-up file of %s ends the shell%s" % (env["USER"], where)]


def _run(shell, argv, env, stream, mark, fence, limit):
    """What a shell prints on a stream until its last fence, its end or its limit; why it did not come to its end."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for fd in (0, 1, 2):
                os.dup2(sink if fd == stream else os.open("/dev/null", os.O_RDWR), fd)
            os.closerange(3, 64)
            os.chdir(env["HOME"] if os.access(env["HOME"], os.X_OK) else "/")
            os.execve(shell, argv, env)  # noqa: S606 - the user's own shell, as sshd starts it
        finally:
            os._exit(126)
    os.close(sink)
    data, why, end = b"", "hung", time.monotonic() + limit
    while select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(source, 1 << 16)
        data += piece
        if (
            not piece
            or len(data) > MOST
            or (mark and data.endswith(fence) and mark in data[: -len(fence)])
        ):
            why = None
            break
    os.close(source)
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        os.kill(pid, signal.SIGKILL)  # what it started is killed with the group of this read
        os.waitpid(pid, 0)
    elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == 126 and not data:
        why = "missing_tool"
    return data, why


def _where(shell, argv, env, texts, hung):
    """The line at which a shell hangs or ends, as far as its trace tells; after an end it may still say goodbye."""
    if os.path.basename(shell) not in TRACED:
        return ""
    data, _ = _run(shell, argv[:1] + ["-x"] + argv[1:], env, 2, b"", b"", TRACE_LIMIT)
    lines = [
        line.lstrip("+").strip()
        for line in data.decode("utf-8", "replace").split("\n")
        if line[:1] == "+"
    ]
    for last in lines[: -2 if hung else -10 : -1]:
        for path, text in reversed(texts):
            for number, line in enumerate(text.splitlines(), 1):
                if last and last in line and not line.lstrip().startswith("#"):
                    return ": %s line %d" % (path, number)
    return ""
