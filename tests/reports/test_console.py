"""The console report: the worst first, equal things once, what to do at the end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.account import Rights
from clusterprep.model import (
    ChangeRow,
    Culprit,
    EnvPath,
    EnvValue,
    Finding,
    NodeSnapshot,
    Report,
    VerifyResult,
    Workaround,
)
from clusterprep.model.fixes import Fix, wanted_state
from clusterprep.remedies import shell_line
from clusterprep.reports import render
from clusterprep.reports.plain import fold_nodes, fold_ranks, format_rate, format_seconds

from .situations import FOUR, clock_and_mtu, passes, reached, report, unreachable, verify_culprit

NAMES = tuple(f"gpu{number:02}" for number in range(1, 17))


def shown(one: Report, verbose: int = 0) -> str:
    return render(one, "console", width=80, verbose=verbose)


def test_errors_come_before_warnings_before_unknowns_before_passes() -> None:
    findings = (
        *passes(FOUR, "os.release"),
        Finding("a.unknown", "unknown", "error", FOUR, "m", reason="denied"),
        Finding("a.warning", "fail", "warning", FOUR, "m"),
        Finding("a.error", "fail", "error", FOUR, "m"),
    )
    text = shown(report("check", findings=findings))
    places = [text.index(word) for word in ("a.error", "a.warning", "a.unknown", "os.release")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("add", "line"),
    [
        ("target container", "lacks some; add target container"),
        ("EnvironmentFile=/etc/x", "lacks some; add EnvironmentFile=/etc/x"),
        ("there is no slurmd, so nothing reads", "there is no slurmd, so nothing reads"),
        ("`systemctl daemon-reload` after apply", "`systemctl daemon-reload` after apply"),
    ],
)
def test_what_a_launch_path_lacks_is_a_sentence(add: str, line: str) -> None:
    text = shown(report("env", findings=(), env_paths=(EnvPath("systemd", (), FOUR, add),)))
    assert line in [each.strip() for each in text.splitlines()]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (["unchanged"], "0 changes on 4 nodes"),
        (["done", "unchanged"], "1 change on 4 nodes"),
        (["done", "failed", "done"], "2 changes on 4 nodes, 1 failed"),
        (["failed", "unanswered"], "0 changes on 4 nodes, 1 failed, 1 unanswered"),
    ],
)
def test_what_was_not_changed_is_not_counted_as_a_change(outcomes: list[str], said: str) -> None:
    rows = []
    for number, outcome in enumerate(outcomes):
        rows.append(ChangeRow(FOUR, "copy", f"/etc/{number}", "update", outcome))  # type: ignore[arg-type]
    lines = shown(report("copy", nodes=reached(FOUR), changes=tuple(rows))).splitlines()
    assert f"PASS     {said}" in lines


@pytest.mark.parametrize(
    ("outcome", "held_by", "said"),
    [
        ("not-started", ("n9",), "bring back n9, or go on without"),
        ("done", (), "bring back n9; the others have what is"),
        ("unchanged", (), "bring back n9, then run the same command again"),
    ],
)
def test_who_has_gone_on_without_a_node_is_not_told_to(
    outcome: str, held_by: tuple[str, ...], said: str
) -> None:
    lost = NodeSnapshot("n9", "10.77.0.9", reached=False, reason="timed_out")
    row = ChangeRow(FOUR, "file", "/etc/x", "update", outcome)  # type: ignore[arg-type]
    told = report(
        "apply",
        verdict="unknown",
        code=3,
        nodes=(*reached(FOUR), lost),
        findings=(),
        changes=(row,),
        held_by=held_by,
    )
    text = shown(told)
    assert said in text
    assert ("add: --partial" in text) == bool(held_by)


CURE = Fix((wanted_state("limits", item="memlock"),))
TWINS = Finding("host.identity", "fail", "error", FOUR[:2], "n1 and n2 are one machine")


def failing(command: str, *findings: Finding, **values: Any) -> Report:
    """A report of four nodes, one with an error, and of n9, which was not reached."""
    lost = NodeSnapshot("n9", "10.77.0.9", reached=False, reason="timed_out")
    curable = Finding("lim.memlock", "fail", "error", FOUR[:1], "m", "64 KiB", fix=CURE)
    return report(
        command,
        verdict="fail",
        code=1,
        inventory="lab.yaml",
        nodes=(*reached(FOUR), lost),
        findings=(curable, *findings),
        **values,
    )


def test_an_error_does_not_hide_how_to_go_on_without_a_node() -> None:
    row = ChangeRow(FOUR, "file", "/etc/x", "update", "not-started")
    text = shown(failing("apply", changes=(row,), held_by=("n9",)))
    assert "or go on without n9 add: --partial" in " ".join(text.split())


def test_what_was_written_can_be_undone_also_where_the_trial_names_a_culprit() -> None:
    row = ChangeRow(FOUR, "file", "/etc/x", "update", "done")
    trial = verify_culprit().verify
    text = shown(replace(failing("apply", changes=(row,)), verify=trial))
    assert "undo: clusterprep rollback lab.yaml --run" in text
    assert f"--run {failing('apply').run} --partial\n" in text  # n9 was not reached


def test_a_rank_is_called_so_once() -> None:
    culprit = Culprit("rank", ("n3",), 0.9, "it is slow", rank=2)
    trial = replace(verify_culprit().verify, culprits=(culprit,))
    one = report("verify", verdict="fail", code=1, verify=trial)
    assert "CULPRIT  rank 2 on n3  90% sure" in shown(one)
    assert "**CULPRIT** rank 2 `n3`" in render(one, "markdown")


def test_the_fix_that_is_recommended_is_none_that_fix_refuses() -> None:
    command = "fix: clusterprep fix lab.yaml --only lim.memlock"
    assert f"{command} --partial\n" in shown(failing("check"))
    whole = replace(failing("check"), nodes=reached(FOUR))
    assert f"{command}\n" in shown(whole)
    assert "clusterprep fix" not in shown(failing("check", TWINS))


@pytest.mark.parametrize(("sudo", "said"), [(0, " --become\n"), (1, None), (None, None)])
def test_a_user_without_root_is_told_a_fix_that_may_write(
    sudo: int | None, said: str | None
) -> None:
    facts = {"ssh.rights": Rights(1000, "ops", sudo)}
    text = shown(replace(failing("check"), nodes=reached(FOUR, facts)))
    assert ("clusterprep fix" in text) == (said is not None)
    assert said is None or f"--only lim.memlock{said}" in text


def test_a_message_that_is_cut_is_whole_with_verbose() -> None:
    fingerprints = [f"n{number} has SHA256:{number:043}" for number in range(64)]
    finding = Finding("ssh.reach", "fail", "error", FOUR, "; ".join(fingerprints))
    short = shown(report("check", findings=(finding,)))
    assert "-v shows all of it" in short
    assert fingerprints[-1] not in " ".join(short.split())
    assert fingerprints[-1] in " ".join(shown(report("check", findings=(finding,)), 1).split())


@pytest.mark.parametrize("fmt", ["console", "json", "markdown", "html", "junit", "nagios"])
def test_every_format_says_without_which_node_nothing_is_written(fmt: str) -> None:
    text = render(unreachable(), fmt)
    said = "nothing is written without n4" if fmt == "nagios" else "n4 was not reached ("
    assert said in text


@pytest.mark.parametrize("fmt", ["console", "markdown", "html"])
def test_what_is_as_wanted_names_its_nodes(fmt: str) -> None:
    row = ChangeRow(("n1", "n2"), "env", "/etc/nccl.conf", "none", "unchanged")
    text = render(report("apply", nodes=reached(FOUR), changes=(row,)), fmt).replace("`", "")
    assert "already as wanted on n[1-2]" in text


def test_every_remedy_stands_on_a_line_of_its_own_however_long() -> None:
    remedy = shell_line("ssh n1 {words}", words=["very long"] * 12)
    text = shown(
        report("check", findings=(Finding("a.b", "fail", "error", FOUR, "m", remedy=remedy),))
    )
    assert f"    fix: {remedy}" in text.splitlines()


def test_findings_that_differ_in_one_value_share_a_block() -> None:
    findings = tuple(
        Finding(
            "time.offset",
            "fail",
            "error",
            (name,),
            "m",
            f"{name} s",
            "0 s",
            shell_line("fix {name}", name=name),
        )
        for name in NAMES
    )
    text = shown(report("check", findings=findings))
    assert text.count("FAIL     time.offset") == 1
    assert "time.offset  gpu[01-16]" in text
    assert "14 more values" in text
    assert "1 error, " in text
    assert shown(report("check", findings=findings), verbose=1).count("wanted 0 s") == len(NAMES)


def unknown(check: str, nodes: tuple[str, ...] = FOUR, **values: str) -> Finding:
    remedy = shell_line("mend {check}", check=check)
    fields = {"message": "the driver hangs", "reason": "hung", "remedy": remedy, **values}
    return Finding(check, "unknown", fields.pop("severity", "error"), nodes, **fields)  # type: ignore[arg-type]


def test_what_one_missing_answer_leaves_open_is_told_once() -> None:
    checks = tuple(f"gpu.c{number:02}" for number in range(15))
    one = report("check", findings=tuple(map(unknown, checks)))
    text = shown(one)
    assert "UNKNOWN  15 checks  n[1-4]  (hung)" in text
    assert text.count("the driver hangs") == 1
    assert "left open: gpu.c00, gpu.c01" in text
    assert "and 3 more (-v names them)" in text.replace("\n         ", " ")
    assert text.count("fix:") == 1
    assert "fix: dmesg -T" in text
    other = report("check", findings=tuple(unknown(check, reason="garbled") for check in checks))
    assert "fix: clusterprep explain gpu.c00\n" in shown(other)
    assert all(check in shown(one, verbose=1) for check in checks)
    assert "15 unknown" in text


@pytest.mark.parametrize(
    "other",
    [
        unknown("gpu.b", FOUR[:2]),
        unknown("gpu.b", message="another"),
        unknown("gpu.b", reason="denied"),
        unknown("gpu.b", severity="warning"),
        unknown("gpu.b", seen="7"),
    ],
)
def test_unknowns_that_differ_stand_alone_with_their_fix(other: Finding) -> None:
    text = shown(report("check", findings=(unknown("gpu.a"), other)), verbose=1)
    assert "checks  n" not in text
    assert "fix: mend gpu.a" in text
    assert "fix: mend gpu.b" in text


def test_what_was_not_learned_now_says_when() -> None:
    findings = (
        Finding("torch.version", "fail", "error", FOUR[:1], "torch differs", age=721.4),
        Finding("nccl.iface", "unknown", "warning", FOUR[:1], "m", reason="hung", age=59.9),
        Finding("a.live", "fail", "error", FOUR[:1], "m"),
    )
    lines = shown(report("check", findings=findings)).splitlines()
    assert [line.split("  (")[1] for line in lines if "as of" in line] == [
        "as of 12 min 1 s ago)",
        "as of 60 s ago)  n1  once the node answers again",
    ]


def test_accepted_and_cured_findings_do_not_count() -> None:
    text = shown(unreachable())
    assert "accepted: vendor ticket 4711" in text
    assert "FIXED    env.nccl_conf" in text
    assert "0 errors, 0 warnings, 2 unknown (1 at most a warning) on 4 nodes, 1" in text


def test_passes_are_named_in_short_and_with_values_under_v() -> None:
    assert "PASS     18 checks; -v names them\n" in shown(clock_and_mtu())
    assert "kernel.version    6.8.0-45-generic" in shown(clock_and_mtu(), verbose=1)


def test_a_check_that_fails_somewhere_is_not_told_as_well() -> None:
    quiet = [line for line in shown(clock_and_mtu()).splitlines() if line.startswith("PASS")]
    assert not any("eth.mtu" in line for line in quiet)


def test_a_pass_on_part_of_the_nodes_says_on_how_many() -> None:
    skip = Finding("ib.state", "skip", "error", FOUR[2:], "", reason="not_applicable")
    assert "ib.state (2/4)" in shown(
        report("check", findings=(*passes(FOUR[:2], "ib.state"), skip))
    )


def test_skips_are_counted_and_listed_under_v() -> None:
    skip = Finding("pcie.gen", "skip", "warning", FOUR, "", reason="at_rest")
    assert "1 not judged (1 at_rest); -v lists them" in shown(report("check", findings=(skip,)))
    assert "pcie.gen  at_rest  n[1-4]" in shown(report("check", findings=(skip,)), verbose=1)


def test_a_lost_node_is_shown_where_no_check_speaks_of_it() -> None:
    lost = NodeSnapshot(
        "n4",
        "x",
        reached=False,
        reason="refused",
        detail="port 22 closed",
        remedy=shell_line("start sshd"),
        answered=False,
    )
    text = shown(report("env", nodes=(*reached(FOUR[:3]), lost), env=()))
    assert "LOST     n4  not reached: refused" in text
    assert "    fix: start sshd" in text


def test_equal_environment_values_are_told_once() -> None:
    env = tuple(EnvValue("NCCL_DEBUG", "WARN", (name,), "declared") for name in NAMES)
    text = shown(report("env", env=env))
    assert "Environment  1 variable on gpu[01-16]" in text
    assert text.count("NCCL_DEBUG=WARN") == 1


def test_values_that_differ_on_every_node_stop_after_a_few() -> None:
    env = tuple(
        EnvValue("GLOO_SOCKET_IFNAME", f"eth{at}", (name,), "derived")
        for at, name in enumerate(NAMES)
    )
    text = shown(report("env", env=env))
    assert text.count("GLOO_SOCKET_IFNAME=") == 5
    assert "11 more values" in text


def test_failed_changes_come_first_and_diffs_are_cut() -> None:
    diff = "\n".join(f"+line {number}" for number in range(50))
    done = ChangeRow(FOUR[:3], "env", "/etc/nccl.conf", "update", "done", diff)
    failed = ChangeRow(
        FOUR[3:], "env", "/etc/nccl.conf", "update", "failed", detail="No space left on device"
    )
    text = shown(report("apply", verdict="fail", code=1, changes=(done, failed)))
    assert text.index("No space left") < text.index("+line 0")
    assert "34 more lines" in text
    assert "then run the same command again" in text


def test_nothing_to_do_is_said() -> None:
    row = ChangeRow(FOUR, "env", "/etc/nccl.conf", "none", "unchanged")
    assert "Changes  none; already as wanted on n[1-4]: /etc/nccl.conf\n" in shown(
        report("apply", changes=(row,))
    )


def test_missing_ranks_are_told_with_their_nodes() -> None:
    text = shown(verify_culprit())
    assert "missing: rank 2-5 on n[2-3]" in text
    assert "CULPRIT  link n2 → n3  97% sure" in text


@pytest.mark.parametrize("verdict", ["pass", "fail", "unknown", "error", "refused", "interrupted"])
def test_an_empty_report_of_any_verdict_has_its_last_line(verdict: str) -> None:
    text = shown(report("check", verdict=verdict, nodes=reached(FOUR)))
    assert f"\n{verdict.upper()} " in text


def test_where_an_error_is_comes_first_unless_the_message_says_it() -> None:
    error = {"code": 2, "message": "expected a number", "file": "a.yaml", "line": 3, "key": "gpus"}
    assert "ERROR    a.yaml:3  gpus\n         expected a number" in shown(
        report("check", verdict="error", code=2, error=error)
    )
    said = {**error, "message": "a.yaml:3: gpus: expected a number"}
    assert "ERROR    a.yaml:3: gpus: expected" in shown(
        report("check", verdict="error", code=2, error=said)
    )


@pytest.mark.parametrize(
    ("verdict", "word"), [("refused", "REFUSED  "), ("interrupted", "STOPPED  ")]
)
def test_a_command_that_ended_early_says_how(verdict: str, word: str) -> None:
    error = {"code": 4, "message": "apply 20261121 holds the lock on n1"}
    assert f"\n{word}apply 20261121" in shown(report("apply", verdict=verdict, code=4, error=error))


def test_hundreds_of_different_changes_stop_after_a_few() -> None:
    rows = tuple(
        ChangeRow((f"n{at}",), "file", f"/etc/{at}", "update", "done") for at in range(500)
    )
    assert len(shown(report("apply", changes=rows)).splitlines()) < 30


def test_a_large_set_of_unrelated_names_says_its_size() -> None:
    names = [f"{word}-node" for word in "abcdefghijklmnopqrstuvwxyz"] * 1
    text = fold_nodes(names, 60)
    assert text.endswith(",… (26 nodes)")
    assert len(text) < 80


def test_replacing_the_run_leaves_the_look() -> None:
    assert "run " not in shown(replace(clock_and_mtu(), run="")).splitlines()[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00030001, "0.3 ms"),
        (0.0971234, "97.1 ms"),
        (1.2134, "1.21 s"),
        (64.234, "64.2 s"),
        (125, "2 min 5 s"),
    ],
)
def test_seconds_in_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_ranks_are_folded() -> None:
    assert fold_ranks([3, 0, 1, 2, 7, 7]) == "0-3,7"


def test_settings_that_were_tried_are_shown_with_what_they_cost() -> None:
    tried = (
        Workaround((), False, why="it hung"),
        Workaround(("NCCL_IB_DISABLE=1",), True, 4.0, 1 << 20, 0.5),
        Workaround(("NCCL_P2P_DISABLE=1", "NCCL_ALGO=Ring"), True, 8.0, 1 << 20, 1.0),
    )
    text = shown(
        report("verify", verify=VerifyResult("fail", "nccl", 2, 1, "a:1", workarounds=tried))
    )
    assert "tried   the same again  fails" in text
    assert "tried   NCCL_IB_DISABLE=1  works  4 GB/s at 1 MiB, 50% of the fastest" in text
    assert "tried   NCCL_P2P_DISABLE=1 NCCL_ALGO=Ring  works  8 GB/s at 1 MiB" in text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.0, "0"),
        (0.0000013, "<0.0001"),
        (0.00478, "0.00478"),
        (0.33, "0.330"),
        (1.2137, "1.21"),
        (12.5, "12.5"),
        (639.38, "639"),
    ],
)
def test_a_rate_has_three_digits(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def failed_on(node: str, output: str) -> ChangeRow:
    detail = f"{node}: step «tree» (line 1): apt-get install tree: exit code 100\n{output}"
    return ChangeRow((node,), "package", "tree", "create", "failed", detail=detail)


def test_a_command_that_failed_alike_on_all_nodes_is_told_once_with_its_last_lines() -> None:
    output = "\n".join(f"line {number}" for number in range(20))
    rows = tuple(failed_on(node, output) for node in FOUR)
    text = shown(report("apply", verdict="fail", code=1, changes=rows))
    assert text.count("exit code 100") == 1
    assert "failed      create package tree  n[1-4]" in text
    assert "line 16" not in text
    assert "line 17\n              line 18\n              line 19\n" in text
    assert "line 3" in shown(report("apply", verdict="fail", code=1, changes=rows), verbose=1)


def test_why_nothing_was_written_comes_before_what_was_not() -> None:
    diff = "@@ -0,0 +1 @@\n+a\n"
    rows = (
        *(ChangeRow(FOUR, "file", f"/etc/{n}", "create", "not-started", diff) for n in range(20)),
        ChangeRow(FOUR, "sysctl", "", "none", "not-started", detail="rmem_max is read-only"),
    )
    one = report("apply", verdict="fail", code=1, findings=(), changes=rows)
    lines = shown(one).splitlines()
    assert lines[4].strip() == "rmem_max is read-only"
    assert "+a" not in shown(one)
    assert "+a" in shown(one, verbose=1)


def test_warnings_are_not_named_as_what_made_a_change_fail() -> None:
    row = ChangeRow(FOUR, "sysctl", "", "none", "not-started", detail="rmem_max is read-only")
    warning = Finding("a.b", "fail", "warning", FOUR, "m", remedy=shell_line("mend"))
    lines = shown(
        report("apply", verdict="fail", code=1, findings=(warning,), changes=(row,))
    ).splitlines()
    assert "   next: mend what stands above, then run the same command again" in lines


def test_what_is_wanted_of_all_alike_is_said_once() -> None:
    findings = (
        Finding("a.b", "fail", "error", ("n1", "n2"), "m", "n1 to n2 timed out", "all open"),
        Finding("a.b", "fail", "error", ("n1", "n2"), "m", "n2 to n1 timed out", "all open"),
    )
    text = shown(report("check", findings=findings))
    assert "         n1 to n2 timed out → wanted all open\n         n2 to n1 timed out\n" in text
