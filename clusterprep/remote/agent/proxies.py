"""Proxies as the job's clients take them from the environment: urllib's rules, and requests' one.

requests adds to urllib that an entry of no_proxy may be a network. All functions only compute, and
the controller uses them too.
"""

import binascii

from clusterprep.remote.agent.light import socket

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
PORTS = {"http": 80, "https": 443}


def setting(variables, name):
    """Return a variable in lower case, or else in upper case; "" if it is not set.

    An empty variable in lower case hides the other one, as in urllib.
    """
    if name in variables:
        return variables[name]
    return variables.get(name.upper(), "")


def proxy_for(variables, scheme, host, port):
    """Return the proxy of a URL as it is written in the environment, "" for none."""
    if scheme not in PORTS or is_direct(setting(variables, "no_proxy"), host, port):
        return ""
    return setting(variables, scheme + "_proxy") or setting(variables, "all_proxy")


def is_direct(no_proxy, host, port=None):
    """Return whether no_proxy holds a host: by name, domain, address, network, with port or `*`."""
    return Exceptions(entries(no_proxy)).hold(host, port)


def entries(no_proxy):
    """Return the entries of no_proxy in lower case, without the dot in front of a domain."""
    words = no_proxy.lower().replace(" ", ",").split(",")
    return frozenset(word.lstrip(".") for word in words if word.lstrip("."))


class Exceptions(object):
    """What is reached without the proxy, by some entries of no_proxy.

    An address may be written with brackets, and a network is told by its slash.
    """

    def __init__(self, entries_of_no_proxy):
        self.names = frozenset(entry.strip("[]") for entry in entries_of_no_proxy)
        self.networks = [entry for entry in entries_of_no_proxy if "/" in entry]

    def hold(self, host, port=None):
        """Return whether a host, or this port of it, is reached without the proxy."""
        name = host.lower().strip("[]")
        if "*" in self.names or any(_is_in(name, network) for network in self.networks):
            return True
        if ":" in name:  # an address, which has no domain
            return name in self.names or "[%s]:%s" % (name, port) in self.names
        labels = name.split(".")
        for start in range(len(labels)):
            domain = ".".join(labels[start:])
            if domain in self.names or "%s:%s" % (domain, port) in self.names:
                return True
        return False


def _is_in(host, network):
    """Return whether an address is in a network such as 10.0.0.0/8."""
    start, _, length = network.partition("/")
    if not length.isdigit() or len(length) > 3:
        return False
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            mine = socket.inet_pton(family, host)
            other = socket.inet_pton(family, start)
        except (OSError, ValueError):
            continue
        free = 8 * len(mine) - int(length)
        return free >= 0 and _number(mine) >> free == _number(other) >> free
    return False


def _number(address):
    return int(binascii.hexlify(address), 16)


def split(proxy):
    """Return (scheme, user information, host, port) of a proxy's URL, or None if it is none.

    Without a scheme it is http. The port of an http proxy is 80 if it is not said.
    """
    scheme, sign, rest = proxy.strip().partition("://")
    if not sign:
        scheme, rest = "http", proxy.strip()
    user, _, place = rest.partition("/")[0].rpartition("@")
    host, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = place, ""
    number = port or str(PORTS.get(scheme.lower(), 1080))
    if not host or not number.isdigit() or not 0 < int(number) < 65536:
        return None
    return scheme.lower(), user, host.strip("[]"), int(number)


def shown(proxy):
    """Return a proxy's URL without the user and the password that it may hold."""
    parts = split(proxy)
    if parts is None:
        return "(no URL)"
    scheme, _, host, port = parts
    return "%s://%s:%d" % (scheme, host, port)
