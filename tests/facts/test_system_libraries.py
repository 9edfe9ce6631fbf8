"""Versions of the C library and of OpenSSL, as real systems say them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.system_libraries import ASK_LIBRARY, OTHER_LIBRARY
from tests.support.fleet import learned


def answer(out: str, code: int = 0, err: str = "") -> list[Any]:
    return ["ok", {"code": code, "out": out, "err": err}]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("glibc 2.31\n", "2.31", id="debian-11"),
        pytest.param("glibc 2.36\n", "2.36", id="debian-12"),
        pytest.param("glibc 2.41\n", "2.41", id="debian-13"),
        # The first line of ldd in containers of these, published on GitHub.
        pytest.param("ldd (GNU libc) 2.17\n", "2.17", id="centos-7-ldd"),
        pytest.param("ldd (GNU libc) 2.34\n", "2.34", id="alma-ldd"),
        pytest.param("ldd (GNU libc) 2.39\n", "2.39", id="arch-ldd"),
        pytest.param("ldd (Debian GLIBC 2.36-9+deb12u3) 2.36\n", "2.36", id="debian-12-ldd"),
        pytest.param("ldd (Ubuntu GLIBC 2.35-0ubuntu3.5) 2.35\n", "2.35", id="ubuntu-22-ldd"),
        pytest.param("ldd (Gentoo 2.37-r7 (patchset 10)) 2.37\n", "2.37", id="gentoo-ldd"),
        # What the library says of itself, in sessions published on GitHub.
        pytest.param(
            "GNU C Library (GNU libc) stable release version 2.17, by Roland McGrath et al.\n",
            "2.17",
            id="centos-7",
        ),
        pytest.param(
            "GNU C Library (Ubuntu GLIBC 2.27-3ubuntu1) stable release version 2.27.\n",
            "2.27",
            id="ubuntu-18",
        ),
        pytest.param(
            "GNU C Library (Ubuntu EGLIBC 2.15-0ubuntu10) stable release version 2.15, by Roland "
            "McGrath et al.\n",
            "2.15",
            id="ubuntu-12-arm",
        ),
        pytest.param(
            "sh: 1: getconf: not found\nsh: 1: ldd: not found\nsh: 1: /lib64/libc.so.6: not found\n"
            "GNU C Library (Debian GLIBC 2.36-9+deb12u13) stable release version 2.36.\n",
            "2.36",
            id="what-failed-before-is-there-too",
        ),
    ],
)
def test_the_version_of_glibc(text: str, version: str) -> None:
    assert learned("os.glibc", answer(text)) == version


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # Of Alpine: with musl-utils, with ldd alone (3.7 and 3.10), and with neither.
        pytest.param(
            "getconf: GNU_LIBC_VERSION: unknown variable\n"
            "musl libc (x86_64)\nVersion 1.2.4\nDynamic Program Loader\n"
            "Usage: /lib/ld-musl-x86_64.so.1 [options] [--] pathname\n",
            0,
            id="getconf",
        ),
        pytest.param(
            "sh: getconf: not found\nmusl libc (x86_64)\nVersion 1.1.22\n"
            "Dynamic Program Loader\nsh: /lib64/libc.so.6: not found\n",
            1,
            id="ldd",
        ),
        pytest.param(
            "sh: getconf: not found\n"
            "/lib/ld-musl-x86_64.so.1: cannot load --version: No such file or directory\n",
            1,
            id="ldd-without-that-option",
        ),
        pytest.param(
            "sh: getconf: not found\nsh: ldd: not found\n/lib/ld-musl-aarch64.so.1\n",
            0,
            id="loader",
        ),
        pytest.param("getconf: GNU_LIBC_VERSION: unknown variable\n", 1, id="another"),
    ],
)
def test_another_c_library_is_told_by_its_words(text: str, code: int) -> None:
    assert learned("os.glibc", answer(text, code)) == OTHER_LIBRARY


@pytest.mark.parametrize("out", ["", "2.36\n", "glibc\n", "GNU C Library\n"])
def test_what_names_no_glibc_is_garbled(out: str) -> None:
    assert learned("os.glibc", answer(out)).reason == "garbled"


@pytest.mark.parametrize("out", ["", "sh: 1: getconf: not found\nsh: 1: ldd: not found\n"])
def test_without_anything_to_ask_it_is_unknown(out: str) -> None:
    found = learned("os.glibc", answer(out, 1))
    assert (found.reason, "no getconf" in found.detail) == ("missing_tool", True)


def ask(path: str) -> Any:
    """Ask this machine, with these folders for programs; the C library's own path stays."""
    argv = ["sh", "-c", ASK_LIBRARY]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": path})
    return learned("os.glibc", answer(done.stdout, done.returncode, done.stderr))


def test_this_machine_says_one_version_in_every_way(tmp_path: Path) -> None:
    usual = os.environ["PATH"]
    version = ask(usual)
    if version == OTHER_LIBRARY or shutil.which("getconf") is None:
        pytest.skip("this machine has no glibc with getconf")
    for name in ("bash", "sh", "ls", "cat", "ldd"):
        found = shutil.which(name)
        if found is not None:
            (tmp_path / name).symlink_to(found)
    by_ldd = ask(str(tmp_path))
    (tmp_path / "ldd").unlink(missing_ok=True)
    by_itself = ask(str(tmp_path))
    assert (by_ldd, by_itself) == (version, version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        # Of CentOS 7, Oracle Linux 8.9, SLES 15 SP5, AlmaLinux 9 and 10, and Debian 12.
        pytest.param("OpenSSL 1.0.2k-fips  26 Jan 2017\n", "1.0.2", id="centos-7"),
        pytest.param("OpenSSL 1.1.1k  FIPS 25 Mar 2021\n", "1.1.1", id="oracle-8"),
        pytest.param(
            "OpenSSL 1.1.1l-fips  24 Aug 2021 SUSE release 150500.17.40.1\n", "1.1.1", id="sles-15"
        ),
        pytest.param(
            "OpenSSL 3.0.7 1 Nov 2022 (Library: OpenSSL 3.0.7 1 Nov 2022)\n", "3.0.7", id="alma-9"
        ),
        pytest.param("OpenSSL 3.2.2 4 Jun 2024\n", "3.2.2", id="alma-10"),
        pytest.param(
            "OpenSSL 3.0.19 27 Jan 2026 (Library: OpenSSL 3.0.19 27 Jan 2026)\n",
            "3.0.19",
            id="debian-12",
        ),
    ],
)
def test_the_version_of_openssl(text: str, version: str) -> None:
    assert learned("os.openssl", answer(text)) == version


def test_libressl_is_told_by_its_name() -> None:
    assert learned("os.openssl", answer("LibreSSL 2.8.3\n")) == "LibreSSL 2.8.3"


def test_without_the_program_there_is_nothing_to_say() -> None:
    assert learned("os.openssl", ["no", "missing_tool", "openssl"]).reason == "not_applicable"
    assert learned("os.openssl", ["no", "denied", "openssl"]).reason == "denied"


@pytest.mark.parametrize(("out", "code"), [("", 0), ("OpenSSL\n", 0), ("OpenSSL 3.0.7 x\n", 1)])
def test_what_names_no_openssl_is_garbled(out: str, code: int) -> None:
    assert learned("os.openssl", answer(out, code)).reason == "garbled"
