"""The environment that the shells of the job's user give to a process, asked as that user.

A login shell is started as login(1) does, a shell for one command as sshd does. Each has a limit of
its own, and its answer is between marks that nothing else prints.
"""

import os
import select
import time

from clusterprep.remote.agent.launched import kept, text_of, variable_names, wanted
from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.pam import ENVIRONMENT
from clusterprep.remote.agent.readers import NoAnswer, become, matching_paths

SHELL_LIMIT = 4.0  # seconds for one shell with its start-up files
TRACE_LIMIT = 0.5  # seconds of another look at a shell that hangs, to find the line
MOST = 4 << 20  # bytes that start-up files may print
MOST_FILES = 128  # start-up files that are followed
NO_LOGIN = ("nologin", "false", "sync", "halt", "shutdown")
TRACED = ("bash", "sh", "dash", "ksh", "zsh")
STARTED = time.time()  # before this process was asked to write anything
NOT_STARTED = 126  # exit code of a child that could not run the shell
# Lane of all reads that start shells: one child, so that the first read can ask for the others.
LANE = "sessions"
_sessions_of_earlier_read = {}  # type: ignore[var-annotated]  # (user, session) -> sessions


def account(user, session):
    """Return the user's line of the password database, and this process's environment or None.

    The environment is returned if this process is an ssh session of that user, and as new as the
    file that PAM makes it of. `user` None is the
    user who logged in; `session` says that this process is an ssh command's.
    """
    import pwd

    user = user or os.environ.get("SUDO_USER")
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise NoAnswer("missing", "there is no user %s" % (user or os.geteuid()))
    is_own = entry.pw_uid == os.geteuid()
    if not is_own and os.geteuid() != 0:
        raise NoAnswer("denied", "a session of %s cannot be opened" % entry.pw_name)
    is_session = is_own and session and "SUDO_USER" not in os.environ
    if is_session and not changed_since(ENVIRONMENT, STARTED):
        return entry, dict(os.environ)
    return entry, None


def changed_since(path, time_of_clock):
    """Return whether a file was written after a time: what came of it before is no news then.

    PAM gave this session what the file had at login, and apply may have written it since.
    """
    try:
        return os.stat(path).st_mtime > time_of_clock
    except OSError:
        return False


def as_user(entry, look):
    """Return what `look` returns in a process of the user.

    That process stays in the group of its parent, which is killed as a whole.
    """
    if entry.pw_uid == os.geteuid():
        return look()
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(source)
            become(entry.pw_name)
            _write_answer(look, sink)
        finally:
            os._exit(0)
    os.close(sink)
    data = _read_all(source)
    os.close(source)
    os.waitpid(pid, 0)
    if not data:
        raise NoAnswer("garbled", "the look as %s ended early" % entry.pw_name)
    answer = loads(data.decode("ascii"))
    if answer[0] != "ok":
        raise NoAnswer(answer[1], answer[2])
    return answer[1]


def _write_answer(look, sink):
    """Write the raw answer of `look()`, a value or the reason for none, to a descriptor."""
    try:
        answer = ["ok", look()]
    except NoAnswer as no:
        answer = ["no", no.reason, no.why]
    except Exception as error:  # noqa: BLE001 - it becomes the reason of the answer
        answer = ["no", "garbled", "%s: %s" % (type(error).__name__, error)]
    data = dumps(answer).encode("ascii")
    while data:
        sent = os.write(sink, data)
        data = data[sent:]


