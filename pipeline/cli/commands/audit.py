"""Commands on finished datasets: join, audit, verify."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pipeline.cli.commands.base import Common, Interrupt, require_output
from pipeline.cli.endings import joined
from pipeline.cli.progress import bar
from pipeline.dataset.join import JoinConfig
from pipeline.errors import ConfigError, DifferenceError
from pipeline.storage.claims import AUDIT


@dataclass(frozen=True, kw_only=True, slots=True)
class Join(Common):
    """Join datasets (months) into a training set that refers to them; no row is copied, and the latest month is held out.

    Joining again adds datasets to the set. Every command that takes a dataset also takes a training set.
    """

    arguments: ClassVar = {"datasets": "[DATASET...]"}
    basic: ClassVar = ("out", "remove", "hold_out")

    datasets: tuple[Path, ...] = ()
    """Datasets to add, as `fianchetto ingest` makes them."""
    out: Path
    """Directory of the training set."""
    remove: tuple[str, ...] = ()
    """Datasets to take out of the set, by the names of their folders; their files stay."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """What is held out."""

    def run(self) -> dict[str, Any]:
        """Join and return what the set holds."""
        from pipeline.dataset.join import join

        stop = Interrupt()
        with bar("join") as progress:
            made = join(self.datasets, self.out, self.join, remove=self.remove, progress=progress, stop=stop)
        shown = ("name", "first_date", "last_date", "held_out")
        listed = [{key: entry[key] for key in shown} for entry in made["datasets"]]
        result = {"out": str(self.out)} | {key: made[key] for key in ("positions", "games_on_both_sides")}
        return result | {"datasets": listed} if self.json else {"text": joined(result, listed, self.out)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit(Common):
    """Audit datasets or training sets: duplicate games, positions shared by test and train, distributions, drift.

    All figures are exact counts. Memory does not grow with the rows; the temporary folder takes up to 16 bytes per position.
    """

    arguments: ClassVar = {"datasets": "DATASET..."}
    basic: ClassVar = ("out", "scratch")

    datasets: tuple[Path, ...]
    """Datasets or training sets, audited together."""
    out: Path | None = None
    """Directory for the audit as JSON, text, Markdown and a picture."""
    scratch: Path | None = None
    """Folder for temporary files; the default is the system's."""

    def run(self) -> dict[str, Any]:
        """Count, and write the audit into --out."""
        from pipeline.validation.audit.audit import audit
        from pipeline.validation.audit.render import audit_text, write_audit

        require_output(self.out, AUDIT, self.datasets)
        if self.scratch is not None and not self.scratch.is_dir():
            raise ConfigError(f"{self.scratch} is not a directory: make it first, or leave --scratch out")
        stop = Interrupt()
        with bar("audit") as progress:
            result = audit(self.datasets, scratch=self.scratch, progress=progress, stop=stop)
        if self.out is not None:
            write_audit(result, self.out)
        return result if self.json else {"text": audit_text(result)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify(Common):
    """Compare every file of datasets with its hash, and rows with the dump that they were made from.

    The exit status is 0 when every check passes, and 1 with a list when one does not. Checks that could not be made, as of
    rows whose dump is missing, are listed too.
    """

    arguments: ClassVar = {"datasets": "DATASET..."}
    basic: ClassVar = ("all", "sample", "source", "workers")

    datasets: tuple[Path, ...]
    """Datasets or training sets."""
    all: bool = False
    """Ingest the whole dump again, into a temporary folder as large as the dataset, and compare every row."""
    sample: int = 64
    """Rows of each dataset to replay with python-chess; 0 checks files only."""
    source: tuple[Path, ...] = ()
    """Dumps that the datasets were made from. Default: those in the folder `dumps` beside the datasets' own; self-play has
    its own."""
    workers: int = 0
    """Processes for --all; 0 for one per core, 1 for this process alone."""

    def __post_init__(self) -> None:
        if self.sample < 0 or not self.datasets:
            raise ConfigError("name at least one dataset; sample is at least 0")

    def run(self) -> dict[str, Any]:
        """Return what was compared; raise DifferenceError with the list of problems."""
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
        result = {"datasets": summaries, "problems": lines} if self.json else {"text": _text(summaries, lines)}
        if lines:
            raise DifferenceError(f"{len(lines)} differences in {', '.join(map(str, self.datasets))}", result)
        return result

    def _one(self, directory: Path, manifest: dict[str, Any], stop: Interrupt) -> tuple[list[str], dict[str, Any]]:
        """Verify one dataset; return its problems, and what was compared and what not."""
        from pipeline.dumps.paths import dumps_of
        from pipeline.validation.verify import verify_dataset

        sources = dumps_of(directory, manifest, self.source) if self.all or self.sample or self.source else None
        if self.all and sources is None:
            raise ConfigError(f"the dump of {directory} is not beside it: name it with --source")
        with bar("verify") as progress:
            found = verify_dataset(
                directory,
                sources or (),
                rows=self.sample,
                everything=self.all,
                workers=self.workers,
                progress=progress,
                stop=stop,
            )
        rows, whole = found["encoded_again"] + found["compared"] > 0, not found["files"]
        checked = {"files": True, "splits": whole, "source": bool(sources) and whole, "rows": rows}
        problems = [problem for name in checked for problem in found[name]]
        summary = {
            "files": len(manifest["files"]),
            "positions": manifest["positions"]["total"],
            "encoded_again": found["encoded_again"],
            "replayed_with_python_chess": found["compared"],
            "problems": len(problems),
            "checked": [name for name, done in checked.items() if done],
            "not_checked": [name for name, done in checked.items() if not done],
        }
        if whole and not rows:
            asked = self.all or self.sample or self.source
            why = "--sample 0" if sources or not asked else "the dump is not there (--source)"
            summary["note"] = f"rows were not compared: {why}"
        return problems, summary


def _text(summaries: dict[str, Any], lines: list[str]) -> str:
    """Return the result as text."""
    from pipeline.evaluation.render import plain_text

    bare = [name for name, summary in summaries.items() if "rows" not in summary["checked"]]
    end = f"{len(lines)} differences" if lines else "files, splits, dumps and the compared rows are as they should be"
    if bare and not lines:
        end = f"files and splits are as they should be; rows were not compared with a dump, of {', '.join(bare)}"
    return "\n".join([plain_text(summaries), *lines, end])
