"""Players who have games on both sides: datasets hold no names, so they are read out of the dumps again and hashed.

Axes: G games, T tags.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Stop
from pipeline.dataset.files.shard_files import games_tables
from pipeline.dataset.files.shards import SPLITS
from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import ALL_SPLITS, LATEST, Member
from pipeline.errors import DatasetError, Stopped
from pipeline.evaluation.game_texts import text_of
from pipeline.validation.audit.overlap import share, shared_with_train
from pipeline.validation.verify import sources_differ

NAME = re.compile(rb'^\[(White|Black) "((?:[^"\\\n]|\\.){1,200})"\]', re.MULTILINE)
NOBODY = frozenset({b"?", b"-", b"Anonymous", b"N, N", b"NN"})

Names = tuple[NDArray[np.int64], NDArray[np.uint64]]
"""[T] byte that a tag begins at, [T] hash of the name; ascending."""


def players(datasets: Sequence[Member], sources: Mapping[str, Sequence[str]], stop: Stop) -> dict[str, Any]:
    """Count players and their seats (two a game) by split; `sources` are the dumps of the datasets, by folder's name.

    A name that nobody has (`?`) is no player. Raises DatasetError where a dump is not the dataset's.
    """
    expected = 2 * sum(member.manifest["games"]["used"] for member in datasets)
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        tally = Tally(Path(folder), expected)
        for member in datasets:
            paths = sources[member.directory.resolve().name]
            if wrong := sources_differ(member.manifest, paths):
                raise DatasetError(f"{member.directory}: {wrong[0]}")
            for number, path in enumerate(paths):
                for keys, splits in _seats(member, number, path):
                    tally.add(keys, splits)
                    if stop():
                        raise Stopped("stopped; nothing was written")
        return _counted(tally)


def _counted(tally: Tally) -> dict[str, Any]:
    """Return the seats by player and split, as counts."""
    found = shared_with_train(tally)
    rows = [
        {
            "split": split,
            "players": players,
            "players_in_train": both,
            "seats": seats,
            "seats_of_players_in_train": shared,
            "share": share(shared, seats),
        }
        for split, seats, shared, players, both in found.tests()
    ]
    return {"players": found.distinct, "in_train": int(found.keys[0]), "by_split": rows}


def _tags(path: str) -> Iterator[Names]:
    """Read the players' names of a dump, block by block."""
    rest, begin = b"", 0
    for block in text_of(path):
        text = rest + block
        end = text.rfind(b"\n") + 1
        found = [(begin + match.start(), match[2]) for match in NAME.finditer(text, 0, end)]
        if found:
            hashes = [
                hashlib.blake2b(name, digest_size=8).digest() if name not in NOBODY else bytes(8) for _, name in found
            ]
            keys = np.frombuffer(b"".join(hashes), dtype="<u8")
            yield np.array([place for place, _ in found], dtype=np.int64), keys
        rest, begin = text[end:], begin + end


def _seats(member: Member, number: int, path: str) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
    """Return the players of the games that are used, with their splits, in the order of the dump."""
    tags = _tags(path)
    places, keys = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    for _, games in games_tables(member.directory, member.manifest, ["source", "offset", "length", "split"]):
        here = games["source"].to_numpy() == number
        if not here.any():
            continue
        starts = games["offset"].to_numpy()[here]
        end = int(starts[-1] + games["length"].to_numpy()[here][-1])
        more = True
        while more and (not len(places) or places[-1] < end):
            if (block := next(tags, None)) is None:
                more = False
            else:
                places, keys = np.append(places, block[0]), np.append(keys, block[1])
        split = {name: at for at, name in enumerate(SPLITS)}
        splits = np.array([split.get(name, 255) for name in games["split"].to_pylist()], dtype=np.uint32)[here]
        now = (places >= starts[0]) & (places < end)
        game = np.searchsorted(starts, places[now], side="right") - 1
        of_game, mine = splits[game], keys[now]
        used = (of_game < len(SPLITS)) & (mine != 0)
        whole = np.full(int(used.sum()), ALL_SPLITS.index(LATEST), dtype=np.uint32)
        yield mine[used], whole if member.held_out else of_game[used]
        places, keys = places[places >= end], keys[places >= end]
