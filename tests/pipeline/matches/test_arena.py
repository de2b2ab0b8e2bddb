"""The command `arena`: its files, its refusals, killed and resumed matches."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pytest

from engine.match.game import GameRecord
from engine.match.sprt import SprtConfig
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.files import MatchFilesError
from pipeline.matches.match import ELO, format_elo, play_match, summarize
from pipeline.matches.players import player_of
from pipeline.selfplay.config import ExploreConfig
from tests import forked
from tests.conftest import REPOSITORY
from tests.engine.match.test_arena import ROGUE
from tests.pipeline.cli.conftest import call
from tests.waiting import LONG, until

STRONG, WEAK = SideConfig(who="hand-written", simulations=8), SideConfig(who="policy:uniform")
SMALL = ArenaConfig(games=8, seed=5, plies=4)
FILES = ("games.jsonl", "games.pgn", "summary.json", "job.json")

RUN = """
import os, signal, sys
from pathlib import Path
from engine.match.sprt import SprtConfig
from pipeline.matches import files as match_files
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import play_match

out, kill_at, games, early = Path(sys.argv[1]), *map(int, sys.argv[2:])
real = match_files.Journal.add

def add(self, game):
    global kill_at
    kill_at -= 1
    if kill_at == 0:
        self.file.write(b'{"game": 3, "fen')  # torn off in the middle of a line
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, game)

match_files.Journal.add = add
print("begun", flush=True)
play_match(
    SideConfig(who="hand-written", simulations=8),
    SideConfig(who="policy:uniform"),
    ArenaConfig(
        games=games,
        seed=5,
        plies=4,
        early=bool(early),
        sprt=SprtConfig(elo1=150 if early else 50),
        concurrency=3,
    ),
    out,
)
"""


HELD = """
import time
from pipeline.cli.commands.base import Interrupt
from pipeline.cli.main import main
from pipeline.matches import files

add = files.Journal.add

def add_and_wait(self, game):
    add(self, game)
    while not Interrupt.received_signal:
        time.sleep(0.01)

files.Journal.add = add_and_wait
main()
"""
"""The command line, which waits after a match's first game until it is told to stop."""


def contents(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in FILES}


