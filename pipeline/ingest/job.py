"""Turn dumps into a dataset: workers encode chunks and publish shards, and the manifest comes last.

    dump -> chunks of whole games -> [worker: tags, replay, shuffle, shards]
         -> games.parquet -> manifest.json

The result of a chunk depends only on its text, its number and the configuration. The dataset is
therefore the same to the byte for any number of workers, and after any kill and restart. Finished
chunks stay in `.building/` until the manifest is complete.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.compiling import announce_worker_compiling
from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import FORMAT_VERSION, MANIFEST
from pipeline.dataset.files.manifest import list_damage, read_manifest
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.formats.evaluations import ENGINE_MOVE_INPUTS, Sample
from pipeline.dumps.source import (
    STDIN,
    Source,
    expand_folders,
    is_same_file,
    require_dump,
    shorten_name,
)
from pipeline.errors import (
    ConfigError,
    DamagedError,
    DatasetError,
    DumpError,
    FetchError,
    IngestError,
    OtherDumpError,
    OtherSettingsError,
    Stopped,
)
from pipeline.executors.local import Engine, Failure, LocalEngine
from pipeline.ingest.chunk import (
    ROWS_VERSION,
    ChunkTask,
    IngestConfig,
    encode_chunk,
    note_name,
    release_buffers,
)
from pipeline.ingest.manifest import build_manifest, config_to_json
from pipeline.storage.job_folder import DATASET_KIND, JobFolder
from pipeline.storage.objects import fetch_version
from pipeline.storage.preflight import require_utf8
from pipeline.storage.stores import is_url

OTHER_OUT_REMEDY, WORK_IS_KEPT = "choose another --out", "finished work is kept"
MAX_SOURCES = 1 << 16
"""Maximum number of dumps: their numbers are stored as uint16 in `games.parquet`."""
CHUNK_SIZES = (8, 16, 32, 64)
"""Possible chunk sizes in MiB of text; larger dumps get larger chunks."""
MAX_CHUNKS = 2_000
"""Number of chunks above which a larger chunk size is chosen. Each chunk makes three files, so this
is about 6,000 files; with the largest chunk size, a month of 200 GB has 9,400."""
UNPACKED_RATIO = {".zst": 6, ".gz": 5, ".bz2": 6, ".zip": 5}
"""Approximate bytes of PGN text per byte of an archive, by file suffix."""


def ingest(
    sources: Sequence[str],
    out: Path,
    config: IngestConfig | None = None,
    *,
    workers: int = 0,
    engine: Engine | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Turn dumps into a dataset in `out` and return its manifest.

    `sources` are paths, URLs (https://, s3://, gs://, hf://), folders of Parquet files, or `-` for
    standard input. `out` comes from `pipeline.storage.stores.parse_path`. A finished dataset of the
    same sources and configuration is left as it is, and an unfinished one is continued. `engine`
    encodes the chunks; without it, `workers` local processes do, 0 for one per core.

    Raises ConfigError, DumpError, FetchError and Stopped; DatasetError if `out` has other files, if
    it was made from other sources, settings or code, or if there are no positions; IngestError for
    a full disk, a lost connection, or another ingest in `out`; and DamagedError if an archive is
    damaged, after the dataset of all games before the damage has been completed.
    """
    config, sources = config or IngestConfig(), expand_folders(sources)
    if not 1 <= len(sources) <= MAX_SOURCES:
        raise ConfigError(
            f"name at least one dump, or - for standard input, and at most {MAX_SOURCES:,}"
        )
    for name in (*sources, str(out)):
        require_utf8(name)
    for name in sources:
        require_dump(name)
    folder = JobFolder(out, DATASET_KIND, DatasetError, IngestError)
    with folder.lock():
        config = choose_chunk_size(config, sources, folder)
        manifest = _load_finished(folder, sources, config)
        if manifest is None:
            runner = engine or LocalEngine(workers)
            manifest = _build(sources, folder, config, runner, progress, stop)
    if damage := list_damage(manifest):
        used = manifest["games"]["used"]
        raise DamagedError(
            f"damaged archive ({'; '.join(damage)}): {used:,} games before the damage are in {out}"
        )
    return manifest


