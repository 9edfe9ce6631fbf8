"""Read an inventory file: YAML, the schema, what the values mean, and precedence."""
