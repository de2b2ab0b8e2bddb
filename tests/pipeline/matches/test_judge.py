"""Players weighed on judged positions: the arithmetic by hand, an engine's judgements kept through stops, and refusals."""

import bz2
import gzip
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import chess
import chess.engine
import numpy as np
import pytest
import zstandard

from engine.match.openings import read_book
from pipeline.cli.main import main
from pipeline.dumps.reader import open_text
from pipeline.matches.config import SideConfig
from pipeline.matches.judge import _against, searchers, text_of, weigh
from pipeline.matches.judgements import Judged, JudgeError, drawn, expected, judged

ENGINE = """
import sys, chess
board, lines = chess.Board(), 1
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["uci"]:
        print("option name MultiPV type spin default 1 min 1 max 500\\noption name Threads type spin default 1 min 1 max 4")
        print("option name Hash type spin default 1 min 1 max 64\\nuciok")
    elif words[:1] == ["isready"]:
        print("readyok")
    elif words[:3] == ["setoption", "name", "MultiPV"]:
        lines = int(words[-1])
    elif words[:1] == ["position"]:
        board = chess.Board() if words[1] == "startpos" else chess.Board(" ".join(words[2:8]))
        for move in words[words.index("moves") + 1 :] if "moves" in words else []:
            board.push_uci(move)
    elif words[:1] == ["go"]:
        moves = sorted(board.legal_moves, key=lambda move: move.uci())[: MOST]
        for number, move in enumerate(moves[:lines], 1):
            print(f"info depth 9 multipv {number} score cp {-10 * number} nodes 1 pv {move.uci()}")
        print(f"bestmove {moves[0].uci()}")
    elif words[:1] == ["quit"]:
        break
    sys.stdout.flush()
"""
"""An engine to which the first move in the order of its letters is worth -10 centipawns, the next -20, and so on."""

GAMES = "".join(
    f'[Event "{number}"]\n\n1. e4 e5 2. Nf3 Nc6 3. B{square} Nf6 4. O-O Bc5 5. d3 d6 6. c3 O-O 1/2-1/2\n\n'
    for number, square in enumerate(("c4", "b5", "e2"))
)
MATE = Judged("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", {})
"""A rook that mates on the back rank."""


@pytest.fixture
def games(tmp_path: Path) -> Path:
    """Give three short games."""
    path = tmp_path / "games.pgn"
    path.write_text(GAMES, encoding="utf-8")
    return path


def engine(folder: Path, most: str = "None") -> tuple[str, str]:
    """Write the engine and give the words that start it."""
    path = folder / f"engine{most}.py"
    path.write_text(ENGINE.replace("MOST", most), encoding="utf-8")
    return sys.executable, str(path)


def scored(one: Judged) -> Judged:
    """Give mate 1.0 and each other move 0.6, less a thousandth for each letter before it."""
    board = chess.Board(one.fen)
    moves = sorted(move.uci() for move in board.legal_moves)
    return Judged(one.fen, {move: 1.0 if move == "a1a8" else 0.6 - at / 1000 for at, move in enumerate(moves)})


def test_losses_are_what_they_are_by_hand() -> None:
    """No knowledge draws every move alike, and any search finds the mate."""
    one = scored(MATE)
    result = weigh(searchers([SideConfig(who="uniform"), SideConfig(who="hand-written", simulations=16)]), [one])
    uniform, hand = result["players"]
    lost = sum(1.0 - score for score in one.scores.values()) / len(one.scores)
    assert uniform["policy_loss"] == pytest.approx(lost, abs=1e-4)
    assert uniform["chosen_loss"] == hand["chosen_loss"] == 0.0
    assert uniform["value_error"] == uniform["root_error"] == uniform["best_error"] == 0.0  # one look proves the win
    assert hand["taught_loss"] < hand["policy_loss"] < lost
    assert result["positions"] == 1
    assert "| hand-written 16 |" in text_of(result)


