"""Addresses and names that cannot work, and what connections say about the hosts at both ends."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.dialled import kind_of, private_network_of
from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose
from clusterprep.jobs.diagnose.redact import Redactor, redacted

CLIENT = "[c10d] The client socket has failed to connect to"


def told(*texts: str, file: str = "train.log") -> Diagnosis:
    lines = [line_of(file, number, text, number) for number, text in enumerate(texts, 1)]
    return diagnose(lines, {file: len(texts)})


def first(*texts: str) -> tuple[str, str | None, float]:
    """Return the name, the culprit and the confidence of the first cause."""
    causes = told(*texts).causes
    if not causes:
        return "", None, 0.0
    return causes[0].cause.name, causes[0].culprit, causes[0].confidence


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("10.9.0.7", ""),
        ("8.8.8.8", ""),
        ("n1.cluster", ""),
        ("255.255.0.0", "netmask"),
        ("::ffff:255.255.255.0", "netmask"),
        ("255.255.255.255", "broadcast"),
        ("0.0.0.5", "number"),
        ("::ffff:0.104.99.143", "number"),
        ("0.0.0.0", ""),
        ("224.0.0.1", "multicast"),
        ("127.0.1.1", "loopback"),
        ("::1", "loopback"),
        ("169.254.3.7", "link-local"),
        ("fe80::1:2%eth0", "link-local"),
        ("172.17.0.1", "docker0"),
        ("172.17.0.4", "bridge"),
        ("172.19.0.4", "bridge"),
        ("192.168.122.9", "bridge"),
        ("172.18.21.4", ""),
    ],
)
def test_addresses_have_kinds(address: str, kind: str) -> None:
    assert kind_of(address) == kind


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.9.0.1", "10.0.0.0/8"),
        ("172.31.4.1", "172.16.0.0/12"),
        ("192.168.4.2", "192.168.0.0/16"),
        ("100.64.0.1", "100.64.0.0/10"),
        ("8.8.8.8", ""),
        ("999.1.1.1", ""),
        ("fe80::1", ""),
    ],
)
def test_private_networks(address: str, network: str) -> None:
    assert private_network_of(address) == network


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        pytest.param(
            [
                f"[W socket.cpp:663] {CLIENT} [::ffff:255.255.0.0]:29500 (errno: 110 - Connection timed out).",
                f"[W socket.cpp:663] {CLIENT} 255.255.0.0:29500 (errno: 110 - Connection timed out).",
            ],
            "address 255.255.0.0",
            id="netmask",
        ),
        pytest.param(
            [
                f"[W socket.cpp:558] {CLIENT} [::ffff:0.0.0.7]:40323 (errno: 110 - Connection timed out).",
                f"[E socket.cpp:610] {CLIENT} any network address of (07, 40323).",
            ],
            "address 07",
            id="number-and-its-name",
        ),
        pytest.param(
            [
                f"[W socket.cpp:558] {CLIENT} 0.104.99.143:47389 (errno: 110 - Connection timed out).",
            ],
            "address 0.104.99.143",
            id="number-alone",
        ),
        pytest.param(
            [
                "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (255.255.255.255, 29500).",
            ],
            "address 255.255.255.255",
            id="broadcast",
        ),
        pytest.param(
            [
                "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (gpu-01, 0).",
            ],
            "address gpu-01:0",
            id="port-0",
        ),
    ],
)
def test_an_address_that_no_host_can_have_is_a_wrong_setting(
    lines: list[str], culprit: str
) -> None:
    assert first(*lines) == ("rendezvous_misconfigured", culprit, 0.95)


def test_a_name_of_digits_has_no_interface_for_gloo() -> None:
    line = "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:212] ifa != nullptr. Unable to find interface for: [0.0.0.189]"
    assert first(line)[:2] == ("hostname_unresolvable", "address 0.0.0.189")


def test_a_pattern_is_no_name_for_gloo() -> None:
    line = "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ^lo,docker0"
    name, culprit, confidence = first(line)
    assert (name, culprit, confidence) == (
        "socket_ifname_not_found",
        "variable GLOO_SOCKET_IFNAME",
        0.95,
    )
    assert "no patterns" in told(line).causes[0].message


def test_gloos_ends_of_different_families() -> None:
    line = "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 10 vs 2"
    assert first(line) == ("ipv6_ipv4_mismatch", None, 0.95)


def test_a_rank_that_publishes_loopback_is_named() -> None:
    found = first(
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215",
        "ERROR failed to connect, willRetry=0, retry=3, retryLimit=3, rank=8, size=16, local=[127.0.0.1]:5, remote=[127.0.0.1]:14215, error=SO_ERROR: Connection refused",
    )
    assert found == ("loopback_hostname_resolution", "rank 8", 0.75)


def test_lo_in_use_names_the_interface() -> None:
    found = first(
        "n1:7:9 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>",
        "n1:7:9 [0] NCCL INFO NET : Using interface eth0:10.9.0.1<0>",
        "n1:7:9 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused",
    )
    assert found == ("loopback_hostname_resolution", "interface lo (127.0.0.1)", 0.95)


@pytest.mark.parametrize(
    "line",
    [
        "[n1][[38971,1],2][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to 172.17.0.1 failed: Connection refused (111)",
        "  Message: connect() to 172.17.0.1:1024 failed",
        "n1:7:9 [0] NCCL WARN socketPollConnect: connect to 172.17.0.1<40001> returned Connection refused, exceeded error retry count after 35 attempts",
    ],
)
def test_the_address_of_docker0_names_docker0(line: str) -> None:
    assert first(line)[:2] == ("virtual_interface_selected", "interface docker0 (172.17.0.1)")


def test_an_alias_of_avahi_is_link_local_even_with_its_address_left_out() -> None:
    found = first(
        "n1:7:7 [0] NCCL INFO Bootstrap : Using eno1:avahi:xxx.xxx.xxx.xxx<0>",
        "misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to xxx failed : Software caused connection abort",
    )
    assert found == ("virtual_interface_selected", "interface eno1:avahi", 0.95)


def test_the_kind_of_refusal_decides() -> None:
    """No route is a filter's answer; refused is the answer of a host whose server is not there."""
    no_route = first(
        "ps-8:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 192.168.1.9<54263> failed : No route to"
    )
    assert no_route == ("firewall_blocked_port", "peer 192.168.1.9 as seen from ps-8", 0.75)
    silent = first(
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500)."
    )
    assert silent[::2] == ("firewall_blocked_port", 0.45)
    refused = told(
        f"[W socket.cpp:697] {CLIENT} [n1]:29500 (errno: 111 - Connection refused).",
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500).",
    )
    assert refused.causes[0].cause.name == "rendezvous_incomplete"
    assert refused.causes[0].confidence == 0.75
    assert "n1 refused" in refused.causes[0].message


