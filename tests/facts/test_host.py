"""/etc/os-release of many distributions, machine ids and kernels as their files hold them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from clusterprep.facts.host import NO_MACHINE_ID, parse_os_release
from clusterprep.model import Absent
from tests.support.fleet import learned

DEBIAN = """\
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=debian
HOME_URL="https://www.debian.org/"
SUPPORT_URL="https://www.debian.org/support"
BUG_REPORT_URL="https://bugs.debian.org/"
"""
UBUNTU = """\
PRETTY_NAME="Ubuntu 22.04.4 LTS"
NAME="Ubuntu"
VERSION_ID="22.04"
VERSION="22.04.4 LTS (Jammy Jellyfish)"
VERSION_CODENAME=jammy
ID=ubuntu
ID_LIKE=debian
HOME_URL="https://www.ubuntu.com/"
SUPPORT_URL="https://help.ubuntu.com/"
BUG_REPORT_URL="https://bugs.launchpad.net/ubuntu/"
PRIVACY_POLICY_URL="https://www.ubuntu.com/legal/terms-and-policies/privacy-policy"
UBUNTU_CODENAME=jammy
"""
ROCKY = """\
NAME="Rocky Linux"
VERSION="9.4 (Blue Onyx)"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.4"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"
ANSI_COLOR="0;32"
LOGO="fedora-logo-icon"
CPE_NAME="cpe:/o:rocky:rocky:9::baseos"
HOME_URL="https://rockylinux.org/"
BUG_REPORT_URL="https://bugs.rockylinux.org/"
SUPPORT_END="2032-05-31"
ROCKY_SUPPORT_PRODUCT="Rocky-Linux-9"
ROCKY_SUPPORT_PRODUCT_VERSION="9.4"
REDHAT_SUPPORT_PRODUCT="Rocky Linux"
REDHAT_SUPPORT_PRODUCT_VERSION="9.4"
"""
SLES = """\
NAME="SLES"
VERSION="15-SP5"
VERSION_ID="15.5"
PRETTY_NAME="SUSE Linux Enterprise Server 15 SP5"
ID="sles"
ID_LIKE="suse"
ANSI_COLOR="0;32"
CPE_NAME="cpe:/o:suse:sles:15:sp5"
DOCUMENTATION_URL="https://documentation.suse.com/"
"""
ARCH = (
    'NAME="Arch Linux"\nPRETTY_NAME="Arch Linux"\n'
    'ID=arch\nBUILD_ID=rolling\nANSI_COLOR="38;2;23;147;209"\n'
)
SINGLE_QUOTES = "# written by hand\n\nID='ubuntu'\nVERSION_ID='24.04'\nNAME='it'\\''s'\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(DEBIAN, "debian 12", id="debian-12"),
        pytest.param(UBUNTU, "ubuntu 22.04", id="ubuntu-22.04"),
        pytest.param(ROCKY, "rocky 9.4", id="rocky-9.4"),
        pytest.param(SLES, "sles 15.5", id="sles-15-sp5"),
        pytest.param(ARCH, "arch", id="arch-has-no-version"),
        pytest.param(SINGLE_QUOTES, "ubuntu 24.04", id="single-quotes-and-a-comment"),
        pytest.param(ROCKY.replace("\n", "\r\n"), "rocky 9.4", id="crlf"),
    ],
)
def test_a_distribution_is_its_id_and_version(text: str, expected: str) -> None:
    assert parse_os_release(text) == expected
    assert learned("os.release", ["ok", text]) == expected


RECORDED = Path(__file__).parent / "distributions" / "os-release"
DISTRIBUTIONS = {
    "alma-8": "almalinux 8.10",
    "alma-9": "almalinux 9.6",
    "alma-10": "almalinux 10.0",
    "alpine-3.22": "alpine 3.22.1",
    "amazon-2": "amzn 2",
    "amazon-2023": "amzn 2023",
    "azurelinux-3": "azurelinux 3.0",
    "centos-stream-9": "centos 9",
    "debian-11": "debian 11",
    "debian-12": "debian 12",
    "debian-13": "debian 13",
    "dgx-os-5": "ubuntu 20.04",
    "hce-2": "hce 2.0",
    "openeuler-24.03": "openEuler 24.03",
    "opensuse-leap-15": "opensuse-leap 15.6",
    "opensuse-leap-16": "opensuse-leap 16.0",
    "oracle-8": "ol 8.7",
    "oracle-9": "ol 9.1",
    "rhel-8": "rhel 8.10",
    "rhel-9": "rhel 9.6",
    "rhel-10": "rhel 10.0",
    "rocky-8": "rocky 8.9",
    "rocky-9": "rocky 9.3",
    "rocky-10": "rocky 10.0",
    "sles-15": "sles 15.7",
    "ubuntu-20.04": "ubuntu 20.04",
    "ubuntu-22.04": "ubuntu 22.04",
    "ubuntu-24.04": "ubuntu 24.04",
    "ubuntu-25.10": "ubuntu 25.10",
    "ubuntu-26.04": "ubuntu 26.04",
}


def test_every_recorded_distribution_is_known() -> None:
    found = {path.name: parse_os_release(path.read_text()) for path in RECORDED.iterdir()}
    assert found == DISTRIBUTIONS


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(["ok", ""], id="empty"),
        pytest.param(["ok", "Welcome to node17\n"], id="a-banner"),
        pytest.param(["ok", 'ID="debian'], id="an-open-quote"),
        pytest.param(["ok", 'NAME="Linux"\n'], id="no-id"),
        pytest.param(["no", "missing", "no such file"], id="no-file"),
        pytest.param(["ok", ["a", "list"]], id="another-type"),
        pytest.param("half a fra", id="no-answer-at-all"),
    ],
)
def test_what_is_no_os_release_is_garbled(answer: object) -> None:
    found = learned("os.release", answer)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


MACHINE, BOOT = "b08dfa6083e7567a1921a715000001fb", "0e4b9f3c-2d5a-4b7e-9c1d-8f6a5e3b2c1d"


@pytest.mark.parametrize(
    ("fact", "word"),
    [
        ("host.machine_id", MACHINE),
        ("host.boot_id", BOOT),
        ("host.name", "gpu01"),
        ("kernel.release", "6.8.0-45-generic"),
    ],
)
def test_a_word_comes_without_its_line_end(fact: str, word: str) -> None:
    assert learned(fact, ["ok", f"{word}\n"]) == word


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        pytest.param("host.machine_id", MACHINE[:20], id="half-a-machine-id"),
        pytest.param("host.machine_id", "uninitialized", id="an-image-before-its-first-boot"),
        pytest.param("host.machine_id", "\x7fELF\x02\x01", id="binary"),
        pytest.param("host.boot_id", BOOT[:18], id="half-a-boot-id"),
        pytest.param("host.boot_id", MACHINE, id="another-id"),
    ],
)
def test_what_is_no_id_tells_no_machine_from_another(fact: str, text: str) -> None:
    found = learned(fact, ["ok", text])
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


EMPTY = [["ok", ""], ["ok", " \n"]]
GONE = [["no", "missing"], ["ok", None]]


@pytest.mark.parametrize(
    ("fact", "answer"),
    [
        *itertools.product(["host.boot_id", "host.name", "kernel.release"], [*EMPTY, *GONE]),
        *itertools.product(["host.machine_id"], EMPTY),
    ],
)
def test_two_nodes_with_an_empty_file_have_nothing_in_common(fact: str, answer: object) -> None:
    found = learned(fact, answer)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize("answer", GONE)
def test_a_system_without_a_machine_id_is_no_broken_one(answer: object) -> None:
    """Alpine without D-Bus has none."""
    assert learned("host.machine_id", answer) == NO_MACHINE_ID


@pytest.mark.parametrize("reason", ["denied", "timed_out", "hung", "truncated"])
def test_a_reason_survives(reason: str) -> None:
    assert learned("host.machine_id", ["no", reason, "why"]) == Absent(reason, "why")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1146.97 2077.18\n", 1146.97), ("0.00 0.00\n", 0.0), ("31536000.5 1.0", 31536000.5)],
)
def test_uptime_is_the_first_number(text: str, seconds: float) -> None:
    assert learned("host.uptime", ["ok", text]) == seconds


@pytest.mark.parametrize(
    "answer",
    [
        ["ok", ""],
        ["ok", "1146.97"],
        ["ok", "nan 1"],
        ["ok", "-1 1"],
        ["ok", "up 5 days"],
        ["ok", 5],
        ["no", "missing"],
    ],
)
def test_what_is_no_uptime_is_garbled(answer: object) -> None:
    found = learned("host.uptime", answer)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"
