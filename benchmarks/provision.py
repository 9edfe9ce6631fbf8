"""Measure four idempotent tasks on many hosts, first and again, against Ansible and pyinfra."""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path.insert(0, str(REPOSITORY))

from contenders import FORKS, Contender, ansible_start, chooser, pyinfra_inventory  # noqa: E402
from fanout import QUIET, Bench  # noqa: E402
from measured import CORES, Measured, Run, Want  # noqa: E402

from tests.support.lab import Lab, why_not  # noqa: E402

PASSES = ("first", "second")
SLOW_RUNS = 2  # Ansible takes minutes: each number of forks once, and then the best of them again
VALUE, FORMER = (
    "16384",
    "4096",
)  # of net.core.somaxconn, wanted and as a network namespace begins with it
FILE = (
    "# Written by the benchmark of clusterprep; may be removed at any time.\n"
    "NCCL_DEBUG=WARN\nNCCL_IB_DISABLE=1\n"
)
# A line that is there before.
OTHER = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the tasks leave, and what clusterprep remembers of them; prints the first of it that is not
# as wanted.
CLEAR = """
rm -rf /etc/clusterprep-bench.conf /etc/sysctl.d/90-clusterprep.conf \
    /etc/security/limits.d/90-clusterprep.conf /etc/systemd/system.conf.d/90-clusterprep.conf \
    /etc/systemd/user.conf.d/90-clusterprep.conf /var/lib/clusterprep
printf '%s\\n' "$2" > /etc/environment
echo "$1" > /proc/sys/net/core/somaxconn
"""
LOOK = r"""
[ "$(cat /etc/clusterprep-bench.conf; echo .)" = "$1." ] || echo the file
[ "$(grep -cx CLUSTERPREP_BENCH=1 /etc/environment)" = 1 ] || echo the line
[ "$(sed -n 1p /etc/environment)" = "$3" ] || echo the other line
[ "$(cat /proc/sys/net/core/somaxconn)" = "$2" ] || echo the value
grep -qE "^net.core.somaxconn ?= ?$2\$" /etc/sysctl.d/90-clusterprep.conf || echo the value at boot
[ "$(grep -cE '^(\*|root) - (memlock unlimited|nofile 1048576)$' \
    /etc/security/limits.d/90-clusterprep.conf)" = 4 ] ||
    echo the limits
"""
# What each says where it had nothing to do: of every host, or of all together.
NOTHING = {"clusterprep": r"already as wanted", "ansible": r"changed=0", "pyinfra": r"No changes"}


class Provision(Bench):
    """One lab, in which all contenders do the same."""

    def _clear(self) -> None:
        self._everywhere("sh", "-c", CLEAR, "sh", FORMER, OTHER)

    def _verify(self, contender: Contender) -> None:
        seen = self._everywhere("sh", "-c", LOOK, "sh", FILE, VALUE, OTHER)
        wrong = {name: text for name, text in seen.items() if text}
        if wrong:
            raise SystemExit(f"{contender.name} did not do what was wanted: {wrong}")

    def both(self, contender: Contender) -> Iterator[Run]:
        """Where nothing is as wanted, and again, where all of it is."""
        yield self.run(dataclasses.replace(contender, writes=True))
        yield self.run(dataclasses.replace(contender, writes=False))
        self._verify(contender)
        said = (self._folder / "output.txt").read_text(errors="replace")
        if re.search(r"changed=[1-9]", said) or not re.search(
            NOTHING[contender.name.split("-")[0]], said
        ):
            raise SystemExit(f"{contender.name} changed something again:\n{said[-4000:]}")


def contenders(lab: Lab, folder: Path, tools: Path) -> Iterator[Contender]:
    """All that are installed, with their files in `folder`."""
    cli = (
        sys.executable,
        "-c",
        "from clusterprep.cli.main import main; main()",
        "apply",
        str(lab.inventory(folder / "i.yaml")),
    )
    apply = (*cli, "--playbook", str(HERE / "provision.yaml"), "--no-verify")
    yield Contender("clusterprep", "a", "clusterprep, checks of ssh", (*apply, "--only", "ssh."))
    yield Contender("clusterprep-checks", "a", "clusterprep, every check", apply)
    if (tools / "pyinfra").exists():
        flags = ("-y", "--parallel", str(len(lab.hosts)))
        argv = (
            str(tools / "pyinfra"),
            *flags,
            pyinfra_inventory(lab, folder),
            str(HERE / "provision_pyinfra.py"),
        )
        yield Contender("pyinfra", "c", "pyinfra", argv)
    if (tools / "ansible-playbook").exists():
        start = ansible_start(lab, folder, tools / "ansible-playbook")
        for forks in FORKS:
            argv = (*start, "--forks", str(forks), str(HERE / "provision_ansible.yaml"))
            yield Contender(f"ansible-{forks}", "b", f"Ansible, {forks} forks", argv)