def test_a_connection_that_nccl_gave_up_says_not_why() -> None:
    line = "MCCL WARN socketStartConnect: Connect to 10.3.44.2<56159> failed : Software caused connection abort"
    name, culprit, confidence = first(line)
    assert (name, culprit) == ("firewall_blocked_port", None)
    assert confidence < 0.5
    assert "or" in told(line).causes[0].message
    known = "n7:1:2 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.3.44.2<56159> failed : Software caused connection abort"
    assert first(known)[1] == "peer 10.3.44.2 as seen from n7"


def test_a_host_whose_connect_times_out_is_named_where_no_peer_is() -> None:
    found = first(
        "gpu-3:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out"
    )
    assert found == ("firewall_blocked_port", "host gpu-3", 0.75)


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        pytest.param(
            [
                "[W715 20:00:39.842901446 socket.cpp:752] [c10d] The IPv6 network addresses of ([2605:340::1540], 59699) cannot be retrieved (gai error: -2 - Name or service not known).",
            ],
            "name [2605:340::1540]",
            id="an-address-in-brackets-is-taken-for-a-name",
        ),
        pytest.param(
            [
                "nslookup: can't resolve '(null)': Name does not resolve",
                "nslookup: can't resolve 'job-9-master-0': Name does not resolve",
                "waiting for master",
                "Traceback (most recent call last):",
                "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",
            ],
            "name job-9-master-0",
            id="nslookup",
        ),
        pytest.param(
            ["** server can't find job-9-master-0: NXDOMAIN", "Traceback (most recent call last):"],
            "name job-9-master-0",
            id="nslookup-of-bind",
        ),
        pytest.param(
            ["dial tcp: lookup job-9-master-0 on 10.96.0.10:53: no such host"],
            "name job-9-master-0",
            id="go",
        ),
    ],
)
def test_names_that_have_no_address(lines: list[str], culprit: str) -> None:
    name, got, confidence = first(*lines)
    assert (name, got) == ("hostname_unresolvable", culprit)
    assert confidence >= 0.6


