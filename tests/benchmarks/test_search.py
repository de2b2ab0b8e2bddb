"""The benchmarks of search and self-play say what they promise, on small sizes; no time is
asserted."""

import pytest

from benchmarks import search
from engine.evaluation.evaluator import uniform


def test_search_says_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TREE_GAMES", 8)
    monkeypatch.setattr(search, "SELFPLAY_PLIES", 2)
    figures = search.measure(moves=2, games=3, rounds=1)
    assert figures["simulations"] == 32
    assert figures["simulations_per_cpu_second"] > 0
    assert figures["selfplay_moves_per_cpu_second"] > 0


def test_games_under_measurement_are_played_on_and_begun_anew() -> None:
    play = search._Play(uniform, 4)
    for _ in range(search.GAME_PLIES + 5):
        play.move()
    assert play.begun >= 8
    assert (play.plies_G < search.GAME_PLIES).all()
    assert play.search.simulations <= 4 * (search.GAME_PLIES + 5) * search.SIMULATIONS
