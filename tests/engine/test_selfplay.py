"""Self-play: whole games by the rules, the same whatever their company, with what the search thought of each move."""

from collections.abc import Iterable

import chess
import numpy as np
import pytest

from engine import handwritten
from engine.encoding import move_of
from engine.evaluators import uniform
from engine.position import from_fen, to_board
from engine.rules import FIFTY, MATE, MATERIAL, REPETITION, STALEMATE
from engine.search import SearchConfig
from engine.selfplay import RESIGNED, TOO_LONG, PlayedGame, SelfPlayConfig, SelfPlayError, play_games
from tests.engine.search.test_rules import expected_ending

SEARCH = SearchConfig(simulations=8, dirichlet_share=0.25)
QUICK = SelfPlayConfig(width=16, most_plies=60)


def told(games: Iterable[PlayedGame]) -> dict[int, str]:
    """Write out everything of each game, by number."""
    return {
        game.number: str(
            (
                game.start.tolist(),
                game.labels.tolist(),
                game.promotions.tolist(),
                game.ending,
                game.result,
                [(t.labels.tolist(), t.visits.tolist(), t.shares.tolist(), t.value, t.draw) for t in game.thoughts],
            )
        )
        for game in games
    }


def replay(game: PlayedGame) -> chess.Board:
    """Play a game again by python-chess, checking every move and thought, and give its last position."""
    board = to_board(game.start)
    assert len(game.labels) == len(game.promotions) == len(game.thoughts)
    for label, promotion, thought in zip(game.labels.tolist(), game.promotions.tolist(), game.thoughts, strict=True):
        assert expected_ending(board) is None, "a game does not go on after its end"
        legal = set(board.legal_moves)
        moves = [
            move_of(*pair, board.turn)
            for pair in zip(thought.labels.tolist(), thought.promotions.tolist(), strict=True)
        ]
        assert len(set(moves)) == len(moves) > 0
        assert set(moves) <= legal
        assert thought.shares.sum() == pytest.approx(1.0, abs=1e-5)
        assert (thought.shares > 0).all()
        assert -1 <= thought.value <= 1
        assert 0 <= thought.draw <= 1
        move = move_of(label, promotion, board.turn)
        assert move in moves, "what is played has been thought of"
        board.push(move)
    return board


def test_games_are_played_to_their_end_by_the_rules():
    config = SelfPlayConfig(width=24)
    endings = set()
    numbers = []
    for game in play_games(handwritten.evaluate, SEARCH, config, games=40):
        board = replay(game)
        numbers.append(game.number)
        endings.add(game.ending)
        if game.ending == TOO_LONG:
            assert len(game.labels) == config.most_plies
        else:
            assert game.ending == expected_ending(board)
        winner = {chess.WHITE: 1, chess.BLACK: -1}[not board.turn]
        assert game.result == (winner if game.ending == MATE else 0)
    assert sorted(numbers) == list(range(40))
    assert MATE in endings
    assert endings & {REPETITION, MATERIAL, STALEMATE, FIFTY}


def test_a_game_is_the_same_in_any_company():
    games = [
        told(play_games(uniform, SEARCH, SelfPlayConfig(width=width, most_plies=40), games=30)) for width in (1, 7, 64)
    ]
    assert games[0] == games[1] == games[2]
    some = told(play_games(uniform, SEARCH, SelfPlayConfig(width=3, most_plies=40), games=5, first=20))
    assert some == {number: games[0][number] for number in range(20, 25)}
    assert len(set(games[0].values())) == 30
    other = told(play_games(uniform, SEARCH, SelfPlayConfig(width=7, most_plies=40), games=5, seed=1))
    assert not set(other.values()) & set(games[0].values())


def test_batches_stay_full_while_there_are_games_to_begin():
    sizes = []

    def watched(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(planes_BP))
        return uniform(planes_BP)

    search = SearchConfig(simulations=8, reuse=False)
    config = SelfPlayConfig(width=16, most_plies=10)
    assert len(list(play_games(watched, search, config, games=64))) == 64
    full = sum(size == 16 for size in sizes)
    assert full > 0.9 * len(sizes)


def test_games_start_where_they_are_told_and_may_be_over_before_the_first_move():
    fens = ["4k3/8/4K3/8/8/8/8/R7 w - - 0 1", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "8/8/4k3/8/8/4K3/8/8 w - - 0 1"]
    starts = [from_fen(fen) for fen in fens]
    games = {game.number: game for game in play_games(uniform, SEARCH, QUICK, games=6, starts=starts)}
    for number, game in games.items():
        assert game.start.tolist() == starts[number % 3].tolist()
    assert [(len(games[n].labels), games[n].ending, games[n].result) for n in (0, 1, 2)] == [
        (1, MATE, 1),
        (0, STALEMATE, 0),
        (0, MATERIAL, 0),
    ]
    mate = games[3].thoughts[0]
    assert (len(mate.labels), mate.shares.tolist(), mate.value) == (1, [1.0], 1.0)


def test_the_temperature_cools_by_ply():
    config = SelfPlayConfig(temperature=0.8, opening_plies=10, cooling_plies=4.0, coldest=0.15)
    assert [config.temperature_at(ply) for ply in (0, 9)] == [0.8, 0.8]
    assert config.temperature_at(13) == pytest.approx(0.4)
    assert config.temperature_at(17) == pytest.approx(0.2)
    assert config.temperature_at(21) == 0.0
    assert SelfPlayConfig(opening_plies=3, cooling_plies=0.0).temperature_at(3) == 0.0


def test_without_temperature_and_noise_every_game_is_the_same_and_with_it_openings_differ():
    still = SelfPlayConfig(width=8, temperature=0.0, most_plies=20)
    games = list(play_games(handwritten.evaluate, SearchConfig(simulations=8), still, games=6))
    assert len({str(game.labels.tolist()) for game in games}) == 1
    lively = SelfPlayConfig(width=8, opening_plies=8, cooling_plies=0.0, most_plies=20)
    games = list(play_games(handwritten.evaluate, SearchConfig(simulations=8), lively, games=6))
    assert len({str(game.labels[:8].tolist()) for game in games}) == 6
    for game in games:
        for label, thought in zip(game.labels[8:].tolist(), game.thoughts[8:], strict=True):
            assert thought.visits[thought.labels == label].max() == thought.visits.max()


def test_nobody_gives_up_unless_told_to():
    start = [from_fen("4k3/8/8/8/8/8/8/QQQ1K3 b - - 0 1")]
    played = next(play_games(handwritten.evaluate, SEARCH, QUICK, games=1, starts=start))
    assert played.ending == MATE
    resigning = SelfPlayConfig(width=1, resign=0.9, resign_plies=0)
    played = next(play_games(handwritten.evaluate, SEARCH, resigning, games=1, starts=start))
    assert (played.ending, played.result, len(played.labels), len(played.thoughts)) == (RESIGNED, 1, 0, 0)
    later = SelfPlayConfig(width=1, resign=0.9, resign_plies=2)
    played = next(play_games(handwritten.evaluate, SEARCH, later, games=1, starts=start))
    assert played.ending in (RESIGNED, MATE)
    assert len(played.labels) >= 2


def test_settings_that_mean_nothing_are_refused():
    for options, said in (({"width": 0}, "width"), ({"resign": 1.0}, "resign"), ({"temperature": -1.0}, "temperature")):
        with pytest.raises(SelfPlayError, match=said):
            SelfPlayConfig(**options)  # type: ignore[arg-type]
