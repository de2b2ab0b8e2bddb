"""Held-out positions of people's games, and a referee's scores of them, by which teachers are compared.

    datasets --val or test splits--> positions --UCI engine, every move at one depth--> engine_scores.jsonl, a line each

Lines are written at once, so a killed loop does not score a position twice. Scores are expected scores of the side to
move, 0..1, by Lichess's curve over centipawns (lichess.org/page/accuracy); a forced mate scores 1 or 0.

Axes: N positions, P planes, W words of a position.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any

import chess
import chess.engine
import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.board.position import to_fen
from engine.board.rules import insufficient
from engine.cores import cores
from engine.json_files import parse_json
from engine.match.players import Contestant
from engine.match.uci_player import start
from engine.progress import Progress, Stop, Tick
from engine.temporaries import name_path
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.errors import ConfigError, Stopped
from pipeline.finetune.state import FinetuneError
from pipeline.selfplay.draw import FIRST_PLY, rank_equals
from pipeline.training.train import has_split

ENGINE_SCORES = "engine_scores.jsonl"
DEPTH = 9
"""Depth to which the engine searches every move."""
CURVE = 0.00368208
"""Slope of Lichess's logistic curve per centipawn."""
COLUMNS = ("planes", "castling", "ep_file", "halfmove", "ply", "plies", "game", "eval", "result")
OVERSAMPLE = 20
"""Rows that are drawn for each position that is wanted, so that most come from different games."""
PER_GAME, MAX_PER_GAME = 2, 8
"""Positions of one game: usually, and at most where there are too few games."""
FIFTY_MOVES = 100
"""Half-moves without a capture or a pawn's move that end a game."""
POLL_SECONDS = 0.2
"""Seconds between polls of `stop` while engines think."""

Scores = dict[str, float]
"""Expected score of the side to move, 0..1, after each legal move in UCI notation."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Positions that no training saw, in random order."""

    positions: NDArray[np.uint64]  # [N, W]
    planes: NDArray[np.uint64]  # [N, P]
    games: NDArray[np.uint64]  # [N] dataset << 32 | game
    evals: NDArray[np.int16]  # [N] centipawns for the mover, -32768 if unknown
    results: NDArray[np.int8]  # [N] the game's result for the mover

    @property
    def fens(self) -> list[str]:
        """Return the positions as FENs."""
        return [to_fen(position) for position in self.positions]


def draw_held_out(human: Sequence[Path], count: int, seed: int = 0) -> HeldOut:
    """Draw positions of the validation splits, or of the test splits where a dataset has none to validate on.

    Positions belong to games, have at least two legal moves, and occur from half-move FIRST_PLY on. Raises ConfigError where
    no dataset has any.
    """
    parts = [part for number, directory in enumerate(human) for part in _sample(directory, number, count, seed)]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    if not rows or not len(rows["game"]):
        raise ConfigError(
            "no held-out positions to choose a teacher by: ingest with a validation or test split, or take --teach policy"
        )
    order_R = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows["game"]))
    rows = {name: column[order_R] for name, column in rows.items()}
    rank_R, most = _rank(rows["game"]), PER_GAME
    while (rank_R < most).sum() < count and most < MAX_PER_GAME:
        most *= 2
    chosen_N = np.flatnonzero(rank_R < most)[:count]
    rows = {name: column[chosen_N] for name, column in rows.items()}
    return HeldOut(row_positions(rows), rows["planes"], rows["game"], rows["eval"], rows["result"])


def _sample(directory: Path, number: int, count: int, seed: int) -> Iterator[Batch]:
    """Yield random rows of a dataset's held-out split that an engine can score."""
    split = next((split for split in ("val", "test") if has_split([directory], split)), None)
    if split is None:
        return
    batches = Batches([directory], split, batch_size=4096, seed=seed, columns=COLUMNS)
    for batch in batches.sample(OVERSAMPLE * count):
        moves_R = np.bitwise_count(batch["planes"][:, MOVE_PLANES:]).sum(axis=1)
        goes_on_R = (batch["halfmove"] < FIFTY_MOVES) & ~np.array([insufficient(one) for one in row_positions(batch)])
        rows_R = np.flatnonzero((moves_R > 1) & goes_on_R & (batch["ply"] >= FIRST_PLY) & (batch["plies"] > 0))
        part = {name: column[rows_R] for name, column in batch.items()}
        yield part | {"game": part["game"].astype(np.uint64) | np.uint64(number << 32)}


