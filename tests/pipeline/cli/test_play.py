"""The UCI engine as a process: python-chess as the GUI, PyPI's uci-test-suite, and noise on its
standard input."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import chess
import chess.engine
import pytest

from engine.evaluation.score import centipawns
from engine.player import Conditions, Player, Request
from model.inference.onnx_evaluator import find_export
from model.network.preset import Preset
from tests import forked
from tests.conftest import REPOSITORY
from tests.model.synthetic import TINY
from tests.waiting import LONG

COMMAND = [sys.executable, "-c", "from pipeline.cli.main import main; main()", "uci"]
FIRST_PATIENCE = 500.0
"""Seconds that the engine may take to be ready: its kernels may have to be compiled first."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compile what is not yet, so that no test's clock runs meanwhile."""
    assert b"readyok" in converse(b"isready\n", "--evaluator", "hand-written").stdout.splitlines()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint of a tiny network that has learnt nothing and is of strong opinions."""
    return opinionated(tmp_path_factory.mktemp("a network"), TINY)


def opinionated(directory: Path, preset: Preset) -> Path:
    """Save a network with random weights."""
    import torch

    from model.checkpoint import save
    from model.network.network import build
    from model.network.preset import preset_row

    facts = {"parameters": 9, "step": 7, "positions": 70, "seconds": 1.5, "finished": True}
    card = {
        "preset": preset_row(preset),
        **facts,
        "metrics": {"loss": 1.5},
        "config": {},
        "data": {},
    }
    network = build(preset, 3)
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in network.parameters():
            weight += torch.randn_like(weight) / 2
    save(directory, card, {"weights": network.state_dict()})
    return directory


@pytest.fixture(scope="module")
def engine() -> Iterator[chess.engine.SimpleEngine]:
    """Start the engine that the tests of searches share."""
    with opened("--evaluator", "hand-written") as engine:
        yield engine


def opened(*words: str) -> chess.engine.SimpleEngine:
    return chess.engine.SimpleEngine.popen_uci(
        [*COMMAND, *words], timeout=FIRST_PATIENCE, cwd=REPOSITORY
    )


def converse(text: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Give the engine a whole input at once and take all that it answers."""
    return forked.run(
        [*COMMAND, *words],
        input=text,
        capture_output=True,
        cwd=REPOSITORY,
        check=False,
        timeout=FIRST_PATIENCE,
    )


def test_a_game_at_ten_milliseconds_a_move(engine: chess.engine.SimpleEngine) -> None:
    board = chess.Board()
    while not board.is_game_over(claim_draw=True) and board.ply() < 120:
        board.push(engine.play(board, chess.engine.Limit(time=0.01)).move or chess.Move.null())
    assert board.ply() > 20
    assert board.move_stack[0] in chess.Board().legal_moves


def test_analysis_shows_lines_scores_and_chances(engine: chess.engine.SimpleEngine) -> None:
    engine.configure({"UCI_ShowWDL": True})
    board = chess.Board("r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5Q2/PPPP1PPP/RNB1K1NR w KQkq - 0 4")
    infos = engine.analyse(board, chess.engine.Limit(nodes=200), multipv=3)
    assert len(infos) == 3
    assert infos[0]["score"].white().mate() == 1
    assert infos[0]["pv"] == [chess.Move.from_uci("f3f7")]
    assert infos[0]["wdl"].white().expectation() == 1.0


def test_endless_analysis_reports_and_is_stopped(engine: chess.engine.SimpleEngine) -> None:
    reports = 0
    with engine.analysis(chess.Board()) as analysis:
        for info in analysis:
            reports += "pv" in info
            if reports == 2:
                break
    assert reports == 2
    assert engine.play(chess.Board(), chess.engine.Limit(nodes=5)).move in chess.Board().legal_moves


def test_pondering_as_a_gui_does_it(engine: chess.engine.SimpleEngine) -> None:
    board = chess.Board()
    clocks = chess.engine.Limit(white_clock=2.0, black_clock=2.0, white_inc=0.05, black_inc=0.05)
    for _ in range(6):
        played = engine.play(board, clocks, ponder=True)
        assert played.move in board.legal_moves
        board.push(played.move)
        board.push(played.ponder if played.ponder else next(iter(board.legal_moves)))


def test_a_game_over_is_no_error(engine: chess.engine.SimpleEngine) -> None:
    mated = chess.Board("R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1")
    assert engine.play(mated, chess.engine.Limit(nodes=5)).move is None


def test_a_checkpoint_plays_and_is_changed_for_another_by_option(network: Path) -> None:
    with opened("--checkpoint", str(network)) as engine:
        first = engine.play(chess.Board(), chess.engine.Limit(nodes=20), info=chess.engine.INFO_ALL)
        assert first.move in chess.Board().legal_moves
    with opened("--evaluator", "uniform") as engine:
        before = engine.play(
            chess.Board(), chess.engine.Limit(nodes=20), info=chess.engine.INFO_ALL
        )
        engine.configure({"Checkpoint": str(network), "Threads": 2})
        after = engine.play(
            chess.Board(), chess.engine.Limit(nodes=20), info=chess.engine.INFO_ALL, game=2
        )
    assert (first.move, first.info["score"]) == (after.move, after.info["score"])
    assert before.info["score"] != after.info["score"]


