"""The reader of packet filters: it looks before it asks, and says why where it may not know."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="takes root, for chroot and for network namespaces"
    ),
]
nft = pytest.mark.skipif(
    not (shutil.which("nft") and shutil.which("unshare")), reason="needs nft and unshare"
)

ASK = """
import json, os, sys
from clusterprep.remote.agent import firewall, look
firewall.install(None)
job = json.loads(sys.argv[1])
import pwd, _json
if job.get("root"):
    os.chroot(job["root"])
    os.chdir("/")
if job.get("uid"):
    os.setuid(job["uid"])
print(json.dumps(look.answer("firewall", [])))
"""


def ask(*before: str, **job: Any) -> Any:
    argv = [*before, sys.executable, "-c", ASK, json.dumps(job)]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def inside(root: Path, files: dict[str, str]) -> Any:
    """The answer of a machine that has these files, and no tool at all."""
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return ask(root=str(root))


LOADED = "ib_uverbs 163840 2 rdma_ucm,mlx5_ib, Live 0x0000000000000000\n"
BUILT_IN = f"/lib/modules/{os.uname().release}/modules.builtin"
NONE = ["ok", dict.fromkeys(("nft", "iptables", "legacy", "ip6tables", "legacy6"))]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"/proc/modules": LOADED}, NONE, id="no-filter-is-loaded"),
        pytest.param(
            {"/proc/modules": LOADED, BUILT_IN: "kernel/fs/ext4/ext4.ko\n"}, NONE, id="nor-built-in"
        ),
        pytest.param(
            {
                "/proc/modules": LOADED + "iptable_nat 16384 1 - Live 0x0\n",
                "/proc/net/ip_tables_names": "nat\n",
            },
            NONE,
            id="addresses-are-translated-and-nothing-is-filtered",
        ),
        pytest.param(
            {"/proc/modules": "nf_tables 356352 9 - Live 0x0\n"}, "nft", id="nft-is-loaded"
        ),
        pytest.param(
            {"/proc/modules": LOADED, BUILT_IN: "kernel/net/netfilter/nf_tables.ko\n"},
            "nft",
            id="nft-is-built-in",
        ),
        pytest.param({"/etc/hostname": "n1"}, "nft", id="a-kernel-that-does-not-tell"),
        pytest.param(
            {"/proc/modules": LOADED + "iptable_filter 16384 1 - Live 0x0\n"},
            "iptables-save",
            id="iptables",
        ),
        pytest.param(
            {"/proc/modules": LOADED, "/proc/net/ip_tables_names": "nat\nfilter\n"},
            "iptables-save",
            id="by-its-tables",
        ),
        pytest.param(
            {"/proc/modules": LOADED, "/proc/net/ip6_tables_names": "filter\n"},
            "ip6tables-save",
            id="ip6tables-by-its-tables",
        ),
        pytest.param(
            {"/proc/modules": LOADED + "ip6table_filter 16384 1 - Live 0x0\n"},
            "ip6tables-save",
            id="ip6tables",
        ),
    ],
)
def test_tools_are_asked_only_where_the_kernel_filters_already(
    tmp_path: Path, files: Any, expected: Any
) -> None:
    """Asking would load the filters; a tool that is not there is then said to be missing."""
    wanted = (
        expected
        if isinstance(expected, list)
        else ["no", "missing_tool", f"{expected} is not there"]
    )
    assert inside(tmp_path, files) == wanted


def with_filter(folder: Path, rules: str = "", **job: Any) -> Any:
    """The answer from a network namespace whose input chain has these rules."""
    script = folder / "rules"
    script.write_text(
        "table inet filter {\n  chain input {\n"
        "    type filter hook input priority 0; policy drop;\n"
        f"{rules}\n  }}\n}}\n"
    )
    return ask("unshare", "-n", "sh", "-c", f'nft -f {script} && exec "$0" "$@"', **job)


@nft
def test_rules_come_home_as_nft_lists_them(tmp_path: Path) -> None:
    answer = with_filter(tmp_path)
    assert answer[0] == "ok"
    assert answer[1]["legacy"] is None
    chains = [item["chain"] for item in json.loads(answer[1]["nft"])["nftables"] if "chain" in item]
    assert [(chain["hook"], chain["policy"]) for chain in chains] == [("input", "drop")]


@nft
def test_a_user_who_is_not_root_is_denied_the_firewall(tmp_path: Path) -> None:
    assert with_filter(tmp_path, uid=65534)[:2] == ["no", "denied"]


@nft
def test_more_than_travels_home_is_not_cut(tmp_path: Path) -> None:
    rules = "\n".join(f"tcp dport {port} accept" for port in range(1, 2500))
    assert with_filter(tmp_path, rules)[:2] == ["no", "truncated"]
