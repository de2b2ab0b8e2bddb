"""Imitations of an invented person with known habits: what is learned, measured and played.

Kills and stops are tested with those of the other jobs (tests/pipeline/storage)."""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import polars as pl
import pytest
import torch

from engine.player import Player, Request, Style
from model import load as load_player
from model.card import CARD_FILE, read_player
from model.checkpoint import CardError, load, read_card, save, save_human_search
from model.data.playouts import playout_rows
from model.network.network import build
from pipeline.cli.commands.play import make_default_options
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.errors import ConfigError, DatasetError, DumpError
from pipeline.evaluation.report import find_overlap
from pipeline.imitation import tune
from pipeline.imitation.book import (
    BOOK_PLIES,
    MIN_BOOK_GAMES,
    MIN_BOOK_SHARE,
    Book,
    measure_book,
)
from pipeline.imitation.imitate import MIN_GAMES, imitate
from pipeline.imitation.measure import LATE_PLY, OPENING_PLIES, compare, find_boards
from pipeline.imitation.page import format_imitation, write_headline, write_imitation
from pipeline.imitation.tune import SHARES, average, choose_share, interpolate, open_batches
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.job_folder import CHECKPOINT_KIND, JobFolder
from tests.conftest import REPOSITORY
from tests.model.synthetic import TINY
from tests.model.test_checkpoint import make

NAME = 'O\'Hara, <b>Kim</b> "K"'
HABITS = {
    chess.WHITE: ("g2g3", "f1g2", "d2d3", "g1f3"),
    chess.BLACK: ("g7g6", "f8g7", "d7d6", "g8f6"),
}
"""The person's first moves, played if they are legal; all other moves are random."""
GAMES, PLIES = 60, 28
POLICY_WEIGHT = "policy.0.layer.weight"

Made = tuple[Path, dict[str, Any]]
"""A checkpoint, and the result of `imitate`."""


