"""The table of bad versions: each entry names the releases it is about, and no others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterprep.checks.known_bad import NAMES, affected, table
from clusterprep.inventory.schema import validator
from clusterprep.model.known_bad import KnownBad, check_conditions, meets

# Entry -> releases that have the defect, and the next ones before and after that have not.
RELEASES = {
    "nccl-arm-proxy-wedge": ("2.28.9 2.29.2", "2.28.7 2.29.3 2.30.7"),
    "nccl-2.29.2-hang": ("2.29.2", "2.28.9 2.29.3"),
    "nccl-nvls-slots": ("2.29.7", "2.28.9 2.30.3"),
    "nccl-fp8-multicast-init": ("2.27.5 2.27.6", "2.27.3 2.27.7"),
    "nccl-static-cuda-error": ("2.28.3", "2.27.7 2.28.7"),
    "nccl-symmetric-small": ("2.27.3 2.27.7 2.28.3", "2.26.5 2.28.7"),
    "nccl-proxy-order": ("2.28.3 2.28.7", "2.27.7 2.28.9"),
    "nccl-avg-one-rank": ("2.27.5 2.28.9 2.29.3", "2.27.3 2.29.7"),
    "nccl-one-rank-leak": ("2.27.3 2.28.9", "2.26.5 2.29.2"),
    "nccl-mnnvl-alltoall": ("2.25.1 2.26.2 2.26.3", "2.24.3 2.26.5"),
    "nccl-geforce-blackwell": ("2.25.1", "2.24.3 2.26.2"),
    "nccl-before-blackwell": ("2.21.5 2.24.3", "2.25.1"),
    "nccl-hopper-tree-ll128": ("2.18.1", "2.17.1 2.18.3"),
    "nccl-nvls-dual-port": ("2.18.5 2.19.3", "2.18.3 2.20.3"),
    "nccl-2.19.4-slow": ("2.19.4", "2.19.3 2.20.3"),
    "nccl-alltoallv-self": ("2.19.1 2.19.3", "2.18.6 2.19.4"),
    "nccl-split-uds": ("2.20.3", "2.19.4 2.20.5"),
    "nccl-bootstrap-reorder": ("2.20.3 2.20.5", "2.19.4 2.21.5"),
    "nccl-socket-fin": ("2.14.3 2.16.5", "2.13.4 2.17.1"),
    "nccl-ll128-unaligned": ("2.12.12 2.15.1", "2.15.5"),
    "nccl-nvlink-down": ("2.10.3 2.11.4", "2.12.7"),
    "nccl-init-uninitialised": ("2.12.7 2.12.10", "2.11.4 2.12.12"),
    "nccl-cubemesh": ("2.9.8 2.9.9", "2.8.4 2.10.3"),
    "nccl-alltoallv-imbalance": ("2.7.8 2.8.3", "2.6.4 2.8.4"),
    "nccl-ga100": ("2.7.3 2.7.5", "2.6.4 2.7.6"),
    "nccl-protocol-mismatch": ("2.5.7 2.7.8", "2.8.3"),
    "nccl-cumem-host-docker": ("2.24.3 2.25.1 2.26.2", "2.23.4 2.26.3"),
    "nccl-graph-capture-slow": ("2.26.2", "2.25.1 2.26.3"),
    "nccl-plugin-path": ("2.27.3", "2.26.5 2.27.5"),
    "nccl-gh200-ll128": ("2.27.3 2.30.7", "2.26.5"),
    "torch-nonblocking-hang": ("2.7.0 2.7.0+cu126", "2.6.0+cu124 2.7.1"),
    "torch-2.5-socket-log": ("2.5.0 2.5.1+cu124", "2.4.1 2.6.0"),
    "torch-2.10-dtensor-leak": ("2.10.0+cu128", "2.9.1 2.11.0"),
    "torch-2.9-checkpoint-leak": ("2.9.0 2.9.1+cu128", "2.8.0 2.10.0"),
    "driver-525-gsp": ("525.60.13 525.85.12", "520.61.05 525.105.17"),
    "driver-510-gsp": ("510.47.03 510.108.03", "470.256.02 515.43.04"),
    "driver-535-process-list": (
        "535.43.02 535.54.03 535.86.05 535.86.10",
        "530.30.02 535.98 535.104.05",
    ),
    "driver-b200-66-days": ("570.133.20 580.105.08", "565.57.01 580.126.20"),
    "driver-560-p2p": ("560.35.05 565.57.01", "555.42.06 570.86.15"),
    "driver-570-a100": ("570.172.08", "570.158.01 570.195.03"),
    "fabricmanager-590-in-580": ("590.48.01", "580.126.09 595.71.05"),
    "fabricmanager-stall": ("580.82.07", "580.65.06 580.95.05"),
    "kernel-7.0.0-31-rdma": ("7.0.0.31", "7.0.0.30 7.0.0.32"),
    "kernel-7.0.0-1019-rdma": ("7.0.0.1019", "6.17.0.1032 7.0.0.31"),
    "ofi-1.9.0-libfabric": ("1.9.0", "1.7.4 1.9.1"),
    "ofi-libfabric-1.17": ("1.7.1 1.7.4", "1.7.0 1.8.0"),
    "ofi-1.18-broadcast": ("1.18.0 1.19.0", "1.17.3 1.20.0"),
    "ofi-1.17-nccl-2.28.9": ("1.17.0 1.17.3", "1.16.3 1.18.0"),
    "ofi-gb200-topology": ("1.17.3 1.18.0", "1.19.0"),
    "efa-before-1.29-nccl": ("1.22.1 1.28.0", "1.29.0 1.30.0"),
    "efa-before-1.29-kernel": ("1.22.1 1.28.0", "1.29.0 1.30.0"),
    "efa-1.35.0-slow": ("1.35.0", "1.34.0 1.36.0"),
    "efa-1.38.0-rocky9": ("1.38.0", "1.37.0 1.38.1"),
    "libfabric-1.13-efa": ("1.13.0", "1.12.1 1.13.1"),
    "toolkit-daemon-reload": ("1.13.5 1.17.8", "1.18.0"),
    "toolkit-1.14.0-config": ("1.14.0", "1.13.5 1.14.1"),
    "toolkit-1.17.4-compat": ("1.17.4", "1.17.3 1.17.5"),
    "toolkit-1.18-all-gpus": ("1.18.0 1.18.1", "1.17.8 1.18.2"),
    "cx7-dr4-link": ("28.38.1002 28.38.1900", "28.37.1014 28.39.1002"),
    "cx7-single-qp": ("28.39.3004 28.39.5050", "28.39.1002 28.40.1000 20.39.3004"),
    "cx7-xdr-leaf": ("28.47.1026 28.47.1088", "28.46.3048 28.48.1000"),
    "cx6-rxt-hang": ("20.34.1002", "20.33.1048 20.35.1012 28.34.1002"),
    "cuda-13.2-kaslr": ("13.2.0 13.2.1", "13.1.0 13.3.0"),
    "driver-595-2026-05": ("595.58.03", "595.71.05 580.105.08"),
    "driver-580-2026-05": ("580.65.06 580.105.08", "580.159.03 575.57.08"),
    "driver-575-2025-04": ("575.35.02", "575.51.02 575.57.08"),
    "driver-570-2026-01": ("570.86.15 570.195.03", "570.211.01 565.57.01"),
    "driver-550-2025-04": ("550.54.15 550.144.03", "550.163.01 545.23.08"),
    "driver-535-2026-05": ("535.183.01 535.288.01", "535.309.01 530.30.02"),
    "driver-525-2023-06": ("525.60.13 525.105.17", "525.125.06 520.61.05"),
    "driver-510-2022-05": ("510.47.03", "510.73.05 515.43.04"),
    "driver-460-2021-04": ("460.32.03", "460.73.01 470.256.02"),
    "toolkit-cve-2024-0132": ("1.14.3 1.16.1", "1.16.2 1.17.8"),
    "toolkit-cve-2024-0135": ("1.16.2 1.17.0", "1.17.1"),
    "toolkit-cve-2025-23359": ("1.17.0 1.17.3", "1.17.4"),
    "toolkit-cve-2025-23266": ("1.17.4 1.17.7", "1.17.8 1.18.0"),
}
# A value of each condition that meets none of those that ask for more, or for a word.
OTHERS = {
    "arch": "riscv64",
    "module": "neither",
    "os": "plan9 4",
    "cpu": "Z80",
    "gpu": "3.5",
    "uptime_days": "3.0",
    "nccl": "1.0",
    "driver": "100.10",
    "libfabric": "9.0",
    "kernel": "2.6",
}
# A value that meets a condition.
MET = {
    "gpu": {">=9.0": "9.0", "<10.0": "9.0", ">=10.0": "10.0", ">=12.0": "12.0"},
    "uptime_days": {">=50": "60.2"},
    "driver": {">=560": "560.35.05", "<590": "580.126.09"},
    "nccl": {">=2.26,<2.27": "2.26.2", ">=2.19": "2.20.5"},
    "libfabric": {"<1.18.2": "1.18.1", "<1.18": "1.17.0"},
    "os": {"rocky 9": "rocky 9.4"},
    "cpu": {"AMD": "AMD EPYC 7713 64-Core Processor"},
}


def other(name: str, condition: str) -> str:
    """A value that does not meet a condition."""
    return "9999.0" if condition.startswith("<") else OTHERS[name]


def met(entry: KnownBad) -> dict[str, tuple[str, ...]]:
    """What a node has that meets all conditions of an entry."""
    found = {}
    for name, condition in entry.when.items():
        plain = condition.removeprefix("==")
        found[name] = (MET.get(name, {}).get(condition, plain),)
    return found


@pytest.mark.parametrize("entry", table(), ids=lambda entry: entry.id)
def test_an_entry_names_the_releases_that_have_the_defect(entry: KnownBad) -> None:
    bad, good = (text.split() for text in RELEASES[entry.id])
    conditions = met(entry)
    for version in bad:
        assert affected(entry, {**conditions, entry.component: (version,)}) == (version,)
    for version in good:
        assert affected(entry, {**conditions, entry.component: (version,)}) == ()
    if entry.mended:
        assert affected(entry, {**conditions, entry.component: (entry.mended,)}) == ()


@pytest.mark.parametrize("entry", table(), ids=lambda entry: entry.id)
def test_an_entry_is_about_no_node_that_misses_a_condition(entry: KnownBad) -> None:
    version = RELEASES[entry.id][0].split()[0]
    found = {**met(entry), entry.component: (version,)}
    for name in entry.when:
        assert affected(entry, {**found, name: (other(name, entry.when[name]),)}) == ()
        without = {key: value for key, value in found.items() if key != name}
        assert affected(entry, without) == (), f"{name} is not known"


def test_one_of_several_gpus_is_enough() -> None:
    assert meets("gpu", ("8.0", "9.0"), ">=9.0")


def test_there_are_enough_entries_and_each_has_a_source() -> None:
    defects = [entry for entry in table() if not entry.is_security]
    assert len(defects) >= 40
    assert len({entry.id for entry in table()}) == len(table()) == len(RELEASES)
    assert {entry.component for entry in table()} == set(NAMES)


def test_the_table_is_as_its_schema_says() -> None:
    rows: list[Mapping[str, object]] = []
    for entry in table():
        check_conditions(entry)
        row = {
            key: getattr(entry, key)
            for key in ("id", "component", "versions", "effect", "symptom", "source", "mended")
        }
        rows.append({**row, "when": dict(entry.when), "severity": entry.severity})
    assert list(validator("known_bad").iter_errors(rows)) == []


def test_an_error_hangs_or_spoils_exactly_the_node_that_it_names() -> None:
    """A warning where it takes more than the versions: another setting, scale, or bad luck."""
    for entry in table():
        if entry.severity == "error":
            assert entry.effect in ("hang", "corruption", "crash")
            assert entry.when or entry.component == "aws-ofi-nccl"
