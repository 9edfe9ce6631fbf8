"""Errors of EFA and libfabric: filtered packets, peers that ended, locked memory, versions, no provider."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.jobs.diagnose.test_fabric import grave, told

PLUGIN = "ip-10-0-1-7:35:89 [5] process_err_completion:1723 NCCL WARN NET/OFI"
ENDS = "My EFA addr: fi_addr_efa://[fe80::13:c2ff:fe6f:f03d]:0:1072 My host id: i-0db7083f3fcbebb65 Peer EFA addr: fi_addr_efa://[fe80::b8:aff:fe44:425]:0:9476 Peer host id: i-0ce6d3d57139f053c"


def completion(text: str, number: int, request: str = "Request 0x7f") -> str:
    return f"{PLUGIN} {request} completed with error. RC: 103. Flags: 1. Error: {number} ({text} {ENDS}). Completed length: 0\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(completion("Unreachable remote (never received a response)", 15), "firewall_blocked_port fatal 0.75 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="unreachable"),
        pytest.param(completion("Unreachable remote - never received a response", 15), "firewall_blocked_port fatal 0.75 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="unreachable-2.6"),
        pytest.param(f"{PLUGIN} Request 0x7f completed with error. RC: 20. Error: unknown error. Completed length: 0\n", "firewall_blocked_port fatal 0.75 None", id="no-answer-to-old-libfabric"),
        pytest.param("* This error indicates that the security group on either this instance or the peer instance\n", "firewall_blocked_port fatal 0.95 None", id="says-security-group"),
        pytest.param("libfabric:35:1668::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 113, message: Unreachable remote (never received a response) " + ENDS + " (15)\n", "firewall_blocked_port fatal 0.75 peer i-0ce6d3d57139f053c", id="libfabric-itself"),
        pytest.param(completion("Unresponsive receiver. This error is typically caused by a peer hardware failure or incorrect inbound/outbound rules in the security group", 13), "firewall_blocked_port fatal 0.45 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="unresponsive-1.18"),
        pytest.param(completion("RTM size mismatch", 4115), "env_or_version_mismatch fatal 0.75 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="sizes"),
        pytest.param(completion("Invalid packet type received when zero copy recv mode is ON", 4125), "env_or_version_mismatch fatal 0.75 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="packet-type"),
        pytest.param(completion("Remote feature mismatch", 18), "env_or_version_mismatch fatal 0.75 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="feature"),
        pytest.param(completion("Invalid address", 7), "efa_provider fatal 0.45 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="bad-registration"),
        pytest.param(completion("Unresponsive receiver (connection previously established)", 4124), "ib_fabric_unreachable fatal 0.45 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="peer-that-was-there"),
        pytest.param(completion("Destination resource not ready (no work queue entries posted on receive queue)", 10), "ib_fabric_unreachable fatal 0.45 peer i-0ce6d3d57139f053c as seen from ip-10-0-1-7", id="receiver-not-ready"),
        pytest.param(f"{PLUGIN} Unable to register memory (type = 1) for device 0. RC: 12, Error: Cannot allocate memory\n", "memlock_limit fatal 0.75 host ip-10-0-1-7", id="memory"),
        pytest.param(f"{PLUGIN} Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate memory\n", "memlock_limit fatal 0.75 host ip-10-0-1-7", id="memory-endpoint"),
        pytest.param("Libfabric error: (-12) Cannot allocate memory\nEFA internal error: (4112) Failure to post internal receive buffers\n", "memlock_limit fatal 0.75 None", id="memory-aborts"),
        pytest.param("libfabric:718892:1658904526::efa:mr:efa_mr_regattr():632<warn> Unable to register MR: Cannot allocate memory\n", "memlock_limit fatal 0.75 None", id="memory-libfabric"),
        pytest.param(f"{PLUGIN} Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument\n", "efa_provider fatal 0.75 host ip-10-0-1-7", id="other-registration"),
        pytest.param(f"{PLUGIN} EFA provider requires at least libfabric version 1.22.0.\n", "env_or_version_mismatch fatal 0.95 host ip-10-0-1-7", id="too-old"),
        pytest.param("n1:1:1 [0] NCCL INFO NET/Plugin: dlopen failed: /opt/amazon/efa/lib/libfabric.so.1: version `FABRIC_1.8' not found (required by /opt/lib/libnccl-net.so)\n", "env_or_version_mismatch fatal 0.95 host n1", id="symbol-version"),
        pytest.param(f"{PLUGIN} Unexpected number of remote rails for dev 0. Expected 4 but got 1\n", "env_or_version_mismatch fatal 0.75 host ip-10-0-1-7", id="rails"),
        pytest.param("As a result, the Libfabric EFA provider is operating in\na condition that could result in memory corruption or\n", "efa_provider fatal 0.75 None", id="fork"),
        pytest.param(f"{PLUGIN} GDR disabled on GDR-supported instance type p5.48xlarge\n", "gpudirect_rdma_missing degraded 0.95 host ip-10-0-1-7", id="no-gdr"),
        pytest.param("libfabric:462:1673041636:efa:core:rxr_info_to_rxr():506<warn> FI_HMEM capability requires RDMA, which this device does not support.\n", "", id="card-without-rdma"),
        pytest.param(f"{PLUGIN} Unable to set NCCL_TOPO_FILE\n", "", id="topology-not-set"),
        pytest.param(f"{PLUGIN} Closing send_comm 0x7f with inflight requests. Invalidating domain\n", "", id="closing"),
        pytest.param(f"{PLUGIN} Unable to free request of listen communicator.\n", "", id="freeing"),
        pytest.param(f"{PLUGIN} Error deregistering memory region for addr 0x7f (ctrl)\n", "", id="deregistering"),
        pytest.param(f"{PLUGIN} Call to receive_progress failed: 5\n", "efa_provider fatal 0.45 host ip-10-0-1-7", id="progress"),
        pytest.param(f"{PLUGIN} Couldn't open AV. RC: -22, ERROR: Invalid argument\n", "efa_provider fatal 0.75 host ip-10-0-1-7", id="opening"),
    ],
)  # fmt: skip
def test_each_error_of_efa_has_a_cause_of_its_own(log: str, expected: str) -> None:
    assert told(log) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Flushed during queue pair destroy",
        "Bad queue pair (QP) number (QP does not exist or is in error state)",
        "Invalid receiver queue pair number (QPN). This error is typically caused by a crashed peer.",
        "Connection was reset by remote peer",
        "Receiver connection aborted",
        "Operation aborted because the peer closed its memory registration or endpoint mid-transfer",
        "Unresponsive receiver (reachable by EFA device but handshake failed)",
    ],
)
def test_a_peer_that_ended_is_not_the_cause(text: str) -> None:
    assert told(completion(text, 9)) == ""


def test_a_peer_that_ended_leaves_the_cause_to_the_rank_that_ended() -> None:
    log = completion("Connection was reset by remote peer", 8)
    log += "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has\n"
    assert told(log) == "rank_gpu_oom fatal 0.95 rank 3"


FALLS_BACK = """\
n1:22:572 [1] nccl_net_ofi_create_plugin:204 NCCL WARN NET/OFI Failed to initialize sendrecv protocol
n1:22:572 [1] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl initialization failed
n1:22:572 [1] NCCL INFO NET/IB : No device found.
n1:22:572 [1] NCCL INFO NET/Socket : Using [0]eth0:192.168.60.235<0>
n1:22:572 [1] NCCL INFO Using network Socket
"""


NO_DEVICE = "libfabric:85:1747438790::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list\n"


@pytest.mark.parametrize("before", ["", NO_DEVICE])
def test_a_host_without_efa_that_goes_on_with_sockets_is_no_failure(before: str) -> None:
    assert grave(before + FALLS_BACK) == []


def test_without_the_line_about_sockets_it_is_a_failure() -> None:
    log = "".join(FALLS_BACK.splitlines(keepends=True)[:2])
    assert told(log) == "efa_provider fatal 0.75 host n1"


@pytest.mark.parametrize(
    "wish",
    [
        "n1:22:572 [1] NCCL INFO NCCL_NET set by environment to AWS Libfabric",
        "n2:22:572 [1] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)",
    ],
)
def test_where_efa_is_wanted_sockets_are_slow(wish: str) -> None:
    assert told(f"{wish}\n{FALLS_BACK}") == "efa_provider degraded 0.75 host n1"


SELECTED = "n1:22:572 [1] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)\n"


def test_a_provider_that_is_found_at_the_second_try_is_no_failure() -> None:
    assert grave(NO_DEVICE + SELECTED) == []
    assert told(SELECTED + NO_DEVICE) == "efa_provider fatal 0.95 None"


def test_other_providers_of_libfabric_are_of_no_matter() -> None:
    assert grave(NO_DEVICE.replace("provider efa", "provider psm3")) == []
