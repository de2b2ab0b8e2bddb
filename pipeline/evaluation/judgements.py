"""Scores of every legal move of many positions by an engine, by which moves of players and people are measured.

    games.pgn -> random positions -> the engine, all moves at one depth -> judged.jsonl, a line per position

A line is written as soon as its position is judged, so a stopped or killed run continues from there. Scores are expected
scores of the side to move, 0..1, by Lichess's curve over centipawns (lichess.org/page/accuracy). A move that forces mate
scores 1, and one that allows it 0.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import exp
from pathlib import Path
from threading import local

import chess
import chess.engine
import chess.pgn
import numpy as np

from engine.board.position import MAX_MOVES
from engine.errors import UserError
from engine.json_files import parse_json
from engine.match.players import Player
from engine.match.uci_player import start
from engine.progress import Progress, Stop, Tick, never, silent
from engine.temporaries import name_path
from pipeline.dumps.reader import open_text
from pipeline.errors import DumpError, Stopped
from pipeline.storage.claims import JUDGEMENTS, claim, require_own
from pipeline.storage.preflight import installed, require_program
from pipeline.storage.stores import alone, file_hash

FORMAT_VERSION = 1
NAMES = ("judge.json", "judged.jsonl")
"""Files of a folder of judgements: its configuration and the scores."""
CURVE = 0.00368208
"""Slope of Lichess's logistic curve per centipawn."""
POLL_SECONDS = 0.2
"""Seconds between polls of `stop` while engines think."""
FIRST_PLY = 4
"""First ply that may be judged: earlier positions are the same in most games."""
A_GAME = 2
"""Most positions of one game: neighboring positions are similar."""


class JudgeError(UserError):
    """Positions that cannot be judged, or players that cannot be measured."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A position with the scores of all its legal moves."""

    fen: str
    scores: dict[str, float]
    """Expected score of the side to move after each move (UCI notation), 0..1."""

    @property
    def best(self) -> float:
        """Return the best move's score."""
        return max(self.scores.values())


def find_engine(engine: str) -> tuple[str, ...]:
    """Return an engine's command, which may lie in Debian's folder of games too; raises JudgeError without one."""
    command = tuple(shlex.split(engine))
    if not command:
        raise JudgeError("give the command that starts the engine, for instance --engine stockfish")
    require_program(command := installed(command))
    return command


def expected_score(score: chess.engine.Score) -> float:
    """Return an engine's score as an expected score, 0..1, from the same side's view."""
    mate = score.mate()
    if mate is not None:
        return 1.0 if mate > 0 or score == chess.engine.MateGiven else 0.0
    return 1.0 / (1.0 + exp(-CURVE * (score.score() or 0)))


def draw_positions(pgn: Path, count: int, seed: int, stop: Stop = never) -> list[str]:
    """Return FENs drawn from the first games of a PGN file: at most two a game, no duplicates, more than one legal move.

    Raises JudgeError for a file without games, and Stopped.
    """
    chance, found = np.random.Generator(np.random.PCG64(seed)), dict[str, None]()
    try:
        with open_text(pgn) as file:
            while len(found) < count and (game := chess.pgn.read_game(file)) is not None:
                found |= dict.fromkeys(_draw_from_game(game, chance))
                if stop():
                    raise Stopped("stopped before any position was judged; run the same command to begin again")
    except (OSError, DumpError) as error:
        raise JudgeError(f"{pgn} cannot be read: {error}") from error
    if not found:
        raise JudgeError(f"{pgn} has no game of {FIRST_PLY + 1} half-moves or more")
    return list(found)[:count]


def _draw_from_game(game: chess.pgn.Game, chance: np.random.Generator) -> Iterator[str]:
    moves, board = list(game.mainline_moves()), game.board()
    if game.errors or not isinstance(board, chess.Board) or board.uci_variant != "chess" or board.chess960:
        return
    plies = range(FIRST_PLY, len(moves))
    wanted = set(chance.choice(plies, size=min(A_GAME, len(plies)), replace=False).tolist()) if plies else set()
    for ply, move in enumerate(moves):
        if ply in wanted and 1 < board.legal_moves.count() <= MAX_MOVES:
            yield board.fen()
        board.push(move)


