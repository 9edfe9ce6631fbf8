"""Verify: a trial of the real thing. Planned and judged purely (schedule, pace, tally, culprits), run by collect."""
