"""Read tables and zip archives of other programs, in all their variants; refuse other formats.

A format that cannot be read is refused by name, with a remedy, and never read as PGN.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.dumps.formats.tables import PUZZLE_COLUMNS
from pipeline.dumps.source import Source
from pipeline.errors import DamagedError, DumpError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.conftest import shared_data
from tests.pipeline import by_kernels, datasets

ALL_TRAIN = IngestConfig(chunk_mib=1, test_share=0.0, val_share=0.0)
MATE = "6k1/5ppp/8/8/8/8/r4PPP/1R4K1 b - - 0 1"
COUNTS = ("80", "90", "100")
PUZZLES: list[tuple[str, ...]] = [
    ("aaa01", MATE, "a2a3 b1b8", "700", *COUNTS, "mate mateIn1", "https://example.org/1", ""),
    ("aaa02", MATE, "a2a5 b1b8", "650", *COUNTS, "mate", "https://example.org/2", "Some_Opening"),
]
PAWNS_AND_KINGS = "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1"
Rows = list[dict[str, Any]]


def write_csv(rows: list[tuple[str, ...]], delimiter: str = ",", **options: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n", **options).writerows(rows)
    return text.getvalue().encode()


def ingest_puzzles(path: Path, out: Path) -> tuple[Rows, Rows]:
    """Ingest a file; return its rows, and the ids, ratings and themes of its puzzles."""
    ingest([str(path)], out, ALL_TRAIN, workers=1)
    names = ("site", "puzzle_rating", "puzzle_themes", "dropped")
    games = [{name: game[name] for name in names if name in game} for game in datasets.games(out)]
    rows = sorted(datasets.table(out).to_pylist(), key=lambda row: (row["game"], row["ply"]))
    return rows, games


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    """Return the rows and puzzles of the table as Lichess publishes it."""
    assert WITH_HEADER[0] == PUZZLE_COLUMNS
    folder = tmp_path_factory.mktemp("expected")
    (folder / "puzzles.csv").write_bytes(write_csv(WITH_HEADER))
    rows, puzzles = ingest_puzzles(folder / "puzzles.csv", folder / "out")
    assert [puzzle["site"] for puzzle in puzzles] == ["aaa01", "aaa02"]
    assert len(rows) == 2
    return rows, puzzles


def add_index(rows: list[tuple[str, ...]], name: str) -> list[tuple[str, ...]]:
    return [(name, *rows[0]), *((str(at), *row) for at, row in enumerate(rows[1:]))]


WITH_HEADER = [
    (
        *("PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation"),
        *("Popularity", "NbPlays", "Themes", "GameUrl", "OpeningTags"),
    ),
    *PUZZLES,
]
"""Rows of the table that Lichess publishes."""
VARIANTS = {
    "quoted header": write_csv(WITH_HEADER, quoting=csv.QUOTE_ALL),
    "no header": write_csv(PUZZLES),
    "an index without a name": write_csv(add_index(WITH_HEADER, "")),
    "an index of pandas": write_csv(add_index(WITH_HEADER, "Unnamed: 0")),
    "an index, no header": write_csv(add_index(WITH_HEADER, "")[1:]),
    "columns in another order": write_csv([tuple(reversed(row)) for row in WITH_HEADER]),
    "other case": write_csv([tuple(name.lower() for name in PUZZLE_COLUMNS), *PUZZLES]),
    "tabs": write_csv(WITH_HEADER, "\t"),
    "semicolons": write_csv(WITH_HEADER, ";"),
    "a byte-order mark and CRLF": b"\xef\xbb\xbf" + write_csv(WITH_HEADER).replace(b"\n", b"\r\n"),
    "a byte-order mark, no header": b"\xef\xbb\xbf" + write_csv(PUZZLES),
    "bzip2": bz2.compress(write_csv(PUZZLES)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_all_variants_of_a_csv_table_of_puzzles_give_the_same_rows(
    name: str, expected: tuple[Rows, Rows], tmp_path: Path
) -> None:
    (tmp_path / "puzzles").write_bytes(VARIANTS[name])
    assert ingest_puzzles(tmp_path / "puzzles", tmp_path / "out") == expected


TEXT_TYPES = {
    "string": pa.string(),
    "string_view": pa.string_view(),
    "dictionary of large strings": pa.dictionary(pa.int8(), pa.large_string()),
}


@pytest.mark.parametrize("name", TEXT_TYPES)
def test_puzzles_in_parquet_give_the_same_rows(
    name: str, expected: tuple[Rows, Rows], tmp_path: Path
) -> None:
    """Lichess/chess-puzzles stores themes as lists, and ratings as integers."""
    columns: dict[str, pa.Array] = {}
    for at, column in enumerate(PUZZLE_COLUMNS):
        values = [row[at] or None for row in PUZZLES]
        if column in ("Rating", "NbPlays"):
            columns[column] = pa.array([int(value or 0) for value in values], pa.int16())
        elif column == "Themes" and name == "string":
            columns[column] = pa.array([(value or "").split() for value in values])
        else:
            text = pa.array(values, pa.string())
            text = text.dictionary_encode() if "dictionary" in name else text
            columns[column] = text.cast(TEXT_TYPES[name])
    pq.write_table(pa.table(columns), tmp_path / "puzzles.parquet")
    assert ingest_puzzles(tmp_path / "puzzles.parquet", tmp_path / "out") == expected


def test_evaluations_in_parquet_give_the_same_rows_for_all_text_types(tmp_path: Path) -> None:
    rows = []
    for name in ("control", "string_view", "categorical"):
        source = shared_data(f"cases/23_evals_{name}.parquet")
        ingest([str(source)], tmp_path / name, ALL_TRAIN, workers=1)
        table = datasets.table(tmp_path / name).to_pylist()
        rows.append(sorted(table, key=lambda row: row["game"]))
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 3


KAGGLE_CSV = """\
id,rated,created_at,turns,victory_status,winner,increment_code,white_id,white_rating,black_id,black_rating,moves,opening_eco
a1,TRUE,1504210000000,10,resign,white,10+0,al,1510,be,1490,e4 e5 Nf3 Nc6 Bb5 a6 Ba4 Nf6 O-O Be7,C84
a2,FALSE,1504211000000,4,mate,black,5+8,ga,1100,de,1200,f3 e5 g4 Qh4#,A00
a3,TRUE,1504212000000,6,outoftime,draw,15+2,ep,1800,ze,1790,d4 d5 c4 e6 Nc3 Nf6,D37
a4,TRUE,1504212000000,3,draw,draw,x,ep,1800,ze,1790,d4 d5 Ke3,D37
"""


def write_game(tags: str, movetext: str) -> str:
    """Return a PGN game with the given values of tags, in the order of `names`."""
    names = (
        *("Event", "Site", "Result", "Termination", "TimeControl", "White", "Black"),
        *("WhiteElo", "BlackElo", "ECO"),
    )
    pairs = zip(names, tags.split(","), strict=True)
    head = "".join(f'[{name} "{value}"]\n' for name, value in pairs if value)
    return f"{head}\n{movetext}\n\n"


KAGGLE_PGN = "".join(
    [
        write_game(
            "Rated game,a1,1-0,Normal,600+0,al,be,1510,1490,C84",
            "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 1-0",
        ),
        write_game(
            "Casual game,a2,0-1,Normal,300+8,ga,de,1100,1200,A00", "1. f3 e5 2. g4 Qh4# 0-1"
        ),
        write_game(
            "Rated game,a3,1/2-1/2,Time forfeit,900+2,ep,ze,1800,1790,D37",
            "1. d4 d5 2. c4 e6 3. Nc3 Nf6 1/2-1/2",
        ),
        write_game("Rated game,a4,1/2-1/2,Normal,,ep,ze,1800,1790,D37", "1. d4 d5 2. Ke3 1/2-1/2"),
    ]
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_kaggle_s_table_of_games_gives_the_rows_of_its_games(kind: str, tmp_path: Path) -> None:
    table, games = tmp_path / f"games.{kind}", tmp_path / "games.pgn"
    rows = list(csv.DictReader(io.StringIO(KAGGLE_CSV)))
    if kind == "csv":
        table.write_text(KAGGLE_CSV)
    else:
        pq.write_table(pa.Table.from_pylist(rows), table)
    games.write_text(KAGGLE_PGN)
    for path in (table, games):
        ingest([str(path)], tmp_path / f"{path.suffix}-out", ALL_TRAIN, workers=1)
    outs = [tmp_path / f"{path.suffix}-out" for path in (table, games)]
    assert datasets.table(outs[0]).equals(datasets.table(outs[1]))
    place = {"offset": 0, "length": 0}
    of_table, of_pgn = ([game | place for game in datasets.games(out)] for out in outs)
    assert of_table == of_pgn
    assert [game["dropped"] for game in of_pgn] == [None, None, None, "illegal move"]


def test_tag_columns_are_read_without_regard_to_case_and_underscores(tmp_path: Path) -> None:
    header = "movetext,result,utc_date,white_elo,event,time_control\n"
    (tmp_path / "games.csv").write_text(f"{header}1. e4 e5,0-1,2020-01-02,1500,Rated x,10+0\n")
    (game,) = by_kernels.games(tmp_path / "games.csv")
    assert (game.status, game.result, game.event) == ("used", -1, b"Rated x")
    assert (game.tags["UTCDate"], game.tags["WhiteElo"]) == (b"2020.01.02", b"1500")
    assert "TimeControl" not in game.tags, "it may be in minutes"
    header = "movetext,winner,result,fen\n"
    (tmp_path / "end.csv").write_text(f"{header}e4 e5,white,checkmate,{PAWNS_AND_KINGS}\n")
    (game,) = by_kernels.games(tmp_path / "end.csv")
    assert (game.status, game.result) == ("used", 1), "other results and last positions are ignored"


CELLS = {
    # text of a cell: its movetext
    '[Event "x"]\n[ECO "C20"]\n[Result "0-1"]\n\n1. e4 e5 2. Nf3 0-1': "1. e4 e5 2. Nf3 0-1",
    f'[Variant "From Position"]\r\n[FEN "{PAWNS_AND_KINGS}"]\r\n\r\n1. e4 e5': "1. e4 e5",
    "1. e4 e5 ; the usual\n2. Nf3 {one; two} Nc6": "1. e4 e5 2. Nf3 Nc6",
    "1. e4\n% 1. d4\n1... e5 1-0": "1. e4 e5",
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_that_contains_pgn_is_read_as_that_game(cell: str, tmp_path: Path) -> None:
    row = {"movetext": cell, "Result": "" if "[Result" in cell else "1-0", "White": 'a"] [ECO "x'}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "games.parquet")
    (game,) = by_kernels.games(tmp_path / "games.parquet")
    start = '[FEN "' + PAWNS_AND_KINGS + '"]\n' if "FEN" in cell else ""
    result = "0-1" if "[Result" in cell else "1-0"
    (tmp_path / "games.pgn").write_text(f'{start}[Result "{result}"]\n\n{CELLS[cell]}\n')
    (plain,) = by_kernels.games(tmp_path / "games.pgn")
    assert (game.status, game.result, game.moves) == ("used", plain.result, plain.moves)
    assert (game.event, game.tags.get("ECO", b"")) == (
        (b"x", b"C20") if "[Result" in cell else (b"?", b"")
    )
    assert game.tags["White"] == b'a") [ECO "x'


def test_private_tags_in_a_cell_are_ignored(tmp_path: Path) -> None:
    row = {"movetext": '[FianchettoLabels "0"]\n\n1. e4 e5 1-0', "Result": "1-0"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "games.parquet")
    (game,) = by_kernels.games(tmp_path / "games.parquet")
    assert (game.status, game.result, "FianchettoLabels" in game.tags) == ("used", 1, False)


def test_the_example_of_a_row_with_too_many_fields_gives_their_number(tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_bytes(
        write_csv([PUZZLE_COLUMNS, *PUZZLES, (*PUZZLES[0], "", "x")])
    )
    made = ingest([str(tmp_path / "puzzles.csv")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert "12 fields, expected 10" in made["examples"]["bad row"]["text"]


def make_zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def make_patched_zip(changes: dict[int, int], local_flags: int = 0) -> bytes:
    """Return a zip archive of one file with changed bytes in the directory's entry of the file."""
    data = bytearray(make_zip({"a.pgn": b"1. e4 1-0\n"}, zipfile.ZIP_STORED))
    data[6] |= local_flags
    for at, value in changes.items():
        data[data.rindex(b"PK\x01\x02") + at] = value
    return bytes(data)


