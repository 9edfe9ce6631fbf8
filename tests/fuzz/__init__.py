"""Targets for fuzzing: each module has a function `one(data)` that fails if a promise is broken.

Any bytes are an input.

`make fuzz` lets atheris look for such input; what it finds is kept in `findings/TARGET/`, and `make
test` plays all of it, the seeds, and some seconds of new input.
"""
