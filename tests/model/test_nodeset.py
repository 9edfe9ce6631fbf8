"""Node sets: expanded in the order written, folded so that they read back, limited in size."""

from random import Random

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.model.nodeset import expand, fold, fold_numbers, nearest, select
from tests.support.operations import operations


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1,3]", ["gpu1", "gpu3"]),
        ("10.0.0.[7,5]", ["10.0.0.7", "10.0.0.5"]),
        ("gpu[3,1-2]", ["gpu3", "gpu1", "gpu2"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[1-9/4]", ["gpu1", "gpu5", "gpu9"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n1[2-3]", ["n12", "n13"]),
        ("n[8-9,10]5", ["n85", "n95", "n105"]),
        ("b,a", ["b", "a"]),
        (" b , a ", ["b", "a"]),
        ("n[ 1 - 2 ]", ["n1", "n2"]),
        ("x[1-4]!x[2-3]", ["x1", "x4"]),
        ("x[4,1-3]&x[1-2,4]", ["x4", "x1", "x2"]),
        ("x[1-2]^x[2-3]", ["x1", "x3"]),
        ("x[1-3]!x2,x2", ["x1", "x3", "x2"]),
        ("x[1,1]", ["x1", "x1"]),
        ("x1!x1", []),
    ],
)
def test_names_come_in_the_order_written(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be empty"),
        ("  ", "cannot be empty"),
        ("a,,b", "a name is missing"),
        ("a!", "a name is missing"),
        ("n[1", "not closed"),
        ("n1]", "not closed"),
        ("n[[1]]", "not closed"),
        ("n[]", "is not a number"),
        ("n[1-2,]", "is not a number"),
        ("n[a-b]", "is not a number"),
        ("n[-1-2]", "is not a number"),
        ("n[3-1]", "runs backwards"),
        ("n[1-9/0]", "has no step"),
        ("n[01-100]", "equally long"),
        ("n[1-2][3-4]", "side by side"),
        ("@racks", "not looked up"),
        ("root@gpu1", "ssh: {user"),
        ("gpu*", "is not a node name"),
        ("gpu 1", "is not a node name"),
        ("gpu{1,2}", "is not a node name"),
        ("n[1-100001]", "more than 100,000"),
        ("n[0-99999],m[0-99999]", "more than 100,000"),
        ("r[0-999999999999]n[0-999999999999]", "more than 100,000"),
        ("n[" + "9" * 5000 + "]", "is not a number"),
    ],
)
def test_what_is_no_node_set_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expand(text)


words = st.text("abz", min_size=1, max_size=3)
numbers = st.integers(0, 120)
padded = st.tuples(numbers, st.integers(1, 4)).map(lambda pair: str(pair[0]).zfill(pair[1]))
names = st.lists(
    st.one_of(words, padded, st.sampled_from(["-", ".", "_"])), min_size=1, max_size=6
).map("".join)


@given(st.lists(names, max_size=30))
def test_what_was_folded_expands_to_the_same_names(some: list[str]) -> None:
    folded = fold(some)
    assert set(expand(folded) if folded else []) == set(some)


@given(st.lists(names, max_size=15), st.randoms())
def test_folding_does_not_depend_on_order_or_repetition(some: list[str], random: Random) -> None:
    shuffled = some + some[:3]
    random.shuffle(shuffled)
    assert fold(shuffled) == fold(some)


@st.composite
def brackets(draw: st.DrawFn) -> str:
    first = draw(st.integers(0, 30))
    width = draw(st.sampled_from([1, 3]))
    last = first + draw(st.integers(0, 12))
    step = draw(st.sampled_from(["", "/2", "/5"]))
    return f"[{str(first).zfill(width)}-{str(last).zfill(width)}{step}]"


@given(words, brackets(), words, brackets())
def test_the_same_names_as_clustershell(before: str, first: str, between: str, second: str) -> None:
    text = f"{before}{first}{between}{second}"
    assert set(expand(text)) == set(NodeSet(text, resolver=RESOLVER_NOGROUP))


@pytest.mark.parametrize(
    ("some", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu16", *(f"gpu{n:02}" for n in range(14, 0, -1))], "gpu[01-14,16]"),
        (["a", "b1", "b2"], "a,b[1-2]"),
        (["n1", "n01"], "n[1,01]"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r[1-2]n[1-2]"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["n1", "a b", "n2"], "n[1-2],a b"),
    ],
)
def test_folded_names(some: list[str], folded: str) -> None:
    assert fold(some) == folded


A_NAME = 16  # operations at most; 8 when this was written


@given(st.lists(st.integers(0, 120) | st.integers(0, 10**9)))
def test_numbers_are_folded_as_their_texts_are(numbers: list[int]) -> None:
    assert fold_numbers(numbers) == fold(map(str, numbers))


def test_the_work_of_folding_grows_with_names_that_hardly_fold() -> None:
    scattered = [f"10.{n * 7 % 251}.{n * 13 % 241}.{n * 29 % 239}" for n in range(10_000)]
    assert set(expand(fold(scattered))) == set(scattered)
    few = operations(lambda: fold(scattered[:1_000]))
    assert few < A_NAME * 1_000
    assert operations(lambda: fold(scattered[:2_000])) < 2.2 * few


INVENTORY = ["gpu2", "gpu1", "gpu3", "login"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("gpu[1-2]", ["gpu2", "gpu1"]),
        ("rack1", ["gpu3", "gpu1"]),
        ("rack1,login", ["gpu1", "gpu3", "login"]),
        ("rack1!gpu3", ["gpu1"]),
        ("login", ["login"]),
        ("all", INVENTORY),
        ("all!rack1", ["gpu2", "login"]),
    ],
)
def test_a_selection_keeps_the_order_of_the_inventory(text: str, chosen: list[str]) -> None:
    groups = {"rack1": ["gpu1", "gpu3"], "login": ["gpu1"]}
    assert set(select(text, INVENTORY, groups)) == set(chosen)
    assert select(text, INVENTORY, groups) == [name for name in INVENTORY if name in chosen]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu[3-5]", r"'gpu\[4-5\]' is not in the inventory, which has gpu\[1-3\]"),
        ("logni", r"'logni' is not in the inventory \(did you mean 'login'\?\)"),
        ("zzz", "'zzz' is not in the inventory$"),
        ("l1", "'l1' is not in the inventory$"),
    ],
)
def test_a_selection_of_strangers_is_an_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        select(text, INVENTORY)


def test_short_names_that_differ_in_their_number_are_listed() -> None:
    with pytest.raises(ValueError, match=r"'n9' is not at hand, which has n\[1-2\]"):
        select("n9", ["n1", "n2"], whole="at hand")


def test_a_group_of_the_name_all_is_that_group() -> None:
    assert select("all", INVENTORY, {"all": ["gpu1"]}) == ["gpu1"]


def test_strangers_may_be_allowed() -> None:
    assert select("gpu[1,9]", INVENTORY, missing_ok=True) == ["gpu1"]


def test_a_near_miss_is_a_hint() -> None:
    assert nearest("adress", ["name", "address"]) == "did you mean 'address'?"
    assert nearest("adress", ["gpus"]) is None


@pytest.mark.parametrize("text", ["n[1-65]", "n[1-40],m[1-25]", "n[1-13]m[1-5]"])
def test_no_more_names_are_built_than_are_wanted(text: str) -> None:
    assert len(expand(text, 65)) == 65
    with pytest.raises(ValueError, match="more than 64 nodes"):
        expand(text, 64)
