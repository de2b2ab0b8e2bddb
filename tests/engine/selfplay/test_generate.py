"""Self-play games: independence of the width, starts, temperature, resignation, stop.

tests/pipeline/selfplay replays games with python-chess.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from engine.board.position import from_fen
from engine.board.rules import FIFTY_MOVES, MATE
from engine.evaluation import handwritten
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from engine.selfplay import generate
from engine.selfplay.generate import (
    ENDINGS,
    RESIGNED,
    Game,
    SearchResult,
    SelfPlayConfig,
    SelfPlayError,
    play_games,
    read_search_result,
)

SEARCH = SearchConfig(simulations=8, dirichlet_fraction=0.25)
QUICK = SelfPlayConfig(width=16, most_plies=60)


def describe_games(games: Iterable[Game]) -> dict[int, str]:
    """Return moves, search results and ending of each game as a text, by number."""

    def describe(search: SearchResult | None) -> object:
        if search is None:
            return None
        shares = search.labels.tolist(), search.shares.tolist()
        return *shares, search.value, search.best_value, search.simulations

    texts = {}
    for game in games:
        moves = game.labels, game.promotions, list(map(describe, game.searches))
        texts[game.number] = str((*moves, game.ending, game.result, game.resign_ply))
    return texts


def test_games_do_not_depend_on_the_width():
    def play(width: int, games: Iterable[int] | int, seed: int = 0) -> dict[int, str]:
        config = SelfPlayConfig(width=width, most_plies=24)
        return describe_games(play_games(uniform, SEARCH, config, games=games, seed=seed))

    alone = play(1, 12)
    assert alone == play(5, 12) == play(64, 12)
    assert play(3, range(7, 11)) == {number: alone[number] for number in range(7, 11)}
    assert len(set(alone.values())) == 12
    assert not set(play(7, 5, seed=1).values()) & set(alone.values())


def test_at_a_won_root_the_chosen_move_has_all_shares():
    search = Search(uniform, SEARCH)
    search.start(0, from_fen("4k3/8/4K3/8/8/8/8/R7 w - - 0 1"))
    search.run()
    (label,), (promotion,) = search.choose()
    result = read_search_result(search.root(), label, promotion)
    assert (result.labels.tolist(), result.shares.tolist()) == ([label], [1.0])
    assert (result.value, result.best_value) == (1.0, 1.0)


def test_the_mated_side_has_lost():
    for plies, result in ((1, 1), (2, -1)):
        game = Game(0, np.random.default_rng(0), sampled=0, resign_disabled=False)
        game.labels = [0] * plies
        assert game.finish(MATE).result == result
        assert game.finish(FIFTY_MOVES).result == 0


def test_the_temperature_cools_by_ply_and_settings_are_checked():
    config = SelfPlayConfig(opening_plies=10, cooling_plies=4.0)
    found = [config.temperature_at(ply) for ply in (0, 9, 13, 17, 25)]
    assert found == pytest.approx([1.0, 1.0, 0.5, 0.25, 0.0])
    assert SelfPlayConfig(opening_plies=3, cooling_plies=0.0).temperature_at(3) == 0.0
    for name, value in (("width", 0), ("resign", 1.0), ("cooling_plies", -1.0)):
        with pytest.raises(SelfPlayError, match=name):
            SelfPlayConfig(**{name: value})


def test_batches_stay_full_and_a_stop_discards_unfinished_games():
    sizes = []

    def record_size(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(planes_BP))
        return uniform(planes_BP)

    config = SelfPlayConfig(width=16, most_plies=10)
    assert len(list(play_games(record_size, SearchConfig(simulations=8), config, games=64))) == 64
    assert sum(size == 16 for size in sizes) > 0.9 * len(sizes)
    answers = iter([False] * 10 + [True] * 10)
    config = SelfPlayConfig(width=4, most_plies=5)
    games = list(play_games(uniform, SEARCH, config, games=100, stop=lambda: next(answers)))
    assert [len(game.labels) for game in games] == [5] * 8
    assert set(ENDINGS) >= {game.ending for game in games}


def test_only_temperature_and_noise_make_games_different():
    still = SelfPlayConfig(width=8, opening_plies=0, cooling_plies=0.0, most_plies=20)
    games = list(play_games(handwritten.evaluate, SearchConfig(simulations=8), still, games=6))
    assert len({str(game.labels) for game in games}) == 1
    lively = SelfPlayConfig(width=8, opening_plies=8, cooling_plies=0.0, most_plies=20)
    games = list(play_games(handwritten.evaluate, SearchConfig(simulations=8), lively, games=6))
    assert len({str(game.labels[:8]) for game in games}) == 6
    for game in games:
        for label, result in zip(game.labels[8:], game.searches[8:], strict=True):
            assert result.shares[result.labels == label].max() == result.shares.max()


def test_a_random_number_of_first_moves_is_sampled_without_search():
    gumbel = SearchConfig(algorithm="gumbel", simulations=16, max_considered_actions=8)
    config = SelfPlayConfig(width=16, most_plies=10, sampled_plies=6)
    games = list(play_games(handwritten.evaluate, gumbel, config, games=32))
    sampled = []
    for game in games:
        sampled.append(sum(search is None for search in game.searches))
        assert None not in game.searches[sampled[-1] :]
    assert set(sampled) == set(range(7))
    narrow = replace(config, width=3)
    again = play_games(handwritten.evaluate, gumbel, narrow, games=range(7, 12))
    texts = describe_games(games)
    assert describe_games(again) == {number: texts[number] for number in range(7, 12)}


def test_games_without_resignation_show_wrong_resignations(monkeypatch: pytest.MonkeyPatch):
    config = SelfPlayConfig(width=8, opening_plies=60, most_plies=60, resign=0.2)

    def play(disabled_share: float) -> dict[int, Game]:
        monkeypatch.setattr(generate, "RESIGN_DISABLED_SHARE", disabled_share)
        games = play_games(handwritten.evaluate, SEARCH, config, games=40)
        return {game.number: game for game in games}

    monkeypatch.setattr(generate, "MIN_RESIGN_PLIES", 0)
    resigned, games = play(0.0), play(0.5)
    resignations = len([game for game in games.values() if game.resign_ply is not None])
    assert resignations in range(8, 33)
    wrong = 0
    for number, game in games.items():
        before = resigned[number]
        if game.resign_ply is None:
            assert game.ending == before.ending
            continue
        assert before.ending == RESIGNED
        assert game.resign_ply == len(before.labels)
        assert game.labels[: game.resign_ply] == before.labels
        assert game.resign_was_wrong == (game.result != before.result)
        wrong += game.resign_was_wrong
    assert 0 < wrong < resignations
