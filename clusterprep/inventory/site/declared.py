"""Checks that are declared: what to read, how to take a value from it, what the value means. Pure.

A declaration becomes a Fact, which reads and takes the value, and a Check, which judges it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    failed,
    kinds,
    passed,
    skipped,
    uniform,
    unknown,
)
from clusterprep.errors import LinkLost, printable
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json, Node, Read, Severity
from clusterprep.model.versions import conditions_of, satisfies
from clusterprep.remedies import (
    NO_REMEDY,
    Remedy,
    has_site_field,
    has_site_fields,
    site_example,
    site_line,
    site_sentence,
)
from clusterprep.remote.untrusted import shortened

Source = Literal["file", "command", "module"]
Form = Literal["text", "regex", "json", "exit_code", "loaded", "version", "parameter"]
Meaning = Literal["same", "equals", "at_least", "at_most", "one_of", "matches", "version", "exists"]

FILE_LIMIT = 5.0  # seconds
MISSING_SHOWN = "nothing"  # what is seen where there is no value
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
LONGEST_SHOWN = 200  # characters of a value in a finding
_MARK = 12  # hexadecimal digits that tell long values apart


class Taken(Struct, frozen=True):
    """The value that was taken from an answer, None if there is none.

    `matches` says whether it matches the expression of the check, None for a check without one.
    """

    text: str | None
    matches: bool | None = None


class Declaration(Struct, frozen=True):
    """One declared check.

    * `subject`: the path of a file, the words of a command, or a kernel module and its parameter.
    * `argument`: the expression of `regex`, or the keys of `json` with dots between them.
    * `wanted`: what the value is compared with, several with commas between them; of `same` it is
      "kind" or "all", of `exists` "true" or "false".
    * `missing`: what a node without a value gets.
    * `follows`: the checks that explain a failure, as of a Check.
    * `group`, `with_file`, `with_module`: the check is about such nodes only.
    * `place`: the file and line that declares it.
    """

    name: str
    title: str
    source: Source
    subject: tuple[str, ...]
    meaning: Meaning
    wanted: str
    place: str
    form: Form = "text"
    argument: str = ""
    limit: float = FILE_LIMIT
    missing: Literal["fail", "skip", "unknown"] = "fail"
    severity: Severity = "error"
    follows: tuple[str, ...] = ()
    why: str = ""
    remedy: str = ""
    is_command: bool = True
    group: str = ""
    with_file: str = ""
    with_module: str = ""
    passes: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    moves: bool = False


def check_of(declaration: Declaration) -> Check:
    """Return the check that a declaration describes."""
    wanted = "" if declaration.meaning in ("same", "exists") else declaration.wanted
    remedy = NO_REMEDY
    if declaration.remedy and not has_site_field(declaration.remedy, "seen"):
        remedy = site_example(declaration.remedy, is_command=declaration.is_command, wanted=wanted)
    why = declaration.why or f"The site declares it in {declaration.place}."
    return Check(
        declaration.name,
        facts=(declaration.name,),
        judge=functools.partial(_judge, declaration),
        severity=declaration.severity,
        follows=declaration.follows,
        title=declaration.title,
        why=why,
        how=how_of(declaration),
        remedy=remedy,
        tags=("site",),
        wants=functools.partial(_parse_wanted, declaration),
        proof=_proof_of(declaration),
        source=declaration.place,
    )


def fact_of(declaration: Declaration) -> Fact:
    """Return the fact that a declared check judges."""
    reads = (_read_of(declaration), *_conditions_of(declaration))
    group = declaration.group

    def reads_of(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        return reads if not group or group in node.groups else ()

    expression = declaration.wanted if declaration.meaning == "matches" else ""
    parse = functools.partial(
        taken_from,
        declaration.source,
        declaration.form,
        declaration.argument,
        expression,
    )
    return Fact(
        declaration.name,
        reads_of,
        parse,
        moves=declaration.moves,
        costly=("alone",),
        guarded=bool(expression) or declaration.form == "regex",
    )


def _read_of(declaration: Declaration) -> Read:
    subject = declaration.subject
    if declaration.source == "command":
        return Read("alone", subject, declaration.limit)
    if declaration.source == "file":
        return Read("file", subject, declaration.limit)
    folder = _module_folder(subject[0])
    # `files` brings those that are there; refcnt tells of loaded modules, the others also of
    # modules that are a part of the kernel.
    names = ["refcnt", "version", "parameters/*"]
    return Read("files", tuple(f"{folder}/{name}" for name in names))


def _conditions_of(declaration: Declaration) -> Iterable[Read]:
    """Yield the reads that say whether the check is about a node; each answers {} if it is not."""
    if declaration.with_file:
        yield Read("files", (declaration.with_file,))
    if declaration.with_module:
        folder = _module_folder(declaration.with_module)
        yield Read("files", (f"{folder}/refcnt", f"{folder}/version"))


def _module_folder(name: str) -> str:
    return f"/sys/module/{name.replace('-', '_')}"


def how_of(declaration: Declaration) -> str:
    """Return in sentences what is read, what is taken of it, and what the value has to be."""
    subject = " ".join(declaration.subject)
    what = {
        "file": f"the file {subject}",
        "command": f"`{subject}`",
        "module": f"the kernel module {declaration.subject[0]}",
    }[declaration.source]
    forms = {
        "text": "the whole text",
        "regex": f"what the expression {declaration.argument} finds",
        "json": f"{declaration.argument} of its JSON",
        "exit_code": "the exit code",
        "loaded": "whether it is there",
        "version": "its version",
        "parameter": f"its parameter {declaration.argument}",
    }
    about = []
    if declaration.group:
        about.append(f"nodes of the group {declaration.group}")
    if declaration.with_file:
        about.append(f"nodes with {declaration.with_file}")
    if declaration.with_module:
        about.append(f"nodes with the kernel module {declaration.with_module}")
    only = f" About {' and '.join(about)} only." if about else ""
    mended = ""
    if has_site_field(declaration.remedy, "seen"):
        mended = f" The remedy names what was seen: {declaration.remedy}."
    return (
        f"Of {what}, {forms[declaration.form]}: {_wanted_text(declaration)}.{only}{mended} "
        f"Declared in {declaration.place}."
    )


def _wanted_text(declaration: Declaration, wanted: str | None = None) -> str:
    """Return what a value has to be, for messages: «at least 512»."""
    if wanted is None:
        wanted = declaration.wanted
    elif declaration.meaning == "same":
        return wanted
    return {
        "same": "equal on all nodes" + (" of a kind" if wanted == "kind" else ""),
        "equals": wanted,
        "at_least": f"at least {wanted}",
        "at_most": f"at most {wanted}",
        "one_of": f"one of {wanted}",
        "matches": f"a match of {wanted}",
        "version": f"version {wanted}",
        "exists": "there" if wanted == "true" else "not there",
    }[declaration.meaning]


# ---------------------------------------------------------------- taking the value


def taken_from(
    source: str, form: str, argument: str, expression: str, *answers: Any
) -> Taken | Absent:
    """Return the value that is in a node's answers, or why there is none to be judged.

    The first answer is that of the read, the others those of the conditions. Without answers the
    check is not about the node. Raises ValueError for an answer that is not understood.
    """
    if not answers:
        return Absent("not_applicable", "the check is about other nodes")
    answer, *conditions = answers
    if not all(conditions):
        return Absent("not_applicable", "the check is about other nodes")
    text: str | None
    if source == "module":
        text = _of_module(form, argument, answer)
    elif source == "command":
        if form != "exit_code" and answer["code"] != 0:
            said = shortened(answer["err"].strip() or answer["out"].strip(), LONGEST_SHOWN)
            return Absent("failed", printable(f"the exit code is {answer['code']}: {said}"))
        text = str(answer["code"]) if form == "exit_code" else answer["out"]
    else:
        text = answer
    if text is not None:
        text = _taken_of_text(form, argument, text)
    if text is None or not expression:
        return Taken(text)
    return Taken(text, re.fullmatch(expression, text) is not None)


def _of_module(form: str, argument: str, files: Mapping[str, str]) -> str | None:
    """Return what the files below /sys/module of one module say, None if it is not there."""
    if form == "loaded":
        return "loaded" if files else None
    wanted = "version" if form == "version" else f"parameters/{argument}"
    for path, text in files.items():
        if path.split("/", 4)[-1] == wanted:
            return text.strip()
    return None


def _taken_of_text(form: str, argument: str, text: str) -> str | None:
    """Return the part of a text that is the value, None if it has none."""
    if form == "regex":
        found = re.search(argument, text, re.MULTILINE)
        if found is None:
            return None
        group = "value" if "value" in found.re.groupindex else min(1, found.re.groups)
        value = found[group]
        return None if value is None else str(value)
    if form == "json":
        return _of_json(json.loads(text), argument)
    return text.strip()


def _of_json(value: Json, keys: str) -> str | None:
    """Return the value below some keys as text, None if there is no such key."""
    for key in keys.split(".") if keys else ():
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 10:
            if int(key) >= len(value):
                return None
            value = value[int(key)]
        else:
            return None
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


# ---------------------------------------------------------------- judging


def _judge(declaration: Declaration, context: CheckContext) -> Iterable[Outcome]:
    """Judge each node's value; where all should be equal, compare those of the nodes."""
    values: dict[str, str] = {}
    undeclared: set[str] = set()
    absent: set[str] = set()
    for node in context.nodes:
        taken: Taken = context.value(node, declaration.name)
        required = context.wanted(node)
        if taken.text is None and declaration.meaning != "exists":
            absent.add(node.name)
            yield _without_value(declaration, node, required)
            continue
        if declaration.meaning == "same":
            values[node.name] = _shown(taken.text or "")
            if required is None:
                undeclared.add(node.name)
                continue
        yield _judge_value(declaration, node, taken, required)
    if undeclared:
        yield from _compared(declaration, context, values, undeclared, absent)


