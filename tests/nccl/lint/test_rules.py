"""Lines as people post them, and what each rule says of them.

And lines of which none says anything.
"""

from __future__ import annotations

import pytest

from clusterprep.nccl.lint import Versions
from clusterprep.nccl.lint.read import read
from clusterprep.nccl.lint.rules import judge
from clusterprep.nccl.variables.variables import registry

UNKNOWN = Versions()
TORCH_2_6 = Versions((2, 21, 5), (2, 6, 0))


def said(text: str, dialect: str = "env-file", versions: Versions = UNKNOWN) -> list[str]:
    """«1 warning no_effect» for each remark."""
    return [
        f"{r.line} {r.severity} {r.check.removeprefix('env.')}"
        for r in judge(read(text, dialect), versions)
    ]


def words(text: str, dialect: str = "env-file", versions: Versions = UNKNOWN) -> str:
    return " | ".join(
        f"{r.message} {r.wanted} {r.remedy}" for r in judge(read(text, dialect), versions)
    )


# ---------------------------------------------------------------- nothing to say


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_DEBUG=INFO",
        "NCCL_DEBUG=warn",
        "NCCL_SOCKET_IFNAME=eth0",
        "NCCL_SOCKET_IFNAME==eth0",
        "NCCL_SOCKET_IFNAME=eth,ib0",
        "NCCL_SOCKET_IFNAME=^lo,docker0",
        "NCCL_SOCKET_IFNAME=^docker0,lo",
        "NCCL_SOCKET_IFNAME=^=lo,docker0",
        "NCCL_SOCKET_IFNAME=^l,docker",  # a prefix of lo
        "NCCL_IB_HCA=mlx5_0,mlx5_1:1",
        "NCCL_IB_HCA=^mlx5_bond_0",
        "NCCL_IB_HCA==mlx5_0:1,mlx5_3:1",
        "NCCL_IB_DISABLE=0",
        "NCCL_IB_DISABLE=false",  # 0, as meant
        "NCCL_IB_GID_INDEX=3",
        "NCCL_IB_TC=106",
        "NCCL_IB_TIMEOUT=22",
        "NCCL_IB_RETRY_CNT=7",
        "NCCL_IB_PCI_RELAXED_ORDERING=1",
        "NCCL_IB_QPS_PER_CONNECTION=4",
        "NCCL_BUFFSIZE=8388608",
        "NCCL_CROSS_NIC=0",
        "NCCL_NET_GDR_LEVEL=PIX",
        "NCCL_NET_GDR_LEVEL=5",
        "NCCL_P2P_LEVEL=NVL",
        "NCCL_P2P_DISABLE=0",
        "NCCL_NVLS_ENABLE=1",
        "NCCL_NTHREADS=512",
        "NCCL_SOCKET_NTHREADS=4\nNCCL_NSOCKS_PERTHREAD=4",
        "NCCL_SOCKET_NTHREADS=8\nNCCL_NSOCKS_PERTHREAD=8",  # exactly 64
        "NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=INIT,ENV,NET",
        "NCCL_DEBUG_SUBSYS=ALL",
        "NCCL_SOCKET_FAMILY=AF_INET",
        "NCCL_NET=IB",
        "NCCL_NET=AWS Libfabric",
        "NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml",
        "NCCL_DEBUG=",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "TORCH_NCCL_BLOCKING_WAIT=true",
        "TORCH_NCCL_USE_COMM_NONBLOCKING=maybe",  # only a warning in torch's log
        "TORCH_DISTRIBUTED_DEBUG=info",
        "GLOO_SOCKET_IFNAME=eth0",
        "GLOO_SOCKET_IFNAME=eth0,eth1",
        "OFI_NCCL_USE_IPV6_TCP=false",
        "OFI_NCCL_NET_LATENCY=0.5",
        "PET_STANDALONE=1",
        "NCCL_HOME=/usr/local/nccl",
        "NCCL_FASTRAK_CTRL_DEV=enp0s12",
        "FOO=bar",
        "TORCH_CUDA_ARCH_LIST=9.0",
        "TORCH_HOME=/scratch/torch",
        "TORCH_NUM_THREADS=8",
        "CUDA_HOME=/usr/local/cuda",
        "MASTER_HOST=n1",
        "CUDA_VISIBLE_DEVICES=0,1",
        "NCCL_IB_HCA=${HCA}",
        "RCCL_MSCCL_ENABLE=0",
        "CCL_LOG_LEVEL=info",
        "NCCL_DEBUG=INFO\nNCCL_DEBUG=INFO",
        "TORCH_HOME=/cache",
    ],
)
@pytest.mark.parametrize("dialect", ["env-file", "shell"])
def test_what_is_right_is_left_alone(line: str, dialect: str) -> None:
    text = (
        line
        if dialect == "env-file"
        else "\n".join(f"export {part!s}" for part in line.split("\n"))
    )
    quoted = text.replace("=AWS Libfabric", "='AWS Libfabric'") if dialect == "shell" else text
    assert [
        found for found in said(quoted, dialect) if "no_effect" not in found or "$" not in line
    ] == []


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NCCL_IB_DISABLE=true", "text means 0 0 or 1 write NCCL_IB_DISABLE=1"),
        ("NCCL_P2P_DISABLE=yes", "text means 0"),
        ("NCCL_SHM_DISABLE=on", "text means 0"),
        ("NCCL_IB_GID_INDEX=auto", "text means 0"),
        ("NCCL_BUFFSIZE=4M", "this means 4"),
        ("NCCL_BUFFSIZE=4M", "write NCCL_BUFFSIZE=4194304"),
        ("NCCL_BUFFSIZE=1MB", "write NCCL_BUFFSIZE=1048576"),
        ("NCCL_IB_TC=1.5", "this means 1"),
        ("NCCL_IB_TC=010", "octal: this means 8"),
        ("NCCL_IB_SL=08", "this means 0"),
        ("NCCL_IB_TC=256", "out of range"),
        ("NCCL_IB_SL=16", "out of range"),
        ("NCCL_IB_RETRY_CNT=8", "out of range"),
        ("NCCL_IB_QPS_PER_CONNECTION=129", "out of range"),
        ("NCCL_CROSS_NIC=3", "out of range"),
        ("NCCL_SOCKET_NTHREADS=17", "clamps it to 16"),
        ("NCCL_NTHREADS=100", "out of range"),
        ("NCCL_P2P_DISABLE=2", "only exactly 1"),
        ("NCCL_MAX_CTAS=65", "out of range"),
        ("NCCL_BUFFSIZE=99999999999999999999", "more than 64 bits"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=true", "RuntimeError"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=10m", "this means 10"),
        ("TORCH_NCCL_BLOCKING_WAIT=on", "RuntimeError"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=2", "RuntimeError"),
        ("PET_STANDALONE=true", "ValueError"),
        ("OFI_NCCL_USE_IPV6_TCP=yes", "aws-ofi-nccl does not start"),
        ("OFI_NCCL_EAGER_MAX_SIZE=8K", "aws-ofi-nccl does not start"),
        ("OFI_NCCL_PROTOCOL=", "empty value"),
    ],
)
def test_numbers_are_told_as_they_are_read(line: str, told: str) -> None:
    assert said(line) == ["1 warning no_effect"]
    assert told in words(line)


