"""Every error that ends a command, with its exit code and its remedy.

ClusterprepError                  exit code
├── InputError                    2    the user's files or words are wrong; carries every Problem found
├── Refused                       4    a lock is held, a file changed, a rollback would destroy edits
├── Interrupted                   130  Ctrl-C, SIGTERM, SIGHUP
├── OutOfTime                     3    --timeout reached with nothing undone
├── NotKnown                      3    what was asked for could not be determined
└── Unreached                     3    one node could not be used; while looking it becomes ssh.reach
    └── LinkLost                  3    a node that answered before went silent; ends a command that was about to write
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the input: where it is, what was seen and wanted, the nearest valid word."""

    message: str
    file: str | None = None
    line: int | None = None
    key: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        head = " ".join(
            part for part in (place and f"{place}:", self.key and f"{self.key}:") if part
        )
        tail = f" ({self.hint})" if self.hint else ""
        return f"{head} {self.message}{tail}".strip()


LONGEST = 4000  # characters of one message


def printable(text: str) -> str:
    """What a file holds must neither steer nor fill the terminal that shows it."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _shown(problem: Problem) -> Problem:
    key, hint = (word and printable(word) for word in (problem.key, problem.hint))
    return Problem(printable(problem.message), problem.file, problem.line, key, hint)


class ClusterprepError(Exception):
    """The root: a message for people, an exit code for scripts."""

    code = 70

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InputError(ClusterprepError):
    """The input is wrong; `problems` holds all of them, in file order."""

    code = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = tuple(map(_shown, problems))
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, message: str, **where: str | int | None) -> InputError:
        """One problem, said in one call."""
        return cls((Problem(message, **where),))  # type: ignore[arg-type]


class Refused(ClusterprepError):
    """Going on would destroy somebody's work; `diff` shows it where there is one."""

    code = 4

    def __init__(self, message: str, diff: str = "") -> None:
        super().__init__(message)
        self.diff = diff


class Interrupted(ClusterprepError):
    """A signal ended the command."""

    code = 130


class OutOfTime(ClusterprepError):
    """The limit of the whole command was reached."""

    code = 3


# What ends the whole command, in the middle of whatever its main thread does. A handler of all exceptions is for what
# went wrong in one place, and has to let these through.
ENDINGS = (Interrupted, OutOfTime)


class NotKnown(ClusterprepError):
    """What the command was to show could not be determined."""

    code = 3


class Unreached(ClusterprepError):
    """A node gave no usable session.

    `reason` is one of the words of the contract (name_unknown, refused, timed_out, no_banner,
    host_key_unknown, host_key_changed, auth_refused, no_python, sudo_refused, hung); `answered`
    says whether the node spoke and refused us (a failure) or gave no answer (not known).
    """

    code = 3
    ANSWERED = frozenset(
        {"host_key_unknown", "host_key_changed", "auth_refused", "no_python", "sudo_refused"}
    )

    def __init__(self, reason: str, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.remedy = remedy

    @property
    def answered(self) -> bool:
        return self.reason in self.ANSWERED


class LinkLost(Unreached):
    """The agent on a node that was reached fell silent or ended."""
