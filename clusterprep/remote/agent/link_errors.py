"""Error counters of network interfaces, as the kernel counts them."""

from clusterprep.remote.agent.devices import read_small
from clusterprep.remote.agent.readers import names_in, offer

# Documentation/ABI/testing/sysfs-class-net-statistics. What is dropped is no error: the kernel
# counts packets of protocols there that it does not know.
NET_COUNTERS = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")


def read_link_errors():
    """Return error counters by network interface, None for what the kernel does not count."""
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
    return net


def _number(text):
    return int(text) if text and text.isdigit() else None


def install(agent):
    """Register the reader of this part."""
    offer({"link_errors": read_link_errors}, lane="files")
