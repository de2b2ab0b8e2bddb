"""Ingest evaluated positions: rows as of their games, samples, mixtures, hostile rows and files."""

import io
import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from engine.encoding.views import NO_LABEL
from model.training.config import TrainConfig
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.mixture import Shares
from pipeline.dataset.position_keys import hash_positions
from pipeline.dumps.formats import evaluations
from pipeline.errors import ConfigError, DamagedError, DumpError, IngestError
from pipeline.evaluation.report import report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.training.train import train_on_datasets
from pipeline.validation.audit import audit
from pipeline.validation.verify import verify_dataset
from tests.pipeline import datasets, evaluated
from tests.pipeline.loopback import serving

COMPACT = IngestConfig(planes="compact", chunk_mib=1)
COMPARED_COLUMNS = ("planes", "castling", "label", "promotion", "eval")
START = chess.STARTING_FEN


def write_games(path: Path, count: int) -> Path:
    """Write random games with evaluations, which prefer castling, promotions and en passant."""
    rng, texts = random.Random(5), []
    for number in range(count):
        board, moves = chess.Board(), []
        for ply in range(160):
            legal = list(board.legal_moves)
            rare = [
                m for m in legal if board.is_castling(m) or m.promotion or board.is_en_passant(m)
            ]
            move = rng.choice(rare or legal)
            san = board.san(move)
            board.push(move)
            value = rng.choice((f"{rng.randint(-30, 30) / 10}", f"#{rng.choice((-4, 4))}"))
            moves.append(f"{'' if ply % 2 else f'{ply // 2 + 1}. '}{san} {{ [%eval {value}] }}")
            if board.is_game_over():
                break
        result, movetext = board.result().replace("*", "1-0"), " ".join(moves)
        texts.append(f'[Event "Rated"]\n[Site "{number}"]\n[Result "{result}"]\n\n{movetext}\n\n')
    path.write_text("".join(texts))
    return path


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of games with evaluations."""
    folder = tmp_path_factory.mktemp("evaluated")
    ingest([str(write_games(folder / "games.pgn", 30))], folder / "games", COMPACT, workers=1)
    return folder / "games"


Positions = list[tuple[chess.Board, chess.Move, int]]


@pytest.fixture(scope="module")
def positions(games: Path) -> Positions:
    """Return the boards, moves and evaluations of the dataset of games."""
    rows = [
        row for rows in evaluated.read_evaluated_rows(games) for row in evaluated.list_boards(rows)
    ]
    assert len(rows) > 2_000
    assert sum(board.is_castling(move) for board, move, _ in rows) > 10
    assert sum(board.is_en_passant(move) for board, move, _ in rows) > 3
    assert {move.promotion for _, move, _ in rows} == {None, 2, 3, 4, 5}
    return rows


@pytest.fixture(scope="module")
def fishnet(positions: Positions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the positions as a table like Lichess/fishnet-evals, in row groups of 2,048."""
    path = tmp_path_factory.mktemp("fishnet") / "fishnet.parquet"
    evaluated.write_parquet(path, (evaluated.fishnet_row(*row) for row in positions), group=2048)
    return path


def assert_rows_of_games(out: Path, games: Path, kept: list[int] | None = None) -> dict[str, Any]:
    """Assert that rows of evaluated positions are those of the games that they come from.

    `kept` are the indices of the games' rows to compare, None for all. Returns the rows.
    """
    parts = list(evaluated.read_evaluated_rows(games))
    expected = {name: np.concatenate([part[name] for part in parts]) for name in COMPARED_COLUMNS}
    found = evaluated.read_rows(out)
    for name in COMPARED_COLUMNS:
        np.testing.assert_array_equal(
            found[name], expected[name] if kept is None else expected[name][kept], err_msg=name
        )
    unknown_columns = ("plies", "elo", "opponent_elo", "result", "repetition")
    assert not any(found[name].any() for name in unknown_columns)
    assert (found["clock"] == 65535).all()
    return found