def judge_positions(
    pgn: Path,
    out: Path,
    *,
    positions: int,
    command: Sequence[str],
    depth: int,
    seed: int = 0,
    workers: int = 1,
    progress: Progress = silent,
    stop: Stop = never,
) -> list[Judged]:
    """Judge random positions of a PGN file, or continue a stopped run, and return those that are judged.

    Raises JudgeError for a file without games, another judgement in `out`, or an engine that does not judge every move.
    """
    if positions < 1 or depth < 1 or workers < 1:
        raise JudgeError("positions, depth and workers are 1 or more")
    require_own(out, JUDGEMENTS, JudgeError)
    with alone(out, JudgeError(f"{out} is being judged by another process")):
        fens = draw_positions(pgn, positions, seed, stop)
        if not (out / NAMES[0]).exists() and (out / NAMES[1]).exists():
            raise JudgeError(f"{out} has judgements of an unknown engine: choose another directory")
        settings = {"command": list(command), "positions": positions, "depth": depth, "seed": seed}
        claim(out / NAMES[0], {"format_version": FORMAT_VERSION, "pgn_sha256": file_hash(pgn), **settings}, JudgeError)
        done = read_judgements(out)
        todo = [fen for fen in fens if fen not in done]
        if _has_torn_line(out / NAMES[1]):  # the line that a kill cut off is ended, and `read_judgements` skips it
            _append(out / NAMES[1], "\n")
        for one in _judge_each(todo, command, depth, workers, stop):
            done[one.fen] = one
            _append(out / NAMES[1], _line(one))
            progress(Tick(len(done), len(fens), "positions"))
    return [done[fen] for fen in fens if fen in done]


def _append(path: Path, text: str) -> None:
    """Append to a file; an error of a full disk, which closing it raises again, names the file."""
    with name_path(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


def _has_torn_line(path: Path) -> bool:
    """Return whether the last line of a file lacks its line feed."""
    written = path.read_bytes() if path.exists() else b""
    return written != b"" and not written.endswith(b"\n")


def read_judgements(out: Path) -> dict[str, Judged]:
    """Read the judgements of a folder by FEN; lines that are cut off, or do not fit their position, are skipped."""
    found: dict[str, Judged] = {}
    path = out / NAMES[1]
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            entry = parse_json(line)
            scores = {str(move): float(x) for move, x in entry["scores"].items()}
            legal = {move.uci() for move in chess.Board(entry["fen"]).legal_moves}
            if scores.keys() == legal and all(0 <= score <= 1 for score in scores.values()):
                found[entry["fen"]] = Judged(entry["fen"], scores)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _line(one: Judged) -> str:
    return json.dumps({"fen": one.fen, "scores": one.scores}) + "\n"


def _judge_each(fens: Sequence[str], command: Sequence[str], depth: int, workers: int, stop: Stop) -> Iterator[Judged]:
    """Yield positions as they are judged, in any order; every thread has its own engine."""
    mine, engines = local(), list[chess.engine.SimpleEngine]()

    def judge(fen: str) -> Judged | None:
        if stop():
            return None
        if not hasattr(mine, "engine"):
            mine.engine = start(Player(name="judge", command=tuple(command), options={"Threads": "1", "Hash": "64"}))
            engines.append(mine.engine)
            if stop():
                return None
        board = chess.Board(fen)
        moves = board.legal_moves.count()
        try:
            lines = mine.engine.analyse(board, chess.engine.Limit(depth=depth), multipv=moves, game=fen)
        except chess.engine.EngineError as error:
            raise JudgeError(f"{command[0]} failed on {fen}: {error}") from error
        found = {line["pv"][0].uci(): line["score"].relative for line in lines if line.get("pv")}
        scores = {move: round(expected_score(score), 5) for move, score in found.items()}
        if len(scores) != moves:
            raise JudgeError(f"{command[0]} judged {len(scores)} of {moves} moves of {fen}: it needs MultiPV for all")
        return Judged(fen, scores)

    def close() -> None:
        for engine in engines:
            engine.close()  # ends a search that is running; an engine that crashed cannot be asked to quit

    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
            try:
                waiting = {pool.submit(judge, fen) for fen in fens}
                while waiting and not stop():
                    finished, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                    yield from (one for future in finished if (one := future.result()) is not None)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                close()
    finally:
        close()  # engines that a thread started after the first call
