"""Searched positions are a dataset: rows of their datasets, moves that are legal by python-chess,
the same after any kill."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from engine.board.position import from_fen
from engine.encoding.planes import label_of, move_of
from engine.encoding.views import LAST_MOVES
from engine.errors import UserError
from engine.evaluation.evaluator import uniform
from engine.progress import Tick, never, silent
from engine.search import SearchConfig
from model.inference.onnx_evaluator import OnnxError
from model.network.presets import preset
from pipeline.cli.main import main
from pipeline.errors import Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.selfplay import draw, positions
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.job import explore
from pipeline.storage.stores import file_hash
from pipeline.validation.verify import files_differ
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import edit, make
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import journalled, prepare, searched, told

CONFIG = searched()


def reanalyse(
    sources: tuple[Path, Path], config: ExploreConfig, out: Path, **options: Any
) -> dict[str, Any]:
    """Search positions of a dataset."""
    return explore(sources[0], config, out, datasets=[sources[1]], **{"workers": 1, **options})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset."""
    return prepare(tmp_path_factory.mktemp("reanalyse"))


@pytest.fixture(scope="module")
def made(sources: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Search positions, undisturbed, in this process."""
    out = tmp_path_factory.mktemp("made") / "out"
    ticks: list[Tick] = []
    reanalyse(sources, CONFIG, out, lineage={"loop": "test"}, progress=ticks.append)
    assert [tick.done for tick in ticks if tick.unit == "positions"] == list(range(4, 41, 4))
    assert ticks[-1].values["positions/h"] > 0
    return out


def boards_of(positions: Path) -> dict[tuple[int, int], chess.Board]:
    """Give the position before each half-move of each game by python-chess, by (identity of the
    game, ply)."""
    identities, found = [game["identity"] for game in datasets.games(positions)], {}
    for game, rows in datasets.rows_by_game(positions).items():
        board = chess.Board()
        for row in rows:
            found[identities[game], row["ply"]] = board.copy()
            board.push(move_of(row["label"], row["promotion"], board.turn))
    return found


def test_rows_are_the_datasets_rows_with_a_policy_on_legal_moves(
    made: Path, sources: tuple[Path, Path]
) -> None:
    assert files_differ(made) == []
    boards, games = boards_of(sources[1]), datasets.games(made)
    theirs = datasets.games(sources[1])
    rows = {
        (theirs[row["game"]]["identity"], row["ply"]): row
        for row in datasets.table(sources[1]).to_pylist()
    }
    found = datasets.table(made).to_pylist()
    assert len(found) == len({row["game"] for row in found}) == 40
    assert all(row["last_move"] is not None for row in found)
    for row in found:
        game = games[row["game"]]
        other, board = rows[game["identity"], row["ply"]], boards[game["identity"], row["ply"]]
        assert other["split"] == game["split"] == row["split"] == "train"
        for name in (
            "planes",
            "label",
            "promotion",
            "result",
            "eval",
            "plies",
            "castling",
            "ep_file",
            "halfmove",
        ):
            assert row[name] == other[name], name
        for name in ("elo", "opponent_elo", "clock", "base", "increment", *LAST_MOVES):
            assert row[name] == other.get(name), name
        legal = {label_of(move, board.turn) for move in board.legal_moves}
        assert {entry["label"] for entry in row["visits"]} <= legal
        assert sum(entry["share"] for entry in row["visits"]) == pytest.approx(1.0, abs=1e-5)
        assert -1 <= row["root_value"] <= 1
        assert -1 <= row["best_value"] <= 1
        if any(_mates(board, move) for move in board.legal_moves):
            assert row["root_value"] == row["best_value"] == 1.0
        else:
            assert row["simulations"] == 12


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def test_what_the_manifest_says_is_what_the_rows_say(
    made: Path, sources: tuple[Path, Path]
) -> None:
    manifest = datasets.manifest(made)
    assert {path.name for path in made.iterdir() if path.suffix != ".parquet"} == {
        *(".lock", "CARD.md", "manifest.json", "job.json")
    }
    card = json.loads((sources[0] / "checkpoint.json").read_text())
    assert manifest["lineage"]["checkpoint"]["weights_sha256"] == card["files"]["weights"]["sha256"]
    assert manifest["lineage"]["datasets"][0]["name"] == "positions"
    assert manifest["lineage"]["loop"] == "test"
    assert manifest["sources"] == datasets.manifest(sources[1])["sources"]
    figures = manifest["selfplay"]
    assert figures["searched"] + figures["over"] == 40
    assert manifest["positions"]["train"] == manifest["positions"]["total"] == figures["searched"]
    assert sum(figures["phases"].values()) == 40
    assert 0 < figures["best_move_changed"] <= 1


@pytest.mark.parametrize(
    ("fen", "changed"),
    [("7k/R7/8/8/8/8/8/1R5K w - - 0 1", 0), ("7k/8/8/8/8/8/1R6/R6K w - - 0 1", 1)],
)
def test_a_mate_in_one_is_no_change_of_the_policy_but_a_mate_that_a_search_found_is(
    fen: str, changed: int
) -> None:
    # broad, as the evaluator is blind
    search = SearchConfig(simulations=2000, policy_temperature=1.0, c_stdev=0.0)
    config = replace(CONFIG, explorer="hand-written", width=1, search=search)
    entry = positions._search_group(uniform, config, from_fen(fen)[None], 0, never)
    assert entry is not None
    assert entry["record"]["changed"] == changed


def test_the_same_positions_are_drawn_from_either_form_and_by_any_number_of_processes(
    made: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    again = IngestConfig(val_share=0.1, test_share=0.1, planes="compact", seed=7)
    ingest([str(sources[1].parent / "games.pgn")], tmp_path / "compact", again, workers=1)
    reanalyse((sources[0], tmp_path / "compact"), CONFIG, tmp_path / "out", workers=2)
    assert datasets.table(tmp_path / "out").equals(datasets.table(made))


def test_as_many_positions_of_a_game_are_drawn_as_are_needed(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "PHASES", {"opening": 1.0, "middlegame": 1e-9, "endgame": 1e-9})
    monkeypatch.setattr(draw, "FIRST_PLY", 4)
    monkeypatch.setattr(draw, "DECIDED_WEIGHT", 1e-9)
    games = sum(game["split"] == "train" for game in datasets.games(sources[1]))
    reanalyse(sources, searched(count=3 * games - 10, width=64), tmp_path / "out")
    rows = datasets.table(tmp_path / "out").to_pylist()
    assert 2 * games < len(rows) <= 3 * games
    assert np.mean([row["ply"] < 20 for row in rows]) > 0.9
    # three of sixteen positions: with random evaluations up to 9 pawns a third is undecided, and is
    # taken first
    assert np.mean([abs(row["eval"]) < 300 for row in rows]) > 0.8
    assert len({row["planes"] for row in rows}) == len(rows), "no position twice"


def test_a_run_that_is_stopped_searches_only_what_is_missing(
    made: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    asked = [0]
    with pytest.raises(Stopped, match="12 of 40 positions"):
        reanalyse(
            sources,
            CONFIG,
            tmp_path / "out",
            lineage={"loop": "test"},
            progress=lambda tick: asked.__setitem__(
                0, tick.done if tick.unit == "positions" else 0
            ),
            stop=lambda: asked[0] >= 12,
        )
    ticks: list[int] = []
    progress = lambda tick: ticks.append(tick.done)  # noqa: E731
    reanalyse(sources, CONFIG, tmp_path / "out", lineage={"loop": "test"}, progress=progress)
    assert ticks == list(range(16, 41, 4))
    assert told(tmp_path / "out") == told(made)


def test_searches_can_be_used_before_all_are_finished(
    made: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    out, done = tmp_path / "out", [0]
    with pytest.raises(ExploreError, match="nothing is finished"):
        reanalyse(sources, CONFIG, out, finished_only=True)

    def count(tick: Tick) -> None:
        done[0] = tick.done if tick.unit == "positions" else 0

    with pytest.raises(Stopped, match="12 of 40 positions"):
        reanalyse(sources, CONFIG, out, progress=count, stop=lambda: done[0] >= 12)
    manifest = reanalyse(sources, CONFIG, out, finished_only=True)
    assert (manifest["positions"]["train"], manifest["selfplay"]["unfinished"]) == (12, 28)
    assert files_differ(out) == []
    searched_rows = {
        (row["game"], row["ply"]): row["visits"] for row in datasets.table(made).to_pylist()
    }
    for row in datasets.table(out).to_pylist():
        assert searched_rows[row["game"], row["ply"]] == row["visits"]


def test_more_positions_than_there_are_is_an_error_unless_all_will_do(
    sources: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        ExploreError, match=r"count is 1,000,000, .* has (\d|,)+ different positions"
    ) as refused:
        reanalyse(sources, searched(count=1_000_000), tmp_path / "out")
    most = int(re.search(r"has ([\d,]+) different", str(refused.value))[1].replace(",", ""))  # type: ignore[index]
    rows = datasets.table(sources[1]).to_pylist()
    keys = {
        row["planes"] for row in rows if row["split"] == "train" and row["ply"] >= draw.FIRST_PLY
    }
    assert most == pytest.approx(len(keys), rel=0.02)  # a position is more than its planes
    assert not (tmp_path / "out" / "manifest.json").exists()
    folder = tmp_path / "drawn"
    folder.mkdir()
    with caplog.at_level("WARNING"):
        drawn = draw.draw(
            [sources[1]], searched(count=1_000_000), folder, silent, never, exact_count=False
        )
    assert drawn["positions"] == most
    assert (
        f"has {most:,} different positions from half-move 6 on, which are all searched"
        in caplog.text
    )


def test_positions_that_were_drawn_by_other_settings_are_not_searched(
    made: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        reanalyse(sources, CONFIG, out, stop=lambda: (out / ".journal" / "drawn.json").exists())
    assert not journalled(out)
    with pytest.raises(ExploreError, match=r"config\.count was 40, not 41"):
        reanalyse(sources, searched(count=41), out)


def test_an_exported_network_searches_and_the_dataset_says_so(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    embedded = REPOSITORY / "datasets" / "embedded"
    config = searched(count=6, width=3, device="onnx")
    reanalyse((embedded, sources[1]), config, tmp_path / "out", workers=2)
    manifest = datasets.manifest(tmp_path / "out")
    assert manifest["selfplay"]["timing"]["devices"] == ["cpu onnxruntime int8"]
    assert manifest["lineage"]["checkpoint"]["onnx_sha256"] == file_hash(embedded / "model.onnx")
    assert files_differ(tmp_path / "out") == []
    reanalyse((embedded, sources[1]), config, tmp_path / "again")
    assert told(tmp_path / "again") == told(tmp_path / "out")
    with pytest.raises(OnnxError, match=r"checkpoint: there is no model\.onnx; `fianchetto export"):
        reanalyse(sources, config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_other_settings_and_bad_input_are_refused_in_one_line(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, positions = sources
    config = searched(count=4)
    reanalyse(sources, config, tmp_path / "out")
    make(tmp_path / "other", seed=9)
    make(tmp_path / "older")
    edit(tmp_path / "older", moves_hash="0" * 16)
    make(tmp_path / "silent", preset("chess-policy-only"))
    only_test = tmp_path / "only_test"
    ingest(
        [str(positions.parent / "games.pgn")],
        only_test,
        IngestConfig(test_share=0.999999, val_share=0.0),
        workers=1,
    )
    refused: tuple[tuple[Path, Path, ExploreConfig, Path, str], ...] = (
        (checkpoint, positions, searched(count=8), tmp_path / "out", "config.count was 4, not 8"),
        (tmp_path / "other", positions, config, tmp_path / "out", "checkpoint.weights_sha256 was"),
        (
            tmp_path / "older",
            positions,
            config,
            tmp_path / "new",
            "planes or labels mean something else",
        ),
        (tmp_path / "silent", positions, config, tmp_path / "new", "has no value head"),
        (checkpoint, checkpoint, config, tmp_path / "new", "has no manifest.json"),
        (checkpoint, only_test, searched(count=4), tmp_path / "new", "no position to search"),
        (checkpoint, positions, config, positions / "inside", "lies in"),
        (checkpoint, positions, config, checkpoint, "not of a generation of self-play"),
    )
    for network, dataset, settings, out, said in refused:
        with pytest.raises(UserError, match=said) as error:
            reanalyse((network, dataset), settings, out)
        assert "\n" not in str(error.value)


def test_the_command_searches_and_says_so(
    sources: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [
        "fianchetto",
        "selfplay",
        "--checkpoint",
        str(sources[0]),
        "--reanalyse",
        str(sources[1]),
    ]
    words += [
        "--out",
        str(tmp_path / "out"),
        "--count",
        "6",
        "--simulations",
        "8",
        "--workers",
        "1",
    ]

    def run(*more: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr()

    status, printed = run("--json")
    assert (status, json.loads(printed.out)["selfplay"]["searched"]) == (0, 6)
    status, printed = run()
    assert "complete already: nothing was done" in printed.out
    status, printed = run("--seed", "2")
    assert (status, printed.err.count("\n")) == (2, 1)
    assert "config.seed was 0, not 2" in printed.err