@pytest.mark.parametrize(
    "name", [n for n, e in registry().items() if "strtoll" in (e["on_invalid"] or "")]
)
def test_every_number_of_nccl_refuses_a_word(name: str) -> None:
    found = [
        remark
        for remark in judge(read(f"{name}=true\n", "env-file"), UNKNOWN)
        if "text means 0" in remark.message
    ]
    assert len(found) == (name != "NCCL_CTA_POLICY")


# ---------------------------------------------------------------- lists and words


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NCCL_SOCKET_IFNAME=^docker0", "write NCCL_SOCKET_IFNAME=^lo,docker0"),
        ("NCCL_SOCKET_IFNAME=^=docker0", "write NCCL_SOCKET_IFNAME=^=lo,docker0"),
        ("NCCL_SOCKET_IFNAME=^docker,br-,veth", "loopback comes first"),
        ("NCCL_SOCKET_IFNAME=^=l,docker0", "loopback comes first"),
        ("NCCL_SOCKET_IFNAME=eth0, eth1", "write NCCL_SOCKET_IFNAME=eth0,eth1"),
        ("NCCL_SOCKET_IFNAME=eth*", "write NCCL_SOCKET_IFNAME=eth"),
        ("NCCL_SOCKET_IFNAME=en[op]", "patterns match nothing"),
        ("NCCL_SOCKET_IFNAME=10.0.0.5", "not addresses"),
        ("NCCL_SOCKET_IFNAME=10.0.0.0/24", "not addresses"),
        ("NCCL_SOCKET_IFNAME=fe80::1", "not addresses"),
        ("NCCL_SOCKET_IFNAME=eth0;eth1", "write NCCL_SOCKET_IFNAME=eth0,eth1"),
        ("NCCL_SOCKET_IFNAME=eth0:eth1", "read as the number of a port"),
        ("NCCL_IB_HCA=mlx5_0:mlx5_1", "read as the number of a port"),
        ("NCCL_SOCKET_IFNAME=“eth0”", "word processors"),
        ("NCCL_SOCKET_IFNAME=!docker0", "^ leaves names out"),
        ("NCCL_SOCKET_IFNAME==eth0,=eth1", "write NCCL_SOCKET_IFNAME==eth0,eth1"),
        ("NCCL_SOCKET_IFNAME=^lo,^docker0", "write NCCL_SOCKET_IFNAME=^lo,docker0"),
        ("NCCL_SOCKET_IFNAME=e", "one character is ignored"),
        ("NCCL_SOCKET_IFNAME=averylonginterface0", "longer than a name can be"),
        ("NCCL_SOCKET_IFNAME=" + ",".join(f"eth{n}" for n in range(17)), "the first 16"),
        ("NCCL_IB_HCA=mlx5_0 mlx5_1", "a blank"),
        ("NCCL_IB_HCA=mlx5_*", "wildcards"),
        ("NCCL_IB_HCA=^mlx5_0,^mlx5_1", "write NCCL_IB_HCA=^mlx5_0,mlx5_1"),
        ("NCCL_IB_HCA=" + ",".join(f"mlx5_{n}" for n in range(33)), "the first 32"),
        ("GLOO_SOCKET_IFNAME=^lo,docker", "only whole names"),
        ("GLOO_SOCKET_IFNAME==eth0", "only whole names"),
        ("GLOO_SOCKET_IFNAME=eth*", "whole name"),
        ("TP_SOCKET_IFNAME=eth0,eth1", "takes one name"),
        ("NCCL_ALGO=Rings", "'Rings' is not known"),
        ("NCCL_PROTO=LL128,Simpel", "'Simpel' is not known"),
        ("TORCH_DISTRIBUTED_DEBUG=debug", "torch refuses"),
    ],
)
def test_what_cannot_be_meant_has_no_effect(line: str, told: str) -> None:
    assert "1 warning no_effect" in said(line)
    assert told in words(line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NCCL_SOCKET_IFNAME=lo", "a job on one node"),
        ("NCCL_SHM_DISABLE=2", "2 does nothing"),
        ("NCCL_DEBUG=debug", "says nothing at all"),
        ("NCCL_DEBUG=3", "says nothing at all"),
        ("NCCL_DEBUG=ERROR", "says nothing at all"),
        ("NCCL_P2P_LEVEL=nvl", "write NCCL_P2P_LEVEL=NVL"),
        ("NCCL_NET_GDR_LEVEL=6", "as 5, which is SYS"),
        ("NCCL_NET_GDR_LEVEL=pix", "does not know this distance"),
        ("NCCL_SOCKET_FAMILY=AF_inet", "write NCCL_SOCKET_FAMILY=AF_INET"),
        ("NCCL_SOCKET_FAMILY=IPv4", "ignored without a word"),
        ("NCCL_DEBUG_SUBSYS=INIT,NETWORK", "'NETWORK' is no subsystem"),
    ],
)
def test_a_word_that_nobody_knows_is_a_warning(line: str, told: str) -> None:
    assert said(line) == ["1 warning no_effect"]
    assert told in words(line)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("NCCL_SOCKET_IFNAMES=eth0", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_IFACE=eth0", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_DISABLED=1", "NCCL_IB_DISABLE"),
        ("NCCL_IB_GID_INDX=3", "NCCL_IB_GID_INDEX"),
        ("NCLL_DEBUG=INFO", "NCCL_DEBUG"),
        ("NCC_IB_HCA=mlx5_0", "NCCL_IB_HCA"),
        ("nccl_debug=INFO", "NCCL_DEBUG"),
        ("Nccl_Ib_Disable=1", "NCCL_IB_DISABLE"),
        ("TORCH_NCCL_BLOCKING_WAITS=1", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_IB-HCA=mlx5_0", "NCCL_IB_HCA"),
        ("GLOO_SOCKET_IFNAMES=eth0", "GLOO_SOCKET_IFNAME"),
        ("TORCH_DISTRIBUTED_DEBG=INFO", "TORCH_DISTRIBUTED_DEBUG"),
        ("CUDA_VISIBLE_DEVICE=0", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(line: str, near: str) -> None:
    found = judge(read(line, "env-file"), UNKNOWN)
    assert [(r.check, r.severity, r.wanted) for r in found] == [
        ("env.nccl_unknown", "warning", near)
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("NCCL_MNNVL_ENABLE=1\nNCCL_CUMEM_ENABLE=0\n", ["1 warning no_effect"]),
        ("NCCL_MNNVL_ENABLE=1\nNCCL_CUMEM_ENABLE=1\n", []),
        ("NCCL_MNNVL_ENABLE=2\nNCCL_CUMEM_ENABLE=0\n", []),
        ("NCCL_MNNVL_ENABLE=1\n", []),
    ],
)
def test_nvlink_between_nodes_needs_cumem(text: str, lines: list[str]) -> None:
    assert said(text) == lines


def test_a_name_like_no_other_is_unknown_all_the_same() -> None:
    assert said("NCCL_XYZZY_FROBNICATE=1") == ["1 warning nccl_unknown"]


@pytest.mark.parametrize(
    ("line", "versions", "expected", "told"),
    [
        ("NCCL_TREE_THRESHOLD=0", UNKNOWN, "error deprecated", "removed in NCCL 2.5"),
        ("NCCL_LL_THRESHOLD=0", UNKNOWN, "error deprecated", "NCCL_PROTO"),
        (
            "NCCL_NCCL_ALLOC_P2P_NET_LL_BUFFERS=1",
            TORCH_2_6,
            "error deprecated",
            "NCCL_ALLOC_P2P_NET_LL_BUFFERS",
        ),
        ("NCCL_CREATE_THREAD_CONTEXT=1", UNKNOWN, "warning deprecated", "version is not known"),
        ("NCCL_CREATE_THREAD_CONTEXT=1", TORCH_2_6, None, ""),
        (
            "NCCL_CREATE_THREAD_CONTEXT=1",
            Versions((2, 30, 7)),
            "error deprecated",
            "removed in NCCL 2.30.7",
        ),
        ("NCCL_BLOCKING_WAIT=1", UNKNOWN, "warning deprecated", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_BLOCKING_WAIT=1", TORCH_2_6, "warning deprecated", "renamed in torch 2.2"),
        ("NCCL_BLOCKING_WAIT=1", Versions(torch=(2, 1)), None, ""),
        (
            "TORCH_NCCL_BLOCKING_WAIT=1",
            Versions(torch=(2, 1)),
            "warning no_effect",
            "torch 2.1 ignores it",
        ),
        (
            "NCCL_ASYNC_ERROR_HANDLING=1",
            TORCH_2_6,
            "warning deprecated",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        ),
        ("NCCL_MIN_NCHANNELS=4", TORCH_2_6, "warning deprecated", "NCCL_MIN_CTAS"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE=2000", TORCH_2_6, None, ""),
        (
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
            Versions(torch=(2, 9)),
            "warning deprecated",
            "TORCH_FR_BUFFER_SIZE",
        ),
        ("NCCL_RAS_ENABLE=0", TORCH_2_6, "warning no_effect", "NCCL 2.21.5 ignores it"),
        ("NCCL_RAS_ENABLE=0", UNKNOWN, None, ""),
        ("NCCL_IB_GID_INDEX=3", TORCH_2_6, "warning deprecated", "from 2.21"),
        ("NCCL_IB_GID_INDEX=3", Versions((2, 20, 5)), None, ""),
        ("NCCL_VERSION=2.11.4-1", UNKNOWN, "warning no_effect", "label"),
    ],
)
def test_names_of_other_versions(
    line: str, versions: Versions, expected: str | None, told: str
) -> None:
    assert said(line, versions=versions) == ([] if expected is None else [f"1 {expected}"])
    assert told in words(line, versions=versions)


# ---------------------------------------------------------------- nccl.conf


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (" NCCL_DEBUG=INFO", "part of the name"),
        ("\tNCCL_DEBUG=INFO", "part of the name"),
        ("export NCCL_DEBUG=INFO", "no shell"),
        ("setenv NCCL_DEBUG=INFO", "no shell"),
        ("NCCL_DEBUG = INFO", "part of the name"),
        ("NCCL_DEBUG= INFO", "part of the value"),
        ("NCCL_DEBUG=INFO ", "part of the value"),
        ("NCCL_DEBUG=INFO # loud", "first column"),
        ('NCCL_SOCKET_IFNAME="eth0"', "part of the value"),
        ("NCCL_SOCKET_IFNAME='eth0'", "write NCCL_SOCKET_IFNAME=eth0"),
        ("NCCL_DEBUG_FILE=$HOME/nccl.log", "nothing is put in"),
        ("NCCL_TOPO_FILE=/" + "x" * 1023, "cuts it off"),
        ("NCCL_DEBUG INFO", "skips a line without ="),
        ("NCCL_DEBUG: INFO", "skips a line without ="),
        ("NCCL_IB_DISABLE = 0", "part of the name"),
        ('NCCL_IB_TC="106"', "quotes"),
        ("\ufeffNCCL_DEBUG=INFO", "mark"),
        ("NCCL_DEBUG=INFO\r\nNCCL_IB_TC=106\r", "carriage return"),
    ],
)
def test_a_file_of_nccls_is_no_shell(line: str, told: str) -> None:
    assert said(line, "nccl.conf") == ["1 error nccl_conf"]
    assert told in words(line, "nccl.conf")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "# NCCL_DEBUG INFO\n",
        " # indented = comment\n",
        "NCCL_DEBUG=INFO",
        "NCCL_IB_TC=106 ",  # white space behind a number is nothing to strtoll
        "NCCL_IB_TC=106 # lossless",
        "NCCL_IB_TC= 106",
        "NCCL_TOPO_FILE=/" + "x" * 1022,
        "[nccl]\nNCCL_DEBUG=INFO\n",
        "some words\n",
        "FI_PROVIDER=efa\n",
        "NCCL_SOCKET_IFNAME==eth0\n",
    ],
)
def test_what_nccl_reads_as_it_is_meant_is_right(text: str) -> None:
    assert said(text, "nccl.conf") == []


