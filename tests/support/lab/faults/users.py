"""Users besides root."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.files import without
from tests.support.lab.rooms import Host


def add_user(
    host: Host,
    name: str,
    sudo: Literal["nopasswd", "password"] | None = None,
    password: str | None = None,
    uid: int | None = None,
) -> Fault:
    """An ordinary user that the controller's key opens too.

    With a password and a line for sudo if wanted.
    """
    number = [] if uid is None else ["--uid", str(uid)]
    host.run(["useradd", "--create-home", "--shell", "/bin/bash", *number, name])
    home = f"/home/{name}/.ssh"
    host.run(
        [
            "sh",
            "-c",
            (
                f"mkdir -m 700 {home} && cp /root/.ssh/authorized_keys {home} && "
                f"chown -R {name}: {home}"
            ),
        ]
    )
    if password is not None:
        host.run(["chpasswd"], input=f"{name}:{password}\n")
    if sudo is not None:
        tag = "NOPASSWD: " if sudo == "nopasswd" else ""
        host.write(f"/etc/sudoers.d/{name}", f"{name} ALL=(ALL:ALL) {tag}ALL\n", 0o440)
    if Path(sys.base_prefix).is_relative_to("/root"):
        host.run(
            ["chmod", "711", "/root"]
        )  # the interpreter of the job lies there, and this user is to run it
    return Fault(lambda: _remove_user(host, name))


def no_key(host: Host) -> Fault:
    """No key opens root's account any more."""
    return without(host, "/root/.ssh/authorized_keys")


def _remove_user(host: Host, name: str) -> None:
    host.run(["rm", "-f", f"/etc/sudoers.d/{name}"])
    host.run(["userdel", "--force", "--remove", name])
