"""Find the modules of a package: a plug-in exists because its file exists."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(package: str) -> Iterator[ModuleType]:
    """Yield every module directly in a package of ours, in the order of their names."""
    folder = importlib.import_module(package)
    names = [entry.name for entry in pkgutil.iter_modules(folder.__path__)]
    for name in sorted(names):
        yield importlib.import_module(f"{package}.{name}")
