"""The CUDA toolkit that /usr/local/cuda leads to."""

from __future__ import annotations

import json
import re

from clusterprep.facts import Fact
from clusterprep.model import Read

FILES = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")  # since 11.1, and before


def parse_toolkit(json_text: str | None, plain_text: str | None) -> str | None:
    """Return a version such as «12.4.1» from one of FILES, None where neither file is there."""
    if json_text is not None:
        version = json.loads(json_text)["cuda"]["version"]
    elif plain_text is not None:
        match = re.match(r"CUDA Version (\S+)", plain_text)
        version = match[1] if match else None
    else:
        return None
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+(\.\d+)*", version, re.ASCII):
        raise ValueError("the file of the CUDA toolkit names no version")
    return version


TOOLKIT = Fact(
    "cuda.toolkit",
    lambda node, inventory: tuple(Read("file", (path,)) for path in FILES),
    parse_toolkit,
)
