"""Certificates of acceptances: read one, and say whether it is whole and signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterprep.cli import signing
from clusterprep.cli.commands.report import new_report
from clusterprep.errors import InputError
from clusterprep.history.certificate import LARGEST, parse_certificate
from clusterprep.model import Report
from clusterprep.model.units import pluralize


def read_certificate(file: str) -> dict[str, Any]:
    """Return the document of a certificate, whatever its signature. Raises InputError."""
    return parse_certificate(_bytes_of(file), file)


def verified(file: str, signer: str | None) -> Report:
    """Return a report whose notice says whether the certificate is valid: code 0 if so, else 1.

    Raises InputError for a file that is no certificate.
    """
    data = _bytes_of(file)
    document = parse_certificate(data, file)
    signature = Path(file + signing.SUFFIX)
    public_key = Path(signer) if signer else _site_key()
    if signature.is_file():
        why = signing.trouble_with(data, signature, public_key)
    else:
        why = f"there is no signature, {signature}"
    cluster = str(document.get("cluster", ""))
    if why:
        notice = f"{file} is not valid: {why}"
        return new_report("certificate", 1, cluster=cluster, notices=(notice,))
    nodes = pluralize(len(document["nodes"]), "node")
    notice = (
        f"{file} is valid: {nodes}, accepted on {document.get('started')}, "
        f"signed by {signing.fingerprint(public_key)}"
    )
    return new_report("certificate", 0, cluster=cluster, notices=(notice,))


def _site_key() -> Path:
    """Return the public key of this site. Raises InputError if it has none."""
    public_key = Path(f"{signing.site_key()}.pub")
    if not public_key.exists():
        hint = "the controller that made the certificate has it; --signer names a copy"
        message = f"this site has no key of its own, {public_key}"
        raise InputError.of(message, key="--signer", hint=hint)
    return public_key


def _bytes_of(file: str) -> bytes:
    try:
        with open(file, "rb") as source:
            data = source.read(LARGEST + 1)
    except OSError as error:
        raise InputError.of(f"cannot be read: {error.strerror}", file=file) from None
    if len(data) > LARGEST:
        raise InputError.of(f"it is larger than {LARGEST >> 20} MiB", file=file)
    return data
