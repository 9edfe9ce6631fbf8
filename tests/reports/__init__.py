"""Reports as people and scripts see them, held against what they looked like when somebody last looked."""
