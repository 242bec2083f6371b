"""The normal form of a condition, against Python's own evaluation of it."""

import ast
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.differ.source.conditions import alternatives, both, shown, when

NAMES = ("a", "b", "c", "d")


def expressions():
    leaf = st.sampled_from([*NAMES, "a is None", "b == 2", "c in (1, 2)", "True", "a is not True"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map(lambda x: f"not ({x})"),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}) and ({p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}) or ({p[1]})"),
        ),
        max_leaves=8,
    )


def holds(condition, values) -> bool:
    return all(any(bool(eval(literal, {}, dict(values))) for literal in clause) for clause in condition)


@given(expressions(), st.booleans())
def test_a_condition_holds_exactly_when_the_expression_does(source, positive):
    condition = when(ast.parse(source, mode="eval").body, positive)
    for values in product((True, False), repeat=4):
        values = dict(zip(NAMES, values))
        assert holds(condition, values) == (bool(eval(source, {}, dict(values))) == positive), shown(condition)


@given(expressions())
def test_alternatives_together_are_the_condition(source):
    condition = when(ast.parse(source, mode="eval").body)
    ways = alternatives(condition)
    for values in product((True, False), repeat=4):
        values = dict(zip(NAMES, values))
        assert any(holds(way, values) for way in ways) == holds(condition, values)


def condition(source, positive=True):
    return when(ast.parse(source, mode="eval").body, positive)


def test_nesting_order_and_negation_do_not_show():
    assert condition("a and (b and c)") == both(condition("c"), condition("a and b"))
    assert condition("not (a or b == 1)") == condition("b != 1 and not a")
    assert condition("not a < b") == condition("a >= b")
    assert condition("x in ['p', 'q']") == condition("x in ('q', 'p')")
    assert condition("x is True") == condition("x == True") == condition("x is not False") == condition("x")


def test_a_long_condition_stays_whole():
    source = " or ".join(f"(a{i} and b{i})" for i in range(12))
    (clause,) = condition(source)
    assert len(clause) == 1
