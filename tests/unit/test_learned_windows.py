"""Windows that only refusals told: remembered for one model, bounded, and forgotten when they may be wrong."""

import pytest

from antiphon.engine import learned_windows
from antiphon.engine.learned_windows import MODELS_KEPT, LearnedWindows


def test_a_window_is_remembered_for_its_model_alone() -> None:
    """Ours."""
    windows = LearnedWindows()
    windows.learn("here", "m", 4_000, told=None)
    assert windows.find("here", "m", told=None) == 4_000
    assert windows.find("there", "m", told=None) is None
    assert windows.find("here", "n", told=None) is None


def test_what_the_server_tells_anew_outranks_what_was_learned() -> None:
    """Ours: it was started again with another window."""
    windows = LearnedWindows()
    windows.learn("here", "m", 4_000, told=8_000)
    assert windows.find("here", "m", told=8_000) == 4_000
    assert windows.find("here", "m", told=16_000) is None
    assert windows.find("here", "m", told=8_000) is None


def test_it_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a server may be started again and not tell."""
    monkeypatch.setattr(learned_windows, "LIFETIME_S", -1.0)
    windows = LearnedWindows()
    windows.learn("here", "m", 4_000, told=None)
    assert windows.find("here", "m", told=None) is None


def test_no_more_models_are_remembered_than_the_limit() -> None:
    """Ours: the oldest leave."""
    windows = LearnedWindows()
    for number in range(MODELS_KEPT + 1):
        windows.learn("here", str(number), 4_000, told=None)
    assert windows.find("here", "0", told=None) is None
    assert windows.find("here", "1", told=None) == 4_000
