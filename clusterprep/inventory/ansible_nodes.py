"""Convert an inventory of Ansible to one of ours.

The nodes, groups and logins are the same, and keep the places in Ansible's files.

Variables are resolved as Ansible does, and the results are put on the nodes: our groups may not
contradict each other, and Ansible's may. `make test` compares recorded answers of
`ansible-inventory` and what `ansible -m ping` dials, and `make test-all` the programs themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterprep.errors import InputError, Problem
from clusterprep.inventory.ansible import ALL, UNGROUPED, AnsibleInventory, Host, Var
from clusterprep.inventory.ansible_arguments import SshArguments, read_arguments
from clusterprep.inventory.ansible_config import HOST_KEY_CHECKING, read_settings
from clusterprep.inventory.ansible_dynamic import list_inventory, read_listing
from clusterprep.inventory.ansible_files import VariableFiles, add_variables, inventory_files
from clusterprep.inventory.ansible_ini import read_ini
from clusterprep.inventory.ansible_signs import (
    is_dynamic,
    looks_like_ini,
    looks_like_listing,
    may_be_groups,
)
from clusterprep.inventory.ansible_template import NotFilled, Scope, fill, has_template
from clusterprep.inventory.ansible_yaml import Unread, looks_like_ansible, read_yaml
from clusterprep.inventory.document import Document, read_text
from clusterprep.inventory.yaml_tree import Tree, Written, YamlError, compose
from clusterprep.model.nodeset import fold

_TRUE = frozenset({"yes", "true", "on", "1", "y", "t"})
_FALSE = frozenset({"no", "false", "off", "0", "n", "f", ""})
_CONNECTIONS = {
    "ssh": "ssh",
    "smart": "ssh",
    "paramiko": "ssh",
    "paramiko_ssh": "ssh",
    "local": "local",
}
# Connections to what is no Linux machine: switches and Windows. Such hosts are left out.
_OTHER_MACHINES = ("network_cli", "netconf", "httpapi", "winrm", "psrp", "grpc", "libssh")
_COLLECTION = re.compile(r"\w+\.\w+\.(\w+)")  # ansible.builtin.ssh
_PASSWORDS = (
    "ansible_password",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_become_password",
    "ansible_become_pass",
    "ansible_sudo_pass",
    "ansible_private_key_passphrase",
)
_CHECKING = (HOST_KEY_CHECKING, "ansible_ssh_host_key_checking")
_USER = ("ansible_user", "ansible_ssh_user")
_PORT = ("ansible_port", "ansible_ssh_port")
_KEY = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_TIMEOUT = ("ansible_ssh_timeout", "ansible_timeout")
_BECOME = ("ansible_become", "ansible_sudo")
_CONNECTION = "ansible_connection"
_KEYS_CHECKED = "the host keys of nodes are always verified here, against known_hosts"

Convert = Callable[[Any], "str | None"]  # raises _Refused; None: the value says nothing here


class _Refused(Exception):
    """A variable whose value means nothing here."""


def ansible_document(
    file: str,
    text: str,
    written: Written,
    surely: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Document | None:
    """Return the document of a text that is an inventory of Ansible; None if it looks different.

    `surely` is for a file that the user called one.
    """
    path = Path(file)
    if is_dynamic(path):
        return _document(file, list_inventory(path), [], written, environment)
    if looks_like_listing(text):
        return _document(file, read_listing(text, file), [], written, environment)
    problems: list[Problem] = []
    inventory = AnsibleInventory()
    if not _read(file, text, problems, surely, inventory):
        return None
    return _document(file, inventory, problems, written, environment, beside=path.parent)


def ansible_folder(
    folder: str, written: Written, environment: Mapping[str, str] = os.environ
) -> Document:
    """Return the document of a folder of inventories, which Ansible reads as one.

    Raises InputError if one of them cannot be read.
    """
    files = inventory_files(Path(folder))
    if any(map(is_dynamic, files)):
        return _document(folder, list_inventory(Path(folder)), [], written, environment)
    problems: list[Problem] = []
    notices: list[str] = []
    inventory = AnsibleInventory()
    for path in files:
        file = str(path)
        text = read_text(file, "an inventory of Ansible")
        if _read(file, text, problems, False, inventory):
            continue
        # Hosts alone, or something else that lies there, which Ansible passes over as well.
        mistakes: list[Problem] = []
        _read(file, text, mistakes, True, AnsibleInventory())
        if mistakes:
            notices.append(f"{file} is not read: it is no inventory")
        else:
            _read(file, text, problems, True, inventory)
    if not inventory.hosts and not problems:
        raise InputError.of("there is no inventory of Ansible's in this folder", file=folder)
    document = _document(
        folder,
        inventory,
        problems,
        written,
        environment,
        beside=Path(folder),
    )
    document.notices = (*document.notices, *notices)
    return document


def _document(
    file: str,
    inventory: AnsibleInventory,
    problems: list[Problem],
    written: Written,
    environment: Mapping[str, str],
    beside: Path | None = None,
) -> Document:
    """Return the document of an inventory.

    `beside` is the folder whose group_vars belong to it; None if they have been read already.
    """

    def complain(place: Var | Host, message: str) -> None:
        problems.append(Problem(message, place.file or file, place.line or None))

    circle = inventory.circle()
    if circle is not None:
        message = f"the group '{circle}' is below itself"
        problems.append(Problem(message, file, inventory.groups[circle].line))
        inventory = AnsibleInventory()
    inventory.settle()
    folder = Path.cwd()
    notices = _add_files(inventory, beside, folder, problems)
    converter = _Converter(inventory, complain, read_settings(environment, folder), environment)
    document = Document(file, converter.tree(), written)
    if not inventory.hosts and not problems:
        problems.append(Problem("an inventory of Ansible's without a host", file, 1))
    elif not converter.node_of:
        for sentence in converter.left_out_sentences():
            problems.append(Problem(f"no node remains: {sentence}", file, 1))
    document.problems += problems
    document.notices = (*converter.all_notices(), *notices)
    return document


def _add_files(
    inventory: AnsibleInventory, beside: Path | None, folder: Path, problems: list[Problem]
) -> list[str]:
    """Add group_vars and host_vars to an inventory, and return notices about them.

    Ansible reads those beside the inventory, and those of the folder in which it is started.
    """
    notices: list[str] = []
    if beside is None:
        return notices
    folders = [(beside, False)]
    if beside.resolve() != folder.resolve():
        folders.append((Path(), True))
    for place, beside_play in folders:
        files = VariableFiles(place)
        add_variables(inventory, files, beside_play=beside_play)
        notices.extend(files.notices)
        for name, line, message in files.problems:
            problems.append(Problem(message, name, line))
    return notices


def _read(
    file: str, text: str, problems: list[Problem], surely: bool, into: AnsibleInventory
) -> bool:
    """Add what either format holds to an inventory; False if the text is not Ansible's."""

    def complain(line: int, message: str) -> None:
        problems.append(Problem(message, file, line))

    if looks_like_ini(text):
        read_ini(text, complain, file, into)
        return True
    if not surely and not may_be_groups(text):
        return False
    tree = _compose_mapping(text)
    if tree is not None and (surely or looks_like_ansible(tree)):
        read_yaml(tree, complain, file, into)
        return True
    if surely:
        read_ini(text, complain, file, into)  # which says what is wrong
    return surely


