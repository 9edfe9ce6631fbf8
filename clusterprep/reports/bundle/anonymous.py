"""Replace names in a bundle: hosts, addresses, users, paths, numbers of parts. Pure.

The same name is the same word in every file: every gpu1 becomes host-1. It is done for names that
are known: of the inventory and the report, what nodes say of themselves, and what has the form of
an address or a serial number. A name that stands only in a sentence of a log is not known to be
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterprep.jobs.diagnose.redact import Redactor
from clusterprep.model import Inventory, Report
from clusterprep.model.nodeset import expand, fold
from clusterprep.reports.bundle.cleaning import without_secrets, without_tokens

# Accounts that come with systems: they name no person, and are words that texts are full of.
_ACCOUNTS = frozenset(
    [
        "root",
        "admin",
        "administrator",
        "ubuntu",
        "debian",
        "centos",
        "rocky",
        "alma",
        "fedora",
        "opc",
        "cloud-user",
        "ec2-user",
        "azureuser",
        "user",
        "users",
        "guest",
        "test",
        "data",
        "default",
        "service",
        "system",
        "slurm",
        "munge",
        "nvidia",
        "docker",
        "train",
        "training",
        "job",
        "jobs",
    ]
)
_HOST = re.compile(r"[\w.-]{2,}")
_USER = re.compile(r"[\w.-]{3,}")
_SERIAL_LINE = re.compile(
    r"\b(?:serial[ _-]?(?:number|no)?|s/n|\[?sn\]?(?: serial number)?|vendor sn|uuid|guid|"
    r"asset[ _-]?tag|machine[ _-]?id|boot[ _-]?id|service tag|chassis id)"
    r"\s*[:=]\s*[\"']?(?P<value>[\w./:+-]{4,64})",
    re.IGNORECASE,
)
_SERIAL_KEY = re.compile(r"serial|uuid|guid|asset|machine_?id|boot_?id|(^|_)sn$", re.IGNORECASE)
_NO_SERIAL = re.compile(
    r"n/?a|none|not|no|unknown|unspecified|default|to|empty|disabled|enabled|system|0+|x+",
    re.IGNORECASE,
)
# Numbers that a maker gives to one part: UUIDs, machine ids, GUIDs, hardware addresses.
_PARTS = (
    re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE),
    re.compile(r"\b[0-9a-f]{32}\b", re.IGNORECASE),
    re.compile(r"\b0x[0-9a-f]{16}\b", re.IGNORECASE),
    re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){7,}[0-9a-f]{2}(?![\w:])", re.IGNORECASE),
    re.compile(r"(?<![\w:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])", re.IGNORECASE),
    re.compile(r"\b(?:[0-9a-f]{2}-){5,}[0-9a-f]{2}\b", re.IGNORECASE),
)
_NODESET = re.compile(r"(?<![\w.-])[\w.-]{0,100}(?:\[[\d,-]{1,400}\][\w.-]{0,100}){1,4}")


class Anonymizer:
    """Replaces names, and remembers by what it replaced each. See Cleaner."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._redactor = Redactor(hosts, within=True)

    def know_inventory(self, inventory: Inventory) -> None:
        """Learn the names of an inventory: nodes, addresses, groups, users and the cluster."""
        for node in (*inventory.nodes, *inventory.left_out):
            self.know_hosts([node.name, node.address])
            self.know_users([node.ssh.user or "", node.job_user or ""])
        self._redactor.know("group", [name for name in inventory.groups if len(name) > 2])
        self.know_cluster(inventory.cluster)

    def know_report(self, report: Report) -> None:
        """Learn the names of a report: its nodes and the cluster."""
        for node in report.nodes or ():
            self.know_hosts([node.node, node.address])
        for group in report.groups or ():
            self._redactor.know("group", [group.name])
        self.know_cluster(report.cluster)

    def know_cluster(self, name: str) -> None:
        """Learn the name of the cluster."""
        self._redactor.know("cluster", [name])

    def know_hosts(self, names: Iterable[str]) -> None:
        """Learn names of hosts, each also without its domain, and the domain by itself."""
        for name in names:
            if name.lower() in _ACCOUNTS:
                continue
            self._redactor.know("host", [name])
            host, _, domain = name.partition(".")
            if host and domain and not name.replace(".", "").isdigit():
                self._redactor.know("host", [host])
                if "." in domain:
                    self._redactor.know("domain", [domain])

    def know_users(self, names: Iterable[str]) -> None:
        """Learn names of users, but those of accounts that come with systems."""
        self._redactor.know(
            "user", [name for name in names if len(name) > 2 and name.lower() not in _ACCOUNTS]
        )

    def know_node(self, said: str) -> None:
        """Learn what a node answered to the source of names: its own, its users, its domains."""
        hosts, _, rest = said.partition("==\n")
        users, _, domains = rest.partition("==\n")
        self.know_hosts(filter(_HOST.fullmatch, hosts.split()))
        self.know_users(filter(_USER.fullmatch, users.split()))
        for word in domains.split():
            domain = word.strip(".")
            if "." in domain:
                self._redactor.know("domain", [domain])

    def learn(self, text: str) -> None:
        """Remember the names and serial numbers that a text gives away, for all texts."""
        self._redactor.learn(text)
        values = [match["value"].rstrip(".:") for match in _SERIAL_LINE.finditer(text)]
        self._redactor.know("serial", filter(_is_serial, values))

    def text(self, text: str) -> str:
        """Return the text with all names and numbers of parts replaced."""
        self.learn(text)
        for pattern in _PARTS:
            text = pattern.sub(self._part, text)
        text = _NODESET.sub(self._nodeset, text)
        return self._redactor.replaced(text)

    def _part(self, match: re.Match[str]) -> str:
        number = match[0].lower().removeprefix("0x")
        digits = "".join(letter for letter in number if letter.isalnum())
        if not digits.strip("0"):
            return match[0]
        return self._redactor.word("serial", digits)

    def _nodeset(self, match: re.Match[str]) -> str:
        """Return «gpu[1-8]» as the set of the words for its nodes, anything else as it is."""
        try:
            names = expand(match[0])
        except ValueError:
            return match[0]
        if not self._redactor.knows(names[0]):
            return match[0]
        return fold(self._redactor.replaced(name) for name in names)

    # ------------------------------------------------------------ as a Cleaner

    has_names = False

    def lines(self, text: str) -> str:
        return self.text(without_secrets(text))

    def value(self, text: str, key: str = "") -> str:
        if _SERIAL_KEY.search(key) and _is_serial(text):
            self._redactor.know("serial", [text])
        return self.text(without_tokens(text))


def _is_serial(text: str) -> bool:
    """Return whether a word may be the number of one part."""
    has_digit = any(letter.isdigit() for letter in text)
    return len(text) >= 4 and has_digit and not _NO_SERIAL.fullmatch(text)
