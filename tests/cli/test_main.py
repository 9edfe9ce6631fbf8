"""The command line as scripts meet it: exit codes, one JSON document, messages with a remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import CLI, asked, report_schema

GOOD = "nodes: [{name: n1, address: 127.0.0.1, transport: local}]\n"


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *words], capture_output=True, text=True, timeout=60, check=False, **options
    )  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("check",), "INVENTORY or --local"),
        (("check", "x.yaml", "--local"), "either INVENTORY or --local, not both"),
        (("chekc", "x.yaml"), "chekc"),
        (("check", "missing.yaml"), "missing.yaml"),
        (("check", "missing.yaml"), "clusterprep init HOST"),
        (("explain", "time.offset", "--output", "x.md"), "one of console, json"),
        (("explain", "--list", "--run", "last"), "leave --list out"),
        (("apply", "{good}", "--playbook", "sight"), "site"),
        (("check", "{good}", "--only", "time.ofset"), "time.offset"),
        (("check", "{good}", "--limit", "n2"), "n2"),
        (("check", "{good}", "--timeout", "soon"), "--timeout"),
        (("check", "{good}", "--format", "htlm"), "htlm"),
        (("check", "{good}", "--output", "report.pdf"), "report.pdf"),
        (("apply", "{good}", "--retry-failed", "x"), "no run is recorded"),
        (("env", "{good}", "--from-run", "x"), "no apply is remembered as 'x'"),
        (("env", "{good}", "--node", "n11"), "did you mean n1?"),
        (("check", "{good}", "--forks", "0"), "--forks"),
        (("launch", "{good}", "--log-dir", "", "--", "true"), "--log-dir: an empty value"),
        (("launch", "{good}", "--print", "hostfile", "--log-dir", "", "--", "true"), "--log-dir"),
        (("explain", "time.ofset"), "time.offset"),
        (("lint", "{good}", "--only", "env.nocl_conf"), "did you mean 'env.nccl_conf'?"),
        (("selftest", "--skip", "tmie."), "this command has no check 'tmie.'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_exit_2_with_a_message(
    good: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, out, err = asked(capsys, *(word.replace("{good}", str(good)) for word in words))
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_a_process_ends_so_too() -> None:
    done = run("check", "missing.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_every_error_is_one_document(good: Path) -> None:
    for words in (
        ("check", "missing.yaml"),
        ("check", "--format", "json"),
        ("validate", "nothing", "--forks", "x"),
    ):
        done = run(*words, "--format", "json")
        report = json.loads(done.stdout)
        report_schema().validate(report)
        assert (done.returncode, report["error"]["code"], report["verdict"]) == (2, 2, "error")


def test_an_inventory_with_many_mistakes_names_them_all_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "nodes:\n  - {name: n1, adress: 10.0.0.1}\n  - {name: n2, address: 10.0.0.02}\nport: {}\n"
    )
    done = run("validate", str(path))
    assert done.returncode == 2
    for text in ("bad.yaml:2", "address", "bad.yaml:3", "bad.yaml:4", "ports"):
        assert text in done.stderr


def test_an_ssh_config_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    path = tmp_path / "i.yaml"
    path.write_text("nodes: [{name: n1, address: 127.0.0.1}]\nssh: {config: /nowhere/config}\n")
    done = run("check", str(path))
    assert done.returncode == 2
    assert "/nowhere/config" in done.stderr


def test_validate_needs_no_network(good: Path) -> None:
    done = run("validate", str(good), "--format", "json")
    assert done.returncode == 0
    report_schema().validate(json.loads(done.stdout))


def test_options_stand_before_or_after_the_inventory_and_output_repeats(
    good: Path, tmp_path: Path
) -> None:
    first = run("check", "--only", "time.offset", str(good), "--format", "json")
    texts = [tmp_path / "a.json", tmp_path / "b.txt"]
    outputs = [word for path in texts for word in ("--output", str(path))]
    second = run("check", str(good), "--only", "time.offset", *outputs)
    for text in (first.stdout, texts[0].read_text()):
        assert [f["check"] for f in json.loads(text)["findings"]] == ["ssh.reach", "time.offset"]
    assert "time.offset" in second.stdout
    assert texts[1].read_text().splitlines()[0].startswith("clusterprep check")


@pytest.mark.parametrize("words", [("--only", "time."), ("--skip", "ssh.reach")], ids=" ".join)
def test_no_selection_makes_a_pass_of_a_node_that_was_not_reached(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "closed.yaml"
    path.write_text("nodes: [{name: n1, address: 127.0.0.1}]\nssh: {port: 1}\n")
    assert run("check", str(path), *words).returncode == 3


def test_check_local_looks_at_this_machine() -> None:
    done = run("check", "--local", "--format", "json")
    report = json.loads(done.stdout)
    report_schema().validate(report)
    assert report["nodes"][0]["reached"]
    assert {"ssh.reach", "os.release", "time.offset"} <= {f["check"] for f in report["findings"]}


def test_progress_goes_to_stderr_and_the_report_to_stdout(good: Path) -> None:
    done = run("check", str(good))
    assert done.stdout.startswith("clusterprep check")
    assert "look: 1/1" in done.stderr


def test_a_bug_is_one_line_and_a_log_file(good: Path, tmp_path: Path) -> None:
    """A package whose judge is broken: what a bug of ours looks like to a user."""
    breaker = tmp_path / "sitecustomize.py"
    breaker.write_text(
        "import clusterprep.cli.commands.check as r\n"
        "def run(invocation): raise RuntimeError('boom')\n"
        "r.run = run\n"
    )
    (tmp_path / "state/clusterprep").mkdir(parents=True)
    environment = {
        "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PATH": "/bin",
    }
    done = run("check", str(good), env=environment)
    assert done.returncode == 70
    assert len(done.stderr.splitlines()) == 1
    log = next((tmp_path / "state/clusterprep").iterdir())
    assert str(log) in done.stderr
    assert "boom" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_explain_has_a_page_for_every_check_and_for_variables() -> None:
    from clusterprep.cli.commands.explain import page
    from clusterprep.survey.registry import checks

    for name in checks():
        assert "Remedy" in page(name)
    done = run("explain", "NCCL_IB_HCA")
    assert done.returncode == 0
    assert "between ranks" in done.stdout


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from clusterprep.cli.main import cli; "
        "print(*sorted(m.split('.')[0] for m in sys.modules))"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert (
        not {"paramiko", "fabric", "jsonschema", "rich", "yaml", "ClusterShell", "torch"} & loaded
    )


def test_lint_and_selftest_judge_the_checks_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nccl.conf"
    path.write_text("NCCL_BUFFSIZE=4M\nexport NCCL_DEBUG=INFO\n")
    code, out, _ = asked(capsys, "lint", str(path), "--skip", "env.nccl_conf", "--format", "json")
    checks = {finding["check"] for finding in json.loads(out)["findings"]}
    assert code == 0
    assert checks == {"env.no_effect", "env.nccl_unknown", "env.deprecated", "env.nccl_debug"}
    code, out, _ = asked(capsys, "selftest", "--only", "time.offset", "--format", "json")
    assert [finding["check"] for finding in json.loads(out)["findings"]] == ["time.offset"]
    assert code == 0
