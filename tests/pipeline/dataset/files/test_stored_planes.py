"""Both formats of planes: other tools read all columns, and positions give back all planes."""

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
from tests.pipeline.hostile import change_table, set_cell

SHARES = {"test_share": 0.05, "val_share": 0.02}


@pytest.mark.parametrize("plane_format", PLANE_FORMATS)
def test_polars_duckdb_and_pandas_read_every_column(
    made: dict[str, Path], plane_format: Any
) -> None:
    import duckdb
    import pandas as pd

    path = next(made[plane_format].glob("train-*.parquet"))
    truth = pq.read_table(path)
    assert truth.schema.equals(make_schema(plane_format, LAST_MOVES), check_metadata=False)
    frame, panda = pl.read_parquet(path), pd.read_parquet(path)
    ducks = duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table()
    for name in truth.schema.names:
        expected = truth[name].to_pylist()
        nulls = panda[name].isna()
        found = [None if null else it for it, null in zip(panda[name], nulls, strict=True)]
        assert expected == frame[name].to_list() == ducks[name].to_pylist() == found, name


def test_both_formats_give_the_same_batches_and_planes_as_python_chess(
    made: dict[str, Path],
) -> None:
    streams = [Batches([made[name]], batch_size=64, seed=4) for name in PLANE_FORMATS]
    assert [stream.packed for stream in streams] == [False, True]
    for one, other in islice(zip(*(it.from_step(3) for it in streams), strict=True), 50):
        assert equal(one, other)
    full, compact = (
        pq.read_table(next(made[name].glob("train-*.parquet"))).slice(0, 300)
        for name in PLANE_FORMATS
    )
    assert np.array_equal(datasets.read_planes(compact), datasets.read_planes(full))


def test_the_readme_describes_every_column_as_the_table_does() -> None:
    text = (REPOSITORY / "datasets" / "README.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\w+)(, null)? \| (.+?) \|$", text, re.MULTILINE)
    described = {name: (kind, bool(null), meaning) for name, kind, null, meaning in rows}
    kinds = {"visits": "list", "root_value": "float32", "best_value": "float32"}
    for one in ROW_COLUMNS:
        kind = kinds.get(one.name, str(one.type))
        assert described[one.name] == (kind, one.null is not None, COLUMN_MEANINGS[one.name])


def pack_board(board: chess.Board, planes_BP: np.ndarray) -> np.ndarray:
    """Pack the planes of a board."""
    ep_file = 255 if board.ep_square is None else chess.square_file(board.ep_square)
    state = {"castling": encode_castling(board), "ep_file": ep_file}
    return pack_planes(planes_BP, {name: np.array([it], np.uint8) for name, it in state.items()})


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 160))
def test_packing_and_unpacking_a_random_position_changes_nothing(seed: int, plies: int) -> None:
    rng, board = random.Random(seed), chess.Board()
    while board.ply() < plies and (moves := list(board.legal_moves)):
        board.push(rng.choice(moves))
    planes = np.empty((1, PLANES), dtype=np.uint64)
    legal_planes(from_board(board), planes[0])
    words = pack_board(board, planes)
    assert np.array_equal(unpack_planes(words), planes)
    assert np.array_equal(planes[0], encode_planes(board))
    assert to_fen(to_positions(words)[0]).split()[:4] == board.fen(en_passant="fen").split()[:4]


def test_a_label_beyond_the_last_plane_is_illegal_whatever_memory_follows() -> None:
    board = chess.Board()
    packed = np.repeat(pack_board(board, encode_planes(board)[None]), 2, axis=0)
    for label in (64 * MOVE_TYPES, 64 * MOVE_TYPES + 63):
        out = np.full((2, PLANES), 2**64 - 1, dtype=np.uint64)
        labels = np.array([label, label], dtype=np.uint16)
        found = unpack_positions(packed, labels, np.zeros(WORDS, dtype=np.uint64), out)
        assert found == (0, ILLEGAL_LABEL)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (set_cell("piece_bit_3", 2**64 - 1), "has a piece code that does not exist"),
        (set_cell("piece_bit_2", 0), "each side must have one king"),
        (set_cell("label", 4095), "is not a legal move"),
        (set_cell("castling", 16), "castling is 16"),
    ],
)
def test_an_invalid_compact_row_raises_an_error_with_its_file(
    made: dict[str, Path], tmp_path: Path, spoil: Any, words: str
) -> None:
    shutil.copytree(made["compact"], tmp_path / "x")
    change_table("x/train-00000-0.parquet", spoil)(tmp_path)
    stream = Batches([tmp_path / "x"], batch_size=32)
    for read in (lambda: islice(stream.from_step(0), 200), stream.read_rows):
        with pytest.raises(DatasetError, match=rf"train-00000-0\.parquet .*{words}"):
            list(read())


def compare_formats(dump: Path, folder: Path, workers: int = 1) -> int:
    """Ingest a dump in both formats and compare all rows; return their number."""
    for name in PLANE_FORMATS:
        config = IngestConfig(**SHARES, planes=name)
        manifest = ingest([str(dump)], folder / name, config, workers=workers)
    for split in (split for split in SPLITS if manifest["positions"][split]):
        both = (
            Dataset.open(folder / name).read_rows(split, HUMAN_COLUMNS) for name in PLANE_FORMATS
        )
        for one, other in zip(*both, strict=True):
            assert equal(one, other)
    return int(manifest["positions"]["total"])


ROBUSTNESS_FILES = (
    *("lichess_from_position_395.pgn", "python-chess"),
    pytest.param("pgn-extract", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", ROBUSTNESS_FILES)
def test_both_formats_of_hostile_files_have_the_same_rows(name: str, tmp_path: Path) -> None:
    place = shared_data(f"robustness/{name}")
    rows = 0
    for number, path in enumerate([place] if place.is_file() else sorted(place.rglob("*.pgn"))):
        try:
            rows += compare_formats(path, tmp_path / str(number))
        except DatasetError:  # the file has no games that can be used
            continue
    assert rows


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["lichess_rapid_eval_train.pgn.zst", "otb_345k.pgn.zst"])
def test_both_formats_of_real_dumps_have_the_same_rows(name: str, tmp_path: Path) -> None:
    dump = shared_data(f"pgn/{name}")
    assert compare_formats(dump, tmp_path, workers=2) > 4_000_000
    config = IngestConfig(**SHARES, planes="compact", history=1)
    ingest([str(dump)], tmp_path / "short", config, workers=2)
    size = read_manifest(tmp_path / "short")["bytes_per_position"]
    assert size <= 32, "with one earlier half-move; eight take eleven bytes more"
