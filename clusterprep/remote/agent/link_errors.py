"""Error counters of network interfaces and of PCI Express links, as the kernel counts them."""

from clusterprep.remote.agent.devices import PCI, read_small
from clusterprep.remote.agent.readers import names_in, offer

# Documentation/ABI/testing/sysfs-class-net-statistics. What is dropped is no error: the kernel
# counts packets of protocols there that it does not know.
NET_COUNTERS = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")
# Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats
AER = {
    "correctable": "aer_dev_correctable",
    "nonfatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}
LINKED = ("0x02", "0x03", "0x0604")  # network, display, bridge between PCI buses


def read_link_errors():
    """Return error counters of network interfaces, and AER's totals of PCI functions if not 0."""
    net = {}
    for name in names_in("/sys/class/net"):
        if name == "lo":
            continue
        folder = "/sys/class/net/%s/" % name
        row = {}
        for counter in NET_COUNTERS:
            row[counter] = _number(read_small(folder + "statistics/" + counter))
        row["carrier_down_count"] = _number(read_small(folder + "carrier_down_count"))
        net[name] = row
    aer = {}
    for address in names_in(PCI):
        folder = PCI + address + "/"
        kind = read_small(folder + "class") or ""
        if not kind.startswith(LINKED):
            continue
        row = {}
        for severity, name in AER.items():
            row[severity] = _aer_total(read_small(folder + name))
        if any(row.values()):
            aer[address] = row
    return {"net": net, "aer": aer}


def _aer_total(text):
    """Return the number of «TOTAL_ERR_COR 3», the last line; None where the kernel has none."""
    if not text:
        return None
    name, _, number = text.split("\n")[-1].partition(" ")
    return _number(number) if name.startswith("TOTAL_ERR_") else None


def _number(text):
    return int(text) if text and text.isdigit() else None


def install(agent):
    """Register the reader of this part."""
    offer({"link_errors": read_link_errors}, lane="files")
