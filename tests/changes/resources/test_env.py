"""The environment's files, read back by those who read them: sh, bash, NCCL's rules, Slurm's."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.env import (
    BEGIN,
    END,
    HEAD,
    RESOURCE,
    Values,
    containers_conf,
    env_file,
    format_of,
    nccl_conf,
    pam_file,
    profile,
    task_prolog,
    unit_drop_in,
    without_block,
    without_pam_block,
)
from clusterprep.errors import InputError
from clusterprep.facts.env_files import (
    ENV_FILE,
    FILES,
    PAM_FILE,
    PODMAN_CONF,
    TARGETS,
    written_files,
)
from clusterprep.model import EnvValue, Fleet, Inventory, Node
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment
from clusterprep.remote.agent.pam import parse_environment

AWKWARD = {
    "PLAIN": "eth0",
    "EXACT": "=eth1",
    "BLANKS": "  a  b ",
    "SINGLE": "it's",
    "DOUBLE": 'say "hi"',
    "DOLLAR": "$HOME ${PATH} $(id)",
    "TICKS": "`id`",
    "BACKSLASH": r"C:\new\table \\ \0",
    "SIGNS": "a;b|c&d>e<f!g*h?i[j]{k}~l#m",
    "PERCENT": "%s %d %%",
    "DASH": "-n",
    "EMPTY": "",
    "WORDS": "größer — 机器",
}  # fmt: skip
TEXT = st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=30)
FOREIGN_LINES = [
    b"", b"# ours, not yours", b"NCCL_IB_TC=106", b"NCCL_SOCKET_IFNAME=eth9",
    b" NCCL_X = 1", b"export NCCL_Y=1",
    b"# END clusterprep", b"# BEGIN something else", b"\xff\xfe", b"\xef\xbb\xbfNCCL_BOM=1",
]  # fmt: skip
ANY_LINE = st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))
FOREIGN = st.builds(
    lambda lines, end, ends: end.join(lines) + (end if ends else b""),
    st.lists(st.one_of(st.sampled_from(FOREIGN_LINES), ANY_LINE), max_size=6),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)


def values(**named: str) -> Values:
    return {name: EnvValue(name, value, ("n1",), "why") for name, value in named.items()}


def names() -> Any:
    return st.sampled_from(
        ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG", "NCCL_IB_TC", "GLOO_SOCKET_IFNAME"]
    )


OURS = st.dictionaries(names(), TEXT, max_size=4).map(lambda named: values(**named))


# ---------------------------------------------------------------- profile.d

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "busybox") if shutil.which(shell)]


def sourced(
    shell: str, text: bytes, wanted: dict[str, str], **environment: str
) -> dict[str, str | None]:
    """The variables after a strict shell has sourced the text.

    None for one that is not in its environment.
    """
    show = "".join(f'printf "%s\\0" "${{{name}-UNSET}}"\n' for name in wanted)
    argv = [shell, "sh", "-euc"] if shell == "busybox" else [shell, "-euc"]
    script = ". /dev/stdin\n" + f"exec sh -c '{show}'"
    done = subprocess.run(
        [*argv, script],
        input=text,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    found = done.stdout.decode().split("\0")[:-1]
    return {
        name: None if value == "UNSET" else value for name, value in zip(wanted, found, strict=True)
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_reads_back_every_value(shell: str) -> None:
    assert sourced(shell, profile(values(**AWKWARD), None), AWKWARD) == AWKWARD


@settings(deadline=None, max_examples=20)
@given(st.lists(TEXT, min_size=20, max_size=60))
def test_no_value_can_mean_anything_but_itself(texts: list[str]) -> None:
    named = {f"V{number}": text for number, text in enumerate(texts)}
    assert sourced("sh", profile(values(**named), None), named) == named


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        pytest.param(
            {}, {"CUDA_VISIBLE_DEVICES": "6,7", "NPROC_PER_NODE": "2"}, id="outside-slurm"
        ),
        pytest.param(
            {"SLURM_JOB_ID": "17"},
            {"CUDA_VISIBLE_DEVICES": None, "NPROC_PER_NODE": None},
            id="in-a-job",
        ),
        pytest.param(
            {"SLURM_JOB_ID": ""},
            {"CUDA_VISIBLE_DEVICES": None, "NPROC_PER_NODE": None},
            id="set-and-empty",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "17", "CUDA_VISIBLE_DEVICES": "0", "NPROC_PER_NODE": "1"},
            {"CUDA_VISIBLE_DEVICES": "0", "NPROC_PER_NODE": "1"},
            id="slurm-has-handed-out-a-device",
        ),
    ],
)
def test_slurm_hands_out_devices_itself(
    shell: str, environment: dict[str, str], devices: dict[str, str | None]
) -> None:
    written = values(CUDA_VISIBLE_DEVICES="6,7", NCCL_DEBUG="WARN", NPROC_PER_NODE="2")
    wanted = {**devices, "NCCL_DEBUG": "WARN"}
    assert sourced(shell, profile(written, None), wanted, **environment) == wanted


def test_no_value_at_all_is_a_file_that_does_nothing() -> None:
    assert profile({}, b"whatever was there") == HEAD.encode()


# ---------------------------------------------------------------- nccl.conf


def as_nccl_reads(content: bytes) -> dict[bytes, bytes]:
    """NCCL's own rules: split at the first =, # in column 1 is a comment, the first name wins."""
    found: dict[bytes, bytes] = {}
    for line in content.split(b"\n"):
        if not line.startswith(b"#") and b"=" in line:
            name, _, value = line.partition(b"=")
            found.setdefault(name, value)
    return found