def test_a_container_that_waited_for_the_name_and_went_on_is_no_failure() -> None:
    diagnosis = told(
        "nslookup: can't resolve 'job-9-master-0': Name does not resolve",
        "waiting for master",
        "Name: job-9-master-0",
        "step 100 loss 2.1",
    )
    assert not diagnosis.causes


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        (
            "n1:1:2 [0] NCCL WARN socketBind: bind to 10.9.0.1<29555> failed : Address already in use",
            "port 29555 on n1",
        ),
        (
            "address. The server socket has failed to bind to [::]:29600 (errno: 98 - Address",
            "port 29600",
        ),
    ],
)
def test_a_taken_port_is_named_with_its_host(line: str, culprit: str) -> None:
    assert first(line)[:2] == ("port_in_use", culprit)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        pytest.param(
            [
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -99, name: EADDRNOTAVAIL, message: address not available"
            ],
            "rendezvous_misconfigured",
            id="the-master-address-is-of-another-host",
        ),
        pytest.param(
            [
                "n1:213:213 [0] include/socket.h:333 NCCL WARN Call to bind failed : Cannot assign requested address"
            ],
            "rendezvous_misconfigured",
            id="bind-to-an-address-of-another-host",
        ),
        pytest.param(
            [
                "ConnectionError: Unable to connect to GCS at 10.9.0.1:6379. Check that (1) Ray GCS with matching version started successfully",
            ],
            "rendezvous_incomplete",
            id="ray-head",
        ),
        pytest.param(
            [
                "grpc_message: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:3128: HTTP proxy returned response code 403"
            ],
            "rendezvous_misconfigured",
            id="proxy",
        ),
        pytest.param(
            [
                "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This",
                "  Message:    connect() to 10.9.0.7:1024 failed",
                "  Error:      No route to host (113)",
            ],
            "firewall_blocked_port",
            id="open-mpi-no-route",
        ),
        pytest.param(
            [
                "WARNING: An invalid value was given for btl_tcp_if_include.  This",
                "  Value:      eth9",
            ],
            "socket_ifname_not_found",
            id="open-mpi-interface",
        ),
        pytest.param(
            ["ValueError: host not found: Name or service not known"],
            "hostname_unresolvable",
            id="torch-before-1.9",
        ),
    ],
)
def test_other_programs_say_the_same(lines: list[str], cause: str) -> None:
    assert first(*lines)[0] == cause


def test_open_mpis_unexpected_addresses_are_a_wrong_interface() -> None:
    name, culprit, _ = first(
        "Open MPI detected an inbound MPI TCP connection request from a peer",
        "that appears to be part of this MPI job (i.e., it identified itself as",
        "  Source IP of socket: 10.249.5.171",
        "  Known IPs of peer:",
    )
    assert (name, culprit) == ("virtual_interface_selected", "peer 10.249.5.171")


