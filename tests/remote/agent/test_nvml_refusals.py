"""Every call of NVML refused with every code, by one GPU and by all: what the checks then say.

The library is the stand-in, and what stands before it refuses: so the calls are those that the
reader makes, whatever it comes to ask.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.model import Finding
from tests.remote.agent.test_nvml import judged
from tests.support import nvml

pytestmark = pytest.mark.machine

# nvmlReturn_t of nvml.h 12.9 and 13.5: 0 to 29 are in both, 30 (RESET_TYPE_NOT_SUPPORTED) in the
# newer alone; 31 and 998 are in none.
CODES = (*range(1, 32), 998, 999)
# Those that the reader tells apart, and one that it does not know.
TELLING = (2, 3, 4, 8, 9, 11, 12, 13, 15, 16, 17, 18, 25, 26, 999)
INIT = "nvmlInitWithFlags"
COUNT = "nvmlDeviceGetCount_v2"
# Calls that fall back to an older or newer one, so that a refusal changes nothing by itself.
REPLACED = {
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetTemperature",
}
# Calls → checks that must not pass where such a call is refused for a reason other than that this
# GPU or driver does not have it.
NEEDED = {
    "nvmlDeviceGetHandleByIndex_v2": ("gpu.lost",),
    "nvmlDeviceGetName": ("gpu.lost", "gpu.model_mix", "fw.gpu"),
    "nvmlDeviceGetUUID": ("gpu.lost", "gpu.ecc_corr", "nvl.errors"),
    "nvmlDeviceGetPciInfo_v3": ("gpu.lost",),
    "nvmlDeviceGetVbiosVersion": ("fw.gpu",),
    "nvmlDeviceGetComputeMode": ("gpu.compute_mode",),
    "nvmlDeviceGetPersistenceMode": ("gpu.persistence",),
    "nvmlDeviceGetEnforcedPowerLimit": ("gpu.power_limit",),
    "nvmlDeviceGetPowerManagementDefaultLimit": ("gpu.power_limit",),
    "nvmlDeviceGetMaxClockInfo": ("gpu.clocks",),
    "nvmlDeviceGetEccMode": ("gpu.ecc_mode",),
    "nvmlDeviceGetTotalEccErrors": ("gpu.ecc_unc", "gpu.ecc_corr"),
    "nvmlDeviceGetRemappedRows": ("gpu.remap",),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("gpu.busy",),
    "nvmlDeviceGetMigMode": ("gpu.mig",),
    "nvmlDeviceGetCudaComputeCapability": ("gpu.model_mix",),
    "nvmlDeviceGetNvLinkState": ("nvl.state",),
    "nvmlDeviceGetCurrentClocksEventReasons": ("gpu.throttle_hw",),
    "nvmlDeviceGetP2PStatus": ("nvl.topology",),
    "nvmlDeviceGetFieldValues": ("gpu.recovery", "nvl.errors"),
    "nvmlDeviceGetBAR1MemoryInfo": ("pcie.bar",),
}
# A driver that does not know the call, or a GPU without what is asked: no fault. An older library
# answers 2 to a field that it does not know.
# 12 is read as 13: a library behind NVML is missing.
LACKS = {3, 12, 13}
LACKS_FIELDS = {2, 3, 12, 13}

ASK = """
import ctypes, json, sys
from clusterprep.remote.agent import nvml
from clusterprep.remote.agent.readers import NoAnswer

codes = json.loads(sys.argv[1])
library = ctypes.CDLL("libnvidia-ml.so.1")

class Refusing:
    called = {}

    def __init__(self, symbol=None, code=0, one=None):
        self.symbol, self.code, self.one = symbol, code, one

    def __getattr__(self, symbol):
        function = getattr(library, symbol)
        def call(*args):
            whose = args[0] if args and symbol.startswith("nvmlDevice") else None
            whose = getattr(whose, "value", whose)
            Refusing.called.setdefault(symbol, whose)
            if symbol == self.symbol and self.one in (None, whose):
                return self.code
            return function(*args)
        return call

def asked(refusing):
    reader = nvml.NvmlLibrary(refusing, ctypes, pause=0)
    try:
        reader.start()
        answer = reader.everything()
        reader.close()
    except NoAnswer as error:
        return ["no", error.reason, error.why]
    for row in answer["gpus"]:
        if "seconds" in row:
            row["seconds"] = 0.0
    return ["ok", answer]

