"""Lichess's evaluated positions as inputs: rows as of the games they come from, parts of files
read, mixtures."""

import io
import random
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import duckdb
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
from pipeline.dataset.position_keys import position_keys
from pipeline.defs.checks import evaluate_checkpoint
from pipeline.defs.tasks import probe
from pipeline.dumps.formats import evaluations
from pipeline.errors import ConfigError, DamagedError, DumpError, IngestError
from pipeline.evaluation.calibrate import calibrate
from pipeline.evaluation.report import report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.estimate import estimate
from pipeline.ingest.job import ingest
from pipeline.training.train import train_on
from pipeline.validation.audit import audit
from pipeline.validation.verify import verify_dataset
from tests.pipeline import datasets, evaluated
from tests.pipeline.loopback import serving

COMPACT = IngestConfig(planes="compact", chunk_mib=1)
COMPARED = ("planes", "castling", "label", "promotion", "eval")
START = chess.STARTING_FEN


def walk_games(path: Path, games: int) -> Path:
    """Write random games with evaluations, in which castling, promotions and captures en passant
    are preferred."""
    rng, texts = random.Random(5), []
    for number in range(games):
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
        texts.append(
            f'[Event "Rated"]\n[Site "{number}"]\n[Result "{board.result()}"]\n\n{" ".join(moves)} '
            f"1-0\n\n"
        )
    path.write_text("".join(text.replace('[Result "*"]', '[Result "1-0"]') for text in texts))
    return path


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of games with evaluations."""
    folder = tmp_path_factory.mktemp("evaluated")
    ingest([str(walk_games(folder / "games.pgn", 30))], folder / "games", COMPACT, workers=1)
    return folder / "games"


Positions = list[tuple[chess.Board, chess.Move, int]]


@pytest.fixture(scope="module")
def positions(games: Path) -> Positions:
    """Return the boards, moves and evaluations of its rows."""
    found = [row for rows in evaluated.evaluated_rows(games) for row in evaluated.boards(rows)]
    moves = [
        (board.is_castling(move), board.is_en_passant(move), move.promotion)
        for board, move, _ in found
    ]
    assert len(found) > 2_000
    assert sum(castles for castles, *_ in moves) > 10
    assert sum(passes for _, passes, _ in moves) > 3
    assert {promotion for *_, promotion in moves} == {None, 2, 3, 4, 5}
    return found


@pytest.fixture(scope="module")
def fishnet(positions: Positions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return its rows in the form of Lichess/fishnet-evals, in row groups of 2,048."""
    path = tmp_path_factory.mktemp("fishnet") / "fishnet.parquet"
    evaluated.write_parquet(path, (evaluated.fishnet_row(*row) for row in positions), 2048)
    return path


def assert_rows_of_games(out: Path, games: Path, kept: list[int] | None = None) -> dict[str, Any]:
    """Compare the rows of evaluated positions with those of the games that they were written
    from."""
    parts = list(evaluated.evaluated_rows(games))
    expected = {name: np.concatenate([part[name] for part in parts]) for name in COMPARED}
    found = evaluated.read_rows(out)
    for name in COMPARED:
        np.testing.assert_array_equal(
            found[name], expected[name] if kept is None else expected[name][kept], err_msg=name
        )
    unknown = ("plies", "elo", "opponent_elo", "result", "repetition")
    assert not any(found[name].any() for name in unknown)
    assert (found["clock"] == 65535).all()
    return found


def test_fishnet_rows_are_those_of_their_games(fishnet: Path, games: Path, tmp_path: Path) -> None:
    manifest = ingest([str(fishnet)], tmp_path / "out", COMPACT, workers=1)
    rows = assert_rows_of_games(tmp_path / "out", games)
    source = np.concatenate([part["ply"] for part in evaluated.evaluated_rows(games)])
    np.testing.assert_array_equal(rows["ply"], source)
    assert manifest["sources"][0]["input"] == "Lichess fishnet evaluations (Parquet)"
    assert "moves_by" not in manifest


