"""Self-play: whole games by the rules, the same at any width, with what the search found at each
move."""

from collections.abc import Iterable
from dataclasses import replace

import chess
import numpy as np
import pytest

from engine.board.position import from_fen, to_board
from engine.board.rules import FIFTY, MATE, MATERIAL, REPETITION, STALEMATE
from engine.encoding.planes import move_of
from engine.evaluation import handwritten
from engine.evaluation.evaluator import uniform
from engine.search import SearchConfig
from engine.selfplay import generate
from engine.selfplay.game import ENDINGS, RESIGNED, TOO_LONG, UNEVENTFUL, Game
from engine.selfplay.generate import SelfPlayConfig, SelfPlayError, play_games
from tests.engine.search.test_search_rules import expected_ending

SEARCH = SearchConfig(simulations=8, dirichlet_fraction=0.25)
QUICK = SelfPlayConfig(width=16, most_plies=60)


def told(games: Iterable[Game]) -> dict[int, str]:
    """Write out everything of each game, by number."""
    return {
        game.number: str(
            (
                game.start.tolist(),
                game.labels,
                game.promotions,
                game.ending,
                game.result,
                [
                    t
                    and (t.labels.tolist(), t.shares.tolist(), t.value, t.best_value, t.simulations)
                    for t in game.searches
                ],
                game.resign_ply,
            )
        )
        for game in games
    }


def replay(game: Game) -> chess.Board:
    """Play a game again by python-chess, checking every move and search result, and give its last
    position."""
    board = to_board(game.start)
    assert len(game.labels) == len(game.promotions) == len(game.searches)
    for label, promotion, searched in zip(game.labels, game.promotions, game.searches, strict=True):
        assert expected_ending(board) is None, "a game does not go on after its end"
        if searched is None:
            board.push(move_of(label, promotion, board.turn))
            assert board.is_valid()
            continue
        legal = set(board.legal_moves)
        moves = [
            move_of(*pair, board.turn)
            for pair in zip(searched.labels.tolist(), searched.promotions.tolist(), strict=True)
        ]
        assert len(set(moves)) == len(moves) > 0
        assert set(moves) <= legal
        assert searched.shares.sum() == pytest.approx(1.0, abs=1e-5)
        assert (searched.shares > 0).all()
        assert -1 <= searched.value <= 1
        assert -1 <= searched.best_value <= 1
        move = move_of(label, promotion, board.turn)
        assert move in moves, "what is played was found by the search"
        board.push(move)
    return board


def test_games_are_played_to_their_end_by_the_rules():
    config = SelfPlayConfig(width=14)
    endings = set()
    numbers = []
    for game in play_games(handwritten.evaluate, SEARCH, config, games=28):
        board = replay(game)
        numbers.append(game.number)
        endings.add(game.ending)
        if game.ending == TOO_LONG:
            assert len(game.labels) == config.most_plies
        else:
            assert game.ending == expected_ending(board)
        winner = {chess.WHITE: 1, chess.BLACK: -1}[not board.turn]
        assert game.result == (winner if game.ending == MATE else 0)
    assert sorted(numbers) == list(range(28))
    assert MATE in endings
    assert endings & {REPETITION, MATERIAL, STALEMATE, FIFTY}


def test_a_game_is_the_same_in_any_company():
    games = [
        told(play_games(uniform, SEARCH, SelfPlayConfig(width=width, most_plies=40), games=30))
        for width in (1, 7, 64)
    ]
    assert games[0] == games[1] == games[2]
    some = told(
        play_games(uniform, SEARCH, SelfPlayConfig(width=3, most_plies=40), games=range(20, 25))
    )
    assert some == {number: games[0][number] for number in range(20, 25)}
    assert len(set(games[0].values())) == 30
    other = told(
        play_games(uniform, SEARCH, SelfPlayConfig(width=7, most_plies=40), games=5, seed=1)
    )
    assert not set(other.values()) & set(games[0].values())


def test_batches_stay_full_while_there_are_games_to_begin():
    sizes = []

    def watched(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(planes_BP))
        return uniform(planes_BP)

    search = SearchConfig(simulations=8)
    config = SelfPlayConfig(width=16, most_plies=10)
    assert len(list(play_games(watched, search, config, games=64))) == 64
    full = sum(size == 16 for size in sizes)
    assert full > 0.9 * len(sizes)


def test_games_start_where_they_are_told_and_may_be_over_before_the_first_move():
    fens = [
        "4k3/8/4K3/8/8/8/8/R7 w - - 0 1",
        "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",
        "8/8/4k3/8/8/4K3/8/8 w - - 0 1",
    ]
    starts = [from_fen(fen) for fen in fens]
    games = {
        game.number: game for game in play_games(uniform, SEARCH, QUICK, games=6, starts=starts)
    }
    for number, game in games.items():
        assert game.start.tolist() == from_fen(fens[number % 3]).tolist()
    assert [(len(games[n].labels), games[n].ending, games[n].result) for n in (0, 1, 2)] == [
        (1, MATE, 1),
        (0, STALEMATE, 0),
        (0, MATERIAL, 0),
    ]
    mate = games[3].searches[0]
    assert (len(mate.labels), mate.shares.tolist(), mate.value) == (1, [1.0], 1.0)


def test_the_temperature_cools_by_ply():
    config = SelfPlayConfig(opening_plies=10, cooling_plies=4.0)
    assert [config.temperature_at(ply) for ply in (0, 9)] == [1.0, 1.0]
    assert config.temperature_at(13) == pytest.approx(0.5)
    assert config.temperature_at(17) == pytest.approx(0.25)
    assert config.temperature_at(25) == 0.0
    assert SelfPlayConfig(opening_plies=3, cooling_plies=0.0).temperature_at(3) == 0.0