def test_a_checkpoint_that_is_none_ends_the_engine_with_one_line(tmp_path: Path) -> None:
    done = converse(b"uci\nisready\nposition startpos\ngo nodes 5\n", "--checkpoint", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path).encode() in done.stderr
    assert done.stdout.splitlines()[-1].startswith(b"info string ")
    assert b"plays by" not in done.stdout, "what is not there is not announced"


def test_a_checkpoint_option_that_is_none_leaves_the_player(tmp_path: Path) -> None:
    words = (
        f"isready\nsetoption name Checkpoint value {tmp_path}\nisready\nposition startpos\ngo "
        f"nodes 5\n"
    )
    done = converse(words.encode(), "--evaluator", "uniform")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert lines[:2] == ["info string plays by the uniform evaluator", "readyok"]
    assert lines[2].startswith("info string ")
    assert str(tmp_path) in lines[2]
    assert lines[-1].startswith("bestmove")


def test_a_rating_changes_what_a_network_that_reads_ratings_expects() -> None:
    embedded, board, ratings = (
        REPOSITORY / "datasets" / "embedded",
        chess.Board(),
        (1000, 1700, 2400),
    )
    for uci in ("e2e4", "e7e5", "d1h5", "b8c6", "f1c4"):
        board.push_uci(uci)
    words = (
        f"setoption name Style value policy\nposition startpos moves "
        f"{' '.join(map(str, board.move_stack))}\n"
    )
    words += "".join(f"setoption name Rating value {rating}\ngo nodes 1\n" for rating in ratings)
    said = converse(f"{words}quit\n".encode(), "--checkpoint", str(embedded)).stdout.decode()
    scores = [
        int(line.split("score cp ")[1].split()[0])
        for line in said.splitlines()
        if "score cp" in line
    ]
    network = find_export(embedded)
    assert network is not None
    wanted = []
    for rating in ratings:
        request = Request(board=board, conditions=Conditions(rating=rating))
        wanted.append(centipawns(Player(network).play(request).value))
    assert scores == pytest.approx(wanted, abs=1)
    assert len(set(scores)) == 3


def test_a_network_that_reads_no_ratings_says_so_and_plays_on(network: Path) -> None:
    asked = (
        b"isready\nsetoption name Style value human\nsetoption name Rating value 1500\ngo "
        b"nodes 1\nquit\n"
    )
    said = converse(asked, "--checkpoint", str(network)).stdout.decode()
    assert "info string Rating 1500 changes no probabilities: the network reads no ratings" in said
    assert "bestmove" in said


def test_two_players_at_once_are_refused(network: Path) -> None:
    done = converse(b"", "--checkpoint", str(network), "--evaluator", "uniform")
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("end", [b"quit\n", b""])
def test_what_was_asked_before_quit_or_the_end_is_answered_in_full(end: bytes) -> None:
    done = converse(b"uci\nposition startpos\ngo nodes 4000\n" + end, "--evaluator", "hand-written")
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines[-1].startswith("bestmove ")
    assert " nodes 4000 " in lines[-2]


def test_quit_behind_a_search_without_an_end_stops_it() -> None:
    done = converse(b"position startpos\ngo infinite\nquit\n", "--evaluator", "hand-written")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith(b"bestmove ")