def measure(bench: Provision, chosen: Sequence[Contender], repeat: int) -> dict[str, Measured]:
    """All in turn, so that a disturbance of the machine meets them alike.

    Ours and pyinfra once before it counts.
    """
    passes = {name: Measured(len(bench.lab.hosts), 0) for name in PASSES}
    quick = [c for c in chosen if not c.name.startswith("ansible")]
    slow = [c for c in chosen if c.name.startswith("ansible")]
    for contender in quick:
        _show(contender, bench.both(contender), "warm-up")
    for number in range(1, repeat + 1):
        if number == 2:
            best = {measured.best("ansible") for measured in passes.values()}
            slow = [c for c in slow if c.name in best]
        for contender in (*quick, *(slow if number <= SLOW_RUNS else ())):
            runs = _show(contender, bench.both(contender), f"{number}/{repeat}")
            for measured, run in zip(passes.values(), runs, strict=True):
                measured.runs[contender.name].append(run)
    return passes


def _show(contender: Contender, runs: Iterable[Run], when: str) -> list[Run]:
    found = list(runs)
    walls = "  ".join(f"{run.wall:8.3f} s" for run in found)
    print(f"{when:8} {contender.name:18} {walls}", file=sys.stderr, flush=True)
    return found


def wants(passes: dict[str, Measured]) -> Iterator[Want]:
    """The figures that were wanted, of medians."""
    for name, measured in passes.items():
        ansible = measured.best("ansible")
        for other, limit in ((ansible, 10), ("pyinfra", 2)):
            text = f"{name} pass, times faster than {other or 'Ansible'}"
            yield Want(text, measured.ratio(other, "clusterprep"), limit, at_least=True)


def table(passes: dict[str, Measured], chosen: Iterable[Contender]) -> str:
    """One line for each contender and pass, then what was wanted."""
    head = f"{'':32}{'pass':>8}{'wall, s':>9}{'min':>9}{'max':>9}{'runs':>6}{'times':>8}"
    head += f"{'CPU':>8}{'host CPU':>10}"
    lines = [head, "─" * len(head)]
    for contender in chosen:
        for name, measured in passes.items():
            if walls := [run.wall for run in measured.runs.get(contender.name, ())]:
                ratio = measured.ratio(contender.name, "clusterprep")
                lines.append(
                    f"{contender.what:32}{name:>8}{statistics.median(walls):9.2f}{min(walls):9.2f}{max(walls):9.2f}"
                    f"{len(walls):6}{'–' if ratio is None else f'{ratio:.1f}':>8}"
                    f"{measured.cpu(contender.name):8.1f}{measured.hosts(contender.name):10.1f}"
                )
    return "\n".join([*lines, "", *map(str, wants(passes))])


def preface(passes: dict[str, Measured]) -> str:
    measured = passes[PASSES[0]]
    lines = [
        (
            f"{measured.nodes} lab hosts, which share this machine's {CORES} cores "
            "with the controller; medians."
        ),
        (
            "times: as long as clusterprep. CPU: ms of the controller per host, "
            "host CPU: of one host, from its sshd on."
        ),
    ]
    if (others := max(each.others for each in passes.values())) > QUIET:
        lines.append(
            f"NOT QUIET: something else used {others:.0%} of the machine; ratios may be wrong."
        )
    return "\n".join([*lines, ""])


def as_json(passes: dict[str, Measured]) -> dict[str, Any]:
    walls = {
        name: {c: [run.wall for run in runs] for c, runs in m.runs.items()}
        for name, m in passes.items()
    }
    wanted = [
        {"text": w.text, "value": w.value, "limit": w.limit, "holds": w.holds}
        for w in wants(passes)
    ]
    return {"nodes": passes[PASSES[0]].nodes, "cores": CORES, "wall_s": walls, "wanted": wanted}


def main() -> int:
    """Entry of ``python benchmarks/provision.py``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64, help="number of lab hosts (64)")
    parser.add_argument("--repeat", type=int, default=5, help="counted runs of each contender (5)")
    parser.add_argument("--only", default="", metavar="a,b,…", help="names of contenders")
    parser.add_argument(
        "--tools", type=Path, default=REPOSITORY / ".venv-bench", help="environment of the others"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run there")
    args = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    compileall.compile_dir(REPOSITORY / "clusterprep", quiet=1)  # as an installation is
    with tempfile.TemporaryDirectory(prefix="clusterprep-bench-") as name, Lab(args.nodes) as lab:
        chosen = list(filter(chooser(args.only), contenders(lab, Path(name), args.tools / "bin")))
        passes = measure(Provision(lab, Path(name)), chosen, args.repeat)
    print(preface(passes))
    print(table(passes, chosen))
    if args.json:
        args.json.write_text(json.dumps(as_json(passes), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
