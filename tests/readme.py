"""The parts of README.md that the tool writes: the run on top and the table of checks. `make readme` renews them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from clusterprep import registry

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RUN = re.compile(r"(?<=tests/test_readme.py compares -->\n```\n).*?(?=\n```\n)", re.DOTALL)
TABLE = re.compile(r"(?<=\| check \| about \| a failure is \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")
GRAVER = "a warning, an error with RDMA"
GRADES = {"time.offset": "an error over 1 s, else a warning", "eth.mtu": GRAVER, "lim.memlock": GRAVER}


def run_shown(text: str) -> str:
    found = RUN.search(text)
    assert found, "README.md has no run on top"
    return found[0]


def rows_shown(text: str) -> list[str]:
    found = TABLE.search(text)
    assert found, "README.md has no table of checks"
    return found[0].splitlines()


def row(check: str) -> str:
    about = registry.checks()[check]
    grade = GRADES.get(check, "an error" if about.severity == "error" else "a warning")
    return f"| `{check}` | {about.title} | {grade} |"


def demo() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.demo"], cwd=ROOT, capture_output=True, text=True, check=False)


def first_report(output: str) -> str:
    """What the first apply of the demo printed."""
    return output.split("$ clusterprep apply", 2)[1].split("\n\n==>", maxsplit=1)[0].split("\n", 2)[2].strip("\n")


def shape(text: str) -> str:
    """A text without what differs from run to run: times, speeds, and where that makes lines break."""
    numbers = re.sub(r"\d{8}-\d{6}-\w{4}", "RUN", text)
    numbers = re.sub(r"\d+(?:\.\d+)?\s+(?:µs|ms|s|min)(?![a-z])", "TIME", numbers)
    return " ".join(re.sub(r"\d+\.\d\d(?=\s)", "SPEED", numbers).split())


def main() -> None:
    shown = demo()
    if shown.returncode:
        sys.exit(shown.stdout + shown.stderr)
    text = README.read_text()
    text = RUN.sub(lambda _: "$ clusterprep apply inventory.yaml\n\n" + first_report(shown.stdout), text)
    text = TABLE.sub(lambda _: "".join(row(check) + "\n" for check in registry.checks()), text)
    README.write_text(text)


if __name__ == "__main__":
    main()
