"""Names that models make up, fitted to what was offered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.names import fit_name

OFFERED = ("look", "echo__say", "a__run", "b__run")


@pytest.mark.parametrize(
    ("called", "fitted"),
    [
        ("look", "look"),
        ("", ""),
        ("functions.look", "look"),
        ("default_api:look", "look"),
        ("echo__say", "echo__say"),
        ("echo.say", "echo__say"),
        ("echo::say", "echo__say"),
        ("say", "echo__say"),
        ("functions.say", "echo__say"),
        ("run", "run"),
        ("b.run", "b__run"),
        ("c.run", "c_run"),
        ("ook", "ook"),
        ("no such", "no_such"),
        ("x" * 200, "x" * 128),
    ],
)
def test_a_called_name_is_the_offered_one_that_it_means(called: str, fitted: str) -> None:
    """Ours; models put a namespace before a name, or leave it out."""
    assert fit_name(called, OFFERED) == fitted


@given(st.text(min_size=1, max_size=200))
def test_a_fitted_name_can_always_be_sent_back(called: str) -> None:
    """Responses API: names of 1-128 letters, digits, underscores and dashes."""
    fitted = fit_name(called, OFFERED)
    assert 1 <= len(fitted) <= 128
    assert fitted.isascii()
    assert fitted.replace("-", "a").replace("_", "a").isalnum()
