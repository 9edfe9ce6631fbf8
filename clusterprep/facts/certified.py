"""How a node differs from what a certificate says of it; a stage brings that, and no read."""

from __future__ import annotations

from msgspec import Struct

from clusterprep.facts import Fact


class CertifiedPart(Struct, frozen=True):
    """A part of a node that is not as it was certified.

    `what` is the fact and the place in it, the values are JSON text.
    """

    what: str
    certified: str
    seen: str


class Certified(Struct, frozen=True):
    """What differs today, since when the certificate is, and the certified facts not told today."""

    started: str
    differing: tuple[CertifiedPart, ...]
    untold: tuple[str, ...]


# None where the command was given no certificate.
CERTIFIED = Fact("host.certified", stage="certificate", moves=True)