def test_evaluated_positions_are_not_estimated(fishnet: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds evaluated positions, which cannot be estimated"):
        estimate([str(fishnet)], workers=1)


@pytest.mark.parametrize("form", ["parquet", "jsonl.zst"])
def test_position_evaluations_are_those_of_their_games(
    form: str, positions: Positions, fishnet: Path, games: Path, tmp_path: Path
) -> None:
    entries, kept, before = [], [], ""
    for number, row in enumerate(positions):
        entry = evaluated.analyses(*row, number)
        # rows of one position follow each other, as in the published table
        if entry["fen"] != before:
            entries.append(entry)
            kept.append(number)
        before = entry["fen"]
    path = tmp_path / f"positions.{form}"
    if form == "parquet":
        evaluated.write_analyses(fishnet, path)
    else:
        evaluated.write_json_lines(path, iter(entries))
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert_rows_of_games(tmp_path / "out", games, kept)
    assert manifest["moves_by"] == "engine"


def test_python_chess_finds_the_same_rows_in_the_file(fishnet: Path, tmp_path: Path) -> None:
    ingest([str(fishnet)], tmp_path / "out", COMPACT, workers=1)
    found = verify_dataset(tmp_path / "out", [str(fishnet)], rows=64)
    assert not any(found[name] for name in ("files", "splits", "source", "rows", "damage"))
    assert found["compared"] >= 50


def test_a_truncated_file_is_refused_and_damage_keeps_the_rows_before_it(
    fishnet: Path, tmp_path: Path
) -> None:
    whole = fishnet.read_bytes()
    short = tmp_path / "short.parquet"
    short.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DumpError, match=r"short\.parquet begins like Parquet and cannot be read"):
        ingest([str(short)], tmp_path / "short", COMPACT, workers=1)
    with pq.ParquetFile(fishnet) as file:
        place = file.metadata.row_group(file.metadata.num_row_groups - 1).column(0).data_page_offset
        before = (
            file.metadata.num_rows
            - file.metadata.row_group(file.metadata.num_row_groups - 1).num_rows
        )
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(whole[:place] + bytes(300) + whole[place + 300 :])
    with pytest.raises(DamagedError, match=r"broken\.parquet"):
        ingest([str(broken)], tmp_path / "broken", COMPACT, workers=1)
    assert 0 < datasets.manifest(tmp_path / "broken")["positions"]["total"] <= before


def test_a_folder_and_addresses_give_the_rows_of_the_file(
    fishnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = datasets.content(_ingested([str(fishnet)], tmp_path / "file"), "train-*")
    folder = tmp_path / "folder" / "spark.parquet"
    folder.mkdir(parents=True)
    (folder / "fishnet.parquet").write_bytes(fishnet.read_bytes())
    assert (
        datasets.content(_ingested([str(folder.parent)], tmp_path / "of-folder"), "train-*")
        == expected
    )
    with serving() as server:
        server.publish("fishnet.parquet", fishnet.read_bytes())
        address = f"{server.url}/standard/fishnet.parquet"
        assert datasets.content(_ingested([address], tmp_path / "of-web"), "train-*") == expected
        server.files["/standard/fishnet.parquet"].etag = ""
        with pytest.raises(IngestError, match="parts cannot be read"):
            ingest([address], tmp_path / "no-etag", COMPACT, workers=1)

    class Hub(MemoryFileSystem):
        protocol = "hf"
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs = [""]  # noqa: RUF012

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("hf://"))

    fsspec.register_implementation("hf", Hub, clobber=True)
    Hub().pipe("/datasets/Lichess/fishnet-evals/data/fishnet.parquet", fishnet.read_bytes())
    out = _ingested(["hf://datasets/Lichess/fishnet-evals/data"], tmp_path / "of-hub")
    assert datasets.content(out, "train-*") == expected


def _ingested(sources: list[str], out: Path) -> Path:
    ingest(sources, out, COMPACT, workers=1)
    return out


