"""A dump into a dataset: chunks spread over workers, shards published as they are done, the manifest last.

    dump -> chunks of whole games -> [worker: tags, replay, shuffle, shards] -> games.parquet, manifest.json

A chunk's result depends on its text, its number and the configuration alone, so any number of workers, killed and
started again at any time, end with the same bytes. What is finished lies in `.parts/` until the manifest is there.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from engine.encoding import ENCODING_VERSION, moves_hash
from engine.kernel_cache import sources_hash
from engine.progress import Progress, Tick, silent
from pipeline.chunk import ChunkTask, IngestConfig, encode_chunk, part_name
from pipeline.errors import ConfigError, DamagedError, DatasetError, IngestError, Stopped
from pipeline.manifest import build_manifest
from pipeline.shards import FORMAT_VERSION, MANIFEST, PARTS, file_hash, publish_json, read_manifest
from pipeline.sources import STDIN, Source, chunks, require
from pipeline.workers import Engine, Failure, LocalEngine


def ingest(
    sources: Sequence[str],
    out: Path,
    config: IngestConfig | None = None,
    *,
    workers: int = 0,
    engine: Engine | None = None,
    progress: Progress = silent,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Make a dataset of dumps in `out` and give its manifest.

    `sources`: paths, or `-` for standard input. A finished dataset of the same sources and configuration is given as it
    is; an unfinished one is continued. `engine`: what spreads the chunks, in place of `workers` processes of this machine.

    Raises DumpError, DatasetError (other sources or configuration, or no positions), IngestError (disk full, two at
    once), Stopped, and DamagedError when an archive broke off: the dataset of all before the damage is then complete.
    """
    config = config or IngestConfig()
    if not sources:
        raise ConfigError("name at least one dump, or - for standard input")
    for name in sources:
        require(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IngestError(f"{out} cannot be made: {error.strerror}") from error
    try:
        with FileLock(out / ".lock", timeout=0):
            manifest = _finished(out, sources, config) or _ingest(
                sources, out, config, engine or LocalEngine(workers), progress, stop
            )
    except Timeout as error:
        raise IngestError(f"another ingest is writing {out}: wait for it, or choose another --out") from error
    damage = [f"{source['name']}: {source['damage']}" for source in manifest["sources"] if source["damage"]]
    if damage:
        raise DamagedError(
            f"damaged archive ({'; '.join(damage)}): {manifest['games']['used']:,} games before the damage are in {out}"
        )
    return manifest


def _finished(out: Path, sources: Sequence[str], config: IngestConfig) -> dict[str, Any] | None:
    """Give the manifest of a finished dataset if it is of these sources and this configuration; None if unfinished."""
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    shutil.rmtree(out / PARTS, ignore_errors=True)
    if manifest["config"] != asdict(config):
        differing = [name for name, value in asdict(config).items() if manifest["config"].get(name) != value]
        raise DatasetError(f"{out} was made with other settings ({', '.join(differing)}): choose another --out")
    made = [(source["name"], source["bytes"], source["sha256"]) for source in manifest["sources"]]
    if made != [_identity(name) for name in sources]:
        names = [name for name, *_ in made]
        raise DatasetError(
            f"{out} was made from {names}, which is not what is asked or has changed: choose another --out"
        )
    return manifest


def _identity(name: str) -> tuple[str, int, str] | None:
    """Give name, bytes and hash of a dump; None for standard input and for what is no file."""
    path = Path(name)
    return (path.name, path.stat().st_size, file_hash(path)) if name != STDIN and path.is_file() else None


def _sweep(out: Path) -> None:
    """Take away the files that killed workers left open."""
    for folder in (out, out / PARTS):
        for left in folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)


def _begin(parts: Path, sources: Sequence[str], config: IngestConfig) -> None:
    """Start or continue the parts: refuse those of other sources or another configuration."""
    parts.mkdir(exist_ok=True)
    _sweep(parts.parent)
    asked = {
        "sources": [Path(name).name for name in sources],
        "config": asdict(config),
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "kernels": sources_hash(Path(__file__).resolve().parents[1]),
    }
    path = parts / "run.json"
    begun = path.exists() and any(parts.glob("[0-9]*.json"))  # with nothing done there is nothing to mix
    if begun and json.loads(path.read_bytes()) != asked:
        raise DatasetError(
            f"{parts.parent} holds an unfinished ingest of other sources, settings or versions: "
            "delete it or choose another --out"
        )
    if not begun:
        for left in parts.parent.glob("*-[0-9]*-[0-9]*.parquet"):  # shards whose note was never written
            left.unlink()
        publish_json(parts, path.name, asked)


def _ingest(
    names: Sequence[str],
    out: Path,
    config: IngestConfig,
    engine: Engine,
    progress: Progress,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Encode every chunk that is not done, then publish the games and the manifest."""
    sources = [Source(name) for name in names]
    parts = out / PARTS
    where = str(out.absolute() if isinstance(out, Path) else out)  # a worker elsewhere may stand in another folder
    sizes = [source.size for source in sources if source.name == STDIN or Path(source.name).is_file()]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    _begin(parts, names, config)
    began = time.perf_counter()
    raw_bytes = positions = fresh = taken = 0

    def read(count: int) -> None:
        nonlocal raw_bytes
        raw_bytes = count

    def tasks() -> Iterator[ChunkTask]:
        nonlocal taken
        for chunk in chunks(sources, config.chunk_mib << 20, read):
            taken += 1
            yield ChunkTask(chunk, where, config)

    try:
        with closing(engine.map(encode_chunk, tasks())) as results:
            for _, status, value in results:
                if status != "ok":
                    raise _failure(status, value)
                if not (parts / part_name(value["chunk"])).exists():
                    raise IngestError(
                        f"a worker wrote to a {out} that is not seen here: name a folder that all nodes share"
                    )
                positions += value["rows"]
                fresh += value["fresh_rows"]
                rate = fresh / max(time.perf_counter() - began, 1e-9)
                progress(Tick(raw_bytes, total, "B", {"positions": positions, "positions/s": rate}))
                if stop():
                    raise Stopped(f"stopped; what was finished is kept in {out}: run the same command to continue")
        if (parts / part_name(taken)).exists():
            raise DatasetError("the dump has become shorter since this ingest was begun: choose another --out")
        manifest = build_manifest(out, sources, config)
    except OSError as error:
        raise IngestError(
            f"{error.strerror or error} ({out}): what was finished is kept, run again to continue"
        ) from error
    finally:
        _sweep(out)
    shutil.rmtree(parts)
    return manifest


def _failure(status: str, value: Failure | None) -> Exception:
    """Make the error that ends an ingest from what a worker left."""
    if status == "lost" or value is None:
        return IngestError("a worker was killed three times on the same chunk (out of memory?): try fewer --workers")
    if value.system:
        return IngestError(f"{value.message}: what was finished is kept, run the same command to continue")
    if value.kind in ("DatasetError", "IngestError"):
        return DatasetError(value.message)
    return RuntimeError(f"a worker failed: {value.message}\n{value.traceback}")
