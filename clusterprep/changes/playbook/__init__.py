"""Playbooks: a YAML list of steps, each one resource with its parameters; a small closed language around them.

`reading` turns files into steps, `conditions` is the language of `when`, `variables` that of `{{ name }}`, `names` the
one list of names that both may use, `steps` what comes of it.
"""
