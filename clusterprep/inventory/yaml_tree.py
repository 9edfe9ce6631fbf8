"""Read YAML text to plain data, and remember its lines, since every complaint points at one.

PyYAML parses; composing and constructing are done here. Scalars follow the YAML 1.2 core rules
instead of PyYAML's 1.1 ones, or are taken as written where the caller says so. Nothing but
mappings, lists and scalars can be built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

MAX_DEPTH = 50  # PyYAML's C code recurses without a limit of its own and dies of deep nesting
MAX_ALIASED = 1_000_000  # values that aliases may add: enough for any fleet, too few for a bomb

Place = tuple[str | int, ...]  # ("nodes", 0, "address")
# Which scalars are text as written. True: all below. A mapping or a list: rules for what is below.
Written = Any

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
STANDARD_TAG = "tag:yaml.org,2002:"
_STANDARD_TAGS = frozenset(
    f"{STANDARD_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)


class YamlError(Exception):
    """The text cannot be read at all; `line` counts from 1."""

    def __init__(self, message: str, line: int | None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.hint = hint


class Tree(Struct, eq=False):
    """One composed value: a scalar has text, a list items, a mapping pairs of (key, value)."""

    kind: str  # scalar, list, mapping
    line: int
    text: str = ""
    plain: bool = False  # a scalar without quotes or tag, open to the core rules
    tag: str | None = None
    items: Sequence[Tree] = ()
    pairs: Sequence[tuple[Tree, Tree]] = ()
    file: str | None = None  # where it was read, if that is not the document's own file


def compose(text: str, pure: bool = False) -> Tree | None:
    """Return the only document of the text, or None if the text is empty.

    Raises YamlError if it is no YAML, or too much of it. The parser in C is used if PyYAML was
    built with it, unless `pure` asks for the slow one.
    """
    import yaml

    loader: Any = yaml.SafeLoader if pure else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = yaml.parse(text, Loader=loader)
        return _Composer(events).document()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        character = error.character
        # The C parser gives a number, the pure one the character itself.
        code = character if isinstance(character, int) else ord(character)
        raise YamlError(f"the character U+{code:04X} is not allowed in YAML", line) from None


# What to do about what libyaml says, where the line itself shows nothing.
_PARSER_HINTS = {
    "mapping values are not allowed in this context": (
        "keys of one mapping stand below each other, equally indented; a value that has a colon "
        "before a space needs quotes"
    ),
    "did not find expected ',' or '}'": "a { is not closed, or a comma is missing before here",
    "did not find expected ',' or ']'": "a [ is not closed, or a comma is missing before here",
}


def _syntax_error(error: Any, text: str) -> YamlError:
    reasons = [part for part in (error.context, error.problem) if part]
    reason = ", ".join(reasons)
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return YamlError(f"not YAML: {reason}", None)
    hint = _syntax_hint(text.splitlines(), mark.line, error.problem)
    return YamlError(f"not YAML: {reason}", mark.line + 1, hint)


def _syntax_hint(lines: list[str], number: int, problem: str) -> str | None:
    """Return what to do about the common mistakes in an inventory, or None."""
    if _INI_SECTION.fullmatch(_first_line(lines)):
        return "Ansible's INI files are converted by `clusterprep init --from-ansible`"
    line = ""
    if number < len(lines):
        line = lines[number][:1000]  # the pattern below takes the square of the length
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        return "YAML is indented with spaces, never with tabs"
    if _BARE_RANGE.search(line):
        return 'between { and } a range needs quotes: name: "gpu[01-16]"'
    return _PARSER_HINTS.get(problem)


def _first_line(lines: list[str]) -> str:
    """Return the first line that is neither empty nor a comment."""
    for line in lines:
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            return stripped
    return ""


class _Composer:
    """Builds a tree from events, with limits on its depth and on what aliases multiply."""

    def __init__(self, events: Iterator[Any]) -> None:
        import yaml

        self.events = events
        self.yaml = yaml
        self.ends = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
        self.anchors: dict[str, tuple[Tree, int]] = {}  # each with its number of values
        self.open: set[str] = set()  # anchors of values that are not complete yet
        self.depth = 0
        self.values = 0
        self.aliased = 0

    def document(self) -> Tree | None:
        """Return the tree of the only document, None if there is none."""
        tree = None
        for event in self.events:
            if not isinstance(event, self.yaml.DocumentStartEvent):
                continue
            if tree is not None:
                message = "a second document starts here"
                raise YamlError(message, _line(event), "one file holds one document")
            tree = self.value(next(self.events))
        return tree

    def value(self, event: Any) -> Tree:
        if isinstance(event, self.yaml.ScalarEvent):
            self.values += 1
            tree = Tree(
                kind="scalar",
                line=_line(event),
                text=event.value,
                plain=event.implicit[0],
                tag=event.tag,
            )
            if event.anchor:
                self.anchors[event.anchor] = (tree, 1)
            return tree
        if isinstance(event, self.yaml.AliasEvent):
            return self.alias(event)
        return self.container(event)

    def container(self, event: Any) -> Tree:
        """Return the list or mapping that begins with this event."""
        values_before = self.values
        self.values += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        if event.anchor:
            self.open.add(event.anchor)
        if isinstance(event, self.yaml.SequenceStartEvent):
            tree = self.sequence(event)
        else:
            tree = self.mapping(event)
        self.depth -= 1
        if event.anchor:
            self.open.discard(event.anchor)
            self.anchors[event.anchor] = (tree, self.values - values_before)
        return tree

    def sequence(self, event: Any) -> Tree:
        items: list[Tree] = []
        for inner in self.events:
            if isinstance(inner, self.ends):
                break
            items.append(self.value(inner))
        return Tree("list", _line(event), tag=event.tag, items=items)

    def mapping(self, event: Any) -> Tree:
        pairs: list[tuple[Tree, Tree]] = []
        for inner in self.events:
            if isinstance(inner, self.ends):
                break
            key = self.value(inner)
            value = self.value(next(self.events))
            pairs.append((key, value))
        return Tree("mapping", _line(event), tag=event.tag, pairs=pairs)

    def alias(self, event: Any) -> Tree:
        """Return the tree that an alias stands for; it counts as if it were written out."""
        anchor = event.anchor
        if anchor in self.open:
            message = f"'*{anchor}' stands for something it is itself a part of"
            raise YamlError(message, _line(event))
        if anchor not in self.anchors:
            raise YamlError(f"'*{anchor}' has no '&{anchor}' before it", _line(event))
        tree, size = self.anchors[anchor]
        self.values += size
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            message = (
                f"the aliases, the last of them '*{anchor}', "
                f"stand for more than {MAX_ALIASED:,} values"
            )
            raise YamlError(message, _line(event), "write it without aliases of aliases")
        return tree


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class Construction:
    """Turns a tree into plain data.

    `complain` is called for each mistake with its place, a message, its line and a hint; reading
    goes on behind it.
    """

    def __init__(self, complain: Callable[[Place, str, int, str | None], None]) -> None:
        self.complain = complain
        self.spoilt: set[Place] = set()  # places without a value, because their tag is not allowed

    def build(self, tree: Tree, rule: Written, place: Place = ()) -> Any:
        """Return the data of a tree; `rule` says below which keys scalars stay as written."""
        if tree.tag is not None and tree.tag not in _STANDARD_TAGS and tree.tag != "!":
            tag = tree.tag.replace(STANDARD_TAG, "!!")
            self.complain(place, f"the tag '{tag}' is not allowed", tree.line, None)
            self.spoilt.add(place)
            return None
        if tree.kind == "scalar":
            if rule is True:
                return tree.text
            return self.scalar(tree)
        if tree.kind == "list":
            return self.items(tree, rule, place)
        return self.mapping(tree, rule, place)

    def scalar(self, tree: Tree) -> Any:
        has_other_tag = tree.tag not in (None, "!", f"{STANDARD_TAG}str")
        if tree.plain or has_other_tag:
            return core_scalar(tree.text)
        return tree.text

    def items(self, tree: Tree, rule: Written, place: Place) -> list[Any]:
        """Return the data of a list; its rule is a list with the one rule for every item."""
        item_rule: Written = None
        if isinstance(rule, list):
            item_rule = rule[0]
        elif rule is True:
            item_rule = True
        items: list[Any] = []
        for number, item in enumerate(tree.items):
            items.append(self.build(item, item_rule, (*place, number)))
        return items

    def mapping(self, tree: Tree, rule: Written, place: Place) -> dict[str, Any]:
        """Return the data of a mapping; its own keys win over those that `<<` brings."""
        built: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in tree.pairs:
            name = key.text
            if key.kind != "scalar":
                message = "a key has to be a word, not a list or a mapping"
                self.complain(place, message, key.line, None)
            elif is_merge(key):
                built = {
                    **self.merged(value, rule, place),
                    **built,
                }
            elif name in lines:
                message = f"the key is written twice, first in line {lines[name]}"
                self.complain((*place, name), message, key.line, None)
            else:
                built[name] = self.build(value, below(rule, name), (*place, name))
                lines[name] = key.line
        return built

    def merged(self, tree: Tree, rule: Written, place: Place) -> dict[str, Any]:
        """Return what `<<: *defaults` brings. In a list the first with a key gives its value."""
        merged: dict[str, Any] = {}
        sources = tree.items if tree.kind == "list" else [tree]
        for source in sources:
            if source.kind == "mapping":
                built = self.mapping(source, rule, place)
                merged = {
                    **built,
                    **merged,
                }
            else:
                message = "'<<' takes a mapping or a list of mappings"
                self.complain(place, message, source.line, None)
        return merged


def is_merge(key: Tree) -> bool:
    return key.plain and key.text == "<<"


def below(rule: Written, key: str) -> Written:
    """Return the rule for what is below a key; `*` in a rule is any key."""
    if isinstance(rule, Mapping):
        return rule.get(key, rule.get("*"))
    return True if rule is True else None


def core_scalar(text: str) -> Any:
    """Return a plain scalar by the YAML 1.2 core schema.

    Infinities, NaN and numbers of very many digits stay text: no key takes them.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if _HEX.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def line_of(tree: Tree, place: Place) -> int:
    """Return the line of a place: of its key in a mapping, of the item in a list.

    If the place is absent, it is the line of its nearest parent.
    """
    line = tree.line
    for step in place:
        child = _child(tree, step)
        if child is None:
            return line
        line, tree = child
    return line


def file_of(tree: Tree, place: Place) -> str | None:
    """Return the file of a place, or of its nearest parent; None is the document's own."""
    file = tree.file
    for step in place:
        child = _child(tree, step)
        if child is None:
            return file
        tree = child[1]
        file = tree.file or file
    return file


def _child(tree: Tree, step: str | int) -> tuple[int, Tree] | None:
    """Return the line and the value of one step of a place, or None if it is absent."""
    if isinstance(step, int):
        if step >= len(tree.items):
            return None
        item = tree.items[step]
        return item.line, item
    for key, value in tree.pairs:
        if key.text == step and not is_merge(key):
            return key.line, value
    return _merged_child(tree, step)


def _merged_child(tree: Tree, step: str) -> tuple[int, Tree] | None:
    """Return the same as `_child` for a key that `<<` brings."""
    for key, value in tree.pairs:
        if not is_merge(key):
            continue
        sources = [value] if value.kind == "mapping" else value.items
        for source in sources:
            child = _child(source, step)
            if child:
                return child
    return None


def key_text(place: Place) -> str:
    """Return a place as users write it: nodes[0].address."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        elif text:
            text += f".{step}"
        else:
            text = step
    return text
