"""The command `clusterprep mcp`: its options, and what it says where the SDK is missing."""

from __future__ import annotations

from pathlib import Path

import click

from clusterprep.cli import completion
from clusterprep.cli.inventory_argument import DEFAULT
from clusterprep.cli.output import say
from clusterprep.errors import InputError

INSTALL = "pip install 'clusterprep[mcp]'"


@click.command()
@click.argument("inventories", nargs=-1, metavar="[INVENTORY]…", shell_complete=completion.files)
@click.option(
    "--logs",
    "folders",
    multiple=True,
    metavar="DIR",
    shell_complete=completion.folders,
    help="Folder with logs that may be diagnosed; repeats. Default: none.",
)
def mcp(inventories: tuple[str, ...], folders: tuple[str, ...]) -> None:
    """Serve history, report, explain, diagnose and check to a language model, read-only, on stdio.

    Only the inventories and folders that are named here can be used. INVENTORY by default:
    ./inventory.yaml if it is there.
    """
    from clusterprep.cli.commands.unattended import Secrets
    from clusterprep.cli.mcp.answers import scope_of
    from clusterprep.cli.terminal import PASSPHRASE, PASSWORD, take_secret
    from clusterprep.runtime.deadline import Deadline

    secrets = Secrets(take_secret(PASSWORD), take_secret(PASSPHRASE), PASSWORD)
    scope = scope_of(inventories or _default_inventories(), folders, secrets)
    try:
        from clusterprep.cli.mcp import server
    except ImportError as error:
        message = f"the SDK of the protocol is missing or too old: {error}"
        raise InputError.of(message, hint=INSTALL) from None
    with Deadline():
        server.serve(scope)


def _default_inventories() -> tuple[str, ...]:
    """Return ./inventory.yaml, which is said, or nothing if it is not there.

    One that another user could have put there is not taken: an inventory may be a program.
    """
    from clusterprep.inventory.site.trust import Distrusted, trusted_file

    here = Path(DEFAULT)
    if not here.is_file():
        return ()
    try:
        trusted_file(here)
    except (Distrusted, OSError) as error:
        say(f"clusterprep: ./{DEFAULT} is not taken: {error}")
        return ()
    say(f"clusterprep: with ./{DEFAULT}")
    return (DEFAULT,)
