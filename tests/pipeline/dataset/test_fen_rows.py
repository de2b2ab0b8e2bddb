"""Export rows of both plane formats as FEN and UCI moves."""

import csv
from pathlib import Path

import chess
import chess.pgn
import pyarrow.parquet as pq
import pytest

from engine.progress import Tick
from pipeline.dataset.fen_rows import fen_rows, write_fen_rows
from pipeline.dataset.files.columns import PLANE_FORMATS
from pipeline.dataset.files.manifest import read_manifest
from pipeline.errors import ConfigError, DatasetError


@pytest.mark.parametrize("plane_format", PLANE_FORMATS)
def test_rows_are_the_positions_and_moves_of_the_games(
    made: dict[str, Path], plane_format: str
) -> None:
    games = []
    with made["dump"].open() as file:
        while (game := chess.pgn.read_game(file)) is not None:
            boards = [node.parent.board().fen(en_passant="fen") for node in game.mainline()]
            games.append([*zip(boards, map(str, game.mainline_moves()), strict=True)])
    rows = [row for table in fen_rows(made[plane_format]) for row in table.to_pylist()]
    assert len(rows) == sum(map(len, games))
    assert all((row["fen"], row["uci"]) == games[row["game"]][row["ply"]] for row in rows)
    assert {row["split"] for row in rows} == {"train", "val", "test"}


def test_rows_are_written_as_csv_and_parquet(made: dict[str, Path], tmp_path: Path) -> None:
    compact, counts = made["compact"], read_manifest(made["compact"])["positions"]
    assert write_fen_rows(compact, tmp_path / "rows.parquet") == counts["total"]
    expected = pq.read_table(tmp_path / "rows.parquet").to_pylist()[:77]
    for count, total in ((77, 77), (10**6, counts["train"]), (0, counts["train"])):
        ticks: list[Tick] = []
        out = tmp_path / f"{count}.csv"
        done = write_fen_rows(compact, out, split="train", count=count, progress=ticks.append)
        assert (done, ticks[-1].done, {tick.total for tick in ticks}) == (total, total, {total})
    with (tmp_path / "77.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["fen"], row["uci"]) for row in rows] == [
        (row["fen"], row["uci"]) for row in expected
    ]
    for split, words in (("latest", "of training sets only"), ("none", "unknown split 'none'")):
        with pytest.raises(DatasetError, match=words):
            write_fen_rows(compact, tmp_path / "empty.csv", split=split)
        assert not (tmp_path / "empty.csv").exists()
    for name, words in (("77.csv", "must name a new file"), ("some.txt", r"\.csv or \.parquet")):
        with pytest.raises(ConfigError, match=words):
            write_fen_rows(compact, tmp_path / name)
