"""Packet filters of the kernel, listed without loading any part of them.

Asking nft or iptables makes the kernel load its filters where they are not in use yet, so that is looked at first.
"""

import os

from clusterprep.remote.agent.readers import MAX_TEXT, NoAnswer, offer, read_file, run

LEGACY_TABLES = (
    "/proc/net/ip_tables_names"  # one name a line, root only; there once ip_tables is loaded
)
FILTERING = ("iptable_filter", "iptable_raw", "iptable_mangle", "iptable_security")


def read_firewall():
    """{"nft": JSON text, "iptables": text, "legacy": text}; None for what is not in use. Only IPv4 of iptables."""
    loaded = loaded_modules()
    found = {"nft": None, "iptables": None, "legacy": None}
    if loaded is None or "nf_tables" in loaded or built_in("nf_tables"):
        found["nft"] = listed(["nft", "-j", "-t", "list", "ruleset"])
        if '"xt"' in found["nft"]:  # rules of iptables, whose extensions nft does not name
            try:
                found["iptables"] = listed(["iptables-nft-save"])
            except NoAnswer as no:
                if no.reason != "missing_tool":
                    raise
    if legacy_in_use(loaded):
        try:
            found["legacy"] = listed(["iptables-legacy-save"])
        except NoAnswer as no:
            if no.reason != "missing_tool":
                raise
            found["legacy"] = listed(["iptables-save"])
    return found


def loaded_modules():
    """Names of the modules in the kernel; None where it does not tell."""
    try:
        return set(line.split(" ", 1)[0] for line in read_file("/proc/modules").splitlines())
    except OSError:
        return None


def built_in(name):
    """Whether the kernel was built with a module inside, as far as its own list says."""
    try:
        path = "/lib/modules/%s/modules.builtin" % os.uname()[2]
        return "/%s.ko" % name in read_file(path)
    except (OSError, NoAnswer):
        return False


def legacy_in_use(loaded):
    """Whether tables of the older iptables exist that may filter."""
    try:
        return bool(set(read_file(LEGACY_TABLES).split()) - set(["nat"]))
    except OSError:
        pass
    if loaded is None:
        return os.path.exists(LEGACY_TABLES)
    return not loaded.isdisjoint(FILTERING)


def listed(argv):
    """What a command lists; only root may."""
    result = run(argv)
    if result["code"] != 0:
        denied = "not permitted" in result["err"] or "ermission denied" in result["err"]
        raise NoAnswer(
            "denied" if denied else "garbled", "%s: %s" % (argv[0], result["err"].strip()[-300:])
        )
    if len(result["out"]) >= MAX_TEXT:
        raise NoAnswer("truncated", "%s lists more than %d bytes" % (argv[0], MAX_TEXT))
    return result["out"]


def install(agent):
    """Register the reader of this part: in a child of its own, for it runs tools that wait for a lock."""
    offer({"firewall": read_firewall})
