"""Driver libraries as the agent sends them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.driver_files import DriverLibrary
from tests.support.fleet import learned


def test_the_version_is_that_of_the_file_behind_the_links() -> None:
    rows = [
        ["/usr/lib64/libcuda.so.1", 28386840, "libcuda.so.550.54.15"],
        ["/usr/lib64/libnvidia-ml.so.1", None, None],
        ["/opt/x/libnvidia-ml.so.1", 12, "libnvidia-ml.so"],
    ]
    assert learned("nv.libraries", ["ok", rows]) == (
        DriverLibrary("/usr/lib64/libcuda.so.1", 28386840, "550.54.15"),
        DriverLibrary("/usr/lib64/libnvidia-ml.so.1", None, None),
        DriverLibrary("/opt/x/libnvidia-ml.so.1", 12, None),
    )


@pytest.mark.parametrize("rows", [[["x", 1, "y"]], [["/x", True, "y"]], [["/x"]], ["x"], 7])
def test_what_cannot_be_read_is_garbled(rows: Any) -> None:
    assert learned("nv.libraries", ["ok", rows]).reason == "garbled"
