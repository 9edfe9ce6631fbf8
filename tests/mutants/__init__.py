"""Mutants: small faults planted in the core, one at a time, to see whether its tests find them.

`make test-mutants` draws 300 of them, tries each, and writes docs/mutants.md. What is mutated, and which tests are asked,
stands in `core.py`; how a mutant is made in `making.py`; how it is tried in `trying.py` and `worker.py`.
"""
