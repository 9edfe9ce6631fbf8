"""The CUDA toolkit that /usr/local/cuda leads to."""

from __future__ import annotations

import json
import re
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Read

# Of CUDA 11.8 to 12.2 the file has the day of the build in place of the third number; its version
# of nvcc tells the release (CUDA release notes, table of component versions).
NVCC = {
    "11.8.89": "11.8.0",
    "12.0.76": "12.0.0",
    "12.0.140": "12.0.1",
    "12.1.66": "12.1.0",
    "12.1.105": "12.1.1",
    "12.2.91": "12.2.0",
    "12.2.128": "12.2.1",
    "12.2.140": "12.2.2",
}
_DATED = re.compile(r"(\d+\.\d+)\.20\d{6}", re.ASCII)
FILES = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")  # since 11.1, and before


def parse_toolkit(json_text: str | None, plain_text: str | None) -> str | None:
    """Return a version such as «12.4.1» from one of FILES, None where neither file is there."""
    if json_text is not None:
        version = _release(json.loads(json_text))
    elif plain_text is not None:
        match = re.match(r"CUDA Version (\S+)", plain_text)
        version = match[1] if match else None
    else:
        return None
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+(\.\d+)*", version, re.ASCII):
        raise ValueError("the file of the CUDA toolkit names no version")
    return version


def _release(components: Any) -> object:
    """Return the version in version.json; «12.2» if it has a day and nvcc does not tell more."""
    version = components["cuda"]["version"]
    dated = _DATED.fullmatch(version) if isinstance(version, str) else None
    if dated is None:
        return version
    nvcc = components.get("cuda_nvcc")
    build = nvcc.get("version") if isinstance(nvcc, dict) else None
    return NVCC.get(str(build), dated[1])


TOOLKIT = Fact(
    "cuda.toolkit",
    lambda node, inventory: tuple(Read("file", (path,)) for path in FILES),
    parse_toolkit,
)
