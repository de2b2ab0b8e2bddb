"""Read PGN with pgn-extract, a program that shares no code with python-chess."""

import re
import shutil
import subprocess
from dataclasses import dataclass

import chess
import pytest

PROGRAM = shutil.which("pgn-extract") or shutil.which("pgn-extract", path="/usr/games")
needs_pgn_extract = pytest.mark.skipif(
    PROGRAM is None, reason="pgn-extract is absent: apt-get install pgn-extract"
)
OPTIONS = ("-Wuci", "--nomovenumbers", "--nochecks", "-C", "-N", "-V", "-w99999", "-s")
_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?")
_TAG = re.compile(rb'\[(\w+) "(.*)"\]')


@dataclass(frozen=True, slots=True)
class Game:
    """A game in which pgn-extract finds no error."""

    event: bytes
    fen: str
    moves: tuple[str, ...]
    """Moves in UCI notation."""


def read(data: bytes) -> list[Game]:
    """Return the games that pgn-extract reads without an error, in the order of the file.

    It writes a game with an error without its moves. The words after the last move are the result,
    which may be any text of the tag.
    """
    assert PROGRAM is not None
    done = subprocess.run(
        [PROGRAM, *OPTIONS], input=data, capture_output=True, timeout=60, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-1000:]
    games: list[Game] = []
    tags: dict[bytes, bytes] = {}
    for line in done.stdout.splitlines():
        if match := _TAG.fullmatch(line):
            if match[1] == b"Event":  # the first tag of each game
                tags = {}
            tags[match[1]] = match[2]
        elif line.strip():
            moves = line.decode("latin-1").lower().split()
            while moves and not _UCI.fullmatch(moves[-1]):
                moves.pop()
            fen = tags.get(b"FEN", chess.STARTING_FEN.encode()).decode("latin-1")
            if moves:
                games.append(Game(tags.get(b"Event", b"?"), fen, tuple(moves)))
    return games
