"""Secrets in lines of other people's files: values are replaced by the names before them. Pure.

redacted("export WANDB_API_KEY=f00") == "export WANDB_API_KEY=<redacted>"
"""

from __future__ import annotations

import re
from collections.abc import Callable

# The name may be anywhere in the line, as in «echo export WANDB_API_KEY=…», and may be quoted as in
# YAML or JSON.
_SECRET = re.compile(
    r"^(.*?(?:KEY|TOKEN|SECRET|PASS)[\w.-]*[\"']?\s*[=:]).*$", re.IGNORECASE | re.MULTILINE
)
_NAME = re.compile(r"[\w.-]*$")
_PARTS_OF_NAMES = ("key", "token", "secret", "pass")
REDACTED = "<redacted>"
_PASSWORD_OF_URL = re.compile(r"(//[^/\s:@]*:)[^/\s]+@")
_QUERY_OF_URL = re.compile(r"(//[^\s?]*\?)[^\s#]+")


def without_secrets_of_urls(text: str) -> str:
    """Return a text without the passwords and the queries of its URLs, where tokens stand, too.

    Such as https://user:password@host/path?token=value.
    """
    return _QUERY_OF_URL.sub(rf"\1{REDACTED}", _PASSWORD_OF_URL.sub(rf"\1{REDACTED}@", text))


def redacted(lines: str, spared: Callable[[str], bool] = lambda name: False) -> str:
    """Return the lines without the values of secrets.

    Names for which `spared` is true keep theirs.
    """

    def redact(match: re.Match[str]) -> str:
        before_value = match[1]
        names = _NAME.findall(before_value.rstrip("=: \t\"'"))
        if spared(names[0]):
            return match[0]
        return before_value + REDACTED

    # These searches cost next to nothing, while the pattern is slow.
    folded = lines.casefold()
    if not any(part in folded for part in _PARTS_OF_NAMES):
        return lines
    return _SECRET.sub(redact, lines)
