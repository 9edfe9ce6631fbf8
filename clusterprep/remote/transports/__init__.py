"""How a command on a node is started: one module per transport, all with the same interface.

`protocol` is that interface, `factory` chooses the transports of an inventory, and `link` is the
conversation with the agent that was started.
"""

from clusterprep.remote.transports.factory import transports_for, usable_cores
from clusterprep.remote.transports.protocol import Channel, Transport

__all__ = ["Channel", "Transport", "transports_for", "usable_cores"]
