"""Convert a dataset to the other form of planes: the same rows in the same order.

    shard --row group by row group, checked--> shard; games.parquet and CARD.md copied; the manifest last

Stopped or killed, the same call continues: finished files lie in `.building` (pipeline/storage/building.py), and its identity
is the hash of the manifest that they are made from.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.json_files import read_json
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import COLUMNS, FORMS, Form, schema, writer_options
from pipeline.dataset.files.layout import CARD, GAMES, MANIFEST, ROW_GROUP
from pipeline.dataset.files.shard_files import ShardReader, open_shard, reading
from pipeline.dataset.files.shards import file_hash, finish_dataset, publish, publish_dataset, read_manifest
from pipeline.dataset.files.stored_planes import pack, plane_arrays, unpack
from pipeline.dataset.files.verify_files import verify_files
from pipeline.errors import ConfigError, DatasetError, IngestError, Stopped
from pipeline.storage.building import BUILDING, RUN, begin, files_folder, is_build, require_unused
from pipeline.storage.claims import DATASET, require_apart, require_own
from pipeline.storage.stores import Published, alone, make_folder, reached


def convert(
    directory: Path,
    planes: Form,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Write the rows of a dataset with their planes stored as `planes`, and return the new manifest.

    `out` is a new folder, or one that this call was stopped in. Every row is checked: a compact row must give back its planes
    bit for bit, else DatasetError names it. Raises DatasetError for a damaged dataset or an `out` of something else, Stopped.
    """
    if planes not in FORMS:
        raise ConfigError(f"planes are {' or '.join(FORMS)}, not {planes!r}")
    require_apart(out, [directory], ConfigError)
    manifest = read_manifest(directory)
    verify_files(directory, manifest, progress, stop)
    require_own(out, DATASET, DatasetError)
    make_folder(out)
    busy = IngestError(f"another process is writing {out}: wait for it, or choose another --out")
    with alone(out, busy), reached(out):
        return _convert(directory, manifest, planes, out, progress, stop)


def _convert(
    directory: Path, manifest: dict[str, Any], planes: Form, out: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    source = manifest.get("converted_from") or file_hash(directory / MANIFEST)  # the first manifest of a chain
    identity = {"converted_from": source, "planes": planes}
    if finish_dataset(out):
        found = read_manifest(out)
        if {name: found.get(name) for name in identity} != identity:
            raise DatasetError(f"{out} is another dataset: choose another --out")
        return found
    if not is_build(out) or not (out / BUILDING / RUN).exists():
        begin(out, identity)
    elif read_json(out / BUILDING / RUN, DatasetError) != identity:
        raise DatasetError(f"{out} holds something else that is unfinished: delete it or choose another --out")
    require_unused(out, [MANIFEST, CARD, *(entry["name"] for entry in manifest["files"])], DatasetError)
    files, total, done = [], manifest["positions"]["total"], 0
    for entry in manifest["files"]:
        path = files_folder(out) / entry["name"]
        if path.exists():
            files.append(entry | {"bytes": path.stat().st_size, "sha256": file_hash(path)})
        else:
            written = _write(directory, entry, manifest, planes, path)
            files.append(entry | {"bytes": written.bytes, "sha256": written.sha256})
        done += entry["rows"] if entry["split"] else 0
        progress(Tick(done, total, "rows", {}))
        if stop():
            raise Stopped(f"stopped; what was finished is kept in {out}: run the same command to continue")
    if (directory / CARD).exists():
        publish(files_folder(out), CARD, 0, partial(_copy, directory / CARD))
    shard_bytes = sum(entry["bytes"] for entry in files if entry["name"] != GAMES)
    config = manifest["config"] | {"planes": planes} if manifest["config"] else {}
    made = manifest | identity | {"row_group": ROW_GROUP, "config": config, "files": files}
    made["bytes_per_position"] = round(shard_bytes / total, 2)
    publish_dataset(out, made)
    return made


def _write(directory: Path, entry: dict[str, Any], manifest: dict[str, Any], planes: Form, path: Path) -> Published:
    """Write a file of the new dataset: a shard converted, or a copy of another file."""
    name, rows = entry["name"], entry["rows"]
    if entry["split"] is None:
        return publish(path.parent, name, rows, partial(_copy, directory / name))
    with open_shard(directory / name, rows) as reader:
        try:
            return publish(path.parent, name, rows, partial(_rewrite, reader, planes, manifest["games"]["read"]))
        except OSError as error:  # a full disk is no fault of the shard that is read
            raise IngestError(f"{error}: what was finished is kept, run the same command to continue") from error


def _copy(path: Path, target: Any) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, target)


def _rewrite(reader: ShardReader, planes: Form, games: int, target: Any) -> None:
    """Write a shard's rows in another form; DatasetError for a row that the form cannot hold."""
    stored = schema(planes, reader.optional)
    columns = (*COLUMNS, *reader.optional)
    names = [name for name in columns if name != "planes"]
    with pq.ParquetWriter(target, stored, **writer_options(stored)) as writer:
        rows: list[pa.Table] = []
        for group in range(len(reader.groups)):
            with reading(reader.path):
                batch = reader.read(group, columns, games)
                if planes == "compact":
                    _require_derived(reader.path, group, batch)
                others = reader.table(group, names)
            arrays = [*plane_arrays(planes, batch["planes"], batch), *(others.column(name) for name in names)]
            rows.append(pa.Table.from_arrays(arrays, schema=stored))
            if sum(map(len, rows)) >= ROW_GROUP or group + 1 == len(reader.groups):
                writer.write_table(pa.concat_tables(rows), row_group_size=ROW_GROUP)
                rows = []


def _require_derived(path: Path, group: int, batch: dict[str, Any]) -> None:
    """Raise DatasetError for a row whose planes do not follow from its position."""
    same_R = (unpack(pack(batch["planes"], batch)) == batch["planes"]).all(axis=1)
    if not same_R.all():
        raise DatasetError(
            f"{path}: the planes of row {int(np.argmin(same_R))} of row group {group} are not those of its position, so it "
            "has no compact form"
        )
