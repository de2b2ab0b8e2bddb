"""Players weighed on judged positions: the arithmetic by hand, and refusals."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import chess
import chess.engine
import numpy as np
import pytest

from pipeline.cli.main import main
from pipeline.evaluation import judgements
from pipeline.evaluation.judgements import Judged
from pipeline.matches import judge
from pipeline.matches.config import SideConfig
from pipeline.matches.judge import _compare, searchers, text_of, weigh
from tests.pipeline.judging import GAMES, engine

MATE = Judged("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", {})
"""A rook that mates on the back rank."""


@pytest.fixture
def games(tmp_path: Path) -> Path:
    """Give three short games."""
    path = tmp_path / "games.pgn"
    path.write_text(GAMES, encoding="utf-8")
    return path


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
    assert rows[0]["player"] == "hand-written 8 algorithm=gumbel gumbel_scale=0"
    (ignorant,) = weigh(searchers([SideConfig(who="uniform")]), found[:1])["players"]
    assert ignorant["value_error"] == pytest.approx(
        0.4, abs=1e-4
    )  # no knowledge says 0.5, and the best move is worth 0.9
    assert ignorant["root_error"] == ignorant["best_error"] == pytest.approx(0.4, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["uniform", "hand-written,rescale_values=maybe"], "rescale_values: input should be a valid boolean"),
        (["uniform", "policy:uniform"], "policy:uniform does not search by simulations"),
        (["uniform", "nowhere"], "'nowhere' is not a player"),
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
    row = _compare(difference_N)
    half = 1.96 * (30 / 4 / 29) ** 0.5 / 30**0.5
    assert (row["low"], row["high"]) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)
    assert _compare(np.array([1.0] * 29 + [0.0]))["high"] == 1.0
    few = _compare(difference_N[:1])
    assert (few["low"], few["high"]) == (None, None)


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
    assert [row["player"] for row in result["players"]] == ["uniform 64", "hand-written 8 c_puct=2"]
    monkeypatch.setattr(sys, "argv", [*words[:3], "uniform,simulations=few", *words[4:]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "must be whole numbers" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["draw", "judge", "weigh"])
def test_the_command_stops_when_it_is_asked(
    moment: str, games: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is heard while positions are drawn, while the engine thinks for ever, and while players are compared."""
    start = engine(tmp_path)
    if moment == "judge":
        text = Path(start[1]).read_text(encoding="utf-8")
        asleep = (
            "        import os, signal, time\n        os.kill(os.getppid(), signal.SIGTERM)\n        time.sleep(600)\n"
        )
        text = text.replace("        moves = sorted(", f"{asleep}        moves = sorted(")
        Path(start[1]).write_text(text, encoding="utf-8")
    real = {"draw": judgements._draw_from_game, "weigh": judge._searched}

    def signalled(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real[moment](*arguments)

    if moment == "draw":
        monkeypatch.setattr(judgements, "_draw_from_game", signalled)
    elif moment == "weigh":
        monkeypatch.setattr(judge, "_searched", signalled)
    words = ["fianchetto", "judge", "uniform", "--pgn", str(games), "--positions", "3", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "judged"), "--engine", shlex.join(start)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 128 + signal.SIGTERM
    assert "run the same command" in capsys.readouterr().err
