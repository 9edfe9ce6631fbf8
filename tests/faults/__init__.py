"""Faults planted on real hosts, one row each, and the tests that each is found where it is."""

from tests.faults import stages

STAGES = stages.ALL