def _without_value(declaration: Declaration, node: Node, required: str | None) -> Outcome:
    """Return the outcome for a node that answered and has no such value."""
    wanted = _wanted_text(declaration, required)
    if declaration.missing == "skip":
        return skipped(node, "there is no such value here", MISSING_SHOWN, wanted)
    if declaration.missing == "unknown":
        message = f"{declaration.title}: the answer has no such value"
        return unknown(node, message, "no value", MISSING_SHOWN, wanted)
    message = f"{declaration.title}: there is none"
    remedy = _remedy(declaration, node.name, "", required or declaration.wanted)
    return failed(node, message, MISSING_SHOWN, wanted, remedy)


def _judge_value(
    declaration: Declaration, node: Node, taken: Taken, required: str | None
) -> Outcome:
    wanted = declaration.wanted if required is None else required
    shown = MISSING_SHOWN if taken.text is None else _shown(taken.text)
    expected = _wanted_text(declaration, required)
    try:
        satisfied = _is_satisfied(declaration.meaning, taken, wanted)
    except ValueError as error:
        return unknown(node, f"{declaration.title}: {error}", "garbled", shown, expected)
    if satisfied:
        return passed(node, f"{declaration.title}: as declared", shown, expected)
    message = f"{declaration.title}: not as declared"
    remedy = _remedy(declaration, node.name, taken.text or "", wanted)
    return failed(node, message, shown, expected, remedy)


