"""Read inputs other than PGN: compare rows with python-chess, and count hostile rows by reason."""

import csv
import re
from datetime import time
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from engine.encoding.planes import label_from_move
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import open_unverified
from pipeline.dumps.formats import parquet
from pipeline.dumps.formats.text import join_games
from pipeline.errors import DumpError
from pipeline.evaluation.game_texts import read_dump
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import compare_rows, encode_planes
from tests.conftest import shared_data
from tests.pipeline import datasets

SMALL = IngestConfig(chunk_mib=1)
START = chess.STARTING_FEN
Expected = list[tuple[str, list[tuple[chess.Board, chess.Move]]]]
"""For each game, its `site`, and the positions and moves of its rows."""


def ingest_and_compare(
    source: Path, out: Path, expected: Expected, planes_every: int = 50
) -> dict[str, Any]:
    """Ingest a file, compare its rows with the expected ones, and return the manifest.

    The planes are compared in every `planes_every`-th game.
    """
    manifest = ingest([str(source)], out, SMALL, workers=1)
    games, rows = datasets.games(out), datasets.rows_by_game(out)
    assert [game["site"] for game in games if game["dropped"] is None] == [
        site for site, _ in expected
    ]
    used = [number for number, game in enumerate(games) if game["dropped"] is None]
    for at, (number, (site, moves)) in enumerate(zip(used, expected, strict=True)):
        assert [(row["label"], row["promotion"]) for row in rows[number]] == [
            (label_from_move(move, board.turn), move.promotion or 0) for board, move in moves
        ], site
        for row, (board, _) in zip(rows[number], moves, strict=True):
            assert (row["result"], row["plies"], row["elo"], row["clock"]) == (0, 0, None, None)
            if at % planes_every == 0:
                assert (np.frombuffer(row["planes"], "<u8") == encode_planes(board)).all()
    assert manifest["positions"]["total"] == sum(len(moves) for _, moves in expected)
    assert all(game["result"] is None for game in games)
    return manifest


def read_puzzles(path: Path) -> Expected:
    """Read a CSV table of puzzles with the csv module and python-chess."""
    expected = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            board, moves = chess.Board(row["FEN"]), []
            for ply, uci in enumerate(row["Moves"].split()):
                move = board.parse_uci(uci)
                if ply % 2:
                    moves.append((board.copy(stack=False), move))
                board.push(move)
            expected.append((row["PuzzleId"], moves))
    return expected


def test_each_move_of_the_solver_of_a_real_puzzle_becomes_a_row(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.csv"
    with shared_data("truth/lichess_puzzles_500.csv").open() as file:
        path.write_text("".join(islice(file, 41)))
    manifest = ingest_and_compare(path, tmp_path / "out", read_puzzles(path))
    assert manifest["games"] == {"read": 40, "used": 40, "dropped": {}}
    assert manifest["sources"][0]["input"] == "Lichess puzzles (CSV)"
    assert manifest["positions_dropped"] == {"not a labelled move": manifest["positions"]["total"]}
    with path.open(newline="") as file:
        puzzles = [
            (row["PuzzleId"], int(row["Rating"]), row["Themes"]) for row in csv.DictReader(file)
        ]
    names = ("site", "puzzle_rating", "puzzle_themes")
    games = datasets.games(tmp_path / "out")
    assert [tuple(game[name] for name in names) for game in games] == puzzles


@pytest.mark.slow
def test_each_move_of_the_solver_of_3000_puzzles_becomes_a_row(tmp_path: Path) -> None:
    path = shared_data("truth/lichess_puzzles_seed_3000.csv")
    assert ingest_and_compare(path, tmp_path / "out", read_puzzles(path))["games"]["used"] == 3000


@pytest.mark.slow
def test_each_position_of_a_real_table_of_best_moves_becomes_a_row(tmp_path: Path) -> None:
    path = shared_data("truth/lichess_puzzles_bestmove_9998.csv")
    expected: Expected = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            board, move = chess.Board(row["position"]), row["bestmove"].strip("[]',")
            expected.append((f"line-{number}", [(board, board.parse_uci(move))]))
    games = {"read": 9998, "used": 9998, "dropped": {}}
    assert ingest_and_compare(path, tmp_path / "out", expected)["games"] == games


def read_epd(path: Path) -> tuple[Expected, int]:
    """Read an EPD file with python-chess; return the best moves and the number of lines without.

    If a line has several best moves, the first one counts.
    """
    expected, without_move = [], 0
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        board = chess.Board()
        try:
            operations = board.set_epd(line)
        except ValueError:
            without_move += 1
            continue
        moves = re.findall(r"\bbm ([^;]*)", line)[0].split() if "bm" in operations else []
        if moves:
            site = str(operations.get("id") or f"line-{number}").replace("/", "-").strip()
            expected.append((site, [(board, board.parse_san(moves[0]))]))
        else:
            without_move += 1
    return expected, without_move


SHORT_FILES = ("bratko-kopec", "pet", "lapuce2")
LONG_FILES = ("wacnew", "eet", "ecmgcp", "iq4", "prof", "bt2630", "arasan2024")


@pytest.mark.parametrize(
    "name", [*SHORT_FILES, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG_FILES)]
)
def test_the_first_best_move_of_real_epd_is_the_label(name: str, tmp_path: Path) -> None:
    path = shared_data(f"truth/epd/{name}.epd")
    expected, without_move = read_epd(path)
    assert len(expected) > 5
    manifest = ingest_and_compare(path, tmp_path / "out", expected)
    assert manifest["games"]["dropped"] == ({"no moves": without_move} if without_move else {})
    assert manifest["sources"][0]["input"] == "EPD"


