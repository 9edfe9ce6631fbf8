"""Read the entries under `nodes:`: each name with its address, each of them once."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct, field

from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model.nodeset import MAX_NODES, expand, fold

_LONGEST_NAME = 253  # characters, as in DNS
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}")
_NUMERIC = re.compile(r"[0-9.]+")
_IPV4 = re.compile(
    r"(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})"
)
# Any address, multicast, and all hosts of a network.
_OF_NO_HOST = re.compile(r"0\.0\.0\.0|2(?:2[4-9]|3[0-9])\..+|255\.255\.255\.255")
_PADDED = re.compile(r"(?:^|\.)0[0-9]")


class Named(Struct):
    """Names and addresses in file order, with the number of the entry of each."""

    rows: list[tuple[str, str, int]] = field(default_factory=list)
    # False if an entry could not be used: then there are more names than these.
    complete: bool = True


class Entries:
    """Reads the entries, and remembers in which one each name and address came first."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.named = Named()
        self.names: dict[str, int] = {}
        self.addresses: dict[str, int] = {}
        self.given: list[tuple[list[str], int, Place]] = []  # the addresses of every entry

    def read(self, entries: list[Any]) -> Named:
        """Return the names and addresses. Mistakes are complained about, and reading goes on."""
        rows = self.named.rows
        for number, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or "name" not in entry:
                self.named.complete = False
            elif len(rows) <= MAX_NODES:
                self._add(number, entry)
        if len(rows) > MAX_NODES:
            self.document.complain(("nodes",), f"more than {MAX_NODES:,} nodes")
        return self.named

    def _add(self, number: int, entry: Mapping[str, Any]) -> None:
        """Add the nodes of an entry; with ranges of names and addresses there are several."""
        name_place: Place = ("nodes", number, "name")
        names = self._expand(name_place, entry["name"], _check_name)
        # Without an address the name is looked up.
        address_key = "address" if "address" in entry else "name"
        address_place: Place = ("nodes", number, address_key)
        addresses: list[str] = []
        if names:
            written = self._expand(address_place, entry[address_key], _check_address)
            addresses = list(map(_in_plain_form, written))
        else:
            self.named.complete = False
        self._complain_of_repeats(
            self.names,
            names,
            number,
            name_place,
            "name",
        )
        self.given.append((addresses, number, address_place))
        if addresses and len(names) != len(addresses):
            counts = _describe_counts(names, addresses)
            message = f"{counts}: '{entry['address']}' for '{entry['name']}'"
            self.document.complain(address_place, message)
        # Names without a usable address count too: other sections that use them can be judged.
        usable = addresses[: len(names)]
        for name, address in itertools.zip_longest(names, usable, fillvalue=""):
            self.named.rows.append((name, address, number))

    def _expand(self, place: Place, text: str, check: Callable[[str], None]) -> list[str]:
        """Return all names of a range; empty if one is wrong, with one complaint for the range."""
        try:
            names = expand(text)
            for name in names:
                check(name)
        except ValueError as error:
            self.document.complain(place, str(error))
            return []
        if not names:
            self.document.complain(place, f"'{text}' stands for no node at all")
        return names

    def complain_of_repeated_addresses(self, shared: Collection[str]) -> None:
        """Complain of addresses that several nodes have; those in `shared` may be repeated."""
        for addresses, number, place in self.given:
            own = [address for address in addresses if address not in shared]
            self._complain_of_repeats(
                self.addresses,
                own,
                number,
                place,
                "address",
            )

    def _complain_of_repeats(
        self, first_entries: dict[str, int], texts: list[str], number: int, place: Place, what: str
    ) -> None:
        """Complain of each text that is in an earlier entry, or twice in this one.

        `first_entries` maps each text to the entry in which it came first.
        """
        repeats: dict[int, list[str]] = {}  # by the first entry
        for text in texts:
            first = first_entries.setdefault(text, number)
            if first != number:
                repeats.setdefault(first, []).append(text)
        if len(set(texts)) < len(texts):
            inside = {text for text in texts if texts.count(text) > 1}
            self.document.complain(place, f"duplicate {what} '{fold(inside)}' within one entry")
        for first, repeated in repeats.items():
            line = self.document.line(("nodes", first))
            message = f"duplicate {what} '{fold(repeated)}', first in line {line}"
            self.document.complain(place, message)


def _describe_counts(names: list[str], addresses: list[str]) -> str:
    name_word = "name" if len(names) == 1 else "names"
    address_word = "address" if len(addresses) == 1 else "addresses"
    return f"{len(addresses)} {address_word} for {len(names)} {name_word}"


def _check_name(name: str) -> None:
    if len(name) > _LONGEST_NAME:
        raise ValueError(
            f"expected a node name of at most {_LONGEST_NAME} characters; seen {len(name)}, "
            f"'{name[:20]}…'"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"expected a node name of letters, digits, '-', '_' and '.'; seen '{name}'"
        )


def _check_address(address: str) -> None:
    """Raise ValueError unless this is an IPv4 or IPv6 address or a host name."""
    if _IPV4.fullmatch(address) and not _PADDED.search(address):
        if _OF_NO_HOST.fullmatch(address):
            raise ValueError(_of_no_host(address))
        return
    if _NUMERIC.fullmatch(address):
        raise ValueError(_not_ipv4(address))
    if ":" in address:
        _check_ipv6(address)
    elif not _NAME.fullmatch(address):
        raise ValueError(f"expected an IP address or a host name; seen '{address}'")


def _in_plain_form(address: str) -> str:
    """Return «fd00::1» for «FD00:0::1», as nodes and tools write it; others as they are."""
    return str(ipaddress.IPv6Address(address)) if ":" in address else address


def _not_ipv4(address: str) -> str:
    if _PADDED.search(address):
        return (
            f"'{address}' has zero-padded octets, which some programs read as octal; "
            "write them without zeros"
        )
    return f"'{address}' is not an IPv4 address: four numbers from 0 to 255"


def _of_no_host(address: str) -> str:
    return (
        f"'{address}' is the address of no single host; write the one under which the other nodes "
        "reach it"
    )


def _not_ipv6(address: str) -> str:
    if "://" in address:
        return f"'{address}' is a URL; write its host alone"
    host, _, port = address.rpartition(":")
    if port.isdigit() and ":" not in host:
        return f"'{address}' has a port; write {host}, and the port as ssh: {{port: {port}}}"
    return f"'{address}' is not an IPv6 address; a port belongs under ssh: {{port: …}}"


def _check_ipv6(address: str) -> None:
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        raise ValueError(_not_ipv6(address)) from None
    if parsed.is_unspecified or parsed.is_multicast:
        raise ValueError(_of_no_host(address))
    if parsed.is_link_local:
        raise ValueError(
            f"'{address}' is link-local: it holds on one cable only, and other nodes cannot tell "
            "which; give a global address or a host name"
        )