def _is_satisfied(meaning: Meaning, taken: Taken, wanted: str) -> bool:
    """Return whether a value means what is wanted. Raises ValueError if it cannot be compared."""
    if meaning == "exists":
        return (taken.text is not None) == (wanted == "true")
    text = taken.text or ""
    if meaning == "matches":
        return bool(taken.matches)
    if meaning == "one_of":
        return text in _listed(wanted)
    if meaning == "version":
        return satisfies(text, wanted)
    if meaning == "at_least":
        return _number(text) >= _number(wanted)
    if meaning == "at_most":
        return _number(text) <= _number(wanted)
    return text == wanted


def _compared(
    declaration: Declaration,
    context: CheckContext,
    values: Mapping[str, str],
    undeclared: set[str],
    absent: set[str],
) -> Iterable[Outcome]:
    """Yield the outcomes of nodes that should have equal values, by kinds of machines or all."""
    parts = kinds(context) if declaration.wanted == "kind" else (context,)
    for part in parts:
        names = [node.name for node in part.inventory.nodes]
        of_part = {name: values[name] for name in names if name in values}
        about = undeclared.intersection(of_part)
        if not about:
            continue
        members = [node for node in part.inventory.nodes if _is_about(declaration, node)]
        size = len([node for node in members if node.name not in absent])
        for outcome in uniform(of_part, declaration.title, size, about=about):
            yield from _with_remedies(declaration, outcome, values)


