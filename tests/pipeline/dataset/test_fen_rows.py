"""Rows as FEN and UCI, from both forms of planes."""

import csv
import json
import sys
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pyarrow.parquet as pq
import pytest

from engine.progress import Tick
from pipeline.dataset.batches import Batches
from pipeline.dataset.fen_rows import fen_rows, write_fen_rows
from pipeline.dataset.files.columns import FORMS
from pipeline.dataset.files.shards import read_manifest
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.audit import audit
from tests.pipeline import datasets

CONFIG = {"chunk_mib": 1, "test_share": 0.2, "val_share": 0.1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make one dataset in each form."""
    folder = tmp_path_factory.mktemp("converted")
    dump = datasets.dump(folder / "games.pgn", 40)
    found = {"dump": dump}
    for form in FORMS:
        ingest([str(dump)], folder / form, IngestConfig(**CONFIG, planes=form), workers=1)
        found[form] = folder / form
    return found


def test_members_of_several_forms_make_one_training_set(
    made: dict[str, Path], tmp_path: Path
) -> None:
    paths = [made[form] for form in FORMS]
    page = join(paths, tmp_path / "set", JoinConfig(hold_out="none"))
    assert page["positions"]["train"] == 2 * read_manifest(made["all"])["positions"]["train"]
    rows = Batches([tmp_path / "set"], batch_size=40, seed=1)
    assert not rows.packed
    plies = np.concatenate([batch["ply"] for batch in rows.read_rows()])
    assert len(plies) == page["positions"]["train"]
    assert len(next(rows.from_step(2))["planes"]) == 40
    found = audit([tmp_path / "set"])
    assert found["copies"]["distinct"] * 2 <= found["copies"]["positions"]


def test_progress_counts_the_rows_of_the_split_that_is_written(
    made: dict[str, Path], tmp_path: Path
) -> None:
    rows = read_manifest(made["all"])["positions"]["test"]
    for count, total in ((0, rows), (5, 5), (10**6, rows)):
        ticks: list[Tick] = []
        out = tmp_path / f"{count}.csv"
        assert (
            write_fen_rows(made["all"], out, split="test", count=count, progress=ticks.append)
            == total
        )
        assert (ticks[-1].done, {tick.total for tick in ticks}) == (total, {total})


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_the_positions_and_moves_of_the_games(made: dict[str, Path], form: str) -> None:
    games = []
    with made["dump"].open() as file:
        while (game := chess.pgn.read_game(file)) is not None:
            games.append(
                [
                    (node.parent.board().fen(en_passant="fen"), node.move.uci())
                    for node in game.mainline()
                ]
            )
    found = [row for table in fen_rows(made[form]) for row in table.to_pylist()]
    assert len(found) == sum(map(len, games))
    for row in found:
        assert (row["fen"], row["uci"]) == games[row["game"]][row["ply"]]
    assert {row["split"] for row in found} == {"train", "val", "test"}


def test_rows_are_written_as_csv_and_parquet(made: dict[str, Path], tmp_path: Path) -> None:
    total = read_manifest(made["compact"])["positions"]["total"]
    assert write_fen_rows(made["compact"], tmp_path / "rows.parquet") == total
    whole = pq.read_table(tmp_path / "rows.parquet")
    assert write_fen_rows(made["compact"], tmp_path / "some.csv", split="train", count=77) == 77
    with (tmp_path / "some.csv").open() as file:
        some = list(csv.DictReader(file))
    assert [(row["fen"], row["uci"]) for row in some] == list(
        zip(whole["fen"].to_pylist()[:77], whole["uci"].to_pylist()[:77], strict=True)
    )
    with pytest.raises(ConfigError, match="must be a new file"):
        write_fen_rows(made["compact"], tmp_path / "some.csv")
    with pytest.raises(ConfigError, match=r"\.csv or \.parquet"):
        write_fen_rows(made["compact"], tmp_path / "some.txt")


def test_the_command(
    made: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipeline.cli.main import main

    def run(*words: str) -> dict[str, object]:
        monkeypatch.setattr(sys, "argv", ["fianchetto", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)

    rows = run("rows", str(made["compact"]), "--count", "3")["rows"]
    assert len(rows) == 3  # type: ignore[arg-type]
    assert run("rows", str(made["all"]), "--count", "3")["rows"] == rows
    said = run("rows", str(made["all"]), "--out", str(tmp_path / "rows.csv"))
    assert said["rows"] == read_manifest(made["all"])["positions"]["total"]
