"""Who is compared: the command line of each contender, and the files that it needs, for one lab."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterprep.inventory.load import load_inventory
from clusterprep.remote import bootstrap
from clusterprep.survey import registry
from clusterprep.survey.clock_sync import ROUNDS
from clusterprep.survey.port_matrix import DIAL_LIMIT
from clusterprep.survey.queries import plan_queries
from clusterprep.survey.selection import Selection, select_checks
from tests.support.asked import reads
from tests.support.lab import Lab

HERE = Path(__file__).resolve().parent
FORKS = (8, 16, 64)
WRITTEN = "/etc/clusterprep-bench.conf"
OFTEN = (
    0,
    3,
)  # with hundreds of hosts on few cores, one of ten thousand reads may come too late and is unknown
# Which checks make `apply` look at what the job asks for: kernel, host name, interfaces; os-release
# is one small file in place of the port range.
JOB_CHECKS = "kernel.version,host.identity,eth.iface_choice,os.release"


@dataclass(frozen=True)
class Contender:
    """One command to be measured; `writes` if it leaves the common file on every host."""

    name: str
    letter: str
    what: str
    argv: tuple[str, ...]
    writes: bool = False
    said: str = ""  # what its output must contain
    codes: tuple[int, ...] = (0,)  # with one of which it must end
    hung: bool = False  # whether it runs while some hosts hang


def contenders(lab: Lab, folder: Path, tools: Path) -> Iterator[Contender]:
    """Return all contenders, with their files in `folder`.

    Those that are not installed in `tools` are left out.
    """
    yield from _ours(lab, folder)
    yield from _ansible(lab, folder, tools)
    if (tools / "pyinfra").exists():
        flags = ("-y", "--parallel", str(len(lab.hosts)))
        job = str(HERE / "pyinfra_job.py")
        argv: tuple[str, ...] = (
            str(tools / "pyinfra"),
            *flags,
            pyinfra_inventory(lab, folder),
            job,
        )
        yield Contender("pyinfra", "d", "pyinfra, common job", argv, writes=True)
    if next(tools.parent.glob("lib/python*/site-packages/pssh"), None):
        argv = (str(tools / "python"), str(HERE / "pssh_job.py"), str(folder / "job.json"))
        yield Contender("parallel-ssh", "d", "parallel-ssh, three commands", argv)


def _ours(lab: Lab, folder: Path) -> Iterator[Contender]:
    job, probe, inventory = (
        folder / "job.json",
        folder / "probe.pickle",
        lab.inventory(folder / "inventory.yaml"),
    )
    told, pickled = _jobs(lab, inventory)
    job.write_text(json.dumps(told))
    probe.write_bytes(pickled)
    cli = (sys.executable, "-c", "from clusterprep.cli.main import main; main()")
    apply = (
        "apply",
        str(inventory),
        "--playbook",
        str(HERE / "common.yaml"),
        "--no-verify",
        "--only",
        JOB_CHECKS,
    )
    reached = f"{len(lab.hosts)}/{len(lab.hosts)} nodes reached"

    def python(script: str, file: Path) -> tuple[str, ...]:
        return sys.executable, str(HERE / script), str(file)

    def check(*words: str) -> tuple[str, ...]:
        return (*cli, "check", str(inventory), *words)

    kernel, first = ("--only", "kernel.version"), ("--limit", lab.hosts[0].name)
    again = (*cli, "apply", str(inventory), "--no-verify")
    yield Contender("ssh", "a", "plain ssh, true", python("plain_ssh.py", job))
    yield Contender("floor-ssh", "b", "bytes of check through ssh", python("floor_ssh.py", job))
    yield Contender(
        "floor-agent", "b", "bare agent, answers dropped", python("floor_agent.py", probe)
    )
    yield Contender(
        "agent-one", "b", "bare agent, one host", (*python("floor_agent.py", probe), "1")
    )
    yield Contender("check", "c", "check, everything", check(), said=reached, codes=OFTEN)
    yield Contender(
        "check-one", "c", "check, everything, one host", check(*first), said="1/1 node reached"
    )
    yield Contender("check-kernel", "c", "check, the kernel alone", check(*kernel), said=reached)
    yield Contender(
        "apply-again",
        "c",
        "apply with nothing to change",
        again,
        said="already as wanted",
        codes=OFTEN,
    )
    yield Contender("apply", "d", "apply, common job", (*cli, *apply), writes=True, said=reached)
    yield Contender("check-hung", "h", "check, some hosts hung", check(), codes=(3,), hung=True)
    yield Contender(
        "check-kernel-hung",
        "h",
        "the kernel alone, some hung",
        check(*kernel),
        codes=(3,),
        hung=True,
    )


def _jobs(lab: Lab, path: Path) -> tuple[dict[str, Any], bytes]:
    """What the floors are to send.

    As lines for plain ssh, and as values for the agent's own link.
    """
    inventory = load_inventory(path)
    plan = plan_queries(select_checks(registry.checks(), Selection()), registry.facts())
    looks = {
        n.name: [[r.kind, list(r.args), r.limit] for r in reads(plan, n, inventory)]
        for n in inventory.nodes
    }
    listen = {"spans": [[inventory.master_port, inventory.master_port]]}
    dial = {"targets": [[lab.hosts[0].address, inventory.master_port]], "limit": DIAL_LIMIT}
    kinds = {kind for asked in looks.values() for kind, _, _ in asked}
    parts = (*bootstrap.parts_for(kinds), "dial")  # of the agent, as check sends them
    pings = "".join(_line(number, "ping") for number in range(1, ROUNDS + 1))
    told = {
        "plain": [lab.ssh(host, "true") for host in lab.hosts],
        "probe": [lab.ssh(host, bootstrap.command()) for host in lab.hosts],
        "payload": bootstrap.payload("0123456789abcdef", parts, near=True).decode("latin-1"),
        "looks": [pings + _line(ROUNDS + 1, "look", reads=looks[host.name]) for host in lab.hosts],
        "listen": _line(ROUNDS + 2, "listen", **listen),
        "dial": _line(ROUNDS + 2, "dial", **dial),
        "wait_for": [ROUNDS + 1, ROUNDS + 2],  # the numbers of look, and of listen or dial
        "addresses": [host.address for host in lab.hosts],
        "key": str(lab.key),
    }
    values = {
        "nodes": inventory.nodes,
        "parts": parts,
        "pings": ROUNDS,
        "looks": looks,
        "listen": listen,
        "dial": dial,
    }
    return told, pickle.dumps(values)


def _line(number: int, op: str, **body: Any) -> str:
    return json.dumps({"id": number, "op": op, **body}, separators=(",", ":")) + "\n"


def _ansible(lab: Lab, folder: Path, tools: Path) -> Iterator[Contender]:
    program = tools / "ansible-playbook"
    if not program.exists():
        return
    start = ansible_start(lab, folder, program)
    for forks in FORKS:
        argv = (*start, "--forks", str(forks), str(HERE / "ansible_job.yaml"))
        yield Contender(
            f"ansible-{forks}", "d", f"Ansible, {forks} forks, common job", argv, writes=True
        )


def ansible_start(lab: Lab, folder: Path, program: Path) -> tuple[str, ...]:
    """How its command begins, with its inventory and settings in the folder."""
    common = f"-o UserKnownHostsFile={lab.known_hosts} -o KexAlgorithms=curve25519-sha256 -F none"
    rows = [f"{host.name} ansible_host={host.address}" for host in lab.hosts]
    settings = [
        "ansible_user=root",
        f"ansible_ssh_private_key_file={lab.key}",
        f"ansible_ssh_common_args={common}",
        "ansible_python_interpreter=/usr/bin/python3",
    ]
    (folder / "ansible.ini").write_text("\n".join(["[all]", *rows, "[all:vars]", *settings]) + "\n")
    (folder / "ansible.cfg").write_text(
        "[defaults]\nhost_key_checking = True\nnocows = True\n[ssh_connection]\npipelining = True\n"
    )
    # Ansible looks for its configuration in the environment first.
    return (
        "env",
        f"ANSIBLE_CONFIG={folder / 'ansible.cfg'}",
        str(program),
        "-i",
        str(folder / "ansible.ini"),
    )


def pyinfra_inventory(lab: Lab, folder: Path) -> str:
    """Its inventory, written into the folder."""
    shared = {
        "ssh_user": "root",
        "ssh_key": str(lab.key),
        "ssh_known_hosts_file": str(lab.known_hosts),
        "ssh_strict_host_key_checking": "yes",
        "ssh_allow_agent": False,
        "ssh_look_for_keys": False,
    }
    path = folder / "pyinfra_inventory.py"
    path.write_text(f"hosts = ({[host.address for host in lab.hosts]!r}, {shared!r})\n")
    return str(path)


def content() -> str:
    """What the common job writes; the playbook of clusterprep says it in its own way."""
    text = (HERE / "common.conf").read_text()
    step: dict[str, Any] = yaml.safe_load((HERE / "common.yaml").read_text())[0]
    assert step["file"]["content"] == text, "common.yaml and common.conf differ"
    return text


Chosen = Callable[[Contender], bool]


def chooser(words: str) -> Chosen:
    """Contenders by letter or name, as `--only a,b,pyinfra` says; all of them for an empty text."""
    wanted = {word.strip() for word in words.split(",") if word.strip()}

    def chosen(contender: Contender) -> bool:
        family = contender.name.split("-")[0]
        return not wanted or bool(wanted & {contender.letter, contender.name, family})

    return chosen
