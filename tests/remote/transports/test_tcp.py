"""Why there is no TCP connection.

Each way in which connect() fails has a reason of the contract.
"""

from __future__ import annotations

import errno
import os

import pytest

from clusterprep.remote.transports.tcp import _unreached


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        pytest.param(errno.ECONNREFUSED, "refused", "refuses TCP connections", id="refused"),
        pytest.param(
            errno.ECONNRESET, "no_banner", "closes the connection before its banner", id="reset"
        ),
        pytest.param(
            errno.ETIMEDOUT, "timed_out", "no TCP connection", id="given-up-by-the-kernel"
        ),
        pytest.param(errno.EHOSTUNREACH, "timed_out", "No route to host", id="no-route"),
    ],
)
def test_each_failure_has_its_reason(error: int, reason: str, said: str) -> None:
    # OSError makes the subclass that belongs to the number, as the socket module does.
    unreached = _unreached("n1", 22, OSError(error, os.strerror(error)), 5.0)
    assert unreached.reason == reason
    assert "n1 port 22" in str(unreached)
    assert said in str(unreached)
    assert unreached.remedy