def test_nccl_reads_the_bare_value_of_its_own_names_only() -> None:
    written = values(
        NCCL_SOCKET_IFNAME="=eth1",
        NCCL_IB_HCA="mlx5_0,mlx5_1",
        GLOO_SOCKET_IFNAME="eth1",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
        NCCL_ASYNC_ERROR_HANDLING="1",
        NCCL_BLOCKING_WAIT="1",
        NPROC_PER_NODE="8",
    )
    assert as_nccl_reads(nccl_conf(written, None)) == {
        b"NCCL_SOCKET_IFNAME": b"=eth1", b"NCCL_IB_HCA": b"mlx5_0,mlx5_1"
    }  # fmt: skip


def test_our_values_win_over_foreign_lines_of_the_same_name() -> None:
    conf = nccl_conf(values(NCCL_DEBUG="WARN"), b"NCCL_DEBUG=TRACE\nNCCL_IB_TC=106\n")
    assert as_nccl_reads(conf) == {b"NCCL_DEBUG": b"WARN", b"NCCL_IB_TC": b"106"}


@settings(deadline=None)
@given(OURS, FOREIGN)
def test_foreign_lines_stay_byte_for_byte(ours: Values, foreign: bytes) -> None:
    conf = nccl_conf(ours, foreign)
    assert conf.endswith(foreign)
    assert conf.startswith(BEGIN.encode())
    assert without_block(conf) == foreign


@settings(deadline=None)
@given(OURS, OURS, FOREIGN)
def test_writing_again_changes_nothing_and_new_values_replace_old_ones(
    old: Values, new: Values, foreign: bytes
) -> None:
    once = nccl_conf(old, foreign)
    assert nccl_conf(old, once) == once
    assert nccl_conf(new, once) == nccl_conf(new, foreign)


MARKS = st.lists(
    st.sampled_from(
        [BEGIN.encode(), END.encode(), b"NCCL_IB_TC=106\n", b"# a note\n", b"\n", b"OFI_X=1"]
    ),
    max_size=8,
).map(b"".join)


@settings(deadline=None)
@given(OURS, MARKS)
def test_broken_blocks_settle_at_once(ours: Values, before: bytes) -> None:
    once = nccl_conf(ours, before)
    assert nccl_conf(ours, once) == once
    assert once.count(b"OFI_X=1") == before.count(b"OFI_X=1")
    assert once.count(b"# a note") == before.count(b"# a note")