def _is_about(declaration: Declaration, node: Node) -> bool:
    return not declaration.group or declaration.group in node.groups


def _with_remedies(
    declaration: Declaration, outcome: Outcome, values: Mapping[str, str]
) -> Iterable[Outcome]:
    """Yield a failure of several nodes with a remedy for each, where these differ."""
    if outcome.verdict != "fail" or not declaration.remedy:
        yield outcome
        return
    wanted = outcome.wanted
    for name in outcome.nodes:
        remedy = _remedy(declaration, name, values[name], wanted)
        yield replace(outcome, nodes=(name,), remedy=remedy)


def _remedy(declaration: Declaration, node: str, seen: str, wanted: str) -> Remedy | None:
    """Return the declared remedy with its fields filled in; None leaves it to the check's own."""
    if not declaration.remedy or not has_site_fields(declaration.remedy):
        return None
    maker = site_line if declaration.is_command else site_sentence
    return maker(declaration.remedy, node=node, seen=seen, wanted=wanted)


def _shown(text: str) -> str:
    """Return a value for findings: printable, and with a checksum where that alone tells it apart.

    Values are compared by what is shown of them: of long ones that is the beginning, and a
    backslash may stand for itself or begin the name of a letter that no terminal shows.
    """
    if len(text) <= LONGEST_SHOWN and "\\" not in text:
        return printable(text)
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    if len(text) <= LONGEST_SHOWN:
        return f"{printable(text)} (sha256 {mark})"
    return f"{printable(text[:LONGEST_SHOWN])}… ({len(text):,} characters, sha256 {mark})"


