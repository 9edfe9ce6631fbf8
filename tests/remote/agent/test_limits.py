"""The reader of limits: this session's own, and a fresh session of another user."""

from __future__ import annotations

import os
import resource

import pytest

from clusterprep.remote.agent.readers import LIMITS, NoAnswer, read_limits


def test_ones_own_limits_are_those_of_this_process() -> None:
    found = read_limits(None)
    assert set(found) == {*LIMITS, "by"}
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert found["nofile"] == (None if soft == resource.RLIM_INFINITY else soft)


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's session needs root")
def test_another_users_limits_are_those_of_a_session_of_theirs() -> None:
    found = read_limits("nobody")
    assert set(found) == {*LIMITS, "by"}
    assert found["by"] == "su nobody"
    assert all(found[name] is None or found[name] >= 0 for name in LIMITS)


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's session needs root")
def test_a_user_who_may_not_log_in_is_denied() -> None:
    with pytest.raises(NoAnswer, match="denied"):
        read_limits("nobody-here")
