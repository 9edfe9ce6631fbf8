"""Faults planted on real hosts, one row each, and the tests that every one of them is found where it is."""

from tests.faults import stages

STAGES = stages.ALL
