"""Inventories in the shapes that people publish, composed anew, each with where its shape is seen.

Beside them, in `dialled.json`, is what Ansible dials for each: `python -m
tests.inventory.ansible.dialled` records it, `make test-all` compares it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """Files by path, the inventory among them, and the environment in which Ansible runs."""

    seen_in: str  # repository and path
    inventory: str
    files: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


SHAPES: Mapping[str, Shape] = {
    "become-and-lenient-keys-in-ansible.cfg": Shape(
        "0sifat/k8s-ha-cluster-ansible inventory/hosts.ini, ansible.cfg",
        "inventory/hosts.ini",
        {
            "inventory/hosts.ini": (
                "[all:vars]\nansible_user=ubuntu\n[lb]\nlb ansible_host=10.0.0.1\n"
                "[masters]\nm1 ansible_host=10.0.0.2\n[k8s:children]\nmasters\n"
            ),
            "ansible.cfg": (
                "[defaults]\nhost_key_checking = False\n[privilege_escalation]\nbecome = True\n"
                "become_method = sudo\nbecome_user = root\n[ssh_connection]\n"
                "ssh_args = -o ControlMaster=auto -o StrictHostKeyChecking=no\n"
            ),
        },
    ),
    "hosts-without-a-section": Shape(
        "23hp/homelab inventory.ini",
        "inventory.ini",
        {"inventory.ini": "# ours\nrouter1 ansible_host=router\nnas ansible_host=wifi\n"},
    ),
    "ini-called-yml": Shape(
        "2SpeedLab/kube-rke2 inventory.yml",
        "inventory.yml",
        {
            "inventory.yml": (
                "[masters]\n  m1 ansible_host=10.0.0.1\n[all:vars]\n"
                "  ansible_ssh_private_key_file=~/.ssh/key\n"
                "  ansible_ssh_common_args='-o StrictHostKeyChecking=no'\n  ansible_user=root\n"
            )
        },
    ),
    "a-user-before-the-host": Shape(
        "88plug/vps-ansible inventory.ini",
        "inventory.ini",
        {"inventory.ini": "[servers]\nroot@10.0.0.1\n"},
    ),
    "host_vars-with-a-proxy-command": Shape(
        "ADFC-Hamburg/adfc-ansible inventory.yml, group_vars/all.yml, host_vars",
        "inventory.yml",
        {
            "inventory.yml": "office:\n  hosts:\n    a.example:\n    b.example:\n    c.example:\n",
            "group_vars/all.yml": "ansible_user: root\n",
            "group_vars/office.yml": (
                'ansible_ssh_common_args: -o ProxyCommand="ssh -W %h:%p -q root@jump -p 922"\n'
            ),
            "host_vars/a.example.yml": "ansible_host: 10.0.0.1\nansible_port: 922\n",
            "host_vars/b.example": "ansible_host: 10.0.0.2\nansible_user: op\n",
            "host_vars/c.example.yml": "ansible_ssh_extra_args: -o CheckHostIP=No\n",
        },
    ),
    "group_vars-beside-the-inventory": Shape(
        "AKRAM857/multi-server-hardening-framework inventory/hosts.ini, inventory/group_vars",
        "inventory/hosts.ini",
        {
            "inventory/hosts.ini": (
                "[management]\nmgt ansible_connection=local\n[web]\nwb ansible_host=10.0.0.2\n"
                "[all:children]\nmanagement\nweb\n"
            ),
            "inventory/group_vars/all.yml": (
                "ansible_ssh_private_key_file: /keys/control\nansible_user: ansible\n"
            ),
        },
    ),
    "group_vars-in-the-current-folder": Shape(
        "AbstractionAlgebra/ansible-matlab-installer inventory/hosts.yml, group_vars/all.yml",
        "inventory/hosts.yml",
        {
            "inventory/hosts.yml": (
                "all:\n  children:\n    gpu:\n      hosts: {g1: {ansible_host: 10.0.0.1}}\n"
                "      vars:\n        ansible_user: loses\n        ansible_become: true\n"
                "        ansible_become_user: root\n"
            ),
            "group_vars/all.yml": 'ansible_user: "ansible"\nansible_port: 2200\n',
        },
    ),
    "remote_user-in-ansible.cfg": Shape(
        "AllYouZombies/k8s-cluster example_cluster/hosts.yml, ansible.cfg",
        "example/hosts.yml",
        {
            "example/hosts.yml": "all:\n  hosts:\n    n1: {ansible_host: 10.0.0.1, ip: 10.1.0.1}\n",
            "ansible.cfg": "[defaults]\nremote_user = deploy ; of all\n",
        },
    ),
    "switches-among-the-hosts": Shape(
        "Aolda/aolda-aise-sac inventory/hosts.ini",
        "inventory/hosts.ini",
        {
            "inventory/hosts.ini": (
                "[nodes]\nn1\n[gear]\nsw1\n[gear:vars]\n"
                "ansible_connection=ansible.netcommon.network_cli\n"
            )
        },
    ),
    "keys-and-IdentitiesOnly-in-ansible.cfg": Shape(
        "ArianDervishaj/homelab inventory/hosts.ini, inventory/group_vars/all, ansible.cfg",
        "inventory/hosts.ini",
        {
            "inventory/hosts.ini": (
                "[lab]\np.lab ansible_host=10.0.0.1\n[pi]\npi ansible_host=10.0.0.2\n"
                "[pi:vars]\nansible_user=pi\n"
            ),
            "inventory/group_vars/all/vars.yml": "ansible_become_timeout: 3\n",
            "inventory/host_vars/p.lab/b.yml": "ansible_port: 24\n",
            "inventory/host_vars/p.lab/a.yml": "ansible_port: 23\nx: 1\n",
            "inventory/host_vars/p.lab/c.yml~": "ansible_port: 25\n",
            "ansible.cfg": (
                "[defaults]\nprivate_key_file = ~/.ssh/lab\nremote_user = nuggets\n"
                "[ssh_connection]\nssh_args = -o IdentitiesOnly=yes\n"
            ),
        },
    ),
    "known-hosts-nowhere": Shape(
        "NVIDIA/deepops config.example/inventory, config.example/host_vars/gpu01, ansible.cfg",
        "config/inventory",
        {
            "config/inventory": (
                "[all]\n\n[slurm-master]\nmgmt01 ansible_host=10.0.0.2 ip=10.0.0.2\n"
                "[slurm-node]\ngpu01\n[slurm-cluster:children]\nslurm-master\nslurm-node\n"
                "[all:vars]\nansible_user=vagrant\n"
            ),
            "config/host_vars/gpu01": "ansible_host: 10.0.0.6\n",
            "config/group_vars/slurm-cluster.yml": "ansible_become: true\n",
            "ansible.cfg": (
                "[defaults]\ntimeout=60\n[ssh_connection]\nssh_args = -o ControlPersist=5m "
                "-o ConnectionAttempts=100 -o UserKnownHostsFile=/dev/null\n"
                "control_path = ~/.ssh/ansible-%%r@%%h:%%p\n"
            ),
        },
    ),
    "several-files-in-a-folder": Shape(
        "galaxyproject/infrastructure-playbook inventory",
        "inventory",
        {
            "inventory/10-hpc.yaml": (
                "all:\n  children:\n    hpc:\n      hosts:\n        login:\n"
                "          ansible_user: galaxy\n          ansible_host: dev\n"
                "          ansible_ssh_common_args: "
                "'-o ProxyCommand=\"ssh -W %h:%p -q galaxy@login.example\"'\n"
            ),
            "inventory/20-cloud.yaml": (
                "cloud:\n  vars: {ansible_user: rocky, ansible_become: true}\n"
                "  hosts: {c1: , c2: {ansible_host: 10.0.0.2}}\n"
            ),
            "inventory/group_vars/hpc/vars.yaml": "ansible_port: 2222\n",
            "inventory/README.md": "Ours.\n",
        },
    ),
    "a-jump-host": Shape(
        "kubernetes-sigs/kubespray docs/ansible/ansible.md (the bastion in group_vars/all)",
        "hosts.yaml",
        {
            "hosts.yaml": (
                "all:\n  hosts:\n    n1: {ansible_host: 10.0.0.1}\n"
                "    n2: {ansible_host: 10.0.0.2, ansible_ssh_common_args: -J op@b1:2200 -p 24}\n"
                "    n3: {ansible_host: 10.0.0.3, ansible_port: 23, "
                "ansible_ssh_common_args: -p 24 -l bob -oIdentityFile=/keys/b -oConnectTimeout=3}\n"
                "    bastion: {ansible_host: 192.0.2.1}\n"
                "  vars:\n    ansible_user: ubuntu\n"
                "    ansible_ssh_common_args: '-o ProxyJump=ubuntu@192.0.2.1 "
                "-o StrictHostKeyChecking=no'\n"
            ),
            "host_vars/bastion.json": '{"ansible_ssh_common_args": ""}\n',
        },
    ),
    "look-ups-in-the-environment": Shape(
        "generated by a shell script of many repositories: lookup('env', …) | default(…, true)",
        "staging.ini",
        {
            "staging.ini": (
                "[app]\nn1 ansible_host='{{ ip }}' ip=10.0.0.1 peer='10.0.0.{{ 2 }}'\n"
                "n2 ansible_host=\"{{ hostvars['n1'].peer }}\" ansible_port=23\n"
                "[all:vars]\nansible_user={{ lookup('env', 'DEPLOYER') }}\n"
                "ansible_ssh_private_key_file={{ lookup('env', 'NO_KEY') "
                "| default('~/.ssh/ops.pem', true) }}\n"
                "ansible_ssh_common_args=-o ProxyJump={{ ansible_user }}@"
                "{{ groups['bastion'][0] }}\n[bastion]\nb1 ansible_ssh_common_args=''\n"
            )
        },
        {"DEPLOYER": "kim"},
    ),
    "groups-by-depth-priority-and-name": Shape(
        "Ansible's documentation: how variables are merged",
        "hosts",
        {
            "hosts": (
                "[a_child]\nn1\nn2\n[b_child]\nn1\nn2\n[parent:children]\na_child\nb_child\n"
                "[late]\nn2\n[late:vars]\nansible_group_priority=10\nansible_user=first\n"
            ),
            "group_vars/parent.yml": "ansible_user: parent\nansible_port: 1\n",
            "group_vars/a_child.yaml": "ansible_user: a\n",
            "group_vars/b_child.json": '{"ansible_user": "b"}\n',
            "group_vars/late": "ansible_port: 3\n",
        },
    ),
    "what-the-environment-says-to-ansible": Shape(
        "CI jobs of many repositories: ANSIBLE_REMOTE_USER and the like",
        "hosts",
        {
            "hosts": "n1 ansible_ssh_port=24\nn2 ansible_ssh_user=own\n",
            "ansible.cfg": "[defaults]\n",
        },
        {
            "ANSIBLE_REMOTE_USER": "ci",
            "ANSIBLE_PRIVATE_KEY_FILE": "/keys/ci",
            "ANSIBLE_SSH_EXTRA_ARGS": "-o IdentitiesOnly=yes",
        },
    ),
}