def _compose_mapping(text: str) -> Tree | None:
    """Return the mapping that a YAML text holds; None if it is no YAML, or holds no mapping."""
    try:
        tree = compose(text)
    except YamlError:
        return None
    if tree is None or tree.kind != "mapping":
        return None
    return tree


class _Converter:
    """Builds the tree that our own schema describes.

    `settings` are those of ansible.cfg and of the environment, which every variable wins over.
    """

    def __init__(
        self,
        inventory: AnsibleInventory,
        complain: Callable[[Var | Host, str], None],
        settings: Mapping[str, Var],
        environment: Mapping[str, str],
    ) -> None:
        self.inventory = inventory
        self.complain = complain
        self.settings = settings
        self.environment = environment
        self.notices: dict[str, None] = {}  # each once, in order
        self.left_out: dict[str, list[str]] = {}  # names by the reason
        self.node_of: dict[str, str] = {}  # the node that each host became
        self.scopes = _Scopes(inventory, environment)

    def tree(self) -> Tree:
        nodes: list[Tree] = []
        seen: dict[tuple[str, ...], str] = {}
        for name, host in self.inventory.hosts.items():
            node = self._node(host)
            if node is not None and not self._is_alias(name, node, seen):
                nodes.append(node)
        pairs = [(_text("nodes", 1), Tree("list", 1, items=nodes))]
        groups = self._groups()
        if groups:
            pairs.append((_text("groups", 1), Tree("mapping", 1, pairs=groups)))
        return Tree("mapping", 1, pairs=pairs)

    def all_notices(self) -> list[str]:
        """Return what the user has to know, each sentence once."""
        return [*self.notices, *self.left_out_sentences()]

    def left_out_sentences(self) -> list[str]:
        """Return which hosts are no nodes, and why."""
        sentences = []
        for reason, names in self.left_out.items():
            verb = "is" if len(names) == 1 else "are"
            sentences.append(f"{fold(names)} {verb} left out: {reason}")
        return sentences

    def _is_alias(self, name: str, node: Tree, seen: dict[tuple[str, ...], str]) -> bool:
        """Return whether a host is a second name for one before it, with the same login.

        Ansible would log in twice. Here a machine is one node, with both names' groups.
        """
        values = {key.text: value for key, value in node.pairs}
        node_name = values["name"].text
        address = values.get("address")
        if address is None:
            self.node_of[name] = node_name
            return False
        login = tuple(f"{key}={_flat(values[key])}" for key in sorted(values) if key != "name")
        first = seen.setdefault(login, node_name)
        self.node_of[name] = first
        if first != node_name:
            reason = f"{first} has the same address and login"
            self.left_out.setdefault(reason, []).append(node_name)
        return first != node_name

    def _groups(self) -> list[tuple[Tree, Tree]]:
        """Return the pairs of our `groups:`: each name with the nodes of it and of its children."""
        pairs: list[tuple[Tree, Tree]] = []
        for name, group in self.inventory.groups.items():
            if name in (ALL, UNGROUPED):
                continue
            hosts = self.inventory.members(name)
            members = dict.fromkeys(self.node_of[host] for host in hosts if host in self.node_of)
            if members:
                nodes = _text(",".join(members), group.line, group.file)
                settings = _mapping(group.line, {"nodes": nodes})
                pairs.append((_text(name, group.line, group.file), settings))
        return pairs

    def _node(self, host: Host) -> Tree | None:
        """Return our entry of `nodes:` for a host, None if it is left out."""
        found = self.inventory.variables(host.name)
        reading = _Reading(self, host, found)
        if self._is_other_machine(reading):
            return None
        reading.note_passwords()
        user, _, name = host.name.rpartition("@")  # root@gpu1, as ssh takes it
        settings: dict[str, Tree | None] = {
            "name": _text(name, host.line, host.file),
            "address": reading.setting(_word, "ansible_host", "ansible_ssh_host"),
        }
        ssh = reading.ssh(user)
        if any(ssh.values()):
            settings["ssh"] = _mapping(host.line, ssh)
        become = reading.setting(_truth, *_BECOME)
        settings["become"] = become
        settings["transport"] = reading.setting(_transport, _CONNECTION)
        settings["python"] = reading.setting(_path, "ansible_python_interpreter")
        if become is not None and become.text == "true":
            # These two have one possible value here; others are complained about.
            reading.setting(_only("root"), "ansible_become_user")
            reading.setting(_only("sudo"), "ansible_become_method")
        return _mapping(host.line, settings)

    def _is_other_machine(self, reading: _Reading) -> bool:
        """Return whether a host is no Linux machine; it is then noted as left out."""
        value = reading.plain(_CONNECTION)
        connection = _connection_name(value)
        if connection not in _OTHER_MACHINES:
            return False
        reason = f"the ansible_connection {connection} is none to a Linux machine"
        self.left_out.setdefault(reason, []).append(reading.host.name)
        return True


