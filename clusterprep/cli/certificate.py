"""The options of the command `certificate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from clusterprep.cli import completion, options
from clusterprep.cli.exit_codes import OK
from clusterprep.cli.output import print_result


@click.group(invoke_without_command=True)
@click.pass_context
def certificate(context: click.Context) -> None:
    """Certificates of acceptances, made by `verify --for`."""
    if context.invoked_subcommand is None:
        context.exit(print_result((context.get_help(), "\n"), OK))


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
    from clusterprep.cli.commands.certificate import verified
    from clusterprep.cli.terminal import show
    from clusterprep.reports import exit_code, files, pieces

    files.check(params["fmt"], params["output"])
    report = verified(file, signer)

    def render(fmt: str, **page: Any) -> Iterable[str]:
        return pieces(report, fmt, **page)

    show(params, exit_code(report, params["fmt"]), render)
