"""Words of nodes in remedies: quoted, cleaned, and never run by the shell that gets them."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterprep import remedies
from clusterprep.remedies import (
    LONGEST_LINE,
    NO_REMEDY,
    Remedy,
    chain,
    noted,
    placed,
    sentence,
    shell_line,
    with_all_words,
)
from tests.project.test_architecture import MODULES, calls, none, place
from tests.support.pasting import (
    MAKERS,
    WORDS,
    fields_of,
    is_literal,
    not_parsed,
    not_shown_safely,
    run_words,
    templates,
)


def made(maker: str, template: str, word: str) -> Remedy:
    words = dict.fromkeys(fields_of(template), word)
    if maker == "noted":
        return noted(shell_line("true"), template, **words)
    return shell_line(template, **words) if maker == "shell_line" else sentence(template, **words)


# ---------------------------------------------------------------- the shell that checks


def test_the_shell_notices_what_it_should() -> None:
    """What would run a node's word is found, so the tests below can fail."""
    bad = ["echo $(x)", "ethtool -s eth0;x; autoneg on", 'a "`x`"', "it's and 's $(x)", "echo\nx"]
    assert run_words([*bad, "echo '$(x)'", "reboot", "echo > /etc/x", "kill 1"]) == bad
    assert not_parsed(["echo 'a", "echo a # b", "echo a", "echo 'a # b'"]) == [
        "echo 'a",
        "echo a # b",
    ]


# ---------------------------------------------------------------- every template


@pytest.mark.parametrize("maker", MAKERS)
def test_no_remedy_of_the_code_runs_a_word_of_a_node(maker: str) -> None:
    lines: list[str] = []
    for kind, template, _ in templates():
        if kind == maker:
            for word in WORDS if fields_of(template) else ("",):
                remedy = made(kind, template, word)
                lines += [remedy, remedy.note]
    assert len(lines) > 20
    none(run_words(lines), "a shell runs what a node said:")
    none(not_shown_safely(lines), "controls the terminal that shows it:")


def test_every_line_is_one_that_a_shell_parses_and_without_a_comment() -> None:
    """A quote that is not closed waits for more, and in zsh `#` begins no comment."""
    lines = []
    for kind, template, _ in templates():
        if kind == "shell_line":
            for word in ("eth0", "it's $(x)"):
                remedy = made(kind, template, word)
                if remedy.is_command:
                    lines.append(str(remedy))
    assert len(lines) > 200
    none(not_parsed(lines), "no shell takes this line as it is:")


# ---------------------------------------------------------------- the architecture


def test_templates_are_literals() -> None:
    found = []
    for module in MODULES:
        if module == "remedies":
            continue
        for name, call in calls(module):
            maker = name.rpartition(".")[2]
            if maker in MAKERS and not is_literal(call.args[1 if maker == "noted" else 0]):
                found.append(place(module, call.lineno))
    none(found, "a template is a literal, and words of others are its fields:")


def test_no_other_module_makes_a_remedy_of_text() -> None:
    private = {"Remedy", "remedies._make", "remedies.Remedy"}
    found = [
        place(module, call.lineno)
        for module in MODULES
        if module != "remedies"
        for name, call in calls(module)
        if name in private or name.endswith(("Remedy.__new__", "__class__"))
    ]
    none(found, "remedies are made by shell_line and sentence alone:")
    users = [
        place(module, call.lineno)
        for module in MODULES
        if module not in ("remedies", "history.packing")
        for name, call in calls(module)
        if name == "remedies.unpack"
    ]
    none(users, "only the history unpacks remedies:")


def test_a_sentence_begins_with_a_word_of_ours_and_marks_none_of_others_as_code() -> None:
    found = []
    for maker, template, where in templates():
        if maker == "shell_line":
            continue
        if template.startswith("{"):
            found.append(f"{where}: {template}")
    none(found, "whoever pastes a sentence would run its first word:")


# ---------------------------------------------------------------- the makers


def test_words_are_quoted_and_the_template_is_not() -> None:
    line = shell_line("ethtool -s {card} autoneg on   # and on {card}", card="eth0;x")
    assert line == "ethtool -s 'eth0;x' autoneg on"
    assert line.note == "and on eth0?x"
    assert line.is_command
    assert shell_line("ps -p {pids} -o {word}", pids=[1, 2], word="a b") == "ps -p 1 2 -o 'a b'"
    assert shell_line("ls {files}", files=["a b", "c"]) == "ls 'a b' c"