def choose_chunk_size(
    config: IngestConfig, sources: Sequence[str], folder: JobFolder | None = None
) -> IngestConfig:
    """Return the configuration with a chunk size: as recorded in `folder`, or by the dumps' size.

    The choice is the smallest of CHUNK_SIZES that cuts the dumps into at most MAX_CHUNKS, since a
    worker needs several times the chunk size in memory. If all sizes are unknown (standard input,
    some servers), it is the smallest one.
    """
    if config.chunk_mib:
        return config
    if folder is not None:
        is_finished = (folder.out / MANIFEST).exists()
        recorded = read_manifest(folder.out) if is_finished else folder.read_identity() or {}
        if chunk_mib := recorded.get("config", {}).get("chunk_mib"):
            return replace(config, chunk_mib=chunk_mib)
    sizes = zip(sources, _find_sizes(sources), strict=True)
    text_bytes = sum(
        (size or 0) * UNPACKED_RATIO.get(Path(shorten_name(name)).suffix, 1) for name, size in sizes
    )
    large_enough = (size for size in CHUNK_SIZES if text_bytes <= MAX_CHUNKS * (size << 20))
    return replace(config, chunk_mib=next(large_enough, CHUNK_SIZES[-1]))


def _find_sizes(sources: Sequence[str]) -> list[int | None]:
    """Return the bytes of each dump, None for standard input, pipes and some servers."""
    return [
        Source(name).size if is_url(name) or (name != STDIN and Path(name).is_file()) else None
        for name in sources
    ]


def _load_finished(
    folder: JobFolder, sources: Sequence[str], config: IngestConfig
) -> dict[str, Any] | None:
    """Return the manifest of a finished dataset, None if it is not finished.

    Raises DatasetError if it was made from other sources, settings or code.
    """
    if not folder.is_finished():
        return None
    out = folder.out
    manifest = read_manifest(out)
    wanted, recorded = config_to_json(config), manifest["config"]
    names = wanted.keys() | recorded.keys()
    if different := sorted(name for name in names if recorded.get(name) != wanted.get(name)):
        raise OtherSettingsError(
            f"{out} was made with other settings ({', '.join(different)})", remedy=OTHER_OUT_REMEDY
        )
    entries = manifest["sources"]
    if len(entries) != len(sources) or not all(map(_is_same_dump, entries, sources)):
        raise OtherDumpError(
            f"{out} was made from {[entry['name'] for entry in entries]}, which are not the given "
            "dumps, or have changed",
            remedy=OTHER_OUT_REMEDY,
        )
    if (version := manifest.get("rows_version")) != ROWS_VERSION:
        raise OtherDumpError(
            f"{out} is finished, but its rows have version {version} and this program writes "
            f"version {ROWS_VERSION}",
            remedy="to build it again, choose another --out",
        )
    return manifest


def _is_same_dump(entry: Mapping[str, Any], name: str) -> bool:
    """Return whether name and hash (of a URL: name, size, version) match a manifest's entry."""
    if entry["name"] != shorten_name(name):
        return False
    if is_url(name):
        version = fetch_version(name)
        same = (entry["bytes"], entry.get("version")) == (version.size, version.tag)
        # a file without a version may have been replaced under the same name
        return same and version.tag != ""
    return name != STDIN and Path(name).is_file() and is_same_file(entry, Path(name))


def _claim_folder(folder: JobFolder, sources: Sequence[str], config: IngestConfig) -> None:
    """Claim the folder for a new or a continued build.

    Raises DatasetError if the build was begun with other sources, settings or code.
    """
    identity: dict[str, Any] = {
        "sources": [shorten_name(name) for name in sources],
        "config": config_to_json(config),
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "rows_version": ROWS_VERSION,
    }
    if any(map(is_url, sources)):  # local files are identified by the text of their chunks
        identity["dump_versions"] = [
            fetch_version(name).tag if is_url(name) else None for name in sources
        ]
    # without any finished chunk, the identity may change
    has_results = folder.has_notes()
    if has_results and (differences := folder.list_differences(identity)):
        names = sorted({re.split(r"[. ]", text)[0] for text in differences})
        is_other_dump = names in (["dump_versions"], ["rows_version"])
        error_type = OtherDumpError if is_other_dump else OtherSettingsError
        raise error_type(
            f"{folder.out} holds an unfinished ingest with other {', '.join(names)}",
            remedy=f"delete it or {OTHER_OUT_REMEDY}",
        )
    folder.claim(identity, has_results=has_results)
    folder.make_notes_folder()


