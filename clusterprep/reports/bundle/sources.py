"""What a bundle asks each node: one table of files and commands, each with its bounds. Pure.

A program that is not installed is an answer: the index page says so. Everything here reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.facts import under
from clusterprep.facts.env_files import NCCL_CONF, PROFILE, written_files
from clusterprep.model import Inventory, Node

KIB, MIB = 1 << 10, 1 << 20


class Source(Struct, frozen=True):
    """A file, or a command with what it prints on both streams.

    `rights` says what a login that is not root gets: all of it ("any"), some of it ("parts") or
    nothing ("root").
    """

    name: str  # of its file in the archive, without the suffix; unique
    title: str
    argv: tuple[str, ...]  # of a file its path alone
    most: int = 256 * KIB  # bytes that are kept
    seconds: int = 10
    is_file: bool = False
    is_configuration: bool = False  # a file below the node's `root`
    keep: Literal["start", "end"] = "start"
    rights: Literal["any", "parts", "root"] = "any"
    needs: str = ""  # the program without which it is not asked; default: the first word
    is_packed: bool = False  # it prints what gzip has packed

    @property
    def program(self) -> str:
        return self.needs or self.argv[0]


def _shell(line: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", line)


# Interfaces that are hardware.
_ETHTOOL = """\
for place in /sys/class/net/*/device; do
  card=${place%/device}; card=${card##*/}
  for option in "" -i -k -g -a -c -m -S; do
    echo "== ethtool $option $card"; ethtool $option "$card"
  done
