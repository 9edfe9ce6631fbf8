"""Tell whether a text may be an inventory of Ansible's, without what reads one.

That takes 6 ms to import, and most inventories are in our format.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_PLUGIN = re.compile(r"^[\"']?plugin[\"']?\s*:", re.MULTILINE)
_SECTION_LINE = re.compile(r"^\[[^\[\],]+\]\s*(?:#.*)?$", re.MULTILINE)
_HOST_LINE = re.compile(r"^[^\s#;=:]+[ \t]+ansible_\w+=", re.MULTILINE)
_OURS = re.compile(r"^[ \t{\"']*nodes[\"']?\s*:", re.MULTILINE)
_GROUP_WORDS = re.compile(r"(?:hosts|children)[\"']?\s*:")


def may_be_ansible(file: str, text: str) -> bool:
    """Return False for a text in which nothing looks like Ansible's."""
    if is_dynamic(Path(file)) or looks_like_listing(text):
        return True
    return looks_like_ini(text) or may_be_groups(text)


def is_dynamic(path: Path) -> bool:
    """Return whether Ansible would run a program to read this file.

    That is a file that may be executed and begins with `#!`, or YAML that names a plug-in.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(1 << 16)
    except (OSError, ValueError):
        return False
    if start.startswith(b"#!"):
        return os.access(path, os.X_OK)
    if path.suffix not in (".yml", ".yaml"):
        return False
    return _PLUGIN.search(start.decode("utf-8", "replace")) is not None


def looks_like_listing(text: str) -> bool:
    """Return whether a text is the JSON that `ansible-inventory --list` prints."""
    return text.lstrip().startswith("{") and '"_meta"' in text


def looks_like_ini(text: str) -> bool:
    """Return whether a text has lines that only Ansible's INI files have."""
    if _OURS.search(text):
        return False
    return bool(_SECTION_LINE.search(text) or _HOST_LINE.search(text))


def may_be_groups(text: str) -> bool:
    """Return False for a text that cannot be groups in YAML. Composing YAML to see it is slow."""
    return _GROUP_WORDS.search(text) is not None and _OURS.search(text) is None
