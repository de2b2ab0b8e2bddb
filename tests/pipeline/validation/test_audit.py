"""An audit counts what python-chess and a Counter count, and its pages show the counts."""

import json
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

import chess
import chess.pgn
import numpy as np
import polars as pl
import pytest

from engine.encoding.planes import label_from_move
from pipeline.dataset import scratch
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.join import JoinConfig, join
from pipeline.dataset.position_keys import find_keys, hash_positions
from pipeline.dataset.strata import TIME_CLASSES, classify_time_controls
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.audit import (
    AUDIT_BINS,
    audit,
    format_audit_markdown,
    format_audit_text,
    write_audit,
)
from tests.pipeline import datasets

CONFIG = IngestConfig(chunk_mib=1, test_share=0.3, val_share=0.2)
CONTROLS = ("60+0", "180+2", "600+0", "1800+20", "-")


class Replayed(NamedTuple):
    """A row, replayed from the dump by python-chess."""

    split: str
    position: Hashable
    label: int
    pieces: int


def game(number: int) -> str:
    """Return a short random game, so that many share positions; every third has no ratings."""
    text = datasets.random_game(number, 12).replace("600+5", CONTROLS[number % 5])
    return text if number % 3 else text.replace("Elo", "Rank")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use several temporary files, and write them in several steps."""
    monkeypatch.setattr(scratch, "PART_ROWS", 400)
    monkeypatch.setattr(scratch, "BUFFER_ROWS", 100)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make the datasets `a` and `b`, with their dumps beside them, which share some games."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "dumps").mkdir()
    games = [game(number) for number in range(120)]
    for name, texts in (("a", games[:80] + games[:5]), ("b", games[80:] + games[:10])):
        (folder / "dumps" / f"{name}.pgn").write_text("".join(texts))
        ingest([str(folder / "dumps" / f"{name}.pgn")], folder / name, CONFIG, workers=1)
    return {name: folder / name for name in ("a", "b")}


def read_used_games(directory: Path) -> list[tuple[str, chess.pgn.Game]]:
    """Read the used games of a dataset from its dump, with their splits."""
    found = []
    with (directory.parent / "dumps" / f"{directory.name}.pgn").open() as file:
        for row in datasets.games(directory):
            read = chess.pgn.read_game(file)
            assert read is not None
            if row["split"]:
                found.append((row["split"], read))
    return found


def replay(directory: Path) -> list[Replayed]:
    """Replay a dataset's dump with python-chess."""
    rows = []
    for split, read in read_used_games(directory):
        board = read.board()
        for move in read.mainline_moves():
            position, pieces = board._transposition_key(), len(board.piece_map())
            rows.append(Replayed(split, position, label_from_move(move, board.turn), pieces))
            board.push(move)
    return rows


def test_an_unwritable_temporary_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="temporary files cannot be written"):
        scratch.RowPartitions(tmp_path / "nowhere", 1).add(pl.DataFrame({"key": [1]}))


def test_duplicates_and_overlap_equal_those_of_python_chess(made: dict[str, Path]) -> None:
    rows = replay(made["a"]) + replay(made["b"])
    result = audit(list(made.values()))
    positions = Counter(row.position for row in rows)
    assert result["copies"]["positions"] == len(rows)
    assert result["copies"]["distinct"] == len(positions)
    played: dict[Hashable, Counter[int]] = {}
    for row in rows:
        if positions[row.position] > 1:
            played.setdefault(row.position, Counter())[row.label] += 1
    most_played = sum(max(labels.values()) for labels in played.values())
    total = sum(labels.total() for labels in played.values())
    share = result["copies"]["most_played_move_share_there"]
    assert share == pytest.approx(most_played / total, abs=1e-6)
    train = {row.position for row in rows if row.split == "train"}
    train_moves = {(row.position, row.label) for row in rows if row.split == "train"}
    for counts in result["in_train"]:
        split = [row for row in rows if row.split == counts["split"]]
        assert counts["positions"] == len(split)
        assert counts["in_train"] == sum(row.position in train for row in split) > 0
        same_move = sum((row.position, row.label) in train_moves for row in split)
        assert counts["with_the_same_move"] == same_move
    assert [counts["split"] for counts in result["in_train"]] == ["val", "test"]
    texts = [
        read.board().fen() + str(read.mainline_moves())
        for path in made.values()
        for _, read in read_used_games(path)
    ]
    assert result["games"]["games"] == len(texts)
    assert result["games"]["distinct"] == len(set(texts))
    assert result["games"]["test_games_in_train"] == 0  # the split depends on the moves only