def _rank(games_R: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many rows of the same game come before each row."""
    order_R = np.argsort(games_R, kind="stable")
    rank_R = np.empty(len(games_R), dtype=np.int64)
    rank_R[order_R] = rank_equals(games_R[order_R])
    return rank_R


def expected_score(centipawns: Any) -> Any:
    """Return expected scores, 0..1, of evaluations in centipawns."""
    return 1.0 / (1.0 + np.exp(-CURVE * centipawns))


def score_positions(
    fens: Sequence[str], command: Sequence[str], out: Path, progress: Progress, stop: Stop
) -> list[Scores]:
    """Return the scores of all legal moves of positions; those in `out` from an earlier start are used again.

    Raises FinetuneError for an engine that fails or does not score every move, PlayerError, and Stopped.
    """
    by = " ".join([Path(command[0]).name, *command[1:], f"depth {DEPTH}"])
    path = out / ENGINE_SCORES
    done = _read_scores(path, by)
    todo = [fen for fen in dict.fromkeys(fens) if fen not in done]
    with name_path(path), path.open("a", encoding="utf-8") as file:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            file.write("\n")  # ends the line that a kill cut off
        for fen, scores in _score_each(todo, command, stop):
            file.write(json.dumps({"by": by, "fen": fen, "scores": scores}) + "\n")
            file.flush()
            done[fen] = scores
            progress(Tick(len(done), len(fens), "positions scored"))
    if stop():
        raise Stopped("stopped while positions were scored")
    return [done[fen] for fen in fens]


def _read_scores(path: Path, by: str) -> dict[str, Scores]:
    """Read an engine's scores by FEN; lines that are cut off, or do not fit their position, are skipped."""
    found: dict[str, Scores] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            entry = parse_json(line)
            scores = {str(move): float(x) for move, x in entry["scores"].items()}
            legal = {move.uci() for move in chess.Board(entry["fen"]).legal_moves}
            if entry["by"] == by and scores.keys() == legal and all(0 <= score <= 1 for score in scores.values()):
                found[entry["fen"]] = scores
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _score_each(fens: Sequence[str], command: Sequence[str], stop: Stop) -> Iterator[tuple[str, Scores]]:
    """Yield positions with their scores as they are scored, in any order, one engine per core, until `stop` returns True."""
    mine, engines = local(), list[chess.engine.SimpleEngine]()

    def score(fen: str) -> tuple[str, Scores] | None:
        if stop():
            return None
        if not hasattr(mine, "engine"):
            mine.engine = start(
                Contestant(name="referee", command=tuple(command), options={"Threads": "1", "Hash": "16"})
            )
            engines.append(mine.engine)
        return fen, _score_moves(mine.engine, fen, command[0])

    def close() -> None:
        for engine in engines:
            engine.close()  # ends a search that is running; an engine that crashed cannot be asked to quit

    try:
        with ThreadPoolExecutor(cores(), thread_name_prefix="referee") as pool:
            try:
                waiting = {pool.submit(score, fen) for fen in fens}
                while waiting and not stop():
                    finished, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                    yield from (one for future in finished if (one := future.result()) is not None)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                close()
    finally:
        close()  # engines that a thread started after the first call


def _score_moves(engine: chess.engine.SimpleEngine, fen: str, name: str) -> Scores:
    """Return the scores of all moves of a position."""
    board = chess.Board(fen)
    moves = board.legal_moves.count()
    try:
        lines = engine.analyse(board, chess.engine.Limit(depth=DEPTH), multipv=moves, game=fen)
    except chess.engine.EngineError as error:
        raise FinetuneError(f"{name} failed on {fen}: {error}") from error
    found = {line["pv"][0].uci(): _score(line["score"].relative) for line in lines if line.get("pv")}
    if len(found) != moves:
        raise FinetuneError(f"{name} scored {len(found)} of {moves} moves of {fen}: it needs MultiPV for all")
    return found


def _score(score: chess.engine.Score) -> float:
    """Return an engine's score as an expected score."""
    mate = score.mate()
    if mate is not None:
        return 1.0 if mate > 0 or score == chess.engine.MateGiven else 0.0
    return round(float(expected_score(score.score() or 0)), 5)
