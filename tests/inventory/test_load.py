"""Inventories: what files under inventories/good mean, and what is wrong with those under bad."""

import copy
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterprep.errors import InputError
from clusterprep.inventory.demands import ALIASES, _problem_of, check_names
from clusterprep.inventory.load import WRITTEN, Overrides, load_inventory
from clusterprep.inventory.yaml_tree import Construction, compose
from clusterprep.model import EnvSetting, Gpus, Interfaces, Inventory, SshSettings
from clusterprep.survey import registry
from tests.conftest import LUCK
from tests.support.operations import operations

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BAD = sorted((HERE / "inventories" / "bad").glob("*.yaml"))


def good(name: str, **overrides: Any) -> Inventory:
    return load_inventory(HERE / "inventories" / "good" / f"{name}.yaml", Overrides(**overrides))


def problems(path: str | Path) -> list[str]:
    with pytest.raises(InputError) as raised:
        load_inventory(path)
    assert raised.value.code == 2
    assert {problem.file for problem in raised.value.problems} == {str(path)}
    return [str(dataclasses.replace(problem, file=None)) for problem in raised.value.problems]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    return path


# ---------------------------------------------------------------- wrong ones


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_inventory_says_all_that_is_wrong(path: Path) -> None:
    """The .txt beside the file has its problems: line, key, expected, seen, hint."""
    assert problems(path) == path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()


def test_every_bad_inventory_has_its_expectation() -> None:
    assert {path.stem for path in BAD} == {
        path.stem for path in (HERE / "inventories" / "bad").glob("*.txt")
    }


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == [
        "there is no such file; expected an inventory (clusterprep init HOST… writes one)"
    ]


def test_a_directory(tmp_path: Path) -> None:
    assert problems(tmp_path) == ["there is no inventory of Ansible's in this folder"]


def test_a_name_that_no_file_can_have() -> None:
    assert problems("a\0b")[0].startswith("cannot be read")


def test_a_file_without_an_end() -> None:
    assert problems("/dev/zero") == ["more than 64 MiB is not an inventory"]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_endless_nesting_ends_quickly(tmp_path: Path, opening: str) -> None:
    found = problems(written(tmp_path, f"nodes: \n  {opening * 100_000}"))
    assert found == ["2: nested more than 50 levels deep"]


@pytest.mark.parametrize("line", ["\n", " \n", "#\n", "[a, b]\n"])
def test_the_way_to_a_syntax_error_takes_no_square_of_its_length(tmp_path: Path, line: str) -> None:
    """Four times as many lines take four times the work at most, not sixteen times."""

    def work(lines: int) -> int:
        path, found = written(tmp_path, f"{line * lines}}}"), []
        count = operations(lambda: found.extend(problems(path)))
        assert [problem.split(":")[1] for problem in found] == [" not YAML"]
        return count

    assert work(20_000) < 4.4 * work(5_000)


def test_a_thousand_wrong_entries_are_all_named(tmp_path: Path) -> None:
    lines = "".join(f"  - {{name: gpu{n}, adress: h{n}}}\n" for n in range(1_000))
    found = problems(written(tmp_path, f"nodes:\n{lines}"))
    assert len(found) == 1_000
    assert found[-1] == "1001: nodes[999].adress: unknown key (did you mean 'address'?)"


# ---------------------------------------------------------------- right ones


def test_the_example_is_valid() -> None:
    inventory = load_inventory(ROOT / "inventory.example.yaml")
    assert [node.name for node in inventory.nodes] == [f"gpu{n:02}" for n in range(1, 17)]
    assert inventory.warnings == ()


def test_a_name_is_all_it_takes() -> None:
    inventory = good("minimal")
    (node,) = inventory.nodes
    assert (inventory.cluster, node.name, node.address, node.index) == (
        "minimal",
        "gpu1",
        "gpu1",
        0,
    )
    assert (node.ssh, node.job_user, node.gpus, node.nproc_per_node) == (
        SshSettings(),
        None,
        None,
        None,
    )


def test_scalars_as_written() -> None:
    inventory = good("scalars_as_written")
    first, second = inventory.nodes
    assert (inventory.cluster, first.name, second.name, inventory.groups) == (
        "2026",
        "007",
        "on",
        {"1": ("007",)},
    )
    assert {name: setting.value for name, setting in first.env.items()} == {
        "NCCL_DEBUG": "on",
        "NCCL_IB_TIMEOUT": "0x16",
        "NCCL_IB_HCA": "~",
        "NCCL_ALGO": "",
        "NCCL_BUFFSIZE": "1_000",
        "NCCL_MIN_NCHANNELS": "010",
        "NCCL_NTHREADS": "1e3",
        "NCCL_DEBUG_FILE": "2026-01-31",
    }
    assert second.env["NCCL_DEBUG"] == EnvSetting("off", "node on")
    assert first.require == {
        "torch.version": "2.10",
        "kernel.version": "5.10",
        "eth.mtu": "9000",
        "svc.required": "sshd,chronyd",
    }
    assert inventory.silences[0].until == date(2027, 1, 31)