def killed(out: Path, kill_at: int, games: int = 8, early: bool = False) -> None:
    """Play in a process that is killed when its `kill_at`-th game ends."""
    words = [sys.executable, "-c", RUN, str(out), str(kill_at), str(games), str(int(early))]
    process = forked.Popen(words, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.wait(LONG) == -signal.SIGKILL, (
        process.stderr.read().decode() if process.stderr else ""
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Play a small match, undisturbed."""
    out = tmp_path_factory.mktemp("arena") / "out"
    return out, play_match(STRONG, WEAK, SMALL, out)


def test_the_command_prints_what_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = [
        "arena",
        "hand-written",
        "policy:uniform",
        "--games",
        "4",
        "--simulations",
        "4",
        "--out",
        str(tmp_path / "m"),
    ]
    code, out, _ = call(capsys, monkeypatch, *words, "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert result["games"] == 4 == result["wins"] + result["draws"] + result["losses"]
    assert result["wins"] >= 3
    assert (result["elo"] is None) == (result["elo_high"] is None) == (result["wins"] == 4), (
        "a sweep has a bound alone"
    )
    assert result["elo"] is None or result["elo_low"] < result["elo"] < result["elo_high"]
    assert 0.5 < result["los"] <= 1
    assert result["sprt"]["verdict"] in ("H1", "undecided")
    assert sum(result["pairs"]) == 2
    code, out, _ = call(capsys, monkeypatch, *words)
    assert code == 0
    assert out.startswith("hand-written 4 - uniform policy: +")
    assert "SPRT [0, 50]:" in out


def test_every_file_tells_the_same_match(played: tuple[Path, dict[str, Any]]) -> None:
    out, summary = played
    assert json.loads((out / "summary.json").read_text()) == summary
    lines = [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]
    assert [line["game"] for line in lines] == list(range(8))
    points, names = [], ("hand-written 8", "uniform policy")
    with (out / "games.pgn").open() as file:
        for number, line in enumerate(lines):
            game = chess.pgn.read_game(file)
            assert game is not None
            assert not game.errors
            assert [move.uci() for move in game.mainline_moves()] == line["book"] + line["moves"]
            assert (game.headers["White"], game.headers["Black"]) == (
                names if number % 2 == 0 else names[::-1]
            )
            assert game.headers["Result"] == line["result"]
            assert game.headers["Termination"] == "normal"
            judged = [node.eval() is not None for node in game.mainline()]
            assert judged == [False] * 4 + [True] * len(line["moves"])
            white = {"1-0": 1.0, "0-1": 0.0}.get(line["result"], 0.5)
            points.append(white if number % 2 == 0 else 1 - white)
        assert chess.pgn.read_game(file) is None
    assert [points.count(result) for result in (1, 0.5, 0)] == [
        summary[name] for name in ("wins", "draws", "losses")
    ]
    assert summary["finished"]
    counts = [0] * 5
    for pair in range(4):
        counts[int(2 * (points[2 * pair] + points[2 * pair + 1]))] += 1
    assert summary["pairs"] == counts


def test_a_finished_match_is_given_back_and_a_longer_one_is_continued(
    played: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(played[0], tmp_path / "out")
    before = contents(tmp_path / "out")
    assert play_match(STRONG, WEAK, SMALL, tmp_path / "out") == played[1]
    assert contents(tmp_path / "out") == before
    longer = play_match(STRONG, WEAK, ArenaConfig(games=10, seed=5, plies=4), tmp_path / "out")
    assert longer["games"] == 10
    assert (tmp_path / "out" / "games.jsonl").read_bytes().startswith(before["games.jsonl"])
    undisturbed = play_match(
        STRONG, WEAK, ArenaConfig(games=10, seed=5, plies=4), tmp_path / "other"
    )
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
    assert undisturbed == longer
    with pytest.raises(ValueError, match="holds game number 10 already"):
        play_match(STRONG, WEAK, SMALL, tmp_path / "out")


@pytest.mark.parametrize(
    ("a", "config", "named"),
    [
        (
            SideConfig(who="hand-written", simulations=9),
            SMALL,
            r"a\.search\.simulations was 8, not 9",
        ),
        (
            SideConfig(who="uniform", simulations=8),
            SMALL,
            r"a\.evaluator was 'hand-written', not 'uniform'",
        ),
        (
            SideConfig(who="hand-written", simulations=8, options=("c_puct=3",)),
            SMALL,
            r"a\.search\.c_puct",
        ),
        (STRONG, ArenaConfig(games=8, seed=6, plies=4), r"openings\.seed was 5, not 6"),
        (STRONG, ArenaConfig(games=8, seed=5, plies=4, margin=9), r"margin was 0\.05, not 9"),
    ],
)
def test_another_match_is_refused_by_name(
    played: tuple[Path, dict[str, Any]], a: SideConfig, config: ArenaConfig, named: str
) -> None:
    before = contents(played[0])
    with pytest.raises(MatchFilesError, match=named):
        play_match(a, WEAK, config, played[0])
    assert contents(played[0]) == before


def test_a_journal_that_is_none_is_refused(
    played: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(played[0], tmp_path / "out")
    journal = tmp_path / "out" / "games.jsonl"
    journal.write_bytes(b'{"game": 0}\n' + journal.read_bytes())
    with pytest.raises(MatchFilesError, match="line 1 is not a game"):
        play_match(STRONG, WEAK, SMALL, tmp_path / "out")
    (tmp_path / "out" / "job.json").unlink()
    (tmp_path / "out" / "games.pgn").unlink()
    with pytest.raises(MatchFilesError, match=r"holds 'games\.jsonl', which is not of a match"):
        play_match(STRONG, WEAK, SMALL, tmp_path / "out")


def test_killed_twice_and_continued_is_as_if_nothing_had_happened(
    played: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed(out, 4)
    kept = (out / "games.jsonl").read_bytes()
    assert kept.count(b"\n") == 3
    assert not (out / "summary.json").exists()
    killed(out, 3)
    assert (out / "games.jsonl").read_bytes().count(b"\n") == 5
    assert (out / "games.jsonl").read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert play_match(STRONG, WEAK, SMALL, out) == played[1]
    assert contents(out) == contents(played[0])


def test_a_test_that_decides_early_counts_no_pair_behind_its_end(tmp_path: Path) -> None:
    config = ArenaConfig(games=100, seed=5, plies=4, early=True, sprt=SprtConfig(elo1=150))
    summary = play_match(STRONG, WEAK, config, tmp_path / "undisturbed")
    assert summary["finished"]
    assert summary["sprt"]["verdict"] == "H1"
    assert 10 < summary["games"] < 80
    one_less = summary["sprt"]["llr"] * (1 - 2 / summary["games"])
    assert summary["sprt"]["llr"] >= 2.9444 > one_less - 0.1, (
        "it ended with the first pair that decided"
    )
    killed(tmp_path / "killed", summary["games"] // 2, games=100, early=True)
    assert play_match(STRONG, WEAK, config, tmp_path / "killed") == summary
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")


def test_a_stopped_match_says_so_and_keeps_its_games(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = [
        "arena",
        "hand-written",
        "uniform",
        "--games",
        "300",
        "--simulations",
        "40",
        "--concurrency",
        "2",
    ]
    command = [sys.executable, "-c", HELD, *words, "--out", str(tmp_path)]
    process = forked.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "games.jsonl"
    until(lambda: journal.exists() and journal.stat().st_size)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=LONG)
    assert process.returncode == 128 + signal.SIGTERM
    found = re.fullmatch(
        r"fianchetto: stopped after (\d+) games; run the same command to continue\n", told
    )
    assert found is not None
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["finished"]
    assert summary["games"] == int(found[1]) == journal.read_bytes().count(b"\n") > 0


def test_forfeits_are_reported_everywhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = f"uci:{sys.executable} {ROGUE} a1a1"
    words = [
        "arena",
        "policy:uniform",
        command,
        "--nodes",
        "1",
        "--games",
        "4",
        "--out",
        str(tmp_path / "m"),
    ]
    code, out, _ = call(capsys, monkeypatch, *words, "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert (result["wins"], result["losses"]) == (4, 0)
    assert result["forfeits"] == {"a": {}, "b": {"illegal move": 4}}
    summary = json.loads((tmp_path / "m" / "summary.json").read_text())
    assert "forfeits of Rogue 1 nodes: 4 illegal move" in summary["text"]
    pgn = (tmp_path / "m" / "games.pgn").read_text()
    assert pgn.count('[Termination "rules infraction"]') == 4
    assert pgn.count("Rogue 1 nodes forfeits: illegal move") == 4
    with (tmp_path / "m" / "games.pgn").open() as file:
        for _ in range(4):
            game = chess.pgn.read_game(file)
            assert game is not None
            assert not game.errors


def test_clocks_and_a_pgn_book(tmp_path: Path) -> None:
    book = tmp_path / "book.pgn"
    book.write_text("1. e4 e5 2. Nf3 Nc6 *\n\n1. d4 d5 2. c4 e6 *\n")
    fair = SideConfig(who=f"uci:{sys.executable} {ROGUE} fair", tc="61.5+1")
    config = ArenaConfig(games=4, book=book, plies=3, margin=20.0)
    summary = play_match(
        fair, SideConfig(who="policy:uniform", tc="61.5+1"), config, tmp_path / "out"
    )
    assert summary["games"] == 4
    with (tmp_path / "out" / "games.pgn").open() as file:
        game = chess.pgn.read_game(file)
    assert game is not None
    assert game.headers["TimeControl"] == "61.5+1"
    nodes = list(game.mainline())
    assert nodes[2].clock() is None
    assert all(61 < (node.clock() or 0) <= 61.5 + len(nodes) for node in nodes[3:])
    assert "[%eval 0.13] [%clk 0:01:02" in (tmp_path / "out" / "games.pgn").read_text().replace(
        "\n", " "
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody", "uniform"], "'nobody' is not a player"),
        (["onnx:", "uniform"], "'onnx:' is not a player"),
        (["uniform"], "a match needs two players or more"),
        (["uniform", "policy:uniform", "uniform"], "a player is listed twice"),
        (["uniform", "uci:/no/engine", "--nodes", "1"], "cannot be started as a UCI engine"),
        (["uniform", "uci:stockfish"], "needs a limit"),
        (["uniform", "uci:"], "followed by the command"),
        (["uniform", "hand-written", "--games", "3"], "--games must be a multiple of 2"),
        (
            ["uniform", "hand-written", "--concurrency", "-1"],
            "--concurrency must be at least 0",
        ),
        (
            ["uniform", "hand-written", "--set", "margin=inf"],
            "--set margin must be a finite number",
        ),
        (["uniform", "hand-written", "--tc", "fast"], "is not a clock"),
        (["uniform", "hand-written", "--tc", "0/60"], "is not a clock"),
        (["uniform", "hand-written", "--tc", "x/60"], "is not a clock"),
        (
            ["uniform", "hand-written", "--tc", "1+1", "--movetime", "10"],
            "give a time per move or a clock, not both",
        ),
        (["uniform,hash=3", "hand-written"], "has no option hash"),
        (["uniform,c_puct=much", "hand-written"], "c_puct: input should be a valid number"),
        (
            ["uniform,nodes=few", "hand-written"],
            "simulations, nodes and movetime must be whole numbers",
        ),
        (["policy:uniform,c_puct=1", "hand-written"], "does not search"),
        (
            ["uniform", "hand-written", "--set", "elo0=9", "--set", "elo1=3"],
            "elo0 = 9 is not below elo1 = 3",
        ),
        (["uniform", "hand-written", "--book", "/no/book.epd"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    message: str,
) -> None:
    code, out, told = call(capsys, monkeypatch, "arena", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert out == ""
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("results", "known", "text"),
    [("1-0 0-1", "elo_low", "above +"), ("0-1 1-0", "elo_high", "below -")],
)
def test_a_clean_sweep_has_a_bound_and_no_elo(results: str, known: str, text: str) -> None:
    made = {
        "fen": chess.STARTING_FEN,
        "book": [],
        "moves": [],
        "scores": [],
        "clocks": None,
        "ending": "checkmate",
    }
    games = [
        GameRecord(game=number, result=results.split()[number % 2], forfeit=None, detail="", **made)
        for number in range(6)
    ]
    summary = summarize(games, ("a", "b"), SprtConfig())
    assert [name for name in ELO if summary[name] is not None] == [known]
    assert format_elo(summary).startswith(text)


def test_gumbel_plays_matches_without_its_noise_unless_it_is_asked_for() -> None:
    """As mctx evaluates; self-play's own configuration keeps it."""
    plain, noisy = (
        player_of(SideConfig(who="uniform", options=("algorithm=gumbel", *more)), 0)[0].search
        for more in ((), ("gumbel_scale=1",))
    )
    assert plain is not None
    assert noisy is not None
    assert (plain.gumbel_scale, noisy.gumbel_scale) == (0.0, 1.0)
    assert ExploreConfig().search.gumbel_scale == 1.0
