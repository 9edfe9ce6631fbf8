"""Packet filters of the kernel, listed without loading any part of them.

Asking nft or iptables makes the kernel load its filters where they are not in use yet. So the
list of loaded modules is read first.
"""

import os

from clusterprep.remote.agent.readers import NoAnswer, offer, read_file, run

# One name a line, readable for root only. The file exists once ip_tables or ip6_tables is loaded.
LEGACY_TABLES = "/proc/net/%s_tables_names"
FILTERING = ("%stable_filter", "%stable_raw", "%stable_mangle", "%stable_security")


def read_firewall():
    """Return the listings of packet filters as texts; None for what is not in use.

    `nft` is JSON; `iptables`, `ip6tables`, `legacy` and `legacy6` are those of iptables-save, the
    older iptables being `legacy`.
    """
    loaded = loaded_modules()
    listings = dict.fromkeys(("nft", "iptables", "legacy", "ip6tables", "legacy6"))
    if loaded is None or "nf_tables" in loaded or built_in("nf_tables"):
        listings["nft"] = listed(["nft", "-j", "-t", "list", "ruleset"])
        if '"xt"' in listings["nft"]:  # rules of iptables, whose extensions nft does not name
            listings["iptables"] = listed_if_there(["iptables-nft-save"])
            listings["ip6tables"] = listed_if_there(["ip6tables-nft-save"])
    for key, family in (("legacy", "ip"), ("legacy6", "ip6")):
        if legacy_in_use(loaded, family):
            listings[key] = listed_if_there([family + "tables-legacy-save"])
            if listings[key] is None:
                listings[key] = listed([family + "tables-save"])
    return listings


def loaded_modules():
    """Return the names of the modules in the kernel; None if it does not tell."""
    try:
        text = read_file("/proc/modules")
    except OSError:
        return None
    modules = set()
    for line in text.splitlines():
        name, _, _ = line.partition(" ")
        modules.add(name)
    return modules


def built_in(name):
    """Return whether the kernel was built with a module inside, as far as its own list says."""
    try:
        path = "/lib/modules/%s/modules.builtin" % os.uname()[2]
        return "/%s.ko" % name in read_file(path)
    except (OSError, NoAnswer):
        return False


def legacy_in_use(loaded, family):
    """Return whether tables of the older iptables exist that may filter; `family` is ip or ip6."""
    names = LEGACY_TABLES % family
    try:
        tables = set(read_file(names).split())
        return bool(tables - {"nat"})
    except OSError:
        pass
    if loaded is None:
        return os.path.exists(names)
    return any(module % family in loaded for module in FILTERING)


def listed_if_there(argv):
    """Return what a command lists, None if it is not installed."""
    try:
        return listed(argv)
    except NoAnswer as no:
        if no.reason != "missing_tool":
            raise
        return None


def listed(argv):
    """Return what a command lists. Raises NoAnswer, «denied» for users other than root."""
    result = run(argv)
    if result["code"] != 0:
        errors = result["err"]
        denied = "not permitted" in errors or "ermission denied" in errors
        reason = "denied" if denied else "garbled"
        raise NoAnswer(reason, "%s: %s" % (argv[0], errors.strip()[-300:]))
    return result["out"]


def install(agent):
    """Register the reader beside the other tools; a tool that waits for a lock is given up."""
    offer({"firewall": read_firewall}, lane="tools")
