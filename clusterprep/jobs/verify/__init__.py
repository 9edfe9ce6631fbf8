"""Verify: run a real trial over all ranks.

schedule plans it, collect runs it, and tally, culprits and blame judge it; only the modules
*_measurement, *_trials and collect talk to nodes.
"""
