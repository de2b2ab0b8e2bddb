"""Play one process's share of a generation, and write each finished item to the process's journal.

An item is a game or a group of positions.

.journal/UUID.jsonl   CRC32 JSON in each line: first the process's device and start, then one line
                      per item

An item has a `record`, and `searches` with a list for each search.

game       record: the line of games.jsonl. Its resign_ply is the half-move after which a side would
           have resigned, in games played without resignation. A search begins with its half-move.
           pgn has values from White's view, as [%value 0.25]. It does not use [%eval], which ingest
           reads as centipawns.
positions  record: number, searched, over (positions where the game is over; not searched), changed
           (searches whose best move is not the policy's first). A search begins with its row in
           positions.parquet.

A killed process loses no written line, since the operating system has it; fsync every few seconds
guards against power cuts. Each process opens a new file, so only the last line of a file can be
truncated. Damaged lines are counted and ignored, and their items are repeated. Repeating an item
gives the same result.

Before every move or search, a process checks that the file `run_file` exists. Deleting a file works
even on a full disk. On the same machine it also checks that its parent process is alive. So no
process works for a dead job. Ray itself ends the tasks of a dead driver.

Axes: N positions, W words of a position, P words of a packed one.
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

from engine.board.position import COUNTERS, to_board
from engine.encoding.planes import move_of
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.progress import Stop, never
from engine.search import Search
from engine.selfplay.generate import (
    ENDINGS,
    RESIGNED,
    TOO_LONG,
    UNEVENTFUL,
    Game,
    SearchResult,
    play_games,
    read_search,
)
from engine.temporaries import add_path_to_errors
from pipeline.dataset.files.stored_planes import to_positions
from pipeline.selfplay.config import ONNX_DEVICE, ExploreConfig, ExploreError
from pipeline.selfplay.draw import POSITIONS_FILE, read_drawn

SITE_PREFIX = "https://fianchetto.invalid/selfplay/"
RESULT_TAGS = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}
DECIMALS = 6
"""Decimals of shares and values in the journal, about the precision of float32."""
CHECKSUM_DIGITS = 8
"""Hexadecimal digits of the checksum at the start of a line."""
RECORD_PREFIX = b' {"record"'
"""Text after the checksum in the line of a finished item."""
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
    """Workers stop when this file is deleted."""
    owner: int | None
    """ID of the process that runs the job; None on another machine, where Ray ends the task."""

    @property
    def uses_gpu(self) -> bool:
        """Return whether a network runs on a GPU."""
        if not self.config.uses_network or self.config.device == ONNX_DEVICE:
            return False
        from model.network.device import device_for

        return device_for(self.config.device).type == "cuda"

    @property
    def is_job_running(self) -> bool:
        """Return whether the job is still running."""
        return self.owner in (None, os.getpid(), os.getppid()) and self.run_file.exists()


def run_task(task: Task, report: Callable[[], None] = lambda: None, stop: Stop = never) -> None:
    """Finish the remaining items of a task; call `report` after each.

    Raises ExploreError if the journal's folder is not visible.
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
        for entry in _finish_items(
            task, evaluator, missing, lambda: stop() or not task.is_job_running
        ):
            journal.add(entry)
            report()


@contextmanager
def _open_evaluator(task: Task) -> Iterator[tuple[Evaluator, str]]:
    """Yield the evaluator of a task, and its device and dtype; torch uses one thread."""
    if not task.config.uses_network:
        yield evaluate, "compiled"
        return
    assert task.checkpoint is not None, "a network needs a checkpoint"
    if task.config.device == ONNX_DEVICE:
        from model.inference.onnx_evaluator import open_export

        graph = open_export(task.checkpoint)
        yield graph, f"cpu onnxruntime {graph.card.get('arithmetic', 'float32')}"
        return
    from model.inference.evaluator import evaluator
    from model.network.device import torch_threads

    with torch_threads(1):
        network = evaluator(task.checkpoint, device=task.config.device)
        yield network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"


