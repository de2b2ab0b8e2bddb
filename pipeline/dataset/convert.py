"""Convert a dataset to the other form of planes: the same rows in the same order.

    shard --row group by row group, checked--> shard; games.parquet, CARD.md as they are; the manifest last

Stopped or killed, the same call goes on: what was written is known by its record (pipeline/dataset/files/written.py), and what
it was made of by the hash of the other manifest.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.json_files import read_json
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import COLUMNS, FORMAT_VERSION, FORMS, Form, schema, writer_options
from pipeline.dataset.files.layout import CARD, ROW_GROUP, RUN
from pipeline.dataset.files.shard_files import ShardReader, open_shard, reading
from pipeline.dataset.files.shards import (
    GAMES,
    MANIFEST,
    PARTS,
    file_hash,
    publish_json,
    read_manifest,
)
from pipeline.dataset.files.stored_planes import pack, plane_arrays, unpack
from pipeline.dataset.files.vouch import vouch
from pipeline.dataset.files.written import note_down, own_entry, publish_own, remove_parts
from pipeline.errors import ConfigError, DatasetError, IngestError, Stopped
from pipeline.storage.claims import DATASET, require_apart, require_own
from pipeline.storage.stores import alone, make_folder, reached

_BUT_PLANES = [name for name in COLUMNS if name != "planes"]


def convert(
    directory: Path,
    planes: Form,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Write the rows of a dataset with their planes stored as `planes`, and return its manifest.

    `out` is a new folder, or one that this call was stopped in. Every row is checked: a compact one gives back its planes bit
    for bit, or DatasetError names it. Raises DatasetError for a damaged dataset and a folder that is another's, Stopped.
    """
    if planes not in FORMS:
        raise ConfigError(f"planes are {' or '.join(FORMS)}, not {planes!r}")
    require_apart(out, [directory], ConfigError)
    manifest = read_manifest(directory)
    vouch(directory, manifest, progress, stop)
    require_own(out, DATASET, DatasetError)
    make_folder(out)
    busy = IngestError(f"another process is writing {out}: wait for it, or choose another --out")
    with alone(out, busy), reached(out):
        return _convert(directory, manifest, planes, out, progress, stop)


def _convert(
    directory: Path, manifest: dict[str, Any], planes: Form, out: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    first = manifest.get("converted_from") or file_hash(directory / MANIFEST)  # of a conversion's conversion too
    asked = {"converted_from": first, "planes": planes, "format_version": FORMAT_VERSION}
    if (out / MANIFEST).exists():
        found = read_manifest(out)
        if found.get("converted_from") != asked["converted_from"] or found.get("planes") != planes:
            raise DatasetError(f"{out} is another dataset: choose another --out")
        remove_parts(out)
        return found
    run = out / PARTS / RUN
    if run.exists() and read_json(run, DatasetError) != asked:
        raise DatasetError(f"{out} holds something else that is unfinished: delete it or choose another --out")
    make_folder(run.parent)
    publish_json(run.parent, run.name, asked)
    files: list[dict[str, Any]] = []
    total, done = manifest["positions"]["total"], 0
    for entry in manifest["files"]:
        name, rows = entry["name"], entry["rows"]
        if entry["split"] is None:
            written = publish_own(out, name, rows, lambda target, it=name: _copy(directory / it, target))  # type: ignore[misc]
            files.append(entry | {"bytes": written.bytes, "sha256": written.sha256})
            continue
        stands = own_entry(out, name)
        if stands is None:
            with open_shard(directory / name, rows) as reader:

                def write(target: Any, it: ShardReader = reader) -> None:
                    _rewrite(it, planes, manifest["games"]["read"], target)

                try:
                    written = publish_own(out, name, rows, write)
                except OSError as error:  # a full disk is no fault of the shard that is read
                    raise IngestError(
                        f"{error}: what was finished is kept, run the same command to continue"
                    ) from error
            stands = {"bytes": written.bytes, "sha256": written.sha256}
        files.append(entry | {"bytes": stands["bytes"], "sha256": stands["sha256"]})
        done += rows
        progress(Tick(done, total, "rows", {}))
        if stop():
            raise Stopped(f"stopped; what was finished is kept in {out}: run the same command to continue")
    if (directory / CARD).exists():
        publish_own(out, CARD, 0, lambda target: _copy(directory / CARD, target))
    shard_bytes = sum(entry["bytes"] for entry in files if entry["name"] != GAMES)
    config = manifest["config"] | {"planes": planes} if manifest["config"] else {}
    made = manifest | asked | {"row_group": ROW_GROUP, "config": config, "files": files}
    made["bytes_per_position"] = round(shard_bytes / total, 2)
    publish_json(out, MANIFEST, made, note_down)
    remove_parts(out)
    return made


def _copy(path: Path, target: Any) -> None:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            target.write(block)


def _rewrite(reader: ShardReader, planes: Form, games: int, target: Any) -> None:
    """Write a shard's rows in another form; DatasetError for a row that the form cannot hold."""
    stored = schema(planes, reader.optional)
    names = [*_BUT_PLANES, *reader.optional]
    with pq.ParquetWriter(target, stored, **writer_options(stored)) as writer:
        rows: list[pa.Table] = []
        for group in range(len(reader.groups)):
            with reading(reader.path):
                batch = reader.read(group, (*COLUMNS, *reader.optional), games)
                if planes == "compact":
                    _require_derived(reader.path, group, batch)
                others = reader.table(group, names)
            arrays = plane_arrays(planes, batch["planes"], batch)
            found = dict(zip(stored.names, arrays, strict=False)) | {name: others.column(name) for name in names}
            rows.append(pa.Table.from_arrays([found[name] for name in stored.names], schema=stored))
            if sum(map(len, rows)) >= ROW_GROUP or group + 1 == len(reader.groups):
                writer.write_table(pa.concat_tables(rows), row_group_size=ROW_GROUP)
                rows = []


def _require_derived(path: Path, group: int, batch: dict[str, Any]) -> None:
    """Raise DatasetError for a row whose planes are others than those of its position."""
    same_R = (unpack(pack(batch["planes"], batch)) == batch["planes"]).all(axis=1)
    if not same_R.all():
        raise DatasetError(
            f"{path}: the planes of row {int(np.argmin(same_R))} of row group {group} are not those of its position, so it "
            "has no compact form"
        )
