"""Matches and round robins of the command `arena`: files, players, errors, stops and resumption."""

import json
import random
import shutil
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest

from engine.encoding.planes import legal_mask, planes_of
from engine.match import PlayerError
from engine.match.arena import GameRecord
from engine.match.sprt import SprtConfig, llr, verdict
from pipeline.errors import Stopped
from pipeline.matches import match
from pipeline.matches.arena import arena, format_matches, play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import (
    ELO_FIELDS,
    MatchFilesError,
    SequentialTest,
    format_elo,
    play_match,
    summarize_match,
)
from pipeline.matches.players import make_player
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.engine.match.test_arena import ROGUE
from tests.pipeline.cli.conftest import invoke
from tests.pipeline.datasets import content

STRONG, WEAK = SideConfig(who="hand-written", simulations=8), SideConfig(who="policy:uniform")
SMALL = ArenaConfig(games=8, seed=5, plies=4)


def read_pgn(path: Path) -> list[chess.pgn.Game]:
    """Read a PGN by python-chess, which finds no errors."""
    with path.open() as file:
        games = list(iter(lambda: chess.pgn.read_game(file), None))
    assert not any(game.errors for game in games)
    return games


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Play a small match by the command line; return its folder and summary."""
    out = tmp_path_factory.mktemp("arena") / "out"
    words = "arena hand-written,simulations=8 policy:uniform --games 8 --seed 5 --set plies=4"
    code, printed, _ = invoke(*words.split(), "--out", str(out), "--json")
    assert code == 0
    summary = json.loads((out / "summary.json").read_text())
    result = json.loads(printed.splitlines()[-1])
    assert result | {"text": summary["text"]} == {**summary, "out": str(out)}
    return out, summary


def test_journal_pgn_and_summary_agree(played: tuple[Path, dict[str, Any]]) -> None:
    out, summary = played
    lines = [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]
    assert [line["game"] for line in lines] == list(range(8))
    points, names = [], ("hand-written 8", "uniform policy")
    for number, (line, game) in enumerate(zip(lines, read_pgn(out / "games.pgn"), strict=True)):
        assert [move.uci() for move in game.mainline_moves()] == line["book"] + line["moves"]
        sides = game.headers["White"], game.headers["Black"]
        assert sides == (names if number % 2 == 0 else names[::-1])
        assert game.headers["Result"] == line["result"]
        assert game.headers["Termination"] == "normal"
        has_eval = [node.eval() is not None for node in game.mainline()]
        assert has_eval == [False] * 4 + [True] * len(line["moves"])
        white = {"1-0": 1.0, "0-1": 0.0}.get(line["result"], 0.5)
        points.append(white if number % 2 == 0 else 1 - white)
    counted = [points.count(result) for result in (1, 0.5, 0)]
    assert counted == [summary[name] for name in ("wins", "draws", "losses")]
    pairs = [int(2 * (points[at] + points[at + 1])) for at in range(0, 8, 2)]
    assert summary["pairs"] == [pairs.count(value) for value in range(5)]
    assert summary["finished"]
    assert summary["text"].startswith("hand-written 8 - uniform policy: +")
    assert "SPRT [0, 50]:" in summary["text"]


def test_a_finished_match_is_not_played_again_and_can_be_extended(
    played: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(played[0], tmp_path / "out"))
    before, games = content(out), (out / "games.jsonl").read_bytes()
    assert play_match(STRONG, WEAK, SMALL, out) == played[1]
    assert content(out) == before
    extended = ArenaConfig(games=10, seed=5, plies=4, concurrency=2)
    with pytest.raises(Stopped, match="stopped after 8 games; run the same command to continue"):
        play_match(STRONG, WEAK, extended, out, stop=lambda: True)
    assert not json.loads((out / "summary.json").read_text())["finished"]
    summary = play_match(STRONG, WEAK, extended, out)
    assert summary == play_match(STRONG, WEAK, extended, tmp_path / "other")
    assert content(out) == content(tmp_path / "other")
    assert (out / "games.jsonl").read_bytes().startswith(games)
    with pytest.raises(ValueError, match="already holds game number 10"):
        play_match(STRONG, WEAK, SMALL, out)


def test_other_players_and_settings_are_refused(
    played: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(played[0], tmp_path / "out"))
    other = ArenaConfig(games=8, seed=6, plies=4, margin=9)
    uniform = SideConfig(who="uniform", simulations=8)
    for a, config, difference in (
        (uniform, SMALL, r"a\.evaluator was 'hand-written', not 'uniform'"),
        (replace(STRONG, simulations=9), SMALL, "a.search.simulations was 8, not 9"),
        (STRONG, other, r"margin was 0\.05, not 9.*openings\.seed was 5, not 6"),
    ):
        with pytest.raises(MatchFilesError, match=difference):
            play_match(a, WEAK, config, out)
    assert content(out) == content(played[0])


def test_pairs_after_the_deciding_one_are_not_counted(tmp_path: Path) -> None:
    sprt = SprtConfig(elo1=300)
    config = ArenaConfig(games=100, seed=5, plies=4, early=True, sprt=sprt, concurrency=3)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    summary = play_match(STRONG, WEAK, config, whole)
    assert summary["finished"]
    assert summary["sprt"]["verdict"] == "H1"
    assert 10 < summary["games"] < 80
    one_less = summary["sprt"]["llr"] * (1 - 2 / summary["games"])
    assert summary["sprt"]["llr"] >= 2.9444 > one_less - 0.1, "the first deciding pair ends it"

    def stop() -> bool:
        return len((stopped / "games.jsonl").read_bytes().splitlines()) >= summary["games"] // 2

    with pytest.raises(Stopped):
        play_match(STRONG, WEAK, config, stopped, stop=stop)
    with (stopped / "games.jsonl").open("ab") as file:
        file.write(b'{"game": 3, "fen')  # a truncated line
    assert play_match(STRONG, WEAK, config, stopped) == summary
    assert content(stopped) == content(whole)


def test_clocks_and_a_pgn_book(tmp_path: Path) -> None:
    book = tmp_path / "book.pgn"
    book.write_text("1. e4 e5 2. Nf3 Nc6 *\n\n1. d4 d5 2. c4 e6 *\n")
    engine = SideConfig(who=f"uci:{sys.executable} {ROGUE} fair", tc="61.5+1")
    config = ArenaConfig(games=4, book=book, plies=3, margin=20.0)
    opponent = SideConfig(who="policy:uniform", tc="61.5+1")
    assert play_match(engine, opponent, config, tmp_path / "out")["games"] == 4
    game = read_pgn(tmp_path / "out" / "games.pgn")[0]
    assert game.headers["TimeControl"] == "61.5+1"
    nodes = list(game.mainline())
    assert nodes[2].clock() is None
    assert all(61 < (node.clock() or 0) <= 61.5 + len(nodes) for node in nodes[3:])
    assert any("[%eval 0.13]" in node.comment for node in nodes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nobody uniform", "'nobody' is not a player"),
        ("uniform", "a match needs two players or more"),
        ("uniform policy:uniform uniform", "a player is listed twice"),
        ("uniform uci:/no/engine --nodes 1", "cannot be started as a UCI engine"),
        ("uniform uci:stockfish", "needs a limit"),
        ("uniform hand-written --games 3", "--games must be a multiple of 2"),
        ("uniform hand-written --tc 0/60", "is not a time control"),
        ("uniform hand-written --tc 1+1 --movetime 10", "a time per move or a clock, not both"),
        ("uniform,hash=3 hand-written", "has no option hash"),
        ("uniform,c_puct=much hand-written", "c_puct: input should be a valid number"),
        ("policy:uniform,c_puct=1 hand-written", "does not search"),
        ("uniform hand-written --set elo0=9 --set elo1=3", "got elo0 = 9 and elo1 = 3"),
        ("uniform hand-written --book /no/book.epd", "cannot be read"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: str, message: str) -> None:
    code, out, error = invoke("arena", *words.split(), "--out", str(tmp_path / "out"))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert message in error


def test_a_stopped_round_robin_of_three_players_continues(tmp_path: Path) -> None:
    engine = SideConfig(who=f"uci:{sys.executable} {ROGUE} a1a1", nodes=1, options=("Manners=2",))
    sides = SideConfig(who="hand-written", simulations=2), WEAK, engine
    config = ArenaConfig(games=2, plies=4)

    def stop() -> bool:
        return len(list(tmp_path.glob("*/summary.json"))) > 1

    with pytest.raises(Stopped, match="run the same command to continue"):
        arena(sides, config, tmp_path, stop=stop)
    finished = {path: path.read_bytes() for path in tmp_path.glob("*/games.pgn")}
    assert finished
    assert not (tmp_path / "table.md").exists()
    result = arena(sides, config, tmp_path)
    names = ["hand-written 2", "uniform policy", "Rogue 1 nodes"]
    assert [(row["a"], row["b"]) for row in result["rows"]] == list(combinations(names, 2))
    assert {path: path.read_bytes() for path in finished} == finished
    assert json.loads((tmp_path / "matches.json").read_text())["rows"] == result["rows"]
    assert (tmp_path / "table.md").read_text() == result["text"] + "\n"
    last = result["rows"][-1]
    assert (last["forfeits"], last["wins"]) == ({"a": {}, "b": {"illegal move": 2}}, 2)
    summary = json.loads((tmp_path / last["match"] / "summary.json").read_text())
    assert "forfeits of Rogue 1 nodes: 2 illegal move" in summary["text"]
    for game in read_pgn(tmp_path / last["match"] / "games.pgn"):
        assert game.headers["Termination"] == "rules infraction"
        assert "Rogue 1 nodes forfeits: illegal move" in game.end().comment


def test_players_with_the_same_name_have_separate_folders(tmp_path: Path) -> None:
    pairings = [(STRONG, WEAK), (STRONG, SideConfig(who="policy:uniform", nodes=5))]
    result = play_matches(pairings, ArenaConfig(games=2, plies=4), tmp_path)
    assert len({row["match"] for row in result["rows"]}) == 2
    assert all((tmp_path / row["match"] / "games.pgn").exists() for row in result["rows"])


def pairs_to_decision(points: list[float | None], config: SprtConfig) -> int | None:
    """Return the number of pairs after which H0 or H1 is accepted, by a loop over all pairs.

    `points` holds A's points in games 0, 1, 2, ...; None is an unfinished game. Pairs are counted
    in the order of their numbers, because the first games to finish are biased to short ones.
    """
    counts = [0] * 5
    for pair, (first, second) in enumerate(zip(points[::2], points[1::2], strict=False), 1):
        if first is None or second is None:
            return None
        counts[round(2 * (first + second))] += 1
        if verdict(llr(counts, config), config) != "undecided":
            return pair
    return None


def test_pairs_are_tested_once_each_in_order_of_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Games finish in random order, eight at a time."""
    calls = list[int]()
    monkeypatch.setattr(match, "llr", lambda *given: calls.append(1) or llr(*given))
    config = ArenaConfig(games=120, early=True, sprt=SprtConfig(elo1=200))
    games, rng = dict[int, GameRecord](), random.Random(1)
    test, decided = SequentialTest(config, games), list[int | None]()
    for first in range(0, 120, 8):
        for number in rng.sample(range(first, first + 8), 8):
            games[number] = make_record(number, ("1-0", "0-1", "1/2-1/2")[rng.randrange(3)])
            points = [games[at].points if at in games else None for at in range(120)]
            decided.append(pairs_to_decision(points, config.sprt))
            assert test.count_deciding_pairs() == decided[-1]
    assert len(calls) == decided[-1]