def test_other_scalars_follow_yaml_1_2() -> None:
    inventory = good("yaml_1_2_numbers")
    (node,) = inventory.nodes
    assert node.ssh == SshSettings(user="no", port=0o26, connect_timeout=10)
    assert (inventory.master_port, node.gpus, node.nproc_per_node, node.job_user) == (
        29500,
        Gpus(8),
        4,
        "on",
    )


def test_names_and_addresses_are_paired_as_written() -> None:
    nodes = good("ranges").nodes
    assert [(node.name, node.address) for node in nodes] == [
        ("gpu1", "10.0.0.7"),
        ("gpu3", "10.0.0.5"),
        ("r1n01", "10.0.1.11"),
        ("r1n02", "10.0.1.12"),
        ("r2n01", "10.0.2.11"),
        ("r2n02", "10.0.2.12"),
        ("odd1", "odd1"),
        ("odd5", "odd5"),
        ("odd9", "odd9"),
        ("x1", "x1"),
        ("x3", "x3"),
        ("six1", "2001:db8::1"),
    ]
    assert [node.index for node in nodes] == list(range(12))


def test_an_address_of_ipv6_has_one_form(tmp_path: Path) -> None:
    """So nodes are known by it, and one that is listed twice is seen."""
    nodes = "[{name: n1, address: 'FD00:0:0::1'}, {name: n2, address: 'fd00:0::2'}]"
    inventory = load_inventory(written(tmp_path, f"cluster: c\nnodes: {nodes}\n"))
    assert [node.address for node in inventory.nodes] == ["fd00::1", "fd00::2"]
    twice = "[{name: n1, address: 'FD00::1'}, {name: n2, address: 'fd00:0::1'}]"
    (problem,) = problems(written(tmp_path, f"cluster: c\nnodes: {twice}\n"))
    assert "fd00::1" in problem


def test_node_over_group_over_top() -> None:
    one, two, three, four = good("precedence").nodes
    assert one.ssh == SshSettings(user="group", port=2200, config="/top", become=True)
    assert two.ssh == SshSettings(user="node", port=2200, config="/top", become=False)
    assert (one.job_user, two.job_user, three.job_user) == ("group", "node", "top")
    assert (one.gpus, three.gpus) == (Gpus(4), Gpus(8, "H100"))
    assert (one.groups, two.groups, three.groups) == (("slow",), ("slow", "same"), ())
    assert (one.root, three.root, three.python, two.transport) == ("/lab", "/", "/opt/py", "local")
    assert (three.nproc_per_node, four.nproc_per_node) == (2, None)


def test_environment_is_merged_by_name_and_knows_its_layer() -> None:
    one, two, *_ = good("precedence").nodes
    assert one.env == {
        "A": EnvSetting("group", "group slow"),
        "B": EnvSetting("group", "group slow"),
        "C": EnvSetting("top", "env"),
        "NCCL_SOCKET_IFNAME": EnvSetting("eth0", "env"),
    }
    assert two.env["A"] == EnvSetting("node", "node gpu2")


def test_requirements_are_merged_by_their_full_name() -> None:
    one, two, three, _ = good("precedence").nodes
    assert [node.require["kernel.version"] for node in (one, two, three)] == [
        ">=6",
        ">=6.1",
        ">=5.5",
    ]
    assert one.require["lim.nofile"] == "1024"


def test_an_interface_and_its_variable_are_one_setting_across_layers() -> None:
    one, _, three, four = good("precedence").nodes
    assert one.interfaces == Interfaces("eth0", ("mlx5_0",))
    assert (three.interfaces, three.declares_rdma) == (Interfaces("ens3", ()), False)
    assert "NCCL_SOCKET_IFNAME" not in three.env
    assert four.interfaces == Interfaces(None, ("mlx5_0",))
    assert four.env["NCCL_SOCKET_IFNAME"] == EnvSetting("=ens4", "node gpu4")


def test_a_node_settles_what_its_groups_dispute() -> None:
    (node,) = good("disagreement_settled_by_the_node").nodes
    assert node.env["NCCL_IB_SL"] == EnvSetting("3", "node gpu1")


