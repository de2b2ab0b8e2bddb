"""A reanalysis is a dataset: positions of the datasets, moves that are legal by python-chess, the same after any kill."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from engine.encoding.planes import label_of, move_of
from engine.errors import UserError
from engine.progress import Tick
from model.inference.onnx_evaluator import OnnxError
from model.network.presets import preset
from pipeline.cli.main import main
from pipeline.dataset.files.shards import verify
from pipeline.dataset.training_set import members
from pipeline.errors import Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.reanalyse.config import ReanalyseConfig, ReanalyseError
from pipeline.reanalyse.job import reanalyse
from pipeline.storage.stores import file_hash
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import edit, make
from tests.pipeline import datasets
from tests.pipeline.reanalyse.reanalyses import prepare, searches, small, start, told
from tests.pipeline.selfplay.generations import journalled

CONFIG = small()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset."""
    return prepare(tmp_path_factory.mktemp("reanalyse"))


@pytest.fixture(scope="module")
def made(sources: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reanalyse, undisturbed, in this process."""
    checkpoint, positions = sources
    out = tmp_path_factory.mktemp("made") / "out"
    ticks: list[Tick] = []
    reanalyse(checkpoint, [positions], CONFIG, out, lineage={"loop": "test"}, workers=1, progress=ticks.append)
    assert [tick.done for tick in ticks if tick.unit == "positions"] == list(range(4, 41, 4))
    assert ticks[-1].values.keys() == {"positions/s", "evaluations/s"}
    assert ticks[-1].values["evaluations/s"] > 0
    return out


def boards_of(positions: Path) -> dict[tuple[int, int], chess.Board]:
    """Give the position before each half-move of each game by python-chess, by (identity of the game, ply)."""
    identities, found = [game["identity"] for game in datasets.games(positions)], {}
    for game, rows in datasets.rows_by_game(positions).items():
        board = chess.Board()
        for row in rows:
            found[identities[game], row["ply"]] = board.copy()
            board.push(move_of(row["label"], row["promotion"], board.turn))
    return found


def planes(board: chess.Board) -> bytes:
    """Give a board's planes by python-chess alone."""
    from pipeline.validation.verify import planes_of

    return planes_of(board).tobytes()


def test_rows_are_the_datasets_positions_and_legal_moves_from_them(made: Path, sources: tuple[Path, Path]) -> None:
    assert verify(made) == []
    boards, games = boards_of(sources[1]), datasets.games(made)
    people = {(game["identity"]): game["split"] for game in datasets.games(sources[1])}
    rows = datasets.table(made).to_pylist()
    kinds = {"own": 0, "moved": 0, "interior": 0}
    of_game: dict[int, int] = {}
    moved = [line["moves"] for line in searches(made) if line.get("moves")]
    lengths: list[int] = []
    for row in rows:
        identity = games[row["game"]]["identity"]
        assert people[identity] == games[row["game"]]["split"] == "train"
        assert [row[name] for name in ("elo", "opponent_elo", "clock", "base", "increment", "last_move")] == [None] * 6
        kind = "interior" if row["visits"] is None else "own" if row["plies"] else "moved"
        kinds[kind] += 1
        assert -1 <= row["root_value"] <= 1
        assert (row["simulations"] or 0) >= (CONFIG.interior if kind == "interior" else 0)
        if kind == "own":
            board = boards[identity, row["ply"]]
            assert row["planes"] == planes(board)
            assert row["eval"] is not None
        else:
            assert (row["eval"], row["result"]) == (None, 0)
        if kind == "moved":
            ends = [(way, after(boards, identity, row["ply"], way)) for way in moved]
            reached = [(len(way), end) for way, end in ends if end is not None and planes(end) == row["planes"]]
            assert len(reached) == 1
            lengths.append(reached[0][0])
            board = reached[0][1]
        if kind != "interior":
            of_game[row["game"]] = of_game.get(row["game"], 0) + 1
            legal = {label_of(move, board.turn) for move in board.legal_moves}
            assert {entry["label"] for entry in row["visits"]} <= legal
            assert sum(entry["share"] for entry in row["visits"]) == pytest.approx(1.0, abs=1e-5)
            assert row["label"] in legal
            if any(_mates(board, move) for move in board.legal_moves):
                assert row["root_value"] == row["best_value"] == 1.0
    assert set(of_game.values()) == {1}
    assert min(kinds.values()) >= 5
    assert set(lengths) == {1, 2, 3}
    assert len(moved) == kinds["moved"]


def after(
    boards: dict[tuple[int, int], chess.Board], identity: int, ply: int, moves: Sequence[Sequence[int]]
) -> chess.Board | None:
    """Give the position at `ply` where a game's last moves are replaced by these, None where they are not legal there."""
    if (before := boards.get((identity, ply - len(moves)))) is None:
        return None
    board = before.copy()
    for label, promotion in moves:
        move = move_of(label, promotion, board.turn)
        if not board.is_legal(move):
            return None
        board.push(move)
    return board


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def test_what_the_manifest_says_is_what_the_searches_say(made: Path, sources: tuple[Path, Path]) -> None:
    manifest, lines = datasets.manifest(made), searches(made)
    assert {path.name for path in made.iterdir() if path.suffix != ".parquet"} == {
        *(".lock", "CARD.md", "manifest.json", "reanalyse.json", "searches.jsonl")
    }
    card = json.loads((sources[0] / "checkpoint.json").read_text())
    assert manifest["lineage"]["checkpoint"]["weights_sha256"] == card["files"]["weights"]["sha256"]
    assert manifest["lineage"]["loop"] == "test"
    assert manifest["sources"] == datasets.manifest(sources[1])["sources"]
    assert [line["row"] for line in lines] == list(range(40))
    said = manifest["searches"]
    assert said["searched"] + said["over"] == len(lines)
    assert said["interior"] == sum(len(line.get("nodes", ())) for line in lines)
    assert manifest["positions"]["train"] == said["searched"] + said["interior"]
    assert said["timing"]["evaluations"] == said["evaluations"] > 40
    assert sum(said["phases"].values()) == 40
    changed = [
        line["labels"][int(np.argmax(line["priors"]))] != line["best"][0] for line in lines if line["simulations"]
    ]
    assert said["best_move_changed"] == pytest.approx(sum(changed) / said["searched"], abs=1e-6)


def test_the_same_positions_are_drawn_from_either_form_and_by_any_number_of_processes(
    made: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    again = IngestConfig(val_share=0.1, test_share=0.1, planes="compact", seed=7)
    ingest([str(sources[1].parent / "games.pgn")], tmp_path / "compact", again, workers=1)
    reanalyse(sources[0], [tmp_path / "compact"], CONFIG, tmp_path / "out", workers=2)
    assert searches(tmp_path / "out") == searches(made)


def test_phases_decided_positions_and_games_have_the_weights_that_were_asked_for(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    search = {"search": small().search, "interior": 0, "moved": 0.0, "width": 64}
    config = small(phases=(1.0, 0.0, 0.0), decided=0.0, a_game=3, count=1000, first_ply=4, **search)
    reanalyse(sources[0], [sources[1]], config, tmp_path / "out", workers=1)
    rows = datasets.table(tmp_path / "out").to_pylist()
    games = len(members(sources[1])[0].manifest["games"]) and sum(
        game["split"] == "train" for game in datasets.games(sources[1])
    )
    assert games < len(rows) <= 3 * games
    assert {row["ply"] for row in rows} <= set(range(4, 20))
    # three of sixteen positions: with random evaluations up to 9 pawns a third is undecided, and is taken first
    assert np.mean([abs(row["eval"]) < 300 for row in rows]) > 0.8
    assert len({row["planes"] for row in rows}) == len(rows), "no position twice"


def test_a_run_that_is_stopped_searches_only_what_is_missing(
    made: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    asked = [0]
    with pytest.raises(Stopped, match="12 of 40 positions"):
        reanalyse(
            sources[0],
            [sources[1]],
            CONFIG,
            tmp_path / "out",
            workers=1,
            progress=lambda tick: asked.__setitem__(0, tick.done if tick.unit == "positions" else 0),
            stop=lambda: asked[0] >= 12,
        )
    ticks: list[int] = []
    reanalyse(sources[0], [sources[1]], CONFIG, tmp_path / "out", workers=1, progress=lambda t: ticks.append(t.done))
    assert ticks == list(range(16, 41, 4))
    assert {**told(tmp_path / "out"), "reanalyse.json": 0} == {
        **told(made),
        "reanalyse.json": 0,
        "manifest.json": told(tmp_path / "out")["manifest.json"],
    }


def test_a_killed_reanalysis_gives_the_same_dataset(sources: tuple[Path, Path], tmp_path: Path) -> None:
    config, out = small(width=2, a_game=100), tmp_path / "out"
    reanalyse(sources[0], [sources[1]], config, tmp_path / "whole", workers=1)
    for finished in (7, 24):
        before = journalled(out)
        assert start(config, sources, out, kill_after=finished).wait() == -signal.SIGKILL
        assert before < journalled(out)
    reanalyse(sources[0], [sources[1]], config, out, workers=1)
    assert told(out) == told(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_reanalysis_killed_at_random_moments_gives_the_same_dataset(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    chance, killed = random.Random(100), 0
    config = small(count=2000, width=2, a_game=100)
    reanalyse(sources[0], [sources[1]], config, tmp_path / "whole", workers=1)
    for _ in range(100):
        before = journalled(tmp_path / "out")
        process = start(config, sources, tmp_path / "out")
        time.sleep(chance.uniform(0.0, 0.5))
        finished = journalled(tmp_path / "out")
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        if (tmp_path / "out" / "manifest.json").exists():
            break
        assert before <= finished <= journalled(tmp_path / "out")
    assert killed
    reanalyse(sources[0], [sources[1]], config, tmp_path / "out", workers=1)
    assert told(tmp_path / "out") == told(tmp_path / "whole")


def test_a_full_disk_is_one_line_and_nothing_is_lost(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(count=12, width=4)
    for allowed in (1, 3, 5, 7):
        left = [allowed]

        def full(descriptor: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(ReanalyseError, match=r"^No space left[^\n]* are kept, run again to continue$"):
                reanalyse(sources[0], [sources[1]], config, tmp_path / "out", workers=1)
        assert not (tmp_path / "out" / "manifest.json").exists()
    reanalyse(sources[0], [sources[1]], config, tmp_path / "out", workers=1)
    assert verify(tmp_path / "out") == []
    reanalyse(sources[0], [sources[1]], config, tmp_path / "whole", workers=1)
    assert told(tmp_path / "out") == told(tmp_path / "whole")


def test_an_exported_network_searches_and_the_dataset_says_so(sources: tuple[Path, Path], tmp_path: Path) -> None:
    embedded = REPOSITORY / "datasets" / "embedded"
    config = small(count=6, width=3, device="onnx", amp="auto")
    reanalyse(embedded, [sources[1]], config, tmp_path / "out", workers=2)
    manifest = datasets.manifest(tmp_path / "out")
    assert manifest["searches"]["timing"]["devices"] == ["cpu onnxruntime int8"]
    assert manifest["lineage"]["checkpoint"]["onnx_sha256"] == file_hash(embedded / "model.onnx")
    assert verify(tmp_path / "out") == []
    reanalyse(embedded, [sources[1]], config, tmp_path / "again", workers=1)
    assert searches(tmp_path / "again") == searches(tmp_path / "out")
    with pytest.raises(OnnxError, match=r"checkpoint: there is no model\.onnx; `fianchetto export"):
        reanalyse(sources[0], [sources[1]], config, tmp_path / "new", workers=1)
    assert not (tmp_path / "new").exists()


def test_other_settings_and_bad_input_are_refused_in_one_line(sources: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, positions = sources
    config = small(count=4, width=4)
    reanalyse(checkpoint, [positions], config, tmp_path / "out", workers=1)
    make(tmp_path / "other", seed=9)
    make(tmp_path / "older")
    edit(tmp_path / "older", moves_hash="0" * 16)
    make(tmp_path / "silent", preset("chess-policy-only"))
    only_test = tmp_path / "only_test"
    ingest([str(positions.parent / "games.pgn")], only_test, IngestConfig(test_share=0.99, val_share=0.0), workers=1)
    refused: tuple[tuple[Path, Path, ReanalyseConfig, Path, str], ...] = (
        (checkpoint, positions, small(count=8, width=4), tmp_path / "out", "config.count was 4, not 8"),
        (tmp_path / "other", positions, config, tmp_path / "out", "checkpoint.weights_sha256 was"),
        (tmp_path / "older", positions, config, tmp_path / "new", "planes or labels mean something else"),
        (tmp_path / "silent", positions, config, tmp_path / "new", "says nothing of the result"),
        (checkpoint, checkpoint, config, tmp_path / "new", "has no manifest.json"),
        (checkpoint, only_test, small(count=4, first_ply=500), tmp_path / "new", "no position to search"),
        (checkpoint, positions, config, positions / "inside", "lies in"),
        (checkpoint, positions, config, checkpoint, "not of a reanalysis"),
    )
    for network, dataset, settings, out, said in refused:
        with pytest.raises(UserError, match=said) as error:
            reanalyse(network, [dataset], settings, out, workers=1)
        assert "\n" not in str(error.value)
    for changes, said in (
        ({"count": 0}, "count must be from 1"),
        ({"moved": 1.5}, "moved must be from 0.0 to 1.0"),
        ({"moved_plies": 0}, "moved_plies must be from 1 to 100"),
        ({"phases": (1.0, 2.0)}, "phases are 3 weights"),
        ({"phases": (0.0, 0.0, 0.0)}, "phases are 3 weights"),
        ({"device": "onnx", "amp": "bf16"}, "with the device onnx amp is auto"),
        ({"device": "tpu"}, "device is one of auto, cpu, cuda, onnx"),
    ):
        with pytest.raises(ReanalyseError, match=said):
            small(**changes)


def test_the_command_searches_and_says_so(
    sources: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["fianchetto", "reanalyse", "--checkpoint", str(sources[0]), "--positions", str(sources[1])]
    words += ["--out", str(tmp_path / "out"), "--count", "6", "--simulations", "8", "--workers", "1"]

    def run(*more: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr()

    status, printed = run("--json")
    assert (status, json.loads(printed.out)["searches"]["searched"]) == (0, 6)
    status, printed = run()
    assert "complete already: nothing was done" in printed.out
    status, printed = run("--seed", "2")
    assert (status, printed.err.count("\n")) == (2, 1)
    assert "config.seed was 0, not 2" in printed.err
