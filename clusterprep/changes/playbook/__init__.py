"""Playbooks: a YAML list of steps, each with one resource and its parameters.

`reading` turns files into `steps`. `conditions` is the language of `when`, `variables` that of
`{{ name }}`, and `names` the list of names that both may use. Nothing in a playbook is run as code.
Begin with `reading.load_playbook`.

Texts of a playbook travel to nodes as data, so a text can be refused or arrive, and never becomes a
command. tests/hosts/test_hostile_values.py tries each trick in each place.
"""
