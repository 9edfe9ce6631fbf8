"""Hints for users who write Ansible's names, or passwords, in files of clusterprep."""

from __future__ import annotations

_HINTS = {
    "all": (
        "this looks like an Ansible inventory; `clusterprep init --from-ansible FILE` converts one"
    ),
    "hosts": "Ansible's hosts are a list here: nodes: [{name: gpu1, address: 10.0.0.1}]",
    "children": "groups do not nest here; list the names under the group's own `nodes`",
    "vars": "settings stand directly in the group, or at the top level, without `vars`",
    "ansible_host": "here it is `address`",
    "ansible_ssh_host": "here it is `address`",
    "ansible_user": "here it is `ssh: {user: …}`",
    "ansible_ssh_user": "here it is `ssh: {user: …}`",
    "ansible_port": "here it is `ssh: {port: …}`",
    "ansible_ssh_port": "here it is `ssh: {port: …}`",
    "ansible_ssh_private_key_file": "here it is `ssh: {identity_file: …}`",
    "ansible_become": "here it is `become`",
    "ansible_connection": "here it is `transport: ssh`, `local` or `slurm`",
    "ansible_python_interpreter": "here it is `python`",
    # In playbooks.
    "tasks": "there are no plays here: the steps are the list itself",
    "gather_facts": "there are no plays here; what a step needs to know is asked for by itself",
    "handlers": "a handler is a step of the list with `handler: true`",
    "copy": "here it is `file`",
    "template": "here it is `file: {path: …, template: …}`",
    "lineinfile": "here it is `line`, a block with marks around it",
    "blockinfile": "here it is `line`",
    "pam_limits": "here it is `limits`",
    "include_tasks": "here it is `include`",
    "import_playbook": "here it is `include`",
}


_NEVER = "passwords are never written down here; use"
PASSWORDS = {
    "become": f"{_NEVER} --ask-become-pass, or CLUSTERPREP_BECOME_PASSWORD of the environment",
    "key": f"{_NEVER} ssh-add, or CLUSTERPREP_KEY_PASSPHRASE of the environment",
    "login": f"{_NEVER} a key, or an agent",
}


def ansible_hint(key: str) -> str | None:
    """Return what to write instead of a key of Ansible or of a password; None for other keys."""
    if key in _HINTS:
        return _HINTS[key]
    lower = key.lower()
    if "pass" in lower:
        return PASSWORDS[_kind_of_password(lower)]
    if key.startswith("ansible_"):
        return "Ansible's variables have no meaning here"
    return None


def _kind_of_password(key: str) -> str:
    if "become" in key or "sudo" in key:
        return "become"
    if "phrase" in key or "key" in key:
        return "key"
    return "login"
