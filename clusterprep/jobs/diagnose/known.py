"""All causes that there are: those of the files in causes/."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from clusterprep.jobs.diagnose.model import Cause
from clusterprep.runtime.plugins import modules


@functools.cache
def causes() -> Mapping[str, Cause]:
    """Causes by name, in alphabetical order. Two of one name are a mistake of ours."""
    found: dict[str, Cause] = {}
    for module in modules("clusterprep.jobs.diagnose.causes"):
        for cause in vars(module).values():
            if not isinstance(cause, Cause) or found.get(cause.name) is cause:
                continue
            if cause.name in found:
                raise TypeError(
                    f"{cause.name} is defined twice, the second time in {module.__name__}"
                )
            found[cause.name] = cause
    return dict(sorted(found.items()))
