"""Tests of the trial: what it plans, what it makes of what was seen, and real ranks on this machine."""
