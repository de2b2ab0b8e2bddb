"""A dump into a dataset: chunks spread over workers, shards published as they are done, the manifest last.

    dump -> chunks of whole games -> [worker: tags, replay, shuffle, shards] -> games.parquet, manifest.json
    with `shard_rows`:               [worker: tags, replay, buckets] -> [worker: buckets of all chunks, shuffle, shards] -> ...

A chunk's result depends on its text, its number and the configuration alone, so any number of workers, killed and
started again at any time, end with the same bytes. What is finished lies in `.building/` until the manifest is there.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.compiling import announce_to_workers
from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.json_files import read_json
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import FORMAT_VERSION
from pipeline.dataset.files.layout import CARD
from pipeline.dataset.files.shards import (
    GAMES,
    MANIFEST,
    file_hash,
    finish_dataset,
    read_manifest,
)
from pipeline.dumps.reader import STDIN, Source, chunks, require, short_name
from pipeline.errors import (
    ConfigError,
    DamagedError,
    DatasetError,
    FetchError,
    IngestError,
    OtherDumpError,
    Stopped,
    StoreError,
)
from pipeline.executors.local import Engine, Failure, LocalEngine
from pipeline.ingest.chunk import ChunkTask, IngestConfig, encode_chunk, part_name, release_buffers
from pipeline.ingest.manifest import build_manifest, plain_config, read_notes
from pipeline.ingest.rows_code import rows_code
from pipeline.ingest.scatter import Plan, ShardTask, forget_others, make_shards, plans, shard_tasks
from pipeline.storage.building import BUILDING, PARTS, RUN, begin, discard, require_unused
from pipeline.storage.claims import DATASET, require_own
from pipeline.storage.objects import look
from pipeline.storage.preflight import require_utf8
from pipeline.storage.stores import alone, is_url, make_folder, reached, temporaries

MOST_SOURCES = 1 << 16
"""Dumps that the column `source` of `games.parquet` can number."""
CHUNK_SIZES = (8, 16, 32, 64)
"""MiB of text of a chunk that the size of the dumps chooses from."""
MOST_CHUNKS = 2_000
"""Chunks above which larger ones are chosen: three shards each, so some 6,000 files; a month of 200 GB has 9,400."""
UNPACKED = {".zst": 6, ".gz": 5, ".bz2": 6}
"""Bytes of PGN text a byte of an archive, about, by the ending of its name."""


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
    """Make a dataset of dumps in `out` and give its manifest.

    `sources`: paths, addresses (https://, s3://, gs://) or `-` for standard input; `out`: what
    `pipeline.storage.stores.place` gives. A finished dataset of the same sources and configuration is given as it is;
    an unfinished one is continued. `engine`: what spreads the chunks, in place of `workers` processes of this machine.

    Raises DumpError, FetchError, DatasetError (`out` holds what is another's, or is of other sources, configuration or code;
    no positions), IngestError (disk full,
    network gone, two at once), Stopped, and DamagedError when an archive broke off: the dataset of all before the damage is
    then complete.
    """
    config = config or IngestConfig()
    if not sources:
        raise ConfigError("name at least one dump, or - for standard input")
    if len(sources) > MOST_SOURCES:
        raise ConfigError(
            f"a dataset is made of at most {MOST_SOURCES:,} dumps: ingest them into several, and join them"
        )
    for name in (*sources, str(out)):
        require_utf8(name)
    for name in sources:
        require(name)
    try:
        with reached(out):
            require_own(out, DATASET, DatasetError)
            make_folder(out)
    except OSError as error:
        raise IngestError(f"{out} cannot be made: {error.strerror or error}") from error
    try:
        busy = IngestError(f"another ingest is writing {out}: wait for it, or choose another --out")
        with alone(out, busy), reached(out):
            config = with_chunk_size(config, sources, out)
            manifest = _finished(out, sources, config) or _ingest(
                sources, out, config, engine or LocalEngine(workers), progress, stop
            )
    except StoreError as error:
        raise IngestError(f"{error}: what was finished is kept, run again to continue") from error
    damage = [f"{source['name']}: {source['damage']}" for source in manifest["sources"] if source["damage"]]
    if damage:
        raise DamagedError(
            f"damaged archive ({'; '.join(damage)}): {manifest['games']['used']:,} games before the damage are in {out}"
        )
    return manifest


def with_chunk_size(config: IngestConfig, sources: Sequence[str], out: Path | None = None) -> IngestConfig:
    """Return the configuration with a number for `chunk_mib`: what `out` was begun with, or one chosen by the dumps' size.

    The choice is the smallest of CHUNK_SIZES that cuts the dumps into at most MOST_CHUNKS, so that a month is of thousands of
    shards and not of a hundred thousand; memory grows with a chunk by a few times its size. Standard input, and a server that
    tells no size, get the smallest: their size cannot be known before it is read.
    """
    if config.chunk_mib:
        return config
    for path in () if out is None else (out / MANIFEST, out / BUILDING / MANIFEST, out / BUILDING / RUN):
        made = read_json(path, DatasetError) if path.exists() else None
        if isinstance(made, dict) and isinstance(made.get("config"), dict) and made["config"].get("chunk_mib"):
            try:
                return replace(config, chunk_mib=made["config"]["chunk_mib"])
            except (TypeError, ConfigError):
                raise DatasetError(f"{path} is damaged: its chunk_mib is no size of a chunk") from None
    known = [name for name in sources if is_url(name) or (name != STDIN and Path(name).is_file())]
    text = sum((Source(name).size or 0) * UNPACKED.get(Path(short_name(name)).suffix, 1) for name in known)
    fitting = (size for size in CHUNK_SIZES if text <= MOST_CHUNKS * (size << 20))
    return replace(config, chunk_mib=next(fitting, CHUNK_SIZES[-1]))


def _finished(out: Path, sources: Sequence[str], config: IngestConfig) -> dict[str, Any] | None:
    """Give the manifest of a finished dataset if it is of these sources and this configuration; None if unfinished."""
    if not finish_dataset(out):
        return None
    manifest = read_manifest(out)
    asked = plain_config(config)
    made_with = plain_config(IngestConfig()) | manifest["config"]  # one of before a setting existed had its default
    if made_with != asked:
        differing = [name for name in made_with if made_with[name] != asked.get(name)]
        raise DatasetError(
            f"{out} was made with other settings ({', '.join(differing)})", remedy="choose another --out", code="taken"
        )
    made = manifest["sources"]
    if len(made) != len(sources) or not all(map(_is_of, made, sources)):
        names = [source["name"] for source in made]
        raise OtherDumpError(
            f"{out} was made from {names}, which are other dumps than those named now, or have changed",
            remedy="choose another --out",
            code="taken",
        )
    if manifest.get("code") != rows_code():
        raise OtherDumpError(
            f"{out} is finished, and was made by other code ({_said(manifest)}, this is {rows_code()}): its rows may "
            "differ",
            remedy="to build it again, choose another --out",
            code="taken",
        )
    return manifest


def _said(made: Mapping[str, Any]) -> str:
    """Say which code made something."""
    return str(made.get("code") or "it does not say which")


def _is_of(made: Mapping[str, Any], name: str) -> bool:
    """Tell whether what a manifest says of a source is true of a dump: by its hash, or by what a server says of it."""
    if is_url(name):
        version = look(name)
        same = (made["name"], made["bytes"], made.get("version")) == (short_name(name), version.size, version.name)
        return same and bool(version.validator)  # without one the server may send another version under the same name
    path = Path(name)
    if name == STDIN or not path.is_file():
        return False
    return (made["name"], made["bytes"], made["sha256"]) == (path.name, path.stat().st_size, file_hash(path))


def _begin(out: Path, sources: Sequence[str], config: IngestConfig) -> None:
    """Begin or continue a build; raises DatasetError for one of other sources, settings or code."""
    asked: dict[str, Any] = {
        "sources": [short_name(name) for name in sources],
        "config": plain_config(config),
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "code": rows_code(),
    }
    if any(map(is_url, sources)):  # of a file, the texts of the chunks tell
        asked["versions"] = [look(name).name if is_url(name) else None for name in sources]
    path = out / BUILDING / RUN
    begun = path.exists() and any((out / PARTS).glob("[0-9]*.json"))  # with nothing done there is nothing to mix
    if begun and (before := read_json(path, DatasetError)) != asked:
        if not isinstance(before, dict):
            raise DatasetError(f"{path} is damaged: delete {out} and ingest again")
        if before | {"versions": asked.get("versions")} == asked:
            raise OtherDumpError(
                "the dump has been replaced since this ingest was begun", remedy="choose another --out", code="taken"
            )
        if before | {"code": asked["code"]} == asked:
            raise OtherDumpError(
                f"{out} holds an unfinished ingest by other versions of the code ({_said(before)}, this is "
                f"{asked['code']}), whose rows are not mixed with these",
                remedy="delete it or choose another --out",
                code="taken",
            )
        raise DatasetError(
            f"{out} holds an unfinished ingest of other sources, settings or versions",
            remedy="delete it or choose another --out",
            code="taken",
        )
    require_unused(out, (GAMES, CARD, MANIFEST), DatasetError)
    if not begun:
        discard(out)
        begin(out, asked)


def _ingest(
    names: Sequence[str],
    out: Path,
    config: IngestConfig,
    engine: Engine,
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Encode every chunk that is not done, then publish the games and the manifest."""
    sources = [Source(name, stop) for name in names]
    parts = out / PARTS
    where = str(out if is_url(str(out)) else out.absolute())  # a worker elsewhere may stand in another folder
    sizes = [
        source.size for source in sources if source.name == STDIN or is_url(source.name) or Path(source.name).is_file()
    ]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    _begin(out, names, config)
    announce_to_workers("replay")
    began = time.perf_counter()
    raw_bytes = positions = fresh = taken = 0

    def read(count: int) -> None:
        nonlocal raw_bytes
        raw_bytes = count

    def tasks() -> Iterator[ChunkTask]:
        nonlocal taken
        for chunk in chunks(sources, config.chunk_mib << 20, read):
            taken += 1
            yield ChunkTask(chunk, where, config, rows_code())

    try:
        with closing(engine.map(encode_chunk, tasks())) as results:
            for _, status, value in results:
                if status != "ok":
                    raise _failure(status, value)
                if not (parts / part_name(value["chunk"])).exists():
                    raise IngestError(
                        f"what a worker wrote to {out} is not visible here: name a folder that all nodes share"
                    )
                positions += value["rows"]
                fresh += value["fresh_rows"]
                rate = fresh / max(time.perf_counter() - began, 1e-9)
                progress(Tick(raw_bytes, total, "B", {"positions": positions, "positions/s": rate}))
                if stop():
                    raise Stopped(f"stopped; what was finished is kept in {out}: run the same command to continue")
        if (parts / part_name(taken)).exists():
            raise OtherDumpError(
                "the dump has become shorter since this ingest was begun",
                remedy="choose another --out",
                code="taken",
            )
        release_buffers()  # what is made of the whole takes its place, so the peak is that of a chunk
        shards: list[dict[str, Any]] = []
        if config.shard_rows:
            planned = plans(read_notes(parts), config)
            forget_others(out, planned)
            shards = _made(out, engine, planned, shard_tasks(out, where, planned, config), progress, stop)
        manifest = build_manifest(out, sources, config, shards=shards)
    except FetchError as error:
        raise IngestError(f"{error}; what was finished is kept in {out}: run the same command to continue") from error
    except OSError as error:
        raise IngestError(
            f"{error.strerror or error} ({out}): what was finished is kept, run again to continue"
        ) from error
    finally:
        for left in (
            path for folder in (out / BUILDING, out / PARTS) for path in temporaries(folder)
        ):  # of killed workers
            left.unlink(missing_ok=True)
    return manifest


def _made(
    out: Path,
    engine: Engine,
    planned: Sequence[Plan],
    tasks: Iterable[ShardTask],
    progress: Progress,
    stop: Stop,
) -> list[dict[str, Any]]:
    """Make shards of what chunks have left in buckets: give the manifest's entries, in their order."""
    made: dict[str, dict[str, Any]] = {}
    total, rows = sum(plan.rows for plan in planned), 0
    began = time.perf_counter()
    with closing(engine.map(make_shards, tasks)) as results:
        for _, status, value in results:
            if status != "ok":
                raise _failure(status, value)
            made |= {entry["name"]: entry for entry in value}
            rows += sum(entry["rows"] for entry in value)
            rate = rows / max(time.perf_counter() - began, 1e-9)
            progress(Tick(rows, total, "rows", {"shards": len(made), "rows/s": rate}))
            if stop():
                raise Stopped(f"stopped; what was finished is kept in {out}: run the same command to continue")
    return [made[name] for plan in planned for name in plan.names]


def _failure(status: str, value: Failure | None) -> Exception:
    """Make the error that ends an ingest from what a worker left."""
    if status == "lost" or value is None:
        return IngestError(
            "a worker was killed three times at the same work (out of memory?)",
            remedy="try fewer --workers",
            code="workers",
        )
    if value.system:
        return IngestError(f"{value.message}: what was finished is kept, run the same command to continue")
    if value.mistake:
        return (OtherDumpError if value.kind == OtherDumpError.__name__ else DatasetError)(value.message)
    return RuntimeError(f"a worker failed: {value.message}\n{value.traceback}")
