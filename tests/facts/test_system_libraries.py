"""Versions of the C library and of OpenSSL, as real systems say them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from clusterprep.facts.system_libraries import OTHER_LIBRARY
from tests.support.fleet import learned


def answer(out: str, code: int = 0, err: str = "") -> list[Any]:
    return ["ok", {"code": code, "out": out, "err": err}]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("glibc 2.31\n", "2.31", id="debian-11"),
        pytest.param("glibc 2.36\n", "2.36", id="debian-12"),
        pytest.param("glibc 2.41\n", "2.41", id="debian-13"),
    ],
)
def test_the_version_of_glibc(text: str, version: str) -> None:
    assert learned("os.glibc", answer(text)) == version


def test_another_c_library_does_not_know_the_question() -> None:
    unknown = "getconf: GNU_LIBC_VERSION: unknown variable\n"
    assert learned("os.glibc", answer("", 1, unknown)) == OTHER_LIBRARY


@pytest.mark.parametrize(
    ("out", "code"), [("", 0), ("2.36\n", 0), ("glibc\n", 0), ("", 126), ("glibc 2.36\nx", 0)]
)
def test_what_names_no_glibc_is_garbled(out: str, code: int) -> None:
    assert learned("os.glibc", answer(out, code)).reason == "garbled"


def test_the_system_of_this_machine_says_one() -> None:
    argv = ["getconf", "GNU_LIBC_VERSION"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no getconf")
    found = learned("os.glibc", answer(done.stdout, done.returncode, done.stderr))
    assert isinstance(found, str)


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