def test_carriage_returns_do_no_harm_from_2_30_on() -> None:
    assert said("NCCL_DEBUG=INFO\r\n", "nccl.conf", Versions((2, 30, 3))) == []
    assert said("NCCL_DEBUG=INFO\r\n", "nccl.conf", Versions((2, 29, 7))) == ["1 error nccl_conf"]


@pytest.mark.parametrize(
    "line",
    [
        "TORCH_NCCL_BLOCKING_WAIT=1",
        "GLOO_SOCKET_IFNAME=eth0",
        "MASTER_ADDR=n1",
        "MASTER_PORT=29500",
        "CUDA_VISIBLE_DEVICES=0",
        "NCCL_CONF_FILE=/x",
        "LD_LIBRARY_PATH=/x",
        "OMP_NUM_THREADS=8",
        "NCCL_TESTS_MIN_BW=5",
    ],
)
def test_what_others_read_has_no_effect_there(line: str) -> None:
    assert said(line, "nccl.conf") == ["1 warning no_effect"]
    assert "nccl.conf" in words(line, "nccl.conf")


def test_a_spoilt_line_is_judged_as_it_was_meant_too() -> None:
    assert said('export NCCL_IB_DISABLE="true"\n', "nccl.conf") == [
        "1 error nccl_conf",
        "1 warning no_effect",
    ]


