"""Files of other programs: tables in every spelling give the rows of the usual one, zip archives
those of their file.

What cannot be read is refused by name, with what to do, and never read as PGN.
"""

import bz2
import csv
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.dumps.source import Source
from pipeline.errors import DamagedError, DatasetError, DumpError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.conftest import shared_data
from tests.pipeline import by_kernels, datasets

ALL_TRAIN = IngestConfig(chunk_mib=1, test_share=0.0, val_share=0.0)
NAMES = (
    "PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation", "Popularity", "NbPlays", "Themes",
    "GameUrl", "OpeningTags",
)  # fmt: skip
PUZZLES = [
    (
        "aaa01",
        "6k1/5ppp/8/8/8/8/r4PPP/1R4K1 b - - 0 1",
        "a2a3 b1b8",
        "700",
        "80",
        "90",
        "100",
        "mate mateIn1",
        "https://example.org/1",
        "",
    ),
    (
        "aaa02",
        "6k1/5ppp/8/8/8/8/r4PPP/1R4K1 b - - 0 1",
        "a2a5 b1b8",
        "650",
        "80",
        "90",
        "100",
        "mate",
        "https://example.org/2",
        "Some_Opening",
    ),
]
TWINS = "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1"
Rows = list[dict[str, Any]]


def write_csv(rows: list[tuple[str, ...]], delimiter: str = ",", **options: Any) -> bytes:
    """Return rows as CSV."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n", **options).writerows(rows)
    return text.getvalue().encode()


def read(path: Path, out: Path) -> tuple[Rows, Rows]:
    """Ingest a file; return its rows, and what its games are called and rated."""
    ingest([str(path)], out, ALL_TRAIN, workers=1)
    names = ("site", "puzzle_rating", "puzzle_themes", "dropped")
    games = [{name: game[name] for name in names if name in game} for game in datasets.games(out)]
    rows = sorted(datasets.table(out).to_pylist(), key=lambda row: (row["game"], row["ply"]))
    return rows, games


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    folder = tmp_path_factory.mktemp("control")
    (folder / "puzzles.csv").write_bytes(write_csv([NAMES, *PUZZLES]))
    found = read(folder / "puzzles.csv", folder / "out")
    assert [game["site"] for game in found[1]] == ["aaa01", "aaa02"]
    assert len(found[0]) == 2
    return found


def numbered(rows: list[tuple[str, ...]], name: str) -> list[tuple[str, ...]]:
    return [(name, *rows[0]), *((str(at), *row) for at, row in enumerate(rows[1:]))]


WITH_NAMES = [NAMES, *PUZZLES]
TURNED = [tuple(reversed(row)) for row in WITH_NAMES]
SPELLINGS = {
    "quoted names": write_csv(WITH_NAMES, quoting=csv.QUOTE_ALL),
    "no names": write_csv(PUZZLES),
    "no names, quoted": write_csv(PUZZLES, quoting=csv.QUOTE_ALL),
    "an index without a name": write_csv(numbered(WITH_NAMES, "")),
    "an index of pandas": write_csv(numbered(WITH_NAMES, "Unnamed: 0")),
    "an index, no names": write_csv(numbered(WITH_NAMES, "")[1:]),
    "columns in another order": write_csv(TURNED),
    "other case": write_csv([tuple(name.lower() for name in NAMES), *PUZZLES]),
    "tabs": write_csv(WITH_NAMES, "\t"),
    "semicolons": write_csv(WITH_NAMES, ";"),
    "tabs, no names": write_csv(PUZZLES, "\t"),
    "a mark and CRLF": b"\xef\xbb\xbf" + write_csv(WITH_NAMES).replace(b"\n", b"\r\n"),
    "a mark, no names": b"\xef\xbb\xbf" + write_csv(PUZZLES),
    "gzip": gzip.compress(write_csv(numbered(WITH_NAMES, ""))),
    "bzip2": bz2.compress(write_csv(PUZZLES)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_puzzles_in_every_spelling_give_the_same_rows(
    name: str, control: tuple[Rows, Rows], tmp_path: Path
) -> None:
    (tmp_path / "puzzles").write_bytes(SPELLINGS[name])
    assert read(tmp_path / "puzzles", tmp_path / "out") == control


TEXTS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large strings": pa.dictionary(pa.int8(), pa.large_string()),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("lists", [False, True])
def test_puzzles_as_parquet_give_the_same_rows(
    name: str, lists: bool, control: tuple[Rows, Rows], tmp_path: Path
) -> None:
    """Lichess/chess-puzzles has lists of themes, and whole numbers for ratings."""
    columns: dict[str, pa.Array] = {}
    for at, column in enumerate(NAMES):
        values = [row[at] or None for row in PUZZLES]
        if column in ("Rating", "NbPlays"):
            columns[column] = pa.array([int(value or 0) for value in values], pa.int16())
        elif lists and column == "Themes":
            columns[column] = pa.array([(value or "").split() for value in values])
        else:
            text = pa.array(values, pa.string())
            columns[column] = (
                text.dictionary_encode().cast(TEXTS[name])
                if "dict" in name
                else text.cast(TEXTS[name])
            )
    pq.write_table(pa.table(columns), tmp_path / "puzzles.parquet")
    assert read(tmp_path / "puzzles.parquet", tmp_path / "out") == control


@pytest.mark.parametrize("kind", ["string_view", "categorical"])
def test_evaluations_with_any_type_of_text_give_the_rows_of_the_control(
    kind: str, tmp_path: Path
) -> None:
    rows = [
        sorted(datasets.table(out).to_pylist(), key=lambda row: row["game"])
        for out in (tmp_path / "control", tmp_path / kind)
        if ingest(
            [str(shared_data(f"cases/23_evals_{out.name}.parquet"))], out, ALL_TRAIN, workers=1
        )
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


GAMES = """\
id,rated,created_at,turns,victory_status,winner,increment_code,white_id,white_rating,black_id,black_rating,moves,opening_eco
a1,TRUE,1504210000000,10,resign,white,10+0,al,1510,be,1490,e4 e5 Nf3 Nc6 Bb5 a6 Ba4 Nf6 O-O Be7,C84
a2,FALSE,1504211000000,4,mate,black,5+8,ga,1100,de,1200,f3 e5 g4 Qh4#,A00
a3,TRUE,1504212000000,6,outoftime,draw,15+2,ep,1800,ze,1790,d4 d5 c4 e6 Nc3 Nf6,D37
a4,TRUE,1504212000000,3,draw,draw,x,ep,1800,ze,1790,d4 d5 Ke3,D37
"""
EXPECTED = """\
[Event "Rated game"]
[Site "a1"]
[Result "1-0"]
[Termination "Normal"]
[TimeControl "600+0"]
[White "al"]
[Black "be"]
[WhiteElo "1510"]
[BlackElo "1490"]
[ECO "C84"]