def test_the_first_is_whom_others_are_compared_with() -> None:
    """A player against itself differs by nothing; a bad one loses more."""
    quiet = scored(Judged("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", {}))
    better = max(quiet.scores, key=lambda move: quiet.scores[move])
    found = [Judged(quiet.fen, {**quiet.scores, better: 0.9}), scored(MATE)]
    side = SideConfig(who="hand-written", simulations=8, options=("algorithm=gumbel", "gumbel_scale=0"))
    rows = weigh(searchers([side, side]), found)["players"]
    assert [row["chosen_against_first"] for row in rows] == [0.0, 0.0]
    assert rows[0]["options"] == ["algorithm=gumbel", "gumbel_scale=0"]
    (ignorant,) = weigh(searchers([SideConfig(who="uniform")]), found[:1])["players"]
    assert ignorant["value_error"] == pytest.approx(
        0.4, abs=1e-4
    )  # no knowledge says 0.5, and the best move is worth 0.9
    assert ignorant["root_error"] == ignorant["best_error"] == pytest.approx(0.4, abs=1e-4)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".zst": zstandard.ZstdCompressor().compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_games_are_read_as_their_text(ending: str, games: Path, tmp_path: Path) -> None:
    """The positions to judge, and the openings of a book in PGN and in EPD."""
    epd = tmp_path / "book.epd"
    epd.write_text("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - hmvc 0;\n", encoding="utf-8")
    packed = {path: path.with_name(path.name + ending) for path in (games, epd)}
    for path, there in packed.items():
        there.write_bytes(PACKERS[ending](path.read_bytes()))
    assert drawn(packed[games], 6, seed=1) == drawn(games, 6, seed=1)
    for path, there in packed.items():
        assert read_book(there, open_text=open_text) == read_book(path)
    damaged = tmp_path / f"damaged.pgn{ending}"
    damaged.write_bytes(packed[games].read_bytes()[:-30])
    with pytest.raises(JudgeError, match="cannot be read"):
        drawn(damaged, 1000, seed=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["uniform", "hand-written,value_rescale=0"], "value_rescale is true or false"),
        (["uniform", "policy:uniform"], "a player that searches by simulations is weighed"),
        (["uniform", "nowhere"], "'nowhere' is no player"),
        (["uniform", "--engine", "no-such-engine"], "no-such-engine is not installed"),
    ],
)
def test_a_mistake_is_said_before_anything_is_judged(
    words: list[str],
    said: str,
    games: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = shlex.join(engine(tmp_path))
    known = [] if "--engine" in words else ["--engine", start]
    line = ["fianchetto", "judge", *words, "--pgn", str(games), "--out", str(tmp_path / "out"), *known]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_difference_has_an_interval_where_there_are_enough_positions() -> None:
    """Thirty differences of 0 or 1: the standard error of their mean, by hand, and none of fewer."""
    difference_N = np.array([0.0, 1.0] * 15)
    told = _against(difference_N)
    half = 1.96 * (30 / 4 / 29) ** 0.5 / 30**0.5
    assert (told["low"], told["high"]) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)
    assert _against(np.array([1.0] * 29 + [0.0]))["high"] == 1.0
    few = _against(difference_N[:1])
    assert (few["low"], few["high"]) == (None, None)
    assert few["interval"] == "none: 1 positions, and it takes 30 or more"


@pytest.mark.parametrize(
    ("score", "wanted"),
    [
        (chess.engine.Cp(0), 0.5),
        (chess.engine.Cp(100), 0.591),  # Lichess: 59.1 % for a pawn
        (chess.engine.Mate(3), 1.0),
        (chess.engine.Mate(-1), 0.0),
        (chess.engine.MateGiven, 1.0),
        (chess.engine.Mate(0), 0.0),
    ],
)
def test_scores_follow_lichess(score: chess.engine.Score, wanted: float) -> None:
    """Centipawns by its curve, mates as won and lost."""
    assert expected(score) == pytest.approx(wanted, abs=5e-4)


def test_a_stopped_judging_goes_on(games: Path, tmp_path: Path) -> None:
    """Stopped in the middle, its last line torn, and run again: the judgements of a run that was never stopped."""
    command = engine(tmp_path)
    whole = judged(games, tmp_path / "whole", positions=6, command=command, depth=1)
    assert len(whole) == 6
    assert all(set(one.scores) == {move.uci() for move in chess.Board(one.fen).legal_moves} for one in whole)
    out, calls = tmp_path / "stopped", iter([False, False, False])
    part = judged(games, out, positions=6, command=command, depth=1, stop=lambda: next(calls, True))
    assert len(part) == 3
    with (out / "judged.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"fen": "8/8')
    before = (out / "judged.jsonl").read_text(encoding="utf-8")
    assert judged(games, out, positions=6, command=command, depth=1) == whole
    told = (out / "judged.jsonl").read_text(encoding="utf-8")
    assert told.startswith(before), "a kill while it was written anew would lose what had been judged"
    assert told.count('"scores"') == 6, "nothing is judged twice"


def test_refusals(games: Path, tmp_path: Path) -> None:
    """Another judgement in the folder, no games, an engine that does not judge all moves or is none."""
    command = engine(tmp_path)
    judged(games, tmp_path / "a", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="begun otherwise \\(depth was 1, not 2"):
        judged(games, tmp_path / "a", positions=2, command=command, depth=2)
    (tmp_path / "empty.pgn").write_text("no game\n", encoding="utf-8")
    with pytest.raises(JudgeError, match="has no game"):
        judged(tmp_path / "empty.pgn", tmp_path / "b", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="cannot be read"):
        judged(tmp_path / "none.pgn", tmp_path / "b", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="judged 3 of"):
        judged(games, tmp_path / "c", positions=2, command=engine(tmp_path, "3"), depth=1)
    with pytest.raises(JudgeError, match="failed on"):  # it crashes at its first search
        judged(games, tmp_path / "d", positions=2, command=engine(tmp_path, "0"), depth=1)
    (tmp_path / "a" / "judge.json").write_text("[]", encoding="utf-8")
    with pytest.raises(JudgeError, match="cannot be read"):
        judged(games, tmp_path / "a", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="by simulations"):
        searchers([SideConfig(who="policy:uniform")])


def test_the_command(
    games: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It judges, weighs and prints the table; a wrong option is one line."""
    words = ["fianchetto", "judge", "uniform", "hand-written,simulations=8,c_puct=2", "--pgn", str(games)]
    words += ["--out", str(tmp_path / "judged"), "--positions", "3", "--engine", " ".join(engine(tmp_path)), "--json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["positions"] == 3
    assert [row["player"] for row in result["players"]] == ["uniform 64", "hand-written 8"]
    monkeypatch.setattr(sys, "argv", [*words[:3], "uniform,simulations=few", *words[4:]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "simulations is a number" in capsys.readouterr().err