# ---------------------------------------------------------------- together


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("NCCL_SOCKET_NTHREADS=8\nNCCL_NSOCKS_PERTHREAD=9", 2, "write NCCL_NSOCKS_PERTHREAD=8"),
        ("NCCL_NSOCKS_PERTHREAD=33\nNCCL_SOCKET_NTHREADS=2", 2, "more than 64"),
        ("NCCL_MIN_CTAS=32\nNCCL_MAX_CTAS=16", 2, "contradict"),
        ("NCCL_DEBUG=WARN\nNCCL_DEBUG_SUBSYS=NET", 2, "from INFO on"),
        ("NCCL_NET=Socket\nNCCL_IB_HCA=mlx5_0", 2, "RDMA off"),
        ("NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN", 1, "line 2 sets it to WARN"),
    ],
)
def test_lines_that_undo_each_other(text: str, line: int, told: str) -> None:
    assert said(text) == [f"{line} warning no_effect"]
    assert told in words(text)


def test_in_nccl_conf_the_first_of_two_wins() -> None:
    text = "NCCL_SOCKET_IFNAME=eth0\nNCCL_SOCKET_IFNAME=ib0\n"
    assert said(text, "nccl.conf") == ["2 warning no_effect"]
    assert "line 1 sets it to eth0" in words(text, "nccl.conf")
    assert "line 2 sets it to ib0" in words(text)
    assert said(" NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\n", "nccl.conf") == ["1 error nccl_conf"]


