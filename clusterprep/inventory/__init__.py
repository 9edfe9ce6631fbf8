"""Read an inventory file: YAML, the schema, what the values mean, and precedence.

Inventories of Ansible become the same tree as our own YAML, so the schema and every message about
it are the same. Imports `jobs` and what stands before it. Begin with `load.load_inventory`.
"""
