"""The job's PyTorch and NCCL, found without importing torch: milliseconds instead of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Read

# Runs in the job's interpreter, as the job's user. torch/version.py is read as text. NCCL is asked for its version
# through the library file that the wheel brings (NVIDIA's nvidia-nccl-cu* packages), which needs no GPU or driver.
# What it imports is there before any script starts, which keeps a look at 64 nodes cheap.
SCRIPT = r"""
import importlib.machinery, os, sys
def quoted(lines, name):
    for line in lines:
        if line.split("=")[0].split(":")[0].strip() == name:
            return line.split("=", 1)[1].strip().strip("'\"")
found = {"python": sys.executable, "version": None, "cuda": None, "nccl": None, "where": None}
spec = importlib.machinery.PathFinder.find_spec("torch")
if spec is not None and spec.origin:
    found["where"] = os.path.dirname(spec.origin)
    lines = open(os.path.join(found["where"], "version.py")).read().splitlines()
    for key, name in (("version", "__version__"), ("cuda", "cuda")):
        value = quoted(lines, name)
        found[key] = None if value == "None" else value
    path = os.path.join(os.path.dirname(found["where"]), "nvidia", "nccl", "lib", "libnccl.so.2")
    if os.path.exists(path):
        import ctypes
        code = ctypes.c_int()
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
            found["nccl"] = code.value
def text(value):
    if value is None or isinstance(value, int):
        return "null" if value is None else str(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
print("{" + ", ".join('"' + key + '": ' + text(value) for key, value in found.items()) + "}")
"""


@dataclass(frozen=True)
class Torch:
    """The torch that the job's interpreter would import; None fields mean that it brings no such thing."""

    version: str | None  # None: no torch in this interpreter
    cuda: str | None  # the CUDA it was built for; None: a CPU build
    nccl: str | None
    where: str | None


def parse_torch(answer: dict[str, Any]) -> Torch:
    if answer["where"] and not answer["version"]:
        raise ValueError("torch/version.py holds no version")
    code = answer["nccl"]
    return Torch(answer["version"], answer["cuda"], None if code is None else nccl_version(code), answer["where"])


def nccl_version(code: int) -> str:
    """NCCL_VERSION_CODE as text: 21805 and 2 18 5 are one thing; before 2.9 the minor had two digits fewer (nccl.h)."""
    if code < 10000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


TORCH = Fact(
    "torch.build",
    lambda node, inventory: (Read("job_python", (node.python, node.job_user, SCRIPT), limit=15.0),),
    parse_torch,
)