class _Reading:
    """The variables of one host, with templates filled in where they are asked for."""

    def __init__(self, converter: _Converter, host: Host, variables: Mapping[str, Var]) -> None:
        self.converter = converter
        self.host = host
        self.variables = variables
        self._scope: Scope | None = None

    @property
    def scope(self) -> Scope:
        """Return what names in templates stand for; it is made when one is seen."""
        if self._scope is None:
            self._scope = self.converter.scopes.of(self.host.name)
        return self._scope

    def var(self, *names: str) -> tuple[str, Var] | None:
        """Return the first of `names` that is set, with its name; else that of ansible.cfg."""
        for name in names:
            if name in self.variables:
                return name, self.variables[name]
        default = self.converter.settings.get(names[0])
        return None if default is None else (names[0], default)

    def plain(self, *names: str) -> str:
        """Return the text of a variable, "" for one that is not set or cannot be filled in."""
        found = self.var(*names)
        if found is None or isinstance(found[1].value, Unread):
            return ""
        try:
            return str(fill(found[1].value, self.scope))
        except NotFilled:
            return ""

    def setting(self, convert: Convert, *names: str) -> Tree | None:
        """Return the value of the first of `names` that is set, as a scalar of our own file."""
        found = self.var(*names)
        if found is None or found[1].value is None:
            return None
        name, var = found
        try:
            text = convert(self._filled(var.value))
        except _Refused as refused:
            self.converter.complain(var, f"{name}: {refused}")
            return None
        if text is None or text == "":
            return None
        is_plain = convert in (_number, _truth)
        return _text(text, var.line, var.file, plain=is_plain)

    def _filled(self, value: Any) -> Any:
        """Return a value without templates. Raises _Refused where only Ansible can fill it in."""
        if isinstance(value, Unread):
            raise _Refused(f"only Ansible can read {value}; write the value itself")
        if not isinstance(value, str) or not has_template(value):
            return value
        try:
            return fill(value, self.scope)
        except NotFilled as reason:
            raise _Refused(
                f"'{value}' is a template that is not filled in here: {reason}; "
                "write the value itself"
            ) from None

    def ssh(self, user: str) -> dict[str, Tree | None]:
        """Return our settings of `ssh:`; `user` is that of a host called user@name.

        Options come in the order in which Ansible gives them to ssh, where the first counts.
        """
        arguments = SshArguments()
        self._add_arguments("ansible_ssh_args", arguments)
        ssh: dict[str, Tree | None] = {}
        self._take(ssh, arguments, "port", "port", self.setting(_number, *_PORT))
        key = self.setting(_word, *_KEY)
        if key is not None:
            arguments.add("IdentityFile", key.text)
        named_user = _text(user, self.host.line, self.host.file) if user else None
        own_user = self.setting(_word, *_USER) or named_user
        self._take(ssh, arguments, "user", "user", own_user)
        timeout = self.setting(_number, *_TIMEOUT)
        self._take(ssh, arguments, "connect_timeout", "connecttimeout", timeout)
        self._add_arguments("ansible_ssh_common_args", arguments)
        self._add_arguments("ansible_ssh_extra_args", arguments)
        self._finish(ssh, arguments, key)
        self._note(arguments)
        return ssh

    def _take(
        self,
        ssh: dict[str, Tree | None],
        arguments: SshArguments,
        setting: str,
        option: str,
        tree: Tree | None,
    ) -> None:
        """Set one setting from its variable, unless an option before it says something else."""
        if option not in arguments.options and tree is not None:
            ssh[setting] = tree
            arguments.options[option] = tree.text

    def _finish(
        self, ssh: dict[str, Tree | None], arguments: SshArguments, key: Tree | None
    ) -> None:
        """Set what the options say that no variable has said."""
        line, file = self.host.line, self.host.file
        options = arguments.options
        for setting, option in (
            ("user", "user"),
            ("port", "port"),
            ("connect_timeout", "connecttimeout"),
            ("config", "config"),
            ("known_hosts", "userknownhostsfile"),
        ):
            if option in options and setting not in ssh:
                is_plain = setting in ("port", "connect_timeout")
                ssh[setting] = _text(options[option], line, file, plain=is_plain)
        if options.get("stricthostkeychecking", "").lower() == "accept-new":
            ssh["host_keys"] = _text("accept-new", line, file)
        if arguments.identities:
            first = arguments.identities[0]
            is_own = key is not None and key.text == first
            ssh["identity_file"] = key if is_own else _text(first, line, file)
            for other in dict.fromkeys(arguments.identities[1:]):
                if other != first:
                    sentence = f"the key {other} is not tried, as {first} comes before it"
                    self.converter.notices[sentence] = None
        passed_on = {
            name: _text(value, line, file) for name, value in arguments.passed_on().items()
        }
        if passed_on:
            ssh["options"] = _mapping(line, passed_on)

    def _add_arguments(self, name: str, arguments: SshArguments) -> None:
        """Add the options of one variable; what is wrong with it is complained about."""
        tree = self.setting(_word, name)
        if tree is None:
            return
        try:
            read_arguments(tree.text, arguments)
        except ValueError as error:
            place = Var(None, tree.line, tree.file)
            self.converter.complain(place, f"{name}: {error}")

    def _note(self, arguments: SshArguments) -> None:
        """Note the options that have no effect here."""
        notices = self.converter.notices
        for option in arguments.weakening:
            notices[f"{option} is left out: {_KEYS_CHECKED}"] = None
        for name in _CHECKING:
            if self.plain(name).lower() in ("false", "no", "off", "0"):
                notices[f"host_key_checking off is left out: {_KEYS_CHECKED}"] = None
        for option in arguments.unread:
            notices[f"ssh's option {option} is not read: it has no meaning here"] = None
        command = arguments.options.get("proxycommand", "").lower().replace(" ", "")
        if "stricthostkeychecking=no" in command:
            notices[
                "the ProxyCommand does not verify the key of the jump host; "
                "that of the node itself is verified"
            ] = None

    def note_passwords(self) -> None:
        """Note the passwords that are there, which are not read."""
        for name in _PASSWORDS:
            if name in self.variables:
                sentence = f"{name} is not read: use a key, or --ask-become-pass"
                self.converter.notices[sentence] = None