def make_record(number: int, result: str) -> GameRecord:
    """Make a game without moves."""
    fields: dict[str, Any] = {"fen": chess.STARTING_FEN, "book": [], "moves": [], "scores": []}
    fields |= {"clocks": None, "ending": "checkmate", "forfeit": None, "detail": ""}
    return GameRecord(game=number, result=result, **fields)


@pytest.mark.parametrize(
    ("results", "bound", "text"),
    [("1-0 0-1", "elo_low", "above +"), ("0-1 1-0", "elo_high", "below -")],
)
def test_a_clean_sweep_has_a_bound_and_no_elo(results: str, bound: str, text: str) -> None:
    games = [make_record(number, results.split()[number % 2]) for number in range(6)]
    summary = summarize_match(games, ("a", "b"), SprtConfig())
    assert [name for name in ELO_FIELDS if summary[name] is not None] == [bound]
    assert format_elo(summary).startswith(text)
    line = format_matches([summary]).splitlines()[-1]
    assert line.startswith(f"| a | b | {text}")
    assert line.endswith("| 0 |")


def test_gumbel_noise_is_off_unless_an_option_turns_it_on() -> None:
    for options, scale in (((), 0.0), (("gumbel_scale=1",), 1.0)):
        side = SideConfig(who="uniform", options=("algorithm=gumbel", *options))
        search = make_player(side, 0)[0].search
        assert search is not None
        assert search.gumbel_scale == scale


