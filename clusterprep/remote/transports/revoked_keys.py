"""Check RevokedHostKeys of ssh_config: keys that no host may show, as text or as a KRL."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable
from pathlib import Path

from clusterprep.errors import Unreached
from clusterprep.remedies import sentence, shell_line
from clusterprep.remote.transports.known_hosts import fingerprint

_KRL = b"SSHKRL\n\0"  # PROTOCOL.krl of OpenSSH
LIMIT = 10.0  # seconds for ssh-keygen
REMEDY = sentence(
    "give the node a new host key (ssh-keygen -A after removing the old one), "
    "then add it to known_hosts"
)


def refuse_listed(path: str, host: str, type_: str, blobs: Iterable[bytes]) -> None:
    """Raise Unreached if the file lists one of these keys or certificates.

    Raises it too if the file cannot be read, as OpenSSH then trusts no host.
    """
    try:
        listed = _first_listed(path, blobs)
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"RevokedHostKeys {path} cannot be asked, and then no host is trusted: {error}"
        remedy = shell_line(
            "ssh-keygen -Q -l -f {path}   # or take it out of ssh_config", path=path
        )
        raise Unreached("host_key_unknown", message, remedy) from None
    if listed is not None:
        key = f"{type_} {fingerprint(listed)}"
        message = f"{host} shows a host key that is revoked: {key} (RevokedHostKeys {path})"
        raise Unreached("host_key_changed", message, REMEDY)


def _first_listed(path: str, blobs: Iterable[bytes]) -> bytes | None:
    """Return the first of these keys that the file lists, None if it lists none."""
    content = Path(path).read_bytes()
    is_listed = _is_in_krl if content.startswith(_KRL) else _is_in_text
    for blob in blobs:
        if is_listed(path, content, blob):
            return blob
    return None


def _is_in_text(path: str, content: bytes, blob: bytes) -> bool:
    key = base64.b64encode(blob)
    for line in content.splitlines():
        is_comment = line.lstrip().startswith(b"#")
        if not is_comment and key in line.split():
            return True
    return False


def _is_in_krl(path: str, content: bytes, blob: bytes) -> bool:
    """Return whether ssh-keygen says so. True as well if it cannot read the file or the key."""
    length = int.from_bytes(blob[:4], "big")
    type_ = blob[4 : 4 + length]
    line = b"%b %b\n" % (type_, base64.b64encode(blob))
    argv = ["ssh-keygen", "-Q", "-f", path, "/dev/stdin"]
    done = subprocess.run(
        argv,
        input=line,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode != 0
