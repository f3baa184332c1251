import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError
from voxstill.text import jsgf
from voxstill.text.grammar import Choice, Expansion, Grammar, Graph, Literal, Reference, Repeat, Sequence

HEAD = "#JSGF V1.0;\ngrammar g;\n"
DIGITS = Path(__file__).parents[2] / "examples/digits.jsgf"

WORDS = st.sampled_from(["turn", "on", "off", "the", "light"]).map(Literal)


def _inside(parts: st.SearchStrategy[Expansion]) -> st.SearchStrategy[Expansion]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        several.map(Sequence),
        several.flatmap(
            lambda parts: st.lists(st.sampled_from([1.0, 2.0, 0.5]), min_size=len(parts), max_size=len(parts)).map(
                lambda weights: Choice(parts, tuple(weights))
            )
        ),
        parts.map(lambda part: Repeat(part, least=1)),
        parts.map(lambda part: Repeat(part, least=0)),
        parts.map(lambda part: Repeat(part, least=0, once=True)),
    )


RULES = st.recursive(st.one_of(WORDS, st.just(Reference("other", 0))), _inside, max_leaves=8)
GRAMMARS = st.builds(
    lambda top, other: Grammar(name="g", rules={"top": top, "other": other}, public=("top",)),
    RULES,
    st.recursive(WORDS, _inside, max_leaves=4),
)


def says(graph: Graph, words: list[str]) -> bool:
    transitions = {(source, word): target for source, target, word in graph.arcs}
    state: int | None = 0
    for word in words:
        state = transitions.get((state, word)) if state is not None else None
    return state in graph.ends


@given(GRAMMARS)
def test_a_grammar_written_down_is_read_back_equal(g: Grammar) -> None:
    assert jsgf.parse(g.jsgf()).jsgf() == g.jsgf()


@settings(max_examples=200)
@given(GRAMMARS, st.integers(0, 1000))
def test_every_sentence_of_a_grammar_is_a_path_of_its_graph(g: Grammar, seed: int) -> None:
    sentence = g.sample(random.Random(seed))
    assert says(g.graph(), sentence)
    assert set(sentence) <= g.words()


@given(GRAMMARS)
def test_a_graph_survives_being_written_and_read(g: Grammar) -> None:
    assert jsgf.parse(g.jsgf()).graph() == g.graph()


def test_a_graph_is_the_smallest() -> None:
    loop = jsgf.parse(HEAD + "public <s> = <d>+ | (one | two) [<d>*];\n<d> = one | two;").graph()
    assert (loop.num_states, len(loop.arcs)) == (2, 4)


def doubling(times: int) -> Grammar:
    """A grammar whose sentences have `2 ** times` words, each one of two."""
    rules = "".join(f"<r{i}> = <r{i - 1}> <r{i - 1}>;" for i in range(1, times + 1))
    return jsgf.parse(f"#JSGF V1.0; grammar d; public <s> = <r{times}>; <r0> = a | b; {rules}")


def test_rules_that_double_make_a_large_graph_in_seconds_or_an_error() -> None:
    graph = doubling(13).graph()
    assert (graph.num_states, len(graph.arcs)) == (2**13 + 1, 2**14)
    with pytest.raises(DataError, match="the grammar `d` is too large"):
        doubling(30).graph()


@given(GRAMMARS)
def test_no_two_states_of_a_graph_have_the_same_sentences(g: Grammar) -> None:
    """Moore's refinement leaves each state in a class of its own."""
    graph = g.graph()
    by_state: dict[int, dict[str, int]] = {state: {} for state in range(graph.num_states)}
    for source, target, word in graph.arcs:
        assert by_state[source].setdefault(word, target) == target
    class_of = {state: int(state in graph.ends) for state in by_state}
    for _ in by_state:
        futures = {
            state: (class_of[state], *sorted((word, class_of[target]) for word, target in arcs.items()))
            for state, arcs in by_state.items()
        }
        numbers = {future: number for number, future in enumerate(dict.fromkeys(futures.values()))}
        class_of = {state: numbers[futures[state]] for state in by_state}
    assert len(set(class_of.values())) == graph.num_states


def test_a_graph_accepts_only_sentences_of_the_grammar() -> None:
    graph = jsgf.parse(HEAD + "public <s> = turn (on | off) [the light];").graph()
    assert says(graph, ["turn", "on"])
    assert says(graph, ["turn", "off", "the", "light"])
    assert not says(graph, ["turn"])
    assert not says(graph, ["turn", "on", "the"])
    assert not says(graph, ["turn", "on", "off"])


def test_weights_decide_how_often_an_alternative_is_drawn() -> None:
    g = jsgf.parse(HEAD + "public <s> = /9/ often | /1/ seldom;")
    rng = random.Random(0)
    often = sum(g.sample(rng) == ["often"] for _ in range(2000))
    assert 1700 < often < 1900


def test_equal_seeds_draw_equal_sentences() -> None:
    g = jsgf.parse(DIGITS.read_text())
    first, second = random.Random(3), random.Random(3)
    assert [g.sample(first) for _ in range(20)] == [g.sample(second) for _ in range(20)]
    assert len(g.words()) == 10


def test_comments_quotes_and_null_are_read() -> None:
    g = jsgf.parse('#JSGF V1.0 UTF-8 en;\n/* a\nb */ grammar g; // c\npublic <s> = "new" york <NULL>;')
    assert g.sample(random.Random(0)) == ["new", "york"]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("hello", 1, "#JSGF"),
        (HEAD + "public <s> = (one | two;", 3, "`;` is where `)`"),
        (HEAD + "public <s> = one\n", 3, "ends where `;`"),
        (HEAD + "public <s> = one |\n;", 4, "empty"),
        (HEAD + "\n<s> = one;", 4, "no rule is public"),
        (HEAD + "public <s> = <t>;", 3, "<t> is not defined"),
        (HEAD + "public <s> = one;\n<s> = two;", 4, "twice"),
        (HEAD + "public <s> = /0/ one | /1/ two;", 3, "not a number above 0"),
        (HEAD + "public <s> = one {tag};", 3, "tags"),
        ("#JSGF V1.0;\ngrammar g;\nimport <other.*>;", 3, "imports"),
        (HEAD, 2, "no rule is public"),
        ("#JSGF V1.0;", 1, "grammar name"),
    ],
)
def test_a_wrong_grammar_names_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(DataError) as caught:
        jsgf.parse(text)
    assert f"line {line}" in caught.value.what
    assert why in caught.value.why


@given(st.text(max_size=40))
def test_any_text_is_a_grammar_or_an_error_with_a_line(text: str) -> None:
    try:
        jsgf.parse(HEAD + text)
    except DataError as error:
        assert "line" in error.what  # noqa: PT017


def test_a_rule_that_calls_itself_has_no_graph() -> None:
    g = jsgf.parse(HEAD + "public <s> = one <s> | two;")
    with pytest.raises(DataError, match="line 3") as caught:
        g.graph()
    assert "refers to itself" in caught.value.why
    with pytest.raises(DataError, match="is infinite"):
        jsgf.parse(HEAD + "public <s> = one <s>;").sample(random.Random(0))


def test_rules_nested_too_deeply_are_an_error_in_words() -> None:
    rules = "".join(f"<r{i}> = <r{i + 1}> a;\n" for i in range(3000))
    text = f"#JSGF V1.0;\ngrammar g;\npublic <s> = <r0>;\n{rules}<r3000> = a;\n"
    with pytest.raises(DataError, match="nested too deeply"):
        jsgf.of_bytes(text.encode(), "deep.jsgf")
