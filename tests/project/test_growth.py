"""No parser of what others wrote takes more than its share of time for a longer input.

A regular expression holds the interpreter's lock, so one that takes quadratic time lets one node's
text stop the whole command. Here every fact is parsed from real answers in which one text, list or
object at a time is made long in many ways, and so are logs, settings, inventories and playbooks.
Sixteen times as much may take 24 times as long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.changes.resources import clock, env, firewall, hosts, kernel, line, shm, sysctl
from clusterprep.checks.cuda import _compat_driver
from clusterprep.checks.log import KINDS
from clusterprep.cli.commands import selftest
from clusterprep.facts import Fact, apt
from clusterprep.inventory.load import load_ansible, load_inventory
from clusterprep.jobs.diagnose.forms import LONGEST
from clusterprep.jobs.diagnose.prefixes import lines_of
from clusterprep.jobs.diagnose.ranking import diagnose
from clusterprep.jobs.diagnose.redact import Redactor
from clusterprep.jobs.diagnose.sources import KeptLine
from clusterprep.jobs.launch.stacks import stack_of
from clusterprep.jobs.launch.torchrun_summary import exit_codes
from clusterprep.jobs.verify import nccl_log
from clusterprep.model import Json, secrets
from clusterprep.model.units import parse_duration, parse_size
from clusterprep.nccl.lint import DIALECTS
from clusterprep.nccl.lint import read as lint
from clusterprep.remote.transports.replay import read_key
from clusterprep.reports.bundle.anonymous import Anonymizer
from clusterprep.survey import registry
from clusterprep.survey.answers import narrowed_and_parsed
from tests.support.growth import MOST, SMALL, TIMES, grown, spoilt, texts

pytestmark = pytest.mark.clock

ROOT = Path(__file__).parents[2]
FLEETS = ("hgx-h100-ib", "hgx-h100-roce", "l20-mixed-box")
# What stands for an answer that no recorded machine gives, by the kind of read.
UNSEEN: dict[str, Json] = {
    "file": "a b\nc=1\n",
    "files": {"/a/b": "1\n"},
    "command": {"code": 0, "out": "a 1\n", "err": "b\n"},
    "otherwise": {"code": 0, "out": "a 1\n", "err": "b\n"},
    "alone": {"code": 0, "out": "a 1\n", "err": "b\n"},
}
Parse = Callable[[Json], object]


def told(found: list[str]) -> None:
    assert not found, "\n".join(found)


# ---------------------------------------------------------------- facts


def answers_of(kind: str) -> Iterator[tuple[Fact, list[Json]]]:
    """Yield every fact with the raw answers of a recorded node."""
    with selftest._recording(kind) as (path, recording):
        inventory = load_inventory(path)
    node = inventory.nodes[min(1, len(inventory.nodes) - 1)]
    answers = recording[node.name]["answers"]
    for fact in registry.facts().values():
        if fact.stage is not None:
            continue
        rows = []
        for read in fact.reads(node, inventory):
            row = answers.get(read_key(read), ["no", "missing"])
            if row[0] != "ok" and read.kind in UNSEEN:
                row = ["ok", UNSEEN[read.kind]]
            rows.append(row)
        yield fact, rows


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", FLEETS)
def test_facts(kind: str) -> None:
    found: list[str] = []
    for fact, rows in answers_of(kind):
        for place, row in enumerate(rows):
            if row[0] != "ok":
                continue

            def parse(
                value: Json, fact: Fact = fact, rows: list[Json] = rows, place: int = place
            ) -> object:
                changed = [*rows[:place], ["ok", value], *rows[place + 1 :]]
                return narrowed_and_parsed(fact, changed)

            for name, make in spoilt(row[1]):
                ratio = grown(parse, make)
                if ratio is not None and ratio > MOST:
                    found.append(f"{fact.name}: {name}: {ratio:.0f}")
    told(found)


# ---------------------------------------------------------------- texts

SHM = shm.wanted_size({"size": "50%"}, 1 << 34)
SHELL = 'export NCCL_DEBUG="INFO" # x\nNCCL_IB_HCA=mlx5_0\ncat <<EOF\nEnvironment="A=b c"\n'
INI = (
    "[gpu]\nn[1:4] ansible_host=10.0.0.1 ansible_port=22\n[gpu:vars]\nansible_user=root\nx='a b'\n"
)
APT = (
    "Inst a [1] (2 x [amd64])\nThe following held packages will be changed:\n  a b\n"
    " a : Depends: b\n== 0\ninstalled hold a 1\n==\na:\n *** 1 500\n        500 http://x y\n"
)
STACK = 'Current thread 0x0001 (most recent call first):\n  File "/x/y.py", line 3 in f'
SUMMARY = "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 3)\n"
NAMES = "host gpu1.example.com /home/alice/x.py user=bob 10.0.0.1 fe80::1 alice@n2"
NCCL = (
    "Channel 00/02 : 0[0] -> 1[1] via P2P/CUMEM",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "NCCL_SOCKET_IFNAME set by environment to eth0",
    "Bootstrap : Using eth0:10.0.0.1<0>",
)


def output(text: str) -> dict[str, Json]:
    return {"code": 0, "out": text, "err": ""}


PARSERS: dict[str, tuple[Parse, str]] = {
    "redacted names": (lambda text: Redactor(["n1"]).text(text), NAMES),
    "texts of a bundle": (lambda text: Anonymizer(["n1"]).lines(text), f"{NAMES} key=1 -key"),
    "stacks": (lambda text: stack_of(text.split("\n")), STACK),
    "torchrun's summary": (lambda text: exit_codes(text.split("\n"), 0), SUMMARY),
    **{
        f"settings: {dialect}": (lambda text, d=dialect: lint.read(text, d), SHELL)
        for dialect in DIALECTS
    },
    "dialects": (lambda text: lint.dialect_of("x", text), "export A=b"),
    "apt's outlook": (apt.parse_outlook, APT),
    "states of packages": (apt.parse_states, "installed hold libc6:amd64 2.36-9\n"),
    "kernels": (kernel.parse_candidates, "== candidate linux-image-6.1\nInst a (6.1 x)\n== 0\n"),
    "chrony's sources": (
        lambda text: clock.parse_chrony(output(text), output(text)),
        "^*,a,2,3,4,5,6,7",
    ),
    "chrony's folders": (
        lambda text: clock._folders(text.encode()),
        "sourcedir /etc/chrony/sources.d\n",
    ),
    "nccl.conf": (
        lambda text: env.without_block(text.encode()),
        "# x\n# BEGIN clusterprep\nA=b\n# END clusterprep\n",
    ),
    "/etc/hosts": (
        lambda text: hosts.without_other_meanings(text.encode(), {b"n1": b"10.0.0.1"}),
        "10.0.0.2 n1 n2 # c\n127.0.0.1 localhost\n",
    ),
    "a block": (
        lambda text: line.with_block(text.encode(), line.Marks.of("x"), b"a\n"),
        "# BEGIN clusterprep x\na\n# END clusterprep x\n",
    ),
    "sysctl.conf": (
        lambda text: sysctl.with_values(text.encode(), {"net.core.rmem_max": "1"}),
        "net.core.rmem_max = 2\n",
    ),
    "fstab": (
        lambda text: shm.in_fstab(text.encode(), SHM, 1 << 34),
        "tmpfs /dev/shm tmpfs size=1G,nosuid 0 0\n",
    ),
    "a mount unit": (
        lambda text: shm.in_unit(text.encode(), SHM, 1 << 34),
        "[Mount]\nOptions=size=1G,mode=1777\n",
    ),
    "sshd's settings": (
        lambda text: firewall.parse_sshd(output(text)),
        "port 22\nlistenaddress 0.0.0.0:22\n",
    ),
    "complaints of the kernel": (
        lambda text: [kind.pattern.search(text) for kind in KINDS],
        "nvme nvme0: I/O error, dev nvme0n1, sector 7 op 0x0:(READ)",
    ),
    "secrets": (secrets.redacted, "API_KEY=abc\n"),
    "a CUDA library": (_compat_driver, "/usr/local/cuda/compat/libcuda.so.550.1"),
    "sizes": (parse_size, "8 GiB"),
    "durations": (parse_duration, "5 s"),
    **{f"NCCL's log: {text[:12]}": (lambda text: nccl_log.parse(0, [text]), text) for text in NCCL},
}


@pytest.mark.parametrize("name", PARSERS)
def test_texts(name: str) -> None:
    parse, original = PARSERS[name]
    told(slow(parse, original))


def slow(parse: Parse, original: str, small_size: int = SMALL) -> list[str]:
    found = []
    for name, make in texts(original):
        ratio = grown(parse, make, small_size)
        if ratio is not None and ratio > MOST:
            found.append(f"{original[:40]!r}: {name}: {ratio:.0f}")
    return found


# ---------------------------------------------------------------- logs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lines_of_logs() -> None:
    """Every cause is looked for in lines of the length up to which they are searched."""
    catalogue = (ROOT / "tests/jobs/diagnose/catalogue.jsonl").read_text().splitlines()
    found: list[str] = []
    for row in catalogue[::20]:
        found += slow(_diagnosed, json.loads(row)["line"], LONGEST // TIMES)
    told(found)


def _diagnosed(text: Json) -> object:
    rows = text.split("\n")[:100]
    kept = [KeptLine("rank0.log", number, row.encode()) for number, row in enumerate(rows, 1)]
    return diagnose(lines_of(kept))


# ---------------------------------------------------------------- files of users

PLAYBOOK = """- name: x
  when: gpus.count > 0 and os.name == "ubuntu"
  command: "echo {{ cluster }}"
"""
FILES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "inventory": (load_inventory, ".yaml", (ROOT / "inventory.example.yaml").read_text()[:900]),
    "small inventory": (load_inventory, ".yaml", "nodes:\n- name: n1\n"),
    "ansible.ini": (load_ansible, ".ini", INI),
    "ansible.yaml": (
        load_ansible,
        ".yaml",
        "all:\n  hosts:\n    n1: {ansible_host: 10.0.0.1}\n  vars: {a: b}\n",
    ),
    "playbook": (
        lambda path: load_playbook(str(path)),
        ".yaml",
        PLAYBOOK,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    load, suffix, original = FILES[name]
    path = tmp_path / f"x{suffix}"

    def parse(text: Json) -> object:
        path.write_text(text)
        return load(path)

    told(slow(parse, original))
