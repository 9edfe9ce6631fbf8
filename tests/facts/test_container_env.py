"""Which files of podman set variables for every container."""

from __future__ import annotations

import pytest

from clusterprep.facts.container_env import DEFAULTS, parse_defaults
from clusterprep.model import Inventory, Node
from clusterprep.remote.agent.container_env import read_container_defaults


def test_the_line_of_each_file_that_sets_them() -> None:
    answer = {"/usr/share/containers/containers.conf": 0, "/etc/containers/containers.conf": 12}
    assert parse_defaults(answer) == answer


def test_what_is_no_line_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_defaults({"/etc/containers/containers.conf": "env"})


def test_a_node_with_another_root_is_read_there() -> None:
    inventory = Inventory("test", ())
    roots = {"/": "", "/mnt/image": "/mnt/image"}
    for root, given in roots.items():
        (read,) = DEFAULTS.reads(Node("n1", "n1", 0, root=root), inventory)
        assert (read.kind, read.args) == ("container_defaults", (given,))


def test_the_agent_answers_what_is_parsed() -> None:
    assert isinstance(parse_defaults(read_container_defaults("/nothing-here")), dict)
