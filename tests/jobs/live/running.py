"""A job over gloo with a rank on each host of a lab."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab import Host, Lab
from tests.support.patience import eventually

TRAIN = Path(__file__).with_name("programs") / "train.py"
FOLDER = "/var/tmp/train"


@dataclass
class Job:
    """The job on all hosts of a lab."""

    lab: Lab
    ranks: list[subprocess.Popen[Any]] = field(default_factory=list)

    def start(self) -> None:
        for number, host in enumerate(self.lab.hosts):
            host.run(["mkdir", "-p", FOLDER])
            host.run(["mkfifo", f"{FOLDER}/pipe"])
            variables = {"RANK": number, "WORLD_SIZE": len(self.lab.hosts), "LOCAL_RANK": 0}
            variables["MASTER_ADDR"] = self.lab.hosts[0].address
            variables.update(MASTER_PORT=29500, GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS=1)
            pairs = [f"{name}={value}" for name, value in variables.items()]
            argv = ["env", *pairs, sys.executable, str(TRAIN), FOLDER]
            self.ranks.append(host.popen(argv))

    def tell(self, host: Host, command: str) -> None:
        host.write(f"{FOLDER}/new", command)
        host.run(["mv", f"{FOLDER}/new", f"{FOLDER}/command"])  # whole, or not there

    def pid(self, host: Host) -> str:
        """The rank of a host, as the host counts."""
        return host.run(["pgrep", "-f", f"{TRAIN.name} {FOLDER}"]).stdout.split()[0]

    def moves(self) -> bool:
        """Whether all ranks pass another collective."""
        for host in self.lab.hosts:
            host.run(["rm", "-f", f"{FOLDER}/begun"])
        return eventually(self.has_begun, 60)

    def has_begun(self) -> bool:
        return all(has_file(host, "begun") for host in self.lab.hosts)


def has_file(host: Host, name: str) -> bool:
    return host.run(["test", "-e", f"{FOLDER}/{name}"], check=False).returncode == 0
