"""All mutants of a module, by the rules of mutmut; needs requirements/mutants.txt.

Only mutmut's rules are used, and not its runner. That one puts all mutants of a function into one
file, so the text that is sent to nodes would be another one, and it leaves out every function with
a decorator. Here a mutant is the source file with one place changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from tests.mutants.drawing import Place

# Types are not run, and a fault in an import or a decorator is one in every test of the module.
SKIPPED = (libcst.Annotation, libcst.Import, libcst.ImportFrom, libcst.Decorator)


class Source:
    """A module's source, and the places in it where something can be changed."""

    def __init__(self, path: str, text: str) -> None:
        self.text = text
        wrapper = MetadataWrapper(libcst.parse_module(text))
        self._module = wrapper.module
        found = _Changes()
        wrapper.visit(found)
        self._changes = found.changes
        self.places = [Place(path, number, *place) for number, place in enumerate(found.places)]

    def mutant(self, place: Place) -> str | None:
        """The source with this one change; None where it is no other program."""
        old, new = self._changes[place.number]
        text = self._module.deep_replace(old, new).code
        try:
            compile(text, place.path, "exec")
        except SyntaxError:
            return None
        return text if text != self.text else None


class _Changes(libcst.CSTVisitor):
    """What mutmut's rules change: (old node, new node), with line and function."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[libcst.CSTNode, libcst.CSTNode]] = []
        self.places: list[tuple[int, str]] = []
        self._names: list[str] = []

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, SKIPPED) or _is_text_for_people(node):
            return False
        if isinstance(node, libcst.FunctionDef | libcst.ClassDef):
            self._names.append(node.name.value)
        for new in _mutated(node):
            self.changes.append((node, new))
            line = self.get_metadata(PositionProvider, node).start.line
            self.places.append((line, ".".join(self._names)))
        return True

    def on_leave(self, original_node: libcst.CSTNode) -> None:
        if isinstance(original_node, libcst.FunctionDef | libcst.ClassDef):
            self._names.pop()


def _mutated(node: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    for kind, rule in mutation_operators:
        if isinstance(node, kind):
            made = iter(rule(node))
            # A word has three mutants (marked, small, capital), which the same tests find.
            yield from islice(made, 1) if isinstance(node, libcst.SimpleString) else made


def _is_text_for_people(node: libcst.CSTNode) -> bool:
    """Whether this is a sentence and no name, verdict or key: golden files hold sentences."""
    if isinstance(node, libcst.SimpleString):
        return " " in node.value or '"""' in node.value or node.value in ('""', "''")
    return isinstance(node, libcst.FormattedStringText)
