"""Finds the modules of a folder: a plug-in is there because its file is there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(package: str) -> Iterator[ModuleType]:
    """Every module directly in a package of ours, in the order of their names."""
    folder = importlib.import_module(package)
    for found in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        yield importlib.import_module(f"{package}.{found.name}")
