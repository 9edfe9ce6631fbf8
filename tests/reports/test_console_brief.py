"""The console by importance: errors whole, a line for all else, and what to do at the end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.model import ChangeRow, Finding, GpuSeat, Report
from clusterprep.model.history import Since, Turn
from clusterprep.remedies import shell_line
from clusterprep.reports import render
from clusterprep.reports.page import QUIET
from clusterprep.survey.judge import BECOME

from .situations import (
    CONF,
    FOUR,
    PROFILE,
    WELL,
    clock_and_mtu,
    environment,
    passes,
    reached,
    report,
    skip,
    trial,
)

FLEET = tuple(f"gpu{number:02}" for number in range(1, 65))
BEFORE = "2026-11-21T07:30:00Z"


def shown(one: Report, width: int = 80) -> list[str]:
    return render(one, "console", width=width).splitlines()


def warning(check: str, nodes: tuple[str, ...] = FOUR, **values: str) -> Finding:
    texts = {"message": "Too few.", "seen": "1024", "wanted": "at least 65536", **values}
    return Finding(check, "fail", "warning", nodes, remedy=shell_line("mend it"), **texts)  # type: ignore[arg-type]


def not_known(check: str, reason: str, message: str = "m", *, sudo: bool = False) -> Finding:
    remedy = BECOME if sudo else shell_line("")
    return Finding(check, "unknown", "warning", FOUR, message, reason=reason, remedy=remedy)


def healthy(nodes: tuple[str, ...]) -> Report:
    """A fleet with GPUs on which more checks pass than fit a line."""
    seats = []
    for index in range(8):
        place = f"0000:{index}b:00.0"
        near = ("mlx5_0", "mlx5_3")
        seats.append(GpuSeat(nodes, index, "NVIDIA H200", place, index // 4, 18, near))
    return report(
        "check",
        nodes=reached(nodes),
        findings=(
            *passes(nodes, *WELL, *(f"gpu.thing_{number}" for number in range(60))),
            skip("pcie.link", nodes, "at_rest"),
            skip("ib.state", nodes, "not_applicable"),
        ),
        gpus=tuple(seats),
        since=Since("20261121-073000-11aa", BEFORE),
    )


@pytest.mark.parametrize("nodes", [FOUR, FLEET])
@pytest.mark.parametrize("width", [80, 200])
def test_a_healthy_fleet_has_eight_lines_at_most(nodes: tuple[str, ...], width: int) -> None:
    lines = shown(healthy(nodes), width)
    assert len(lines) <= 8, "\n".join(lines)
    assert lines[-2].startswith(f"PASS     0 errors, 0 warnings, 0 unknown on {len(nodes)} nodes")


def errors_and_warnings() -> Report:
    """Three errors, of which two have other values on each node, and ten warnings."""
    clocks = tuple(
        Finding(
            "time.offset",
            "fail",
            "error",
            (name,),
            "The clock is ahead of the other nodes; timeouts and log order cannot be trusted.",
            f"+5.00{place} s ± 0.4 ms",
            "≤ 50 ms",
            shell_line("ssh {name} sudo chronyc makestep", name=name),
        )
        for place, name in enumerate(FLEET[:9])
    )
    versions = tuple(
        Finding(
            "torch.version",
            "fail",
            "error",
            (name,),
            "torch differs from the other nodes: collectives may hang or be refused.",
            f"2.{place}.0 on {name}; 2.6.0 on the others",
            "2.6.0",
        )
        for place, name in enumerate(FLEET[20:24])
    )
    ports = Finding(
        "net.ports",
        "fail",
        "error",
        FLEET[40:42],
        "2 of 63 others do not get through to it.",
        "timed out from gpu[01-02]",
        "all ports open between the nodes",
        shell_line("nft list ruleset"),
    )
    warnings = tuple(warning(f"lim.limit_{number}", FLEET) for number in range(10))
    base = healthy(FLEET)
    turn = Turn("net.ports", "fail", "error", FLEET[40:42])
    return replace(
        base,
        verdict="fail",
        code=1,
        findings=(*warnings, *clocks, *versions, ports, *(base.findings or ())),
        since=Since("20261121-073000-11aa", BEFORE, (turn,)),
    )


@pytest.mark.parametrize("width", [80, 200])
def test_three_errors_and_ten_warnings_fit_forty_lines(width: int) -> None:
    lines = shown(errors_and_warnings(), width)
    assert len(lines) <= 40, "\n".join(lines)
    assert sum(line.startswith("WARN     lim.limit_") for line in lines) == 10
    assert "    fix: nft list ruleset" in lines


def test_a_warning_is_one_line_of_the_width_of_the_terminal() -> None:
    long = warning("lim.nofile", seen="x" * 300)
    for width in (80, 200):
        lines = shown(report("check", findings=(long,)), width)
        (line,) = [line for line in lines if line.startswith("WARN")]
        assert len(line) == width
        assert line.endswith("…")


def test_a_warning_with_several_values_says_how_many() -> None:
    findings = (warning("lim.nofile", ("n1",)), warning("lim.nofile", ("n2",), seen="512"))
    assert "WARN     lim.nofile  n[1-2]  n1: 1024 → wanted at least 65536; 1 other value" in shown(
        report("check", findings=findings)
    )


def test_the_last_lines_name_the_command_for_the_rest() -> None:
    only = report("check", findings=(warning("lim.nofile"),))
    assert "   more: clusterprep explain --run last lim.nofile   # all of it: -v" in shown(only)
    assert "   more: clusterprep explain time.offset   # all of it: -v" in shown(clock_and_mtu())
    assert "all of it" not in render(clock_and_mtu(), "console", verbose=1)


def test_with_strict_a_warning_is_shown_whole() -> None:
    lines = shown(report("check", strict=True, findings=(warning("lim.nofile"),)))
    assert "    fix: mend it" in lines


def test_unknown_checks_are_grouped_by_what_would_make_them_known() -> None:
    findings = (
        not_known("env.shadow", "denied", "/proc/1/environ", sudo=True),
        not_known("log.kernel", "denied", "/dev/kmsg", sudo=True),
        not_known("pcie.acs", "denied"),
        not_known("torch.version", "missing_tool", "no torch; set `python:`"),
        not_known("disk.nvme", "missing_tool", "nvme is not installed"),
        not_known("gpu.busy", "some other reason"),
    )
    lines = shown(report("check", findings=findings))
    assert [line for line in lines if line.startswith("UNKNOWN")] == [
        "UNKNOWN  env.shadow, log.kernel  n[1-4]  with --become",
        "UNKNOWN  pcie.acs  n[1-4]  with more rights",
        "UNKNOWN  torch.version  n[1-4]  with python: set",
        "UNKNOWN  disk.nvme  n[1-4]  with a tool that the node lacks",
        "UNKNOWN  gpu.busy  n[1-4]  see explain (some other reason)",
    ]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (4, "a.0, a.1, a.2, a.3"),
        (5, "a.0, a.1, a.2 and 2 others"),
    ],
)
def test_however_long_the_reason_an_unknown_check_is_named(number: int, said: str) -> None:
    reason = "fewer than three pairs were measured, which is no comparison"
    findings = [not_known(f"a.{place}", reason) for place in range(number)]
    assert any(
        line.startswith(f"UNKNOWN  {said}  n[1-4]  see explain (fewer than")
        for line in shown(report("check", findings=tuple(findings)))
    )


def test_what_is_unknown_and_an_error_is_shown_whole() -> None:
    grave = Finding("ssh.reach", "unknown", "error", ("n4",), "no answer", reason="timed_out")
    lines = shown(report("check", findings=(grave,)))
    assert "UNKNOWN  ssh.reach  n4  (timed_out)" in lines
    assert "         no answer" in lines


def test_the_end_says_verdict_then_what_to_do_then_what_is_new() -> None:
    lines = shown(errors_and_warnings())
    labels = [line.split()[0] for line in lines[-4:]]
    assert labels == ["FAIL", "next:", "more:", "since:"]
    assert lines[-1].endswith("1 new: net.ports gpu[41-42]")


def unchanged(verdict: str = "pass") -> Report:
    wanted = tuple(ChangeRow(FOUR, "env", name, "none", "unchanged") for name in (PROFILE, CONF))
    return report(
        "apply",
        nodes=reached(FOUR),
        findings=passes(FOUR, *WELL),
        env=environment(FOUR),
        changes=wanted,
        verify=replace(trial(FOUR), verdict=verdict),
    )


def test_apply_that_changes_nothing_is_short() -> None:
    text = "\n".join(shown(unchanged()))
    assert len(text.splitlines()) <= 10
    assert f"Changes  none; already as wanted on n[1-4]: {PROFILE}" in text
    assert "Verify   PASS  gloo, 8 ranks, all_reduce 1.21 GB/s at 64 MiB" in text
    assert "NCCL_SOCKET_IFNAME" not in text


def test_apply_that_changes_nothing_shows_all_with_diff() -> None:
    text = render(unchanged(), "console", verbose=1)
    assert "NCCL_SOCKET_IFNAME=eth0" in text
    assert "busbw GB/s" in text


def test_a_trial_that_fails_is_never_short() -> None:
    assert "busbw GB/s" in "\n".join(shown(unchanged("fail")))


def test_quiet_is_one_line() -> None:
    for one in (clock_and_mtu(), healthy(FLEET), unchanged()):
        assert render(one, "console", verbose=QUIET).count("\n") == 1
    line = render(clock_and_mtu(), "console", verbose=QUIET, ascii_only=True)
    assert line.startswith("FAIL check demo: 2 errors, 1 warning, 0 unknown on 16 nodes; time.")
    assert line.isascii()


def test_nothing_is_drawn_with_lines() -> None:
    drawn = {chr(code) for code in range(0x2500, 0x2600)}
    for one in (clock_and_mtu(), healthy(FLEET), unchanged()):
        assert not drawn.intersection(render(one, "console"))
