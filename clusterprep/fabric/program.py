"""The program that a node's /bin/sh runs for `exec`: the user's command, and what ends it. Pure.

The login shell of a node, which may be csh or fish, sees a constant line and a length. The program
follows on stdin, so that no word of the user's is read by another shell than the one it is quoted
for, and none of them stands in the list of processes beside the command itself.

What follows the program on stdin is never more than a script. From then on a watcher waits for the
end of stdin, which comes when the controller closes the connection or is gone: then it ends the
process group, and with it the command. sshd gives each session a group of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

GRACE = 2  # seconds between SIGTERM and SIGKILL
DEFAULT_INTERPRETER = ("/bin/sh",)
SHEBANG = b"#!"

# `head -c` reads no byte too many: what follows belongs to the program.
_LOADER = "/bin/sh -c '{greeting}eval \"$(head -c $1)\"' clusterprep {size}"

# The watcher ignores the signals by which it ends the others. It holds neither stdout nor stderr:
# sshd would wait for their end.
_WATCH = """\
exec 3<&0 </dev/null
{{
  trap '' TERM HUP INT
  while read -r line; do :; done <&3
  kill -TERM 0
  sleep {grace}
  {clean}
  kill -KILL 0
}} >/dev/null 2>&1 &
watcher=$!
exec 3<&-
"""
# Shells tell on stderr of a command that a signal ended, bash with its number: no two nodes would
# have printed the same. So stderr is the command's alone. `exec` takes no builtin of the shell.
_START = """\
exec 4>&2 2>/dev/null
(exec 2>&4 4>&-; exec {words})
"""
# What the command has left running in its group gets SIGTERM, too.
_END = """\
status=$?
kill -KILL "$watcher"
{clean}
trap '' TERM
kill -TERM 0
exit "$status"
"""
_FOLDER = """\
folder=$(mktemp -d "${{TMPDIR:-/tmp}}/clusterprep-XXXXXXXX") || exit 1
head -c {size} >"$folder/"{name}
if [ "$(wc -c <"$folder/"{name})" -ne {size} ]; then rm -rf "$folder"; exit 1; fi
"""


class ShellProgram(Struct, frozen=True):
    """A line for the login shell, and the bytes that follow on stdin."""

    size: int  # bytes of the program's text; what follows in `stdin` is a script
    stdin: bytes

    @property
    def line(self) -> str:
        return _LOADER.format(greeting="", size=self.size)

    @property
    def argv(self) -> tuple[str, ...]:
        """The same without a login shell in between."""
        return ("/bin/sh", "-c", 'eval "$(head -c $1)"', "clusterprep", str(self.size))

    def line_that_says(self, word: str) -> str:
        """Return the line of a program that prints a word before it reads its text."""
        return _LOADER.format(greeting=f"echo {word}; ", size=self.size)


def of_command(argv: Sequence[str]) -> ShellProgram:
    """Return the program that runs a command with exactly these arguments."""
    text = "".join(
        (
            _WATCH.format(grace=GRACE, clean=":"),
            _started(map(quoted, argv)),
            _END.format(clean=":"),
        )
    )
    return _program(text)


def of_script(name: str, content: bytes) -> ShellProgram:
    """Return the program that runs a script by the interpreter of its first line.

    While it runs, the script is a file called `name` in a folder of its own.
    """
    file = quoted(name)
    clean = 'rm -rf "$folder"'
    words = [*map(quoted, interpreter(content)), f'"$folder/"{file}']
    text = "".join(
        (
            _FOLDER.format(size=len(content), name=file),
            _WATCH.format(grace=GRACE, clean=clean),
            _started(words),
            _END.format(clean=clean),
        )
    )
    return _program(text, content)


def quoted(word: str) -> str:
    """Return a word that a shell takes as it is: no variable, no assignment and no keyword."""
    inner = word.replace("'", "'\\''")
    return f"'{inner}'"


def _started(words: Iterable[str]) -> str:
    return _START.format(words=" ".join(words))


def interpreter(content: bytes) -> tuple[str, ...]:
    r"""Return the interpreter of a script and its one argument, as the kernel reads its first line.

    >>> interpreter(b"#!/usr/bin/env python3\\\nprint(1)")
    ('/usr/bin/env', 'python3')
    """
    first = content.split(b"\n", 1)[0]
    if not first.startswith(SHEBANG):
        return DEFAULT_INTERPRETER
    words = first.removeprefix(SHEBANG).decode("utf-8", "surrogateescape").strip()
    return tuple(words.split(None, 1)) or DEFAULT_INTERPRETER


def _program(text: str, rest: bytes = b"") -> ShellProgram:
    data = text.encode("utf-8", "surrogateescape")
    return ShellProgram(len(data), data + rest)
