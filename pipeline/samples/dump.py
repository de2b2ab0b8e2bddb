"""The embedded sample: a dump in Lichess's layout of games between this project's own hand-written players.

The games are the same on every machine (pipeline/samples/play.py). The compressed file may differ between versions of zstd;
its text does not.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import chess
import numpy as np

from engine.board.position import from_board
from engine.board.rules import MATE
from engine.encoding.planes import move_of
from engine.errors import UserError
from engine.progress import Progress, Tick, silent
from pipeline.samples import play as sample_play
from pipeline.samples.shipped import SAMPLE as SAMPLE
from pipeline.storage.preflight import require_folder
from pipeline.storage.stores import publish

SEED = 20260101
LEVEL = 19
"""Compression level of zstd."""
SITE = "https://fianchetto.invalid/"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_START = datetime(2026, 1, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """One strength of the hand-written player."""

    name: str
    elo: int
    """Label of strength: ordered as the players score against each other, anchored to nothing else."""
    temperature: int
    """Centipawns a nat: the lower, the likelier the best move."""
    ahead: int
    """Percent of a move's score that is the value one ply later."""
    resigns: int
    """Percent chance, at each move of a lost game, to resign."""


PLAYERS = (
    Player(name="paper-pawn", elo=850, temperature=46, ahead=0, resigns=2),
    Player(name="straw-knight", elo=1000, temperature=32, ahead=0, resigns=3),
    Player(name="clay-bishop", elo=1150, temperature=23, ahead=0, resigns=4),
    Player(name="wooden-rook", elo=1300, temperature=17, ahead=0, resigns=6),
    Player(name="tin-knight", elo=1450, temperature=18, ahead=40, resigns=8),
    Player(name="copper-bishop", elo=1600, temperature=13, ahead=45, resigns=10),
    Player(name="iron-rook", elo=1750, temperature=9, ahead=50, resigns=12),
    Player(name="steel-queen", elo=1900, temperature=6, ahead=50, resigns=15),
)
TIME_CONTROLS = ((60, 0), (180, 0), (180, 2), (300, 0), (300, 3), (600, 0), (600, 5), (900, 10))
"""Seconds and increment in seconds."""

# A game gets the code of the longest line that it begins with, SAN.
_LINES = """
A00; A01 b3; A02 f4; A04 Nf3; A10 c4; A20 c4 e5; A30 c4 c5
A40 d4; A45 d4 Nf6; A50 d4 Nf6 c4; A80 d4 f5; D00 d4 d5; D02 d4 d5 Nf3; D06 d4 d5 c4; D10 d4 d5 c4 c6; D20 d4 d5 c4 dxc4
D30 d4 d5 c4 e6; E00 d4 Nf6 c4 e6; E60 d4 Nf6 c4 g6
B00 e4; B01 e4 d5; B02 e4 Nf6; B06 e4 g6; B07 e4 d6; B10 e4 c6; B20 e4 c5; B23 e4 c5 Nc3; B27 e4 c5 Nf3
C00 e4 e6; C01 e4 e6 d4 d5; C20 e4 e5; C23 e4 e5 Bc4; C25 e4 e5 Nc3; C30 e4 e5 f4; C40 e4 e5 Nf3; C41 e4 e5 Nf3 d6
C42 e4 e5 Nf3 Nf6; C44 e4 e5 Nf3 Nc6; C50 e4 e5 Nf3 Nc6 Bc4; C60 e4 e5 Nf3 Nc6 Bb5
"""
_ECO = {line[4:]: line[:3] for line in _LINES.strip().replace("\n", "; ").split("; ")}


class SampleError(UserError):
    """A sample that cannot be made as asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """One finished game."""

    number: int
    site: str
    started: datetime
    white: Player
    black: Player
    base: int
    """Seconds."""
    increment: int
    """Seconds."""
    sans: tuple[str, ...]
    clocks: tuple[int, ...]
    """Seconds left to the mover after each move."""
    result: str
    termination: str
    ending: int
    """One of sample_play's endings."""


def played(count: int, seed: int = SEED) -> Iterator[Game]:
    """Play `count` games; the first ones are the same whatever the count."""
    for number in range(count):
        yield _game(number, seed)


