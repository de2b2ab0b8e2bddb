"""Both forms of planes: every reader opens all columns; positions give back all 77 planes."""

import random
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.board.movegen import MOVE_TYPES, legal_planes
from engine.board.position import WORDS, from_board, to_fen
from engine.encoding.planes import PLANES
from engine.encoding.views import LAST_MOVES
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import (
    COLUMN_MEANINGS,
    PLANE_FORMATS,
    ROW_COLUMNS,
    SPLITS,
    make_schema,
)
from pipeline.dataset.files.kernels import ILLEGAL_LABEL, unpack_positions
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.files.stored_planes import pack_planes, to_positions, unpack_planes
from pipeline.errors import DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import encode_castling, encode_planes
from tests.conftest import REPOSITORY, shared_data
from tests.pipeline import datasets
from tests.pipeline.dataset.test_batches import equal
from tests.pipeline.hostile import column, stored

Forms = dict[str, Path]


@pytest.mark.parametrize("form", PLANE_FORMATS)
def test_polars_duckdb_and_pandas_read_every_column(made: Forms, form: str) -> None:
    import duckdb
    import pandas as pd

    path = next(made[form].glob("train-*.parquet"))
    truth = pq.read_table(path)
    assert truth.schema.equals(make_schema(form, LAST_MOVES), check_metadata=False)  # type: ignore[arg-type]
    frame, panda = pl.read_parquet(path), pd.read_parquet(path)
    ducks = duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table()
    for name in truth.schema.names:
        expected = truth[name].to_pylist()
        nulls = panda[name].isna()
        found = [None if null else it for it, null in zip(panda[name], nulls, strict=True)]
        assert expected == frame[name].to_list() == ducks[name].to_pylist() == found, name


def test_both_forms_give_the_same_batches_and_python_chess_the_same_planes(made: Forms) -> None:
    streams = [Batches([made[form]], batch_size=64, seed=4) for form in PLANE_FORMATS]
    assert [stream.packed for stream in streams] == [False, True]
    for one, other in islice(zip(*(it.from_step(3) for it in streams), strict=True), 50):
        assert equal(one, other)
    compact = pq.read_table(next(made["compact"].glob("train-*.parquet"))).slice(0, 300)
    full = pq.read_table(next(made["all"].glob("train-*.parquet"))).slice(0, 300)
    assert np.array_equal(datasets.planes_of(compact), datasets.planes_of(full))


def test_a_compact_row_is_smaller_and_the_manifest_names_the_form(made: Forms) -> None:
    """Of a dataset this small the footers are most; the columns alone count."""
    sizes = {}
    for form in PLANE_FORMATS:
        group = pq.read_metadata(made[form] / "train-00000-0.parquet").row_group(0)
        chunks = (group.column(at).total_compressed_size for at in range(group.num_columns))
        sizes[form] = sum(chunks) / group.num_rows
        manifest = read_manifest(made[form])
        assert (manifest["planes"], manifest["format_version"]) == (form, 3)
    assert sizes["compact"] < 0.75 * sizes["all"]


def test_the_readme_describes_every_column_as_the_table_does() -> None:
    text = (REPOSITORY / "datasets" / "README.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\w+)(, null)? \| (.+?) \|$", text, re.MULTILINE)
    described = {name: (kind, bool(null), meaning) for name, kind, null, meaning in rows}
    kinds = {"visits": "list", "root_value": "float32", "best_value": "float32"}
    for one in ROW_COLUMNS:
        kind = kinds.get(one.name, str(one.type))
        assert described[one.name] == (kind, one.null is not None, COLUMN_MEANINGS[one.name])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 160))
