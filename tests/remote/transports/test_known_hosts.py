"""Known hosts are looked up as `ssh-keygen -F` finds them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterprep.remote.transports.known_hosts import KnownHosts, fingerprint, name_for
from tests.remote.transports.sshd import fingerprint as printed
from tests.remote.transports.sshd import keygen, new_key, public
from tests.support.operations import operations

NAMES = [
    "n1",
    "N1",
    "n12",
    "node7",
    "x.lab",
    "secret.lab",
    "[n1]:2222",
    "10.0.0.7",
    "[::1]:2222",
    "fe80::1",
    "nobody",
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("keys")
    return [public(new_key(folder / f"k{number}")) for number in range(4)]


@pytest.fixture
def lines(keys: list[str]) -> str:
    one, two, three, four = keys
    return (
        "# a comment\n\n"
        f"n1,10.0.0.7 {one} who@where\n"
        f"n1* {two}\n"
        f"node? {three}\n"
        f"*.lab,!secret.lab {four}\n"
        f"[n1]:2222,[::1]:2222 {four}\n"
        f"fe80::1 {one}\n"
    )


@pytest.mark.machine
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
def test_the_same_lines_as_openssh(lines: str, tmp_path: Path, name: str, hashed: bool) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(lines)
    if hashed:
        keygen("-H", "-f", file)
    name = name.lower()  # as ssh does before it looks
    found = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", file], capture_output=True, text=True, check=False
    ).stdout
    theirs = [
        int(line.split("line ")[1].split()[0])
        for line in found.splitlines()
        if line.startswith("# Host")
    ]
    known = KnownHosts.from_path(str(file))
    assert [key.line for key in known.lookup(name)] == theirs
    assert known.skipped == 0


@pytest.mark.machine
def test_markers_and_broken_lines(keys: list[str]) -> None:
    known = KnownHosts(
        [
            f"@revoked * {keys[0]}",
            f"@cert-authority *.lab {keys[1]}",
            f"@future n1 {keys[1]}",
            "n1",
            "n1 ssh-ed25519",
            "n1 ssh-ed25519 AAAA!",
            f"n1 ssh-rsa {keys[0].split()[1]}",
            "n1 1024 35 1234567",
            f"|2|x|y {keys[0]}",
            f"n1 {keys[2]}",
        ],
        "file",
    )
    assert known.skipped == 7
    assert [(key.marker, key.place) for key in known.lookup("n1")] == [
        ("@revoked", "file:1"),
        ("", "file:10"),
    ]
    assert [key.marker for key in known.lookup("a.lab")] == ["@revoked", "@cert-authority"]


def test_a_missing_file_knows_no_host(tmp_path: Path) -> None:
    assert KnownHosts.from_path(str(tmp_path / "none")).lookup("n1") == ()


@pytest.mark.machine
def test_names_and_fingerprints_are_openssh_s(tmp_path: Path) -> None:
    key = new_key(tmp_path / "key")
    (line,) = KnownHosts([f"n1 {public(key)}"], "file").lookup("n1")
    assert fingerprint(line.blob) == printed(key)
    assert (name_for("N1", 22), name_for("n1", 2222), name_for("::1", 2222)) == (
        "n1",
        "[n1]:2222",
        "[::1]:2222",
    )


A_LINE = 80  # operations at most; 38 when this was written


def of_lines(number: int, key: str) -> list[str]:
    return [f"gpu{host:05},10.1.{host >> 8}.{host & 255} {key}" for host in range(number)]


@pytest.mark.machine
def test_reading_grows_with_the_lines(keys: list[str]) -> None:
    few, many = of_lines(1_000, keys[0]), of_lines(2_000, keys[0])
    work = operations(lambda: KnownHosts(few, "f"))
    assert work < A_LINE * len(few)
    assert operations(lambda: KnownHosts(many, "f")) < 2.2 * work


@pytest.mark.machine
def test_a_look_into_many_lines_costs_no_more_than_into_few(keys: list[str]) -> None:
    def looks(lines: int) -> int:
        known = KnownHosts(of_lines(lines, keys[0]), "f")
        found: list[int] = []
        work = operations(
            lambda: found.extend(len(known.lookup(f"gpu{host:05}")) for host in range(256))
        )
        assert found == [1] * 256
        return work

    assert looks(10_000) <= 1.1 * looks(500)
