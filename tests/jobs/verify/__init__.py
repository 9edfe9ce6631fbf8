"""Tests of the trial: what it plans, what it makes of what was seen.

And real ranks on this machine.
"""