# The first line of a block as it was: only its beginning is looked at.
EARLIER = (
    b"# BEGIN clusterprep: written by apply, which overwrites this block; "
    b"values belong into the inventory\n"
)


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        pytest.param(b"NCCL_IB_TC=106", b"NCCL_IB_TC=106", id="no-newline-at-the-end"),
        pytest.param(b"# a\r\nNCCL_IB_TC=106\r\n", b"# a\r\nNCCL_IB_TC=106\r\n", id="crlf"),
        pytest.param(
            b"A=1\n" + BEGIN.encode() + b"NCCL_DEBUG=INFO\n" + END.encode() + b"B=2\n",
            b"A=1\nB=2\n",
            id="middle",
        ),
        pytest.param(
            b"A=1\n" + EARLIER + b"NCCL_DEBUG=INFO\n" + END.encode() + b"B=2\n",
            b"A=1\nB=2\n",
            id="of-an-earlier-version",
        ),
        pytest.param(
            BEGIN.encode() + b"NCCL_DEBUG=INFO\n# mine\nB=2\n",
            b"# mine\nB=2\n",
            id="end-was-deleted",
        ),
        pytest.param(
            b"# BEGIN clusterprep\r\nNCCL_DEBUG=INFO\r\n# END clusterprep\r\nB=2\r\n",
            b"B=2\r\n",
            id="block-in-crlf",
        ),
        pytest.param(b"", b"", id="empty"),
        pytest.param(None, b"", id="no-file"),
    ],
)
def test_the_block_goes_on_top_of_what_was_there(before: bytes | None, kept: bytes) -> None:
    block = BEGIN + "NCCL_DEBUG=WARN\n" + END
    assert nccl_conf(values(NCCL_DEBUG="WARN"), before) == block.encode() + kept


def test_a_block_of_an_earlier_version_in_etc_environment_is_replaced() -> None:
    before = b"A=1\n" + EARLIER + b"OLD=2\n" + END.encode() + b"B=2\n"
    block = BEGIN + "NCCL_DEBUG=WARN\n" + END
    assert pam_file(values(NCCL_DEBUG="WARN"), before) == b"A=1\nB=2\n" + block.encode()


# ---------------------------------------------------------------- env-file and the task prolog


def test_an_env_file_is_names_and_values_and_comments() -> None:
    text = env_file(values(NCCL_SOCKET_IFNAME="=eth1", CUDA_VISIBLE_DEVICES="6,7"), b"old").decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == ["NCCL_SOCKET_IFNAME==eth1", "CUDA_VISIBLE_DEVICES=6,7"]


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "busybox"])
def test_slurm_is_told_every_value_as_it_is(shell: str) -> None:
    done = subprocess.run(
        [shell, "-eu"], input=task_prolog(values(**AWKWARD), None), capture_output=True, check=True
    )
    assert done.stderr == b""
    assert done.stdout.decode().split("\n") == [
        *(f"export {n}={v}" for n, v in AWKWARD.items()),
        "",
    ]


def test_slurm_is_not_told_about_devices() -> None:
    text = task_prolog(
        values(CUDA_VISIBLE_DEVICES="6,7", NPROC_PER_NODE="2", NCCL_DEBUG="WARN"), None
    )
    done = subprocess.run(["sh"], input=text, capture_output=True, check=True)
    assert done.stdout == b"export NCCL_DEBUG=WARN\n"
    assert text.startswith(b"#!/bin/sh\n")


# ---------------------------------------------------------------- the resource

ENVIRONMENT = Environment(
    (
        EnvValue("NCCL_DEBUG", "WARN", ("n1", "n2"), "why"),
        EnvValue("NCCL_IB_TC", "106", ("n2",), "why"),
    ),
    {},
)


UNITS = ("train@.service", "slurmd.service")