def test_each_row_of_a_chessmarro_table_becomes_a_row(tmp_path: Path) -> None:
    path = shared_data("chessmarro/linchess_converted_stockfish99.parquet")
    expected: Expected = []
    for number, row in enumerate(pq.read_table(path).to_pylist(), start=1):
        board = chess.Board(row["fen_original"])
        move = board.parse_uci(row["best_uci"])
        expected.append((f"row-{number}", [(board, move)]))
    manifest = ingest_and_compare(path, tmp_path / "out", expected, planes_every=1)
    assert manifest["games"]["used"] == 100
    assert manifest["sources"][0]["bytes"] == path.stat().st_size


def write_lichess_table(text: str, path: Path) -> Path:
    """Write PGN as a table like Lichess's: a typed column for each tag, and the movetext."""
    games: list[dict[str, Any]] = []
    for piece in text.split("[Event ")[1:]:
        head, _, moves = ("[Event " + piece).partition("\n\n")
        games.append(dict(re.findall(r'\[(\w+) "(.*)"\]', head)) | {"movetext": moves.strip()})
    names = (
        "Event", "Site", "White", "Black", "Result", "WhiteTitle", "BlackTitle", "WhiteElo",
        "BlackElo", "UTCDate", "UTCTime", "ECO", "Opening", "Termination", "TimeControl",
        "movetext",
    )  # fmt: skip
    types = {"UTCDate": pa.date32(), "UTCTime": pa.time32("s")}
    types |= dict.fromkeys(("WhiteElo", "BlackElo"), pa.int16())
    columns: dict[str, pa.Array] = {}
    for name in names:
        texts = [game.get(name) for game in games]
        if name in types:
            texts = [text.replace(".", "-") if text and text != "?" else None for text in texts]
        is_time = name == "UTCTime"
        values = [text and time.fromisoformat(text) for text in texts] if is_time else texts
        columns[name] = pa.array(values).cast(types.get(name, pa.string()))
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def test_lichess_table_of_games_gives_the_rows_of_the_dump(tmp_path: Path) -> None:
    dump = shared_data("pgn/lichess_dump_2013-01_100.pgn")
    table = write_lichess_table(dump.read_text(), tmp_path / "train-00000.parquet")
    config = IngestConfig(test_share=0.0, val_share=0.0)
    manifests = [
        ingest([str(path)], tmp_path / path.suffix, config, workers=1) for path in (dump, table)
    ]
    of_dump, of_table = (datasets.table(tmp_path / path.suffix) for path in (dump, table))
    assert of_dump.equals(of_table)
    assert manifests[0]["games"] == manifests[1]["games"]
    columns = [
        name for name in datasets.games(tmp_path / ".pgn")[0] if name not in ("offset", "length")
    ]
    before, after = (
        pq.read_table(tmp_path / path.suffix / "games.parquet", columns=columns)
        for path in (dump, table)
    )
    assert before.equals(after)
    assert manifests[1]["sources"][0]["bytes"] == table.stat().st_size
    assert compare_rows(open_unverified(tmp_path / ".parquet"), [read_dump(str(table))], 20) == (
        20,
        [],
    )


HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags\n"
GOOD = f"00008,{START},e2e4 e7e5 g1f3 b8c6,1940,75,94,6608,crushing long,https://lichess.org/x,\n"


HOSTILE_ROWS = {
    # what is wrong: the line, and the reason for which it is dropped
    "too few fields": ("x,y\n", "bad row"),
    "too many fields": (GOOD[:-1] + ",1,2\n", "bad row"),
    "a quote that never ends": (f'1,"{START},e2e4\n', "bad row"),
    "a huge field": (f"1,{START},{'e2e4 ' * 200_000},1,1,1,1,a,b,\n", "bad row"),
    "no FEN": ("1,,e2e4 e7e5,1,1,1,1,a,b,\n", "bad row"),
    "a FEN of nonsense": ("1,nan,e2e4 e7e5,1,1,1,1,a,b,\n", "bad row"),
    "a FEN without kings": ("1,8/8/8/8/8/8/8/8 w - - 0 1,e2e4 e7e5,1,1,1,1,a,b,\n", "bad FEN"),
    "moves that are not moves": (f"1,{START},nan,1,1,1,1,a,b,\n", "bad row"),
    "tags in the moves": (f'1,{START},"e2e4 [Event x]",1,1,1,1,a,b,\n', "bad row"),
    "an illegal move": (f"1,{START},e2e4 e2e4,1,1,1,1,a,b,\n", "illegal move"),
    "a zero byte": (f"1,{START},e2e4 e7\0e5,1,1,1,1,a,b,\n", "bad row"),
    "no moves": (f"1,{START},,1,1,1,1,a,b,\n", "no moves"),
    "only the opponent's move": (f"1,{START},e2e4,1,1,1,1,a,b,\n", "no moves"),
}


def test_hostile_rows_are_counted_by_reason_and_the_others_kept(tmp_path: Path) -> None:
    text = HEADER + "".join(row + GOOD for row, _ in HOSTILE_ROWS.values()) + "\n\n"
    path = tmp_path / "any.name"
    path.write_bytes(zstandard.compress(text.encode()))
    manifest = ingest([str(path)], tmp_path / "out", SMALL, workers=1)
    games = datasets.games(tmp_path / "out")
    assert [game["dropped"] for game in games] == [
        status for _, reason in HOSTILE_ROWS.values() for status in (reason, None)
    ]
    assert games[0]["site"] == "line-2"
    assert manifest["positions"]["total"] == 2 * len(HOSTILE_ROWS)
    assert all(game["puzzle_rating"] == 1940 for game in games if game["dropped"] is None)


def test_invalid_ratings_of_puzzles_are_null_and_any_text_may_be_a_theme(tmp_path: Path) -> None:
    rows = [
        f'a"b,{START},e2e4 e7e5,nan,,,,"x ""y"" {{z}} [Result 1-0]",,\n',
        f"c,{START},d2d4 d7d5,99999999999,,,,,,\n",
    ]
    path = tmp_path / "puzzles.csv"
    path.write_text(HEADER + rows[0].replace('a"b', '"a""b"') + rows[1])
    ingest([str(path)], tmp_path / "out", SMALL, workers=1)
    first, second = datasets.games(tmp_path / "out")
    assert (first["site"], first["puzzle_rating"]) == ('a"b', None)
    assert first["puzzle_themes"] == 'x "y" {z} [Result 1-0]'
    assert (second["puzzle_rating"], second["puzzle_themes"]) == (65535, None)