def play(seed: int) -> chess.pgn.Game:
    """Play a game of the person on a day of its own, in the order of the seeds; ratings rise."""
    chance, board = random.Random(seed), chess.Board()
    color = chance.random() < 0.5
    moves = []
    while not board.is_game_over() and (ply := board.ply()) < PLIES:
        legal = list(board.legal_moves)
        habit = chess.Move.from_uci(HABITS[color][min(3, ply // 2)])
        is_habit = board.turn == color and habit in legal and ply < 8
        moves.append(habit if is_habit else chance.choice(legal))
        board.push(moves[-1])
    game = chess.pgn.Game()
    white, black = (NAME, "Foe") if color else ("Foe", NAME)
    game.headers.update({"White": white, "Black": black, "Result": chance.choice(("1-0", "0-1"))})
    game.headers["Date"] = f"2024.{1 + seed // 28:02}.{1 + seed % 28:02}"
    game.headers.update(dict.fromkeys(("WhiteElo", "BlackElo"), f"{1500 + seed}"))
    game.add_line(moves)
    return game


def to_pgn(games: Iterable[chess.pgn.Game]) -> str:
    return "\n\n".join(str(game).replace(NAME, NAME.replace('"', '\\"')) for game in games) + "\n"


@pytest.fixture(scope="module", autouse=True)
def _two_folds() -> Iterator[None]:
    """Train two small networks at a high rate, and try two shares, to save time."""
    config = tune.training_config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "FOLDS", 2)
        patch.setattr(tune, "SHARES", (0.5, 1.0))
        patch.setattr(
            tune, "training_config", lambda rows: replace(config(rows), learning_rate=0.02)
        )
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny network with random weights and a confident policy."""
    card, network = make(folder := tmp_path_factory.mktemp("base")), build(TINY, seed=3)
    weights = network.state_dict()
    del card["files"]
    save(folder, card, {"weights": weights | {POLICY_WEIGHT: 8 * weights[POLICY_WEIGHT]}})
    return folder


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("games") / "games.pgn"
    order = random.Random(0).sample(range(GAMES), GAMES)  # the newest games are not the last ones
    path.write_text(to_pgn(play(seed) for seed in order))
    return path


@pytest.fixture(scope="module")
def made(games: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Imitate the person; return the checkpoint and the result."""
    out = tmp_path_factory.mktemp("made") / "network"
    return out, imitate([str(games)], [NAME], out, base=base)


def person_moves(game: chess.pgn.Game, plies: int) -> Iterator[tuple[str, str, str]]:
    """Yield EPD, UCI and SAN of the person's moves in the first half-moves of a game."""
    board = game.board()
    for move in islice(game.mainline_moves(), plies):
        if (game.headers["White"] == NAME) == board.turn:
            yield board.epd(), move.uci(), board.san(move)
        board.push(move)


def newest_games(count: int) -> list[chess.pgn.Game]:
    return [play(seed) for seed in range(GAMES - count, GAMES)]


def test_the_imitation_learns_the_persons_habits(made: Made) -> None:
    _, result = made
    base, imitation = result["networks"]
    assert imitation["all"]["games"] == base["all"]["games"] == GAMES // 10
    assert base["all"]["top1_difference"] == 0
    assert imitation["all"]["top1_difference"] > 0
    first = [row["moves"][0] for row in result["openings"] if chess.Board(row["fen"]).ply() < 2]
    assert first
    assert all(
        move["san"] in ("g3", "g6") and move["imitation"] > 1.3 * move["base"] for move in first
    )
    assert imitation["all"]["cross_entropy_difference"] < -0.05
    chosen = result["chosen"]
    assert chosen["share"] > 0
    # each game is held out of one of the two networks, or of both
    assert chosen["games"] == GAMES - GAMES // 10
    assert write_headline(result).startswith("The imitation of O'Hara")
    assert "points more than the network that it started from" in write_headline(result)


def test_the_newest_games_are_held_out_and_only_the_persons_moves_are_rows(made: Made) -> None:
    out, result = made
    held, ratings, moves = newest_games(GAMES // 10), {}, 0
    assert result["held_out"] == held[0].headers["Date"]
    training_set = out / "imitation" / "training_set"
    for split in ("train", "val", "latest"):
        batches = Batches([training_set], split, batch_size=4096, columns=("game", "ply", "elo"))
        (rows,) = batches.read_rows()
        ratings[split] = rows["elo"]
        moves += len(rows["ply"])
        sides = {(game, ply % 2) for game, ply in zip(rows["game"], rows["ply"], strict=True)}
        assert len(sides) == len(set(rows["game"].tolist())), "moves of one side"
    newest_ratings = [int(game.headers["WhiteElo"]) for game in held]
    assert sorted(set(ratings["latest"].tolist())) == newest_ratings
    assert max(ratings["train"].max(), ratings["val"].max()) < newest_ratings[0]
    assert moves == sum(len(list(person_moves(game, PLIES))) for game in newest_games(GAMES))


def test_the_card_names_the_person_and_the_engine_plays_like_them(
    made: Made, tmp_path: Path
) -> None:
    out, _ = made
    ratings = [int(game.headers["WhiteElo"]) for game in newest_games(GAMES // 10)]
    found = read_player(out)
    assert found is not None
    assert (found.names, found.rating) == ([NAME], int(np.median(ratings)))
    options, like = make_default_options(out)
    assert (options.style, options.temperature, options.rating) == ("policy", 1.0, found.rating)
    assert repr(NAME) in like
    assert "message" not in read_card(out), "a message about one of the interpolated networks"
    assert make_default_options(EMBEDDED_CHECKPOINT)[0].rating == 0
    player = {"names": ["x" * 500, "\n"], "rating": 1500, "games": 100}  # too long for a GUI
    (tmp_path / "checkpoint.json").write_text(json.dumps({"data": {"player": player}}))
    assert re.fullmatch(r", like 'x{99}\.\.\. at 1500", make_default_options(tmp_path)[1])


def test_all_games_are_trained_on_after_the_newest_were_measured(made: Made) -> None:
    out, result = made
    measured, saved = load(out / "imitation" / "held_out"), load(out)
    assert result["saved"] == {"share": result["chosen"]["share"], "games": GAMES}
    assert any(
        not torch.equal(a, b)
        for a, b in zip(measured[0].parameters(), saved[0].parameters(), strict=True)
    )
    training_set = Dataset.open(out / "imitation" / "training_set")
    all_rows = sum(training_set.count_rows(split) for split in ("train", "val", "latest"))
    (seen,) = saved[1]["data"]["datasets"]
    assert seen["positions"] == {"total": all_rows, "train": all_rows, "val": 0, "test": 0}
    for split, answer in (("latest", "no"), ("val", "no"), ("train", "yes")):
        assert find_overlap(measured[1], training_set, split) == answer
        assert find_overlap(saved[1], training_set, split) == "yes"


def test_openings_that_the_person_always_plays_are_played(made: Made, tmp_path: Path) -> None:
    out, result = made
    card = read_card(out)
    counts: dict[str, Counter[str]] = {}
    for game in newest_games(GAMES):
        # the person's first move in each position of a game
        moves = {epd: uci for epd, uci, _ in reversed([*person_moves(game, BOOK_PLIES)])}
        for epd, uci in moves.items():
            counts.setdefault(epd, Counter())[uci] += 1
    expected = {
        epd: dict(moves)
        for epd, moves in counts.items()
        if moves.total() >= MIN_BOOK_GAMES
        and moves.most_common(1)[0][1] >= MIN_BOOK_SHARE * moves.total()
    }
    assert card["book"] == expected
    assert result["book"]["used"]
    assert result["book"]["saved"] == len(expected)
    assert "book" not in read_card(out / "imitation" / "held_out")
    board, player = chess.Board(), load_player(out, device="cpu")
    played = {player.choose(board, temperature=5.0).move.uci() for _ in range(20)}
    assert played == {"g2g3"}
    allowed = [chess.Move.from_uci(move) for move in ("e2e4", "d2d4")]
    engine = Player(player.evaluator, Style(book=player.evaluator.book))
    assert engine.play(Request(board=board, allowed=allowed)).move in allowed
    shutil.copytree(out, tmp_path / "broken", ignore=shutil.ignore_patterns("imitation"))
    card["book"] = {board.epd(): {"g2g9": 1}}
    (tmp_path / "broken" / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(CardError, match="book"):
        load(tmp_path / "broken")


def test_a_book_that_finds_fewer_moves_is_not_used() -> None:
    table = pl.DataFrame(
        {"key": [1, 2, 1, 3], "game": [0, 0, 1, 1], "rank": [1, 2, 2, 1], "nll": [1.0] * 4}
    )
    labels = np.array([7, 8, 9, 5])
    better = measure_book(Book({2: 8}, {}), table, labels)
    assert (better["used"], better["positions"], better["top1_difference"]) == (True, 1, 0.25)
    worse = measure_book(Book({1: 6}, {}), table, labels)
    assert (worse["used"], worse["positions"], worse["top1_difference"]) == (False, 2, -0.25)
    assert not measure_book(Book({}, {}), table, labels)["used"]


def test_the_openings_are_counted_as_python_chess_counts_them(made: Made) -> None:
    _, result = made
    counts: dict[str, Counter[str]] = {}
    for game in newest_games(GAMES // 10):
        for epd, _, san in person_moves(game, OPENING_PLIES):
            counts.setdefault(epd, Counter())[san] += 1
    for row in result["openings"]:
        found = counts[chess.Board(row["fen"]).epd()]
        assert row["times"] == found.total()
        assert {move["san"]: round(move["played"] * row["times"]) for move in row["moves"]} == dict(
            found.most_common(3)
        )
        assert all(0 <= move[name] <= 1 for move in row["moves"] for name in ("imitation", "base"))
    assert result["openings"][0]["times"] == max(found.total() for found in counts.values())


def test_boards_are_late_moves_that_the_imitation_finds_and_the_base_did_not() -> None:
    unknown = dict.fromkeys(("promotion", "elo", "opponent_elo", "clock", "base", "increment"), 0)
    rows = {name: np.full(40, value) for name, value in unknown.items()} | playout_rows(40, seed=1)
    rows |= {"game": np.arange(40), "ply": np.arange(40)}
    figures = {"choice": np.roll(rows["label"], 1), "choice_probability": 0.5}
    figures |= {name: np.arange(40) for name in ("ply", "game", "key")}
    base = pl.DataFrame(figures | {"rank": 1 + np.arange(40) % 2, "nll": 2.0})
    boards = find_boards(rows, base, base.with_columns(rank=1, nll=0.5))
    assert [row["ply"] for row in boards] == list(range(LATE_PLY + 1, 40, 2))
    assert all(row["rank"] == 2 and row["played"] != row["chosen"] for row in boards)
    assert boards[0]["imitated_probability"] == pytest.approx(np.exp(-0.5))


def test_the_page_draws_boards_and_shows_names_as_text(made: Made, tmp_path: Path) -> None:
    out, result = made
    page = (out / "report" / "report.html").read_text()
    assert "O&#39;Hara, &lt;b&gt;Kim&lt;/b&gt;" in page
    assert not re.search("<b>Kim|<script", page)
    assert f"the newest games, from {result['held_out']} on" in page
    assert json.loads((out / "report" / "report.json").read_text())["player"]["names"] == [NAME]
    board = {
        **{"fen": chess.STARTING_FEN, "played": "e2e4", "chosen": "d2d4", "rank": 2, "white": NAME},
        **{"imitated_probability": 0.7, "played_probability": 0.2, "chosen_probability": 0.4},
    }
    player = {**result["player"], "names": ["\x1b]0;x\x07", "</style><script>"]}
    hostile = {**result, "player": player, "boards": [board]}
    write_imitation(hostile, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "1. e4: imitation 70 %, before 20 %; before, first choice d4 40 %" in page
    assert not re.search(r"<script|\x1b", page)
    assert "\x1b" not in format_imitation(hostile)


def test_games_that_improve_nothing_leave_the_base_and_say_so(
    made: Made,
    games: Path,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, _ = made
    # copy the trained networks, to save time
    shutil.copytree(out / "imitation", tmp_path / "out" / "imitation")
    JobFolder(tmp_path / "out", CHECKPOINT_KIND, ConfigError).claim({"player": [NAME]})
    monkeypatch.setattr(tune, "choose_share", lambda tried: 0.0)
    result = imitate([str(games)], [NAME], tmp_path / "out", base=base)
    before, after = (load(folder)[0].state_dict() for folder in (base, tmp_path / "out"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert result["networks"][1]["all"]["top1_difference"] == 0
    first = format_imitation(result).partition(". ")[0]
    assert "did not improve the network" in first
    assert first in (tmp_path / "out" / "report" / "report.txt").read_text()
    assert read_player(tmp_path / "out") is not None


def test_an_impossible_date_and_an_empty_validation_split_are_no_obstacle(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.imitation.imitate.VALIDATION_SHARE", 0.0)
    games = [play(seed) for seed in range(24)]
    for game in games[-2:]:
        game.headers["Date"] = "2024.02.30"
    (tmp_path / "some.pgn").write_text(to_pgn(games))
    result = imitate([str(tmp_path / "some.pgn")], [NAME], tmp_path / "out", base=base)
    assert (result["held_out"], result["chosen"]["games"]) == ("2024.02.30", 22)


def test_a_repeated_call_keeps_a_calibration_and_returns_the_same_result(
    made: Made, games: Path, base: Path, tmp_path: Path
) -> None:
    out, result = made
    shutil.copytree(out, tmp_path / "out")
    entry = read_card(EMBEDDED_CHECKPOINT)["human_search"]
    save_human_search(tmp_path / "out", read_card(out)["files"]["weights"]["sha256"], entry)
    assert imitate([str(games)], [NAME], tmp_path / "out", base=base) == result
    assert read_card(tmp_path / "out")["human_search"] == entry


def test_unusable_games_and_foreign_folders_are_refused(games: Path, tmp_path: Path) -> None:
    few, undated, out = tmp_path / "few.pgn", tmp_path / "undated.pgn", tmp_path / "out"
    few.write_text("\n\n".join(str(play(seed)) for seed in range(MIN_GAMES - 1)) + "\n")
    undated.write_text(re.sub(r'\[Date "[^"]*"\]', '[Date "????.??.??"]', games.read_text()))
    for source, players, message in (
        (few, ["Foe"], f"{MIN_GAMES - 1} games of 'Foe' are too few"),
        (undated, ["Foe"], "the newest games cannot be held out: its games have no dates"),
        (games, ["foe"], r"the most frequent are 'Foe' \(60\)"),
        (games, [], "no player is given"),
        (tmp_path / "missing.pgn", ["Foe"], "missing"),
    ):
        with pytest.raises((ConfigError, DatasetError, DumpError), match=message):
            imitate([str(source)], players, out)
        assert not out.exists()
    shutil.copytree(EMBEDDED_CHECKPOINT, out)
    before = (out / CARD_FILE).read_bytes()
    with pytest.raises(ConfigError, match="another network"):
        imitate([str(games)], [NAME], out)
    assert (out / CARD_FILE).read_bytes() == before


EXPORT = REPOSITORY.parent / "shared" / "data" / "pgn" / "lichess_export_2024-05_blitz.pgn"


@pytest.mark.slow
@pytest.mark.skipif(not EXPORT.exists(), reason="needs a player's real export in ../shared/data")
def test_a_real_player_is_imitated(tmp_path: Path) -> None:
    text = re.split(r"(?=^\[Event )", EXPORT.read_text(), flags=re.MULTILINE)[1:]
    (tmp_path / "some.pgn").write_text("".join(text[::4]))
    result = imitate([str(tmp_path / "some.pgn")], ["clinares"], tmp_path / "out")
    imitation = result["networks"][1]
    assert imitation["all"]["top1_low"] > 0.03
    assert imitation["late"]["cross_entropy_difference"] < 0
    again = imitate(
        [str(tmp_path / "some.pgn")], ["clinares"], tmp_path / "out", stranger=EMBEDDED_CHECKPOINT
    )
    assert [row["name"] for row in again["networks"]] == ["base", "imitation", "stranger"]
    assert again["networks"][2]["all"]["top1_difference"] == 0


# ---------------------------------------------------------------- the choice of a share


def simulate_shares(
    games: int, seed: int, *, slope: float, late_slope: float | None = None
) -> list[dict[str, Any]]:
    """Compare shares on simulated games, in which a share s changes a move's cross-entropy by
    slope * s + 0.02 * s^2 and noise.

    `late_slope` is the slope of moves from LATE_PLY on. All shares have the same noise.
    """
    random, moves = np.random.default_rng(seed), 30
    ply, game = np.tile(np.arange(moves) * 2, games), np.repeat(np.arange(games), moves)
    noise = random.normal(0, 0.3, len(ply)) + random.normal(0, 0.05, games)[game]
    slopes = np.where(ply >= LATE_PLY, slope if late_slope is None else late_slope, slope)
    columns = {"game": game, "ply": ply, "key": np.arange(len(ply))}
    base = pl.DataFrame(columns | {"rank": np.ones(len(ply), dtype=int), "nll": 2.0})
    found = []
    for share in SHARES:
        table = base.with_columns(nll=2.0 + share * (slopes + noise) + 0.02 * share**2)
        found.append({"share": share, **compare("x", base, table)})
    return found


def test_a_gain_everywhere_chooses_all_and_a_small_late_gain_chooses_less() -> None:
    assert choose_share(simulate_shares(500, 0, slope=-0.08)) == 1.0
    part = choose_share(simulate_shares(2000, 0, slope=-0.08, late_slope=-0.02))
    assert part in (0.25, 0.5, 0.75)


@pytest.mark.parametrize("games", [30, 127, 500])
def test_a_loss_from_the_twelfth_move_on_is_seldom_chosen(games: int) -> None:
    """The openings gain much, and late moves lose a little at every share."""
    found = [simulate_shares(games, seed, slope=-0.2, late_slope=0.01) for seed in range(60)]
    assert np.mean([choose_share(tried) > 0 for tried in found]) < 0.1


def test_a_gain_of_late_moves_alone_and_few_games_choose_nothing() -> None:
    assert choose_share(simulate_shares(500, 0, slope=0.3, late_slope=-0.05)) == 0.0
    assert choose_share(simulate_shares(9, 0, slope=-1.0)) == 0.0  # an interval needs ten games
    assert choose_share([{"share": 1.0}]) == 0.0


def test_interpolation_goes_from_the_base_to_the_mean_of_the_networks() -> None:
    base = {"a": torch.tensor([0.1, 1.0]), "count": torch.tensor(7)}
    trained = {"a": torch.tensor([1.0, 3.0]), "count": torch.tensor(7)}
    mean = average([trained, {"a": torch.zeros(2), "count": torch.tensor(7)}])
    assert mean["a"].tolist() == [0.5, 1.5]
    assert torch.equal(interpolate(base, mean, 0.0)["a"], base["a"])
    torch.testing.assert_close(interpolate(base, mean, 0.5)["a"], torch.tensor([0.3, 1.25]))
    torch.testing.assert_close(interpolate(base, mean, 1.0)["a"], mean["a"])
    assert interpolate(base, mean, 0.5)["count"] == 7


@pytest.mark.parametrize("size", [3, 10, 25])
def test_batches_have_each_row_once_an_epoch_and_resume_at_any_step(size: int) -> None:
    rows = {"ply": np.arange(10), "label": np.arange(10) * 2}
    whole = [batch["ply"] for batch in islice(open_batches(rows, size, 0, 0), 10)]
    assert all(len(batch) == size for batch in whole)
    seen = np.concatenate(whole)
    for epoch in range(len(seen) // 10):
        assert sorted(seen[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))
    for step in (1, 4, 9):
        np.testing.assert_array_equal(next(open_batches(rows, size, 0, step))["ply"], whole[step])
    assert not np.array_equal(whole[0], next(open_batches(rows, size, 1, 0))["ply"])
    assert np.array_equal(next(open_batches(rows, size, 0, 2))["label"], whole[2] * 2)
