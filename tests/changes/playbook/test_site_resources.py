"""Resources of a site: a file in a folder of plug-ins is a step of a playbook, planned as ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.changes.playbook.steps import Playbook
from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Fleet, Inventory
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment

RESOURCE = """\
from clusterprep.changes.resources import Resource, file_change


def paths(params, inventory):
    return ("/etc/motd",)


def plan(params, context):
    text = f"{params['text']}\\n".encode()
    yield file_change(context.node, "banner", context.files["/etc/motd"], text, 0o644)


def wrong(params):
    if "text" not in params:
        yield "", "expected the key text"


RESOURCE = Resource("banner", paths, plan, wrong=wrong)
"""


def site(folder: Path, content: str) -> Inventory:
    (folder / "mine").mkdir()
    (folder / "mine" / "banner.py").write_text(content)
    (folder / "inventory.yaml").write_text("nodes: [{name: n1}]\nplugins: [mine]\n")
    return load_inventory(folder / "inventory.yaml")


def playbook(folder: Path, inventory: Inventory, text: str) -> Playbook:
    (folder / "book.yaml").write_text(text)
    return load_playbook(str(folder / "book.yaml"), inventory)


def context(inventory: Inventory) -> PlanContext:
    files = {"/etc/motd": FileState("/etc/motd", b"old\n", 0o600)}
    return PlanContext(Fleet(inventory, {}), inventory.nodes[0], files, {}, Environment((), {}))


def test_a_resource_of_the_site_is_a_step(tmp_path: Path) -> None:
    inventory = site(tmp_path, RESOURCE)
    text = "- banner: {text: hello}\n- env: {}\n"
    first, _ = playbook(tmp_path, inventory, text).steps
    (change,) = first.resource.plan(first.params, context(inventory))
    assert (change.path, change.after, change.mode) == ("/etc/motd", b"hello\n", 0o600)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- banner: {}\n", "book.yaml:1: .*expected the key text"),
        ("- banner: 7\n", "book.yaml:1: .*expected a mapping of parameters"),
        ("- baner: {text: a}\n", "book.yaml:1: .*unknown key"),
        ("- banner: {text: a}\n- banner: {text: b}\n", "book.yaml:2: .*already"),
    ],
)
def test_what_is_wrong_with_its_steps_is_told(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        playbook(tmp_path, site(tmp_path, RESOURCE), text)


def test_what_its_functions_raise_is_said_of_its_file(tmp_path: Path) -> None:
    bad = RESOURCE.replace("    text = f", "    1 / 0\n    text = f")
    inventory = site(tmp_path, bad)
    (step,) = playbook(tmp_path, inventory, "- banner: {text: hello}\n").steps
    with pytest.raises(NoPlan, match=r"mine/banner\.py: ZeroDivisionError"):
        list(step.resource.plan(step.params, context(inventory)))


def test_paths_that_raise_are_a_mistake_of_its_file(tmp_path: Path) -> None:
    bad = RESOURCE.replace("    return (", "    1 / 0\n    return (")
    inventory = site(tmp_path, bad)
    with pytest.raises(InputError, match=r"mine/banner\.py: the resource banner: ZeroDivision"):
        playbook(tmp_path, inventory, "- banner: {text: hello}\n")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"banner", paths', '"env", paths', "the resource env is one of clusterprep"),
        ('"banner", paths', '"when", paths', "the resource when is one of clusterprep"),
        ("RESOURCE = Resource(", "RESOURCE = str(", "banner.py:"),
    ],
)
def test_a_resource_without_a_name_of_its_own_is_broken(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    (broken,) = site(tmp_path, RESOURCE.replace(old, new)).extensions.broken
    assert expected in str(broken)
    assert broken.check == "site.banner"