def test_fishnet_evaluations_give_the_rows_of_their_games(
    fishnet: Path, games: Path, tmp_path: Path
) -> None:
    manifest = ingest([str(fishnet)], tmp_path / "out", COMPACT, workers=1)
    rows = assert_rows_of_games(tmp_path / "out", games)
    plies = np.concatenate([part["ply"] for part in evaluated.read_evaluated_rows(games)])
    np.testing.assert_array_equal(rows["ply"], plies)
    assert manifest["sources"][0]["input"] == "Lichess fishnet evaluations (Parquet)"
    assert "moves_by" not in manifest


@pytest.mark.parametrize("suffix", ["parquet", "jsonl.zst"])
def test_position_evaluations_give_the_rows_of_their_games(
    suffix: str, positions: Positions, games: Path, tmp_path: Path
) -> None:
    # a position that follows itself is one position with several analyses
    fens = [board.fen(en_passant="legal").split()[:4] for board, *_ in positions]
    kept = [at for at in range(len(fens)) if not at or fens[at] != fens[at - 1]]
    path = tmp_path / f"positions.{suffix}"
    entries = (evaluated.json_entry(*positions[at], at) for at in kept)
    if suffix == "parquet":
        lines = (line for entry in entries for line in evaluated.list_lines(entry))
        evaluated.write_parquet(path, lines, evaluated.LINE_TYPES)
    else:
        evaluated.write_json_lines(path, entries)
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert_rows_of_games(tmp_path / "out", games, kept)
    assert manifest["moves_by"] == "engine"


def test_rows_are_verified_with_python_chess(fishnet: Path, tmp_path: Path) -> None:
    ingest([str(fishnet)], tmp_path / "out", COMPACT, workers=1)
    result = verify_dataset(tmp_path / "out", [str(fishnet)], rows=64)
    assert not any(result[name] for name in ("files", "splits", "source", "rows", "damage"))
    assert result["compared"] >= 50


def test_a_truncated_table_is_refused_and_a_damaged_one_read_up_to_the_damage(
    fishnet: Path, tmp_path: Path
) -> None:
    whole = fishnet.read_bytes()
    short = tmp_path / "short.parquet"
    short.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DumpError, match=r"short\.parquet looks like Parquet but cannot be read"):
        ingest([str(short)], tmp_path / "short", COMPACT, workers=1)
    with pq.ParquetFile(fishnet) as file:
        last = file.metadata.row_group(file.metadata.num_row_groups - 1)
        place, before = last.column(0).data_page_offset, file.metadata.num_rows - last.num_rows
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(whole[:place] + bytes(300) + whole[place + 300 :])
    with pytest.raises(DamagedError, match=r"broken\.parquet"):
        ingest([str(broken)], tmp_path / "broken", COMPACT, workers=1)
    assert 0 < datasets.manifest(tmp_path / "broken")["positions"]["total"] <= before


def test_a_folder_a_url_and_the_hub_give_the_rows_of_the_file(
    fishnet: Path, tmp_path: Path
) -> None:
    expected = datasets.content(ingest_compact([str(fishnet)], tmp_path / "file"), "train-*")
    folder = tmp_path / "folder" / "spark.parquet"
    folder.mkdir(parents=True)
    (folder / "fishnet.parquet").write_bytes(fishnet.read_bytes())
    found = ingest_compact([str(folder.parent)], tmp_path / "of-folder")
    assert datasets.content(found, "train-*") == expected
    with serving() as server:
        server.publish("fishnet.parquet", fishnet.read_bytes())
        address = f"{server.url}/standard/fishnet.parquet"
        assert (
            datasets.content(ingest_compact([address], tmp_path / "of-web"), "train-*") == expected
        )
        server.files["/standard/fishnet.parquet"].etag = ""
        with pytest.raises(IngestError, match="cannot be read in parts"):
            ingest([address], tmp_path / "no-etag", COMPACT, workers=1)

    class StandInHub(MemoryFileSystem):
        protocol = "hf"
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs = [""]  # noqa: RUF012

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("hf://"))

    fsspec.register_implementation("hf", StandInHub, clobber=True)
    StandInHub().pipe("/datasets/Lichess/fishnet-evals/data/fishnet.parquet", fishnet.read_bytes())
    out = ingest_compact(["hf://datasets/Lichess/fishnet-evals/data"], tmp_path / "of-hub")
    assert datasets.content(out, "train-*") == expected


