"""RevokedHostKeys of ssh_config: a list of keys that no host may show, as text or as a KRL of ssh-keygen's."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable
from pathlib import Path

from clusterprep.errors import Unreached
from clusterprep.remote.transports.known_hosts import fingerprint

_KRL = b"SSHKRL\n\0"  # PROTOCOL.krl of OpenSSH
LIMIT = 10.0  # seconds for ssh-keygen
CURE = "give the node a new host key (ssh-keygen -A after removing the old one), then add it to known_hosts"


def refuse_listed(path: str, host: str, type_: str, blobs: Iterable[bytes]) -> None:
    """Raises Unreached where the file has one of these keys or certificates, or cannot tell, as OpenSSH does then."""
    try:
        content = Path(path).read_bytes()
        listed = _in_krl if content.startswith(_KRL) else _in_text
        shown = next((blob for blob in blobs if listed(path, content, blob)), None)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"RevokedHostKeys {path} cannot be asked, and then no host is trusted: {error}"
        raise Unreached(
            "host_key_unknown", why, f"ssh-keygen -Q -l -f {path}   # or take it out of ssh_config"
        ) from None
    if shown is not None:
        why = f"{host} shows a host key that is revoked: {type_} {fingerprint(shown)} (RevokedHostKeys {path})"
        raise Unreached("host_key_changed", why, CURE)


def _in_text(path: str, content: bytes, blob: bytes) -> bool:
    key = base64.b64encode(blob)
    return any(
        key in line.split() for line in content.splitlines() if not line.lstrip().startswith(b"#")
    )


def _in_krl(path: str, content: bytes, blob: bytes) -> bool:
    """What ssh-keygen says; also where it does not know the file or the key."""
    length = int.from_bytes(blob[:4], "big")
    line = b"%b %b\n" % (blob[4 : 4 + length], base64.b64encode(blob))
    question = ["ssh-keygen", "-Q", "-f", path, "/dev/stdin"]
    asked = subprocess.run(question, input=line, capture_output=True, timeout=LIMIT, check=False)
    return asked.returncode != 0