def planned(node: str, targets: tuple[str, ...], **states: FileState) -> dict[str, Any]:
    inventory = Inventory("test", (), env_targets=targets, env_units=UNITS)
    files = {path: FileState(path, None) for path in RESOURCE.paths({}, inventory)}
    files |= {state.path: state for state in states.values()}
    changes = plan(Node(node, node, 0), files, ENVIRONMENT, targets)
    return {change.path: change for change in changes}


def plan(
    node: Node,
    files: dict[str, FileState],
    environment: Environment,
    targets: tuple[str, ...] = TARGETS,
    other_lists: dict[str, int] | None = None,
) -> Any:
    inventory = Inventory("test", (node,), env_targets=targets, env_units=UNITS)
    facts = {"env.container_defaults": other_lists or {}}
    return RESOURCE.plan({}, PlanContext(Fleet(inventory, {}), node, files, facts, environment))


def test_only_the_targets_of_the_inventory_are_written_with_their_modes() -> None:
    every = planned("n1", tuple(TARGETS))
    assert {path: oct(change.mode) for path, change in every.items()} == {
        "/etc/profile.d/clusterprep-nccl.sh": "0o644",
        "/etc/nccl.conf": "0o644",
        "/etc/clusterprep/nccl.env": "0o644",
        "/etc/clusterprep/task_prolog.sh": "0o755",
        "/etc/environment": "0o644",
        "/etc/containers/containers.conf.d/zz-clusterprep.conf": "0o644",
        "/etc/enroot/environ.d/zz-clusterprep.env": "0o644",
        "/etc/systemd/system/train@.service.d/zz-clusterprep.conf": "0o644",
        "/etc/systemd/system/slurmd.service.d/zz-clusterprep.conf": "0o644",
    }
    assert set(planned("n1", ("nccl.conf",))) == {"/etc/nccl.conf"}


def test_each_node_gets_its_own_values() -> None:
    assert b"NCCL_IB_TC" not in planned("n1", ("nccl.conf",))["/etc/nccl.conf"].after
    assert b"NCCL_IB_TC=106" in planned("n2", ("nccl.conf",))["/etc/nccl.conf"].after


def test_a_file_that_exists_keeps_its_mode() -> None:
    (change,) = planned(
        "n1", ("nccl.conf",), old=FileState("/etc/nccl.conf", b"A=1\n", 0o600)
    ).values()
    assert (change.mode, change.action) == (0o600, "update")
    assert change.before == b"A=1\n"
    assert change.after.endswith(b"A=1\n")


def test_what_is_written_needs_no_second_writing() -> None:
    for path, change in planned("n2", tuple(TARGETS)).items():
        again = planned("n2", tuple(TARGETS), old=FileState(path, change.after))[path]
        assert again.action == "none"


def test_a_derived_value_that_a_shell_would_run_is_not_written_bare() -> None:
    """A kernel takes nearly any letter in the name of an interface."""
    environment = Environment(
        (EnvValue("NCCL_SOCKET_IFNAME", "e;id", ("n1",), "the only one"),), {}
    )
    node, path = Node("n1", "n1", 0), ENV_FILE
    with pytest.raises(InputError) as raised:
        list(plan(node, {path: FileState(path, None)}, environment))
    (problem,) = raised.value.problems
    assert problem.key == "n1: NCCL_SOCKET_IFNAME"
    assert (
        "'e;id' (the only one): systemd, docker and shells do not all read ; (character 2)"
        in problem.message
    )
    others = ("profile.d", "nccl.conf", "slurm-task-prolog", "systemd", "container")
    inventory = Inventory("test", (node,), env_targets=others, env_units=UNITS)
    states = {path: FileState(path, None) for path in written_files(inventory)}
    assert len(list(plan(node, states, environment, others))) == 7


def test_podman_takes_one_list_so_another_one_is_not_displaced() -> None:
    node = Node("n1", "n1", 0)
    files = {path: FileState(path, None) for path in FILES["container"]}
    theirs = {"/etc/containers/containers.conf": 7}
    with pytest.raises(NoPlan) as raised:
        list(plan(node, files, ENVIRONMENT, ("container",), theirs))
    assert str(raised.value).startswith(
        "/etc/containers/containers.conf line 7 sets env, and podman takes only the last such list"
    )
    ours = {PODMAN_CONF: 3}
    assert len(list(plan(node, files, ENVIRONMENT, ("container",), ours))) == 2