def test_held_out_rows_of_a_training_set_are_counted(made: dict[str, Path], tmp_path: Path) -> None:
    join(list(made.values()), tmp_path / "set", JoinConfig(hold_out="b"))
    result = audit([tmp_path / "set"])
    train = {row.position for row in replay(made["a"]) if row.split == "train"}
    held_out = replay(made["b"])
    (latest,) = [counts for counts in result["in_train"] if counts["split"] == "latest"]
    assert latest["positions"] == len(held_out)
    assert latest["in_train"] == sum(row.position in train for row in held_out)
    assert result["games"]["latest_games_in_train"] > 0


def test_distributions_count_every_row_once(made: dict[str, Path]) -> None:
    result = audit([made["a"]])
    table = datasets.table(made["a"]).to_pylist()
    for name in AUDIT_BINS:
        rows = result["distributions"][name]
        assert sum(row["positions"] for row in rows) == len(table)
        assert sum(row["test"] for row in rows) == pytest.approx(1, abs=1e-4)
    found = {
        name: {row["bin"]: row["positions"] for row in rows}
        for name, rows in result["distributions"].items()
    }
    assert found["rating"]["unknown"] == sum(row["elo"] is None for row in table) > 0
    assert found["rating"]["1400-1599"] == sum(1400 <= (row["elo"] or 0) < 1600 for row in table)
    assert found["ply"]["10-19"] == sum(10 <= row["ply"] < 20 for row in table)
    assert found["result"]["draw"] == sum(row["result"] == 0 for row in table)
    assert found["time_control"]["unknown"] == sum(row["base"] is None for row in table)
    assert found["time_control"]["blitz"] == sum(row["base"] == 180 for row in table)
    assert found["pieces"]["28 and on"] == sum(row.pieces >= 28 for row in replay(made["a"]))


def test_time_controls_have_lichess_class_names() -> None:
    names = {
        "ultraBullet": [(15, 0)],
        "bullet": [(30, 0), (60, 1), (120, 1)],
        "blitz": [(180, 0), (300, 3)],
        "rapid": [(300, 5), (600, 0), (900, 10)],
        "classical": [(1500, 0), (1800, 20)],
        "unknown": [(65535, 255)],
    }
    for name, controls in names.items():
        base, increment = np.array(controls, np.uint16).T
        classes = classify_time_controls(base, increment.astype(np.uint8))
        assert {TIME_CLASSES[it] for it in classes} == {name}


def test_positions_are_found_in_train_exactly(made: dict[str, Path]) -> None:
    rows = datasets.table(made["a"]).to_pylist()
    tests = [row for row in rows if row["split"] == "test"]
    planes = np.stack([np.frombuffer(row["planes"], "<u8") for row in tests])
    keys = hash_positions(planes, np.array([row["castling"] for row in tests]))
    train = {(row["planes"], row["castling"]) for row in rows if row["split"] == "train"}
    expected = [(row["planes"], row["castling"]) in train for row in tests]
    shards = Dataset.open(made["a"]).list_shards("train")
    assert find_keys(keys, shards).tolist() == expected
    assert 0 < sum(expected) < len(expected)
    assert find_keys(keys[:0], shards).tolist() == []


def test_every_bit_of_a_position_changes_its_key() -> None:
    planes = np.random.Generator(np.random.PCG64(0)).integers(0, 2**64, (1, 77), dtype=np.uint64)
    changed = np.repeat(planes, 77 * 64 + 1, axis=0)
    for bit in range(77 * 64):
        changed[bit, bit // 64] ^= np.uint64(1 << bit % 64)
    keys = hash_positions(changed, np.zeros(len(changed), np.uint8))
    assert len(set(keys.tolist())) == len(changed)
    assert len({int(hash_positions(planes, np.array([rights]))[0]) for rights in range(16)}) == 16
    moved = np.roll(planes, 1, axis=1)  # the same words on other planes
    assert hash_positions(moved, np.zeros(1, np.uint8)) != keys[-1]


def test_pages_show_the_counts(made: dict[str, Path], tmp_path: Path) -> None:
    result = audit([made["a"]])
    write_audit(result, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "audit.json").read_text()) == result
    summary = f"{result['copies']['copies']:,} of {result['copies']['positions']:,} positions"
    assert summary in format_audit_text(result)
    assert (tmp_path / "out" / "AUDIT.md").read_text() == format_audit_markdown(result)
    assert "\n## By rating\n" in format_audit_markdown(result)
