"""Queue pairs, completions, GIDs and devices of InfiniBand and RoCE: which cause, between which two ends."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.jobs.diagnose.test_fabric import grave, told

WARN = "n1:1:2 [0] transport/net_ib.cc:1296 NCCL WARN"
GOT = f"{WARN} NET/IB : Got completion from peer 10.2.0.5<33092> with"


def modify(error: str, local: str = "::ffff:10.4.2.11", remote: str = "::ffff:10.4.2.60") -> str:
    return (
        f"{WARN} Call to ibv_modify_qp failed with {error}, on dev mlx5_0:1, curr state INIT, next state RTR, "
        f"local GID index 3, local GID {local}, remote GID {remote}\n"
    )


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(f"{GOT} error 12, opcode 0, len 0, vendor err 129 (Recv)\n", "ib_fabric_unreachable fatal 0.75 link n1 - 10.2.0.5", id="12"),
        pytest.param(f"{WARN} NET/IBP:Got completion from peer 10.2.0.5<33092> with status=12 opcode=32698 len=32696 vendor err 129 (Send)\n", "ib_fabric_unreachable fatal 0.75 link n1 - 10.2.0.5", id="12-of-a-plug-in"),
        pytest.param(f"{GOT} status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129\n", "ib_fabric_unreachable fatal 0.75 link n1 - 10.2.0.5", id="12-in-words"),
        pytest.param(f"{GOT} status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:29.87.4.221 remoteGids::ffff:29.87.88.182\n", "ib_fabric_unreachable fatal 0.75 link n1 - 10.2.0.5", id="12-of-routed-subnets"),
        pytest.param(f"{GOT} status=12 opcode=1 len=0 vendor err 129 (Send) localGid fe80::eaeb:d3ff:fe01:2 remoteGids::ffff:29.87.88.182\n", "roce_gid_index fatal 0.95 link n1 - 10.2.0.5", id="12-with-a-link-local-gid"),
        pytest.param(f"{GOT} error 13, opcode 0, len 0, vendor err 135\n", "ib_fabric_unreachable fatal 0.45 link n1 - 10.2.0.5", id="13"),
        pytest.param(f"{GOT} status=5 opcode=0 len=1 vendor err 244 (Recv)\n", "ib_fabric_unreachable fatal 0.45 link n1 - 10.2.0.5", id="5"),
        pytest.param(f"{GOT} status=4 opcode=0 len=0 vendor err 81\n", "p2p_acs_iommu fatal 0.45 host n1", id="4"),
        pytest.param("NET/IB : Got completion from peer 10.5.0.34<33956> with error 5, opcode 0, len 1, vendor err 244 (Recv) localGid ::ffff:10.6.0.35 remoteGid ::ffff:10.5.0.34\n", "ib_fabric_unreachable fatal 0.45 link 10.5.0.34 - 10.6.0.35", id="own-end-by-its-gid"),
        pytest.param(f"{WARN} NET/IB : Got completion with error 12, opcode 0, len 32633, vendor err 129\n", "ib_fabric_unreachable fatal 0.75 host n1", id="12-without-peer"),
        pytest.param(f"{WARN} NET/IB : Got async event : local catastrophic error\n", "ib_fabric_unreachable fatal 0.95 host n1", id="catastrophic"),
        pytest.param(f"{WARN} NET/IB : mlx5_0:1 Got async event : local access violation work queue error\n", "ib_fabric_unreachable fatal 0.45 host n1", id="access-violation"),
        pytest.param(f"{WARN} NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): invalid request local work queue error\n", "ib_fabric_unreachable fatal 0.45 HCA mlx5_1 on n1", id="event-of-a-queue-pair"),
        pytest.param(f"{WARN} NET/IB : mlx5_1:1 async fatal event: local catastrophic error\n", "ib_fabric_unreachable fatal 0.95 HCA mlx5_1", id="event-of-the-card"),
        pytest.param(f"{WARN} NET/IB : Got async event : client reregistration\n", "", id="event-of-the-subnet-manager"),
        pytest.param("ibv_reg_dmabuf_mr (retain) failed: Invalid argument\nibv_reg_mr(gpu) failed: Bad address\n", "gpudirect_rdma_missing fatal 0.95 None", id="memory-of-the-gpu"),
        pytest.param(f"{WARN} NET/IB: Device 1 marked as failed. Initiating recovery? Yes (send comm=0x7f, outstandingRecovery=1)\n", "ib_fabric_unreachable degraded 0.75 host n1", id="port-fails-over"),
        pytest.param(f"{WARN} NET/IB : Can't connect net devices with different link_layer. i=0 remMeta.ndevs=1 link_layer=1 rem_link_layer=2\n", "env_or_version_mismatch fatal 0.75 host n1", id="link-layers"),
    ],
)  # fmt: skip
def test_each_completion_has_a_cause_and_two_ends(log: str, expected: str) -> None:
    assert told(log) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(modify("110 Connection timed out"), "ib_fabric_unreachable fatal 0.75 HCA mlx5_0", id="110"),
        pytest.param(modify("110 Connection timed out", remote="::ffff:10.4.3.60"), "rail_cross_nic fatal 0.75 HCA mlx5_0 to remote GID ::ffff:10.4.3.60", id="110-other-rail"),
        pytest.param(modify("113 No route to host", remote="::ffff:10.4.3.60"), "rail_cross_nic fatal 0.75 HCA mlx5_0 to remote GID ::ffff:10.4.3.60", id="113-other-rail"),
        pytest.param(modify("113 No route to host"), "roce_gid_index fatal 0.75 HCA mlx5_0", id="113"),
        pytest.param(modify("101 Network is unreachable"), "roce_gid_index fatal 0.75 HCA mlx5_0", id="101"),
        pytest.param(modify("61 No data available", local="::"), "roce_gid_index fatal 0.95 HCA mlx5_0", id="61-empty-gid"),
        pytest.param(f"{WARN} Call to ibv_modify_qp failed with 61 No data available,\non dev rocep1s0f0:1\n", "roce_gid_index fatal 0.95 host n1", id="61-in-two-lines"),
        pytest.param(modify("22 Invalid argument", local="fe80::eaeb:d3ff:fe01:2"), "roce_gid_index fatal 0.95 HCA mlx5_0", id="22-link-local"),
        pytest.param(modify("22 Invalid argument"), "roce_gid_index fatal 0.75 HCA mlx5_0", id="22"),
        pytest.param(modify("19 No such device"), "roce_gid_index fatal 0.75 HCA mlx5_0", id="19"),
        pytest.param("ibv_modify_qp failed (errno 19) (Ib failure: No such device)\n", "roce_gid_index fatal 0.75 None", id="19-mscclpp"),
        pytest.param("[1665104310.200076] [n1:39047:0]  dc_mlx5.c:456  UCX  ERROR ibv_modify_qp(DCI, RTR) failed : Invalid argument\n", "ib_fabric_unreachable fatal 0.45 host n1", id="ucx-22"),
    ],
)  # fmt: skip
def test_each_error_of_a_queue_pair_has_a_cause(log: str, expected: str) -> None:
    assert told(log) == expected


def test_an_end_that_no_other_reaches_is_named() -> None:
    log = f"{GOT} error 12, opcode 0, len 0, vendor err 129\n"
    assert told(log + log.replace("n1:1:2", "n3:1:2").replace("len 0", "len 9")) == (
        "ib_fabric_unreachable fatal 0.75 peer 10.2.0.5"
    )


def test_an_end_that_reaches_no_other_is_named() -> None:
    log = f"{GOT} error 12, opcode 0, len 0, vendor err 129\n"
    assert (
        told(log + log.replace("10.2.0.5", "10.2.0.9"))
        == "ib_fabric_unreachable fatal 0.75 host n1"
    )


def test_both_directions_of_a_link_are_one_where_addresses_have_hosts() -> None:
    log = (
        "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.2.0.4<0>\n"
        "n2:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.2.0.5<0>\n"
        f"{GOT} error 12, opcode 0, len 0, vendor err 129\n"
    )
    other = f"{GOT} error 12, opcode 0, len 0, vendor err 129\n".replace("n1:", "n2:").replace(
        "0.5<", "0.4<"
    )
    assert told(log + other) == "ib_fabric_unreachable fatal 0.75 link n1 - n2"


def test_cards_without_gpudirect_are_those_of_a_host() -> None:
    lines = [f"n1:1:2 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA {i} 'mlx5_{i}'\n" for i in range(3)]  # fmt: skip
    assert told("".join(lines)) == "gpudirect_rdma_missing degraded 0.95 host n1"


def test_a_device_that_cannot_be_opened_is_named_with_its_host() -> None:
    log = "n1:1:2 [0] NCCL WARN NET/IB : Unable to open device erdma_1\n"
    assert told(log) == "rdma_device_not_in_container degraded 0.95 HCA erdma_1 on n1"


@pytest.mark.parametrize("status", ["status=9", "status=IBV_WC_REM_ACCESS_ERR(10)", "status=11"])
def test_what_the_other_end_refused_may_have_several_causes(status: str) -> None:
    found = grave(f"{GOT} {status} opcode=0 len=0 vendor err 138 (Send)\n")
    assert all(cause.confidence < 0.5 for cause in found)
    culprits = [cause.culprit for cause in found if cause.cause.name == "ib_fabric_unreachable"]
    assert culprits == ["link n1 - 10.2.0.5"]


def test_a_machine_without_cards_is_not_one_whose_cards_are_missing() -> None:
    log = (
        "n1:1:2 [1] NCCL INFO NET/IB : No device found.\n"
        "n1:1:2 [1] NCCL INFO NET/IB : Using [RO]; OOB eno1:10.201.24.89<0>\n"
        "n1:1:2 [1] NCCL INFO Using network Socket\n"
    )
    assert grave(log) == []
    other = "n2:1:2 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.201.24.90<0>\n"
    assert told(log + other) == "rdma_device_not_in_container degraded 0.75 host n1"


def test_drivers_of_cards_that_the_host_has_not_are_no_failure() -> None:
    log = (
        "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.2.0.4<0>\n"
        "libibverbs: Warning: couldn't load driver 'librxe-rdmav34.so': cannot open shared object file\n"
    )
    assert grave(log) == []


@pytest.mark.parametrize("text", ["Remote access", "Remote QP", "Local protection", "Receive-no-ready retry count exceeded"])  # fmt: skip
def test_errors_of_ucx_name_the_card_and_prove_nothing(text: str) -> None:
    log = f"[n1:6807 :0:6807] ib_mlx5_log.c:177  {text} on mlx5_3:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)\n"
    assert told(log) == "ib_fabric_unreachable fatal 0.45 HCA mlx5_3 on n1"


DOWN = "[ 77.000000] mlx5_core 0000:3b:00.0 ib0: Link down\n"
UP = "[ 79.000000] mlx5_core 0000:3b:00.0 ib0: Link up\n"
UNPLUGGED = "[ 12.000000] mlx5_core 0000:5e:00.1: Port module event: module 1, Cable unplugged\n"
CHANGED = f"{WARN} NET/IB : mlx5_0:1 GID table changed\n"
FAILS = f"{GOT} error 12, opcode 0, len 0, vendor err 129\n"


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(DOWN + UP, id="a-link-that-came-back"),
        pytest.param(UNPLUGGED, id="a-port-that-is-not-used"),
        pytest.param(CHANGED, id="a-table-that-changed"),
    ],
)
def test_events_of_cards_are_no_failure_where_rdma_works(log: str) -> None:
    assert grave(log) == []


def test_a_link_that_stays_down_may_be_one() -> None:
    assert (
        told(DOWN + UP + DOWN.replace("77", "90"))
        == "ib_fabric_unreachable fatal 0.45 interface ib0"
    )


@pytest.mark.parametrize("event", [DOWN, DOWN + UP, UNPLUGGED])
def test_where_rdma_fails_events_of_cards_belong_to_it(event: str) -> None:
    found = grave(event + FAILS)
    assert [cause.cause.name for cause in found] == ["ib_fabric_unreachable"]
    assert len(found[0].lines) > 1


@pytest.mark.parametrize(
    "changed",
    [
        "NET/IB : mlx5_0:1 GID table changed",
        "NET/IB : mlx5_0:1 Got async event : GID table change",
        "NET/IB : mlx5_0:1 Got non-fatal async event: GID table change(18)",
    ],
)
def test_a_gid_table_that_changed_before_rdma_failed_is_a_hint(changed: str) -> None:
    causes = grave(f"{WARN} {changed}\n" + FAILS)
    assert [cause.cause.name for cause in causes] == ["ib_fabric_unreachable", "roce_gid_index"]
    assert causes[1].culprit == "HCA mlx5_0"


def test_what_was_flushed_says_nothing_beside_what_failed() -> None:
    flushed = f"{GOT} status=5 opcode=0 len=1 vendor err 249 (Recv)\n"
    assert [cause.cause.name for cause in grave(flushed + f"{GOT} error 4, opcode 0, vendor err 81\n")] == ["p2p_acs_iommu"]  # fmt: skip
    (found,) = grave(flushed + f"{GOT} error 12, opcode 0, vendor err 129\n")
    assert [line.number for line in found.lines] == [2]
