"""What overrides the plan, what must be equal, which devices are named: file, line and node."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.env import resolved
from clusterprep.facts.environment import Setting
from clusterprep.model import Fleet
from tests.support.fleet import (
    NO_DEVICES,
    REASONS,
    absent,
    env,
    eth,
    findings,
    fleet,
    rdma_device,
    told,
    torch,
)

BASHRC = "/home/alice/.bashrc"
OURS = "/etc/profile.d/clusterprep-nccl.sh"


def node(number: int = 1, **paths: Any) -> dict[str, Any]:
    """A node with eth0 and two HCAs; settings by launch path, with _ for a blank."""
    given = {"login shell": (), "ssh command": (), "nccl": ()}
    given.update({path.replace("_", " "): settings for path, settings in paths.items()})
    return {
        **NO_DEVICES,
        "env.paths": given,
        "net.interfaces": (eth("eth0", f"10.0.0.{number}/16"), eth("eth10")),
        "rdma.devices": (rdma_device("mlx5_1"), rdma_device("mlx5_10")),
        "torch.build": torch(),
        "ssh.peer": f"10.0.0.{number}",
    }


def four(*second: Setting, path: str = "login_shell", **kwargs: Any) -> Fleet:
    """Four nodes of which n2 has these settings besides."""
    return fleet(n1=node(1), n2=node(2, **{path: second}), n3=node(3), n4=node(4), **kwargs)


# ---------------------------------------------------------------- shadow

QUOTE = r"[\x22\x27]?"  # either quote, or none


@pytest.mark.parametrize(
    ("path", "setting", "cure"),
    [
        pytest.param(
            "login shell",
            Setting("NCCL_DEBUG", "INFO", BASHRC, 3),
            f"NCCL_DEBUG={QUOTE}INFO{QUOTE}\\s*$/# &/' {BASHRC}",
            id="bashrc",
        ),
        pytest.param(
            "ssh command",
            Setting("NCCL_DEBUG", "INFO", "/etc/environment", 2),
            "/# &/' /etc/environment",
            id="etc-environment",
        ),
        pytest.param(
            "login shell",
            Setting("NCCL_DEBUG", "INFO", "/etc/profile.d/zz.sh", 1),
            "zz.sh",
            id="profile.d",
        ),
        pytest.param(
            "nccl",
            Setting("NCCL_DEBUG", "INFO", "/home/alice/.nccl.conf", 7),
            ".nccl.conf",
            id="nccl.conf",
        ),
        pytest.param(
            "systemd",
            Setting("NCCL_DEBUG", "INFO", "/etc/systemd/x.conf", 2),
            "x.conf",
            id="drop-in",
        ),
        pytest.param("container", Setting("NCCL_DEBUG", "INFO"), "grep -rn NCCL_DEBUG", id="image"),
    ],
)
def test_a_value_that_wins_is_named_with_file_and_line(
    path: str, setting: Setting, cure: str
) -> None:
    seen = four(setting, path=path)
    assert told(seen, "env.shadow") == {
        "n1": "pass",
        "n2": "fail warning",
        "n3": "pass",
        "n4": "pass",
    }
    (found,) = (f for f in findings(seen, "env.shadow") if f.verdict == "fail")
    assert found.wanted == "NCCL_DEBUG=WARN"
    assert path in found.seen
    assert cure in found.remedy
    if setting.file:
        assert f"{setting.file} line {setting.line}" in found.seen


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        pytest.param("login shell", Setting("NCCL_DEBUG", "WARN", BASHRC, 3), id="the-same-value"),
        pytest.param(
            "login shell", Setting("NCCL_DEBUG", "INFO", OURS, 3), id="an-older-run-of-ours"
        ),
        pytest.param(
            "nccl", Setting("NCCL_DEBUG", "INFO", "/etc/nccl.conf", 9), id="below-our-block"
        ),
        pytest.param(
            "login shell",
            Setting("OMP_NUM_THREADS", "8", BASHRC, 3),
            id="nothing-that-apply-writes",
        ),
        pytest.param(
            "nccl",
            Setting("CUDA_DEVICE_ORDER", "x", "/root/.nccl.conf", 1),
            id="of-no-effect-there",
        ),
    ],
)
def test_what_does_not_override_is_no_shadow(path: str, setting: Setting) -> None:
    assert set(told(four(setting, path=path), "env.shadow").values()) == {"pass"}


def test_a_declared_value_is_the_plan() -> None:
    setting = Setting("NCCL_DEBUG", "INFO", BASHRC, 3)
    assert set(
        told(four(setting, each={"env": env(NCCL_DEBUG="INFO")}), "env.shadow").values()
    ) == {"pass"}
    seen = told(
        four(Setting("NCCL_ALGO", "Tree", BASHRC, 3), each={"env": env(NCCL_ALGO="Ring")}),
        "env.shadow",
    )
    assert seen["n2"] == "fail warning"


def test_without_a_plan_it_is_not_known_what_overrides_it() -> None:
    named = (Setting("NCCL_SOCKET_IFNAME", "eth0", BASHRC, 1),)
    lost = {**node(2, login_shell=named), "net.interfaces": ()}
    assert told(fleet(n1=node(1), n2=lost), "env.shadow")["n2"].startswith("unknown warning")


def test_where_nothing_is_set_nothing_overrides_whatever_the_plan_is() -> None:
    lost = {**node(2, login_shell=(Setting("OMP_NUM_THREADS", "8"),)), "net.interfaces": ()}
    assert told(fleet(n1=node(1), n2=lost), "env.shadow")["n2"] == "pass"


# ---------------------------------------------------------------- a launch path that is not known


@pytest.mark.parametrize("check", ["env.shadow", "env.nccl_uniform", "env.nccl_hca_exists"])
@pytest.mark.parametrize("reason", REASONS)
def test_a_path_that_is_not_known_is_no_pass(check: str, reason: str) -> None:
    hung = node(
        2, login_shell=absent(reason, "a start-up file of alice hangs: /home/alice/.bashrc line 9")
    )
    said = told(fleet(n1=node(1), n2=hung, n3=node(3)), check)
    grade = "warning" if check == "env.shadow" else "error"
    assert said == {"n1": "pass", "n2": f"unknown {grade} {reason}", "n3": "pass"}
    assert any(
        "/home/alice/.bashrc line 9" in f.message
        for f in findings(fleet(n1=node(1), n2=hung), check)
    )


@pytest.mark.parametrize("check", ["env.shadow", "env.nccl_uniform", "env.nccl_hca_exists"])
def test_a_container_that_is_not_readable_is_a_warning(check: str) -> None:
    inside = node(2, container=absent("denied"))
    assert told(fleet(n1=node(1), n2=inside, n3=node(3)), check)["n2"] == "unknown warning denied"


def test_the_other_paths_are_judged_all_the_same() -> None:
    both = node(
        2, login_shell=absent("hung"), ssh_command=(Setting("NCCL_DEBUG", "INFO", BASHRC, 1),)
    )
    assert "fail warning" in told(fleet(n1=node(1), n2=both), "env.shadow")["n2"]


@pytest.mark.parametrize("reason", REASONS)
def test_a_fact_that_is_missing_is_unknown(reason: str) -> None:
    blind = {**node(2), "env.paths": absent(reason)}
    assert (
        told(fleet(n1=node(1), n2=blind, n3=node(3)), "env.nccl_uniform")["n2"]
        == f"unknown error {reason}"
    )


# ---------------------------------------------------------------- uniform


def test_a_must_match_variable_of_one_node_is_its_fault() -> None:
    seen = four(Setting("NCCL_BUFFSIZE", "8388608", BASHRC, 3))
    assert told(seen, "env.nccl_uniform") == {
        "n1": "pass",
        "n2": "fail error",
        "n3": "pass",
        "n4": "pass",
    }
    (found,) = (f for f in findings(seen, "env.nccl_uniform") if f.verdict == "fail")
    assert found.seen == "NCCL_BUFFSIZE in login shell: unset on n[1,3-4]; 8388608 on n2"
    assert f"{BASHRC} line 3 of n2" in found.message


def test_a_login_shell_that_does_not_read_our_profile_gets_the_file_that_all_read() -> None:
    ours = Setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", OURS, 7)
    zsh, bash = node(1), node(2, login_shell=(ours,))
    seen = fleet(n1=zsh, n2=bash, n3=bash, n4=zsh)
    (found,) = (f for f in findings(seen, "env.nccl_uniform") if f.verdict == "fail")
    assert "ssh among env_targets" in found.remedy
    theirs = node(3, login_shell=(replace(ours, file=BASHRC),))
    (found,) = (
        f
        for f in findings(fleet(n1=zsh, n2=bash, n3=theirs), "env.nccl_uniform")
        if f.verdict == "fail"
    )
    assert "ssh among env_targets" not in found.remedy


@pytest.mark.parametrize("file", [OURS, "/etc/nccl.conf"])
def test_a_line_that_apply_has_written_is_left_to_apply(file: str) -> None:
    ours = Setting("NCCL_BUFFSIZE", "8388608", file, 3)
    theirs = replace(ours, file=BASHRC)
    (found,) = (f for f in findings(four(ours), "env.nccl_uniform") if f.verdict == "fail")
    assert found.nodes == ("n2",)
    assert found.fix is None
    assert "apply" in found.remedy
    assert "sed" not in found.remedy
    (found,) = (f for f in findings(four(theirs), "env.nccl_uniform") if f.verdict == "fail")
    assert found.fix is not None


def test_no_command_that_changes_a_line_that_apply_has_written_is_offered() -> None:
    ours = Setting("NCCL_BUFFSIZ", "8388608", OURS, 3)
    for setting, offers_sed in ((ours, False), (replace(ours, file=BASHRC), True)):
        (found,) = (f for f in findings(four(setting), "env.nccl_unknown") if f.verdict == "fail")
        assert ("sed -i" in found.remedy) is offers_sed
        assert (found.fix is not None) is offers_sed


def test_without_a_majority_all_are_named() -> None:
    seen = fleet(n1=node(1), n2=node(2, ssh_command=(Setting("NCCL_ALGO", "Ring"),)))
    assert told(seen, "env.nccl_uniform") == {"n1": "fail error", "n2": "fail error"}


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(Setting("NCCL_SOCKET_IFNAME", "eth0"), id="may-differ"),
        pytest.param(Setting("NCCL_DEBUG", "INFO"), id="is-for-this-node"),
        pytest.param(Setting("LD_LIBRARY_PATH", "/opt"), id="is-for-env.ld_path"),
        pytest.param(Setting("NCCL_IB_DISABLE", "0"), id="is-the-default"),
        pytest.param(Setting("NCCL_BUFFSIZE", ""), id="empty-is-unset"),
    ],
)
def test_what_may_differ_is_not_compared(setting: Setting) -> None:
    assert set(told(four(setting), "env.nccl_uniform").values()) == {"pass"}


def test_a_file_of_nccl_counts_where_the_process_has_nothing() -> None:
    ring, tree = (
        Setting("NCCL_ALGO", "Ring", "/etc/nccl.conf", 1),
        Setting("NCCL_ALGO", "Tree", BASHRC, 1),
    )
    same = fleet(n1=node(1, nccl=(ring,)), n2=node(2, nccl=(ring,)), n3=node(3, nccl=(ring,)))
    assert set(told(same, "env.nccl_uniform").values()) == {"pass"}
    odd = node(3, nccl=(ring,), login_shell=(tree,))
    assert told(
        fleet(n1=node(1, nccl=(ring,)), n2=node(2, nccl=(ring,)), n3=odd), "env.nccl_uniform"
    )["n3"] == ("fail error")


def test_one_node_has_nothing_to_be_compared_with() -> None:
    assert told(fleet(n1=node(1)), "env.nccl_uniform") == {"n1": "skip not_applicable"}
    blind = {**node(2), "env.paths": absent()}
    assert told(fleet(n1=node(1), n2=blind), "env.nccl_uniform")["n1"].startswith("unknown error")


# ---------------------------------------------------------------- devices

THERE = {"mlx5_1": {"1"}, "mlx5_10": {"1", "2"}, "mlx5_2": {"1"}}
NICS: dict[str, set[str]] = {"eth0": set(), "eth1": set(), "eth10": set(), "lo": set()}


@pytest.mark.parametrize(
    ("value", "there", "nccl", "missing", "doubled"),
    [
        pytest.param("mlx5_2", THERE, True, [], 0, id="whole-name"),
        pytest.param("mlx5", THERE, True, [], 0, id="a-prefix-on-purpose"),
        pytest.param("mlx5_1", THERE, True, [], 1, id="takes-mlx5_10-too"),
        pytest.param("=mlx5_1", THERE, True, [], 0, id="exact"),
        pytest.param("=mlx5", THERE, True, ["mlx5"], 0, id="exact-is-no-prefix"),
        pytest.param("mlx5_2,mlx5_7", THERE, True, ["mlx5_7"], 0, id="one-of-two"),
        pytest.param("=mlx5_1:1,mlx5_10:2", THERE, True, [], 0, id="ports"),
        pytest.param("=mlx5_1:2", THERE, True, ["mlx5_1:2"], 0, id="no-such-port"),
        pytest.param("=mlx5_1,=mlx5_2", THERE, True, ["=mlx5_2"], 0, id="the-sign-is-read-once"),
        pytest.param("^mlx5_9", THERE, True, [], 0, id="excludes-what-is-not-there"),
        pytest.param("^=mlx5_9", THERE, True, [], 0, id="excludes-exactly"),
        pytest.param("", THERE, True, [], 0, id="empty"),
        pytest.param("mlx5_2, mlx5_1", THERE, True, [" mlx5_1"], 0, id="a-blank-matches-nothing"),
        pytest.param("mlx5_2,", THERE, True, ["«»"], 0, id="an-empty-item"),
        pytest.param("eth", NICS, True, [], 0, id="interfaces-by-prefix"),
        pytest.param("eth1", NICS, True, [], 1, id="eth1-takes-eth10"),
        pytest.param("eth0:1", NICS, True, [], 0, id="text-after-a-colon-is-ignored"),
        pytest.param("x", NICS, True, [], 0, id="one-character-is-unset"),
        pytest.param("eth1", NICS, False, [], 0, id="gloo-takes-whole-names"),
        pytest.param("eth", NICS, False, ["eth"], 0, id="gloo-knows-no-prefix"),
        pytest.param("=eth0", NICS, False, ["=eth0"], 0, id="gloo-knows-no-sign"),
        pytest.param("^lo", NICS, False, ["^lo"], 0, id="gloo-excludes-nothing"),
    ],
)
def test_names_are_resolved_as_their_reader_does(
    value: str, there: dict[str, set[str]], nccl: bool, missing: list[str], doubled: int
) -> None:
    found = resolved(value, there, nccl)
    assert found[0] == missing
    assert len(found[1]) == doubled


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_IB_HCA", "mlx5_7", "fail error"),
        ("NCCL_IB_HCA", "mlx5_1", "fail warning"),
        ("NCCL_IB_HCA", "=mlx5_1,mlx5_10", "pass"),
        ("NCCL_SOCKET_IFNAME", "ib0", "fail error"),
        ("NCCL_SOCKET_IFNAME", "eth0", "pass"),
        ("GLOO_SOCKET_IFNAME", "eth", "fail error"),
        ("TP_SOCKET_IFNAME", "eth0", "pass"),
        ("NCCL_NET", "IB", "pass"),
    ],
)
def test_a_name_that_is_not_there_is_an_error(name: str, value: str, expected: str) -> None:
    assert told(four(Setting(name, value, BASHRC, 2)), "env.nccl_hca_exists")["n2"] == expected


def test_the_message_says_what_there_is() -> None:
    (found,) = (
        f
        for f in findings(four(Setting("NCCL_IB_HCA", "mlx5_7")), "env.nccl_hca_exists")
        if f.verdict == "fail"
    )
    assert "mlx5_7" in found.message
    assert "mlx5_1, mlx5_10" in found.wanted


def test_gloo_in_ncclconf_names_nothing() -> None:
    """It has no effect there, which is for another check to say."""
    seen = four(Setting("GLOO_SOCKET_IFNAME", "eth9", "/etc/nccl.conf", 1), path="nccl")
    assert set(told(seen, "env.nccl_hca_exists").values()) == {"pass"}


def test_hosts_without_gpus_are_judged_too() -> None:
    bare = {**node(1, login_shell=(Setting("NCCL_IB_HCA", "mlx5_0"),)), "rdma.devices": ()}
    assert told(fleet(n1=bare), "env.nccl_hca_exists") == {"n1": "fail error"}
