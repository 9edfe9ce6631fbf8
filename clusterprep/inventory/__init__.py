"""From an inventory file to resolved nodes: reading YAML, judging it against the schema, precedence, meaning."""
