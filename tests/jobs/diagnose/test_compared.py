"""What the hosts of one log say of themselves is compared, and the one that differs is named."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose

TRUNCATED = (
    "a1:7:9 [0] bootstrap.cc:224 NCCL WARN Message truncated : received 1024 bytes instead of 256"
)
NO_PLUGIN = "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."
PLUGIN = "NCCL INFO Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
SILENT = "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600068 milliseconds before timing out."


def told(*texts: str) -> Diagnosis:
    lines = [line_of("train.log", number, text, number) for number, text in enumerate(texts, 1)]
    return diagnose(lines, {"train.log": len(texts)})


def said(host: str, text: str) -> str:
    return f"{host}:7:9 [0] {text}"


def ready(host: str, rank: int, nranks: int = 2) -> str:
    return said(
        host,
        f"NCCL INFO ncclCommInitRank comm 0x55a rank {rank} nranks {nranks} cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init COMPLETE",
    )


def first(*texts: str) -> tuple[str, str, str | None, float]:
    """Return name, severity, culprit and confidence of the first cause that is not benign."""
    for found in told(*texts).causes:
        if found.severity != "benign":
            return found.cause.name, found.severity, found.culprit, found.confidence
    return "", "", None, 0.0


def test_a_plug_in_on_one_of_two_hosts_is_told_even_if_nothing_fails_yet() -> None:
    lines = said("a1", NO_PLUGIN), said("b2", PLUGIN)
    assert first(*lines) == ("env_or_version_mismatch", "degraded", "hosts a1 and b2", 0.45)
    message = next(found.message for found in told(*lines).causes if found.severity != "benign")
    assert "the network plug-in of NCCL: none on a1, loaded on b2" in message
    hangs = first(*lines, SILENT)
    assert hangs[:3] == ("env_or_version_mismatch", "fatal", "hosts a1 and b2")
    assert hangs[3] == 0.75


def test_where_most_hosts_agree_the_odd_one_is_named() -> None:
    found = first(
        said("a1", "NCCL INFO NCCL version 2.21.5+cuda12.4"),
        said("b2", "NCCL INFO NCCL version 2.21.5+cuda12.4"),
        said("c3", "NCCL INFO NCCL version 2.18.3+cuda12.2"),
        TRUNCATED,
    )
    assert found == ("env_or_version_mismatch", "fatal", "host c3", 0.75)


def test_the_host_without_rdma_is_the_odd_one_of_two() -> None:
    lines = (
        said("a1", "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.9.0.1<0>"),
        said("a1", "NCCL INFO Using network IB"),
        said("b2", "NCCL INFO Using network Socket"),
        said("a1", "misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 3 != 4"),
    )
    assert first(*lines)[:3] == ("env_or_version_mismatch", "fatal", "host b2")


def test_lists_of_cards_are_told_as_they_differ() -> None:
    cards = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(8))
    lines = (
        said("a1", f"NCCL INFO NET/IB : Using {cards} [RO]; OOB eth0:10.9.0.1<0>"),
        said("b2", "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.9.0.2<0>"),
        TRUNCATED,
    )
    found = told(*lines).causes[0]
    assert found.cause.name == "env_or_version_mismatch"
    alone = told(*lines[:2], SILENT)
    notes = [each.message for each in alone.causes]
    assert any("8 (mlx5_0 to mlx5_7) on a1, 1 (mlx5_0) on b2" in message for message in notes)


def test_ports_of_infiniband_and_of_ethernet_do_not_meet() -> None:
    found = first(
        said("a1", "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.9.0.1<0>"),
        said("b2", "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.9.0.2<0>"),
        SILENT,
    )
    assert found == ("env_or_version_mismatch", "fatal", "hosts a1 and b2", 0.75)


def test_settings_that_must_be_equal_are_compared() -> None:
    algo = "NCCL INFO NCCL_ALGO set by environment to"
    lines = said("a1", f"{algo} Ring."), said("b2", f"{algo} Tree.")
    found = first(*lines, SILENT)
    assert found == ("env_or_version_mismatch", "fatal", "hosts a1 and b2", 0.75)
    assert "NCCL_ALGO: Ring on a1, Tree on b2" in told(*lines, SILENT).causes[0].message
    debug = "NCCL INFO NCCL_DEBUG set by environment to INFO."
    unset = first(lines[0], said("b2", debug), SILENT)
    assert unset[:3] == ("env_or_version_mismatch", "fatal", "hosts a1 and b2")


def test_networks_of_different_kinds_do_not_meet() -> None:
    found = first(
        said("a1", "NCCL INFO Bootstrap : Using eth0:10.9.0.1<0>"),
        said("b2", "NCCL INFO Bootstrap : Using eno2:192.168.4.2<0>"),
        said(
            "b2",
            "misc/socket.cc:484 NCCL WARN socketPollConnect: connect to 10.9.0.1<41000> returned Connection timed out, exceeded error retry count after 35 attempts",
        ),
    )
    assert found[:3] == ("virtual_interface_selected", "fatal", "hosts a1 and b2")
    assert found[3] == 0.75


def test_ranks_of_one_communicator_that_were_told_different_sizes() -> None:
    found = first(
        ready("a1", 0, nranks=2).replace("COMPLETE", "START"),
        ready("b2", 1, nranks=4).replace("COMPLETE", "START"),
    )
    assert found[0] == "world_size_mismatch"
    assert found[3] == 0.75


def test_gpudirect_that_one_host_lacks_names_the_host() -> None:
    lines = (
        said("a1", "NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
        said("b2", "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    )
    found = told(*lines).causes[0]
    assert (found.cause.name, found.severity) == ("gpudirect_rdma_missing", "degraded")
    assert "GPUDirect RDMA: Enabled on a1, Disabled on b2" in found.message


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((said("a1", NO_PLUGIN), said("b2", NO_PLUGIN), SILENT), id="equal"),
        pytest.param((said("a1", NO_PLUGIN), said("a1", PLUGIN), SILENT), id="one-host"),
        pytest.param(
            (
                said("a1", "NCCL INFO cudaDriverVersion 12040"),
                said("b2", "NCCL INFO cudaDriverVersion 12020"),
                ready("a1", 0),
                ready("b2", 1),
            ),
            id="drivers-that-work-together",
        ),
        pytest.param(
            (
                said("a1", "NCCL INFO NCCL version 2.21.5+cuda12.4"),
                said("b2", "NCCL INFO NCCL version 2.18.3+cuda12.2"),
                ready("a1", 0),
                ready("b2", 1),
            ),
            id="versions-that-worked-together",
        ),
        pytest.param(
            (
                said("a1", "NCCL INFO NCCL_IB_HCA set by environment to mlx5_0"),
                said("b2", "NCCL INFO NCCL_IB_HCA set by environment to mlx5_1"),
                said("a1", "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eno1"),
                said("b2", "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0"),
                SILENT,
            ),
            id="settings-that-may-differ",
        ),
        pytest.param(
            (
                said("a1", "NCCL INFO Bootstrap : Using eth0:10.9.0.1<0>"),
                said("b2", "NCCL INFO Bootstrap : Using eno2:10.9.0.2<0>"),
                SILENT,
            ),
            id="names-of-interfaces",
        ),
    ],
)
def test_what_is_equal_or_may_differ_is_no_cause(lines: tuple[str, ...]) -> None:
    names = {found.cause.name for found in told(*lines).causes}
    assert names.isdisjoint({"env_or_version_mismatch", "virtual_interface_selected"})


def test_what_two_ends_disagree_about_makes_every_difference_likely() -> None:
    found = told(
        said("a1", "NCCL INFO cudaDriverVersion 12040"),
        said("b2", "NCCL INFO cudaDriverVersion 12020"),
        TRUNCATED,
    ).causes[0]
    assert found.cause.name == "env_or_version_mismatch"
    assert "the CUDA version of the driver: 12.4 on a1, 12.2 on b2" in found.message


def test_torch_of_different_versions() -> None:
    found = first(
        "[a1:77:0:77] PyTorch version: 2.6.0+cu124",
        "[b2:77:0:77] PyTorch version: 2.5.1+cu124",
        TRUNCATED,
    )
    assert found[:3] == ("env_or_version_mismatch", "fatal", "hosts a1 and b2")


def test_ranks_are_named_where_no_host_is_known() -> None:
    found = first(
        "[rank0]: NCCL version 2.18.1+cuda12.1",
        "[rank4]: NCCL version 2.21.5+cuda12.4",
        "[rank5]: NCCL version 2.21.5+cuda12.4",
        SILENT,
    )
    assert found[:3] == ("env_or_version_mismatch", "fatal", "rank 0")


def test_odd_lists_are_read_without_a_fault() -> None:
    none = [said("a1", "NCCL INFO NET/IB : Using [0]odd_0 [RO]"), said("b2", PLUGIN), TRUNCATED]
    assert told(*none).causes
    many = [
        said(f"n{number}", f"NCCL INFO NCCL_ALGO set by environment to a{number}")
        for number in range(9)
    ]
    assert first(*many, SILENT)[0] != "env_or_version_mismatch"


def test_tensors_that_do_not_fit_are_no_matter_of_drivers() -> None:
    found = told(
        said("a1", "NCCL INFO cudaDriverVersion 12040"),
        said("b2", "NCCL INFO cudaDriverVersion 12020"),
        "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for fc.weight",
    )
    assert "env_or_version_mismatch" not in {each.cause.name for each in found.causes}


def test_the_version_that_old_torch_garbles_is_no_difference() -> None:
    found = first(
        "[rank0]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:47, unhandled system error, NCCL version 21.0.3",
        said("b2", "NCCL INFO NCCL version 2.10.3+cuda11.3"),
        SILENT,
    )
    assert found[0] != "env_or_version_mismatch"


def told_by_files(**files: str) -> Diagnosis:
    lines = []
    for name, text in files.items():
        for number, row in enumerate(text.split("\n"), 1):
            lines.append(line_of(f"{name}.log", number, row, len(lines)))
    return diagnose(lines)


def test_files_stand_for_nodes_where_lines_name_no_host() -> None:
    found = told_by_files(
        node0=f"NCCL version 2.21.5+cuda12.4\n{TRUNCATED.removeprefix('a1:7:9 [0] ')}",
        node1="NCCL version 2.18.3+cuda12.2",
        node2="NCCL version 2.21.5+cuda12.4",
    ).causes[0]
    assert (found.cause.name, found.culprit) == ("env_or_version_mismatch", "file node1.log")


def test_a_file_of_one_host_is_that_host() -> None:
    found = told_by_files(
        node0=f"NCCL version 2.21.5+cuda12.4\n{TRUNCATED}",
        node1="NCCL version 2.18.3+cuda12.2\n" + said("b2", "NCCL INFO cudaDriverVersion 12040"),
    ).causes[0]
    assert (found.cause.name, found.culprit) == ("env_or_version_mismatch", "hosts a1 and b2")


SETTING = said("a1", "NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.")
CARDS = (
    said("a1", "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB e0:10.9.0.1<0>"),
    said("b2", "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB e0:10.9.0.2<0>"),
)


def test_hosts_that_worked_together_are_not_compared_for_a_later_failure() -> None:
    together = (*CARDS, SETTING, ready("a1", 0), ready("b2", 1))
    assert first(*together)[0] == ""
    later = first(*together, "RuntimeError: the loss is not a number")
    assert later[0] != "env_or_version_mismatch"


def test_hosts_that_each_worked_alone_did_not_work_together() -> None:
    alone = (ready("a1", 0), ready("b2", 0).replace("0xabc", "0xdef"))
    versions = (
        said("a1", "NCCL INFO NCCL version 2.21.5+cuda12.4"),
        said("b2", "NCCL INFO NCCL version 2.18.3+cuda12.2"),
    )
    assert first(*versions, *alone, SILENT)[:2] == ("env_or_version_mismatch", "fatal")
