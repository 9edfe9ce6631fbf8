"""YAML text to plain data that remembers its lines, because every complaint has to point at one.

PyYAML parses; composing and constructing are done here: scalars follow the YAML 1.2 core rules instead of PyYAML's
1.1 ones, or are taken as written where the caller says so, and nothing but mappings, lists and scalars can be built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 50  # PyYAML's C code recurses without a limit of its own and dies of deep nesting
MAX_ALIASED = 1_000_000  # values that aliases may add: enough for any fleet, too few for a bomb

Place = tuple[str | int, ...]  # ("nodes", 0, "address")
Written = (
    Any  # True: scalars below are text as written; a mapping or a list: rules for what is below
)

_INT = re.compile(r"[-+]?[0-9]{1,18}")
_OCTAL = re.compile(r"0o[0-7]{1,18}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_BARE_RANGE = re.compile(r"\{[^\"']*\w\[")
_INI_SECTION = re.compile(r"\[[\w:.-]+\]")
_TAG = "tag:yaml.org,2002:"
_STANDARD_TAGS = frozenset(
    f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)


class YamlError(Exception):
    """The text cannot be read at all; `line` counts from 1."""

    def __init__(self, message: str, line: int | None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.line, self.hint = message, line, hint


@dataclass(eq=False, slots=True)
class Tree:
    """One composed value: a scalar has text, a list items, a mapping pairs of (key, value)."""

    kind: str  # scalar, list, mapping
    line: int
    text: str = ""
    plain: bool = False  # a scalar without quotes or tag, open to the core rules
    tag: str | None = None
    items: Sequence[Tree] = ()
    pairs: Sequence[tuple[Tree, Tree]] = ()


def compose(text: str, pure: bool = False) -> Tree | None:
    """The only document of the text, None where it is empty. YamlError where it is no YAML, or too much of it.

    The parser in C is used where PyYAML was built with it, unless `pure` asks for the slow one.
    """
    import yaml

    loader: Any = yaml.SafeLoader if pure else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        # The C parser gives a number, the pure one the character itself.
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise YamlError(f"the character U+{code:04X} is not allowed in YAML", line) from None


def _syntax(error: Any, text: str) -> YamlError:
    mark = error.problem_mark or error.context_mark
    said = ", ".join(part for part in (error.context, error.problem) if part)
    if mark is None:
        return YamlError(f"not YAML: {said}", None)
    return YamlError(f"not YAML: {said}", mark.line + 1, _syntax_hint(text.splitlines(), mark.line))


def _syntax_hint(lines: list[str], number: int) -> str | None:
    """What to do about the mistakes that everybody makes in an inventory."""
    stripped = (line.strip() for line in lines)
    first = next((line for line in stripped if line and line[0] not in "#;"), "")
    if _INI_SECTION.fullmatch(first):
        return "Ansible's INI files are converted by `clusterprep init --from-ansible`"
    line = lines[number][:1000] if number < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "YAML is indented with spaces, never with tabs"
    if _BARE_RANGE.search(line):
        return 'between { and } a range needs quotes: name: "gpu[01-16]"'
    return None


class _Composer:
    """Events to a tree, with a limit on depth and on what aliases multiply."""

    def __init__(self, events: Iterator[Any]) -> None:
        import yaml

        self.events = events
        self.yaml = yaml
        self.ends = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
        self.anchors: dict[str, tuple[Tree, int]] = {}
        self.open: set[str] = set()  # anchors of values that are not complete yet
        self.depth = self.values = self.aliased = 0

    def document(self) -> Tree | None:
        tree = None
        for event in self.events:
            if isinstance(event, self.yaml.DocumentStartEvent):
                if tree is not None:
                    raise YamlError(
                        "a second document starts here", _line(event), "one file holds one document"
                    )
                tree = self.value(next(self.events))
        return tree

    def value(self, event: Any) -> Tree:
        if isinstance(event, self.yaml.ScalarEvent):
            self.values += 1
            tree = Tree("scalar", _line(event), event.value, event.implicit[0], event.tag)
            return self.remember(event.anchor, tree, 1) if event.anchor else tree
        if isinstance(event, self.yaml.AliasEvent):
            return self.alias(event)
        return self.container(event)

    def container(self, event: Any) -> Tree:
        before = self.values
        self.values += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        if event.anchor:
            self.open.add(event.anchor)
        is_list = isinstance(event, self.yaml.SequenceStartEvent)
        tree = self.sequence(event) if is_list else self.mapping(event)
        self.depth -= 1
        self.open.discard(event.anchor)
        return self.remember(event.anchor, tree, self.values - before) if event.anchor else tree

    def sequence(self, event: Any) -> Tree:
        items = []
        while not isinstance(inner := next(self.events), self.ends):
            items.append(self.value(inner))
        return Tree("list", _line(event), tag=event.tag, items=items)

    def mapping(self, event: Any) -> Tree:
        pairs = []
        while not isinstance(inner := next(self.events), self.ends):
            pairs.append((self.value(inner), self.value(next(self.events))))
        return Tree("mapping", _line(event), tag=event.tag, pairs=pairs)

    def remember(self, anchor: str, tree: Tree, size: int) -> Tree:
        self.anchors[anchor] = (tree, size)
        return tree

    def alias(self, event: Any) -> Tree:
        if event.anchor in self.open:
            raise YamlError(
                f"'*{event.anchor}' stands for something it is itself a part of", _line(event)
            )
        if event.anchor not in self.anchors:
            raise YamlError(f"'*{event.anchor}' has no '&{event.anchor}' before it", _line(event))
        tree, size = self.anchors[event.anchor]
        self.values += size
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            message = f"the aliases, the last of them '*{event.anchor}', stand for more than {MAX_ALIASED:,} values"
            raise YamlError(message, _line(event), "write it without aliases of aliases")
        return tree


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class Construction:
    """A tree to plain data. `problems` collects what is wrong in it; reading goes on behind each of them."""

    def __init__(self, complain: Callable[[Place, str, int, str | None], None]) -> None:
        self.complain = complain
        self.spoilt: set[Place] = set()  # places without a value, because their tag is not allowed

    def build(self, tree: Tree, rule: Written, place: Place = ()) -> Any:
        """The data of a tree; `rule` says below which keys scalars stay as written."""
        if tree.tag is not None and tree.tag not in _STANDARD_TAGS and tree.tag != "!":
            self.complain(
                place, f"the tag '{tree.tag.replace(_TAG, '!!')}' is not allowed", tree.line, None
            )
            self.spoilt.add(place)
            return None
        if tree.kind == "scalar":
            return tree.text if rule is True else self.scalar(tree)
        if tree.kind == "list":
            below = rule[0] if isinstance(rule, list) else rule if rule is True else None
            return [self.build(item, below, (*place, n)) for n, item in enumerate(tree.items)]
        return self.mapping(tree, rule, place)

    def scalar(self, tree: Tree) -> Any:
        explicit = tree.tag not in (None, "!", f"{_TAG}str")
        return core_scalar(tree.text) if tree.plain or explicit else tree.text

    def mapping(self, tree: Tree, rule: Written, place: Place) -> dict[str, Any]:
        built: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in tree.pairs:
            if key.kind != "scalar":
                self.complain(
                    place, "a key has to be a word, not a list or a mapping", key.line, None
                )
            elif is_merge(key):
                built = {**self.merged(value, rule, place), **built}
            elif key.text in lines:
                message = f"the key is written twice, first in line {lines[key.text]}"
                self.complain((*place, key.text), message, key.line, None)
            else:
                built[key.text] = self.build(value, below(rule, key.text), (*place, key.text))
                lines[key.text] = key.line
        return built

    def merged(self, tree: Tree, rule: Written, place: Place) -> dict[str, Any]:
        """`<<: *defaults`, or a list of them: the first that has a key gives its value."""
        found: dict[str, Any] = {}
        for source in [tree] if tree.kind != "list" else tree.items:
            if source.kind == "mapping":
                found = {**self.mapping(source, rule, place), **found}
            else:
                self.complain(
                    place, "'<<' takes a mapping or a list of mappings", source.line, None
                )
        return found


def is_merge(key: Tree) -> bool:
    return key.plain and key.text == "<<"


def below(rule: Written, key: str) -> Written:
    """The rule for what stands under a key; `*` in a rule is any key."""
    if isinstance(rule, Mapping):
        return rule.get(key, rule.get("*"))
    return True if rule is True else None


def core_scalar(text: str) -> Any:
    """A plain scalar by the YAML 1.2 core schema. Infinities, NaN and endless digits stay text: no key takes them."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if _HEX.fullmatch(text):
        return int(text, 16)
    return float(text) if _FLOAT.fullmatch(text) else text


def line_of(tree: Tree, place: Place) -> int:
    """The line of a place: of its key in a mapping, of the item in a list; of its nearest parent where it is absent."""
    line = tree.line
    for step in place:
        found = _step(tree, step)
        if found is None:
            return line
        line, tree = found
    return line


def _step(tree: Tree, step: str | int) -> tuple[int, Tree] | None:
    if isinstance(step, int):
        return (tree.items[step].line, tree.items[step]) if step < len(tree.items) else None
    for key, value in tree.pairs:
        if key.text == step and not is_merge(key):
            return key.line, value
    for key, value in tree.pairs:
        if is_merge(key):
            for source in [value] if value.kind == "mapping" else value.items:
                found = _step(source, step)
                if found:
                    return found
    return None


def key_text(place: Place) -> str:
    """A place as people write it: nodes[0].address."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