def ingest_compact(sources: list[str], out: Path) -> Path:
    ingest(sources, out, COMPACT, workers=1)
    return out


def test_a_sample_reads_a_share_of_the_row_groups(positions: Positions, tmp_path: Path) -> None:
    path, shares = tmp_path / "many.parquet", (0.04, 0.3)
    table = pa.Table.from_pylist([evaluated.fishnet_row(*row) for row in positions[:2_000]])
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(100):
            writer.write_table(table)
    few, many = (
        {number for number in range(100) if evaluations.Sample(share).includes(path.name, number)}
        for share in shares
    )
    assert 0 < len(few) < 10 < len(many) < 50
    assert few < many
    config = IngestConfig(planes="compact", sample=shares[0])
    manifest = ingest([str(path)], tmp_path / "out", config, workers=1)
    assert manifest["games"]["read"] == 2_000 * len(few)
    opened, sample = CountingFile(path.read_bytes()), evaluations.Sample(shares[0])
    source = pa.PythonFile(opened, mode="r")
    list(
        evaluations.read_parquet(
            path.name, source, evaluations.FISHNET_TABLE, sample, lambda _: None
        )
    )
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    # columns with a dictionary are read twice
    limit = 2 * len(few) / 100 * path.stat().st_size
    assert opened.bytes_read < limit + 3 * max(footer, 1 << 16)


class CountingFile(io.BytesIO):
    """A file that counts the bytes read from it."""

    bytes_read = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        return data


def test_a_sample_leaves_out_positions_that_continue_in_other_row_groups(tmp_path: Path) -> None:
    """The analyses of the positions 1 and 3 are in two row groups each, of which one is read."""
    name, sampled = "a.parquet", [False, True, False]
    fens = [f"{START[:-1]}{position}" for position in (1, 1, 2, 2, 3, 3)]
    depths = [9, 20, 9, 20, 9, 20]
    table = pa.table(
        {
            "fen": fens,
            "line": ["e2e4"] * 6,
            "depth": depths,
            "knodes": [1] * 6,
            "cp": depths,
            "mate": pa.nulls(6, pa.int64()),
        }
    )
    with pq.ParquetWriter(tmp_path / name, table.schema) as writer:
        for first, length in ((0, 1), (1, 4), (5, 1)):
            writer.write_table(table.slice(first, length))
    sample = next(
        sample
        for sample in (evaluations.Sample(0.5, seed) for seed in range(100))
        if [sample.includes(name, group) for group in range(3)] == sampled
    )
    kind = evaluations.POSITION_TABLE
    for chosen, expected in ((sample, {2: 20}), (evaluations.WHOLE_INPUT, {1: 20, 2: 20, 3: 20})):
        source = pa.OSFile(str(tmp_path / name))
        lines = evaluations.read_parquet(name, source, kind, chosen, lambda _: None)
        rows = [line.split("\t") for line in b"".join(lines).decode().splitlines()]
        assert {int(fen.split()[-1]): int(score) for fen, score, *_ in rows} == expected


def test_no_position_is_in_two_splits_and_audit_finds_positions_shared_with_games(
    fishnet: Path, games: Path, tmp_path: Path
) -> None:
    config = IngestConfig(planes="compact", test_share=0.3, val_share=0.2)
    again = tmp_path / "again.parquet"
    again.write_bytes(fishnet.read_bytes())
    ingest([str(fishnet), str(again)], tmp_path / "out", config, workers=1)
    keys = []
    for split in ("train", "val", "test"):
        parts = Dataset.open(tmp_path / "out").read_rows(split, ("planes", "castling"))
        found = [hash_positions(part["planes"], part["castling"]) for part in parts]
        keys.append(set(np.concatenate(found).tolist()))
    assert all(keys)
    assert len(set.union(*keys)) == sum(map(len, keys))
    shared = {row["split"]: row["in_train"] for row in audit([tmp_path / "out"])["in_train"]}
    assert shared == {"val": 0, "test": 0}
    shared_with_games = {
        row["split"]: row["in_train_share"] for row in audit([tmp_path / "out", games])["in_train"]
    }
    assert shared_with_games["test"] > 0.8