def _number(text: str) -> Decimal:
    """Return a decimal number. Raises ValueError that says what is expected."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        seen = printable(shortened(text, LONGEST_SHOWN))
        raise ValueError(f"expected a number such as 512 or 1.5; seen '{seen}'")
    return Decimal(match[0])


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _parse_wanted(declaration: Declaration, text: str) -> object:
    """Refuse a value of `require:` that this check cannot compare with. Raises ValueError."""
    meaning = declaration.meaning
    if meaning in ("at_least", "at_most"):
        return _number(text)
    if meaning == "version":
        return conditions_of(text)
    if meaning == "exists" and text not in ("true", "false"):
        raise ValueError(f"expected true or false; seen '{text}'")
    if meaning == "matches" and text != declaration.wanted:
        raise ValueError(
            f"the expression of this check stands in {declaration.place}, and only there"
        )
    return text


def check_wanted(declaration: Declaration) -> None:
    """Raise ValueError if the declared value is none that its meaning can compare with."""
    if declaration.meaning != "same":
        _parse_wanted(declaration, declaration.wanted)


# ---------------------------------------------------------------- proofs


def _proof_of(declaration: Declaration) -> Proof | None:
    """Return the proof that the check fires; None if neither examples nor the meaning give one."""
    good, bad = example_texts(declaration)
    if not good or not bad:
        return None
    answers = [raw_answer(declaration, good[0])]
    conditions = list(_conditions_of(declaration))
    for read in conditions:
        answers.append({str(read.args[0]): "there"})
    parse = fact_of(declaration).parse
    spoilt = parse(raw_answer(declaration, bad[0]))
    reads = (_read_of(declaration), *conditions)
    return Proof(
        declaration.name,
        lambda taken: spoilt,
        answers=dict(zip(reads, answers, strict=True)),
    )


def example_texts(
    declaration: Declaration,
) -> tuple[Sequence[str | None], Sequence[str | None]]:
    """Return answers with which the check passes, and answers with which it fails.

    They are the declared examples, else what follows from the meaning. An answer is the text of a
    file, what a command prints, or a value; None stands for a file or module that is not there.
    """
    if declaration.passes or declaration.fails:
        return declaration.passes, declaration.fails
    values = _example_values(declaration)
    if values is None or declaration.form == "regex":
        return (), ()
    good, bad = values
    return (_written(declaration, good),), (_written(declaration, bad),)


def _example_values(declaration: Declaration) -> tuple[str | None, str | None] | None:
    """Return a value that passes and one that fails; None where the meaning does not give them."""
    wanted = declaration.wanted
    if declaration.meaning == "exists":
        return ("there", None) if wanted == "true" else (None, "there")
    if declaration.meaning == "same":
        return "1", "2"
    if declaration.meaning == "equals":
        return wanted, f"{wanted}1"
    if declaration.meaning == "one_of":
        return _listed(wanted)[0], "".join(_listed(wanted)) + "1"
    if declaration.meaning == "at_least":
        return wanted, str(_number(wanted) - 1)
    if declaration.meaning == "at_most":
        return wanted, str(_number(wanted) + 1)
    return None


def _written(declaration: Declaration, value: str | None) -> str | None:
    """Return an answer that has this value; one without a value has another key."""
    if declaration.form != "json":
        return value
    tree: Json = value
    for key in reversed(declaration.argument.split(".")):
        if key.isascii() and key.isdigit():
            tree = [None] * int(key) + [tree] if value is not None else []
        else:
            tree = {key: tree} if value is not None else {}
    return json.dumps(tree)


def raw_answer(declaration: Declaration, text: str | None) -> Json:
    """Return what a node would answer to the read, None if a file is not there."""
    if declaration.source == "file":
        return text
    if declaration.source == "command":
        if declaration.form == "exit_code":
            code = int(text) if text and text.isascii() and text.isdigit() else 1
            return {"code": code, "out": "", "err": ""}
        return {"code": 0, "out": text or "", "err": ""}
    if text is None:
        return {}
    folder = _module_folder(declaration.subject[0])
    names: Mapping[str, str] = {
        "loaded": "refcnt",
        "version": "version",
        "parameter": f"parameters/{declaration.argument}",
    }
    return {f"{folder}/{names[declaration.form]}": text}


def endless_example(
    declaration: Declaration, parse: Callable[[Fact, Sequence[Json]], object]
) -> tuple[str, int] | None:
    """Return the list and the number of an example over which its expression finds no end.

    `parse` does what the fact does where it can be ended, and raises LinkLost if it had to be.
    """
    fact = fact_of(declaration)
    if not fact.guarded:
        return None
    for key, number, example in _examples(declaration):
        answers = [raw_answer(declaration, example), *_met(declaration)]
        try:
            parse(fact, [["ok", answer] for answer in answers])
        except LinkLost:
            return key, number
    return None


def _examples(declaration: Declaration) -> Iterable[tuple[str, int, str]]:
    """Yield the list, the number and the text of each example."""
    for key, examples in (("pass", declaration.passes), ("fail", declaration.fails)):
        for number, example in enumerate(examples):
            yield key, number, example


def wrong_examples(declaration: Declaration) -> Iterable[tuple[str, int, str]]:
    """Yield the list, the number and what is wrong with each example that does not do as it says.

    Examples of values that should be equal say nothing by themselves.
    """
    parse: Callable[..., Any] = fact_of(declaration).parse
    for key, number, example in _examples(declaration):
        try:
            taken = parse(raw_answer(declaration, example), *_met(declaration))
            verdict = _verdict_of(declaration, taken)
        except (ValueError, TypeError, RecursionError) as error:
            yield key, number, f"nothing can be taken from this example: {error}"
            continue
        if verdict not in ("", key):
            yield key, number, f"with this example the check says {verdict}"


def _met(declaration: Declaration) -> list[Json]:
    return [{"": "there"} for _ in _conditions_of(declaration)]


def _verdict_of(declaration: Declaration, taken: Taken | Absent) -> str:
    """Return what the check says of one value; "" if that depends on other nodes."""
    if isinstance(taken, Absent):
        return f"unknown, because {taken.detail}"
    if taken.text is None and declaration.meaning != "exists":
        return declaration.missing
    if declaration.meaning == "same":
        return ""
    satisfied = _is_satisfied(declaration.meaning, taken, declaration.wanted)
    return "pass" if satisfied else "fail"
