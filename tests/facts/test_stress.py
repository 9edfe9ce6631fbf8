"""What DCGM's diagnostics say, in the forms of several releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterprep.facts.stress import Diagnostics, DiagnosticTest, parse_diagnostics
from clusterprep.model import Absent

ALL = tuple(f"GPU {index}" for index in range(8))


def said(out: Any, code: int = 0, err: str = "") -> Any:
    text = out if isinstance(out, str) else json.dumps(out)
    return parse_diagnostics(2, {"code": code, "out": text, "err": err})


def rows(*rows: dict[str, Any], name: str = "memory", root: str = "DCGM Diagnostic") -> Any:
    tests = [{"name": name, "results": list(rows)}]
    return {root: {"test_categories": [{"category": "Hardware", "tests": tests}]}}


# NVIDIA/DCGM, nvvs/tests/JsonResultTests.cpp, «Deserialize real output» of DCGM 3.1.0, cut.
DCGM_3_1 = """
	WARNING: THIS SHOULD NOT HAPPEN
	{
	"DCGM GPU Diagnostic" :
	{
		"test_categories" :
		[
			{
				"category" : "Deployment",
				"tests" :
				[
					{
						"name" : "Denylist",
						"results" :
						[
							{
								"gpu_ids" : "0,1,2,3,4,5,6,7",
								"status" : "PASS"
							}
						]
					},
					null,
					{
						"name" : "NVML Library",
						"results" :
						[
							{
								"gpu_ids" : "0,1,2,3,4,5,6,7",
								"status" : "PASS"
							}
						]
					}
				]
			},
			{
				"category" : "Custom",
				"tests" :
				[
					{
						"name" : "software",
						"results" :
						[
							{
								"gpu_ids" : 0,
								"status" : "PASS"
							},
							{
								"gpu_ids" : 1,
								"status" : "PASS"
							}
						]
					}
				]
			}
		],
		"version" : "3.1.0"
	}
}
"""

# github.com/NVIDIA/DCGM/issues/139: DCGM 3 on a T400 that it does not support.
DCGM_3_3_SKIPS = """
{
	"DCGM GPU Diagnostic" :
	{
		"test_categories" :
		[
			{
				"category" : "Integration",
				"tests" :
				[
					{
						"name" : "PCIe",
						"results" :
						[
							{
								"gpu_id" : "0",
								"status" : "Skip"
							}
						]
					}
				]
			},
			{
				"category" : "Hardware",
				"tests" :
				[
					{
						"name" : "GPU Memory",
						"results" :
						[
							{
								"gpu_id" : "0",
								"status" : "Skip"
							}
						]
					}
				]
			}
		]
	}
}
"""

# Level 1 of DCGM 4 on eight GPUs without persistence mode, as a test of a public fault analyser
# for HyperPod keeps it.
DCGM_4_PERSISTENCE = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [
                            {
                                "entity_group": "GPU",
                                "entity_id": gpu,
                                "status": "Fail",
                                "warnings": [
                                    {
                                        "error_category": 8,
                                        "error_id": 29,
                                        "error_severity": 5,
                                        "warning": "Persistence Mode: Persistence mode for GPU "
                                        f"{gpu} is disabled.",
                                    }
                                ],
                            }
                            for gpu in range(8)
                        ],
                    }
                ],
            }
        ]
    }
}


def test_release_3_1() -> None:
    assert said(DCGM_3_1) == Diagnostics(
        2,
        (
            DiagnosticTest("Denylist", "pass", ALL),
            DiagnosticTest("NVML Library", "pass", ALL),
            DiagnosticTest("software", "pass", ("GPU 0", "GPU 1")),
        ),
        "3.1.0",
    )


def test_release_3_that_skips() -> None:
    assert said(DCGM_3_3_SKIPS).tests == (
        DiagnosticTest("PCIe", "skip", ("GPU 0",)),
        DiagnosticTest("GPU Memory", "skip", ("GPU 0",)),
    )


def test_release_4_with_a_warning_for_each_gpu() -> None:
    (test,) = said(DCGM_4_PERSISTENCE, code=226).tests
    assert (test.name, test.status, test.entities) == ("software", "fail", ALL)
    assert test.said[3] == "Persistence Mode: Persistence mode for GPU 3 is disabled."


def test_gpus_of_one_test_with_other_verdicts_are_told_apart() -> None:
    """Composed."""
    answer = rows(
        {"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
        {"entity_group": "GPU", "entity_id": 1, "status": "Fail", "warnings": ["row remap failed"]},
        {"entity_group": "CPU", "entity_id": 0, "status": "Skip"},
    )
    assert said(answer).tests == (
        DiagnosticTest("memory", "pass", ("GPU 0",)),
        DiagnosticTest("memory", "fail", ("GPU 1",), ("row remap failed",)),
        DiagnosticTest("memory", "skip", ("CPU 0",)),
    )


def test_a_verdict_that_no_release_has_is_never_a_pass() -> None:
    """Composed."""
    assert said(rows({"entity_id": 0, "status": "Not Run"})).tests[0].status == "skip"


@pytest.mark.parametrize(
    ("out", "code", "err", "reason"),
    [
        pytest.param(
            "Error: unable to establish a connection to the specified host: localhost\n",
            255,
            "",
            "garbled",
            id="no-host-engine",
        ),
        pytest.param(
            'Error: Unable to run diagnostic on unsupported GPU 0.\n{"DCGM GPU Diagnostic":'
            '{"version":"4.2.3"}}',
            1,
            "",
            "could not run",
            id="unsupported-gpu",
        ),
        pytest.param(
            '{"DCGM Diagnostic": {"runtime_error": "no GPU"}}', 1, "", "could not run", id="error"
        ),
        pytest.param("", 0, "", "garbled", id="nothing"),
    ],
)
def test_what_is_no_report_is_not_known(out: str, code: int, err: str, reason: str) -> None:
    found = said(out, code, err)
    assert isinstance(found, Absent)
    assert found.reason == reason


def test_no_dcgmi() -> None:
    assert parse_diagnostics(2, None) == Absent("missing_tool", "dcgmi is not installed")


@pytest.mark.parametrize("out", ['{"a": 1}', "{", "[]{}"])
def test_other_documents_are_refused(out: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        said(out)
