"""The C library and the OpenSSL of the system, which programs of the job load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, command
from clusterprep.model import Absent

OTHER_LIBRARY = "not glibc"
"""The version of a C library that is another one, such as musl."""

_GLIBC = re.compile(r"glibc (\d+(?:\.\d+)+)\n?", re.ASCII)
# «OpenSSL 1.1.1k  FIPS 25 Mar 2021», «OpenSSL 3.0.7 1 Nov 2022 (Library: OpenSSL 3.0.8 …)»
_OPENSSL = re.compile(r"\b(OpenSSL|LibreSSL) (\d+\.\d+\.\d+)", re.ASCII)


def parse_glibc(answer: Mapping[str, Any]) -> str:
    """Return the version of glibc by `getconf GNU_LIBC_VERSION`, which other libraries do not know.

    Raises ValueError for any other answer.
    """
    text = answer["out"]
    if answer["code"] == 0:
        match = _GLIBC.fullmatch(text)
        if match is not None:
            return match[1]
    elif "GNU_LIBC_VERSION" in answer["err"] + text:
        # musl's getconf: «getconf: GNU_LIBC_VERSION: unknown variable»
        return OTHER_LIBRARY
    raise ValueError(f"getconf does not say the version of glibc: {text!r:.80}")


def parse_openssl(answer: Mapping[str, Any] | Absent) -> str | Absent:
    """Return the version of the library by `openssl version`, without the letter of a patch.

    «3.0.7» or «LibreSSL 3.8.2». Absent where there is no such program. Raises ValueError for an
    answer without a version.
    """
    if isinstance(answer, Absent):
        if answer.reason == "missing_tool":
            return Absent("not_applicable", "there is no openssl to ask")
        return answer
    found = _OPENSSL.findall(answer["out"].partition("\n")[0])
    if answer["code"] != 0 or not found:
        raise ValueError(f"openssl does not say its version: {answer['out']!r:.80}")
    # The last one is the library's, where it differs from the program's.
    name, version = found[-1]
    return str(version) if name == "OpenSSL" else f"{name} {version}"


GLIBC = Fact(
    "os.glibc",
    command("getconf", "GNU_LIBC_VERSION"),
    parse_glibc,
    costly=("command",),
)
OPENSSL = Fact(
    "os.openssl",
    command("openssl", "version"),
    parse_openssl,
    lenient=True,
    costly=("command",),
)