1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 1-0

[Event "Casual game"]
[Site "a2"]
[Result "0-1"]
[Termination "Normal"]
[TimeControl "300+8"]
[White "ga"]
[Black "de"]
[WhiteElo "1100"]
[BlackElo "1200"]
[ECO "A00"]

1. f3 e5 2. g4 Qh4# 0-1

[Event "Rated game"]
[Site "a3"]
[Result "1/2-1/2"]
[Termination "Time forfeit"]
[TimeControl "900+2"]
[White "ep"]
[Black "ze"]
[WhiteElo "1800"]
[BlackElo "1790"]
[ECO "D37"]

1. d4 d5 2. c4 e6 3. Nc3 Nf6 1/2-1/2

[Event "Rated game"]
[Site "a4"]
[Result "1/2-1/2"]
[Termination "Normal"]
[White "ep"]
[Black "ze"]
[WhiteElo "1800"]
[BlackElo "1790"]
[ECO "D37"]

1. d4 d5 2. Ke3 1/2-1/2

"""


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_kaggle_s_table_of_games_gives_the_rows_of_its_games(kind: str, tmp_path: Path) -> None:
    table, games = tmp_path / f"games.{kind}", tmp_path / "games.pgn"
    rows = list(csv.DictReader(io.StringIO(GAMES)))
    if kind == "csv":
        table.write_text(GAMES)
    else:
        pq.write_table(pa.Table.from_pylist(rows), table)
    games.write_text(EXPECTED)
    for path in (table, games):
        ingest([str(path)], tmp_path / f"{path.suffix}-out", ALL_TRAIN, workers=1)
    outs = [tmp_path / f"{path.suffix}-out" for path in (table, games)]
    assert datasets.table(outs[0]).equals(datasets.table(outs[1]))
    skipped = ("offset", "length")
    found = [[{**game, **dict.fromkeys(skipped)} for game in datasets.games(out)] for out in outs]
    assert found[0] == found[1]
    assert [game["dropped"] for game in found[0]] == [None, None, None, "illegal move"]


CELLS = {
    # a cell of moves: the movetext that it holds
    '[Event "x"]\n[ECO "C20"]\n[Result "0-1"]\n\n1. e4 e5 2. Nf3 0-1': "1. e4 e5 2. Nf3 0-1",
    f'[Variant "From Position"]\r\n[FEN "{TWINS}"]\r\n\r\n1. e4 e5': "1. e4 e5",
    "1. e4 e5 ; the usual\n2. Nf3 {one; two} Nc6": "1. e4 e5 2. Nf3 Nc6",
    "1. e4\n% 1. d4\n1... e5 1-0": "1. e4 e5",
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_of_pgn_is_read_as_that_game(cell: str, tmp_path: Path) -> None:
    row = {"movetext": cell, "Result": "" if "[Result" in cell else "1-0", "White": 'a"] [ECO "x'}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "games.parquet")
    (game,) = by_kernels.games(tmp_path / "games.parquet")
    start = '[FEN "' + TWINS + '"]\n' if "FEN" in cell else ""
    result = "0-1" if "[Result" in cell else "1-0"
    (tmp_path / "games.pgn").write_text(f'{start}[Result "{result}"]\n\n{CELLS[cell]}\n')
    (plain,) = by_kernels.games(tmp_path / "games.pgn")
    assert (game.status, game.result, game.moves) == ("used", plain.result, plain.moves)
    assert (game.event, game.tags.get("ECO", b"")) == (
        (b"x", b"C20") if "[Result" in cell else (b"?", b"")
    )
    assert game.tags["White"] == b'a") [ECO "x'


def test_tags_that_only_this_program_writes_are_not_taken_from_a_cell(tmp_path: Path) -> None:
    row = {"movetext": '[FianchettoLabels "0"]\n\n1. e4 e5 1-0', "Result": "1-0"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "games.parquet")
    (game,) = by_kernels.games(tmp_path / "games.parquet")
    assert (game.status, game.result, "FianchettoLabels" in game.tags) == ("used", 1, False)


def test_the_example_of_a_row_with_a_field_too_many_counts_its_fields(tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_bytes(write_csv([NAMES, *PUZZLES, (*PUZZLES[0], "", "x")]))
    made = ingest([str(tmp_path / "puzzles.csv")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert "12 fields, expected 10" in made["examples"]["bad row"]["text"]


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def encrypted(files: dict[str, bytes]) -> bytes:
    """Return a zip archive whose flags say that it is encrypted."""
    data = bytearray(zipped(files, zipfile.ZIP_STORED))
    data[6] |= 1
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def patched(at: int, value: int) -> bytes:
    """Return a zip archive with another byte in the directory's entry of its file."""
    data = bytearray(zipped({"a.pgn": b"1. e4 1-0\n"}, zipfile.ZIP_STORED))
    data[data.rindex(b"PK\x01\x02") + at] = value
    return bytes(data)


