"""The entries under `nodes:` one by one: names paired with addresses, each of them once."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model.nodeset import MAX_NODES, expand, fold

_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}")
_NUMERIC = re.compile(r"[0-9.]+")
_IPV4 = re.compile(
    r"(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})"
)
_PADDED = re.compile(r"(?:^|\.)0[0-9]")


@dataclass
class Named:
    """Names and addresses in file order, and the entry that each of them comes from."""

    rows: list[tuple[str, str, int]] = field(default_factory=list)
    complete: bool = (
        True  # False: an entry could not be used, so that the names are not all there are
    )


class Entries:
    """Walks the entries; remembers which name and which address was first seen where."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.named = Named()
        self.names: dict[str, int] = {}
        self.addresses: dict[str, int] = {}
        self.given: list[tuple[list[str], int, Place]] = []  # the addresses of every entry

    def read(self, entries: list[Any]) -> Named:
        for number, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or "name" not in entry:
                self.named.complete = False
            elif len(self.named.rows) <= MAX_NODES:
                self.add(number, entry)
        if len(self.named.rows) > MAX_NODES:
            self.document.complain(("nodes",), f"more than {MAX_NODES:,} nodes")
        return self.named

    def add(self, number: int, entry: Mapping[str, Any]) -> None:
        place: Place = ("nodes", number)
        names = self.expand((*place, "name"), entry["name"], _check_name)
        address_place = (*place, "address" if "address" in entry else "name")
        addresses = (
            self.expand(address_place, entry.get("address", entry["name"]), _check_address)
            if names
            else []
        )
        self.once(self.names, names, number, (*place, "name"), "name")
        self.given.append((addresses, number, address_place))
        if addresses and len(names) != len(addresses):
            counts = f"{_count(addresses, 'address', 'es')} for {_count(names, 'name', 's')}"
            message = f"{counts}: '{entry['address']}' for '{entry['name']}'"
            self.document.complain(address_place, message)
        # Without usable addresses the names still count, so that what is said about them elsewhere is judged.
        self.named.complete &= bool(names)
        pairs = itertools.zip_longest(names, addresses[: len(names)], fillvalue="")
        self.named.rows += [(name, address, number) for name, address in pairs]

    def expand(self, place: Place, text: str, judge: Any) -> list[str]:
        """All the names of one range; empty where they cannot be used, said once for the whole range."""
        try:
            found = expand(text)
            for name in found:
                judge(name)
        except ValueError as error:
            self.document.complain(place, str(error))
            return []
        if not found:
            self.document.complain(place, f"'{text}' stands for no node at all")
        return found

    def addresses_once(self, shared: Collection[str]) -> None:
        """Complains about addresses that several nodes have, but for those that they may share."""
        for addresses, number, place in self.given:
            own = (
                [address for address in addresses if address not in shared] if shared else addresses
            )
            self.once(self.addresses, own, number, place, "address")

    def once(
        self, seen: dict[str, int], found: list[str], number: int, place: Place, what: str
    ) -> None:
        twice: dict[int, list[str]] = {}
        for text in found:
            first = seen.setdefault(text, number)
            if first != number:
                twice.setdefault(first, []).append(text)
        inside = (
            {text for text in found if found.count(text) > 1}
            if len(set(found)) < len(found)
            else set()
        )
        if inside:
            self.document.complain(place, f"duplicate {what} '{fold(inside)}' within one entry")
        for first, texts in twice.items():
            line = self.document.line(("nodes", first))
            self.document.complain(place, f"duplicate {what} '{fold(texts)}', first in line {line}")


def _count(found: list[str], what: str, plural: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else plural}"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"expected a node name of letters, digits, '-', '_' and '.'; seen '{name}'"
        )


def _check_address(address: str) -> None:
    """ValueError unless this is an IPv4 or IPv6 address or a host name."""
    if _IPV4.fullmatch(address) and not _PADDED.search(address):
        return
    if _NUMERIC.fullmatch(address):
        raise ValueError(_not_ipv4(address))
    if ":" in address:
        _check_ipv6(address)
    elif not _NAME.fullmatch(address):
        raise ValueError(f"expected an IP address or a host name; seen '{address}'")


def _not_ipv4(address: str) -> str:
    if _PADDED.search(address):
        return f"'{address}' has zero-padded octets, which some programs read as octal; write them without zeros"
    return f"'{address}' is not an IPv4 address: four numbers from 0 to 255"


def _check_ipv6(address: str) -> None:
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise ValueError(
            f"'{address}' is not an IPv6 address; a port belongs under ssh: {{port: …}}"
        ) from None
