"""One process's part of a generation: games or groups of positions, each written to the process's
own journal when it is finished.

.journal/UUID.jsonl   lines CRC32 JSON, where JSON is a finished item or {"work"}: what the process
                      has done so far

An item has a `record` and `searches`, a list for each search.

game       record: the line of games.jsonl, with resign_ply (half-moves after which a side would
           have resigned, in games without resignation). A search begins with its half-move. pgn has
           values from White's view as [%value 0.25], not as [%eval]: ingest would read centipawns.
positions  record: number, searched, over (positions where the rules end the game: not searched),
           changed (searches whose best move is not the policy's first). A search begins with its
           row in positions.parquet.

A killed process loses no line that it has written, since the system has it; fsync, every few
seconds, is for power cuts. A process always opens a new file, so only the last line of a file can
be cut short. A damaged line is counted and ignored, and its item is done again. An item that was
done twice is the same both times.

Before every move or search a process checks that the file `run_file` exists: deleting a file works
on a full disk too. On the same machine it also checks that the process that started it is alive. So
no process works for a job that is gone. Ray itself ends the tasks of a dead driver.

Axes: N positions, W words of a position, P words of a packed one.
"""

import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from engine.evaluation.cache import CachedEvaluator
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
from engine.temporaries import name_path
from pipeline.dataset.files.stored_planes import to_positions
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.draw import POSITIONS, read_drawn

ONNX = "onnx"
"""The device of a network that onnxruntime runs, from the file beside the checkpoint's card."""
GAMES_CACHE_MIB, GROUP_CACHE_MIB = 32, 8
"""Evaluation caches of a process that plays with a network, and of a group of positions; the
hand-written evaluator is as fast as a cache."""
SITE = "https://fianchetto.invalid/selfplay/"
RESULTS = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}
DIGITS = 6
"""Decimals of shares and values in the journal; float32 has hardly more."""
CHECKSUM = 8
"""Hexadecimal digits before the space and the JSON text of a line."""
RECORD = b' {"record"'
"""The rest of a finished item's line begins so."""
SYNC_SECONDS = 5.0
"""Time between two fsyncs, and so the work that a power cut loses at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Numbered items for one process: games to play, or groups of positions to search."""

    numbers: tuple[int, ...]
    config: ExploreConfig
    checkpoint: Path | None
    journal: Path
    """The journal's folder, absolute: a process elsewhere may have another working directory."""
    run_file: Path
    """Workers stop when this file is deleted."""
    owner: int | None
    """Process that the work is done for; None on another machine, where Ray ends it."""

    @property
    def is_wanted(self) -> bool:
        """Return whether the job still waits for the work."""
        return self.owner in (None, os.getpid(), os.getppid()) and self.run_file.exists()


def work_on(task: Task, report: Callable[[], None] = lambda: None, stop: Stop = never) -> None:
    """Do the unfinished items of a task; `report` is called after each.

    Raises ExploreError where the journal cannot be seen.
    """
    if not task.journal.is_dir():
        raise ExploreError(
            f"{socket.gethostname()} does not see {task.journal}: name an --out that all nodes "
            f"share"
        )
    missing = sorted(set(task.numbers) - read_journals(task.journal).places.keys())
    if not (missing and task.is_wanted):
        return
    with _open_evaluator(task) as (evaluator, device), closing(Journal(task.journal)) as journal:
        began = time.time()

        def sync() -> None:
            ended = round(time.time(), 3)
            journal.sync({"began": round(began, 3), "ended": ended, "device": device})

        for entry in _entries(task, evaluator, missing, lambda: stop() or not task.is_wanted):
            journal.add(entry)
            report()
            if time.monotonic() - journal.synced >= SYNC_SECONDS:
                sync()
        sync()


@contextmanager
def _open_evaluator(task: Task) -> Iterator[tuple[Evaluator, str]]:
    """Yield the evaluator of a task, and its device with its arithmetic; torch has one thread."""
    if not task.config.uses_network:
        yield evaluate, "compiled"
        return
    assert task.checkpoint is not None, "a network needs a checkpoint"
    if task.config.device == ONNX:
        from model.inference.onnx_evaluator import open_export

        graph = open_export(task.checkpoint)
        yield graph, f"cpu onnxruntime {graph.card.get('arithmetic', 'float32')}"
        return
    import torch

    from model.inference.evaluator import evaluator

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = evaluator(task.checkpoint, device=task.config.device)
        yield network, f"{network.device} {str(network.dtype).removeprefix('torch.')}"
    finally:
        torch.set_num_threads(threads)


def _entries(
    task: Task, evaluator: Evaluator, numbers: list[int], stop: Stop
) -> Iterator[dict[str, Any]]:
    """Yield the lines of games or groups of positions as they are finished."""
    config = task.config
    if not config.plays:
        yield from search_groups(evaluator, config, task.journal / POSITIONS, numbers, stop)
        return
    player = CachedEvaluator(evaluator, GAMES_CACHE_MIB) if config.uses_network else evaluator
    games = play_games(player, config.search, config, games=numbers, seed=config.seed, stop=stop)
    for game in games:
        yield game_entry(game, config.explorer, config.seed)


