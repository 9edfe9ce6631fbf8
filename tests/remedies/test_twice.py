"""Remedies pasted once, twice, in any order and on the wrong node: no foreign line or file is lost.

Those that edit files are run for real, below a folder of the test in the place of /.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterprep.checks.env import removal_command
from clusterprep.checks.shm import remove_command
from clusterprep.checks.ssh import allow_sudo
from clusterprep.facts.environment import Setting
from clusterprep.facts.storage import Segment
from clusterprep.model import Inventory
from clusterprep.remedies import Remedy, shell_line
from clusterprep.survey import registry
from tests.project.test_architecture import none
from tests.support.fleet import findings, fleet
from tests.support.pasting import command_words, templates

# Commands that end, remove or replace something, wherever they are pasted.
DESTRUCTIVE = frozenset(
    "rm rmdir unlink shred truncate mv cp ln dd tee install mkfs wipefs fsck kill pkill killall "
    "reboot shutdown poweroff halt init userdel groupdel rmmod umount swapoff crontab chown "
    "chgrp".split()
)
# Commands that do something of their own with the words of a sentence.
NO_FIRST_WORDS = DESTRUCTIVE - {"install"} | {"pip", "salloc", "apt-get", "systemctl", "docker"}
DESTRUCTIVE_WITH = re.compile(
    r"\b(systemctl (stop|disable|mask|restart|isolate|kill)|docker (rm|rmi|stop|kill|system|volume)"
    r"|apt-get (remove|purge|autoremove)|nft (flush|delete|destroy)|iptables (-F|-D|-X|--flush)"
    r"|ip (link|addr|address|route|rule) (del|delete|flush)|ip link set .* down|chmod -R"
    r"|mount -o remount|mount -t|sed -i|find .* -delete|git clean)"
)
# Where a line may write: what is no file, and files of our own.
WRITES = re.compile(r"(?<![0-9&])>>?\s*(\S+)")
HARMLESS_TARGETS = re.compile(r"/dev/null|/(sys|proc)/|/etc/\S*clusterprep-[\w-]+(\.conf)?\)?$")

# Parts of the templates that have such a command all the same, and why nothing foreign is lost.
ALLOWED = {
    'fuser -s "$file" || rm -f "$file"': "files of NCCL that no process has open just then",
    "grep -qx {machine_id} /etc/machine-id && mv": "only if the id is the cloned one; it is kept",
    "stat -f {path} > /dev/null || {{ umount -l": "only if it does not answer; it is mounted again",
    "findmnt -O ro -M {point} && umount": "only if it has turned read-only; it is mounted again",
    "&& fsck {source} && mount": "a disk that could be unmounted, so that nothing uses it",
    "swapoff -a": "swap comes back with the next boot, and the kernel refuses if memory is short",
    "mountpoint -q /dev/shm || mount -t": "only where nothing is mounted there",
    "-ge {kibibytes} || mount -o remount": "only grows",
    "-ge 8388608 || mount -o remount": "only grows",
    "mount -o remount,size=0 /dev/shm": "0 is no limit, so it only grows",
    "mount -o remount,{mode} {path}": "as the inventory declares it for this path",
    "sed -i --follow-symlinks -E {script} {file}": "finds the line by all of its text: see below",
    r"sed -i --follow-symlinks '1s/^\xEF\xBB\xBF//' FILE": "a second time there is nothing to find",
    r"sed -i --follow-symlinks 's/\r$//' FILE": "a second time there is nothing to find",
    "ssh-keyscan -t {type} -p {port} {host} >> {file}": "adds a line; twice the same is one key",
    "|| echo {line} >> {file}": "adds a line that is not there",
    "echo {source} > {file}": "a file of /sys",
    "mv -n {path} {kept}": "our own database on the controller; -n keeps the first copy",
    "rm -f {place}": "the mark of this one run, whose name was drawn",
    "(umask 227 && echo {rule} > {file})": "a file of our own for this user",
}


def lines() -> list[tuple[str, str]]:
    """Return each line of the code with its place, without what ALLOWED has."""
    found = []
    for maker, template, where in templates():
        if maker == "shell_line":
            line = template.partition("   # ")[0]
            for part in ALLOWED:
                line = line.replace(part, "…")
            found.append((line, where))
    return found


def test_no_line_destroys_anything_but_for_a_reason() -> None:
    found = []
    for line, where in lines():
        for words in command_words(line.replace("…", "")):
            if words[0].rpartition("/")[2] in DESTRUCTIVE:
                found.append(f"{where}: {line}")
        if DESTRUCTIVE_WITH.search(line):
            found.append(f"{where}: {line}")
    none(found, "pasted on the wrong node this loses something; see ALLOWED:")


def test_no_line_writes_over_a_file_of_others() -> None:
    found = []
    for line, where in lines():
        for target in WRITES.findall(line):
            if not HARMLESS_TARGETS.match(target):
                found.append(f"{where}: {line}")
    none(found, "this writes over what may be there; see ALLOWED:")


def test_no_line_names_lines_by_their_number() -> None:
    """The second of two such lines would change the line that came into the place of the first."""
    by_number = re.compile(r"sed -i[^|;]*'\d+(,\d+)?[acdis]")
    found = [
        f"{where}: {line}"
        for line, where in ((template, where) for _, template, where in templates())
        if by_number.search(line) and "'1s/^" not in line
    ]
    none(found, "lines are found by their text:")


def test_every_reason_is_still_needed() -> None:
    unused = [part for part in ALLOWED if not any(part in line for _, line, _ in templates())]
    none(unused, "is in ALLOWED and in no remedy:")


def test_no_sentence_begins_with_a_command_that_destroys() -> None:
    found = []
    for maker, template, where in templates():
        first = template.split()[0].rstrip(";,:")
        if maker != "shell_line" and first in NO_FIRST_WORDS:
            found.append(f"{where}: {template}")
    none(found, "sentences are pasted too:")


# ---------------------------------------------------------------- for real


def paste(line: str, root: Path, stubs: Mapping[str, str] | None = None) -> None:
    """Run a line with `root` in the place of /etc and /dev/shm, and stubs before the commands."""
    tools = root / "stubs"
    tools.mkdir(exist_ok=True)
    for name, script in (stubs or {}).items():
        tool = tools / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    for folder in ("/etc/", "/dev/shm", "/sys/"):
        line = line.replace(folder, f"{root}{folder}")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(root)}
    subprocess.run(
        ["/bin/bash", "-c", line], env=environment, capture_output=True, check=False, timeout=60
    )


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "stubs" not in path.parts
    }


BASHRC = """\
export NCCL_IB_HCA=mlx5_9
alias important=1
export NCCL_IB_HCA=mlx5_91
  export NCCL_DEBUG="INFO"  # mine
