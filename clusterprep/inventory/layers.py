"""Settings by layer: those of the top level, a group or a node entry, and which of them wins."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from clusterprep.inventory.demands import ALIASES, read_require
from clusterprep.inventory.document import Document
from clusterprep.inventory.environment import read_env
from clusterprep.inventory.gpus import read_gpus
from clusterprep.inventory.runtime import read_runtime
from clusterprep.inventory.yaml_tree import Place, key_text
from clusterprep.model import EnvSetting

# A declared interface becomes a variable, so that the two can be compared.
NCCL_INTERFACE = "interfaces.nccl"
VARIABLES = {NCCL_INTERFACE: "NCCL_SOCKET_IFNAME", "interfaces.rdma": "NCCL_IB_HCA"}
_SIMPLE = ("transport", "job_user")
# YAML's 22.0 is a whole number to the schema, and is 22 here.
_NUMBERS: Mapping[str, Callable[[float], float]] = {"port": int, "connect_timeout": float}
_PATHS = ("root", "python", "flight_recorder")
_LISTS = ("endpoints", "shared")


class Layer(Struct, frozen=True):
    """One layer, with every setting under one flat key: ssh.user, interfaces.nccl, gpus."""

    label: str
    place: Place
    source: Mapping[str, Any]  # as written
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    require: Mapping[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """Return everything in one mapping, to compare layers with each other.

        An interface has the same key if it is declared as a variable.
        """
        flat: dict[str, Any] = {}
        interface = self.env.get(VARIABLES[NCCL_INTERFACE])
        if interface is not None:
            flat[NCCL_INTERFACE] = interface.removeprefix("=")
        flat.update(self.settings)
        for name, value in self.env.items():
            if name != VARIABLES[NCCL_INTERFACE]:
                flat[f"env.{name}"] = value
        for name, value in self.require.items():
            flat[f"require.{name}"] = value
        return flat

    def place_of(self, key: str) -> Place:
        """Return where a key of `flat` is written, whichever of its names was used."""
        head, _, rest = key.partition(".")
        spellings: list[tuple[str, ...]] = [(head, rest)]
        for alias, name in ALIASES.items():
            if name == rest:
                spellings.append(("require", alias))
        if key in VARIABLES:
            spellings.append(("env", VARIABLES[key]))
        spellings.extend([(rest,), (head,)])
        for spelling in spellings:
            if self._holds(spelling):
                return (*self.place, *spelling)
        return self.place

    def _holds(self, spelling: tuple[str, ...]) -> bool:
        value = self.source.get(spelling[0])
        if len(spelling) == 1:
            return value is not None
        return isinstance(value, Mapping) and spelling[1] in value


class Merged(Struct, frozen=True):
    """Several layers as one, the later winning."""

    settings: Mapping[str, Any]
    env: Mapping[str, EnvSetting]
    require: Mapping[str, str]


def read_layer(document: Document, source: Mapping[str, Any], place: Place, label: str) -> Layer:
    """Return one layer of the inventory. Wrong values are complained about and left out."""
    settings: dict[str, Any] = {}
    for key in _SIMPLE:
        if key in source:
            settings[key] = source[key]
    for key in _PATHS:
        if key in source:
            # normpath keeps two leading slashes, as POSIX allows; here there is one.
            settings[key] = posixpath.normpath("/" + source[key].lstrip("/"))
    if "nproc_per_node" in source:
        settings["nproc_per_node"] = int(source["nproc_per_node"])
    for key in _LISTS:
        if key in source:
            # The schema has complained of items without a value.
            settings[key] = tuple(item for item in source[key] if item is not None)
    if "runtime" in source:
        settings["runtime"] = read_runtime(document, source["runtime"], (*place, "runtime"))
    settings.update(_read_ssh(source))
    settings.update(_read_become(document, source, place))
    if "gpus" in source:
        gpus = read_gpus(document, source["gpus"], (*place, "gpus"))
        if gpus:
            settings["gpus"] = gpus
    interfaces = source.get("interfaces", {})
    for key, value in interfaces.items():
        settings[f"interfaces.{key}"] = _device(value)
    env = read_env(document, source.get("env", {}), place)
    _compare_interface(document, settings, env, place)
    require = read_require(document, source.get("require", {}), place)
    return Layer(
        label,
        place,
        source,
        settings,
        env,
        require,
    )


def merge(layers: Iterable[Layer], below: Merged | None = None) -> Merged:
    """Return the layers over `below`, in order of growing precedence."""
    settings: dict[str, Any] = {}
    env: dict[str, EnvSetting] = {}
    require: dict[str, str] = {}
    if below:
        settings.update(below.settings)
        env.update(below.env)
        require.update(below.require)
    for layer in layers:
        _drop_other_spelling(layer, settings, env)
        settings.update(layer.settings)
        for name, value in layer.env.items():
            env[name] = EnvSetting(value, layer.label)
        require.update(layer.require)
    return Merged(settings, env, require)


def _drop_other_spelling(
    layer: Layer, settings: dict[str, Any], env: dict[str, EnvSetting]
) -> None:
    """Drop an interface of lower layers if `layer` sets its variable, and the other way round.

    Otherwise both would hold, and contradict each other.
    """
    for key, variable in VARIABLES.items():
        if key in layer.settings:
            env.pop(variable, None)
        if variable in layer.env:
            settings.pop(key, None)


def _read_ssh(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `ssh:` by flat key, such as ssh.user."""
    ssh: dict[str, Any] = {}
    declared = source.get("ssh", {})
    for key, value in declared.items():
        if key in _NUMBERS:
            convert = _NUMBERS[key]
            ssh[f"ssh.{key}"] = convert(value)
        elif key == "options":
            ssh[f"ssh.{key}"] = tuple(sorted(value.items()))
        else:
            ssh[f"ssh.{key}"] = value
    return ssh


def _read_become(document: Document, source: Mapping[str, Any], place: Place) -> dict[str, bool]:
    """Return {"ssh.become": value} if the short form `become:` is used, else nothing."""
    short = source.get("become")
    if short is None:
        return {}
    long = source.get("ssh", {}).get("become")
    if long is not None and short != long:
        here = (*place, "become")
        document.complain(here, "this is short for ssh.become, which says the opposite")
    return {"ssh.become": short}


def _device(value: Any) -> Any:
    """Return one name as it is, and several as a tuple; the schema has complained of None."""
    if isinstance(value, str):
        return value
    return tuple(item for item in value if item is not None)


def _compare_interface(
    document: Document, settings: Mapping[str, Any], env: Mapping[str, str], place: Place
) -> None:
    """Complain if a layer declares an interface and a variable that contradicts it."""
    variable = VARIABLES[NCCL_INTERFACE]
    interface = settings.get(NCCL_INTERFACE)
    value = env.get(variable)
    if interface is None or value is None:
        return
    if value.removeprefix("=") == interface:
        return
    other = key_text((*place, "interfaces", "nccl"))
    message = f"'{value}' stands against {other}, which says '{interface}'; keep one of the two"
    document.complain((*place, "env", variable), message)