def test_the_command_line_wins() -> None:
    inventory = good("precedence", become=False, nproc_per_node=3, master_port=12345)
    assert {node.ssh.become for node in inventory.nodes} == {False}
    assert {node.nproc_per_node for node in inventory.nodes} == {3}
    assert inventory.master_port == 12345


def test_lists_of_a_node_replace_those_of_its_group_and_these_the_top_level() -> None:
    one, two, three = good("endpoints_and_shared").nodes
    assert one.endpoints == ("https://hub.example/v2/", "tcp://licences:27000")
    assert (two.endpoints, three.endpoints) == (("http://[2001:db8::1]:8080",), ())
    assert [one.shared, two.shared, three.shared] == [("/data", "/scratch"), ("/data",), ("/data",)]


def test_aliases_and_merge_keys() -> None:
    one, two, three = good("aliases_and_merges").nodes
    assert (two.name, two.gpus, two.env["NCCL_DEBUG"]) == (
        "gpu2",
        one.gpus,
        EnvSetting("on", "node gpu2"),
    )
    assert {name: setting.value for name, setting in three.env.items()} == {
        "NCCL_DEBUG": "on",
        "NCCL_IB_SL": "1",
    }


def test_a_byte_order_mark_and_windows_lines_do_no_harm() -> None:
    assert good("byte_order_mark_and_crlf").cluster == "windows"


def test_sections_without_a_line_say_nothing() -> None:
    (node,) = good("empty_sections").nodes
    assert msgspec.structs.replace(node, groups=()) == good("minimal").nodes[0]


def test_unknown_variables_are_warned_about() -> None:
    unknown = "no NCCL or torch known here reads this variable"
    assert good("unknown_variables").warnings == (
        f"env.NCCL_DEBUGG: {unknown} (did you mean 'NCCL_DEBUG'?)",
        f"env.NCCL_SOCKET_IFNAMES: {unknown} (did you mean 'NCCL_SOCKET_IFNAME'?)",
    )


def test_a_partition_key_of_nccl_is_no_secret() -> None:
    inventory = good("partition_keys")
    assert {name: setting.value for name, setting in inventory.nodes[0].env.items()} == {
        "NCCL_IB_PKEY": "1",
        "OFI_NCCL_MR_KEY_SIZE": "2",
    }
    assert inventory.warnings == ()


def test_silences_name_nodes_groups_or_nothing() -> None:
    first, second, third = good("silences").silences
    assert (first.nodes, first.until, first.reason) == (frozenset({"gpu1", "gpu2"}), None, "known")
    assert (second.nodes, second.until) == (frozenset({"gpu1", "gpu3", "gpu4"}), date(2027, 1, 31))
    assert (third.nodes, third.reason) == (
        frozenset({"gpu1", "gpu2", "gpu3", "gpu4"}),
        "no reason given",
    )


def test_gpus_and_verify() -> None:
    inventory = good("gpus_and_verify")
    uses = [(gpus.use, gpus.used) for gpus in (node.gpus for node in inventory.nodes) if gpus]
    assert uses == [((6, 7, 8, 9), 4), ((3, 1), 2), ((2,), 1), (None, 0)]
    verify = inventory.verify
    assert (verify.backend, verify.sizes, verify.timeout) == (
        "gloo",
        (8, 1024, 2 << 20, 3 << 30),
        120,
    )
    assert (verify.min_busbw, verify.same_files) == (12.5, ("/etc/hosts",))


def test_an_nvlink_domain_has_a_name_or_none_or_is_refused() -> None:
    domains = [node.gpus.domain for node in good("nvlink_domains").nodes if node.gpus]
    assert domains == ["rack1", "rack1", "", False, None]


def test_every_short_name_of_a_requirement_is_a_check() -> None:
    assert set(ALIASES.values()) <= check_names()
    assert {"state.journal", "gpu.sdc", "launch.nproc", "nccl.allgather"} <= check_names()


def test_the_slow_parser_reads_the_same() -> None:
    text = (ROOT / "inventory.example.yaml").read_text(encoding="utf-8")
    trees = [tree for tree in (compose(text), compose(text, pure=True)) if tree]
    fast, slow = [Construction(lambda *_: None).build(tree, WRITTEN) for tree in trees]
    assert fast == slow


# ---------------------------------------------------------------- time and weight


A_NODE = 550  # operations at most; 274 when this was written


def one_range(nodes: int) -> str:
    address = f"10.0.[0-{nodes // 250 - 1}].[0-249]"
    return f'nodes: [{{name: "gpu[00001-{nodes:05}]", address: "{address}"}}]\n'