def test_rdma_wanted_and_switched_off() -> None:
    found = said("NCCL_NET=IB\nNCCL_IB_DISABLE=1\nNCCL_IB_HCA=mlx5_0\n")
    assert found == ["1 warning no_effect", "2 warning nccl_debug", "3 warning no_effect"]


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_P2P_DISABLE=1",
        "NCCL_SHM_DISABLE=1",
        "NCCL_IB_DISABLE=1",
        "NCCL_DEBUG=TRACE",
        "NCCL_ALGO=Ring",
        "NCCL_PROTO=^LL128",
        "NCCL_TOPO_DUMP_FILE=/tmp/t.xml",
        "NCCL_HOSTID=node",
        "NCCL_COMM_ID=10.0.0.1:4000",
        "NCCL_NVLS_ENABLE=0",
        "NCCL_NET_GDR_LEVEL=LOC",
        "NCCL_NET_GDR_LEVEL=0",
        "NCCL_P2P_LEVEL=LOC",
        "NCCL_IB_DISABLE=2",
        "TORCH_DISTRIBUTED_DEBUG=detail",
    ],
)
def test_what_a_search_for_a_fault_left_behind(line: str) -> None:
    assert said(line) == ["1 warning nccl_debug"]


# ---------------------------------------------------------------- shells and environment files


