"""Misspelt, outdated and useless settings by launch path, and NCCL's own files line by line."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from clusterprep.facts.nccl_address import Taken
from clusterprep.model import Fleet
from tests.support.fleet import REASONS, absent, bound, findings, fleet, learned, told, torch

BASHRC = "/home/alice/.bashrc"
OLD = torch("2.1.2", "12.1", "2.18.1")


def node(
    *settings: Setting, path: str = "login shell", etc: Any = None, own: Any = None, **facts: Any
) -> dict[str, Any]:
    given = {"login shell": (), "ssh command": (), "nccl": (), path: settings}
    return {
        "env.paths": given,
        "torch.build": torch(),
        "env.etc_conf": etc,
        "env.conf_lines": own or {},
        **{name.replace("_", ".", 1): value for name, value in facts.items()},
    }


def setting(text: str, file: str | None = BASHRC, line: int | None = 3) -> Setting:
    name, _, value = text.partition("=")
    return Setting(name, value, file, line)


def one(*texts: str, path: str = "login shell", **facts: Any) -> Fleet:
    return fleet(n1=node(*map(setting, texts), path=path, **facts), n2=node())


# ---------------------------------------------------------------- names and values


@pytest.mark.parametrize(
    ("check", "text", "expected"),
    [
        ("env.nccl_unknown", "NCCL_SOKET_IFNAME=eth0", "fail warning"),
        ("env.nccl_unknown", "NCCL_SOCKET_IFNAME=eth0", "pass"),
        ("env.nccl_unknown", "NCCL_BLOCKING_WAIT=1", "pass"),
        ("env.nccl_unknown", "TORCH_HOME=/cache", "pass"),
        ("env.deprecated", "NCCL_BLOCKING_WAIT=1", "fail warning"),
        ("env.deprecated", "NCCL_ASYNC_ERROR_HANDLING=1", "fail warning"),
        ("env.deprecated", "NCCL_TREE_THRESHOLD=0", "fail error"),
        ("env.deprecated", "TORCH_NCCL_BLOCKING_WAIT=1", "pass"),
        ("env.deprecated", "NCCL_IB_GID_INDEX=3", "pass"),
        ("env.no_effect", "NCCL_VERSION=2.11.4-1", "fail warning"),
        ("env.no_effect", "NCCL_IB_DISABLE=true", "fail warning"),
        ("env.no_effect", "NCCL_IB_DISABLE=1", "pass"),
        ("env.no_effect", "NCCL_BUFFSIZE=4M", "fail warning"),
        ("env.no_effect", "NCCL_SOCKET_NTHREADS=16", "pass"),
        ("env.no_effect", "NCCL_SOCKET_NTHREADS=17", "fail warning"),
        ("env.no_effect", "NCCL_RAS_ENABLE=0", "fail warning"),  # came with 2.24
        ("env.no_effect", "NCCL_SOCKET_IFNAME=^docker", "pass"),  # is nccl.iface's to say
    ],
)
def test_a_setting_is_judged_by_the_rules_of_lint(check: str, text: str, expected: str) -> None:
    assert told(one(text), check) == {"n1": expected, "n2": "pass"}


def answering(**said: Any) -> dict[str, Any]:
    return {"login shell": bound("10.0.0.1", version="2.34.1", **said)}


def test_a_name_that_the_nodes_own_nccl_reads_is_not_misspelt() -> None:
    """A release may be newer than our list."""
    newer = one("NCCL_SOCKET_NEWS=1", nccl_address=answering(reads=("NCCL_SOCKET_NEWS",)))
    assert told(newer, "env.nccl_unknown")["n1"] == "pass"
    other = one("NCCL_SOCKET_NEWS=1", nccl_address=answering(reads=("NCCL_DEBUG",)))
    assert told(other, "env.nccl_unknown")["n1"] == "fail warning"


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (Taken("Default", "FALSE"), "fail warning"),
        (Taken("EnvPlugin", "TRUE"), "pass"),
        (Taken("Default", "maybe"), "pass"),  # set to its default
    ],
)
def test_a_value_that_nccl_says_it_did_not_take_has_no_effect(taken: Taken, expected: str) -> None:
    name = "NCCL_NEW_SWITCH"
    seen = one(f"{name}=maybe", nccl_address=answering(reads=(name,), taken={name: taken}))
    assert told(seen, "env.no_effect")["n1"] == expected
    if expected != "pass":
        finding = next(f for f in findings(seen, "env.no_effect") if f.verdict == "fail")
        assert (
            "NCCL 2.34.1 itself says that it did not take this value and uses FALSE"
            in finding.message
        )


@pytest.mark.parametrize("reason", REASONS)
def test_without_an_nccl_that_answers_our_list_decides(reason: str) -> None:
    seen = one("NCCL_SOKET_IFNAME=eth0", nccl_address=absent(reason))
    assert told(seen, "env.nccl_unknown")["n1"] == "fail warning"
    assert told(one(nccl_address=absent(reason)), "env.nccl_unknown")["n1"] == "pass"


def test_the_versions_installed_decide() -> None:
    assert told(one("NCCL_BLOCKING_WAIT=1", torch_build=OLD), "env.deprecated")["n1"] == "pass"
    assert (
        told(one("TORCH_NCCL_BLOCKING_WAIT=1", torch_build=OLD), "env.no_effect")["n1"]
        == "fail warning"
    )
    nothing = torch(None, None, None)
    assert (
        told(one("NCCL_BLOCKING_WAIT=1", torch_build=nothing), "env.deprecated")["n1"]
        == "fail warning"
    )
    assert told(one("NCCL_RAS_ENABLE=0", torch_build=nothing), "env.no_effect")["n1"] == "pass"


@pytest.mark.parametrize(
    ("sockets", "expected"), [("4", "pass"), ("8", "pass"), ("9", "fail warning")]
)
def test_threads_and_sockets_are_judged_together(sockets: str, expected: str) -> None:
    seen = one("NCCL_SOCKET_NTHREADS=8", f"NCCL_NSOCKS_PERTHREAD={sockets}")
    assert told(seen, "env.no_effect")["n1"] == expected


def test_what_stands_in_nccl_conf_is_judged_with_the_environment() -> None:
    paths = {
        "login shell": (setting("NCCL_SOCKET_NTHREADS=16"),),
        "nccl": (setting("NCCL_NSOCKS_PERTHREAD=8", "/etc/nccl.conf", 1),),
    }
    seen = fleet(n1={**node(), "env.paths": paths})
    assert told(seen, "env.no_effect") == {"n1": "fail warning"}


@pytest.mark.parametrize(
    "text", ["TORCH_NCCL_BLOCKING_WAIT=1", "GLOO_SOCKET_IFNAME=eth0", "MASTER_ADDR=n1"]
)
def test_what_torch_reads_has_no_effect_in_nccl_conf(text: str) -> None:
    assert told(one(text, path="nccl"), "env.no_effect")["n1"] == "fail warning"
    assert told(one(text), "env.no_effect")["n1"] == "pass"


def test_file_line_and_paths_are_named_once() -> None:
    both = {path: (setting("NCCL_SOKET_IFNAME=eth0"),) for path in ("login shell", "ssh command")}
    (bad,) = findings(fleet(n1={**node(), "env.paths": {**both, "nccl": ()}}), "env.nccl_unknown")
    assert bad.seen == f"NCCL_SOKET_IFNAME=eth0 from {BASHRC} line 3 (login shell, ssh command)"
    assert "NCCL_SOCKET_IFNAME" in bad.message
    assert bad.wanted == "NCCL_SOCKET_IFNAME"
    assert bad.remedy.endswith(f"# &/' {BASHRC}")


def test_equal_faults_of_several_nodes_are_one_finding() -> None:
    seen = fleet(**{f"n{n}": node(setting("NCCL_VERSION=2.11.4-1")) for n in (1, 2, 3)})
    (bad,) = findings(seen, "env.no_effect")
    assert bad.nodes == ("n1", "n2", "n3")


def test_of_very_many_the_first_are_named_and_the_others_counted() -> None:
    text = "".join(f"export NCCL_DEBUG=X{number}\n" for number in range(60))
    found = findings(fleet(n1=node(etc=text)), "env.nccl_conf")
    assert len(found) == 50
    assert found[-1].message.endswith("(and 10 more)")


@pytest.mark.parametrize("check", ["env.nccl_unknown", "env.deprecated", "env.no_effect"])
def test_a_launch_path_that_is_not_known_is_no_pass(check: str) -> None:
    paths = {"login shell": absent("hung"), "ssh command": (), "nccl": ()}
    assert told(fleet(n1={**node(), "env.paths": paths}), check) == {"n1": "unknown warning hung"}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("check", ["env.nccl_unknown", "env.deprecated", "env.no_effect"])
def test_what_could_not_be_read_is_not_known(check: str, reason: str) -> None:
    assert told(fleet(n1=node(env_paths=absent(reason))), check) == {
        "n1": f"unknown warning {reason}"
    }


@pytest.mark.parametrize("check", ["env.deprecated", "env.no_effect"])
def test_without_the_versions_nothing_passes(check: str) -> None:
    assert told(fleet(n1=node(torch_build=absent("hung"))), check) == {"n1": "unknown warning hung"}


# ---------------------------------------------------------------- NCCL's own files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "pass"),
        ("", "pass"),
        ("# BEGIN clusterprep\nNCCL_DEBUG=WARN\n# END clusterprep\n", "pass"),
        ("NCCL_SOCKET_IFNAME==eth0\n", "pass"),
        (" NCCL_DEBUG=WARN\n", "fail error"),
        ("export NCCL_DEBUG=WARN\n", "fail error"),
        ('NCCL_SOCKET_IFNAME="eth0"\n', "fail error"),
        ("NCCL_DEBUG=WARN # quiet\n", "fail error"),
        ("NCCL_DEBUG=WARN\r\n", "fail error"),
        ("\ufeffNCCL_DEBUG=WARN\n", "fail error"),
        ("NCCL_TOPO_FILE=" + "x" * 1024, "fail error"),
        ("NCCL_TOPO_FILE=" + "x" * 1023, "pass"),
    ],
)
def test_etc_nccl_conf(text: str | None, expected: str) -> None:
    assert told(fleet(n1=node(etc=text)), "env.nccl_conf") == {"n1": expected}


def test_carriage_returns_do_no_harm_from_2_30_on() -> None:
    new = torch("2.12.1", "13.0", "2.30.3")
    assert told(fleet(n1=node(etc="NCCL_DEBUG=WARN\r\n", torch_build=new)), "env.nccl_conf") == {
        "n1": "pass"
    }


def test_the_users_own_file_keeps_its_line_numbers() -> None:
    own = {"/home/alice/.nccl.conf": (("/home/alice/.nccl.conf", 7, "export NCCL_DEBUG=WARN"),)}
    (bad,) = findings(fleet(n1=node(own=own)), "env.nccl_conf")
    assert bad.message.startswith("/home/alice/.nccl.conf:7: ")
    assert bad.remedy == (
        "sed -i --follow-symlinks -E 's/^export NCCL_DEBUG=WARN$/NCCL_DEBUG=WARN/' "
        "/home/alice/.nccl.conf"
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "\ufeffNCCL_DEBUG=WARN\n",
            "sed -i --follow-symlinks '1s/^\\xEF\\xBB\\xBF//' /etc/nccl.conf",
        ),
        ("NCCL_DEBUG=WARN\r\n", "sed -i --follow-symlinks 's/\\r$//' /etc/nccl.conf"),
        ("NCCL_DEBUG WARN\n", "sed -n 1p /etc/nccl.conf"),
        ("NCCL_TOPO_FILE=" + "x" * 1024, "sed -n 1p /etc/nccl.conf"),
    ],
)
def test_the_remedy_is_to_be_pasted(text: str, remedy: str) -> None:
    (bad,) = findings(fleet(n1=node(etc=text)), "env.nccl_conf")
    assert bad.remedy == remedy


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("fact", ["env_etc_conf", "env_conf_lines"])
def test_a_file_that_could_not_be_read_is_not_known(fact: str, reason: str) -> None:
    assert told(fleet(n1=node(**{fact: absent(reason)})), "env.nccl_conf") == {
        "n1": f"unknown error {reason}"
    }


def test_a_file_that_is_not_there_is_known_and_a_binary_one_is_not() -> None:
    assert learned("env.etc_conf", ["no", "missing", "no such file"]) is None
    assert learned("env.etc_conf", ["ok", "NCCL_DEBUG=WARN\n"]) == "NCCL_DEBUG=WARN\n"
    assert learned("env.etc_conf", ["ok", "\0ELF"]).reason == "garbled"


def test_secrets_of_others_are_neither_kept_nor_shown_and_a_partition_key_is_none() -> None:
    text = "NCCL_IB_PKEY=1\nexport NCCL_SITE_TOKEN=canary\n  NCCL_IB_PKEY=2 # x\n"
    kept = learned("env.etc_conf", ["ok", text])
    assert kept == text.replace("canary", "<redacted>")
    remedies = {bad.remedy for bad in findings(fleet(n1=node(etc=kept)), "env.nccl_conf")}
    assert "sed -n 2p /etc/nccl.conf" in remedies
    assert any("/NCCL_IB_PKEY=2/' /etc/nccl.conf" in remedy for remedy in remedies)