def make_analysis(line: str) -> dict[str, Any]:
    return {"pvs": [{"cp": 20, "line": line}], "knodes": 3, "depth": 20}


def test_human_moves_and_engine_moves_are_not_mixed(fishnet: Path, tmp_path: Path) -> None:
    path = tmp_path / "positions.jsonl.zst"
    evaluated.write_json_lines(path, iter([{"fen": START, "evals": [make_analysis("e2e4")]}]))
    with pytest.raises(DumpError, match="ingest these dumps separately"):
        ingest([str(fishnet), str(path)], tmp_path / "out", COMPACT, workers=1)


def test_batches_of_several_datasets_have_exact_shares_and_resume_exactly(
    fishnet: Path, games: Path, positions: Positions, tmp_path: Path
) -> None:
    path = tmp_path / "positions.jsonl.zst"
    evaluated.write_json_lines(
        path, (evaluated.json_entry(*row, at) for at, row in enumerate(positions[:500]))
    )
    human = ingest_compact([str(fishnet)], tmp_path / "human")
    folders = [games, human, ingest_compact([str(path)], tmp_path / "engine")]
    streams = [
        Batches([folder], batch_size=20, columns=evaluated.STORED, people_only=True)
        for folder in folders
    ]
    mixed = Shares(streams, (2, 1, 1))
    batches = list(islice(mixed.from_step(0), 40))
    assert {int((batch["plies"] > 0).sum()) for batch in batches} == {10}, "rows of games"
    assert {int((batch["label"] == NO_LABEL).sum()) for batch in batches} == {5}, "of the engine"
    later = next(mixed.from_step(33))
    assert all((later[name] == batches[33][name]).all() for name in evaluated.STORED)
    halves = [next(mixed.from_step(33, rank, 2)) for rank in (0, 1)]
    assert sorted(np.concatenate([half["game"] for half in halves])) == sorted(later["game"])
    with pytest.raises(ConfigError, match="one for each of 3 datasets"):
        Shares(streams, (0.5, 0.5))


# ---------------------------------------------------------------- hostile rows and files

