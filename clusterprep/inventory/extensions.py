"""Take what a site adds into its inventory: checks, facts and resources, and what is broken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from clusterprep.inventory.site.presence import is_extended
from clusterprep.model import Inventory
from clusterprep.model.extensions import NO_EXTENSIONS, Extensions

if TYPE_CHECKING:  # `check --local` reads no file
    from clusterprep.inventory.document import Document


def read_extensions(document: Document, data: Mapping[str, Any]) -> Extensions:
    """Return what the site adds beside an inventory. A folder that is not there is complained of.

    Everything else that is wrong stops nothing, and is among what is broken.
    """
    folders = []
    for number, name in enumerate(data.get("plugins", ())):
        if name is None:
            continue  # the schema has complained of it
        folder = Path(document.path).parent / Path(name).expanduser()
        if folder.is_dir():
            folders.append(folder)
        else:
            hint = "a path is relative to the inventory"
            document.complain(("plugins", number), f"there is no folder {folder}", hint)
    return _loaded(document.path, folders)


def installed_extensions() -> Extensions:
    """Return what installed packages add, for commands without an inventory."""
    return _loaded(None, [])


def _loaded(inventory: str | None, folders: list[Path]) -> Extensions:
    if not is_extended(inventory, folders):
        return NO_EXTENSIONS
    from clusterprep.inventory.site.load import load_extensions

    return load_extensions(inventory, folders)


def with_extensions(inventory: Inventory, extensions: Extensions) -> Inventory:
    """Return the inventory with what the site adds, and a warning for all that is broken."""
    if extensions.groups:
        from clusterprep.inventory.site.load import without_unknown_groups

        extensions = without_unknown_groups(extensions, inventory.groups)
    if not extensions and not extensions.broken:
        return inventory
    warnings = [f"a site check cannot be used: {broken}" for broken in extensions.broken]
    return replace(
        inventory,
        extensions=extensions,
        warnings=(*inventory.warnings, *warnings),
    )
