"""The families of addresses over which the stories are played."""

from __future__ import annotations

import pytest

# What `Lab` takes as `ipv6`. Over IPv6 the same stories are played in `make test-all`.
FAMILIES = (
    pytest.param(None, id="ipv4"),
    pytest.param("only", id="ipv6", marks=pytest.mark.slow),
)
