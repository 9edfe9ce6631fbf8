"""What a site adds beside its inventory: checks.d/*.yaml, folders of plug-ins, installed packages.

Begin with `load`. `declared` makes checks of YAML declarations, `declarations` reads these,
`plugins` imports Python files, and `trust` says whose code is not run.
"""
