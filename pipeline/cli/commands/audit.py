"""Commands on datasets that are there: join, audit, verify."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.progress import bar
from pipeline.dataset.join import JoinConfig
from pipeline.errors import ConfigError, DifferenceError


@dataclass(frozen=True, kw_only=True, slots=True)
class Join(Common):
    """Join datasets (months) into a training set that names them; no row is copied, and the latest month is held out.

    Joining again adds to what is there. Every command that takes a dataset takes a training set.
    """

    datasets: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Datasets to add, as `fianchetto ingest` makes them."""
    out: Path
    """Directory of the training set."""
    remove: tuple[str, ...] = ()
    """Datasets to take out of the set, by the names of their folders; their files stay."""
    config: tyro.conf.OmitArgPrefixes[JoinConfig] = field(default_factory=JoinConfig)
    """What is held out, and how train is thinned."""

    def run(self) -> dict[str, Any]:
        """Join and give the set's page, without the counts by row group."""
        from pipeline.dataset.join import join

        stop = Interrupt()
        with bar("join") as progress:
            page = join(self.datasets, self.out, self.config, remove=self.remove, progress=progress, stop=stop)
        shown = ("name", "first_date", "last_date", "held_out")
        listed = [{key: entry[key] for key in shown} for entry in page["datasets"]]
        result = {"out": str(self.out)} | {key: page[key] for key in ("positions", "games_on_both_sides")}
        result |= {"shares_before": page["shares_before"]} if page["shares_before"] else {}
        return result | ({"datasets": listed} if self.json else {"slices": {"datasets": listed}})


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit(Common):
    """Audit datasets or training sets: copies, positions that tests share with train, distributions, drift.

    Everything is counted, nothing estimated, in memory that does not grow with the rows; the temporary folder takes up to
    16 bytes a position.
    """

    datasets: tyro.conf.Positional[tuple[Path, ...]]
    """Datasets or training sets, looked at together."""
    source: tuple[Path, ...] = ()
    """Dumps that the datasets were made of, to count players by: datasets hold no names."""
    out: Path | None = None
    """Directory for the audit as JSON, text, Markdown and a picture."""
    scratch: Path | None = None
    """Folder for temporary files; none for the system's."""

    def run(self) -> dict[str, Any]:
        """Count, and write the audit where that is asked for."""
        from pipeline.dataset.training_set import members
        from pipeline.dumps.paths import dumps_of
        from pipeline.storage.claims import AUDIT, require_apart, require_own
        from pipeline.storage.preflight import require_folder
        from pipeline.validation.audit.audit import audit
        from pipeline.validation.audit.render import audit_text, write_audit

        if self.out is not None:  # before minutes are spent on counting
            require_folder(self.out)
            require_own(self.out, AUDIT, ConfigError)
            require_apart(self.out, self.datasets, ConfigError)
        if self.scratch is not None and not self.scratch.is_dir():
            raise ConfigError(f"{self.scratch} is not a directory: make it first, or leave --scratch out")
        sources = {}
        if self.source:
            for member in (member for path in self.datasets for member in members(path)):
                name = member.directory.resolve().name
                named = {entry["name"] for entry in member.manifest["sources"]}
                mine = [path for path in self.source if path.name in named]
                if mine or len(self.source) == len(self.datasets) == 1:
                    sources[name] = dumps_of(member.directory, member.manifest, mine or self.source) or []
        stop = Interrupt()
        with bar("audit") as progress:
            result = audit(self.datasets, sources=sources, scratch=self.scratch, progress=progress, stop=stop)
        if self.out is not None:
            write_audit(result, self.out)
        return result if self.json else {"text": audit_text(result)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify(Common):
    """Compare every file of datasets with its hash, and rows with the dump that they were made of.

    Exit status 0 when what was checked is as it should be, 1 with the list when something is not; what was not checked, such
    as rows whose dump is not there, is said.
    """

    datasets: tyro.conf.Positional[tuple[Path, ...]]
    """Datasets or training sets."""
    all: bool = False
    """Encode the whole dump again and compare every row; otherwise a sample."""
    sample: int = 64
    """Games of each dataset that are encoded again, and rows that are replayed with python-chess; 0 for files only."""
    source: tuple[Path, ...] = ()
    """Dumps that the datasets were made of; none to look for them in the folder `dumps` beside the datasets' own."""
    workers: int = 0
    """Processes to use for --all; 0 for one a core, 1 for none beside this one."""

    def __post_init__(self) -> None:
        if self.sample < 0 or not self.datasets:
            raise ConfigError("name at least one dataset; sample is at least 0")

    def run(self) -> dict[str, Any]:
        """Compare; raises DifferenceError with the list."""
        from pipeline.dataset.files.shards import read_manifest
        from pipeline.validation.verify import datasets_in

        stop = Interrupt()
        lines: list[str] = []
        summaries: dict[str, Any] = {}
        directories: dict[Path, None] = {}
        for path in self.datasets:
            found, problems = datasets_in(path)
            directories |= dict.fromkeys(directory.resolve() for directory in found)
            lines += [f"{path.name}: {problem}" for problem in problems]
        for directory in directories:
            problems, summary = self._one(directory, read_manifest(directory), stop)
            lines += [f"{directory.name}: {problem}" for problem in problems]
            summaries[directory.name] = summary
        result = {"datasets": summaries, "problems": lines}
        if not self.json:
            result = {"text": _text(summaries, lines)}
        if lines:
            raise DifferenceError(f"{len(lines)} differences in {', '.join(map(str, self.datasets))}", result)
        return result

    def _one(self, directory: Path, manifest: dict[str, Any], stop: Interrupt) -> tuple[list[str], dict[str, Any]]:
        """Verify one dataset: problems, and what was compared."""
        from pipeline.dumps.paths import dumps_of
        from pipeline.validation.verify import verify_dataset

        sources = dumps_of(directory, manifest, self.source) if self.all or self.sample or self.source else None
        if self.all and sources is None:
            raise ConfigError(f"the dump of {directory} is not beside it: name it with --source")
        with bar("verify") as progress:
            found = verify_dataset(
                directory,
                sources or (),
                games=self.sample,
                rows=self.sample,
                everything=self.all,
                workers=self.workers,
                progress=progress,
                stop=stop,
            )
        problems = [problem for name in ("files", "splits", "source", "rows") for problem in found[name]]
        summary = {
            "files": len(manifest["files"]),
            "positions": manifest["positions"]["total"],
            "encoded_again": found["encoded_again"],
            "replayed_with_python_chess": found["compared"],
            "problems": len(problems),
        }
        return problems, summary | self._reach(found, bool(sources))

    def _reach(self, found: dict[str, Any], dumps: bool) -> dict[str, Any]:
        """Say what was checked of a dataset, and what was not and why."""
        rows = found["encoded_again"] + found["compared"] > 0
        checked = {"files": True, "splits": not found["files"], "source": dumps and not found["files"], "rows": rows}
        told = {"checked": [name for name, done in checked.items() if done]}
        told["not_checked"] = [name for name, done in checked.items() if not done]
        if rows or found["files"]:
            return told
        asked = self.all or self.sample or self.source
        why = "--sample 0" if dumps or not asked else "the dump is not there (--source)"
        return told | {"note": f"rows were not compared: {why}"}


def _text(summaries: dict[str, Any], lines: list[str]) -> str:
    """Write what was found for people."""
    from pipeline.evaluation.render import plain_text

    bare = [name for name, summary in summaries.items() if "rows" not in summary["checked"]]
    end = "all is as it should be: files, splits, dumps and the rows compared"
    if lines:
        end = f"{len(lines)} differences"
    elif bare:
        end = f"files and splits are as they should be; rows were not compared with a dump, of {', '.join(bare)}"
    return "\n".join([plain_text(summaries), *lines, end])
