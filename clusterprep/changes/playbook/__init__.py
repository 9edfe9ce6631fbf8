"""Playbooks: a YAML list of steps, each with one resource and its parameters.

`reading` turns files into `steps`. `conditions` is the language of `when`, `variables` that of
`{{ name }}`, and `names` the list of names that both may use.
"""