def test_without_temperature_and_noise_every_game_is_the_same_and_with_it_openings_differ():
    still = SelfPlayConfig(width=8, opening_plies=0, cooling_plies=0.0, most_plies=20)
    games = list(play_games(handwritten.evaluate, SearchConfig(simulations=8), still, games=6))
    assert len({str(game.labels) for game in games}) == 1
    lively = SelfPlayConfig(width=8, opening_plies=8, cooling_plies=0.0, most_plies=20)
    games = list(play_games(handwritten.evaluate, SearchConfig(simulations=8), lively, games=6))
    assert len({str(game.labels[:8]) for game in games}) == 6
    for game in games:
        for label, searched in zip(game.labels[8:], game.searches[8:], strict=True):
            assert searched.shares[searched.labels == label].max() == searched.shares.max()


LOST = from_fen("4k3/8/8/8/8/8/8/QQQ1K3 b - - 0 1")


def test_nobody_resigns_unless_told_to(monkeypatch: pytest.MonkeyPatch):
    played = next(play_games(handwritten.evaluate, SEARCH, QUICK, games=1, starts=[LOST]))
    assert played.ending == MATE
    monkeypatch.setattr(generate, "RESIGN_PLIES", 0)
    monkeypatch.setattr(generate, "RESIGN_MOVES", 1)
    resigning = SelfPlayConfig(width=1, resign=0.9)
    played = next(play_games(handwritten.evaluate, SEARCH, resigning, games=1, starts=[LOST]))
    assert (played.ending, played.result, len(played.labels), len(played.searches)) == (
        RESIGNED,
        1,
        0,
        0,
    )
    monkeypatch.setattr(generate, "RESIGN_PLIES", 2)
    played = next(play_games(handwritten.evaluate, SEARCH, resigning, games=1, starts=[LOST]))
    assert played.ending in (RESIGNED, MATE)
    assert len(played.labels) >= 2


def test_settings_that_mean_nothing_are_refused():
    for options, said in (
        ({"width": 0}, "width"),
        ({"resign": 1.0}, "resign"),
        ({"cooling_plies": -1.0}, "cooling_plies"),
    ):
        with pytest.raises(SelfPlayError, match=said):
            SelfPlayConfig(**options)  # type: ignore[arg-type]


def test_the_first_moves_are_drawn_without_search_and_each_game_draws_how_many():
    gumbel = SearchConfig(algorithm="gumbel", simulations=16, max_considered_actions=8)
    config = SelfPlayConfig(width=16, most_plies=20, sampled_plies=6)
    games = list(play_games(handwritten.evaluate, gumbel, config, games=40))
    sampled = []
    for game in games:
        replay(game)
        sampled.append(sum(search is None for search in game.searches))
        assert None not in game.searches[sampled[-1] :]
    assert set(sampled) == set(range(7))
    again = told(
        play_games(handwritten.evaluate, gumbel, replace(config, width=3), games=range(7, 12))
    )
    assert again == {number: told(games)[number] for number in range(7, 12)}


def test_games_are_stopped_by_the_halfmove_clock():
    start = [from_fen("4k3/4p3/8/8/8/8/4P3/RN2K1NR w - - 0 1")]
    config = SelfPlayConfig(width=4, draw_halfmoves=6)
    games = list(play_games(uniform, SEARCH, config, games=8, starts=start))
    assert UNEVENTFUL in {game.ending for game in games}
    for game in games:
        board = replay(game)
        assert (game.ending == UNEVENTFUL) == (
            board.halfmove_clock >= 6 and expected_ending(board) is None
        )
        assert board.halfmove_clock <= 6
        assert game.result == 0 or game.ending == MATE


def test_games_that_are_played_on_tell_when_giving_up_would_have_been_wrong(
    monkeypatch: pytest.MonkeyPatch,
):
    start = [from_fen("4k3/pppp4/8/8/8/8/4PPPP/4K1NR b - - 0 1"), LOST]
    config = SelfPlayConfig(width=8, most_plies=80, resign=0.3)

    def play(played_on: float) -> dict[int, Game]:
        monkeypatch.setattr(generate, "RESIGN_DISABLED_SHARE", played_on)
        return {
            game.number: game
            for game in play_games(handwritten.evaluate, SEARCH, config, games=40, starts=start)
        }

    monkeypatch.setattr(generate, "RESIGN_PLIES", 0)
    resigned, games = play(0.0), play(0.5)
    assert len([game for game in games.values() if game.resign_ply is not None]) in range(8, 33)
    false = 0
    for number, game in games.items():
        before = resigned[number]
        if game.resign_ply is None:
            assert game.ending == before.ending
            continue
        assert before.ending == RESIGNED
        assert game.resign_ply == len(before.labels)
        assert game.labels[: game.resign_ply] == before.labels
        assert game.resign_was_wrong == (game.result != before.result), (
            "who did not lose after all gave up falsely"
        )
        false += game.resign_was_wrong
    assert 0 < false < 20


def test_whoever_is_asked_to_stop_drops_the_games_under_way():
    asked = iter([False] * 10 + [True] * 10)
    config = SelfPlayConfig(width=4, most_plies=5)
    games = list(play_games(uniform, SEARCH, config, games=100, stop=lambda: next(asked)))
    assert [len(game.labels) for game in games] == [5] * 8
    assert set(ENDINGS) >= {game.ending for game in games}
