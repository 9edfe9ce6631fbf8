"""Explains failure logs of NCCL and torch.distributed: the cause, its lines, the culprit, the fix.

Lines pass through these modules in this order:

1. `sources` reads files and keeps the few lines that may matter. It alone does I/O.
2. `prefixes` removes what launchers and loggers put in front of a message.
3. `causes/` says what messages mean.
   `dialled` and `launchers` read addresses and ended hosts for them.
4. `ranking` and `culprit` put the causes in order and name what is at fault.

A sign is a pattern with an example that tests fire, written from the format strings of the programs
that print the message. Causes are ordered by severity, weight and time; a generic cause yields to
those that explain it. What needs several lines is a function of the log: `stuck` (who is behind,
differs or is missing when a collective times out; `collectives` reads torch's lines for it, `clues`
what stands beside them of work, data and calls), `exits` (which rank failed first, and which ones
torchrun ended itself), `crashes` (the exception of the program from which the rest follows),
`endings` (whether a process ended after a line, and whether the job ended well), `lost_peers`
(which process went away first, where nothing else is known) and `compared` (which host says other
things about itself than the rest). `messages` knows what many programs print, and `records` reads
what stands beside logs: dumps of the flight recorder, RAS, stacks.
"""
