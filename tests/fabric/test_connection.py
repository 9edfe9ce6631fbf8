"""Connections of Fabric that share their settings."""

from __future__ import annotations

from clusterprep.fabric.connection import NodeConnection, new_config
from clusterprep.model import Node
from clusterprep.remote.transports.ssh import SshTransport


def test_a_connection_changes_no_settings_of_others() -> None:
    """While Fabric makes settings anew, the threads of other nodes find none."""
    config = new_config()
    before = config._config
    connection = NodeConnection(Node("a", "10.0.0.1", 0), SshTransport(), lambda node: None, config)
    connection.transport = None
    assert config._config is before
    assert not config._modifications
