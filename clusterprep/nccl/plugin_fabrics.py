"""Fabrics that NCCL reaches by a plug-in alone: EFA of AWS and Slingshot of HPE. Pure.

NCCL's own transports know sockets and verbs. Where the plug-in for such a fabric does not load,
NCCL goes on over sockets and says so only in its log.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from clusterprep.facts.pci import PciDevice, PciTree
from clusterprep.facts.torch import Plugin, Plugins
from clusterprep.model.versions import leading_numbers

# Up to aws-ofi-nccl 1.11 its network is called «AWS Libfabric», since then «Libfabric»; the newer
# ones answer to the old name too (aws-ofi-nccl, nvidia_plugin_name_fixup).
OLD_NAME, NEW_NAME = "AWS Libfabric", "Libfabric"
RENAMED = (1, 12)


class PluginFabric(Struct, frozen=True):
    """A fabric, the PCI vendor of its cards, how the numbers of its chips begin."""

    name: str
    vendor: str
    chips: tuple[str, ...]

    def devices(self, tree: PciTree) -> tuple[PciDevice, ...]:
        """Return the cards of this fabric on the bus."""
        return tuple(device for device in tree.devices if self._is_one(device))

    def _is_one(self, device: PciDevice) -> bool:
        chip = device.device or ""
        return device.vendor == self.vendor and chip.startswith(self.chips)


# amzn/amzn-drivers, efa_main.c: 1d0f:efa0 to efa3.
EFA = PluginFabric("EFA", "0x1d0f", ("0xefa",))
# HewlettPackard/shs-cxi-driver, cxi_core.c: Cassini 1 and 2.
SLINGSHOT_1 = PluginFabric("Slingshot", "0x17db", ("0x0501",))
SLINGSHOT_2 = PluginFabric("Slingshot", "0x1590", ("0x0371",))
FABRICS = (EFA, SLINGSHOT_1, SLINGSHOT_2)

# The least libfabric of each aws-ofi-nccl (its RELEASENOTES.md); 1.22 is that of AWS's platform.
LIBFABRIC = (((1, 13), (1, 22)), ((1, 8), (1, 18)), ((1, 0), (1, 11)))
LIBFABRIC_ELSEWHERE = (((1, 8), (1, 18)), ((1, 0), (1, 11)))


def fabric_of(tree: PciTree) -> PluginFabric | None:
    """Return the fabric whose cards are on the bus; None if there is none."""
    for fabric in FABRICS:
        if fabric.devices(tree):
            return fabric
    return None


def ofi_plugin(plugins: Plugins) -> Plugin | None:
    """Return the plug-in that brings libfabric, the first one that NCCL's loader finds."""
    for plugin in plugins.files:
        if plugin.ofi or OLD_NAME in plugin.networks or NEW_NAME in plugin.networks:
            return plugin
    return None


def networks(plugins: Plugins) -> frozenset[str]:
    """Return the names of networks that NCCL_NET may have with these plug-ins, in lower case."""
    names = {"ib", "socket"}
    for plugin in plugins.files:
        names.update(name.lower() for name in plugin.networks)
        if plugin.ofi:
            names.update((OLD_NAME.lower(), "ofi"))
            if plugin_version(plugin) >= RENAMED:
                names.add(NEW_NAME.lower())
    return frozenset(names)


def plugin_version(plugin: Plugin) -> tuple[int, ...]:
    """Return the leading numbers of the version of aws-ofi-nccl; empty if it has none."""
    return leading_numbers(plugin.ofi or "")[:2]


def least_libfabric(plugin: Plugin, fabric: PluginFabric | None) -> tuple[int, ...] | None:
    """Return the oldest libfabric that a plug-in works with; None if its version is not known."""
    version = plugin_version(plugin)
    if not version:
        return None
    table = LIBFABRIC if fabric is EFA else LIBFABRIC_ELSEWHERE
    for since, least in table:
        if version >= since:
            return least
    return None


def name_to_pin(plugins: Collection[Plugins]) -> str | None:
    """Return what NCCL_NET should be where every node has these plug-ins; None if that is open.

    The old name of aws-ofi-nccl has a blank in it, which not every file of an environment can
    hold, so it is left to the inventory.
    """
    names = {_own_name(one) for one in plugins}
    if len(names) != 1:
        return None
    return names.pop()


def _own_name(plugins: Plugins) -> str | None:
    plugin = ofi_plugin(plugins)
    if plugin is not None and plugin_version(plugin) >= RENAMED:
        return NEW_NAME
    return None
