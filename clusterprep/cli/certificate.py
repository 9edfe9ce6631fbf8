"""The command `certificate`, and the files of certificates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterprep.cli import completion, options
from clusterprep.errors import InputError

if TYPE_CHECKING:
    from clusterprep.model import Report


@click.group()
def certificate() -> None:
    """Certificates of acceptances, made by `verify --for`."""


@certificate.command("verify")
@click.argument("file", metavar="FILE", shell_complete=completion.files)
@click.option(
    "--signer",
    metavar="PUBKEY",
    shell_complete=completion.files,
    help="The public key that has to have signed it; default: that of this site.",
)
@options.diagnosing
def verify_certificate(file: str, signer: str | None, **params: Any) -> None:
    """Whether a certificate is whole and signed by this site: 0 if so, else 1."""
    from clusterprep.cli.terminal import show
    from clusterprep.reports import exit_code, files, pieces

    files.check(params["fmt"], params["output"])
    report = _verified(file, signer)

    def render(fmt: str, **page: Any) -> Iterable[str]:
        return pieces(report, fmt, **page)

    show(params, exit_code(report, params["fmt"]), render)


def read_certificate(file: str) -> dict[str, Any]:
    """Return the document of a certificate, whatever its signature. Raises InputError."""
    from clusterprep.history.certificate import parse_certificate

    return parse_certificate(_bytes_of(file), file)


def _verified(file: str, signer: str | None) -> Report:
    from clusterprep.cli import signing
    from clusterprep.cli.commands.report import new_report
    from clusterprep.history.certificate import parse_certificate
    from clusterprep.model.units import pluralize

    data = _bytes_of(file)
    document = parse_certificate(data, file)
    signature = Path(file + signing.SUFFIX)
    public_key = Path(signer or f"{signing.site_key()}.pub")
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


def _bytes_of(file: str) -> bytes:
    from clusterprep.history.certificate import LARGEST

    try:
        with open(file, "rb") as source:
            data = source.read(LARGEST + 1)
    except OSError as error:
        raise InputError.of(f"cannot be read: {error.strerror}", file=file) from None
    if len(data) > LARGEST:
        raise InputError.of(f"it is larger than {LARGEST >> 20} MiB", file=file)
    return data