def entries(nodes: int) -> str:
    return "nodes:\n" + "".join(
        f"  - {{name: gpu{n:05}, address: 10.0.{n >> 8}.{n & 255}}}\n" for n in range(nodes)
    )


FORMS = {"range": one_range, "entries": entries}
MANY = {name: form(10_000) for name, form in FORMS.items()}


@pytest.mark.parametrize("text", MANY.values(), ids=MANY)
def test_ten_thousand_nodes_are_loaded(tmp_path: Path, text: str) -> None:
    assert len(load_inventory(written(tmp_path, text)).nodes) == 10_000


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_work_of_loading_grows_with_the_nodes(
    tmp_path: Path, form: Callable[[int], str]
) -> None:
    def work(nodes: int) -> int:
        path = written(tmp_path, form(nodes))
        return operations(lambda: load_inventory(path))

    work(250)  # what is imported and computed once
    few = work(500)
    assert few < A_NODE * 500
    assert work(1_000) < 2.2 * few


def test_importing_the_loader_imports_no_library() -> None:
    code = (
        "import sys, clusterprep.inventory.load; "
        "libraries = {'yaml', 'jsonschema', 'ClusterShell', 'packaging'}; "
        "print(*libraries & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []


# ---------------------------------------------------------------- anything at all


EXAMPLE = yaml.safe_load((ROOT / "inventory.example.yaml").read_text(encoding="utf-8"))
EXAMPLE["groups"]["rack2"] |= {
    "ssh": {"user": "a"},
    "gpus": {"count": 8, "use": "0-3"},
    "become": True,
}
EXAMPLE["nodes"][1] |= {
    "env": {"A": "b"},
    "require": {"torch": "2.6", "lim.nofile": "1"},
    "gpus": {"count": 1},
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        [
            "gpu[1-",
            "gpu[01-16]",
            "0-3",
            "10.0.0.01",
            "@all",
            "=>2",
            "8GiB",
            "1e400",
            "<<",
            "2027-01-31",
            "[",
            "]",
        ]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=4), st.sampled_from(["name", "nodes", "env", "count"])),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


def places(data: Any, here: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield from places(value, (*here, key))


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    data = copy.deepcopy(EXAMPLE)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from([found for found in places(data) if found]))
        parent = data
        for step in place[:-1]:
            parent = parent[step]
        if draw(st.booleans()):
            parent[place[-1]] = draw(anything)
        elif isinstance(parent, dict):
            parent[draw(st.text(max_size=5))] = parent.pop(place[-1])
        else:
            parent.append(parent[place[-1]])
    return data


def is_answered(path: Path) -> bool:
    """A traceback is no answer, neither is a problem without a line."""
    try:
        load_inventory(path)
    except InputError as error:
        return bool(error.problems) and all(
            problem.line and problem.message for problem in error.problems
        )
    return True


@given(mutated())
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[*LUCK, HealthCheck.function_scoped_fixture],
)
def test_whatever_stands_in_an_inventory_is_answered(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    assert is_answered(path)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.text("nodes: {}[]&*!|>-?%@\n\t'\"#ax1", max_size=60).map(str.encode),
    )
)
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[*LUCK, HealthCheck.function_scoped_fixture],
)
def test_whatever_bytes_a_file_holds_are_answered(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(content)
    assert is_answered(path)


@pytest.mark.parametrize(
    "text", ["9" * 5000, "9" * 5000 + "G", "x" * 5000], ids=lambda text: text[-1]
)
@pytest.mark.parametrize("check", sorted(registry.checks()))
def test_a_requirement_without_end_is_refused_in_our_words(check: str, text: str) -> None:
    assert _problem_of(check, text) == "expected at most 4,000 characters; seen 5,000".replace(
        "5,000", f"{len(text):,}"
    )


@pytest.mark.parametrize("check", sorted(registry.checks()))
def test_a_requirement_of_many_digits_is_refused_in_our_words(check: str) -> None:
    for text in (
        "9" * 3999,
        "9" * 3990 + "G",
        "0." + "9" * 3990,
        ">=" + "9" * 3990,
        "9" * 3990 + "%",
    ):
        problem = _problem_of(check, text)
        assert problem is None or "expected" in problem


def test_the_command_line_says_where_host_keys_are(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes: [{name: a}, {name: b, ssh: {known_hosts: /b, user: op}}]\n")
    overrides = Overrides(known_hosts="/site/keys", host_keys="accept-new")
    inventory = load_inventory(path, overrides)
    assert {node.ssh.known_hosts for node in inventory.nodes} == {"/site/keys"}
    assert {node.ssh.host_keys for node in inventory.nodes} == {"accept-new"}
    assert inventory.nodes[1].ssh.user == "op"