def test_what_is_asked_of_a_checkpoint_that_is_none_ends_with_one_line(tmp_path: Path) -> None:
    done = converse(b"position startpos\ngo nodes 1\nquit\n", "--checkpoint", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_machine_that_never_ran_it_compiles_says_so_and_answers(tmp_path: Path) -> None:
    words = (
        b"setoption name Style value policy\nposition startpos moves e2e4 e7e5 g1f3\ngo nodes "
        b"1\nquit\n"
    )
    done = subprocess.run(
        COMMAND,
        input=words,
        capture_output=True,
        cwd=REPOSITORY,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=False,
        timeout=FIRST_PATIENCE,
    )
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines[0].startswith("info string plays by the network in ")
    assert lines[1] == "info string compiling kernels (once on this machine, about a minute)"
    assert lines[-1].startswith("bestmove ")


@pytest.mark.parametrize("words", [["--evaluator", "hand-written"], ["--checkpoint"]])
def test_quit_does_not_wait_for_what_is_being_loaded(words: list[str], network: Path) -> None:
    command = [*COMMAND, *words, *([str(network)] if words[-1] == "--checkpoint" else [])]
    done = subprocess.run(
        command,
        input=b"uci\nquit\n",
        capture_output=True,
        cwd=REPOSITORY,
        check=False,
        timeout=LONG,
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == b"uciok"
    assert done.stderr == b""


def test_noise_is_survived_and_answered_in_the_protocol_only() -> None:
    lots = random.Random(5)
    noise = [
        lots.randbytes(lots.randrange(1, 400)).replace(b"\n", b" ").replace(b"quit", b"")
        for _ in range(300)
    ]
    words = [
        b"go",
        b"position",
        b"position fen",
        b"setoption",
        b"setoption name",
        b"debug",
        b"go wtime",
        b"stop stop",
    ]
    halves = [
        b"position startpos moves e2e",
        b"go movetime",
        b"position fen 8/8",
        b"setoption name Hash value",
        b"isread",
    ]
    long = [
        b"position startpos moves " + b"g1f3 g8f6 f3g1 f6g8 " * 20_000,
        b"x" * 3_000_000,
        b"go " + b"nodes " * 50_000,
    ]
    lines = [
        b"isready",
        *noise,
        *words,
        *halves,
        *long,
        b"stop",
        b"position startpos",
        b"go nodes 3",
        b"isready",
    ]
    done = converse(b"\r\n".join(lines) + b"\r\nstop\r\n", "--evaluator", "uniform")
    assert (done.returncode, done.stderr) == (0, b"")
    known = (b"info ", b"bestmove ", b"readyok", b"id ", b"option ", b"uciok", b"\nNodes")
    strange = [line for line in done.stdout.splitlines() if line and not line.startswith(known)]
    assert not strange
    assert done.stdout.count(b"readyok") >= 2
    assert done.stdout.isascii()


def test_uci_test_suite_passes(tmp_path: Path) -> None:
    pytest.importorskip(
        "uci_test_suite", reason="uci-test-suite is not installed: pip install uci-test-suite"
    )
    launcher = tmp_path / "fianchetto-uci"
    words = " ".join(f"'{word}'" for word in [*COMMAND, "--evaluator", "hand-written"])
    launcher.write_text(f"#!/bin/sh\ncd '{REPOSITORY}' && exec {words}\n")
    launcher.chmod(0o755)
    # python-chess gives an engine ten seconds to get ready
    patient = f"""
import runpy, chess.engine as engines
popen_uci = engines.SimpleEngine.popen_uci
engines.SimpleEngine.popen_uci = lambda command: popen_uci(command, timeout={LONG})
runpy.run_module("uci_test_suite", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", patient, str(launcher)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed, 12 total" in done.stdout


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("limits", [(1.0, 0.01), (3.0, 0.0), (0.2, 0.05)])
def test_no_game_is_lost_on_time(limits: tuple[float, float]) -> None:
    """The engine plays itself on a clock that runs while python-chess waits for it."""
    base, increment = limits
    with opened("--evaluator", "hand-written") as engine:
        engine.ping()  # a match runner waits until the engine is ready before it starts a clock
        for game in range(5):
            board, clocks = chess.Board(), {chess.WHITE: base, chess.BLACK: base}
            while not board.is_game_over(claim_draw=True) and board.ply() < 300:
                limit = chess.engine.Limit(
                    white_clock=clocks[chess.WHITE],
                    black_clock=clocks[chess.BLACK],
                    white_inc=increment,
                    black_inc=increment,
                )
                begun = time.monotonic()
                played = engine.play(board, limit, game=game)
                clocks[board.turn] -= time.monotonic() - begun
                assert clocks[board.turn] > 0.0, f"flag at ply {board.ply()}"
                clocks[board.turn] += increment
                assert played.move is not None
                board.push(played.move)


@pytest.mark.slow
def test_a_thousand_games_begun_and_left(network: Path) -> None:
    """Options, games, searches and stops in any order: as many answers as questions."""
    lots = random.Random(9)
    words = [*COMMAND, "--checkpoint", str(network)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for game in range(1000):
            lines = [
                "ucinewgame",
                f"setoption name Seed value {game}",
                "position startpos moves e2e4",
            ]
            lines += lots.sample(
                ["isready", "stop", "ponderhit", f"setoption name MultiPV value {game % 4 + 1}"], 2
            )
            lines += [
                lots.choice(
                    [
                        "go nodes 2",
                        "go movetime 1",
                        "go wtime 5 btime 5",
                        "go infinite",
                        "go ponder nodes 2",
                    ]
                )
            ]
            process.stdin.write(
                "\n".join([*lines, *(["stop"] if lots.random() < 0.5 else []), "stop", ""])
            )
            process.stdin.flush()
            answer = next(line for line in process.stdout if line.startswith("bestmove"))
            assert answer.split()[1] in ("e7e5", "g8f6") or answer.split()[1][1] in "678"
        process.stdin.close()
        assert not [line for line in process.stdout if line.startswith("bestmove")]
        assert process.wait(10.0) == 0
