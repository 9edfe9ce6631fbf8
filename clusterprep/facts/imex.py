"""IMEX, the service by which the GPUs of several hosts share memory over NVLink."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Absent, Read

_DOMAIN = re.compile(r"^Domain State: (\w+)", re.MULTILINE)
_NODE = re.compile(r"^Node #\d+\s+\*? *- (\S+)\s+- (\w+)", re.MULTILINE)


class Imex(Struct, frozen=True):
    """The service as systemd sees it, and its domain as it says itself.

    `domain` is UP, DEGRADED or DOWN; None while the service does not run. `not_ready` has the nodes
    of the domain that are not READY, as «10.0.0.2 UNAVAILABLE». `nodes` is how many the node file
    names, None without the file.
    """

    active: str
    domain: str | None
    not_ready: tuple[str, ...]
    nodes: int | None


def parse_imex(answer: Mapping[str, Any] | None) -> Imex | Absent:
    """Parse what systemctl and `nvidia-imex-ctl -N -j` say."""
    if answer is None:
        return Absent("not_applicable", "IMEX is not installed here")
    if not answer["state"].strip():  # as in a container
        return Absent("systemd is not running", "systemctl says nothing of nvidia-imex")
    state = dict(line.split("=", 1) for line in answer["state"].splitlines() if "=" in line)
    nodes = answer["nodes"]
    if answer["domain"] is None:
        return Imex(state["ActiveState"], None, (), nodes)
    domain, each = _domain(answer["domain"])
    not_ready = tuple(f"{host} {status}" for host, status in each if status != "READY")
    return Imex(state["ActiveState"], domain, not_ready, nodes)


def _domain(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the state of the domain and (address, state) of each node, of JSON or of the table."""
    if text.lstrip().startswith("{"):
        answer = json.loads(text)
        rows = [(str(node["host"]), str(node["status"])) for node in answer["nodes"].values()]
        return str(answer["status"]), rows
    match = _DOMAIN.search(text)
    if match is None:
        raise ValueError("IMEX does not tell the state of its domain")
    return match[1], _NODE.findall(text)


IMEX = Fact("gpu.imex", lambda node, inventory: (Read("imex"),), parse_imex)