def test_a_sample_reads_a_share_of_the_bytes_and_is_a_subset_of_a_larger_one(
    positions: Positions, tmp_path: Path
) -> None:
    path = tmp_path / "many.parquet"
    rows = [evaluated.fishnet_row(*row) for row in positions[:2_000]]
    with pq.ParquetWriter(path, pa.Table.from_pylist(rows).schema) as writer:
        for _ in range(100):
            writer.write_table(pa.Table.from_pylist(rows))
    with serving() as server:
        server.publish("many.parquet", path.read_bytes())
        taken: dict[float, set[int]] = {}
        for share in (0.04, 0.3):
            sample = evaluations.Sample(share)
            taken[share] = {number for number in range(100) if sample.takes("many.parquet", number)}
        assert 0 < len(taken[0.04]) < 10 < len(taken[0.3]) < 50
        assert taken[0.04] < taken[0.3]
        config = IngestConfig(planes="compact", sample=0.04)
        manifest = ingest(
            [f"{server.url}/standard/many.parquet"], tmp_path / "out", config, workers=1
        )
        assert manifest["games"]["read"] == 2_000 * len(taken[0.04])
    opened = CountingFile(path.read_bytes())
    source = pa.PythonFile(opened, mode="r")
    list(
        evaluations.read_parquet(
            "many.parquet",
            source,
            evaluations.FISHNET,
            evaluations.Sample(0.04),
            lambda share: None,
        )
    )
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    # where texts have a dictionary they are read twice
    most = 2 * len(taken[0.04]) / 100 * path.stat().st_size
    assert opened.sent < most + 3 * max(footer, 1 << 16)


class CountingFile(io.BytesIO):
    """A file that counts the bytes it gives."""

    sent = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.sent += len(found)
        return found


def test_filters_keep_the_rows_that_they_name(
    fishnet: Path, positions: Positions, tmp_path: Path
) -> None:
    pieces = [chess.popcount(board.occupied) for board, *_ in positions]
    values = [abs(value) for *_, value in positions]
    config = IngestConfig(planes="compact", min_pieces=10, max_pieces=28, max_score=200)
    manifest = ingest([str(fishnet)], tmp_path / "out", config, workers=1)
    kept = sum(
        10 <= count <= 28 and value <= 200 for count, value in zip(pieces, values, strict=True)
    )
    dropped = sum(not 10 <= count <= 28 for count in pieces)
    assert manifest["positions"]["total"] == kept > 100
    assert manifest["positions_dropped"] == {
        "filter: pieces": dropped,
        "filter: score": len(pieces) - dropped - kept,
    }
    with pytest.raises(ConfigError, match="max_pieces"):
        IngestConfig(max_pieces=1)


def test_no_position_stands_in_two_splits_and_audit_finds_those_of_games(
    fishnet: Path, games: Path, tmp_path: Path
) -> None:
    config = IngestConfig(planes="compact", test_share=0.3, val_share=0.2)
    ingest(
        [str(fishnet), str(_copy(fishnet, tmp_path / "again.parquet"))],
        tmp_path / "out",
        config,
        workers=1,
    )
    keys = []
    for split in ("train", "val", "test"):
        rows = list(Dataset.open(tmp_path / "out").rows(split, ("planes", "castling")))
        keys.append(
            set(
                np.concatenate(
                    [position_keys(part["planes"], part["castling"]) for part in rows]
                ).tolist()
            )
        )
    assert all(keys)
    assert len(set.union(*keys)) == sum(map(len, keys))
    alone = {row["split"]: row["in_train"] for row in audit([tmp_path / "out"])["in_train"]}
    assert alone == {"val": 0, "test": 0}
    beside = {
        row["split"]: row["in_train_share"] for row in audit([tmp_path / "out", games])["in_train"]
    }
    assert beside["test"] > 0.8


def _copy(path: Path, target: Path) -> Path:
    target.write_bytes(path.read_bytes())
    return target


