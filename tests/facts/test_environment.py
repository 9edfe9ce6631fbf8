"""Launch paths: values with their places, NCCL's order, units, and what is not understood."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting, find_assignments, in_effect, settings_of_service
from clusterprep.model import Absent, Runtime
from tests.support.fleet import REASONS, learned

HOME = "/home/alice"
BASHRC = f"{HOME}/.bashrc"
RUNTIME = {"runtime": Runtime(activate="/sw/env.sh")}


def answer(**parts: Any) -> list[Any]:
    """A node where nothing is set, but for these parts."""
    healthy = {
        "user": "alice",
        "home": HOME,
        "sessions": {"login shell": ["ok", {}], "ssh command": ["ok", {}]},
        "files": [],
        "systemd": None,
        "slurm": None,
        "container": None,
        "conf": {f"{HOME}/.nccl.conf": None, "/etc/nccl.conf": None},
        "libraries": {},
    }
    return ["ok", {**healthy, **parts}]


def sessions(login: dict[str, str], command: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "login shell": ["ok", login],
        "ssh command": ["ok", login if command is None else command],
    }


def test_only_paths_that_exist_are_told() -> None:
    assert set(learned("env.paths", answer())) == {"login shell", "ssh command", "nccl"}
    everything = answer(systemd=[], slurm=[], container=["ok", {}])
    assert set(learned("env.paths", everything)) == {
        "login shell", "ssh command", "systemd", "slurm", "container", "nccl"
    }  # fmt: skip
    assert set(learned("env.paths", answer(sessions={}))) == {"nccl"}


def test_a_value_is_found_in_its_file() -> None:
    files = [
        ["/etc/environment", [[2, 'NCCL_ALGO="Ring"']]],
        [BASHRC, [[7, "export NCCL_DEBUG=INFO"]]],
    ]
    told = learned(
        "env.paths",
        answer(sessions=sessions({"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}), files=files),
    )
    expected = (
        Setting("NCCL_ALGO", "Ring", "/etc/environment", 2),
        Setting("NCCL_DEBUG", "INFO", BASHRC, 7),
    )
    assert told["login shell"] == told["ssh command"] == expected


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("export NCCL_DEBUG=INFO", "NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG=INFO; export NCCL_DEBUG", "NCCL_DEBUG", "INFO"),
        ("export A=1 NCCL_DEBUG='IN FO'", "NCCL_DEBUG", "IN FO"),
        ('export NCCL_IB_HCA="mlx5_0,mlx5_1"  # why', "NCCL_IB_HCA", "mlx5_0,mlx5_1"),
        ("export NCCL_SOCKET_IFNAME==eth0", "NCCL_SOCKET_IFNAME", "=eth0"),
        (
            '[ -n "${SLURM_JOB_ID+set}" ] || export CUDA_VISIBLE_DEVICES=0,1',
            "CUDA_VISIBLE_DEVICES",
            "0,1",
        ),
        ("[ -f /x ] && NCCL_DEBUG=WARN", "NCCL_DEBUG", "WARN"),
        ("declare -x NCCL_DEBUG=WARN", "NCCL_DEBUG", "WARN"),
        ("setenv NCCL_DEBUG WARN", "NCCL_DEBUG", "WARN"),
        ("set -gx NCCL_DEBUG WARN", "NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG=", "NCCL_DEBUG", ""),
    ],
)
def test_assignments_of_shells(line: str, name: str, value: str) -> None:
    assert find_assignments([("f", 3, line)])[name, value] == ("f", 3)


@pytest.mark.parametrize(
    "line", ["# export NCCL_DEBUG=INFO", "echo X_NCCL_DEBUG=INFO", "export NCCL_DEBUG=WARN"]
)
def test_what_gives_no_such_value(line: str) -> None:
    assert ("NCCL_DEBUG", "INFO") not in find_assignments([("f", 1, line)])


def test_a_value_that_no_line_writes_out_has_no_place() -> None:
    files = [[BASHRC, [[7, "export NCCL_DEBUG=$LEVEL"]]]]
    (setting,) = learned(
        "env.paths", answer(sessions=sessions({"NCCL_DEBUG": "INFO"}), files=files)
    )["login shell"]
    assert setting == Setting("NCCL_DEBUG", "INFO")


def test_the_last_file_wins_and_a_command_does_not_read_profiles_first() -> None:
    both = [
        ["/etc/profile.d/a.sh", [[1, "export NCCL_DEBUG=INFO"]]],
        [BASHRC, [[2, "export NCCL_DEBUG=INFO"]]],
    ]
    told = learned("env.paths", answer(sessions=sessions({"NCCL_DEBUG": "INFO"}), files=both))
    assert told["login shell"][0].file == BASHRC
    told = learned("env.paths", answer(sessions=sessions({"NCCL_DEBUG": "INFO"}), files=both[::-1]))
    assert told["login shell"][0].file == "/etc/profile.d/a.sh"
    assert told["ssh command"][0].file == BASHRC


# ---------------------------------------------------------------- a path that is not known


def test_a_shell_that_hangs_is_one_path_that_is_not_known() -> None:
    hangs = ["no", "hung", f"a start-up file of alice hangs: {BASHRC} line 9"]
    mine = answer(sessions={"login shell": hangs, "ssh command": ["ok", {"NCCL_DEBUG": "INFO"}]})
    told = learned("env.paths", mine)
    assert told["login shell"] == Absent(*hangs[1:])
    assert told["ssh command"] == (Setting("NCCL_DEBUG", "INFO"),)
    assert learned("env.effective", mine) == Absent(*hangs[1:])


def test_a_container_that_is_denied_is_left_out_of_the_whole() -> None:
    inside = answer(container=["no", "denied", "/proc/1/environ belongs to another user"])
    assert learned("env.paths", inside)["container"] == Absent(
        "denied", "/proc/1/environ belongs to another user"
    )
    assert set(learned("env.effective", inside)) == {"login shell", "ssh command", "nccl"}


def test_the_effective_environment_is_there_where_all_is_known() -> None:
    assert learned("env.effective", answer()) == {"login shell": (), "ssh command": (), "nccl": ()}


@pytest.mark.parametrize("fact", ["env.paths", "env.effective", "env.conf_lines", "env.libraries"])
@pytest.mark.parametrize("reason", REASONS)
def test_an_answer_that_is_missing(fact: str, reason: str) -> None:
    assert learned(fact, ["no", reason, "why"]) == Absent(reason, "why")


@pytest.mark.parametrize(
    "key", ["sessions", "files", "systemd", "slurm", "container", "conf", "home"]
)
def test_half_an_answer_is_garbled(key: str) -> None:
    word, whole = answer()
    half = {name: value for name, value in whole.items() if name != key}
    assert learned("env.paths", [word, half]).reason == "garbled"


@pytest.mark.parametrize(
    "parts",
    [
        {"sessions": {"login shell": ["ok", {"NCCL_DEBUG": 1}]}},
        {"sessions": {"login shell": ["no", 1, 2]}},
        {"sessions": []},
        {"files": [["/f", [["1", "A=1"]]]]},
        {"files": [[1, [[1, "A=1"]]]]},
        {"conf": {}},
        {"conf": {f"{HOME}/.nccl.conf": [[1, 2]], "/etc/nccl.conf": None}},
        {"home": None},
        {"systemd": "x"},
    ],
)
def test_another_shape_is_garbled(parts: dict[str, Any]) -> None:
    assert learned("env.paths", answer(**parts)).reason == "garbled"


# ---------------------------------------------------------------- NCCL's own files


def inside(**parts: Any) -> list[Any]:
    """What a runtime gives that sets nothing, but for these parts."""
    nothing = {"env": {}, "unset": [], "files": [], "modules": {}, "libraries": {}}
    return ["ok", {**nothing, **parts}]


def test_a_runtime_is_a_launch_path_over_the_login_shell() -> None:
    """What it keeps, sets, sets to another value and takes away, each with its place."""
    login = {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    files = [[BASHRC, [[1, "export NCCL_DEBUG=INFO NCCL_NET=IB"]]]]
    runtime = inside(
        env={"NCCL_NET": "IB", "NCCL_ALGO": "Tree", "CUDA_HOME": "/opt/cuda", "NCCL_IB_SL": "1"},
        unset=["NCCL_PROTO"],
        files=[["/sw/env.sh", [[3, "export NCCL_ALGO=Tree"]]]],
        modules={"/sw/modules/cuda/12.4": ["CUDA_HOME"]},
    )
    host = answer(sessions=sessions(login), files=files)
    told = learned("env.paths", host, runtime, **RUNTIME)
    assert list(told) == ["runtime", "login shell", "ssh command", "nccl"]
    assert told["runtime"] == (
        Setting("CUDA_HOME", "/opt/cuda", "/sw/modules/cuda/12.4"),
        Setting("NCCL_ALGO", "Tree", "/sw/env.sh", 3),
        Setting("NCCL_DEBUG", "INFO", BASHRC, 1),
        Setting("NCCL_IB_SL", "1"),
        Setting("NCCL_NET", "IB", BASHRC, 1),
    )


def test_a_runtime_that_is_not_entered_is_one_path_that_is_not_known() -> None:
    failed = ["ok", {"failed": ["no_module", "module load cuda fails"]}]
    told = learned("env.paths", answer(), failed, **RUNTIME)
    assert told["runtime"] == Absent("no_module", "module load cuda fails")
    assert told["login shell"] == ()
    assert learned("env.effective", answer(), failed, **RUNTIME) == told["runtime"]


def test_libraries_of_a_runtime_are_among_those_of_its_launch_paths() -> None:
    runtime = inside(libraries={"/opt/cuda/lib64": ["libnccl.so.2"]})
    host = answer(libraries={"/usr/local/lib": []})
    found = learned("env.libraries", host, runtime, **RUNTIME)
    assert found == {"/usr/local/lib": (), "/opt/cuda/lib64": ("libnccl.so.2",)}


def conf(**files: list[str]) -> dict[str, Any]:
    paths = {"own": f"{HOME}/.nccl.conf", "etc": "/etc/nccl.conf", "named": "/opt/nccl.conf"}
    found = {
        paths[key]: [[n, line] for n, line in enumerate(lines, 1)] for key, lines in files.items()
    }
    return {paths["own"]: None, paths["etc"]: None, **found}


def test_the_users_file_wins_over_etc_and_the_first_line_over_later_ones() -> None:
    files = conf(
        own=["NCCL_DEBUG=INFO", "NCCL_DEBUG=WARN"], etc=["NCCL_DEBUG=TRACE", "NCCL_ALGO=Ring"]
    )
    assert learned("env.paths", answer(conf=files))["nccl"] == (
        Setting("NCCL_ALGO", "Ring", "/etc/nccl.conf", 2),
        Setting("NCCL_DEBUG", "INFO", f"{HOME}/.nccl.conf", 1),
    )


def test_the_named_file_takes_the_place_of_the_users() -> None:
    files = conf(own=["NCCL_DEBUG=INFO"], named=["NCCL_DEBUG=WARN"], etc=["NCCL_ALGO=Ring"])
    mine = answer(conf=files, sessions=sessions({"NCCL_CONF_FILE": "/opt/nccl.conf"}))
    assert [s.file for s in learned("env.paths", mine)["nccl"]] == [
        "/etc/nccl.conf",
        "/opt/nccl.conf",
    ]


def test_a_named_file_that_is_not_there_still_hides_the_users() -> None:
    mine = answer(
        conf=conf(own=["NCCL_DEBUG=INFO"], etc=["NCCL_ALGO=Ring"]),
        sessions=sessions({"NCCL_CONF_FILE": "/gone"}),
    )
    assert learned("env.paths", mine)["nccl"] == (
        Setting("NCCL_ALGO", "Ring", "/etc/nccl.conf", 1),
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NCCL_DEBUG=INFO # why", Setting("NCCL_DEBUG", "INFO # why", "/etc/nccl.conf", 1)),
        ("NCCL_DEBUG='INFO'", Setting("NCCL_DEBUG", "'INFO'", "/etc/nccl.conf", 1)),
        ("NCCL_DEBUG=INFO\r", Setting("NCCL_DEBUG", "INFO\r", "/etc/nccl.conf", 1)),
        ("NCCL_SOCKET_IFNAME==eth0", Setting("NCCL_SOCKET_IFNAME", "=eth0", "/etc/nccl.conf", 1)),
        (" NCCL_DEBUG=INFO", Setting(" NCCL_DEBUG", "INFO", "/etc/nccl.conf", 1)),
        ("export NCCL_DEBUG=INFO", Setting("export NCCL_DEBUG", "INFO", "/etc/nccl.conf", 1)),
        ("NCCL_IB_HCA=" + "x" * 2000, Setting("NCCL_IB_HCA", "x" * 1023, "/etc/nccl.conf", 1)),
        (  # bytes and not letters: each of these has two
            "NCCL_IB_HCA=x" + "é" * 1000,
            Setting("NCCL_IB_HCA", "x" + "é" * 511, "/etc/nccl.conf", 1),
        ),
        ("#NCCL_DEBUG=INFO", None),
        ("NCCL_DEBUG", None),
    ],
)
def test_lines_as_nccl_reads_them(line: str, expected: Setting | None) -> None:
    told = learned("env.paths", answer(conf=conf(etc=[line])))["nccl"]
    assert told == (() if expected is None else (expected,))


def test_conf_lines_are_there_as_written() -> None:
    told = learned("env.conf_lines", answer(conf=conf(etc=[" NCCL_DEBUG = INFO"])))
    assert told == {"/etc/nccl.conf": (("/etc/nccl.conf", 1, " NCCL_DEBUG = INFO"),)}


def test_the_process_wins_over_the_files() -> None:
    paths = learned(
        "env.paths",
        answer(
            conf=conf(etc=["NCCL_DEBUG=INFO", "NCCL_ALGO=Ring"]),
            sessions=sessions({"NCCL_DEBUG": "WARN"}),
        ),
    )
    effect = in_effect(paths, "login shell")
    assert {name: setting.value for name, setting in effect.items()} == {
        "NCCL_DEBUG": "WARN",
        "NCCL_ALGO": "Ring",
    }


# ---------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Environment=NCCL_DEBUG=INFO"], {"NCCL_DEBUG": "INFO"}),
        (
            ['Environment="NCCL_DEBUG=IN FO" NCCL_ALGO=Ring'],
            {"NCCL_DEBUG": "IN FO", "NCCL_ALGO": "Ring"},
        ),
        (
            ["DefaultEnvironment=NCCL_DEBUG=INFO", "Environment=NCCL_DEBUG=WARN"],
            {"NCCL_DEBUG": "WARN"},
        ),
        (["Environment=NCCL_DEBUG=INFO", "Environment="], {}),
        (["Environment=NCCL_DEBUG_FILE=/tmp/%%h"], {"NCCL_DEBUG_FILE": "/tmp/%h"}),
        (["NCCL_DEBUG='INFO'"], {"NCCL_DEBUG": "INFO"}),
        (["# NCCL_DEBUG=INFO"], {}),
    ],
)
def test_units_and_environment_files(lines: list[str], expected: dict[str, str]) -> None:
    told = settings_of_service(
        [("/etc/systemd/system/x.service.d/a.conf", n, line) for n, line in enumerate(lines, 1)]
    )
    assert {setting.name: setting.value for setting in told} == expected


def test_a_unit_names_its_file_and_line() -> None:
    drop_in = "/etc/systemd/system/slurmd.service.d/nccl.conf"
    told = learned("env.paths", answer(slurm=[[drop_in, [[2, "Environment=NCCL_DEBUG=INFO"]]]]))
    assert told["slurm"] == (Setting("NCCL_DEBUG", "INFO", drop_in, 2),)


def test_folders_with_libraries() -> None:
    assert learned("env.libraries", answer(libraries={"/opt": ["libnccl.so.2"]})) == {
        "/opt": ("libnccl.so.2",)
    }
    assert learned("env.libraries", answer(libraries={"/opt": [2]})).reason == "garbled"