def _game(number: int, seed: int) -> Game:
    """Play one game, drawn from the seed and its number alone."""
    mixed = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    state = np.frombuffer(mixed[:8], dtype="<u8").astype(np.uint64)
    first = mixed[8] % len(PLAYERS)
    gap = (-3, -2, -1, -1, 0, 1, 1, 2, 3)[mixed[9] % 9]
    second = min(max(first + gap, 0), len(PLAYERS) - 1)
    white, black = PLAYERS[first], PLAYERS[second]
    base, increment = TIME_CONTROLS[mixed[10] % len(TIME_CONTROLS)]
    position = from_board(chess.Board())
    moves = np.zeros((sample_play.MAX_PLIES, 3), dtype=np.int64)
    strengths = np.array([[p.temperature, p.ahead, p.resigns] for p in (white, black)], dtype=np.int64)
    plies, ending = sample_play.play(position, state, strengths, base, increment, moves)
    board, sans = chess.Board(), []
    for label, promotion, _ in moves[:plies].tolist():
        sans.append(board.san_and_push(move_of(label, promotion, board.turn)))
    result, termination = _verdict(board, ending)
    return Game(
        number=number,
        site="".join(_LETTERS[byte % 62] for byte in mixed[11:19]),
        started=_START + timedelta(seconds=41 * number),
        white=white,
        black=black,
        base=base,
        increment=increment,
        sans=tuple(sans),
        clocks=tuple(moves[:plies, 2].tolist()),
        result=result,
        termination=termination,
        ending=ending,
    )


def _verdict(board: chess.Board, ending: int) -> tuple[str, str]:
    """Return the result and Lichess's word for the termination, from the last board."""
    termination = "Time forfeit" if ending == sample_play.FLAGGED else "Normal"
    lost = ending in (MATE, sample_play.RESIGNED, sample_play.FLAGGED)
    if not lost or (ending == sample_play.FLAGGED and board.has_insufficient_material(not board.turn)):
        return "1/2-1/2", termination
    return ("0-1" if board.turn == chess.WHITE else "1-0"), termination


def _eco(sans: tuple[str, ...]) -> str:
    """Return the code of the longest known line."""
    return next((_ECO[line] for plies in range(5, -1, -1) if (line := " ".join(sans[:plies])) in _ECO), "?")


def _event(base: int, increment: int) -> str:
    """Return Lichess's event of a rated game; the speed follows from base and forty increments."""
    seconds = base + 40 * increment
    speed = "Bullet" if seconds < 180 else "Blitz" if seconds < 480 else "Rapid" if seconds < 1500 else "Classical"
    return f"Rated {speed} game"


def pgn(game: Game) -> str:
    """Return a game as in Lichess's dumps: tags, movetext with clocks on one line, an empty line after each."""
    day, second = game.started.strftime("%Y.%m.%d"), game.started.strftime("%H:%M:%S")
    tags = {
        "Event": _event(game.base, game.increment),
        "Site": SITE + game.site,
        "Date": day,
        "Round": "-",
        "White": game.white.name,
        "Black": game.black.name,
        "Result": game.result,
        "UTCDate": day,
        "UTCTime": second,
        "WhiteElo": str(game.white.elo),
        "BlackElo": str(game.black.elo),
        "ECO": _eco(game.sans),
        "TimeControl": f"{game.base}+{game.increment}",
        "Termination": game.termination,
    }
    words = []
    for ply, (san, clock) in enumerate(zip(game.sans, game.clocks, strict=True)):
        dots = "..." if ply % 2 else "."
        words.append(f"{ply // 2 + 1}{dots} {san} {{ [%clk {clock // 3600}:{clock // 60 % 60:02}:{clock % 60:02}] }}")
    head = "\n".join(f'[{name} "{text}"]' for name, text in tags.items())
    return f"{head}\n\n{' '.join([*words, game.result])}\n\n"


def sample(out: Path, games: int = 2000, seed: int = SEED, progress: Progress = silent) -> dict[str, object]:
    """Write the dump to `out` (.pgn or .pgn.zst), atomically; return games, plies, bytes, hash, results and terminations.

    The hash, `sha256`, is of the text before compression. Raises SampleError for another suffix, no games, or an existing
    file of other content at `out`, which is left as it is.
    """
    import zstandard

    if not out.name.endswith((".pgn", ".pgn.zst")):
        raise SampleError(f"{out}: name the sample .pgn or .pgn.zst")
    if games < 1:
        raise SampleError(f"--games is {games}: ask for at least one game")
    require_folder(out.parent)
    taken = f"{out} exists and has other content: remove it, or choose another --out"
    if out.is_dir():
        raise SampleError(taken)
    parts: list[bytes] = []
    plies, results, terminations = 0, Counter[str](), Counter[str]()
    for game in played(games, seed):
        parts.append(pgn(game).encode())
        plies += len(game.sans)
        results[game.result] += 1
        terminations[game.termination] += 1
        progress(Tick(game.number + 1, games, "games"))
    text = b"".join(parts)
    packed = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(text) if out.suffix == ".zst" else text
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        publish(out.parent, out.name, games, lambda target: target.write(packed))
    elif out.read_bytes() != packed:
        raise SampleError(taken)
    return {
        "path": str(out),
        "games": games,
        "plies": plies,
        "bytes": len(packed),
        "sha256": hashlib.sha256(text).hexdigest(),
        "results": dict(sorted(results.items())),
        "terminations": dict(sorted(terminations.items())),
    }