def test_moves_of_people_and_of_engines_are_kept_apart(fishnet: Path, tmp_path: Path) -> None:
    path = tmp_path / "positions.jsonl.zst"
    entry = {
        "fen": START,
        "evals": [{"pvs": [{"cp": 20, "line": "e2e4"}], "knodes": 3, "depth": 20}],
    }
    evaluated.write_json_lines(path, iter([entry]))
    with pytest.raises(DumpError, match="ingest these dumps apart"):
        ingest([str(fishnet), str(path)], tmp_path / "out", COMPACT, workers=1)


def test_training_mixes_games_and_evaluations_in_shares_and_continues_where_it_stopped(
    fishnet: Path, games: Path, positions: Positions, tmp_path: Path
) -> None:
    path = tmp_path / "positions.jsonl.zst"
    evaluated.write_json_lines(
        path, (evaluated.analyses(*row, at) for at, row in enumerate(positions[:500]))
    )
    folders = [
        games,
        _ingested([str(fishnet)], tmp_path / "people"),
        _ingested([str(path)], tmp_path / "engine"),
    ]
    streams = [
        Batches([folder], batch_size=20, columns=evaluated.STORED, people_only=True)
        for folder in folders
    ]
    mixed = Shares(streams, (2, 1, 1))
    batches = list(islice(mixed.from_step(0), 40))
    of_games = [int((batch["plies"] > 0).sum()) for batch in batches]
    of_engine = [int((batch["label"] == NO_LABEL).sum()) for batch in batches]
    assert (set(of_games), set(of_engine)) == ({10}, {5})
    later = next(mixed.from_step(33))
    assert all((later[name] == batches[33][name]).all() for name in evaluated.STORED)
    halves = [next(mixed.from_step(33, rank, 2)) for rank in (0, 1)]
    assert sorted(np.concatenate([half["game"] for half in halves])) == sorted(later["game"])
    with pytest.raises(ConfigError, match="one for each of 3 datasets"):
        Shares(streams, (0.5, 0.5))
    config = TrainConfig(steps=2, batch_size=16, eval_blend=0.5, device="cpu", threads=1)
    card = train_on(folders, "fianchetto-xs", config, tmp_path / "net", shares=(2, 1, 1))
    assert card["step"] == 2
    assert card["data"]["shares"] == [2, 1, 1]


def test_the_published_schema_of_other_writers_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "duck.parquet"
    query = (
        f"SELECT '{START}' AS fen, 12::SMALLINT AS cp, NULL::TINYINT AS mate, 'e2e4' AS move, "
        f"1 AS more"
    )
    duckdb.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["positions"]["total"] == 1


@pytest.mark.parametrize("known", [0, 1])
def test_positions_without_moves_train_the_value_and_what_measures_moves_says_so(
    positions: Positions, tmp_path: Path, known: int
) -> None:
    rows = (
        evaluated.fishnet_row(*row) | ({} if at < known else {"move": None})
        for at, row in enumerate(positions[:600])
    )
    evaluated.write_parquet(tmp_path / "rows.parquet", rows)
    out, net = tmp_path / "out", tmp_path / "net"
    config = IngestConfig(planes="compact", test_share=0.2, val_share=0.3)
    ingest([str(tmp_path / "rows.parquet")], out, config, workers=1)
    card = train_on(
        [out], "fianchetto-xs", TrainConfig(steps=2, batch_size=16, device="cpu", threads=1), net
    )
    assert card["finished"]
    assert card["metrics"]["value_loss"] > 0
    if not known:
        assert "validation_top1" not in card["metrics"]
        with pytest.raises(ConfigError, match="positions has a known move"):
            report(net, positions=out)
        with pytest.raises(ConfigError, match="nothing can be fitted"):
            calibrate(net, out, rows=20, simulations=2)
        probed = probe(net, out, None, 20)
        assert probed == {"loss": None, "rows": 0}
        assert evaluate_checkpoint(probed).passed
