"""Lines of other people's files may hold their secrets: values are blotted out by the names before them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

# The name may stand anywhere in the line, as in «echo export WANDB_API_KEY=…», and be written as YAML or JSON has it.
_SECRET = re.compile(
    r"^(.*?(?:KEY|TOKEN|SECRET|PASS)[\w.-]*[\"']?\s*[=:]).*$", re.IGNORECASE | re.MULTILINE
)
_NAME = re.compile(r"[\w.-]*$")
_WORDS = ("key", "token", "secret", "pass")
REDACTED = "<redacted>"


def redacted(lines: str, spared: Callable[[str], bool] = lambda name: False) -> str:
    """The lines; of those that name a secret what stands before the value, but for names that are `spared`."""

    def blot(found: re.Match[str]) -> str:
        (name,) = _NAME.findall(found[1].rstrip("=: \t\"'"))[:1]
        return found[0] if spared(name) else found[1] + REDACTED

    folded = lines.casefold()  # a search for each word costs nothing beside the pattern
    return _SECRET.sub(blot, lines) if any(word in folded for word in _WORDS) else lines