def _build(
    names: Sequence[str],
    folder: JobFolder,
    config: IngestConfig,
    engine: Engine,
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Encode all remaining chunks, then publish the games table and the manifest."""
    sources = [Source(name, stop, sample=Sample(config.sample, config.seed)) for name in names]
    out = folder.out
    # absolute, since workers may have another current directory
    task_out = str(out if is_url(str(out)) else out.absolute())
    sizes = _find_sizes(names)
    total = None if None in sizes else sum(size or 0 for size in sizes)
    _claim_folder(folder, names, config)
    announce_worker_compiling("replay")
    start, positions, fresh_rows, chunks_read = 0.0, 0, 0, 0

    def make_tasks() -> Iterator[ChunkTask]:
        nonlocal chunks_read
        for chunk in read_chunks(sources, config.chunk_mib << 20):
            first, this = (sources[at].input in ENGINE_MOVE_INPUTS for at in (0, chunk.source))
            if first != this:
                raise DumpError(
                    "engine moves and human moves cannot be mixed in one dataset: ingest these "
                    "dumps separately"
                )
            chunks_read += 1
            yield ChunkTask(chunk, task_out, config)

    try:
        with closing(engine.map(encode_chunk, make_tasks())) as results:
            for number, (_, status, value) in enumerate(results):
                if status != "ok":
                    raise _make_error(status, value)
                if not (folder.notes / note_name(value["chunk"])).exists():
                    raise IngestError(
                        f"{out} is not the same folder for all workers: choose one that all nodes "
                        "share"
                    )
                positions += value["rows"]
                figures: dict[str, float] = {"positions": positions}
                # exclude each worker's first chunk, which includes start-up and compilation
                if number < engine.count_slots():
                    start = time.perf_counter()
                else:
                    fresh_rows += value["fresh_rows"]
                    figures["positions/s"] = fresh_rows / max(time.perf_counter() - start, 1e-9)
                bytes_read = sum(source.bytes_read for source in sources)
                progress(Tick(bytes_read, total, "B", figures))
                if stop():
                    raise Stopped(
                        f"stopped; {WORK_IS_KEPT} in {out}: run the same command to continue"
                    )
        if (folder.notes / note_name(chunks_read)).exists():
            raise OtherDumpError(
                "the dump has become shorter since this ingest began", remedy=OTHER_OUT_REMEDY
            )
        release_buffers()  # merging the tables needs memory too
        more = {"moves_by": "engine"} if sources[0].input in ENGINE_MOVE_INPUTS else {}
        try:
            return build_manifest(folder, [source.describe() for source in sources], config, more)
        finally:
            # the next run will have other settings, for example if a player's name was misspelled
            if not positions:
                folder.discard()
    except FetchError as error:
        raise IngestError(
            f"{error}; {WORK_IS_KEPT} in {out}: run the same command to continue"
        ) from error


def _make_error(status: str, value: Failure | None) -> Exception:
    if status == "lost" or value is None:
        return IngestError(
            "a worker was killed three times on the same chunk (out of memory?)",
            remedy="try fewer --workers",
            code="workers",
        )
    if value.is_system_error:
        return IngestError(f"{value.message}: {WORK_IS_KEPT}, run the same command to continue")
    if value.is_user_error:
        is_other_dump = value.kind == OtherDumpError.__name__
        return (OtherDumpError if is_other_dump else DatasetError)(value.message)
    return RuntimeError(f"a worker failed: {value.message}\n{value.traceback}")
