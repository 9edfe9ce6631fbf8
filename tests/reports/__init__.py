"""Reports as people and scripts see them, compared with golden files."""
