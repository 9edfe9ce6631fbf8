"""Who owns a node's packet filter: firewalld or ufw where one of them runs, else none of them.

Rules that were added past their owner are lost when it loads its own again, so they have to be its
own.
"""

from __future__ import annotations

from msgspec import Struct

from clusterprep.model import Absent, Json, Read

LIMIT = 30.0  # seconds; each question to firewalld takes some 0.3 s
POLICY = "clusterprep"  # of firewalld
COMMENT = "clusterprep"  # of rules of ufw
# Constant text for sh. The first line names the owner, and its rules follow. Zones as they are
# loaded and as they are kept are compared without the interfaces, which a network manager assigns.
_SCRIPT = rf"""
LC_ALL=C; export LC_ALL
zones() {{
    firewall-cmd "$@" --list-all-zones | sed -E 's/ \([a-z, ]*\)$//; /^  interfaces:/d'
    firewall-cmd "$@" --direct --get-all-rules
}}
if command -v firewall-cmd >/dev/null && [ "$(firewall-cmd --state 2>/dev/null)" = running ]; then
    printf 'owner firewalld %s\n' "$(firewall-cmd --version)"
    [ "$(zones)" = "$(zones --permanent)" ] || echo differs
    firewall-cmd --policy={POLICY} --list-rich-rules 2>/dev/null
elif command -v ufw >/dev/null && ufw status 2>/dev/null | grep -q '^Status: active'; then
    printf 'owner ufw %s\n' "$(ufw version | sed -n 's/^ufw //p')"
    grep -qi '^IPV6=no' /etc/default/ufw && echo ipv4-only
    ufw show added
else
    echo owner none
fi
echo end
"""


READS = (Read("alone", ("sh", "-c", _SCRIPT), LIMIT),)


class FirewallOwner(Struct, frozen=True):
    """The program that owns the packet filter, and its rules as it lists them.

    `name` is empty where there is none. `unsaved`: firewalld has rules that are not kept.
    `ipv4_only`: ufw does not filter IPv6.
    """

    name: str = ""
    version: str = ""
    rules: tuple[str, ...] = ()
    unsaved: bool = False
    ipv4_only: bool = False


def parse_owner(answer: Json) -> FirewallOwner | Absent:
    """Parse the answer of the script. Raises ValueError where it was cut off."""
    if isinstance(answer, Absent):
        return answer
    lines = str(answer["out"]).splitlines()
    if len(lines) < 2 or lines[-1] != "end":
        raise ValueError(f"the answer does not come to an end: {str(answer['err'])[-200:]!r}")
    head, *rules = lines[:-1]
    words = head.split()
    if words[:1] != ["owner"]:
        raise ValueError(f"no owner: {head[:80]!r}")
    if words[1] == "none":
        return FirewallOwner()
    flag = rules[0] if rules else ""
    return FirewallOwner(
        words[1],
        " ".join(words[2:]),
        tuple(line.strip() for line in rules if line.strip()),
        unsaved=flag == "differs",
        ipv4_only=flag == "ipv4-only",
    )
