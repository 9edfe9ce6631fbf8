"""Makes docs/reference/privileges.md: what each fact reads on a node, and which user that needs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection

from clusterprep.facts import Fact, Needs
from clusterprep.model import Inventory, Node, Read, SshSettings
from clusterprep.survey import registry

HEAD = """# Which user a fact needs

Written by `make format` from the facts themselves; `clusterprep explain CHECK` prints the same for
a check. `check` works as any user who may log in. What is denied to that user is unknown with the
reason `denied`, never a pass, and counts as its severity says (an unknown error is exit code 3). Of
{count} facts, {root} need root and {job} need the job's user, who is `job_user`, or else the login
user; {partly} have gaps without root, which their checks report.

`check`, `plan`, `env` and `diagnose` write nothing on a node. `apply` and `rollback` need root,
because /etc and /var/lib/clusterprep belong to root, unless `root:` names a tree of the user's own.
They write only below folders that no user except root (or that user) may write to, and refuse
others. `verify` and `launch` need the job's user, or root, who becomes that user before anything of
the job's is run. `check --deep --store` needs root for its one file.

## A login user for clusterprep

With `ssh: {{user: clusterprep, become: true}}` the login user has no rights of its own. sudo runs
one shell line as root, a constant (`clusterprep/remote/bootstrap.py`): it starts Python and reads
the agent from its input. A sudo rule that allows it:

```sudoers
# /etc/sudoers.d/clusterprep, mode 0440
Defaults:clusterprep !requiretty
clusterprep ALL=(root) NOPASSWD: /bin/sh
```

This rule allows everything. A shell or a Python that runs as root is root, and no list of arguments
changes that; `sudo` logs that it was used and cannot know what for. So an owner of this user's key
is root on these nodes. Keep the key as you keep root's own: with a passphrase or in an agent, only
on the controller, and in authorized_keys behind `restrict,from="10.0.0.5"` (the controller's
address; clusterprep needs no terminal and no forwarding). Without `NOPASSWD:` sudo asks for the
password of that user, which `--ask-become-pass` supplies.