def search_groups(
    evaluator: Evaluator, config: ExploreConfig, positions: Path, numbers: Sequence[int], stop: Stop
) -> Iterator[dict[str, Any]]:
    """Search groups of positions side by side, and yield their lines until `stop` returns True."""
    packed_NP, columns = read_drawn(positions)
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
    """Search a group and return its line; None if it was stopped.

    A group always has the same positions and starts with an empty cache. So its batches, and with
    them the network's answers to the last bit, do not depend on what was searched before.
    """
    first, stopped = number * config.width, False
    positions_NW = positions_NW[first : first + config.width]

    def halted() -> bool:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    player = CachedEvaluator(evaluator, GROUP_CACHE_MIB) if config.uses_network else evaluator
    search = Search(player, config.search, games=len(positions_NW), seed=config.seed)
    for slot, position in enumerate(positions_NW):
        search.start(slot, position, game=first + slot)
    going_on = [slot for slot in range(search.games) if search.outcome(slot) is None]
    slots = np.array(going_on, dtype=np.int64)
    search.run(slots, noise=False, stop=halted)
    if stopped:
        return None
    searches, changed = [], 0
    labels, promotions = map(np.ndarray.tolist, search.choose(slots))
    for slot, label, promotion in zip(going_on, labels, promotions, strict=True):
        root = search.root(slot)
        searches.append([first + slot, *search_fields(read_search(root, label, promotion))])
        if root.mate != 1:  # at a mate in one the network was not asked
            changed += int(root.labels[root.priors.argmax()]) != label
    over = len(positions_NW) - len(slots)
    record = {"number": number, "searched": len(slots), "over": over, "changed": changed}
    return {"record": record, "searches": searches}


def game_entry(game: Game, explorer: str, seed: int) -> dict[str, Any]:
    """Return a game's line; another run of the same game returns the same."""
    assert game.ending is not None
    board, moves = to_board(game.start), []
    for label, promotion in zip(game.labels, game.promotions, strict=True):
        moves.append(move_of(label, promotion, board.turn))
        board.push(moves[-1])
    record = {
        "number": game.number,
        "moves": [move.uci() for move in moves],
        "result": RESULTS[game.result],
        "ending": ENDINGS[game.ending],
        "resign_ply": game.resign_ply,
        "resign_was_wrong": game.resign_was_wrong,
    }
    searches = [
        [ply, *search_fields(search)]
        for ply, search in enumerate(game.searches)
        if search is not None
    ]
    return {"record": record, "searches": searches, "pgn": _pgn(game, moves, explorer, seed)}


def search_fields(search: SearchResult) -> tuple[float, float, int, list[int], list[float]]:
    """Return a search's value, its best move's value, simulations, labels and shares.

    Promotions of one label are added up, and shares below a millionth left out. Values are the
    mover's.
    """
    labels, places = np.unique(search.labels, return_inverse=True)
    shares = np.bincount(places, weights=search.shares).round(DIGITS)
    kept = shares > 0.0
    values = round(search.value, DIGITS), round(search.best_value, DIGITS)
    return *values, search.simulations, labels[kept].tolist(), shares[kept].tolist()


def _pgn(game: Game, moves: list[chess.Move], explorer: str, seed: int) -> str:
    """Return the game as PGN; each searched move has its value, from White's view, as a comment."""
    tree = chess.pgn.Game()
    tree.setup(to_board(game.start))
    tree.headers["Event"] = f"self-play of {explorer}"
    tree.headers["Site"] = f"{SITE}{seed}-{game.number}"
    tree.headers["White"] = tree.headers["Black"] = explorer
    tree.headers["Result"] = RESULTS[game.result]
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
    """The file of one process."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / f"{uuid4().hex}.jsonl").open("xb")
        self.synced = time.monotonic()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line and hand it to the system."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
        with name_path(Path(self.file.name)):
            self.file.write(b"%08x %b\n" % (zlib.crc32(text), text))
            self.file.flush()

    def sync(self, work: Mapping[str, Any]) -> None:
        """Append what the process has done since it began, and write everything to the disk."""
        self.add({"work": work})
        os.fsync(self.file.fileno())
        self.synced = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Place(NamedTuple):
    """Where an item's line is."""

    path: Path
    offset: int

    def read(self) -> dict[str, Any]:
        """Read the line."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            entry: dict[str, Any] = json.loads(file.readline()[CHECKSUM:])
        return entry


@dataclass(slots=True)
class Journals:
    """The contents of all files."""

    places: dict[int, Place] = field(default_factory=dict)
    """Finished items by number."""
    work: list[dict[str, Any]] = field(default_factory=list)
    """The work of each process up to its last sync."""
    damaged: int = 0
    """Lines with a wrong checksum."""


def read_journals(folder: Path) -> Journals:
    """Find every finished item."""
    found = Journals()
    for path in sorted(folder.glob("*.jsonl")):
        work = None
        offset = 0
        with path.open("rb") as file:
            for line in file:
                if (entry := _parse(line)) is None:
                    found.damaged += 1
                elif "work" in entry:
                    work = entry["work"]
                else:
                    found.places.setdefault(entry["record"]["number"], Place(path, offset))
                offset += len(line)
        if work is not None:
            found.work.append(work)
    return found


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if its checksum is wrong."""
    checksum, text = line[:CHECKSUM], line[CHECKSUM + 1 : -1]
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


class Watch:
    """Counts the items that are finished from now on, by the lines that are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items = 0
        self.read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def count(self) -> int:
        """Return the items finished since this object was made."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                lines, newline, _ = file.read().rpartition(b"\n")
            self.read[path] = self.read.get(path, 0) + len(lines) + len(newline)
            self.items += sum(line.startswith(RECORD, CHECKSUM) for line in lines.split(b"\n"))
        return self.items
