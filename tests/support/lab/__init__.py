"""Real hosts on one machine, for tests that must not be satisfied with fakes."""

from tests.support.lab.lab import Lab, running, sweep, why_not
from tests.support.lab.rooms import Controller, Host

__all__ = ["Controller", "Host", "Lab", "running", "sweep", "why_not"]
