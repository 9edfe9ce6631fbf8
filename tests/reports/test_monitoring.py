"""The dashboard and the alert rules of examples/monitoring use what the program writes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterprep.reports import prometheus

from .situations import SITUATIONS
from .three_fleets import FLEETS

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
# Values of labels that the program writes beside those which our situations happen to have.
VALUES = {"severity": {"error", "warning"}, "command": {"check", "verify"}}
METRIC = re.compile(r"clusterprep_(\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)"([^"]*)"')


def written() -> dict[str, dict[str, set[str]]]:
    """Return the labels of each metric, and the values of each label."""
    found: dict[str, dict[str, set[str]]] = {}
    for make in (SITUATIONS | FLEETS).values():
        for metric in prometheus.metrics(make()):
            labels = found.setdefault(metric.name, {"cluster": set(), "command": set()})
            for sample, _ in metric.samples:
                for name, value in sample.items():
                    labels.setdefault(name, set()).add(value)
    return found


WRITTEN = written()


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with what it belongs to."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


ALL = [pytest.param(text, id=name) for name, text in expressions()]


def unknown_words(text: str) -> list[str]:
    """Return the metrics, labels and values of an expression that the program does not write."""
    wrong = []
    labels: set[str] = set()
    for metric, matchers in METRIC.findall(text):
        known = WRITTEN.get(metric)
        if known is None:
            wrong.append(metric)
            continue
        labels |= known.keys()
        for label, operator, value in MATCHER.findall(matchers):
            if label not in known:
                wrong.append(f"{metric}: {label}")
            elif operator == "=" and value not in known[label] | VALUES.get(label, set()):
                wrong.append(f"{metric}: {label}={value}")
    for names in re.findall(r"\bby \(([^)]*)\)", text):
        wrong += [f"by {name}" for name in re.split(r",\s*", names) if name not in labels]
    return wrong


@pytest.mark.parametrize("text", ALL)
def test_every_word_of_an_expression_is_written(text: str) -> None:
    assert METRIC.search(text)
    assert unknown_words(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clusterprep_node", ["node"]),
        ('clusterprep_nodes{stat="reached"}', ["nodes: stat"]),
        ('clusterprep_nodes{state="reachable"}', ["nodes: state=reachable"]),
        ("sum by (cluster, check) (clusterprep_nodes)", ["by check"]),
    ],
)
def test_what_is_not_written_is_found(text: str, expected: list[str]) -> None:
    assert unknown_words(text) == expected


def test_annotations_and_legends_name_labels_that_are_left() -> None:
    said = [(rule["expr"], " ".join(rule["annotations"].values())) for rule in RULES]
    for panel in DASHBOARD["panels"]:
        said += [(target["expr"], target["legendFormat"]) for target in panel["targets"]]
    for text, words in said:
        left = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", text))))
        named = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", words)
        assert set(named) <= left, text


def test_panels_have_numbers_of_their_own_and_take_the_chosen_data_source() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])
    assert variables["cluster"]["datasource"] == chosen


def test_no_panel_covers_another_one() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(column, row) for column in columns for row in rows}
        assert columns.stop <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def promtool(*words: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_reads_every_expression_and_the_rules_fire(tmp_path: Path) -> None:
    promtool("check", "rules", "alerts.yaml")
    promtool("test", "rules", "alerts_test.yaml")
    rules = []
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$cluster", "a")
            rules.append({"record": f"panel:{panel['id']}:{target['refId']}", "expr": text})
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", path)
