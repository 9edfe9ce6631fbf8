"""Anything as input: each module is a target with a function `one(data)`, which fails where a promise is not kept.

`make fuzz` lets atheris look for such input; what it finds is kept in `findings/TARGET/`, and `make
test` plays all of it, the seeds, and some seconds of new input.
"""
