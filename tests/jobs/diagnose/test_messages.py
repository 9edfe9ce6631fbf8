"""Messages of other programs: taken out of sources, given a meaning, found again in lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.jobs.diagnose import messages
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose
from clusterprep.reports.diagnosis import render
from tests.support import readme
from tests.support.messages import c_source, coverage, page, python_source, table
from tests.support.messages.other_source import go_reasons, shell_messages
from tests.support.messages.projects import PROJECTS

NCCL = PROJECTS["nccl"]
TORCH = PROJECTS["torch"]
PROGRAMS = messages.programs()


def line(text: str):
    return line_of("log", 1, text)


def texts(project, path: str, source: str) -> list[str]:
    return [c_source.tidied(text) for text, _ in project.texts(path, source)]


# ---------------------------------------------------------------- sources


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            'WARN("NET/IB : Got completion from peer %s with status=%d", name, status);',
            "NET/IB : Got completion from peer … with status=",
            id="formats-are-gaps",
        ),
        pytest.param(
            'WARN("Bootstrap Root : mismatch in rank count " /* of both */\n  "from procs %d", n);',
            "Bootstrap Root : mismatch in rank count from procs",
            id="parts-on-two-lines",
        ),
        pytest.param(
            'WARN("Failed to CUDA malloc %" PRIu64 " bytes, 100%% lost", size);',
            "Failed to CUDA malloc … bytes, 100% lost",
            id="macros-in-the-text",
        ),
        pytest.param(
            'if (a) WARN(b ? "one way of it" : "another", x);',
            "one way of it",
            id="an-operator-ends-it",
        ),
    ],
)
def test_a_warning_of_nccl_is_its_text_with_gaps(source: str, expected: str) -> None:
    assert texts(NCCL, "src/a.cc", source) == [expected]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            'TORCH_CHECK(size > 0, "size of rank ", rank, " must be positive");',
            "size of rank … must be positive",
            id="check",
        ),
        pytest.param(
            'LOG(ERROR) << logPrefix() << "Failed to get exception dump flag" << "."; next("x");',
            "Failed to get exception dump flag.",
            id="stream",
        ),
        pytest.param(
            'C10D_ERROR("The server socket on {} has failed to accept", address);',
            "The server socket on … has failed to accept",
            id="braces",
        ),
    ],
)
def test_arguments_of_torch_are_joined(source: str, expected: str) -> None:
    assert texts(TORCH, "torch/csrc/distributed/c10d/a.cpp", source) == [expected]


def test_definitions_of_the_macros_are_no_messages() -> None:
    assert texts(NCCL, "src/debug.h", '#define WARN(...) log("a b", __VA_ARGS__)') == []


def test_what_python_raises_logs_and_asserts() -> None:
    source = """
def f(name, node):
    text = f"The node {name} is gone"
    raise RuntimeError(text)
    logger.warning("%s has failed to shut down", node)
    assert node, "a node " + "was expected"
    print("nothing")