TEXT = "".join(datasets.random_game(seed) for seed in range(30)).encode()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_zip_archive_gives_the_rows_of_the_file_in_it(method: int, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_bytes(TEXT)
    extra = {"folder/": b"", "__MACOSX/._games.pgn": b"x", "folder/games.pgn": TEXT}
    (tmp_path / "games.zip").write_bytes(make_zip(extra, method))
    made = [
        ingest([str(tmp_path / name)], tmp_path / f"{name}-out", ALL_TRAIN, workers=1)
        for name in ("games.pgn", "games.zip")
    ]
    assert made[0]["files"] == made[1]["files"]
    assert made[1]["sources"][0]["bytes"] == (tmp_path / "games.zip").stat().st_size
    again = ingest([str(tmp_path / "games.zip")], tmp_path / "games.zip-out", ALL_TRAIN, workers=1)
    assert again == made[1], "the archive is identified by its hash"


def test_a_zip_archive_in_a_pipe_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "games.zip"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(make_zip({"a.pgn": TEXT}),))
    writer.start()
    with pytest.raises(
        DumpError, match=r"games\.zip is a zip archive.*can only be read from a file"
    ):
        Source(str(pipe)).open()
    writer.join()


def test_a_damaged_zip_archive_keeps_the_games_before_the_damage(tmp_path: Path) -> None:
    data = bytearray(make_zip({"games.pgn": TEXT * 10}, zipfile.ZIP_STORED))
    data[len(data) * 2 // 3] ^= 0xFF
    (tmp_path / "games.zip").write_bytes(data)
    with pytest.raises(DamagedError, match="zip archive is damaged"):
        ingest([str(tmp_path / "games.zip")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert len(datasets.games(tmp_path / "out")) > 100


def make_tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo("games.pgn")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT))
    return data.getvalue()


START = chess.STARTING_FEN
REFUSED: dict[str, bytes] = {
    # regular expression of the error message: content of the file
    r"zip archive of 2 files \(a.pgn, b.pgn\)": make_zip({"a.pgn": TEXT, "b.pgn": TEXT}),
    "empty zip archive": make_zip({}),
    "zip archive of 0 files": make_zip({"a/": b""}),
    "encrypted zip archive": make_patched_zip({8: 1}, local_flags=1),
    "incomplete zip archive": make_zip({"a.pgn": TEXT})[:-30],
    "zip archive .*version 9.9": make_patched_zip({6: 99}),
    "zip archive that cannot be read": make_patched_zip({10: 97}),
    "inside a zip archive, a gzip archive": make_zip({"a.pgn.gz": gzip.compress(TEXT)}),
    "inside a gzip archive, a zip archive": gzip.compress(make_zip({"a.pgn": TEXT})),
    "xz archive: unpack it": lzma.compress(TEXT),
    "lzma archive: unpack it": lzma.compress(TEXT, lzma.FORMAT_ALONE),
    "7z archive: unpack it": b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(range(256)) * 20,
    "RAR archive: unpack it": b"Rar!\x1a\x07\x01\x00" + bytes(range(1, 256)) * 20,
    "tar archive: unpack it": make_tar(),
    "inside a gzip archive, a tar archive": gzip.compress(make_tar()),
    "inside a bz2 archive, a tar archive": bz2.compress(make_tar()),
    "SQLite database": b"SQLite format 3\x00" + bytes(range(1, 256)) * 40,
    "Arrow file: save it as Parquet": b"ARROW1\x00\x00" + b"\xff" * 999,
    "not PGN text.*UTF-16 to UTF-8": TEXT.decode().encode("utf-16"),
    "web page": b"<!DOCTYPE html>\n<html><body>1. e4 e5</body></html>",
    "is JSON.*as PGN": b'{"id":"a","moves":"e4 e5"}\n{"id":"b","moves":"d4 d5"}\n',
    "is JSON": b'[\n {"fen": "x", "evals": []}\n]\n',
    "is a table with the columns white,black,result": b"white,black,result\na,b,1-0\nc,d,0-1\n",
    "is a table with the columns a,b,e4 e5": b"a,b,e4 e5 Nf3,1-0\nc,d,d4 d5,0-1\n",
    "columns fen, rating.*one of": f"fen,rating,name\n{START},1,x\n".encode(),
    "has no column Moves": b"PuzzleId,FEN,Rating\n",
    "add a header line": f"{START},e2e4 e7e5\n".encode(),
    "a column of PGN": b'white,pgn\na,"1. e4 e5 1-0"\nb,"1. d4 d5 1-0"\n',
}


@pytest.mark.parametrize("problem", REFUSED)
def test_unsupported_formats_are_refused_by_name(problem: str, tmp_path: Path) -> None:
    (tmp_path / "games").write_bytes(REFUSED[problem])
    with pytest.raises(DumpError, match=rf"games.*{problem}"):
        ingest([str(tmp_path / "games")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert not (tmp_path / "out").exists(), "a failed ingest leaves no folder"


def test_pgn_with_commas_in_its_first_line_is_not_read_as_a_table(tmp_path: Path) -> None:
    texts = ('[Event "fen,best,move"]\n', "; fen, best\n\n", "% a, b, c\n", "Games, by x, y\n\n")
    for at, first in enumerate(texts):
        path = tmp_path / f"{at}.pgn"
        path.write_text(f'{first}[Site "x"]\n[Result "1-0"]\n\n1. e4 e5 1-0\n')
        assert ingest([str(path)], tmp_path / str(at), ALL_TRAIN, workers=1)["games"]["used"] == 1


def test_json_lines_are_recognized_if_the_first_object_has_no_evaluation(tmp_path: Path) -> None:
    line = {"pvs": [{"cp": 20, "line": "e2e4"}], "knodes": 1, "depth": 9}
    entries = {"fen": START}, {"fen": START, "evals": [line]}
    (tmp_path / "evals.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    made = ingest([str(tmp_path / "evals.jsonl")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert made["games"] == {"read": 2, "used": 1, "dropped": {"bad row": 1}}