class _Scopes:
    """Makes what names in a host's templates stand for."""

    def __init__(self, inventory: AnsibleInventory, environment: Mapping[str, str]) -> None:
        self.inventory = inventory
        self.environment = environment
        self.groups = {name: inventory.members(name) for name in inventory.groups if name != ALL}
        self.groups[ALL] = list(inventory.hosts)
        self.hostvars = _HostVariables(self)

    def of(self, host: str) -> Scope:
        """Return the variables of a host, with those that Ansible itself defines."""
        values = {name: var.value for name, var in self.inventory.variables(host).items()}
        groups = self.inventory.groups_of[host]
        values["inventory_hostname"] = host
        values["inventory_hostname_short"] = host.split(".", 1)[0]
        values["group_names"] = [group.name for group in groups if group.name != ALL]
        values["groups"] = self.groups
        values["hostvars"] = self.hostvars
        return Scope(values, self.environment)


class _HostVariables(dict[str, Any]):
    """The variables of all hosts by name, each host's filled in by its own when asked for."""

    def __init__(self, scopes: _Scopes) -> None:
        super().__init__(dict.fromkeys(scopes.inventory.hosts))
        self._scopes = scopes

    def __getitem__(self, name: str) -> Any:
        return _Filled(self._scopes.of(name))


