"""Explains failure logs of NCCL and torch.distributed: which cause, since which line, whose fault, what to do.

Lines flow one way: `sources` reads files and lets the few lines through that may matter, `prefixes` takes off what
launchers and loggers put in front, `causes/` says what messages mean, `ranking` and `culprit` put causes in order.
Only `sources` touches the world.
"""
