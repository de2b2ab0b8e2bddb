"""Hostile and real PGN files, compared game by game with python-chess."""

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import shared_data
from tests.pipeline import by_kernels
from tests.pipeline.pgn import mutants

FOLDERS = (
    "chess-library", "chess.js", "chesslablab-unit", "crazyara", "fastchess", "kdave",
    "pgn-extract", "python-chess", "yacai",
)  # fmt: skip

COMPARED = 8
"""Games of a file that the quick tests compare, at 2 ms a game; the slow ones compare all."""

FATES = {
    # What becomes of the games of a folder. python-chess can read on through null moves, and plays
    # variants; it says nothing of a checkmate with the wrong result. None of these is standard
    # chess, so none is used.
    "": {"used": 395},
    "chess-library": {
        "used": 15, "illegal move": 1, "unreadable move": 1, "no moves": 12, "bad FEN": 2,
        "unfinished": 1,
    },
    "chess.js": {"unreadable move": 1, "used": 2, "unfinished": 1},
    "chesslablab-unit": {"unreadable move": 14, "unfinished": 103, "used": 7159},
    "crazyara": {"variant": 1333},
    "fastchess": {"variant": 4, "used": 9, "no moves": 3, "illegal move": 1},
    "kdave": {"used": 4, "unfinished": 3},
    "pgn-extract": {
        "used": 287, "unclosed comment": 1, "null move": 2, "result contradicts board": 5,
        "unreadable move": 1, "unfinished": 6,
    },
    "python-chess": {"null move": 1, "variant": 8, "used": 11, "no moves": 2},
    "yacai": {"used": 34, "unfinished": 41},
}  # fmt: skip

REAL = {
    # file: (games compared, fates of all)
    "lichess_dump_2013-01_100.pgn": (100, {"used": 100}),
    "lichess_dump_2021-10_999.pgn": (999, {"used": 986, "no moves": 13}),
    "lichess_export_2016-05.pgn": (1000, {"used": 2924, "no moves": 4, "variant": 5}),
    "lichess_export_2024-05_blitz.pgn": (300, {"used": 4075}),
    "lichess_export_2022-2026_blitz.pgn": (300, {"used": 3970}),
}


def compare(path: Path, name: str, count: int) -> Counter[str]:
    """Compare the first `count` games of a file with python-chess; count the statuses of all."""
    games = list(by_kernels.games(path))
    assert not (found := mutants.differ(games[:count])), f"{name}: {found}"
    return Counter(game.status for game in games)


def files(folder: str) -> list[tuple[Path, str]]:
    """List the files of a folder of the hostile collection; "": those outside the folders."""
    root = shared_data("robustness")
    found = root.iterdir() if not folder else (root / folder).rglob("*")
    return [(path, path.relative_to(root).as_posix()) for path in sorted(found) if path.is_file()]


def test_every_file_is_in_a_folder_that_is_compared() -> None:
    everything = [path for path in shared_data("robustness").rglob("*") if path.is_file()]
    compared = [path for folder in ("", *FOLDERS) for path, _ in files(folder)]
    assert sorted(everything) == sorted(compared)
    assert len(everything) == 313


@pytest.mark.parametrize(
    ("folder", "compared"),
    [
        *((folder, COMPARED) for folder in ("", *FOLDERS)),
        *(pytest.param(folder, 1_000, marks=pytest.mark.slow) for folder in ("", *FOLDERS)),
    ],
)
def test_hostile_files_give_the_games_that_python_chess_can_replay(
    folder: str, compared: int
) -> None:
    fates: Counter[str] = Counter()
    for path, name in files(folder):
        fates += compare(path, name, compared)
    assert fates == FATES[folder]


@pytest.mark.parametrize("most", [COMPARED, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REAL)
def test_real_files_give_the_games_that_python_chess_can_replay(name: str, most: int) -> None:
    compared, fates = REAL[name]
    assert compare(shared_data(f"pgn/{name}"), name, min(compared, most)) == fates
