"""The C library and the OpenSSL of the system, which programs of the job load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, command
from clusterprep.model import Absent

OTHER_LIBRARY = "not glibc"
"""The version of a C library that is another one, such as musl."""

# Constant text for sh: the first that answers. The C library is a program that says its version,
# and ldd is its own tool. The Python that runs the agent is not asked: it may have brought a C
# library of its own. Last, musl's loader shows that the system's library is musl.
ASK_LIBRARY = (
    "for ask in 'getconf GNU_LIBC_VERSION' 'ldd --version' /lib64/libc.so.6 /usr/lib/libc.so.6 "
    "/lib/*-linux-gnu*/libc.so.6 'ls /lib/ld-musl-*'; do $ask 2>&1 && exit; done; exit 1"
)
_GLIBC = re.compile(
    # getconf; «ldd (Debian GLIBC 2.36-9+deb12u4) 2.36»; the library itself, up to «version 2.36.»
    r"^(?:glibc|ldd \(.+\)|GNU C Library \(.+\) [a-z]+ release version) (\d+(?:\.\d+)+)\b",
    re.MULTILINE | re.ASCII,
)
# «OpenSSL 1.1.1k  FIPS 25 Mar 2021», «OpenSSL 3.0.7 1 Nov 2022 (Library: OpenSSL 3.0.8 …)»
_OPENSSL = re.compile(r"\b(OpenSSL|LibreSSL) (\d+\.\d+\.\d+)", re.ASCII)


def parse_glibc(answer: Mapping[str, Any]) -> str | Absent:
    """Return the version of glibc, or OTHER_LIBRARY; Absent where no way to ask is there.

    Raises ValueError for any other answer.
    """
    text = answer["out"]
    if _is_another(text):
        return OTHER_LIBRARY
    if answer["code"] != 0:
        return Absent("missing_tool", "there is no getconf, no ldd and no C library to ask")
    match = _GLIBC.search(text)
    if match is None:
        raise ValueError(f"the C library does not say its version: {text!r:.80}")
    return match[1]


def _is_another(text: str) -> bool:
    """Return whether a system's answer is one of another library than glibc.

    musl says «getconf: GNU_LIBC_VERSION: unknown variable», and by ldd «musl libc (x86_64)» or, as
    it takes --version for a file, «/lib/ld-musl-x86_64.so.1: cannot load --version».
    """
    if "musl libc" in text or "/ld-musl-" in text:
        return True
    return "GNU_LIBC_VERSION" in text and "unknown variable" in text and not _GLIBC.search(text)


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
    command("sh", "-c", ASK_LIBRARY),
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
