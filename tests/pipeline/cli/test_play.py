"""`fianchetto uci`, driven by python-chess, by PyPI's uci-test-suite, and by malformed input."""

import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import chess
import chess.engine
import pytest

from engine.uci.options import Options, describe_options
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.conftest import REPOSITORY
from tests.pipeline.cli.conftest import COMMAND, invoke
from tests.waiting import HANG_TIMEOUT_SECONDS, until

UCI = [*COMMAND, "uci"]


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that gives the engine a whole input and returns all answers.

    The engine runs in this process, so os._exit and torch's number of threads are patched.
    """

    def raise_exit(status: int) -> NoReturn:
        raise SystemExit(status)

    def converse(text: str | bytes, *words: str, status: int = 0) -> str:
        data = text.encode() if isinstance(text, str) else text
        code, answers, error = invoke("uci", *words, stdin=data)
        assert (code, error.count("\n")) == (status, bool(status)), error
        return answers

    monkeypatch.setattr(os, "_exit", raise_exit)
    monkeypatch.setattr(logging.getLogger("engine.compiling"), "disabled", False)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    return converse


def test_python_chess_plays_analyses_and_ponders() -> None:
    words = [*UCI, "--evaluator", "hand-written"]
    # the timeout allows for the compilation of kernels
    with chess.engine.SimpleEngine.popen_uci(
        words, timeout=HANG_TIMEOUT_SECONDS, cwd=REPOSITORY
    ) as engine:
        play_a_game(engine)
        analyse_and_ponder(engine)
        pid = engine.transport.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        until(lambda: engine.transport.get_returncode() is not None)
        assert engine.transport.get_returncode() == -signal.SIGTERM, "it ends at once"


def play_a_game(engine: chess.engine.SimpleEngine) -> None:
    board = chess.Board()
    while not board.is_game_over(claim_draw=True) and board.ply() < 40:
        board.push(engine.play(board, chess.engine.Limit(time=0.01)).move or chess.Move.null())
    assert board.ply() > 20


def analyse_and_ponder(engine: chess.engine.SimpleEngine) -> None:
    engine.configure({"UCI_ShowWDL": True})
    board = chess.Board("r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5Q2/PPPP1PPP/RNB1K1NR w KQkq - 0 4")
    infos = engine.analyse(board, chess.engine.Limit(nodes=200), multipv=3)
    assert len(infos) == 3
    assert infos[0]["score"].white().mate() == 1
    assert infos[0]["pv"] == [chess.Move.from_uci("f3f7")]
    assert infos[0]["wdl"].white().expectation() == 1.0
    reports = 0
    with engine.analysis(chess.Board()) as analysis:  # an infinite analysis
        for info in analysis:
            reports += "pv" in info
            if reports == 2:
                break
    assert reports == 2
    board = chess.Board()
    clocks = chess.engine.Limit(white_clock=2.0, black_clock=2.0, white_inc=0.05, black_inc=0.05)
    for _ in range(4):
        played = engine.play(board, clocks, ponder=True)
        assert played.move in board.legal_moves
        board.push(played.move)
        board.push(played.ponder if played.ponder else next(iter(board.legal_moves)))
    mated = chess.Board("R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1")
    assert engine.play(mated, chess.engine.Limit(nodes=5)).move is None


GO = "ucinewgame\nposition startpos\ngo nodes 20\n"


def test_the_checkpoint_option_changes_the_player(
    tmp_path: Path, converse: Callable[..., str]
) -> None:
    load = "setoption name Checkpoint value {}\n"
    words = (
        f"{GO}{load.format(tmp_path)}isready\n{GO}{load.format(EMBEDDED_CHECKPOINT)}isready\n{GO}"
    )
    answers = converse(words, "--evaluator", "uniform")
    assert "info string plays by the uniform evaluator" in answers
    assert str(tmp_path) in answers, "the error names the directory"
    uniform, still, network = read_scores(answers)
    assert uniform == still != network
    assert read_scores(converse(GO, "--checkpoint", str(EMBEDDED_CHECKPOINT))) == [network]
    refused = converse("uci\nisready\n", "--checkpoint", str(tmp_path), status=2)
    assert "plays by" not in refused


def read_scores(text: str) -> list[str]:
    """Return the last score before each bestmove."""
    return re.findall(r"info [^\n]*score (\w+ \S+)[^\n]*\nbestmove", text)


def test_damaged_weights_end_the_engine_with_an_error(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED_CHECKPOINT, tmp_path / "net")
    for name in ("model.onnx", *(path.name for path in EMBEDDED_CHECKPOINT.glob("weights*"))):
        (tmp_path / "net" / name).write_bytes(b"damaged")
    words = [*UCI, "--checkpoint", str(tmp_path / "net")]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, cwd=REPOSITORY, **pipes) as engine:
        assert engine.stdin is not None
        assert engine.stderr is not None
        engine.stdin.write(b"uci\nisready\n")
        engine.stdin.flush()
        assert engine.wait(HANG_TIMEOUT_SECONDS) == 2
        (line,) = engine.stderr.read().decode().splitlines()
        assert str(tmp_path / "net") in line


def test_malformed_input_is_answered_in_the_protocol(converse: Callable[..., str]) -> None:
    generator = random.Random(5)
    noise = [
        generator.randbytes(generator.randrange(1, 400)).replace(b"\n", b" ").replace(b"quit", b"")
        for _ in range(300)
    ]
    incomplete = """go|position|position fen|setoption|setoption name|debug|go wtime|stop stop|
        position startpos moves e2e|go movetime|position fen 8/8|setoption name Hash value|isread"""
    long = [
        b"position startpos moves " + b"g1f3 g8f6 f3g1 f6g8 " * 20_000,
        b"x" * 3_000_000,
        b"go " + b"nodes " * 50_000,
    ]
    last = [b"stop", b"position startpos", b"go nodes 3", b"isready", b"stop", b""]
    lines = [b"isready", *noise, *incomplete.encode().split(b"|"), *long, *last]
    answers = converse(b"\r\n".join(lines), "--evaluator", "uniform")
    known = ("info ", "bestmove ", "readyok", "id ", "option ", "uciok", "\nNodes")
    assert not [line for line in answers.splitlines() if line and not line.startswith(known)]
    assert answers.count("readyok") >= 2
    assert answers.isascii()


def test_uci_test_suite_passes(tmp_path: Path) -> None:
    pytest.importorskip("uci_test_suite", reason="pip install uci-test-suite")
    launcher = tmp_path / "fianchetto-uci"
    words = " ".join(f"'{word}'" for word in [*UCI, "--evaluator", "hand-written"])
    launcher.write_text(f"#!/bin/sh\ncd '{REPOSITORY}' && exec {words}\n")
    launcher.chmod(0o755)
    # the suite's own timeout, python-chess's ten seconds, is too short for a busy machine
    patient = f"""
import runpy, chess.engine as engines
popen_uci = engines.SimpleEngine.popen_uci
engines.SimpleEngine.popen_uci = lambda command: popen_uci(command, timeout={HANG_TIMEOUT_SECONDS})
runpy.run_module("uci_test_suite", run_name="__main__")
"""
    command = [sys.executable, "-c", patient, str(launcher)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=HANG_TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed, 12 total" in done.stdout


def test_the_documented_configuration_of_lichess_bot_has_existing_options() -> None:
    """lichess-bot refuses to start with an option that the engine does not have."""
    text = (REPOSITORY / "docs" / "playing.md").read_text()
    (options,) = re.findall(r"  uci_options:\n((?:    .+\n)+)", text)
    known = "\n".join(describe_options(Options()))
    for name in re.findall(r"^    (.+):", options, re.MULTILINE):
        assert f"option name {name} type " in known