def test_a_closed_rendezvous_says_not_why() -> None:
    name, _, confidence = first(
        "    raise RendezvousClosedError()",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    )
    assert name in {"", "rendezvous_misconfigured", "rendezvous_incomplete"}
    assert confidence < 0.5


def test_the_endpoint_that_torchrun_was_given_is_named() -> None:
    found = first(
        "  rdzv_backend     : c10d",
        "  rdzv_endpoint    : 10.28.1.16:29400",
        '    "message": "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",',
    )
    assert found == ("rendezvous_misconfigured", "address 10.28.1.16:29400", 0.75)


def test_ssh_that_gets_no_answer_is_filtered() -> None:
    found = first("ssh: connect to host gpu-7 port 22: No route to host")
    assert found == ("firewall_blocked_port", "peer gpu-7", 0.75)


def test_a_store_that_answers_wrongly_is_another_server() -> None:
    found = first(
        "[W1229 12:47:08.489869130 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 127.0.0.1:30325 - retrying (try=0, timeout=600000ms, delay=385ms): Ping failed, invalid value returned from server. Expected: 297731, Got: 68681728"
    )
    assert found == ("port_in_use", "port 30325", 0.75)


def test_rays_first_attempts_are_no_failure() -> None:
    attempt = "[2026-03-01 22:48:01,851 W 6578 6578] rpc_client.h:153: Failed to connect to GCS at address 10.9.0.1:6379 within 5 seconds."
    assert not told(attempt, "step 100 loss 2.1").causes
    assert first(attempt, attempt, attempt)[:2] == (
        "rendezvous_incomplete",
        "address 10.9.0.1:6379",
    )
    gave_up = "Timed out while waiting for GCS to become available."
    assert first(attempt, gave_up)[::2] == ("rendezvous_incomplete", 0.75)


def test_a_coordinator_that_refuses_may_have_ended() -> None:
    line = "[rank0] :UNAVAILABLE:failed to connect to all addresses; last error: UNKNOWN: ipv4:10.186.213.145:13305: Failed to connect to remote host: Connection refused"
    assert first(line) == ("rendezvous_incomplete", "address 10.186.213.145:13305", 0.45)
    silent = line.replace("Connection refused", "Connection timed out")
    assert first(silent)[:2] == ("firewall_blocked_port", "peer 10.186.213.145")


def test_a_host_without_a_name() -> None:
    line = "RuntimeError: GlooDeviceFactory::makeUVDevice(): interface or hostname can't be empty"
    assert first(line)[::2] == ("hostname_unresolvable", 0.75)


def test_etcd_that_is_not_there() -> None:
    line = "etcd.EtcdException: No more machines in the cluster"
    assert first(line)[::2] == ("rendezvous_misconfigured", 0.75)


def test_the_rank_that_does_not_wait_at_the_barrier_is_missing() -> None:
    waiting = "INFO:root:Waiting in store based barrier to initialize process group for rank: {rank}, key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
    ended = "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
    lines = [waiting.format(rank=rank) for rank in (0, 3, 1)]
    assert first(*lines, ended) == ("rendezvous_incomplete", "rank 2", 0.75)
    assert first(*lines) == ("rendezvous_incomplete", "rank 2", 0.45)
    not_all_are_known = first(lines[0], ended)
    assert not_all_are_known == ("rendezvous_incomplete", None, 0.75)


def test_a_master_that_refuses_has_not_started() -> None:
    line = "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (n1, 29500). The client socket has failed to connect to n1:29500 (errno: 111 - Connection refused)."
    assert first(line) == ("rendezvous_incomplete", "address n1:29500", 0.75)
    silent = line.replace("111 - Connection refused", "110 - Connection timed out")
    assert first(silent)[:2] == ("firewall_blocked_port", "peer n1")


@pytest.mark.parametrize(
    "line",
    [
        "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).",
        "OverflowError: bind(): port must be 0-65535.",
        "OverflowError: getsockaddrarg: port must be 0-65535.",
    ],
)
def test_ports_that_cannot_be_opened(line: str) -> None:
    assert first(line)[0] == "rendezvous_misconfigured"