def test_a_setting_that_is_not_exported_reaches_nobody() -> None:
    assert said("NCCL_DEBUG=INFO\nNCCL_IB_TC=106\n", "shell") == ["1 warning no_effect"]
    assert "NCCL_IB_TC" in words("NCCL_DEBUG=INFO\nNCCL_IB_TC=106\n", "shell")
    assert said("set -a\nNCCL_DEBUG=INFO\n", "shell") == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('NCCL_DEBUG="INFO"', "docker's --env-file keeps the quotes"),
        ("export NCCL_DEBUG=INFO", "docker refuses"),
        ("NCCL_DEBUG =INFO", "docker refuses"),
        ("NCCL_DEBUG=INFO # loud", "no comment behind a value"),
        ("NCCL_DEBUG=$LEVEL", "nothing is put in"),
    ],
)
def test_an_environment_file_is_no_shell_either(line: str, told: str) -> None:
    assert said(line) == ["1 warning no_effect"]
    assert told in words(line)


# ---------------------------------------------------------------- what people post


POSTED = """\
# to be sourced before torchrun, put together from answers in forums
export NCCL_DEBUG=INFO
export NCCL_VERSION=2.11.4-1
export NCCL_SOCKET_IFNAME=^docker0
export NCCL_NSOCKS_PERTHREAD=8
export NCCL_SOCKET_NTHREADS=16
export NCCL_IB_DISABLE=True
export NCCL_BLOCKING_WAIT=1
export NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_TREE_THRESHOLD=0
export NCCL_LAUNCH_TIMEOUT=1800
export NCCL_IB_TIMEOUT=23
export OMP_NUM_THREADS=8
"""


