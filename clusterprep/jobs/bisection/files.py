"""Keep the runs of a bisect in the state folder, so that it can go on."""

from __future__ import annotations

from pathlib import Path

from clusterprep.errors import InputError
from clusterprep.jobs.bisection.state import State, decode
from clusterprep.jobs.launch.logs import forget_old
from clusterprep.runtime import files

NAME = "runs.json"
LAST = "last"


class RunFolder:
    """The folder of one bisect: a file with its runs, and a folder with the logs of each run.

    Raises InputError if it cannot be made.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.path = folder / run
        self.trouble = ""  # why the runs could not be kept
        try:
            # What jobs print is not for all users of this machine.
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            message = f"{self.path}, for the runs, cannot be made: {error.strerror}"
            raise InputError.of(message) from None
        forget_old(folder)

    def keep(self, text: str) -> None:
        """Write the runs, all or none of them. A full disk must not end the search: it is noted."""
        try:
            files.replace(self.path / NAME, [text])
        except OSError as error:
            self.trouble = f"the runs are not kept, so --resume cannot go on: {error.strerror}"

    def logs(self, number: int) -> Path:
        """Return the folder for what the processes of one run print."""
        return self.path / f"run-{number:02}"


def earlier(folder: Path, name: str) -> tuple[State, str]:
    """Return the runs of an earlier bisect, and their file. Raises InputError."""
    chosen = name
    if name == LAST:
        kept = sorted(path.parent.name for path in folder.glob(f"*/{NAME}"))
        if not kept:
            raise InputError.of("no bisect has runs that are kept", key="--resume")
        chosen = kept[-1]
    path = folder / chosen / NAME
    try:
        if path.parent.parent != folder:
            raise InputError.of(f"'{name}' is not the name of a run", key="--resume")
        data = path.read_bytes()
    except OSError as error:
        message = f"no runs are kept of '{name}': {error.strerror}"
        raise InputError.of(message, key="--resume", hint="`last` names the newest") from None
    return decode(data, str(path)), str(path)