HOSTILE_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"fen": START, "cp": 20, "move": "e2e4"}, "used"),
    ({"fen": START, "cp": 20, "move": None}, "used"),
    ({"fen": START, "mate": -2, "move": "g1f3"}, "used"),
    ({"fen": START, "cp": 900_000, "move": "e2e4"}, "used"),
    ({"fen": " ".join(START.split()[:4]), "cp": 20, "move": "e2e4"}, "used"),
    ({"fen": None, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START, "move": "e2e4"}, "bad row"),
    ({"fen": START, "cp": 20, "mate": 3, "move": "e2e4"}, "bad row"),
    ({"fen": START, "mate": 0, "move": "e2e4"}, "bad row"),
    ({"fen": "", "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": "♔" * 64, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START + "\n" + START, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace(" ", "\t"), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START + " " * 100_000, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": "9" * 2_000, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace(" - ", " e-3 "), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace("KQkq", "KKKK"), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace("0 1", f"{2**64} 1"), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START[:5] + "\0" + START[5:], "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": "8/8/8/8/8/8/8/8 w - - 0 1", "cp": 20, "move": "e2e4"}, "bad FEN"),
    ({"fen": "kk6/8/8/8/8/8/8/K7 w - - 0 1", "cp": 20, "move": "a1a2"}, "bad FEN"),
    ({"fen": "QQQQQQQQ/QQQQQQQQ/8/8/8/8/7k/K7 w - - 0 1", "cp": 1, "move": "a1a2"}, "bad FEN"),
    ({"fen": "1r2k1r1/8/8/8/8/8/8/1R2K1R1 w KQkq - 0 1", "cp": 0, "move": "e1g1"}, "variant"),
    ({"fen": "R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1", "mate": -1, "move": None}, "no moves"),
    ({"fen": START, "cp": 20, "move": "e2e5"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e1h1"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e2e4q"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "z9z9"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "Nf3"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e2e4\0"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e2e4" * 1_000}, "illegal move"),
    ({"fen": "8/P6k/8/8/8/8/8/K7 w - - 0 1", "cp": 900, "move": "a7a8"}, "illegal move"),
]


def test_hostile_rows_are_counted_by_reason(tmp_path: Path) -> None:
    path = tmp_path / "hostile.parquet"
    rows = [{"cp": None, "mate": None, "move": None, **row} for row, _ in HOSTILE_ROWS]
    pq.write_table(pa.Table.from_pylist(rows), path)
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    reasons = Counter(reason for _, reason in HOSTILE_ROWS)
    assert manifest["games"] == {
        "read": len(HOSTILE_ROWS),
        "used": reasons.pop("used"),
        "dropped": dict(reasons),
    }
    found = datasets.games(tmp_path / "out")
    assert [game["dropped"] or "used" for game in found] == [reason for _, reason in HOSTILE_ROWS]
    assert len({game["offset"] for game in found}) == len(HOSTILE_ROWS)
    kept = evaluated.read_rows(tmp_path / "out")
    assert kept["eval"].tolist() == [20, 20, -32000, 32000, 20]
    assert kept["label"][1] == NO_LABEL


def test_hostile_lines_of_json_are_bad_rows_and_the_others_kept(tmp_path: Path) -> None:
    good = json.dumps({"fen": START, "evals": [make_analysis("e2e4 e7e5")]})
    bad = [
        *("{", "[]", "null", '{"fen": 3, "evals": []}', '{"fen": "x", "evals": null}'),
        '{"fen": "x", "evals": [{"pvs": [{"cp": "a", "line": "e2e4"}]}]}',
        json.dumps({"fen": START, "evals": []}),
        json.dumps({"fen": START, "evals": [{"pvs": []}]}),
        *(
            good.replace("20", number, 1)
            for number in (str(10**30), "12.5", "NaN", "1e400", "true")
        ),
        good.replace(START, "\\u0000" + START),
        good.replace(START, "\\ud800"),
        good + good,
        "[" * 100_000,
        good.replace('"evals"', f'"more": "{"a" * 1_500_000}", "evals"'),
        good.replace('"evals"', f'"more": "{"a" * 3_000_000}", "evals"'),
    ]
    path = tmp_path / "lines.jsonl"
    bad.append(good[:40])  # the last line is incomplete
    path.write_text("\n".join(f"{good}\n{line}" for line in bad))
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"]["used"] == len(bad)
    assert manifest["games"]["dropped"] == {"bad row": len(bad)}
    path.write_text(f"{good}\n{good}{good}\nnull")  # Arrow crashes on a block of `null`
    manifest = ingest([str(path)], tmp_path / "again", COMPACT, workers=1)
    assert manifest["games"] == {"read": 3, "used": 1, "dropped": {"bad row": 2}}


VALID_COLUMNS = {"fen": [START], "cp": [1], "mate": [1], "move": ["e2e4"]}
INVALID_COLUMNS: dict[str, tuple[list[str], list[Any]]] = {
    # part of the error message: names and values of the columns
    "column fen is int64": ([*VALID_COLUMNS], [[1], [1], [1], ["e2e4"]]),
    "column cp is string": ([*VALID_COLUMNS], [[START], ["a"], [1], ["e2e4"]]),
    "column cp is list": ([*VALID_COLUMNS], [[START], [[1]], [1], ["e2e4"]]),
    "column fen occurs twice": ([*VALID_COLUMNS, "fen"], [*VALID_COLUMNS.values(), [START]]),
    "evaluations fen, cp, mate, move": (["fen", "cp"], [[START], [1]]),
}


@pytest.mark.parametrize("problem", INVALID_COLUMNS)
def test_invalid_columns_are_refused(problem: str, tmp_path: Path) -> None:
    path, (names, values) = tmp_path / "wrong.parquet", INVALID_COLUMNS[problem]
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in values], names), path)
    with pytest.raises(DumpError, match=problem) as caught:
        ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("cp", "kept"),
    [
        (pa.array([12.0, None, np.nan, np.nan, 7.0]), [12, -32000, -32000, 7]),
        (pa.array([12.5, 1e30, np.inf, -np.inf, 7.0]), [-32000, -32000, 7]),
        (pa.array([2**64 - 1, 0, 5, 6, 7], pa.uint64()), [5, 7]),
        (pa.array([2**63 - 1, -(2**63), 5, 6, 7], pa.int64()), [32000, 5, 7]),
        (pa.nulls(5), [-32000, -32000]),
    ],
)
def test_a_score_that_is_not_whole_makes_a_bad_row_and_the_others_are_kept(
    cp: pa.Array, kept: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "numbers.parquet"
    has_mate = [False, True, False, True, False]
    mate = pa.array([-3.0 if mate else None for mate in has_mate])
    pq.write_table(
        pa.table({"fen": [START] * 5, "cp": cp, "mate": mate, "move": ["e2e4"] * 5}), path
    )
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"]["read"] == 5
    assert evaluated.read_rows(tmp_path / "out")["eval"].tolist() == kept


ANALYSES = pa.table(
    {
        "fen": [START, None, None, START, "9" * 2_000, "4k3/8/8/8/8/8/4P3/4K3 w - -"],
        "line": ["e2e4 e7e5", "a2a3", "a2a3", "d2d4", "a2a3", "e2e4"],
        "depth": [20.0, 99.0, 99.0, np.nan, 99.0, 20.0],
        "knodes": [5, 5, 5, 5, 5, 5],
        "cp": [20, 1, 2, 30, 3, 40],
        "mate": pa.nulls(6, pa.int64()),
    }
)


def test_analyses_without_a_valid_fen_belong_to_no_other_position(tmp_path: Path) -> None:
    path = tmp_path / "analyses.parquet"
    pq.write_table(ANALYSES, path)
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"] == {"read": 6, "used": 3, "dropped": {"bad row": 3}}
    assert evaluated.read_rows(tmp_path / "out")["eval"].tolist() == [20, 30, 40]


@pytest.mark.parametrize("with_dictionary", [True, False])
def test_rows_with_long_texts_are_read_few_at_a_time(with_dictionary: bool, tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    valid = pa.table(
        {"fen": [START], "cp": [1], "mate": pa.array([None], pa.int64()), "move": ["e2e4"]}
    )
    long = valid.set_column(0, "fen", pa.array(["k" * (1 << 20)])).take(pa.array([0] * 100))
    options = {"use_dictionary": with_dictionary, "compression": "zstd"}
    with pq.ParquetWriter(path, valid.schema, **options) as writer:
        writer.write_table(valid)
        writer.write_table(long)
    with pq.ParquetFile(path) as file:
        sizes = [
            evaluations._choose_batch_rows(file, path, group, ["fen", "move"]) for group in (0, 1)
        ]
    assert sizes[0] == evaluations.MAX_BATCH_ROWS
    assert sizes[1] <= 16
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"] == {"read": 101, "used": 1, "dropped": {"bad row": 100}}


def test_positions_without_moves_train_the_value_but_cannot_be_reported(
    positions: Positions, tmp_path: Path
) -> None:
    rows = (evaluated.fishnet_row(*row) | {"move": None} for row in positions[:200])
    evaluated.write_parquet(tmp_path / "rows.parquet", rows)
    out, net = tmp_path / "out", tmp_path / "net"
    config = IngestConfig(planes="compact", test_share=0.2, val_share=0.3)
    ingest([str(tmp_path / "rows.parquet")], out, config, workers=1)
    training = TrainConfig(steps=2, batch_size=16, device="cpu", threads=1)
    card = train_on_datasets([out], "fianchetto-xs", training, net)
    assert card["finished"]
    assert card["metrics"]["value_loss"] > 0
    assert "validation_top1" not in card["metrics"]
    with pytest.raises(ConfigError, match="positions has a known move"):
        report(net, positions=out)
