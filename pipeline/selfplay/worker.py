"""Play one process's share of a generation, and write each finished item to the process's journal.

An item is a game or a group of positions. Each process writes a new file .journal/UUID.jsonl. A
line is the CRC32 of a JSON object, a space and the object. The first line has the process's device
and start, and each other line has an item:

    record    of a game: its line of games.jsonl. `resign_ply` is the number of half-moves after
              which a side would have resigned, in a game played without resignation.
              of a group: its number, and how many of its positions were `searched`, are `over` (the
              game has ended, so there is no search), and have a best move that differs from the
              policy's (`changed`)
    searches  a StoredSearch, as a list, for each search
    pgn       games only; values from White's view as [%value 0.25], because ingest reads [%eval] as
              centipawns

A killed process loses no written line, since the operating system has it; fsync every few seconds
guards against power cuts. Only the last line of a file can be truncated. Damaged lines are counted
and ignored, and their items are repeated, with the same result.

A worker stops when its job is dead: before every move or search, it checks that `run_file` exists
and, on the job's own machine, that its parent process is alive. To stop its workers, a job deletes
that file, which works even on a full disk. Ray itself ends the tasks of a dead driver.

Axes: N positions, W words of a position, P words of a packed position.
"""

import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import chess
import chess.pgn
import numpy as np
from numpy.typing import NDArray

from engine.board.position import COUNTERS
from engine.encoding.planes import move_from_label
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.progress import Stop, never
from engine.search import Search
from engine.selfplay.generate import (
    ENDINGS,
    HALFMOVE_LIMIT,
    PLY_LIMIT,
    RESIGNED,
    Game,
    SearchResult,
    play_games,
    read_search_result,
)
from engine.temporaries import add_path_to_errors
from pipeline.dataset.files.stored_planes import to_positions
from pipeline.selfplay.config import ONNX_DEVICE, ExploreConfig, ExploreError
from pipeline.selfplay.draw import POSITIONS_FILE, read_drawn

SITE_PREFIX = "https://fianchetto.invalid/selfplay/"
RESULT_TAGS = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}
"""PGN's Result tag by `Game.result`."""
DECIMALS = 6
"""Decimals of shares and values in the journal, about the precision of float32."""
CHECKSUM_DIGITS = 8
"""Number of hexadecimal digits of the checksum at the start of a line."""
RECORD_PREFIX = b' {"record"'
"""Text that follows the checksum in the line of an item."""
SYNC_SECONDS = 5.0
"""Seconds between two fsyncs; a power cut loses at most the work of this time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Numbered items for one process: games to play, or groups of positions to search."""

    numbers: tuple[int, ...]
    config: ExploreConfig
    checkpoint: Path | None
    journal: Path
    """Folder of the journals; absolute, since remote processes have other working directories."""
    run_file: Path
    """File that exists while the job runs."""
    owner: int | None
    """ID of the process that runs the job; None on another machine, where Ray ends the task."""

    @property
    def uses_gpu(self) -> bool:
        """Whether the task runs a network on a GPU."""
        if not self.config.uses_network or self.config.device == ONNX_DEVICE:
            return False
        from model.network.device import select_device

        return select_device(self.config.device).type == "cuda"

    @property
    def is_job_running(self) -> bool:
        """Whether the run file exists and the owner, if known, is this process or its parent."""
        return self.owner in (None, os.getpid(), os.getppid()) and self.run_file.exists()


class StoredSearch(NamedTuple):
    """A search as the journal stores it; values are from the mover's view."""

    row: int
    """The search's half-move in a game, or its row in positions.parquet."""
    value: float
    best_value: float
    simulations: int
    labels: list[int]
    """Labels of the moves with visits."""
    shares: list[float]
    """Share of each label in the visits."""


def run_task(task: Task, report: Callable[[], None] = lambda: None, stop: Stop = never) -> None:
    """Finish the remaining items of a task; call `report` after each item.

    Returns early if `stop` returns True or the job has ended. Raises ExploreError if the journal's
    folder is not visible.
    """
    if not task.journal.is_dir():
        raise ExploreError(
            f"{socket.gethostname()} cannot access {task.journal}: choose an --out that all nodes "
            "share"
        )
    missing = sorted(set(task.numbers) - read_journals(task.journal).finished.keys())
    if not (missing and task.is_job_running):
        return
    with (
        _open_evaluator(task) as (evaluator, device),
        closing(Journal(task.journal, device)) as journal,
    ):
        for entry in _generate_entries(
            task, evaluator, missing, lambda: stop() or not task.is_job_running
        ):
            journal.add(entry)
            report()


