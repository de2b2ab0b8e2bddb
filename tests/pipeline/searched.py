"""Datasets of random positions with made-up visits and values of searches."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.encoding.planes import legal_mask
from model.data.playouts import playout_rows
from pipeline.dataset.files.shards import make_rows_table, write_rows
from pipeline.dataset.files.stored_planes import pack_planes
from pipeline.storage.stores import publish, publish_json
from tests.pipeline.datasets import plain_manifest

Moves = list[dict[str, Any]] | None


@cache
def playouts(count: int, seed: int) -> dict[str, Any]:
    """Return rows of random playouts, each with its own number in `game`."""
    rows = playout_rows(count, seed)
    return rows | {"game": np.arange(seed * 100_000, seed * 100_000 + count, dtype=np.uint32)}


def legal_labels(rows: Mapping[str, Any], row: int) -> list[int]:
    """List a row's legal labels."""
    return np.flatnonzero(legal_mask(rows["planes"][row : row + 1])[0]).tolist()


def on_the_last_move(rows: Mapping[str, Any], row: int) -> Moves:
    """Return visits of a row: 0.9 on the highest legal label, 0.1 on the lowest."""
    labels = legal_labels(rows, row)
    return [{"label": labels[-1], "share": 0.9}, {"label": labels[0], "share": 0.1}]


def dataset(
    directory: Path,
    rows: Mapping[str, Any],
    visits: Callable[[Mapping[str, Any], int], Moves] | None = None,
    root: Callable[[int], float | None] | None = None,
    held_out: int = 0,
) -> Path:
    """Write rows as a dataset with a shard per split, the last `held_out` for validation."""
    directory.mkdir(parents=True, exist_ok=True)
    count = len(rows["planes"])
    columns = {name: column for name, column in rows.items() if name != "planes"}
    table = make_rows_table(pack_planes(rows["planes"], columns), columns)
    for name, values in (
        ("visits", [visits(rows, row) for row in range(count)] if visits else None),
        ("root_value", [root(row) for row in range(count)] if root else None),
    ):
        if values is not None:
            at, field = table.schema.get_field_index(name), table.schema.field(name)
            table = table.set_column(at, field, pa.array(values, field.type))
    files = []
    for split, part in (("train", table[: count - held_out]), ("val", table[count - held_out :])):
        if len(part):
            write = partial(write_rows, part)
            done = publish(directory, f"{split}-00000-0.parquet", len(part), write)
            files.append({"split": split, **asdict(done)})
    publish_json(
        directory, "manifest.json", plain_manifest(files, games=int(rows["game"].max()) + 1)
    )
    return directory