TEXT = "".join(datasets.random_game(seed) for seed in range(30)).encode()


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_zip_archive_gives_the_rows_of_its_file(method: int, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_bytes(TEXT)
    extra = {"folder/": b"", "__MACOSX/._games.pgn": b"x", "folder/games.pgn": TEXT}
    (tmp_path / "games.zip").write_bytes(zipped(extra, method))
    made = [
        ingest([str(tmp_path / name)], tmp_path / f"{name}-out", ALL_TRAIN, workers=1)
        for name in ("games.pgn", "games.zip")
    ]
    assert made[0]["files"] == made[1]["files"]
    assert made[1]["sources"][0]["bytes"] == (tmp_path / "games.zip").stat().st_size
    again = ingest([str(tmp_path / "games.zip")], tmp_path / "games.zip-out", ALL_TRAIN, workers=1)
    assert again == made[1], "recognised by its hash"


def test_a_zip_archive_from_a_pipe_is_refused_by_name(tmp_path: Path) -> None:
    pipe = tmp_path / "games.zip"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(zipped({"a.pgn": TEXT}),))
    writer.start()
    with pytest.raises(DumpError, match=r"games\.zip is a zip archive.*from files only"):
        Source(str(pipe)).open()
    writer.join()


def test_a_damaged_zip_archive_keeps_the_games_before_the_damage(tmp_path: Path) -> None:
    text = "".join(datasets.random_game(seed) for seed in range(400)).encode()
    data = bytearray(zipped({"games.pgn": text}, zipfile.ZIP_STORED))
    data[len(data) * 2 // 3] ^= 0xFF
    (tmp_path / "games.zip").write_bytes(data)
    with pytest.raises(DamagedError, match="zip archive is damaged"):
        ingest([str(tmp_path / "games.zip")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert len(datasets.games(tmp_path / "out")) > 100


def tarred() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("games.pgn")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT))
    return made.getvalue()


START = chess.STARTING_FEN
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "two files": (
        lambda: zipped({"a.pgn": TEXT, "b.pgn": TEXT}),
        r"zip archive of 2 files \(a.pgn, b.pgn\)",
    ),
    "an empty zip": (lambda: zipped({}), "empty zip archive"),
    "only folders": (lambda: zipped({"a/": b""}), "zip archive of 0 files"),
    "encrypted": (lambda: encrypted({"a.pgn": TEXT}), "encrypted zip archive"),
    "a cut zip": (lambda: zipped({"a.pgn": TEXT})[:-30], "incomplete zip archive"),
    "a zip of another version": (lambda: patched(6, 99), "zip archive .*version 9.9"),
    "a zip of another method": (lambda: patched(10, 97), "zip archive that cannot be read"),
    "zstd in a zip": (
        lambda: zipped({"a.pgn.gz": gzip.compress(TEXT)}),
        "inside a zip archive, a gzip archive",
    ),
    "a zip in gzip": (
        lambda: gzip.compress(zipped({"a.pgn": TEXT})),
        "inside a gzip archive, a zip archive",
    ),
    "xz": (lambda: lzma.compress(TEXT), "xz archive: unpack it"),
    "lzma": (lambda: lzma.compress(TEXT, lzma.FORMAT_ALONE), "lzma archive: unpack it"),
    "7z": (lambda: b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(range(256)) * 20, "7z archive: unpack it"),
    "RAR": (lambda: b"Rar!\x1a\x07\x01\x00" + bytes(range(1, 256)) * 20, "RAR archive: unpack it"),
    "tar": (tarred, "tar archive: unpack it"),
    "tar.gz": (lambda: gzip.compress(tarred()), "inside a gzip archive, a tar archive"),
    "tar.bz2": (lambda: bz2.compress(tarred()), "inside a bz2 archive, a tar archive"),
    "a database": (lambda: b"SQLite format 3\x00" + bytes(range(1, 256)) * 40, "SQLite database"),
    "Arrow": (lambda: b"ARROW1\x00\x00" + b"\xff" * 999, "Arrow file: save it as Parquet"),
    "a web page": (lambda: b"<!DOCTYPE html>\n<html><body>1. e4 e5</body></html>", "web page"),
    "games as JSON": (
        lambda: b'{"id":"a","moves":"e4 e5"}\n{"id":"b","moves":"d4 d5"}\n',
        "is JSON.*as PGN",
    ),
    "a list as JSON": (lambda: b'[\n {"fen": "x", "evals": []}\n]\n', "is JSON"),
    "a table of results": (
        lambda: b"white,black,result\na,b,1-0\nc,d,0-1\n",
        "is a table of white,black,result",
    ),
    "a table without names": (
        lambda: b"a,b,e4 e5 Nf3,1-0\nc,d,d4 d5,0-1\n",
        "is a table of a,b,e4 e5",
    ),
    "no move": (
        lambda: b"fen,rating,name\n" + f"{START},1,x\n".encode(),
        "table of fen, rating.*one of",
    ),
    "FEN and moves": (lambda: f"{START},e2e4 e7e5\n".encode(), "put a line of names above it"),
    "PGN in a column": (
        lambda: b'white,pgn\na,"1. e4 e5 1-0"\nb,"1. d4 d5 1-0"\n',
        "a column of PGN",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    make, problem = REFUSED[name]
    (tmp_path / "games").write_bytes(make())
    with pytest.raises(DumpError, match=rf"games.*{problem}"):
        ingest([str(tmp_path / "games")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert not (tmp_path / "out").exists(), "a failed ingest leaves no folder"


def test_an_unknown_table_as_parquet_says_what_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"fen": [START], "depth": [3]}), tmp_path / "x.parquet")
    with pytest.raises(DumpError, match=r"table of fen, depth.*puzzles PuzzleId"):
        ingest([str(tmp_path / "x.parquet")], tmp_path / "out", ALL_TRAIN, workers=1)


def test_pgn_that_looks_a_little_like_a_table_is_pgn(tmp_path: Path) -> None:
    """Commas in the first tag, in remarks and in a preamble."""
    texts = (
        '[Event "fen,best,move"]\n',
        "; fen, best, move\n\n",
        "% a, b, c\n",
        "Games, by x, y\n\n",
    )
    for at, first in enumerate(texts):
        (tmp_path / f"{at}.pgn").write_text(f'{first}[Site "x"]\n[Result "1-0"]\n\n1. e4 e5 1-0\n')
        assert (
            ingest([str(tmp_path / f"{at}.pgn")], tmp_path / str(at), ALL_TRAIN, workers=1)[
                "games"
            ]["used"]
            == 1
        )


def test_json_lines_whose_first_object_has_no_evaluation_are_read(tmp_path: Path) -> None:
    first = f'{{"fen": "{START}"}}\n'
    good = (
        f'{{"fen": "{START}", "evals": [{{"pvs": [{{"cp": 20, "line": "e2e4"}}], "knodes": 1, '
        f'"depth": 9}}]}}\n'
    )
    (tmp_path / "evals.jsonl").write_text(first + good)
    made = ingest([str(tmp_path / "evals.jsonl")], tmp_path / "out", ALL_TRAIN, workers=1)
    assert made["games"] == {"read": 2, "used": 1, "dropped": {"bad row": 1}}


def test_an_empty_table_has_no_positions(tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_bytes(write_csv([NAMES]))
    with pytest.raises(DatasetError, match="0 games read"):
        ingest([str(tmp_path / "puzzles.csv")], tmp_path / "out", ALL_TRAIN, workers=1)