@contextmanager
def _open_evaluator(task: Task) -> Iterator[tuple[Evaluator, str]]:
    """Yield a task's evaluator, on one thread, and its device and dtype as text."""
    if not task.config.uses_network:
        yield evaluate, "compiled"
        return
    assert task.checkpoint is not None, "a network needs a checkpoint"
    if task.config.device == ONNX_DEVICE:
        from model.inference.onnx_evaluator import open_export

        graph = open_export(task.checkpoint)
        yield graph, f"cpu onnxruntime {graph.metadata.get('arithmetic', 'float32')}"
        return
    from model.inference.evaluator import evaluator
    from model.network.device import torch_threads

    with torch_threads(1):
        network = evaluator(task.checkpoint, device=task.config.device)
        yield network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"


def _generate_entries(
    task: Task, evaluator: Evaluator, numbers: list[int], stop: Stop
) -> Iterator[dict[str, Any]]:
    """Yield the journal entries of games or groups of positions as they finish."""
    config = task.config
    if config.plays_games:
        games = play_games(
            evaluator, config.search, config, games=numbers, seed=config.seed, stop=stop
        )
        for game in games:
            yield make_game_entry(game, config.explorer, config.seed)
        return
    packed_NP, columns = read_drawn(task.journal / POSITIONS_FILE)
    positions_NW = to_positions(packed_NP)
    ply_N = columns["ply"].astype(np.uint64)
    positions_NW[:, COUNTERS] = columns["halfmove"].astype(np.uint64) | ply_N << np.uint64(16)
    for number in numbers:
        entry = search_group(evaluator, config, positions_NW, number, stop)
        if entry is None:
            return
        yield entry


def search_group(
    evaluator: Evaluator,
    config: ExploreConfig,
    positions_NW: NDArray[np.uint64],
    number: int,
    stop: Stop,
) -> dict[str, Any] | None:
    """Search a group of positions in one batch; return its journal entry, or None if stopped.

    Group `number` always has the same positions. So its batches, and the network's outputs to the
    last bit, do not depend on how the work is divided.
    """
    first, stopped = number * config.width, False

    def should_stop() -> bool:
        nonlocal stopped
        stopped = stopped or stop()  # final, because the searches may then be incomplete
        return stopped

    positions_NW = positions_NW[first : first + config.width]
    search = Search(evaluator, config.search, games=len(positions_NW), seed=config.seed)
    for slot, position in enumerate(positions_NW):
        search.start(slot, position, game=first + slot)
    ongoing = [slot for slot in range(search.games) if search.outcome(slot) is None]
    slots = np.array(ongoing, dtype=np.int64)
    search.run(slots, noise=False, stop=should_stop)
    if stopped:
        return None
    searches, changed = [], 0
    labels, promotions = map(np.ndarray.tolist, search.choose(slots))
    for slot, label, promotion in zip(ongoing, labels, promotions, strict=True):
        root = search.root(slot)
        searches.append(
            make_stored_search(first + slot, read_search_result(root, label, promotion))
        )
        if root.mate != 1:  # a mate in one is found without the network, so there are no priors
            changed += int(root.labels[root.priors.argmax()]) != label
    over = len(positions_NW) - len(slots)
    record = {"number": number, "searched": len(slots), "over": over, "changed": changed}
    return {"record": record, "searches": searches}


def make_game_entry(game: Game, explorer: str, seed: int) -> dict[str, Any]:
    """Return the journal entry of a finished game."""
    assert game.ending is not None
    board, moves = chess.Board(), []
    for label, promotion in zip(game.labels, game.promotions, strict=True):
        moves.append(move_from_label(label, promotion, board.turn))
        board.push(moves[-1])
    record = {
        "number": game.number,
        "moves": [move.uci() for move in moves],
        "result": RESULT_TAGS[game.result],
        "ending": ENDINGS[game.ending],
        "resign_ply": game.resign_ply,
        "resign_was_wrong": game.resign_was_wrong,
    }
    searches = [
        make_stored_search(ply, search)
        for ply, search in enumerate(game.searches)
        if search is not None
    ]
    return {"record": record, "searches": searches, "pgn": _format_pgn(game, moves, explorer, seed)}


