"""Templates that are filled in, and those that are refused instead of guessed."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.inventory.ansible_template import NotFilled, Scope, fill

SCOPE = Scope(
    {
        "user": "kim",
        "by_name": "{{ user }}",
        "itself": "{{ itself }}",
        "port": 2200,
        "empty": "",
        "rack": {"a": ["10.0.0.1", "{{ user }}"]},
    },
    {"HOME": "/home/kim", "EMPTY": ""},
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        (7, 7),
        ("{{ user }}", "kim"),
        ("{{by_name}}", "kim"),
        ("{{ port }}", 2200),
        ("{{ rack.a[0] }}", "10.0.0.1"),
        ("{{ rack['a'][1] }}", "kim"),
        ("{{ lookup('env', 'HOME') }}/.ssh/{{ user }}", "/home/kim/.ssh/kim"),
        ('{{ lookup("ansible.builtin.env", "HOME") }}', "/home/kim"),
        ("{{ lookup('env', 'NOT_SET') }}", ""),
        ("{{ lookup('env', 'NOT_SET') | default('op', true) }}", "op"),
        ("{{ missing | default('op') }}", "op"),
        ("{{ missing | d(user) | upper }}", "KIM"),
        ("{{ empty | default('x') }}", ""),
        ("{{ '{{ user }}' }}", NotFilled),
        ("{{ port | string }}", "2200"),
        ("{{ ('a') }}", "a"),
        ("{{ true }}", True),
        ("{{ missing }}", NotFilled),
        ("{{ rack.b }}", NotFilled),
        ("{{ itself }}", NotFilled),
        ("{{ user + 'x' }}", NotFilled),
        ("{{ user if port else 'x' }}", NotFilled),
        ("{{ lookup('pipe', 'rm -rf /') }}", NotFilled),
        ("{{ lookup('env', 'HOME', default='x') }}", NotFilled),
        ("{{ query('env', 'HOME') }}", NotFilled),
        ("{{ user.upper() }}", NotFilled),
        ("{{ user | replace('k', 'j') }}", NotFilled),
        ("{% if x %}a{% endif %}", NotFilled),
        ("{{ user", NotFilled),
        ("{{ rack.a[0 }}", NotFilled),
        ("{{ }}", NotFilled),
        ("{# note #}x", NotFilled),
    ],
)
def test_a_template_is_filled_in_or_refused(text: Any, value: Any) -> None:
    if value is NotFilled:
        with pytest.raises(NotFilled):
            fill(text, SCOPE)
    else:
        assert fill(text, SCOPE) == value
