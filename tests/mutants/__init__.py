"""Mutants: small faults planted in the core, one at a time, to see whether its tests find them.

`make test-mutants` draws 300 of them, tries each, and writes docs/why/mutants.md. `core.py` names
what is mutated and which tests are asked, `making.py` makes a mutant, `trying.py` and `worker.py`
try it.
"""