To grant less, leave out `become`: the user can then read what every user on the node can, and the
tables below say what stays unknown.
"""
ROWS = (
    ("root", False, "## Facts that need root"),
    ("job_user", False, "## Facts that need the job's user, or root"),
    ("root", True, "## Facts that are complete for root only"),
    ("any_user", False, "## Facts that any user can read"),
)
STAGES = {
    "clock": "the clock, by messages on the connection",
    "open": "the connection itself",
    "pairs": "connections from node to node, by the running agents",
    "history": "nothing: the history of the controller",
    "certificate": "nothing: a file of the controller, beside the other facts of the node",
    "again": "nothing: the first look of the same command",
    "stress": "with --stress alone: processes of the job's user that load the node, and dcgmi",
}


def shown(*words: object) -> str:
    return ", ".join(f"`{word}`" for word in words)


READS: dict[str, Callable[..., str]] = {
    "file": shown,
    "files": shown,
    "command": lambda *argv: shown(" ".join(argv)),
    "otherwise": lambda first, words: f"{shown(' '.join(words))} where the one before failed",
    "resolve": lambda *names: "the resolver, for the names of the nodes",
    "own_name": lambda: "the resolver, for its own name",
    "pci": lambda vendor: (
        "`/sys/bus/pci/devices`: class, NUMA node, first word of the configuration space"
    ),
    "pci_tree": lambda: "`/sys/bus/pci/devices`: links, and the configuration space of bridges",
    "interfaces": lambda: "`/sys/class/net`, addresses by netlink",
    "limits": lambda user: "limits of this session, or of one by `su` for the job's user",
    "launch_limits": lambda user: (
        "`/proc/PID/limits` of daemons that launch jobs; of PAM, systemd, Slurm and container "
        "engines the lines that set limits"
    ),
    "session_share": lambda user: "`/proc/self/cgroup`, and the limits of these cgroups",
    "job_python": lambda *_: "the job's interpreter runs a script that imports torch",
    "environment": lambda *_: (
        "the shells of the job's user with their start-up files, units, `/etc/nccl.conf`"
    ),
    "container_defaults": lambda *_: "`containers.conf` of podman, in all its places",
    "readable": lambda *_: "the files that the environment comes from, opened as the job's user",
    "nccl_address": lambda *_: "the job's interpreter asks its NCCL",
    "nvml": lambda *_: "NVIDIA's management library",
    "driver_libraries": lambda: "`/etc/ld.so.cache`, and sizes of the driver's libraries",
    "nvme": lambda: "`/sys/class/nvme`; `nvme smart-log` or `smartctl -A` of each local disk",
    "slurm_files": lambda *_: "`slurm.conf`, `gres.conf`, `cgroup.conf` and what they include",
    "slurm_state": lambda: "`scontrol --oneliner show node` of this host",
    "gpu_nodes": lambda: "`/dev/nvidia*`: access(2) alone",
    "nvml_libraries": lambda: "the loader's folders: `libnvidia-ml.so.1`",
    "fabric_manager": lambda: "`systemctl show nvidia-fabricmanager.service`, its `--version`",
    "imex": lambda: (
        "`systemctl show nvidia-imex.service`, `nvidia-imex-ctl -N -j`, its file of nodes"
    ),
    "kernel_log": lambda *_: "`/dev/kmsg`",
    "kernel_journal": lambda *_: "`journalctl`, the kernel's lines of a week",
    "tasks": lambda *_: "`/proc/*/stat`, `status`, `wchan`",
    "probe": lambda *_: "statvfs of `/`, `/tmp`, `/var`, homes, `/dev/shm`, network mounts",
    "ssh_mesh": lambda *_: "ssh to other nodes as the job's user; none without `ssh.mesh: yes`",
    "endpoints": lambda *_: (
        "the shells of the job's user; connections to what `endpoints:` declares, none without it"
    ),
    "shared": lambda *_: (
        "stat, statvfs, names and inodes of what `shared:` declares, and 4 KiB of one file in it"
    ),
    "shm_segments": lambda: "`/dev/shm/nccl-*`; `/proc/*/maps` and `fd` if there are any",
    "firewall": lambda: "`nft list ruleset`, `iptables-save`",
    "rights": lambda: "its own user id; `sudo -n true` if that is not root's",
    "account": lambda *_: "the ids of the job's user",
    "kernels": lambda: "names in `/boot` and `/lib/modules`",
    "cpus": lambda: "`/proc/cpuinfo`, `/sys/devices/system/cpu`",
    "governors": lambda: "`/sys/devices/system/cpu/cpufreq`",
    "interrupts": lambda: "`/proc/interrupts`, twice",
    "journal": lambda folder: shown(f"{folder}/runs/*/manifest.json", f"{folder}/lock"),
    "results": shown,
    "rdma_tree": lambda: "`/sys/class/infiniband`",
    "pci_errors": lambda: "`/sys/bus/pci/devices/*/aer_dev_*`",
    "nccl_topology": lambda *_: "the topology file that `/etc/nccl.conf` names, or the default one",
    "rail_neighbours": lambda: "`lldpcli show neighbors`, `smpquery nodeinfo` of the next switch",
    "roce_qos": lambda: "priorities by netlink, `ecn` and `qos` in `/sys/class/net`",
    "rail_routes": lambda: "routes and addresses by netlink, `/proc/sys/net/ipv4/conf`",
    "verbs": lambda *_: "modes of `/dev/infiniband/uverbs*`, groups of the job's user",
}


def page() -> str:
    """Return the page: a table for each kind of need."""
    facts = registry.facts()
    many = {(who, partly): len(_of(facts.values(), who, partly)) for who, partly, _ in ROWS}
    head = HEAD.format(
        count=len(facts),
        root=many["root", False],
        job=many["job_user", False],
        partly=many["root", True],
    )
    return head + "".join(
        _table(title, _of(facts.values(), who, partly)) for who, partly, title in ROWS
    )


def _of(facts: Collection[Fact], who: str, partly: bool) -> list[Fact]:
    found = [fact for fact in facts if (fact.needs.who, fact.needs.partly) == (who, partly)]
    return sorted(found, key=lambda fact: fact.name)


def _table(title: str, facts: list[Fact]) -> str:
    reasons: dict[Needs, None] = dict.fromkeys(fact.needs for fact in facts if fact.needs.why)
    about = "".join(
        textwrap.fill(
            f"* {why.why[:1].upper()}{why.why[1:]}: {shown(*_names(facts, why))}.",
            118,
            subsequent_indent="  ",
        )
        + "\n"
        for why in reasons
    )
    rows = "".join(f"| `{fact.name}` | {_checks(fact)} | {reads(fact)} |\n" for fact in facts)
    gap = "\n" if about else ""
    return f"\n{title}\n\n{about}{gap}| fact | checks | reads |\n|---|---|---|\n{rows}"


def _names(facts: list[Fact], needs: Needs) -> list[str]:
    return [fact.name for fact in facts if fact.needs == needs]


def _checks(fact: Fact) -> str:
    return shown(
        *(
            name
            for name, check in registry.checks().items()
            if fact.name in (*check.facts, *check.uses)
        )
    )


def reads(fact: Fact) -> str:
    """Describe what a fact reads on a node."""
    if fact.stage is not None:
        return STAGES[fact.stage]
    node = Node("n1", "n1", 0, ssh=SshSettings(user="alice"), job_user="alice")
    told = dict.fromkeys(_told(read) for read in fact.reads(node, Inventory("demo", (node,))))
    return re.sub(r"\|", "\\|", "; ".join(told)) or "nothing"


def _told(read: Read) -> str:
    return READS[read.kind](*read.args)
