"""Every error that ends a command, with its exit code and its remedy.

ClusterprepError   exit code
├── InputError     2    the user's files or options are wrong; carries every Problem
├── Refused        4    a lock is held, a file changed, a rollback would destroy edits
├── ChangeFailed   1    a change was begun, and was put back or could not be
├── Interrupted    130  Ctrl-C, SIGTERM, SIGHUP
├── OutOfTime      3    --timeout reached before anything was changed
├── NotKnown       3    what was asked for could not be determined
└── Unreached      3    one node could not be used; while looking it becomes ssh.reach
    └── LinkLost   3    a node that answered before went silent; ends a command before it writes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from clusterprep.remedies import NO_REMEDY, Remedy

Error = TypeVar("Error", bound="ClusterprepError")


@dataclass(frozen=True)
class Problem:
    """One mistake in the input: where it is, what was seen and wanted, the nearest valid word."""

    message: str
    file: str | None = None
    line: int | None = None
    key: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        parts = []
        if place:
            parts.append(f"{place}:")
        if self.key:
            parts.append(f"{self.key}:")
        parts.append(self.message)
        if self.hint:
            parts.append(f"({self.hint})")
        return " ".join(parts).strip()


LONGEST = 4000  # characters of one message


def printable(text: str) -> str:
    """Return the text without control characters and at most LONGEST characters of it.

    Text from files must neither control nor fill the terminal that shows it.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    letters = []
    for letter in text:
        shown = letter if letter.isprintable() else ascii(letter)[1:-1]
        letters.append(shown)
    return "".join(letters)


def _printable_problem(problem: Problem) -> Problem:
    """Return the problem with texts that are safe to show."""
    key = problem.key and printable(problem.key)
    hint = problem.hint and printable(problem.hint)
    return Problem(
        printable(problem.message),
        problem.file,
        problem.line,
        key,
        hint,
    )


class ClusterprepError(Exception):
    """The root of all errors: a message for people, an exit code for scripts."""

    code = 70

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def extended(self: Error, addition: str) -> Error:
        """Return a copy of this error with `addition` at the end of its message.

        `str(copy)` and `copy.message` agree, and all other attributes are those of this error.
        Subclasses have constructors of their own, so the copy is made without calling one.
        """
        kind = type(self)
        copy = kind.__new__(kind)
        copy.__dict__.update(self.__dict__)
        copy.message = self.message + addition
        copy.args = (copy.message,)
        return copy


class InputError(ClusterprepError):
    """The input is wrong; `problems` holds all of them, in file order."""

    code = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = tuple(_printable_problem(problem) for problem in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def of(cls, message: str, **where: str | int | None) -> InputError:
        """Return an error with one problem."""
        return cls((Problem(message, **where),))  # type: ignore[arg-type]


class Refused(ClusterprepError):
    """Going on would destroy the work of others; `diff` shows it where there is a difference."""

    code = 4

    def __init__(self, message: str, diff: str = "") -> None:
        super().__init__(message)
        self.diff = diff


class ChangeFailed(ClusterprepError):
    """What was written did not stay, or is on some nodes only; the message says where."""

    code = 1


class Interrupted(ClusterprepError):
    """A signal ended the command."""

    code = 130


class OutOfTime(ClusterprepError):
    """The time limit of the whole command was reached."""

    code = 3


class NotKnown(ClusterprepError):
    """What the command was to show could not be determined."""

    code = 3


class Unreached(ClusterprepError):
    """A node gave no usable session.

    `reason` is one of the words of the contract (name_unknown, refused, timed_out, no_banner,
    host_key_unknown, host_key_changed, auth_refused, denied, no_python, sudo_refused, hung).
    """

    code = 3
    ANSWERED = frozenset(
        {
            "host_key_unknown",
            "host_key_changed",
            "auth_refused",
            "denied",
            "no_python",
            "sudo_refused",
        }
    )

    def __init__(self, reason: str, detail: str, remedy: Remedy = NO_REMEDY) -> None:
        super().__init__(detail)
        self.reason = reason
        self.remedy = remedy

    @property
    def answered(self) -> bool:
        """True if the node answered and refused us, False if it gave no answer at all.

        The check ssh.reach fails for the first and is unknown for the second; no other check
        speaks of either.
        """
        return self.reason in self.ANSWERED


class LinkLost(Unreached):
    """The agent on a node that was reached fell silent or ended."""
