"""The command line: options, commands, prompts, exit codes.

Imports everything else, mostly inside functions, so that a command loads only what it needs. Begin
with `main`, then read one of `commands`, such as `commands/check.py`.
"""
