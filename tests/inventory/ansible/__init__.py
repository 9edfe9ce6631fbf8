"""Ansible's inventories, read by us and by Ansible itself."""
