"""Which positions stand in a training set: the sorted keys of its rows, kept beside each dataset and read in bounded memory.

Axes: R rows.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.progress import Stop, never
from pipeline.dataset.files.shards import publish, read_manifest
from pipeline.dataset.files.vouch import cache_folder
from pipeline.dataset.position_keys import KEYED_BY, position_keys
from pipeline.dataset.tally import Tally
from pipeline.dataset.training_set import Shard, row_groups
from pipeline.errors import Stopped
from pipeline.storage.stores import is_local

KEPT_FROM = 100_000
"""Rows of a dataset from which on its keys are kept: fewer are read again as quickly."""
_MAGIC = b"fianchetto keys1"
_BLOCK_KEYS = 1 << 20
"""Kept keys that are looked at together: 8 MB."""


def stand_in(keys_R: NDArray[np.uint64], shards: Iterable[Shard], stop: Stop = never) -> NDArray[np.bool_]:
    """Return which keys are of positions that the shards hold, bool[R]: exact, in memory that does not grow with the shards.

    The keys of a dataset's shards are kept beside it, or in the user's cache folder, under the hashes of its files: the next
    call reads 8 bytes a position. Raises Stopped.
    """
    if not len(keys_R):
        return np.zeros(0, dtype=np.bool_)
    asked, places = np.unique(keys_R, return_inverse=True)
    found = np.zeros(len(asked), dtype=np.bool_)
    datasets: dict[Path, list[Shard]] = {}
    for shard in shards:
        datasets.setdefault(shard.path.parent, []).append(shard)
    for folder, mine in datasets.items():
        for keys in _keys_of(folder, mine, stop):
            if stop():
                raise _stopped()
            first, last = np.searchsorted(asked, (keys[0], keys[-1]))
            here = asked[first : last + 1]
            at = np.searchsorted(keys, here).clip(max=len(keys) - 1)
            found[first : last + 1] |= keys[at] == here
    return found[places]


def _stopped() -> Stopped:
    return Stopped("stopped while looking for positions in train")


def _keys_of(folder: Path, shards: Sequence[Shard], stop: Stop) -> Iterator[NDArray[np.uint64]]:
    """Yield the keys of shards of one dataset in sorted blocks, from where they are kept or by reading the rows."""
    rows = sum(shard.rows or 0 for shard in shards)
    if rows < KEPT_FROM:
        yield from (np.sort(keys) for keys in _read_keys(shards, stop) if len(keys))
        return
    name, prefix = _name_of(folder, shards)
    places = [folder.parent] if is_local(folder) else []
    with suppress(RuntimeError):  # a user without a home
        places.append(cache_folder("keys"))
    for place in places:
        if (kept := _opened(place / name)) is not None:
            yield from (kept[at : at + _BLOCK_KEYS] for at in range(0, len(kept), _BLOCK_KEYS))
            return
    for place in places:
        with suppress(OSError, RuntimeError):  # it cannot be written there
            place.mkdir(parents=True, exist_ok=True)
            _keep(place / name, rows, shards, stop)
            for old in place.glob(f"{prefix}*"):
                if not old.name.startswith(name.rpartition("-")[0]):
                    old.unlink(missing_ok=True)  # of files that the dataset has no more
            kept = _opened(place / name)
            assert kept is not None
            yield from (kept[at : at + _BLOCK_KEYS] for at in range(0, len(kept), _BLOCK_KEYS))
            return
    yield from (np.sort(keys) for keys in _read_keys(shards, stop) if len(keys))


def _read_keys(shards: Iterable[Shard], stop: Stop) -> Iterator[NDArray[np.uint64]]:
    for rows in row_groups(shards, KEYED_BY):
        if stop():
            raise _stopped()
        yield position_keys(rows["planes"], rows["castling"])


def _name_of(folder: Path, shards: Sequence[Shard]) -> tuple[str, str]:
    """Return the name of the file of keys, by the hashes of the dataset's files and by which of their rows count.

    Its beginning is the same for all files of keys of the dataset, whatever was in it.
    """
    hashes = {entry["name"]: entry["sha256"] for entry in read_manifest(folder)["files"]}
    files = hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()[:16]
    which = [[shard.path.name, repr(shard.thinning)] for shard in shards]
    rows = hashlib.sha256(json.dumps(which).encode()).hexdigest()[:16]
    prefix = f".{folder.name or 'dataset'}.keys-"
    return f"{prefix}{files}-{rows}", prefix


def _keep(path: Path, rows: int, shards: Sequence[Shard], stop: Stop) -> None:
    """Write the distinct keys of shards, ascending, in bounded memory."""
    count = 0

    def write(target: Any) -> None:
        nonlocal count
        target.write(_MAGIC)
        with tempfile.TemporaryDirectory(prefix="fianchetto-keys-") as scratch:
            tally = Tally(Path(scratch), rows)
            for keys in _read_keys(shards, stop):
                tally.add(keys, np.zeros(len(keys), dtype=np.uint32))
            for keys, _, _ in tally.parts():
                target.write(keys.astype("<u8").tobytes())
                count += len(keys)
        target.write(np.array([count], dtype="<u8").tobytes())

    publish(path.parent, path.name, 0, write)


def _opened(path: Path) -> NDArray[np.uint64] | None:
    """Return the keys of a file, mapped; None where there is none, or one that is cut off."""
    try:
        words = np.memmap(path, dtype="<u8", mode="r")
    except (OSError, ValueError):
        return None
    head = len(_MAGIC) // 8
    if len(words) < head + 2 or words[:head].tobytes() != _MAGIC or int(words[-1]) != len(words) - head - 1:
        return None
    return words[head:-1]