def test_sentences_lose_what_a_shell_acts_upon() -> None:
    text = sentence("take {path} out", path="/x $(rm -rf /)`y`;'\"\n\x1b[2J\u202e é")
    assert text == "take /x ??rm -rf /??y?????" + "?[2J? é" + " out"
    assert not text.is_command


def test_no_line_is_shown_for_a_word_that_would_be_an_option() -> None:
    remedy = shell_line("ip link set dev {name} up", name="-batch /tmp/x")
    assert not remedy.is_command
    assert remedy == (
        "no command is shown, because a name in it could be taken for an option: -batch /tmp/x"
    )
    assert not shell_line("rm {files}", files=["a", "-rf"]).is_command


def test_what_is_too_long_for_a_name_or_a_line_is_not_cut_in_the_middle() -> None:
    assert "characters" in shell_line("ls {path}", path="x" * 5000)
    assert not shell_line("ls {paths}", paths=["x" * 1000] * 5).is_command
    many = chain(*(shell_line("cat {file}", file=f"/proc/{n}") for n in range(1000)))
    assert len(many) <= LONGEST_LINE
    assert not not_parsed([many])
    assert "more: check again after that" in many.note


def test_lines_are_joined_as_one_and_said_once() -> None:
    first, second = shell_line("a   # because"), shell_line("b   # because")
    assert (chain(first, second, first), chain(first, second).note) == ("a; b", "because")
    assert chain(first, sentence("then reboot")).note == "because; then reboot"
    assert chain(sentence("one"), NO_REMEDY, sentence("two")) == "one; two"


def test_a_name_of_a_table_is_replaced_by_a_quoted_word_and_only_where_no_word_was() -> None:
    remedy = shell_line("systemctl start UNIT   # UNIT is {{down}}")
    placed_in = placed(remedy, UNIT="a; x")
    assert (placed_in, placed_in.note) == (
        "systemctl start 'a; x'",
        "a? x is {down}",
    )
    assert placed(sentence("look at GPU"), GPU="0") == "look at 0"
    with pytest.raises(ValueError, match="words of others"):
        placed(shell_line("ls UNIT {word}", word="UNIT"), UNIT="';x;'")


def test_a_remedy_does_not_change_and_survives_copies() -> None:
    remedy = shell_line("ls   # a note")
    with pytest.raises(AttributeError):
        remedy.note = "another"  # type: ignore[misc]
    assert copy.deepcopy([remedy])[0] is remedy
    assert remedies.unpack(remedies.pack(remedy)).note == "a note"
    assert remedies.unpack(remedies.pack(remedy)).is_command


def test_what_an_earlier_release_kept_is_a_sentence_without_control_letters() -> None:
    old = remedies.unpack("ls   # \x1b[2J")
    assert (old, old.is_command, old.note) == ("ls   # \\x1b[2J", False, "")
    for wrong in (7, None, [7, True, ""], ["a"], ["a", True, "", 1]):
        with pytest.raises((TypeError, ValueError)):
            remedies.unpack(wrong)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(max_size=40), min_size=20, max_size=20))
def test_whatever_a_node_says_is_one_word(words: list[str]) -> None:
    lines: list[str] = []
    for word in words:
        remedy = shell_line("printf {word}   # of {word}", word=word)
        lines += [remedy, remedy.note, sentence("it's {word}", word=word)]
    assert not run_words(lines)
    assert not not_shown_safely(lines)


def scan(host: str, type_: str = "rsa") -> Remedy:
    return shell_line("ssh-keyscan -t {type} {host} >> kh   # compare", type=type_, host=host)


def test_lines_that_differ_in_one_word_are_one_line_with_all_of_them() -> None:
    together = with_all_words([scan("n1"), scan("n2"), scan("n1")])
    assert (together, together.note) == ("ssh-keyscan -t rsa n1 n2 >> kh", "compare")
    assert together.is_command
    assert with_all_words([scan("n1")]) == scan("n1")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(scan("n2", "ed25519"), id="two-words"),
        pytest.param(shell_line("true"), id="another-line"),
        pytest.param(scan("n" * 1000), id="short-enough-to-be-chained"),
    ],
)
def test_lines_that_differ_otherwise_are_chained(other: Remedy) -> None:
    remedies = [scan("n1"), other]
    if "nnn" in other:
        remedies += [scan(f"{number}" * 1000) for number in range(1, 5)]
    assert with_all_words(remedies) == chain(*remedies)


def test_what_is_no_line_is_chained() -> None:
    said = sentence("look at it")
    assert with_all_words([scan("n1"), said]) == chain(scan("n1"), said)