def _read_all(source):
    pieces = []
    while True:
        piece = os.read(source, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def keep_sessions(user, session, by_path):
    """Keep the sessions for the next read of this child: start-up files may take 0.1 seconds."""
    _sessions_of_earlier_read[user, session] = by_path


def take_sessions(user, session):
    """Return, once, the sessions that an earlier read kept; None if there are none."""
    return _sessions_of_earlier_read.pop((user, session), None)


# ---------------------------------------------------------------- start-up files


def start_up(entry, unread=None):
    """Return the existing start-up files of a user's shell as [path, text].

    They are in the order of an interactive login. A file that another one sources by name comes
    behind it. The paths of what is missing or cannot be read are appended to `unread`.
    """
    unread = [] if unread is None else unread
    home = entry.pw_dir.rstrip("/")
    shell = os.path.basename(entry.pw_shell or "/bin/sh")
    files = []
    for path in _start_up_paths(shell, home):
        _add_file(path, home, files, unread)
    return files


def _start_up_paths(shell, home):
    """Return the files that a login shell of this name reads, in its order."""
    if shell == "zsh":
        return [
            "/etc/zshenv",
            "/etc/zsh/zshenv",
            home + "/.zshenv",
            "/etc/zprofile",
            "/etc/zsh/zprofile",
            home + "/.zprofile",
            "/etc/zshrc",
            "/etc/zsh/zshrc",
            home + "/.zshrc",
            home + "/.zlogin",
        ]
    if shell in ("csh", "tcsh"):
        return [
            "/etc/csh.cshrc",
            "/etc/csh.login",
            home + "/.tcshrc",
            home + "/.cshrc",
            home + "/.login",
        ]
    if shell == "fish":
        return ["/etc/fish/config.fish", home + "/.config/fish/config.fish"]
    order = ["/etc/profile"]
    order += [path for path in matching_paths("/etc/profile.d/*") if path.endswith(".sh")]
    if shell != "bash":
        return order + [home + "/.profile"]
    order += ["/etc/bash.bashrc", "/etc/bashrc"]
    for name in ("/.bash_profile", "/.bash_login", "/.profile"):
        if os.path.exists(home + name):
            order.append(home + name)
            break  # bash reads the first of them only
    return order + [home + "/.bashrc", home + "/.bash_aliases"]


def _add_file(path, home, files, unread):
    """Append a start-up file, and behind it the files that it sources by name."""
    if path[:1] != "/" or "$" in path:
        return
    if any(path == known for known, _ in files):
        return
    text = text_of(path)
    if text is None:
        unread.append(path)
        return
    if len(files) >= MOST_FILES:
        raise NoAnswer("truncated", "there are more than %d start-up files" % MOST_FILES)
    files.append([path, text])
    if ". " not in text and "source " not in text:
        return
    for line in text.splitlines():
        tokens = line.replace(";", " ").replace('"', " ").split()
        for index, token in enumerate(tokens[:-1]):
            if token in (".", "source"):
                sourced = expanded(tokens[index + 1], home)
                _add_file(sourced, home, files, unread)


def expanded(word, home):
    """Return a word of a shell with the user's home in the place of ~ or $HOME."""
    for start in ("~", "$HOME", "${HOME}"):
        if word.startswith(start + "/"):
            return home + word[len(start) :]
    return word


# ---------------------------------------------------------------- shells


def identity(entry):
    """Return the variables that every process of a user has, whatever starts it."""
    return {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh",
        "TERM": "dumb",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def sessions(entry, given, texts, by_pam, wants=wanted):
    """Return {launch path: ["ok", variables] or ["no", reason, why]} of the user's shells.

    It is empty if the user cannot log in. `given` is the environment of the session that this
    process runs in, None if it is another user's; `texts` are the start-up files of the user.
    `by_pam` are the Sources of sshd (pam.py), which PAM reads before any shell starts. `wants`
    tells by its name whether a variable is returned.
    """
    shell = entry.pw_shell or "/bin/sh"
    if os.path.basename(shell) in NO_LOGIN:
        return {}
    closed = by_pam.closed()
    if closed and given is None:
        no = ["no", "denied", "%s is for root alone" % closed]
        return {"login shell": no, "ssh command": no}
    base = identity(entry)
    base.update(by_pam.variables())
    if given is not None:
        base.update(_session_variables(given, texts, wants))
        command = ["ok", kept(given, wants)]
    else:
        # bash reads ~/.bashrc if sshd started it, which it recognizes by this variable.
        base_of_command = dict(base, SSH_CLIENT="127.0.0.1 1 22")
        command = _ask_shell(
            shell,
            base_of_command,
            texts,
            False,
            False,
            wants,
        )
    # Most people write behind the line that ends ~/.bashrc in scripts, so an interactive shell is
    # asked if that file sets a relevant variable. It reads completions and prompts too.
    interactive = _is_set_in_rc(texts, wants)
    login = _ask_shell(
        shell,
        base,
        texts,
        True,
        interactive,
        wants,
    )
    if interactive and login[0] == "no" and login[1] != "hung":
        login = _ask_shell(
            shell,
            base,
            texts,
            True,
            False,
            wants,
        )
    return {
        "login shell": login,
        "ssh command": command,
    }


def _session_variables(given, texts, wants):
    """Return the relevant variables of a session that no start-up file sets."""
    set_by_files = set()
    for _, text in texts:
        set_by_files.update(_names(text, wants))
    variables = kept(given, wants)
    return dict((name, value) for name, value in variables.items() if name not in set_by_files)


def _is_set_in_rc(texts, wants):
    for path, text in texts:
        if path.endswith(("rc", ".bash_aliases")) and _names(text, wants):
            return True
    return False


def _names(text, wants):
    """Return the names of the wanted variables that a start-up file sets."""
    relevant = []
    for line in text.splitlines():
        if "=" in line or "env" in line:
            relevant += [name for name in variable_names(line) if wants(name)]
    return relevant


def _ask_shell(shell, env, texts, login, interactive, wants):
    """Return the variables of a shell of that kind, as ["ok", variables] or ["no", reason, why]."""
    nonce = "".join("%02x" % byte for byte in bytearray(os.urandom(16)))
    fence = "clusterprep-" + nonce
    command = "printf '\\0%s\\0' " + fence + "; /usr/bin/env -0; printf '%s' " + fence
    env = dict(env, HISTFILE="/dev/null")  # an interactive shell cuts its history file at its start
    argv = [os.path.basename(shell)]
    if login:
        argv = ["-" + argv[0]]
    if interactive:
        argv.append("-i")
    argv += ["-c", command]
    end_mark = fence.encode("ascii")
    start_mark = b"\0" + end_mark + b"\0"
    data, why = _run(
        shell,
        argv,
        env,
        1,
        start_mark,
        end_mark,
        SHELL_LIMIT,
    )
    answer = data.partition(start_mark)[2]
    rows, is_complete, _ = answer.rpartition(end_mark)
    if is_complete:
        return ["ok", kept(_variables(rows), wants)]
    if len(data) > MOST:
        why = "start-up files of %s print more than %d bytes" % (env["USER"], MOST)
        return ["no", "truncated", why]
    where = _where(
        shell,
        argv,
        env,
        texts,
        why == "hung",
    )
    if why == "hung":
        return ["no", "hung", "a start-up file of %s hangs%s" % (env["USER"], where)]
    if why is not None:
        return ["no", why, "%s cannot be run" % shell]
    return ["no", "garbled", "a start-up file of %s ends the shell%s" % (env["USER"], where)]


def _variables(rows):
    variables = {}
    for row in rows.split(b"\0"):
        name, _, value = row.decode("utf-8", "replace").partition("=")
        variables[name] = value
    return variables


def _run(shell, argv, env, stream, start_mark, end_mark, limit):
    """Return what a shell prints on a stream, and None, "hung" or "missing_tool".

    Reads until the second mark, the end of the shell, or the limit in seconds.
    """
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
            os._exit(NOT_STARTED)
    os.close(sink)
    data, is_complete = _read_until_mark(source, start_mark, end_mark, limit)
    os.close(source)
    why = None if is_complete else "hung"
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        os.kill(pid, signal.SIGKILL)  # what it started is killed with the group of this read
        os.waitpid(pid, 0)
    elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == NOT_STARTED and not data:
        why = "missing_tool"
    return data, why


def _read_until_mark(source, start_mark, end_mark, limit):
    """Return what comes through a pipe, and whether it was complete before the limit."""
    data = b""
    end = time.monotonic() + limit
    while select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(source, 1 << 16)
        data += piece
        if not piece or len(data) > MOST:
            return data, True
        if start_mark and data.endswith(end_mark) and start_mark in data[: -len(end_mark)]:
            return data, True
    return data, False


def _where(shell, argv, env, texts, hung):
    """Return ": FILE line NUMBER" of the line at which a shell hangs or ends, by its trace.

    A shell that ends may still run the commands of its exit, so more lines of its trace are tried.
    """
    if os.path.basename(shell) not in TRACED:
        return ""
    traced = argv[:1] + ["-x"] + argv[1:]
    data, _ = _run(
        shell,
        traced,
        env,
        2,
        b"",
        b"",
        TRACE_LIMIT,
    )
    commands = []
    for line in data.decode("utf-8", "replace").split("\n"):
        if line[:1] == "+":
            commands.append(line.lstrip("+").strip())
    last = commands[: -2 if hung else -10 : -1]
    for command in last:
        place = _place_of(command, texts)
        if place:
            return place
    return ""


def _place_of(command, texts):
    """Return ": FILE line NUMBER" of the last start-up file that has this command, else ""."""
    if not command:
        return ""
    for path, text in reversed(texts):
        for number, line in enumerate(text.splitlines(), 1):
            if command in line and not line.lstrip().startswith("#"):
                return ": %s line %d" % (path, number)
    return ""