def make_stored_search(row: int, search: SearchResult) -> StoredSearch:
    """Round a search and add the shares of promotions that have the same label.

    Moves whose share rounds to 0 are omitted.
    """
    labels, indices = np.unique(search.labels, return_inverse=True)
    shares = np.bincount(indices, weights=search.shares).round(DECIMALS)
    visited = shares > 0.0
    return StoredSearch(
        row=row,
        value=round(search.value, DECIMALS),
        best_value=round(search.best_value, DECIMALS),
        simulations=search.simulations,
        labels=labels[visited].tolist(),
        shares=shares[visited].tolist(),
    )


def _format_pgn(game: Game, moves: list[chess.Move], explorer: str, seed: int) -> str:
    """Return a game as PGN; comments have the values of searches, from White's view."""
    tree = chess.pgn.Game()
    tree.headers["Event"] = f"self-play of {explorer}"
    tree.headers["Site"] = f"{SITE_PREFIX}{seed}-{game.number}"
    tree.headers["White"] = tree.headers["Black"] = explorer
    tree.headers["Result"] = RESULT_TAGS[game.result]
    stopped = game.ending in (PLY_LIMIT, HALFMOVE_LIMIT)
    tree.headers["Termination"] = "adjudication" if stopped else "normal"
    node: chess.pgn.GameNode = tree
    for move, search in zip(moves, game.searches, strict=True):
        white = node.turn() == chess.WHITE
        node = node.add_variation(move)
        if search is not None:
            node.comment = f"[%value {search.value if white else -search.value:.4f}]"
    if game.ending == RESIGNED:
        loser = "White" if game.result < 0 else "Black"
        node.comment = f"{node.comment} {loser} resigns".strip()
    return f"{tree}\n\n"


class Journal:
    """The open journal file of one process."""

    def __init__(self, folder: Path, device: str) -> None:
        """Create the file and write its first line."""
        self.file = (folder / f"{uuid4().hex}.jsonl").open("xb")
        self.synced = time.monotonic()
        self.add({"device": device, "began": round(time.time(), 3)})

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line, and fsync the file every SYNC_SECONDS."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
        with add_path_to_errors(Path(self.file.name)):
            self.file.write(b"%08x %b\n" % (zlib.crc32(text), text))
            self.file.flush()
            if time.monotonic() - self.synced >= SYNC_SECONDS:
                os.fsync(self.file.fileno())
                self.synced = time.monotonic()

    def close(self) -> None:
        """Fsync and close the file."""
        os.fsync(self.file.fileno())
        self.file.close()


class LineLocation(NamedTuple):
    """Location of an item's line: a journal file and a byte offset."""

    path: Path
    offset: int

    def read(self) -> dict[str, Any]:
        """Read the line and parse its JSON."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            entry: dict[str, Any] = json.loads(file.readline()[CHECKSUM_DIGITS:])
        return entry


@dataclass(slots=True)
class Journals:
    """The contents of all journals of a generation."""

    finished: dict[int, LineLocation] = field(default_factory=dict)
    """Location of each finished item's line, by the item's number."""
    work: list[dict[str, Any]] = field(default_factory=list)
    """`device`, `began` and `ended` (the last change of the journal) of each process."""
    damaged_lines: int = 0
    """Number of lines that are truncated or have a wrong checksum."""


def read_journals(folder: Path) -> Journals:
    """Index the finished items in all journals of a folder."""
    journals = Journals()
    for path in sorted(folder.glob("*.jsonl")):
        work, offset = None, 0
        with path.open("rb") as file:
            for line in file:
                if (entry := _parse_line(line)) is None:
                    journals.damaged_lines += 1
                elif "record" in entry:
                    location = LineLocation(path, offset)
                    journals.finished.setdefault(entry["record"]["number"], location)
                elif "began" in entry:
                    work = entry
                offset += len(line)
        if work is not None:
            journals.work.append(work | {"ended": round(path.stat().st_mtime, 3)})
    return journals


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a journal's line, or None if the line is damaged."""
    checksum, text = line[:CHECKSUM_DIGITS], line[CHECKSUM_DIGITS + 1 : -1]
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


class JournalCounter:
    """Count the items that finish after its creation, by the lines appended to the journals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items = 0
        self.offsets = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def count(self) -> int:
        """Read the new lines; return the number of items finished since the creation."""
        for path in self.folder.glob("*.jsonl"):
            offset = self.offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                lines, newline, _ = file.read().rpartition(b"\n")
            self.offsets[path] = offset + len(lines) + len(newline)
            self.items += sum(
                line.startswith(RECORD_PREFIX, CHECKSUM_DIGITS) for line in lines.split(b"\n")
            )
        return self.items