done; :"""
# By class of PCI: Ethernet, InfiniBand, GPU with and without a display, bridges such as NVSwitch.
_LSPCI = """\
for class in 0200 0207 0300 0302 0680; do lspci -vvv -nn -d "::$class"; done; lspci -tv"""
_PACKAGES = """\
{ dpkg-query -W -f '${Package} ${Version}\\n' || rpm -qa; } 2>/dev/null |
  grep -iE 'nvidia|cuda|nccl|mlnx|mlx|rdma|ofed|doca|fabric|ucx|openmpi|slurm' | sort; :"""
_VERSIONS = """\
uname -a; cat /proc/cmdline /proc/driver/nvidia/version /sys/module/mlx5_core/version
ofed_info -s; nvidia-smi --version; nvidia-container-cli --version; python3 --version; :"""
_BUG_REPORT = """\
nvidia-bug-report.sh --safe-mode --output-file "$PWD/bug" >bug.txt 2>&1
cat bug*.gz || { cat bug.txt; exit 1; }"""

# In the order in which they are asked: first what tells most and comes at once, last what takes
# minutes. What a node has no time for is not asked.
SOURCES = (
    Source(
        "os-release",
        "distribution",
        ("/etc/os-release",),
        16 * KIB,
        is_file=True,
        is_configuration=True,
    ),
    Source("versions", "kernel, driver, tools", _shell(_VERSIONS), 64 * KIB),
    Source("packages", "packages of GPUs, networks and MPI", _shell(_PACKAGES), seconds=20),
    Source(
        "kernel-log",
        "kernel log since the start of the node",
        ("dmesg", "-T"),
        MIB,
        keep="end",
        rights="root",
    ),
    Source(
        "kernel-journal",
        "kernel log of this boot, from the journal",
        ("journalctl", "-k", "-b", "--no-pager", "-o", "short-precise", "-n", "20000"),
        2 * MIB,
        seconds=20,
        keep="end",
        rights="root",
    ),
    Source(
        "kernel-journal-before",
        "the end of the kernel log before the last boot",
        ("journalctl", "-k", "-b", "-1", "--no-pager", "-o", "short-precise", "-n", "5000"),
        MIB,
        seconds=20,
        keep="end",
        rights="root",
    ),
    Source("reboots", "when the node was started", ("last", "-x", "-n", "50", "reboot"), 32 * KIB),
    Source("failed-units", "units that failed", ("systemctl", "--failed", "--no-pager"), 64 * KIB),
    Source("nvidia-smi", "all GPUs", ("nvidia-smi", "-q"), MIB, seconds=30),
    Source("nvidia-topology", "how GPUs are linked", ("nvidia-smi", "topo", "-m"), seconds=20),
    Source(
        "nvidia-nvlink",
        "errors of NVLink",
        ("nvidia-smi", "nvlink", "-e"),
        seconds=20,
    ),
    Source(
        "fabricmanager",
        "the log of NVIDIA's fabric manager",
        ("/var/log/fabricmanager.log",),
        MIB,
        is_file=True,
        keep="end",
    ),
    Source("ibstat", "InfiniBand ports", ("ibstat",)),
    Source("ibv-devices", "RDMA devices", ("ibv_devinfo", "-v"), seconds=20),
    Source("rdma-links", "RDMA links", ("rdma", "link")),
    Source("ip-address", "addresses", ("ip", "address")),
    Source("ip-link", "links with counters", ("ip", "-d", "-s", "link")),
    Source("ip-route", "routes of all tables", ("ip", "route", "show", "table", "all")),
    Source("ip-rule", "rules of routing", ("ip", "rule")),
    Source(
        "ethtool",
        "network cards: settings, counters, cables",
        _shell(_ETHTOOL),
        2 * MIB,
        seconds=30,
        rights="parts",
        needs="ethtool",
    ),
    Source(
        "lspci",
        "GPUs and network cards on the bus",
        _shell(_LSPCI),
        MIB,
        seconds=20,
        rights="parts",
        needs="lspci",
    ),
    Source(
        "dmidecode",
        "serials and slots",
        ("dmidecode", "-t", "system,baseboard,chassis,bios,slot,memory"),
        rights="root",
    ),
    Source("lscpu", "processors", ("lscpu",), 64 * KIB),
    Source("memory", "memory", ("/proc/meminfo",), 16 * KIB, is_file=True),
    Source("chrony", "the clock", ("chronyc", "-n", "tracking"), 16 * KIB),
    Source("chrony-sources", "where the clock is from", ("chronyc", "-n", "sources", "-v")),
    Source(
        "ipmi-events",
        "events of the board's controller",
        ("ipmitool", "sel", "elist"),
        MIB,
        seconds=60,
        keep="end",
        rights="root",
    ),
)
LAST = Source(
    "nvidia-bug-report",
    "NVIDIA's own report",
    _shell(_BUG_REPORT),
    8 * MIB,
    seconds=180,
    rights="root",
    needs="nvidia-bug-report.sh",
    is_packed=True,
)
# What a bundle without names has to know. It is no part of the archive.
NAMES = Source(
    "names",
    "names that are replaced",
    _shell(
        "hostname; hostname -f; hostname -d; echo ==; id -un; "
        "awk -F: '$3 >= 1000 && $3 < 65534 {print $1}' /etc/passwd; echo ==; "
        "awk '/^(search|domain)/ {$1 = \"\"; print}' /etc/resolv.conf"
    ),
)


def sources_for(inventory: Inventory, names: bool) -> tuple[Source, ...]:
    """Return what the nodes are asked; with `names` also what is to be replaced."""
    paths = sorted({PROFILE, NCCL_CONF, *written_files(inventory)})
    files = [_settings_file(path) for path in paths]
    first = (NAMES,) if names else ()
    return (*first, *files, *SOURCES, LAST)


def _settings_file(path: str) -> Source:
    """Return a file that holds settings of NCCL, as apply writes them."""
    name = "file" + path.replace("/", "-")
    return Source(
        name,
        f"settings in {path}",
        (path,),
        64 * KIB,
        is_file=True,
        is_configuration=True,
    )


def of_node(sources: Iterable[Source], node: Node) -> tuple[Source, ...]:
    """Return the sources with configuration below the node's root, whose titles say so."""
    return tuple(_below_root(source, node) for source in sources)


def _below_root(source: Source, node: Node) -> Source:
    if not source.is_configuration or node.root == "/":
        return source
    (path,) = source.argv
    title = f"{source.title}, below the root {node.root}"
    return replace(source, title=title, argv=(under(node, path),))
