"""Signatures of files, made and checked by ssh-keygen: other programs can check them too.

ssh-keygen -Y verify -f SIGNERS -I site -n clusterprep-certificate -s FILE.sig < FILE
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clusterprep.errors import InputError
from clusterprep.history import state_folder
from clusterprep.runtime import files

NAMESPACE = "clusterprep-certificate"  # a signature for another purpose is none
IDENTITY = "site"  # the name of the signer in the file of those who may sign
LIMIT = 60.0  # seconds; a key with a passphrase asks for it
SUFFIX = ".sig"


def site_key() -> Path:
    """Return where the private key of this site is, or will be."""
    return state_folder() / "site_key"


def make_site_key() -> Path:
    """Return the private key of this site, which is made if there is none yet."""
    key = site_key()
    if not key.exists():
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = ["-q", "-t", "ed25519", "-N", "", "-C", "clusterprep site key", "-f", str(key)]
        _run(words, b"", str(key))
    return key


def sign(data: bytes, key: Path) -> str:
    """Return the signature of these bytes as text. Raises InputError, which names the key."""
    words = ["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE]
    return _run(words, data, str(key)).decode("ascii")


def trouble_with(data: bytes, signature: Path, public_key: Path) -> str:
    """Return why the signature of these bytes is not one of this key; "" if it is.

    Raises InputError if the public key cannot be read, or ssh-keygen is missing.
    """
    try:
        line = public_key.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no public key"
        raise InputError.of(f"cannot be read: {why}", file=str(public_key)) from None
    with tempfile.TemporaryDirectory(prefix="clusterprep-") as folder:
        signers = Path(folder) / "signers"
        files.write_new(signers, (f"{IDENTITY} {line}\n",), files.PRIVATE)
        words = ["-Y", "verify", "-f", str(signers), "-I", IDENTITY, "-n", NAMESPACE]
        answer = _start([*words, "-s", str(signature)], data)
    if answer.returncode == 0:
        return ""
    return _last_line(answer) or f"ssh-keygen ended with {answer.returncode}"


def fingerprint(public_key: Path) -> str:
    """Return the fingerprint of a key, such as SHA256:…. Raises InputError."""
    words = _run(["-l", "-f", str(public_key)], b"", str(public_key)).decode("utf-8", "replace")
    return words.split()[1]


def _run(words: Sequence[str], data: bytes, file: str) -> bytes:
    answer = _start(words, data)
    if answer.returncode:
        why = _last_line(answer) or f"it ended with {answer.returncode}"
        raise InputError.of(f"ssh-keygen refuses this key: {why}", file=file)
    return answer.stdout


def _start(words: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        hint = "install OpenSSH's client here; it signs and checks certificates"
        raise InputError.of("ssh-keygen is not installed", hint=hint)
    try:
        return subprocess.run(
            [program, *words],
            input=data,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError.of(f"ssh-keygen did not end within {LIMIT:g} s") from None


def _last_line(answer: subprocess.CompletedProcess[bytes]) -> str:
    lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