export NCCL_DEBUG='INFO'
export OTHER_NCCL_DEBUG=INFO
NCCL_DEBUG=INFO python train.py
Environment=NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=^docker0,lo*[a-z]$/x&\\
alias also=2
"""


def removal_of(setting: Setting) -> Remedy:
    return removal_command(setting, Inventory("test", ()))


def test_two_findings_about_one_line_leave_all_other_lines(tmp_path: Path) -> None:
    """Both had `sed -i '1d'`, and the second took the alias below."""
    file = tmp_path / "bashrc"
    file.write_text(BASHRC)
    remedy = removal_of(Setting("NCCL_IB_HCA", "mlx5_9", str(file), 1))
    for _ in range(3):
        paste(remedy, tmp_path)
        assert file.read_text() == BASHRC.replace(
            "export NCCL_IB_HCA=mlx5_9\n", "# export NCCL_IB_HCA=mlx5_9\n"
        )


def test_in_any_order_only_the_lines_that_are_named_are_commented_out(tmp_path: Path) -> None:
    settings = [
        Setting("NCCL_IB_HCA", "mlx5_9", "FILE", 1),
        Setting("NCCL_DEBUG", "INFO", "FILE", 5),
        Setting("NCCL_SOCKET_IFNAME", r"^docker0,lo*[a-z]$/x&" + "\\", "FILE", 9),
    ]
    commented = (0, 4, 7, 8)
    wanted = [
        f"# {line}" if number in commented else line
        for number, line in enumerate(BASHRC.splitlines())
    ]
    for number, order in enumerate(itertools.permutations(settings)):
        file = tmp_path / f"bashrc{number}"
        file.write_text(BASHRC)
        for setting in (*order, *order):
            remedy = removal_of(Setting(setting.name, setting.value, str(file), setting.line))
            assert remedy.is_command
            paste(remedy, tmp_path)
        assert file.read_text().splitlines() == wanted


def test_on_the_wrong_node_nothing_changes_and_a_link_stays_one(tmp_path: Path) -> None:
    other = "export NCCL_IB_HCA=mlx5_0\nalias important=1\n"
    target, link = tmp_path / "dotfiles", tmp_path / ".bashrc"
    target.write_text(other)
    link.symlink_to(target)
    paste(removal_of(Setting("NCCL_IB_HCA", "mlx5_9", str(link), 1)), tmp_path)
    assert target.read_text() == other
    paste(removal_of(Setting("NCCL_IB_HCA", "mlx5_0", str(link), 1)), tmp_path)
    assert link.is_symlink()
    assert target.read_text() == f"# {other}"


def test_a_value_that_no_line_can_show_is_only_looked_for() -> None:
    for value in ("a\nb", "\x1b[2J", "<redacted>"):
        remedy = removal_of(Setting("NCCL_X", value, "/root/.bashrc", 3))
        assert remedy == "grep -n NCCL_X /root/.bashrc"


def test_lines_of_nccl_conf_are_corrected_by_their_text(tmp_path: Path) -> None:
    text = "export NCCL_DEBUG=WARN\nNCCL_IB_HCA=mlx5_0\n NCCL_ALGO=Ring # fast\n# a & b/c\n"
    file = tmp_path / "nccl.conf"
    file.write_text(text)
    rows = tuple((str(file), number, line) for number, line in enumerate(text.splitlines(), 1))
    facts = {"env.etc_conf": None, "env.conf_lines": {str(file): rows}}
    remedies = [
        finding.remedy
        for finding in findings(fleet(n1=facts), "env.nccl_conf")
        if finding.verdict == "fail"
    ]
    assert len(remedies) == 2
    for order in itertools.permutations(remedies):
        file.write_text("# another line on top\n" + text)
        for remedy in (*order, *order):
            paste(remedy, tmp_path)
        assert file.read_text() == (
            "# another line on top\nNCCL_DEBUG=WARN\nNCCL_IB_HCA=mlx5_0\n"
            "NCCL_ALGO=Ring\n# a & b/c\n"
        )


FOREIGN = {
    "etc/security/limits.d/90-memlock.conf": "alice - memlock 1024\n",
    "etc/security/limits.d/90-nofile.conf": "alice - nofile 1024\n",
    "etc/security/limits.d/90-stack.conf": "alice - stack 1024\n",
    "etc/security/limits.d/95-nproc.conf": "alice - nproc 1024\n",
    "etc/security/limits.d/90-clusterprep.conf": "* - memlock unlimited\n",
    "etc/modules-load.d/nvidia-peermem.conf": "another_module\n",
    "etc/sudoers.d/alice": "alice ALL=(root) /usr/bin/nvidia-smi\n",
}


@pytest.mark.parametrize(
    "check", ["lim.memlock", "lim.nofile", "lim.stack", "lim.nproc", "rdma.peermem"]
)
def test_files_of_others_stay_beside_ours(check: str, tmp_path: Path) -> None:
    _has_own_file(registry.checks()[check].remedy, tmp_path)


def test_the_rule_for_sudo_stands_in_a_file_of_its_own(tmp_path: Path) -> None:
    _has_own_file(allow_sudo("alice"), tmp_path)
    (rule,) = (tmp_path / "etc/sudoers.d").glob("clusterprep-*")
    assert rule.stat().st_mode & 0o777 == 0o440
    assert rule.read_text() == "alice ALL=(root) NOPASSWD: /bin/sh\n"


def _has_own_file(remedy: Remedy, root: Path) -> None:
    for name, text in FOREIGN.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paste(remedy, root, {"modprobe": "true"})
    after = files(root)
    assert len(after) == len(FOREIGN) + 1
    assert after.items() >= FOREIGN.items()
    paste(remedy, root, {"modprobe": "true"})
    assert files(root) == after


def failure(check: str, **facts: Any) -> Remedy:
    """Return the remedy of what a check says of nodes with these facts."""
    nodes: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(("n1", "n2")):
        nodes[name] = {fact: values[number] for fact, values in facts.items()}
    (bad,) = [found for found in findings(fleet(**nodes), check) if found.verdict == "fail"]
    return bad.remedy


def test_a_machine_id_is_replaced_only_where_it_is_the_cloned_one(tmp_path: Path) -> None:
    cloned, own = "c" * 32, "d" * 32
    facts = {
        "host.machine_id": (cloned, cloned),
        "host.boot_id": ("b1", "b2"),
        "host.name": ("a", "b"),
    }
    remedy = failure("host.identity", **facts)
    file = tmp_path / "etc/machine-id"
    file.parent.mkdir()
    stub = {"systemd-machine-id-setup": f"echo {'e' * 32} > {file}"}
    file.write_text(f"{own}\n")
    paste(remedy, tmp_path, stub)
    assert files(tmp_path) == {"etc/machine-id": f"{own}\n"}
    file.write_text(f"{cloned}\n")
    for _ in range(2):
        paste(remedy, tmp_path, stub)
        assert files(tmp_path) == {
            "etc/machine-id": f"{'e' * 32}\n",
            "etc/machine-id.cloned": f"{cloned}\n",
        }


def test_memory_that_a_process_has_open_by_then_stays(tmp_path: Path) -> None:

    folder = tmp_path / "dev/shm"
    folder.mkdir(parents=True)
    names = ("nccl-left", "nccl-used", "nccl-odd name")
    for name in names:
        (folder / name).write_text("x")
    remedy = remove_command([Segment(f"/dev/shm/{name}", 1, 99.0, held=False) for name in names])
    with (folder / "nccl-used").open() as used:
        for _ in range(2):
            paste(remedy, tmp_path)
            assert {path.name for path in folder.iterdir()} == {"nccl-used"}
        assert used.read() == "x"


def test_without_the_tool_that_looks_for_processes_nothing_is_removed(tmp_path: Path) -> None:

    file = tmp_path / "nccl-left"
    file.write_text("x")
    remedy = remove_command([Segment(str(file), 1, 99.0, held=False)])
    environment = {"PATH": str(tmp_path)}
    subprocess.run(["/bin/bash", "-c", remedy], env=environment, check=False)
    assert file.exists()


@pytest.mark.parametrize(("answers", "asked"), [(True, []), (False, ["umount", "mount"])])
def test_a_mount_is_taken_away_only_if_it_does_not_answer(
    answers: bool, asked: list[str], tmp_path: Path
) -> None:
    line = next(template for _, template, _ in templates() if "umount -l" in template)
    log = tmp_path / "log"
    note = f'echo "${{0##*/}}" >> {log}'
    stubs = {"umount": note, "mount": note, "stat": "exit 0" if answers else "exit 1"}
    for times in (1, 2):
        paste(shell_line(line, path="/data"), tmp_path, stubs)
        assert (log.read_text().split() if log.exists() else []) == asked * times


def test_a_key_is_added_to_known_hosts_once(tmp_path: Path) -> None:
    template = next(template for _, template, _ in templates() if "grep -qxF" in template)
    file = tmp_path / "known_hosts"
    file.write_text("other ssh-ed25519 AAAA\n")
    line = "n1 ssh-ed25519 BBBB"
    for _ in range(2):
        paste(shell_line(template, line=line, file=str(file)), tmp_path)
        assert file.read_text() == f"other ssh-ed25519 AAAA\n{line}\n"