def test_an_exported_network_plays_like_its_checkpoint() -> None:
    player, identity = make_player(SideConfig(who=f"onnx:{EMBEDDED_CHECKPOINT}"), seed=1)
    checkpoint, other = make_player(SideConfig(who=str(EMBEDDED_CHECKPOINT)), seed=1)
    assert player.name == "embedded onnx 64"
    assert player.search == checkpoint.search
    assert identity["weights"] == other["weights"]
    assert identity["evaluator"] != other["evaluator"]
    fen = "r1bqkbnr/pppp1ppp/2n5/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4"
    planes_BP = planes_of([chess.Board(), chess.Board(fen)])
    assert player.evaluator is not None
    assert checkpoint.evaluator is not None
    outputs = [evaluate(planes_BP) for evaluate in (player.evaluator, checkpoint.evaluator)]
    legal_BL = legal_mask(planes_BP)
    best, expected = (np.where(legal_BL, logits, -np.inf).argmax(1) for logits, _ in outputs)
    assert best.tolist() == expected.tolist()
    assert np.abs(outputs[0][1] - outputs[1][1]).max() < 0.1
    assert (
        make_player(SideConfig(who=f"policy:onnx:{EMBEDDED_CHECKPOINT}"), seed=1)[0].search is None
    )


def test_the_option_rating_makes_a_human_like_player() -> None:
    who = f"onnx:{EMBEDDED_CHECKPOINT}"
    player, identity = make_player(SideConfig(who=who, options=("rating=1800",), simulations=32), 1)
    assert (player.rating, player.name) == (1800, "embedded onnx rated 1800 likelihood")
    assert player.search is not None
    assert player.search.simulations == 32
    strong, other = make_player(SideConfig(who=who, options=("rating=1800", "aim=strength")), 1)
    assert strong.correction != player.correction
    assert identity != other
    for changes, problem in (
        ({"options": ("rating=x",)}, "rating must be 1 to"),
        ({"options": ("rating=1500", "aim=luck")}, "aim must be likelihood or strength"),
        ({"options": ("rating=1500", "c_puct=2")}, "remove the other options"),
        ({"options": ("rating=1500",), "movetime": 10}, "remove the other options"),
        ({"options": ("rating=1500",), "who": "hand-written"}, "fitted by `fianchetto calibrate`"),
    ):
        with pytest.raises(PlayerError, match=problem):
            make_player(SideConfig(**{"who": who, **changes}), seed=1)
