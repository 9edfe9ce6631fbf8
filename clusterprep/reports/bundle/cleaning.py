"""What is taken out of texts before they are put into a bundle: secrets, always. Pure.

`SecretCleaner` does that. `anonymous.Anonymizer`, which replaces names too, is another `Cleaner`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from clusterprep.model import Json, Report
from clusterprep.model.secrets import REDACTED, redacted
from clusterprep.remedies import Remedy, renamed

# Names of Python's own errors, which would be taken for names of secrets.
_NO_SECRETS = frozenset({"KeyError", "KeyboardInterrupt", "PassManager"})
# Tokens by the form that their issuers give them.
_TOKEN = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|nvapi-|wandb_v\d_|xox[abp]-|AKIA|eyJ)[\w.-]{8,}"
)
# `--api-key VALUE` and `-H 'Authorization: Bearer VALUE'` of command lines.
_OPTION = re.compile(
    r"(?<![\w-])(?P<name>--?[a-z_-]{0,40}?(?:key|token|secret|passw(?:or)?d|passphrase)"
    r"[a-z_-]{0,40}[ =])[^\s-]\S*",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>\b(?:bearer|basic) +)[\w.+/=-]{8,}", re.IGNORECASE)
_IN_URL = re.compile(
    r"(?<![\w+.-])(?P<name>[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}(?=@)",
    re.IGNORECASE,
)
# Lines that may hold the name of a secret. What `redacted` looks for is slow.
_SUSPECT = re.compile(
    r"^.*?(?:key|token|secret|pass)[\w.-]{0,200}[\"']?\s{0,20}[=:].*$", re.IGNORECASE | re.MULTILINE
)
LONGEST_SUSPECT = 4096  # characters of such a line; what follows is cut off
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<kind>[A-Z ]*PRIVATE KEY)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL
)


def without_secrets(text: str) -> str:
    """Return the text with the values of secrets replaced."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    for pattern in (_OPTION, _BEARER, _IN_URL):
        text = pattern.sub(_kept_name, text)
    text = _TOKEN.sub(REDACTED, text)
    return _SUSPECT.sub(_redacted_line, text)


def _redacted_line(match: re.Match[str]) -> str:
    line = match[0]
    if len(line) > LONGEST_SUSPECT:
        line = f"{line[:LONGEST_SUSPECT]}… {REDACTED}"
    return redacted(line, _NO_SECRETS.__contains__)


def without_tokens(text: str) -> str:
    """Return one value of a report without secrets that are known by their form.

    A report has no settings of others whose names are those of secrets, and words with a colon.
    """
    for pattern in (_OPTION, _BEARER, _IN_URL):
        text = pattern.sub(_kept_name, text)
    return _TOKEN.sub(REDACTED, text)


def _kept_name(match: re.Match[str]) -> str:
    return f"{match['name']}{REDACTED}"


# ---------------------------------------------------------------- whole reports


class Cleaner(Protocol):
    """Takes out of texts what the readers of a bundle are not to have."""

    has_names: bool  # whether names stay as they are

    def lines(self, text: str) -> str:
        """Return what a file or a program of a node holds."""

    def value(self, text: str, key: str = "") -> str:
        """Return one text of a report. `key` is that of the object in which it stands."""


class SecretCleaner:
    """Takes out secrets alone. See Cleaner."""

    has_names = True

    def lines(self, text: str) -> str:
        return without_secrets(text)

    def value(self, text: str, key: str = "") -> str:
        return without_tokens(text)


# Fields whose values are words of ours: names of checks, verdicts and the like.
_OURS = frozenset(
    [
        "schema",
        "check",
        "verdict",
        "severity",
        "resource",
        "action",
        "outcome",
        "command",
        "run",
        "started",
    ]
)


def cleaned_report(report: Report, cleaner: Cleaner) -> Report:
    """Return the report with each text of it cleaned, without the facts of the nodes.

    These are in its JSON; what the pages say is in the findings.
    """
    if report.nodes is not None:
        nodes = tuple(msgspec.structs.replace(node, facts={}) for node in report.nodes)
        report = msgspec.structs.replace(report, nodes=nodes)
    changed: Report = _cleaned(report, cleaner.value)
    return changed


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a value of the model with each text in it cleaned."""
    if isinstance(value, Remedy):
        return renamed(value, clean)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, msgspec.Struct):
        fields = {}
        for name in value.__struct_fields__:
            item = getattr(value, name)
            fields[name] = item if name in _OURS else _cleaned(item, clean)
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, Mapping):
        return {clean(str(key)): _cleaned(item, clean) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_cleaned(item, clean) for item in value)
    return value


def cleaned_json(value: Json, cleaner: Cleaner, key: str = "") -> Json:
    """Return what json.loads gives with each text cleaned, keys of objects too."""
    if isinstance(value, str):
        return value if key in _OURS else cleaner.value(value, key)
    if isinstance(value, dict):
        cleaned = {}
        for name, item in value.items():
            cleaned[cleaner.value(name)] = cleaned_json(item, cleaner, name)
        return cleaned
    if isinstance(value, list):
        return [cleaned_json(item, cleaner, key) for item in value]
    return value
