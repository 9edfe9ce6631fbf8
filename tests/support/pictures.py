"""The pictures of the documents: of a recorded fleet with planted faults, and of the demo."""

from __future__ import annotations

import base64
import io
import re
import tempfile
from datetime import date
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from clusterprep import reports
from clusterprep.cli.exit_codes import findings_code
from clusterprep.inventory.load import load_inventory
from clusterprep.model import NodeGroup, Report
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import Queries, plan_queries
from tests.support import grown, recording
from tests.support.browser import Browser, found

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
CONSOLE, PAGE = FOLDER / "check.svg", FOLDER / "report.png"
RECORDING, FLEET = FOLDER / "demo.svg", FOLDER / "fleet.svg"
RACK = 16  # nodes of a group
NODES, WIDTH = 64, 110
FAULTS = {
    "node00009": "kernel.version",
    "node00017": "gpu.lost",
    "node00018": "eth.mtu",
    "node00033": "lim.memlock",
    "node00041": "ib.state",
}
SILENT = "node00052"
THEME = TerminalTheme(
    (24, 26, 31),
    (214, 217, 224),
    [
        (60, 64, 73),
        (224, 108, 100),
        (129, 178, 104),
        (214, 170, 96),
        (97, 155, 222),
        (186, 132, 208),
        (90, 180, 188),
        (214, 217, 224),
    ],
)


def report() -> Report:
    """Check 64 nodes of eight H100 each: five with a fault of their own, and one that is silent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inventory.yaml"
        path.write_text(grown.inventory_text(NODES))
        inventory = load_inventory(path)
    checks = registry.checks()
    fated = grown.Fates(
        silent=frozenset({SILENT}), checks={node: checks[name] for node, name in FAULTS.items()}
    )
    usual = tuple(check for check in checks.values() if "stress" not in check.tags)
    plan = plan_queries(usual, registry.facts())
    fleet = grown.planted(grown.looked(Queries(plan, inventory), inventory, fated), fated)
    fleet = probe_pairs(grown.Wires(fleet), fleet, inventory.nodes[0].name)  # type: ignore[arg-type]
    findings = judge(grown.dialled(fleet, fated), plan.checks, date(2026, 11, 22))
    return Report(
        "check",
        "20261122-093000-4f2a",
        inventory.cluster,
        "2026-11-22T09:30:00Z",
        4.2,
        "fail",
        findings_code(findings),
        tuple(fleet.snapshots.values()),
        findings,
        groups=_racks(tuple(fleet.snapshots)),
    )


def _racks(names: tuple[str, ...]) -> tuple[NodeGroup, ...]:
    starts = range(0, len(names), RACK)
    return tuple(NodeGroup(f"rack{at // RACK + 1}", names[at : at + RACK]) for at in starts)


def console(seen: Report) -> str:
    """What a terminal shows, as SVG that fetches nothing: fonts are the reader's own."""
    text = reports.render(seen, "console", color=True, width=WIDTH)
    shown = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    shown.print(Text.from_ansi(f"$ clusterprep check inventory.yaml\n{text}"))
    head, _, rest = CONSOLE_SVG_FORMAT.partition("    @font-face")
    plain = head + rest[rest.index("    .{unique_id}-matrix") :]
    plain = plain.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    svg = shown.export_svg(
        title="", theme=THEME, code_format=plain, unique_id="check", font_aspect_ratio=0.6
    )
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def recorded(screen: str) -> str:
    """Return the recording of the demo, of what a terminal showed."""
    title = "Two faults are found on four hosts; after their repair the same command passes"
    return recording.draw(screen, THEME, title)


def page(seen: Report, picture: Path) -> None:
    """The top of the HTML page, as Chromium shows it; nothing where there is no Chromium."""
    program = found()
    if program is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(reports.render(seen, "html"), encoding="utf-8")
        browser = Browser(program, Path(folder) / "profile")
        try:
            tab = browser.page()
            tab.look(width=1100, height=900)
            tab.open(file)
            shot = tab.call("Page.captureScreenshot", format="png")
        finally:
            browser.close()
    picture.write_bytes(base64.b64decode(shot["data"]))


def words(svg: str) -> list[str]:
    """Return the words in a picture. How they are drawn differs between releases of rich."""
    return re.findall(r">([^<>{}]*\S[^<>{}]*)</text>", svg)


def renew() -> None:
    """Draw the fleet again, and the console if other words are in it."""
    seen = report()
    FLEET.write_text(reports.render(seen, "svg"))
    drawn = console(seen)
    if words(drawn) != words(CONSOLE.read_text()):
        CONSOLE.write_text(drawn)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    seen = report()
    CONSOLE.write_text(console(seen))
    FLEET.write_text(reports.render(seen, "svg"))
    page(seen, PAGE)


if __name__ == "__main__":
    main()