# ---------------------------------------------------------------- /etc/environment

SITE = [b"PATH=/usr/bin", b"# site", b"", b"http_proxy=http://p:1", b"\xff", b"Y='a b'"]
SITE_TEXT = st.builds(
    lambda lines, ends: b"\n".join(lines) + (b"\n" if ends else b""),
    st.lists(st.sampled_from(SITE), max_size=5),
    st.booleans(),
)


@settings(deadline=None)
@given(OURS, OURS, SITE_TEXT)
def test_lines_of_others_stay_above_our_block(old: Values, new: Values, site: bytes) -> None:
    bare = {name: replace(value, value="eth0") for name, value in old.items()}
    once = pam_file(bare, site)
    assert once.startswith(site)
    assert pam_file(bare, once) == once
    assert without_pam_block(once)[len(site) :] in (b"", b"\n")
    assert pam_file(new, once).startswith(site)


def test_a_block_without_its_end_takes_no_line_of_others() -> None:
    broken = BEGIN.encode() + b"NCCL_DEBUG=INFO\nPATH=/bin\nNCCL_IB_TC=1\n"
    assert without_pam_block(broken) == b"PATH=/bin\nNCCL_IB_TC=1\n"
    whole = b"A=1\n" + BEGIN.encode() + b"NCCL_DEBUG=INFO\nWANDB=1\n" + END.encode() + b"B=2\n"
    assert without_pam_block(whole) == b"A=1\nB=2\n"


def test_the_last_setting_of_a_name_is_ours() -> None:
    text = pam_file(values(NCCL_DEBUG="WARN"), b"NCCL_DEBUG=INFO\nX=a").decode()
    assert parse_environment(text) == {"NCCL_DEBUG": "WARN", "X": "a"}


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (b"A=1\nB=\\\n\n# site\n", "line 2 of /etc/environment ends with a backslash"),
        (b"B=\\ ", "line 1 of /etc/environment ends with a backslash"),
        (b"A=" + b"x" * 1021 + b"\n", "line 1 of /etc/environment is so long"),
        (b"B=\\ # x\n", None),
        (b"B=\\\nC=1\n", None),
        (b"A=" + b"x" * 1020 + b"\n", None),
        (None, None),
    ],
)
def test_lines_that_would_swallow_ours_stop_the_plan(before: bytes | None, words: str) -> None:
    node = Node("n1", "n1", 0)
    files = {PAM_FILE: FileState(PAM_FILE, before)}
    if words is None:
        assert len(list(plan(node, files, ENVIRONMENT, ("ssh",)))) == 1
        return
    with pytest.raises(NoPlan, match=words):
        list(plan(node, files, ENVIRONMENT, ("ssh",)))


# ---------------------------------------------------------------- units and containers


def test_a_drop_in_escapes_what_systemd_interprets() -> None:
    text = unit_drop_in(values(A='50%n "x" \\y $Z', B="1"), None).decode()
    assert text.splitlines()[1:] == [
        "[Service]",
        r'Environment="A=50%%n \"x\" \\y $Z"',
        'Environment="B=1"',
    ]


def test_slurm_hands_out_devices_itself_in_units_too() -> None:
    every = format_of("/etc/systemd/system/slurmd.service.d/zz-clusterprep.conf")
    text = every.write(values(CUDA_VISIBLE_DEVICES="1", NCCL_DEBUG="WARN"), None)
    assert b"NCCL_DEBUG" in text
    assert b"CUDA" not in text


@given(st.lists(TEXT, max_size=5))
def test_every_value_is_read_back_from_toml(texts: list[str]) -> None:
    named = {f"V{number}": text for number, text in enumerate(texts)}
    text = containers_conf(values(**named), None).decode()
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    read = tomllib.loads(text)["containers"]["env"]
    assert read == [f"{name}={value}" for name, value in named.items()]