def test_a_position_of_random_play_comes_back_bit_for_bit(seed: int, plies: int) -> None:
    chance, board = random.Random(seed), chess.Board()
    for _ in range(plies):
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(chance.choice(moves))
    position, planes = from_board(board), np.empty((1, PLANES), dtype=np.uint64)
    legal_planes(position, planes[0])
    ep_file = 255 if board.ep_square is None else chess.square_file(board.ep_square)
    columns = {
        "castling": np.array([encode_castling(board)], np.uint8),
        "ep_file": np.array([ep_file], np.uint8),
    }
    words = pack_planes(planes, columns)
    assert np.array_equal(unpack_planes(words), planes)
    assert np.array_equal(planes[0], encode_planes(board))
    assert to_fen(to_positions(words)[0]).split()[:4] == board.fen(en_passant="fen").split()[:4]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (column("piece_bit_3", 2**64 - 1), "has a piece code that does not exist"),
        (column("piece_bit_2", 0), "each side must have one king"),
        (column("label", 4095), "is not a legal move"),
        (column("castling", 16), "castling is 16"),
    ],
)
def test_a_compact_row_that_none_is_names_its_file(
    made: Forms, tmp_path: Path, spoil: Any, said: str
) -> None:
    shutil.copytree(made["compact"], tmp_path / "x")
    stored("x/train-00000-0.parquet", spoil)(tmp_path)
    stream = Batches([tmp_path / "x"], batch_size=32)
    for read in (lambda: islice(stream.from_step(0), 200), stream.read_rows):
        with pytest.raises(DatasetError, match=rf"train-00000-0\.parquet .*{said}"):
            list(read())


def same(dump: str, folder: Path, workers: int = 1) -> int:
    """Ingest a dump in both forms, whose rows are the same, planes included. Give their number."""
    config = {"test_share": 0.05, "val_share": 0.02}
    whole = ingest([dump], folder / "all", IngestConfig(**config), workers=workers)
    ingest([dump], folder / "compact", IngestConfig(**config, planes="compact"), workers=workers)
    for split in (split for split in SPLITS if whole["positions"][split]):
        both = (
            Dataset.open(folder / form).read_rows(split, HUMAN_COLUMNS) for form in PLANE_FORMATS
        )
        for one, other in zip(*both, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in HUMAN_COLUMNS)
    return int(whole["positions"]["total"])


ROBUST = (
    *("lichess_from_position_395.pgn", "python-chess"),
    pytest.param("pgn-extract", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", ROBUST)
def test_every_row_of_hostile_files_comes_back(name: str, tmp_path: Path) -> None:
    place = shared_data(f"robustness/{name}")
    found = 0
    for number, path in enumerate([place] if place.is_file() else sorted(place.rglob("*.pgn"))):
        try:
            found += same(str(path), tmp_path / str(number))
        except DatasetError:  # no game that can be used, or no file of games
            continue
    assert found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["lichess_rapid_eval_train.pgn.zst", "otb_345k.pgn.zst"])
def test_every_row_of_real_dumps_comes_back(name: str, tmp_path: Path) -> None:
    assert same(str(shared_data(f"pgn/{name}")), tmp_path, workers=2) > 4_000_000
    config = IngestConfig(test_share=0.05, val_share=0.02, planes="compact", history=1)
    ingest([str(shared_data(f"pgn/{name}"))], tmp_path / "short", config, workers=2)
    assert read_manifest(tmp_path / "short")["bytes_per_position"] <= 32, (
        "with one half-move; eight take eleven bytes more"
    )


def test_a_label_beyond_the_policy_is_illegal_whatever_lies_in_memory_behind_the_row() -> None:
    board = chess.Board()
    columns = {
        "castling": np.array([encode_castling(board)], np.uint8),
        "ep_file": np.array([255], np.uint8),
    }
    packed = np.repeat(pack_planes(encode_planes(board)[None], columns), 2, axis=0)
    for label in (64 * MOVE_TYPES, 64 * MOVE_TYPES + 63):
        out = np.full((2, PLANES), 2**64 - 1, dtype=np.uint64)
        labels = np.array([label, label], dtype=np.uint16)
        found = unpack_positions(packed, labels, np.zeros(WORDS, dtype=np.uint64), out)
        assert found == (0, ILLEGAL_LABEL)
