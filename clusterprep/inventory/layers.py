"""Settings by layer: what the top level, a group or a node entry says, and which of them wins."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from clusterprep.inventory.demands import ALIASES, read_require
from clusterprep.inventory.document import Document
from clusterprep.inventory.environment import read_env
from clusterprep.inventory.gpus import read_gpus
from clusterprep.inventory.yaml_tree import Place, key_text
from clusterprep.model import EnvSetting
from clusterprep.runtime.lazy_dataclass import dataclass

# A declared interface becomes a variable, so that the two speak about the same thing.
NCCL_INTERFACE = "interfaces.nccl"
VARIABLES = {NCCL_INTERFACE: "NCCL_SOCKET_IFNAME", "interfaces.rdma": "NCCL_IB_HCA"}
_SIMPLE = ("transport", "job_user")
_NUMBERS: Mapping[str, Callable[[float], float]] = {
    "port": int,
    "connect_timeout": float,
}  # YAML's 22.0 is 22
_PATHS = ("root", "python")


@dataclass(frozen=True)
class Layer:
    """One layer with every setting under one flat key, such as ssh.user, interfaces.nccl or gpus."""

    label: str
    place: Place
    source: Mapping[str, Any]  # as written
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    require: Mapping[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """Everything in one mapping, to compare layers with each other; an interface has one key, however declared."""
        env = {f"env.{name}": value for name, value in self.env.items()}
        require = {f"require.{name}": value for name, value in self.require.items()}
        interface = env.pop(f"env.{VARIABLES[NCCL_INTERFACE]}", None)
        declared = {} if interface is None else {NCCL_INTERFACE: interface.removeprefix("=")}
        return {**declared, **self.settings, **env, **require}

    def place_of(self, key: str) -> Place:
        """Where a key of `flat` is written, by whichever of its names."""
        head, _, rest = key.partition(".")
        short = [("require", alias) for alias, full in ALIASES.items() if full == rest]
        spellings = [(head, rest), *short, ("env", VARIABLES.get(key, "")), (rest,), (head,)]
        return next(
            ((*self.place, *spelling) for spelling in spellings if self._holds(spelling)),
            self.place,
        )

    def _holds(self, spelling: tuple[str, ...]) -> bool:
        value = self.source.get(spelling[0])
        return (
            value is not None
            if len(spelling) == 1
            else isinstance(value, Mapping) and spelling[1] in value
        )


@dataclass(frozen=True)
class Merged:
    """Several layers as one, the later winning."""

    settings: Mapping[str, Any]
    env: Mapping[str, EnvSetting]
    require: Mapping[str, str]


def read_layer(document: Document, source: Mapping[str, Any], place: Place, label: str) -> Layer:
    """One layer of the inventory; what it says wrongly has been complained about and is left out."""
    settings = {key: source[key] for key in _SIMPLE if key in source}
    settings |= {
        key: posixpath.normpath("/" + source[key].lstrip("/")) for key in _PATHS if key in source
    }
    if "nproc_per_node" in source:
        settings["nproc_per_node"] = int(source["nproc_per_node"])
    for key, value in source.get("ssh", {}).items():
        settings[f"ssh.{key}"] = _NUMBERS[key](value) if key in _NUMBERS else value
    settings |= _become(document, source, place)
    if "gpus" in source and (gpus := read_gpus(document, source["gpus"], (*place, "gpus"))):
        settings["gpus"] = gpus
    settings |= {
        f"interfaces.{key}": _device(value) for key, value in source.get("interfaces", {}).items()
    }
    env = read_env(document, source.get("env", {}), place)
    _compare_interface(document, settings, env, place)
    return Layer(
        label,
        place,
        source,
        settings,
        env,
        read_require(document, source.get("require", {}), place),
    )


def merge(layers: Iterable[Layer], own: Merged | None = None) -> Merged:
    """The layers over `own`, in order of growing rank."""
    settings = dict(own.settings) if own else {}
    env = dict(own.env) if own else {}
    require = dict(own.require) if own else {}
    for layer in layers:
        _yield_to(layer, settings, env)
        settings |= layer.settings
        env |= {name: EnvSetting(value, layer.label) for name, value in layer.env.items()}
        require |= layer.require
    return Merged(settings, env, require)


def _yield_to(layer: Layer, settings: dict[str, Any], env: dict[str, EnvSetting]) -> None:
    """An interface in a higher layer beats the variable of a lower one, and the other way round."""
    for key, variable in VARIABLES.items():
        if key in layer.settings:
            env.pop(variable, None)
        if variable in layer.env:
            settings.pop(key, None)


def _become(document: Document, source: Mapping[str, Any], place: Place) -> dict[str, bool]:
    short, long = source.get("become"), source.get("ssh", {}).get("become")
    if short is not None and long is not None and short != long:
        document.complain(
            (*place, "become"), "this is short for ssh.become, which says the opposite"
        )
    return {} if short is None else {"ssh.become": short}


def _device(value: Any) -> Any:
    return value if isinstance(value, str) else tuple(item for item in value if item is not None)


def _compare_interface(
    document: Document, settings: Mapping[str, Any], env: Mapping[str, str], place: Place
) -> None:
    declared, variable = settings.get(NCCL_INTERFACE), env.get(VARIABLES[NCCL_INTERFACE])
    if declared is not None and variable is not None and variable.removeprefix("=") != declared:
        other = key_text((*place, "interfaces", "nccl"))
        message = (
            f"'{variable}' stands against {other}, which says '{declared}'; keep one of the two"
        )
        document.complain((*place, "env", VARIABLES[NCCL_INTERFACE]), message)