def test_a_parquet_file_with_repeated_long_texts_is_read_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of 1 MB in 512 rows takes 700 bytes in Parquet, but half a gigabyte in memory."""
    path = tmp_path / "bomb.parquet"
    movetext = pa.DictionaryArray.from_arrays(
        pa.array([0] * 512, pa.int32()), pa.array(["x" * ((1 << 20) + 1)])
    )
    pq.write_table(pa.table({"movetext": movetext}), path, compression="zstd")
    assert path.stat().st_size < 2000
    before = pa.total_allocated_bytes()
    peak = 0
    _, games = parquet.convert_parquet(str(path), lambda share: None)
    for _ in join_games(games):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 64 << 20
    monkeypatch.setattr(parquet, "BATCH_ROWS", 1)
    large = pa.table({"movetext": ["x" * (3 << 20)] * 2})
    pq.write_table(large, path, compression="zstd", use_dictionary=False)
    with pytest.raises(DumpError, match="rows of more than 1 MiB"):
        parquet.convert_parquet(str(path), lambda share: None)


def test_hostile_parquet_tables_are_refused_or_counted(tmp_path: Path) -> None:
    moves_column = pa.array(["1. e4 1-0"])
    tables = {
        "unknown columns": pa.table({"a": [1], "b": [2]}),
        "wrong type": pa.table({"movetext": [{"a": 1}]}),
        "same column twice": pa.Table.from_arrays([moves_column] * 2, names=["movetext"] * 2),
    }
    for name, table in tables.items():
        pq.write_table(table, tmp_path / name)
    (tmp_path / "truncated").write_bytes(b"PAR1" + bytes(100))
    archive = zstandard.compress((tmp_path / "unknown columns").read_bytes())
    (tmp_path / "compressed").write_bytes(archive)
    for name, message in (
        ("unknown columns", "is Parquet with the columns a, b"),
        ("wrong type", "the column movetext is struct<.*cannot be converted to text"),
        ("same column twice", "the column movetext occurs twice"),
        ("truncated", "looks like Parquet but cannot be read"),
        ("compressed", "save and unpack it first"),
    ):
        with pytest.raises(DumpError, match=message):
            ingest([str(tmp_path / name)], tmp_path / "out", SMALL, workers=1)
    moves = "1. e4 e5 2. Nf3 Nc6"
    games = {
        "movetext": [
            *(f"{moves} 1-0", None, f"{moves} {{ no end", '[Event "x"]\n\n1. d4 0-1'),
            *("% 1. e4", f"{moves} 1/2-1/2"),
        ],
        "WhiteElo": [float("nan"), 1500.0, None, float("inf"), -3.0, 1501.5],
        "Site": ["https://lichess.org/a", None, 'q"\n\n[Event "y"]', "", "\x00\x01", "b"],
        "Result": ["1-0", "1-0", None, "0-1", "*", None],
    }
    pq.write_table(pa.table(games), tmp_path / "games")
    ingest([str(tmp_path / "games")], tmp_path / "games-out", SMALL, workers=1)
    found = datasets.games(tmp_path / "games-out")
    assert [game["dropped"] for game in found] == [
        None, "no moves", "unclosed comment", None, "no moves", None,
    ]  # fmt: skip
    assert [game["white_elo"] for game in found] == [None, 1500, None, None, None, 1501]
    assert [game["plies"] for game in found] == [4, 0, 4, 1, 0, 4]
    positions = {"fen_original": [START, None, "x"], "best_uci": ["e2e4", "e2e4", None]}
    pq.write_table(pa.table(positions), tmp_path / "positions")
    manifest = ingest([str(tmp_path / "positions")], tmp_path / "positions-out", SMALL, workers=1)
    assert manifest["games"] == {"read": 3, "used": 1, "dropped": {"bad row": 2}}


def test_copies_of_a_position_share_a_split_and_games_and_positions_a_dataset(
    tmp_path: Path,
) -> None:
    boards = [
        chess.Board(fen)
        for fen in (START, "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "8/8/8/4k3/8/8/4P3/4K3 b - - 5 60")
    ]
    rows = [f"{board.fen()},{move.uci()}\n" for board in boards for move in board.legal_moves]
    (tmp_path / "best.csv").write_text("fen,best\n" + "".join(rows))
    datasets.dump(tmp_path / "games.pgn", 3)
    sources = [str(tmp_path / "games.pgn"), str(tmp_path / "best.csv")]
    config = IngestConfig(chunk_mib=1, test_share=0.3, val_share=0.3)
    ingest(sources, tmp_path / "out", config, workers=1)
    games = datasets.games(tmp_path / "out")
    assert len(games) == 3 + len(rows)
    assert [game["puzzle_themes"] for game in games] == [None] * len(games)
    splits: dict[str, set[str]] = {}
    for game, row in zip(games[3:], rows, strict=True):
        splits.setdefault(row.split(",")[0], set()).add(game["split"])
    assert [len(names) for names in splits.values()] == [1] * 3
    assert next(Batches([tmp_path / "out"], batch_size=8).from_step(0))["plies"].dtype == np.uint16