def test_a_list_copied_from_forums() -> None:
    assert said(POSTED, "shell", TORCH_2_6) == [
        "3 warning no_effect",
        "4 warning no_effect",
        "6 warning no_effect",
        "7 warning no_effect",
        "8 warning deprecated",
        "9 warning deprecated",
        "10 error deprecated",
        "11 warning nccl_unknown",
    ]


# Settings that images of clouds and their guides bring, as they bring them (names and values are
# facts).
AZURE = (
    "NCCL_IB_PCI_RELAXED_ORDERING=1\n"
    "NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml\n"
    "NCCL_IGNORE_CPU_AFFINITY=1\n"
)
OCI = """\
export NCCL_CROSS_NIC=0
export NCCL_SOCKET_NTHREADS=16
export NCCL_CUMEM_ENABLE=0
export NCCL_IB_SPLIT_DATA_ON_QPS=0
export NCCL_IB_QPS_PER_CONNECTION=16
export NCCL_IB_GID_INDEX=3
export NCCL_IB_TC=41
export NCCL_IB_SL=0
export NCCL_IB_TIMEOUT=22
export NCCL_NET_PLUGIN=none
export NCCL_SOCKET_IFNAME=eth0
export NCCL_IGNORE_CPU_AFFINITY=1
export NCCL_IB_HCA="=mlx5_0,mlx5_1,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8"
"""
EFA = """\
FI_PROVIDER=efa
FI_EFA_USE_DEVICE_RDMA=1
FI_EFA_FORK_SAFE=1
NCCL_PROTO=simple
NCCL_SOCKET_IFNAME=^docker,lo
NCCL_DEBUG=INFO
LD_LIBRARY_PATH=/opt/amazon/efa/lib
"""
GCP = """\
NCCL_CROSS_NIC=0
NCCL_ALGO=Ring,Tree
NCCL_PROTO=Simple
NCCL_MIN_NCHANNELS=4
NCCL_DYNAMIC_CHUNK_SIZE=524288
NCCL_P2P_NET_CHUNKSIZE=524288
NCCL_P2P_PCI_CHUNKSIZE=524288
NCCL_P2P_NVL_CHUNKSIZE=1048576
NCCL_FASTRAK_NUM_FLOWS=2
NCCL_BUFFSIZE=8388608
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
NCCL_NET_GDR_LEVEL=PIX
NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING=0
"""
COMPOSE = """\
# two nodes of a workshop, given to docker by --env-file
NCCL_DEBUG="INFO"
NCCL_SOCKET_IFNAME=eno1 # the fast one
NCCL_IB_DISABLE=1
NCCL_P2P_DISABLE=1
GLOO_SOCKET_IFNAME=^lo,docker0
MASTER_ADDR=10.0.0.1
NCCL_TIMEOUT=1800
"""


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        pytest.param(AZURE, "nccl.conf", [], id="azure"),
        pytest.param(OCI, "shell", [], id="oci"),
        pytest.param(EFA, "env-file", ["4 warning nccl_debug"], id="efa"),
        pytest.param(
            GCP,
            "env-file",
            [
                "2 warning nccl_debug",
                "3 warning nccl_debug",
                "4 warning deprecated",
                "5 warning nccl_unknown",
            ],
            id="gcp",
        ),
        pytest.param(
            COMPOSE,
            "env-file",
            [
                "2 warning no_effect",
                "3 warning no_effect",
                "4 warning nccl_debug",
                "5 warning nccl_debug",
                "6 warning no_effect",
                "8 warning nccl_unknown",
            ],
            id="compose",
        ),
    ],
)
def test_what_clouds_and_forums_hand_out(text: str, dialect: str, expected: list[str]) -> None:
    assert said(text, dialect, Versions((2, 20, 5), (2, 4, 0))) == expected