def _finish_items(
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

    A group always has the same positions. So its batches, and the network's outputs to the last
    bit, do not depend on earlier searches.
    """
    first, stopped = number * config.width, False

    def should_stop() -> bool:  # stays True, for the searches of this group may then be incomplete
        nonlocal stopped
        stopped = stopped or stop()
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
        searches.append([first + slot, *select_search_fields(read_search(root, label, promotion))])
        if root.mate != 1:  # a mate in one is found without the network, so there are no priors
            changed += int(root.labels[root.priors.argmax()]) != label
    over = len(positions_NW) - len(slots)
    record = {"number": number, "searched": len(slots), "over": over, "changed": changed}
    return {"record": record, "searches": searches}


def make_game_entry(game: Game, explorer: str, seed: int) -> dict[str, Any]:
    """Return the journal entry of a game; it is the same in every run."""
    assert game.ending is not None
    board, moves = to_board(game.start), []
    for label, promotion in zip(game.labels, game.promotions, strict=True):
        moves.append(move_of(label, promotion, board.turn))
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
        [ply, *select_search_fields(search)]
        for ply, search in enumerate(game.searches)
        if search is not None
    ]
    return {"record": record, "searches": searches, "pgn": _pgn(game, moves, explorer, seed)}


def select_search_fields(search: SearchResult) -> tuple[float, float, int, list[int], list[float]]:
    """Return a search's value, its best move's value, simulations, labels and visit shares.

    Shares of promotions with the same label are added; shares that round to 0 are omitted. Values
    are from the mover's view.
    """
    labels, places = np.unique(search.labels, return_inverse=True)
    shares = np.bincount(places, weights=search.shares).round(DECIMALS)
    kept = shares > 0.0
    values = round(search.value, DECIMALS), round(search.best_value, DECIMALS)
    return *values, search.simulations, labels[kept].tolist(), shares[kept].tolist()


def _pgn(game: Game, moves: list[chess.Move], explorer: str, seed: int) -> str:
    """Return a game as PGN; comments have the values of searched moves, from White's view."""
    tree = chess.pgn.Game()
    tree.setup(to_board(game.start))
    tree.headers["Event"] = f"self-play of {explorer}"
    tree.headers["Site"] = f"{SITE_PREFIX}{seed}-{game.number}"
    tree.headers["White"] = tree.headers["Black"] = explorer
    tree.headers["Result"] = RESULT_TAGS[game.result]
    stopped = game.ending in (TOO_LONG, UNEVENTFUL)
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
    """The open journal file of one process. Its first line has the process's device and start."""

    def __init__(self, folder: Path, device: str) -> None:
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
    """The file and byte offset of an item's line."""

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
    """Line of each finished item, by the item's number."""
    work: list[dict[str, Any]] = field(default_factory=list)
    """Device, start and end of each process. It ends with the last change of its journal."""
    damaged: int = 0
    """Lines with a wrong checksum."""


def read_journals(folder: Path) -> Journals:
    """Index the finished items in all journals of a folder."""
    found = Journals()
    for path in sorted(folder.glob("*.jsonl")):
        work, offset = None, 0
        with path.open("rb") as file:
            for line in file:
                if (entry := _parse_line(line)) is None:
                    found.damaged += 1
                elif "record" in entry:
                    location = LineLocation(path, offset)
                    found.finished.setdefault(entry["record"]["number"], location)
                elif "began" in entry:
                    work = entry
                offset += len(line)
        if work is not None:
            found.work.append(work | {"ended": round(path.stat().st_mtime, 3)})
    return found


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse a line; return None if its checksum is wrong."""
    checksum, text = line[:CHECKSUM_DIGITS], line[CHECKSUM_DIGITS + 1 : -1]
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


class JournalCounter:
    """Counts items that finish from now on, by the lines appended to the journals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items = 0
        self.read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def count(self) -> int:
        """Return the number of items finished since this object was created."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                lines, newline, _ = file.read().rpartition(b"\n")
            self.read[path] = self.read.get(path, 0) + len(lines) + len(newline)
            self.items += sum(
                line.startswith(RECORD_PREFIX, CHECKSUM_DIGITS) for line in lines.split(b"\n")
            )
        return self.items
