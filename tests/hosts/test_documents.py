"""The commands of README and docs/ on hosts of the lab, in the order in which a reader meets them.

`tests/support/document_runs.py` says how each ends, and which are not run, with the reason.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.document_runs import EXPECTED, RUNS, on_the_lab
from tests.support.lab import Lab

pytestmark = pytest.mark.hosts

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """\
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""
FAILED_LOG = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a "
    "total capacity of 79.11 GiB of which 1.20 GiB is free.\n"
)
FILES = {
    "train.py": TRAIN,
    "train.log": FAILED_LOG,
    "rank0.log": FAILED_LOG,
    "slurm-4711.out": FAILED_LOG,
    "site.conf": "limit 1\n",
    "tool": "#!/bin/sh\n",
    "nccl.conf": "NCCL_DEBUG=WARN\n",
    "job.env": "NCCL_DEBUG=WARN\n",
    "fabfile.py": 'from fabric import task\n\n\n@task\ndef release(c):\n    c.run("uname -r")\n',
}
OF_NODES = {
    "/var/log/job.log": "ended\n",
    "/srv/a/out.txt": "1\n",
}


class Desk:
    """Where the commands are typed: a folder with the files that the documents name."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        content = lab.inventory_content()
        self.addresses = {host.name: host.address for host in lab.hosts}
        self.files = dict(FILES)
        for name in ("cluster.yaml", "inventory.yaml"):
            self.files[name] = json.dumps(content, indent=2)
        hosts = [f"{name} ansible_host={address}" for name, address in self.addresses.items()]
        self.files["hosts.ini"] = "\n".join(hosts) + "\n"
        self.ssh_config = lab.home / ".ssh" / "config"
        self.ssh_config.parent.mkdir(mode=0o700, exist_ok=True)
        login = f"IdentityFile {lab.key}\nUserKnownHostsFile {lab.known_hosts}\n"
        hosts = [f"Host {name}\nHostName {address}" for name, address in self.addresses.items()]
        self.ssh_config.write_text("\n".join([*hosts, "Host n*", login]))
        self.lay()

    def lay(self) -> None:
        """Write all files as they were: `init` makes an inventory only where there is none."""
        for name, text in self.files.items():
            (self.folder / name).write_text(text)

    def run(self, words: Sequence[str]) -> tuple[int, str]:
        """Return exit code and output of a command, after patterns of files as a shell does it."""
        argv = [sys.executable, "-m", "clusterprep"]
        for word in words:
            there = sorted(self.folder.glob(word)) if word.startswith("rank") else []
            argv += [path.name for path in there] or [word]
        done = self.lab.controller.run(
            argv, cwd=self.folder, env={"PYTHONPATH": str(ROOT)}, timeout=100
        )
        return done.returncode, done.stdout + done.stderr

    def last_run(self) -> str:
        _, text = self.run(["report", "last", "--format", "json"])
        return str(json.loads(text)["run"])


@pytest.fixture(scope="module")
def desk(lab4: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    desk = Desk(lab4, folder)
    for host in lab4.hosts:
        host.write(folder / "train.py", TRAIN)
        for path, text in OF_NODES.items():
            host.write(path, text)
    for _ in range(2):
        code, text = desk.run(["check", "cluster.yaml"])
        assert code == 0, text
    yield desk
    desk.ssh_config.unlink()  # other modules borrow this lab's home


@pytest.mark.timeout(120)
@pytest.mark.parametrize("typed", EXPECTED)
def test_a_command_of_a_document_ends_as_the_reader_expects(desk: Desk, typed: str) -> None:
    words = shlex.split(typed)[1:]
    run = desk.last_run() if set(words) & set(RUNS) else ""
    words = on_the_lab(words, desk.addresses, run)
    if words[0] == "init":
        (desk.folder / "cluster.yaml").unlink()
        (desk.folder / "inventory.yaml").unlink()
    code, text = desk.run(words)
    desk.lay()
    assert code in EXPECTED[typed], text