"""
    assert list(python_source.messages(source)) == [
        "The node … is gone",
        "%s has failed to shut down",
        "a node was expected",
    ]


def test_what_is_no_python_of_today_has_no_messages() -> None:
    assert list(python_source.messages("print 'x'")) == []


def test_shell_and_go() -> None:
    shell = 'common::err "Could not find ${name} in the image"\necho "hello"'
    assert list(shell_messages(shell)) == ["Could not find … in the image"]
    go = '\tPodReasonUnschedulable = "Unschedulable"\n\tReasonX string = "PodFailurePolicy"\n'
    assert list(go_reasons(go)) == ["PodFailurePolicy"]


def test_a_message_has_its_first_and_last_version_and_its_last_file(tmp_path: Path) -> None:
    kept = 'WARN("Failed to open the file %s", name);'
    for tag, path, source in (
        ("v2.18.1-1", "src/a.cc", kept),
        ("v2.20.3-1", "src/a.cc", kept + 'WARN("Failed to close the file %s", name);'),
        ("v2.30.7-1", "src/b.cc", kept),
    ):
        file = tmp_path / tag / path
        file.parent.mkdir(parents=True)
        file.write_text(source)
    rows = table.extract(NCCL, tmp_path)
    assert [(row.text, row.kind, row.file, row.first, row.last) for row in rows] == [
        ("Failed to close the file", "w", "src/a.cc", "2.20.3", "2.20.3"),
        ("Failed to open the file", "w", "src/b.cc", "2.18.1", "2.30.7"),
    ]
    assert table.extract(NCCL, tmp_path) == rows


def test_versions_of_which_only_the_library_is_there(tmp_path: Path) -> None:
    source = 'LOG(ERROR) << "Failed to get rank " << rank << " from the global store";'
    file = tmp_path / "2.4.0" / "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    for version, strings in (
        ("2.3.1", "Failed to get rank \nother"),
        ("2.9.1", " from the global store\nFailed to get rank \n"),
    ):
        (tmp_path / version).mkdir()
        (tmp_path / version / "strings.txt").write_text(strings)
    (row,) = table.extract(TORCH, tmp_path)
    assert (row.first, row.last) == ("2.4.0", "2.9.1")


@pytest.mark.parametrize(
    "text", ["failed: …", "…", "Invalid argument", "… : …", "No such file or directory"]
)
def test_what_any_program_may_print_is_no_message(text: str) -> None:
    assert not table.has_own_text(text)


# ---------------------------------------------------------------- rules


def test_every_warning_of_nccl_has_a_rule() -> None:
    left = coverage.of("nccl").unclassified
    assert [message.text for message in left] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_rules_name_causes_and_fit_messages(program: str) -> None:
    assert messages.rules(program), "a table without rules"
    for rule in messages.rules(program):
        assert rule.kind in causes() or rule.kind in messages.WORDS, rule
    assert coverage.of(program).unused == ()


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_rule_calls_a_log_harmless_or_degraded_by_a_benign_cause(program: str) -> None:
    for rule in messages.rules(program):
        cause = causes().get(rule.kind)
        assert cause is None or cause.severity != "benign", f"{rule} would give exit code 0"


def test_tables_are_sorted_and_have_a_word_to_find_each_message_by() -> None:
    for program in PROGRAMS:
        rows = (messages.FOLDER / f"{program}.tsv").read_text(encoding="utf-8").splitlines()
        cells = [row.split("\t") for row in rows]
        assert all(len(row) == 6 and row[0] in row[1] and row[2] in {"w", "i"} for row in cells)
        assert [row[1] for row in cells] == sorted(row[1] for row in cells)


def test_the_page_has_the_counts_of_today() -> None:
    assert readme.MESSAGES.read_text() == page.page()


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("text", "program"),
    [
        pytest.param(
            "n1:7:9 [0] transport/net_ib.cc:100 NCCL WARN NET/IB : Got completion from peer "
            "10.0.0.1<5000> with status=12 opcode=0 len=0 vendor err 129 (Send)",
            "nccl",
            id="nccl",
        ),
        pytest.param(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks "
            "have been OOM Killed.",
            "slurm",
            id="slurm",
        ),
        pytest.param(
            "ValueError: local_rank 8 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1",
            "torch",
            id="torch",
        ),
        pytest.param("step 12: loss 0.31, the transport was not late", None, id="prose"),
    ],
)
def test_lines_are_known_by_the_text_around_the_gaps(text: str, program: str | None) -> None:
    message = messages.known(line(text))
    assert (message.program if message else None) == program


def test_an_origin_names_program_versions_and_file() -> None:
    shown = messages.origin(line("NCCL WARN Failed to open the GIN plugin: no such file"))
    assert shown == ""
    shown = messages.origin(line("NCCL WARN Message truncated : received 8 bytes instead of 4"))
    assert shown.startswith("NCCL 2.")
    assert ", src/" in shown


def test_the_report_tells_who_prints_what_it_cannot_explain() -> None:
    text = "NCCL WARN Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='/x') : no such file"
    shown = render(
        diagnose([line(text)]),
        "console",
        color=False,
        verbose=0,
        width=120,
        ascii_only=False,
    )
    assert "printed by NCCL 2.17.1 to 2.20.5, src/misc/cudawrap.cc" in shown


def test_short_texts_have_no_origin() -> None:
    short = line("failed to switch root: 5")
    assert messages.known(short) is not None
    assert messages.origin(short) == ""


def test_a_rule_gives_a_cause_where_no_sign_does() -> None:
    row = line(
        "n1:7:9 [0] p2p_resiliency.cc:400 NCCL WARN NET/IB: Maximum number of probing attempts "
        "(3) reached for request 0x1 (id=4). Cannot post another probe."
    )
    (found,) = diagnose([row]).causes
    assert (found.cause.name, found.confidence) == ("ib_fabric_unreachable", 0.75)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            (
                "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested "
                "gpu: [0, 1, 2, 3]"
            ),
            "invalid_device_ordinal",
        ),
        (
            (
                "ConnectionError: Tried to launch distributed communication on port `29500`, but "
                "another process is utilizing it. Please specify a different port (such as using "
                "the `--main_process_port` flag or specifying a different `main_process_port` in "
                "your config file) and rerun your script."
            ),
            "port_in_use",
        ),
        (
            (
                "ConnectionError: Looks like distributed multinode run but MASTER_ADDR env not "
                "set, please try exporting rank 0's hostname as MASTER_ADDR"
            ),
            "rendezvous_misconfigured",
        ),
        (
            "ValueError: The node_rank must be less than the number of nodes.",
            "rendezvous_misconfigured",
        ),
        (
            "ValueError: local_rank 8 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1",
            "invalid_device_ordinal",
        ),
        (
            (
                "n1:7:9 [0] init.cc:99 NCCL WARN NCCL library version is too old. This application "
                "was compiled with NCCL version 23004, but is running with NCCL library version 2."
            ),
            "nccl_library_conflict",
        ),
        (
            (
                "[1711111111.123456] [n1:77   :0]  mm_posix.c:200  UCX  ERROR Not enough memory to "
                "write total of 4292720 bytes. Please check that /dev/shm or the directory you "
                "specified has more available memory."
            ),
            "shm_too_small",
        ),
    ],
)
def test_causes_that_libraries_name_themselves(text: str, cause: str) -> None:
    found = diagnose([line(text)]).causes
    assert [row.cause.name for row in found][:1] == [cause]
    assert found[0].confidence >= 0.6


def test_information_is_no_evidence() -> None:
    text = "[INFO] ValueError: local_rank 8 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1"
    assert line(text).level == "INFO"
    assert diagnose([line(text)]).causes == ()


@pytest.mark.parametrize(
    "text",
    [
        "salloc: Job allocation 4711 has been revoked.",
        (
            "n1:7:9 [0] NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 8 : "
            "CUDA error 800 'not permitted'. Proceeding without NVLS support."
        ),
        "[W socket.cpp:500] The server socket has failed to listen on any local network address.",
        (
            "UserWarning: Port `29500` is already in use. Accelerate will attempt to launch in a "
            "standalone-like mode by finding an open port automatically for this session. If this "
            "current attempt fails, or for more control in future runs, please specify a port."
        ),
    ],
)
def test_no_rule_speaks_where_a_program_goes_on(text: str) -> None:
    rule = messages.meaning(line(text))
    assert rule is not None
    assert rule.kind in messages.WORDS


@pytest.mark.parametrize(
    "text",
    [
        # harmless
        "n1:7:9 [0] NCCL WARN NCCL_CGA_CLUSTER_SIZE value 99 is too big. Limiting value to 8.",
        # echo
        "n1:7:9 [0] NCCL WARN commReclaim: comm 0x1 (rank = 3) in abort, error 6",
    ],
)
def test_harmless_lines_and_echoes_are_no_causes_and_need_no_explanation(text: str) -> None:
    assert messages.tells_nothing(line(text))
    crash = line_of("log", 2, "CUDA error: out of memory in rank 3", 1)
    found = diagnose([line(text), crash])
    assert [cause.cause.name for cause in found.causes] == ["rank_gpu_oom"]
    assert [row.number for row in found.unexplained] == []


@pytest.mark.parametrize(
    "text",
    [
        "NCCL WARN ncclRedOpDestroy : invalid communicator passed.",  # program
        "NCCL WARN Failed to malloc 4096 bytes",  # open
    ],
)
def test_what_has_no_cause_by_the_rules_stays_unexplained(text: str) -> None:
    rule = messages.meaning(line(text))
    assert rule is not None
    assert rule.kind in {"program", "open"}
    assert diagnose([line(text)]).causes == ()
