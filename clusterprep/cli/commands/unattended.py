"""How a command runs that no person attends: nothing is shown, and secrets are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from clusterprep.cli.commands.opening import Attendance
from clusterprep.cli.commands.sudo_password import password_of_all, refuse_through_slurm
from clusterprep.model import ChangeRow, Node
from clusterprep.remote.transports.link import Password
from clusterprep.reports.progress import Progress


class Secrets(Struct, frozen=True):
    """Sudo's password and the passphrase of keys, and how the first is called for the user."""

    become_password: str
    key_passphrase: str
    password_key: str


def unattended(
    secrets: Secrets, confirm: Callable[[Sequence[ChangeRow]], bool] = lambda rows: True
) -> Attendance:
    """Return the attendance of one command. `confirm` says whether changes may be written."""

    def password(nodes: Sequence[Node]) -> Password:
        if secrets.become_password:
            refuse_through_slurm(nodes, secrets.password_key)
        return password_of_all(secrets.become_password, secrets.password_key)

    asked: set[str] = set()

    def passphrase(prompt: str) -> str:
        is_first = prompt not in asked
        asked.add(prompt)
        return secrets.key_passphrase if is_first else ""  # it was wrong

    return Attendance(passphrase, password, Progress, confirm)