class _Filled(dict[str, Any]):
    """The variables of one host without templates. Asking for one raises NotFilled."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope.variables)
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        return fill(super().__getitem__(name), self._scope, depth=1)


def _flat(tree: Tree) -> str:
    """Return a text that is equal for equal settings."""
    if tree.kind == "scalar":
        return tree.text
    return ",".join(sorted(f"{key.text}={_flat(value)}" for key, value in tree.pairs))


def _connection_name(value: str) -> str:
    """Return the name of a connection without that of its collection."""
    return _COLLECTION.sub(r"\1", value)


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Refused(f"expected a word; seen {value!r}")
    return str(value)


def _number(value: Any) -> str:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise _Refused(f"expected a number; seen '{value}'")
    return str(int(text))


def _truth(value: Any) -> str:
    word = str(value).lower()
    if word in _TRUE:
        return "true"
    if word in _FALSE:
        return "false"
    raise _Refused(f"expected yes or no; seen '{value}'")


def _transport(value: Any) -> str:
    transport = _CONNECTIONS.get(_connection_name(str(value)))
    if transport is None:
        raise _Refused(f"'{value}' is no connection that there is here: ssh or local")
    return transport


def _path(value: Any) -> str | None:
    """Return the path of an interpreter.

    None for `auto` and the like: how Ansible finds one says nothing about the job's.
    """
    text = str(value)
    if text.startswith("/"):
        return text
    return None


def _only(wanted: str) -> Convert:
    def refuse_others(value: Any) -> str | None:
        if value not in (wanted, f"ansible.builtin.{wanted}"):
            raise _Refused(f"'{value}' cannot be done here, only {wanted}")
        return None

    return refuse_others


def _text(text: str, line: int, file: str | None = None, plain: bool = False) -> Tree:
    return Tree("scalar", line, text, plain=plain, file=file)


def _mapping(line: int, settings: Mapping[str, Tree | None]) -> Tree:
    pairs: list[tuple[Tree, Tree]] = []
    for key, value in settings.items():
        if value is not None:
            pairs.append((_text(key, value.line), value))
    return Tree("mapping", line, pairs=pairs)
