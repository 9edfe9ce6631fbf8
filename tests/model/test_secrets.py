"""What is taken out of texts before anybody reads them."""

from __future__ import annotations

import pytest

from clusterprep.model.secrets import without_secrets_of_urls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:hunter2@h/x", "https://user:<redacted>@h/x"),
        ("https://user:a:b@c@h/x", "https://user:<redacted>@h/x"),
        ("http://:s3cret@h", "http://:<redacted>@h"),
        (
            "from tcp://u:p@h:1 to tcp://v:q@i:2",
            "from tcp://u:<redacted>@h:1 to tcp://v:<redacted>@i:2",
        ),
        ("https://h/x?token=1&b=2#top", "https://h/x?<redacted>#top"),
        ("what?token=1", "what?token=1"),
        ("https://user@h:443/x", "https://user@h:443/x"),
        ("https://h:443/a@b", "https://h:443/a@b"),
        ("user@h:22", "user@h:22"),
    ],
)
def test_a_url_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert without_secrets_of_urls(text) == shown