print(json.dumps(["", 0, None, asked(Refusing())]))
for symbol, whose in sorted(Refusing.called.items()):
    ones = [None]
    if symbol.startswith("nvmlDevice") and symbol != "nvmlDeviceGetCount_v2":
        ones.append(1 if symbol == "nvmlDeviceGetHandleByIndex_v2" else whose)
    for code in codes:
        for one in ones:
            print(json.dumps([symbol, code, one is not None, asked(Refusing(symbol, code, one))]))
"""


def answers(folder: Path, codes: tuple[int, ...]) -> Iterator[tuple[str, int, bool, Any]]:
    """Call, code, whether only one GPU refuses, and what the reader then answers."""
    nvml.build(folder, [{"count": 2}])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(codes)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        symbol, code, one, answer = json.loads(line)
        yield symbol, code, bool(one), answer


def wrong(symbol: str, code: int, findings: list[Finding]) -> Iterator[str]:
    """What is said and must not be said, or is not said although it must."""
    said = {(f.check, f.verdict): f for f in findings}
    for finding in findings:
        if finding.reason == "garbled" or "a bug" in finding.message or "Error:" in finding.message:
            yield f"{finding.check} breaks: {finding.message}"
    failing = {check for check, verdict in said if verdict == "fail"}
    whole = symbol == COUNT or (symbol == INIT and code != 13)  # 13: nvmlInit_v2 is called
    no_driver = whole and code == 9
    for check in sorted(failing - may_fail(symbol, code)):
        yield f"{check} fails: {said[check, 'fail'].message}"
    about_one = symbol.startswith("nvmlDevice") and symbol != "nvmlDeviceGetP2PStatus"
    if (about_one or whole) and code in (15, 16) and "gpu.lost" not in failing:
        yield "a GPU that is lost or needs a reset is no error"
    if whole and code != 9:
        passing = sorted(c for c, verdict in said if verdict == "pass" and c not in OF_OTHERS)
        if passing:
            yield f"nothing is known, and {', '.join(passing)} pass"
    lacks = LACKS_FIELDS if symbol == "nvmlDeviceGetFieldValues" else LACKS
    for check in NEEDED.get(symbol, ()):
        told = "gpu.lost" in failing or (check == "gpu.lost" and ("gpu.hidden", "unknown") in said)
        if code not in lacks and (check, "pass") in said and not told:
            yield f"{check} passes"
    if no_driver:
        return
    if "gpu.busy" not in {f.check for f in findings if f.verdict != "skip"}:
        yield "gpu.busy is skipped, so that ranks would be started"


OF_OTHERS = {"gpu.hidden", "nv.module_vs_lib", "gpu.imex", "gpu.fabricmanager"}


def may_fail(symbol: str, code: int) -> set[str]:
    """The checks that may fail where a call of a sound machine is refused so."""
    if symbol == "nvmlDeviceGetGspFirmwareVersion" and code in LACKS:
        return {"fw.gpu"}  # one GPU alone runs without GSP
    if symbol in (INIT, COUNT):
        if code == 18:
            return {"nv.module_vs_lib"}
        if code == 9:
            return {"gpu.count"}  # GPUs are on the bus, and NVML says that no driver is loaded
        return {"gpu.lost"} - ({"gpu.lost"} if code in (4, 17) else set())
    return {"gpu.lost"} if code in (8, 11, 15, 16) else set()


def violations(folder: Path, codes: tuple[int, ...]) -> list[str]:
    found = []
    healthy = True
    for symbol, code, one, answer in answers(folder, codes):
        findings = judged(answer, gpus=2)
        if not symbol:
            healthy = all(finding.verdict in ("pass", "skip") for finding in findings)
            continue
        whose = "one GPU" if one else "all"
        found += [f"{symbol} {code} of {whose}: {line}" for line in wrong(symbol, code, findings)]
    assert healthy
    return found


def test_no_refusal_breaks_a_check_or_passes_or_accuses(tmp_path: Path) -> None:
    assert violations(tmp_path, TELLING) == []


@pytest.mark.slow
def test_no_code_of_the_header_breaks_a_check_or_passes_or_accuses(tmp_path: Path) -> None:
    assert violations(tmp_path, CODES) == []