def test_what_refused_means_is_told() -> None:
    line = "n4:51:52 [1] include/socket.h:395 NCCL WARN Net : Connect to 10.9.0.7<41001> failed : Connection refused"
    assert "has ended or listens elsewhere" in told(line).causes[0].message


INVALID = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1.internal]:22456 (errno: 22 - Invalid argument)."


def test_an_ipv6_address_that_the_kernel_refuses_is_no_failure_if_the_job_goes_on() -> None:
    went_on = told(INVALID, INVALID, "Initted", "step 1 loss 2.0")
    assert [found.cause.name for found in went_on.causes] == ["benign_ipv6_fallback"]
    unknown = first(INVALID, INVALID)
    assert unknown == ("hostname_unresolvable", "name n1.internal", 0.45)
    failed = first(
        INVALID,
        "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to (n1.internal, 22456).",
    )
    assert failed == ("hostname_unresolvable", "name n1.internal", 0.75)


def test_nodes_that_vllm_and_ray_know_by_different_addresses() -> None:
    unique = "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['a', 'b'] and 3 unique IP addresses {'10.9.0.1', '10.9.0.2', '192.168.4.1'}."
    assert first(unique)[::2] == ("rendezvous_misconfigured", 0.95)
    unknown = "(autoscaler +7s) Error: No available node types can fulfill resource request {'GPU': 1.0, 'node:192.168.50.192': 0.001}. Add suitable node types to this cluster to resolve this issue."
    assert first(unknown) == ("rendezvous_misconfigured", "address 192.168.50.192", 0.45)


def test_open_mpis_daemons_that_cannot_connect() -> None:
    found = first(
        "A process or daemon was unable to complete a TCP connection",
        "to another process:",
        "  Local host:    hpc-mn101",
        "  Remote host:   192.168.0.4",
        "This is usually caused by a firewall on the remote host. Please",
    )
    assert found == ("firewall_blocked_port", "peer 192.168.0.4", 0.75)


@pytest.mark.parametrize(
    "line",
    [
        "ssh: connect to host {} port 22: Connection refused",
        "root@{}: Permission denied (publickey,password).",
        "RuntimeError: Using hostfile at h but host={} was not reachable via ssh.",
        "nslookup: can't resolve '{}': Name does not resolve",
        "** server can't find {}: NXDOMAIN",
        "dial tcp: lookup {} on 10.96.0.10:53: no such host",
        "This process on node {} was started with:",
        "[W socket.cpp:697] [c10d] The client socket has failed to connect to [{}]:29500 (errno: 113 - No route to host).",
        "  rdzv_endpoint    : {}:29400",
        "+ torchrun --nnodes=2 --node_rank=0 --master_addr={} --master_port=29500 train.py",
        "  Remote host:   {}",
    ],
)
def test_names_in_these_lines_are_replaced_for_posting(line: str) -> None:
    text = line.format("gpunode-x9")
    end = "Traceback (most recent call last):\nRuntimeError: gave up"
    lines = [
        line_of("a.log", number, row, number)
        for number, row in enumerate([text, *end.split("\n")], 1)
    ]
    diagnosis = redacted(diagnose(lines, {"a.log": len(lines)}), ())
    redactor = Redactor(())
    redactor.learn(text)
    told_texts = [redactor.text(text), *(found.message for found in diagnosis.causes)]
    told_texts += [found.culprit or "" for found in diagnosis.causes]
    assert "gpunode" not in "\n".join(told_texts)


def test_port_0_of_this_very_host_is_what_standalone_writes() -> None:
    line = "[E1129 16:03:43.648139853 socket.cpp:1028] [c10d] The client socket has timed out after 60000ms while trying to connect to ({host}, 0)."
    assert first(line.replace("{host}", "localhost"))[::2] == ("rendezvous_incomplete", 0.75)
    assert first(line.replace("{host}", "n1"))[::2] == ("rendezvous_misconfigured", 0.95)
