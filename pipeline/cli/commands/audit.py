"""Commands on finished datasets: join, audit, verify, rows."""

from collections import Counter
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from model.settings import Count, Positive, settings
from pipeline.cli.commands.base import BaseCommand, require_output
from pipeline.cli.endings import suggest_training
from pipeline.dataset.join import JoinConfig
from pipeline.errors import ConfigError, DifferenceError
from pipeline.storage.job_folder import AUDIT_KIND

NUM_PRINTED_ROWS = 10
"""Number of rows that `fianchetto rows` prints by default."""


@settings(ConfigError)
class Join(BaseCommand):
    """Join datasets into a training set that holds out the newest games of each.

    Rows are referenced, not copied. Run it again with the same --out to add datasets. Most
    commands that take a dataset also take a training set.
    """

    arguments: ClassVar = {"datasets": "[DATASET...]"}
    basic: ClassVar = "out remove hold_out"

    datasets: tuple[Path, ...] = ()
    """Directories of the datasets to add; other training sets cannot be added."""
    out: Path
    """Directory of the training set."""
    remove: tuple[str, ...] = ()
    """Names of datasets to remove from the set; their files are kept."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """Games to hold out."""

    def run(self) -> dict[str, Any]:
        """Join and return the counts of the training set."""
        from pipeline.dataset.join import join
        from pipeline.storage.tables import format_plain_text

        work = partial(join, self.datasets, self.out, self.join, remove=self.remove)
        manifest = self.call_with_progress(work)
        names = ("positions", "games_on_both_sides")
        result = {"out": str(self.out)} | {name: manifest[name] for name in names}
        shown = ("name", "first_date", "last_date", "held_out", "why")
        datasets = [{key: entry[key] for key in shown} for entry in manifest["datasets"]]
        held_out = {entry["name"]: f"{entry['held_out']} ({entry['why']})" for entry in datasets}
        text = format_plain_text(result | {"held_out": held_out})
        suggestion = suggest_training(self.out, manifest["positions"]["train"])
        return result | {"datasets": datasets, "text": f"{text}\n{suggestion}"}


@settings(ConfigError)
class Audit(BaseCommand):
    """Count duplicate games and test positions that also occur in train, and show distributions.

    All counts are exact. Memory use does not grow with the number of rows; the temporary folder
    (TMPDIR) needs up to 16 bytes per position.
    """

    arguments: ClassVar = {"datasets": "DATASET..."}
    basic: ClassVar = "out"

    datasets: tuple[Path, ...]
    """Datasets or training sets, audited together."""
    out: Path | None = None
    """Directory for the audit as JSON and Markdown."""

    def run(self) -> dict[str, Any]:
        """Audit the datasets, and write the results to --out if given."""
        from pipeline.validation.audit import audit, format_audit_text, write_audit

        require_output(self.out, AUDIT_KIND, self.datasets)
        result = self.call_with_progress(partial(audit, self.datasets))
        if self.out is not None:
            write_audit(result, self.out)
        return result | {"text": format_audit_text(result)}


@settings(ConfigError)
class Verify(BaseCommand):
    """Verify datasets: every file by its hash, and random rows against their dump.

    The exit status is 0 if every check passes, otherwise 1 with a list of differences. Checks that
    were skipped, for example because the dump is missing, are listed too. To check every row,
    ingest the dump again into another directory and compare the hashes in both manifests.
    """

    arguments: ClassVar = {"datasets": "DATASET..."}
    basic: ClassVar = "sample source"

    datasets: tuple[Path, ...]
    """Datasets or training sets."""
    sample: Count = 64
    """Number of random rows per dataset to replay with python-chess; 0 checks no rows."""
    source: tuple[Path, ...] = ()
    """Dumps that the datasets were made from; by default they are looked for in each dataset's
    folder, and in the folders `dumps` and `sample` beside the folder that contains it."""

    def run(self) -> dict[str, Any]:
        """Verify the datasets and return a summary. Raises DifferenceError with all differences."""
        from pipeline.storage.tables import format_plain_text
        from pipeline.validation.verify import list_joined_datasets

        differences: list[str] = []
        directories: dict[Path, None] = {}
        for path in self.datasets:
            members, problems = list_joined_datasets(path)
            directories |= dict.fromkeys(directory.resolve() for directory in members)
            differences += [f"{path.name}: {problem}" for problem in problems]
        summaries: dict[str, Any] = {}
        names = Counter(directory.name for directory in directories)
        for directory in directories:
            name = directory.name if names[directory.name] == 1 else str(directory)
            problems, summaries[name] = self._verify(directory)
            differences += [f"{name}: {problem}" for problem in problems]
        not_compared = [
            name for name, summary in summaries.items() if "rows" in summary["not_checked"]
        ]
        verdict = "files and splits are correct; rows match their dumps"
        if differences:
            verdict = f"{len(differences)} difference{'s' * (len(differences) > 1)}"
        elif not_compared:
            verdict = "files and splits are correct; not compared with a dump: the rows of "
            verdict += ", ".join(not_compared)
        text = "\n".join([format_plain_text(summaries), *differences, verdict])
        result = {"datasets": summaries, "problems": differences, "text": text}
        if differences:
            raise DifferenceError(f"{verdict} in {', '.join(map(str, self.datasets))}", result)
        return result

    def _verify(self, directory: Path) -> tuple[list[str], dict[str, Any]]:
        from pipeline.dataset.files.manifest import read_manifest
        from pipeline.dumps.source import find_dumps
        from pipeline.validation.verify import verify_dataset

        manifest = read_manifest(directory)
        sources = (
            find_dumps(directory, manifest, self.source) if self.sample or self.source else None
        )
        found = verify_dataset(directory, sources or (), rows=self.sample)
        files_match = not found["files"]
        checked = {"files": True, "splits": files_match}
        checked |= {"source": bool(sources) and files_match, "rows": found["compared"] > 0}
        problems = [problem for name in checked for problem in found[name]]
        return problems, {
            "files": len(manifest["files"]),
            "positions": manifest["positions"]["total"],
            "replayed_with_python_chess": found["compared"],
            "problems": len(problems),
            "not_checked": [name for name, done in checked.items() if not done],
        }


@settings(ConfigError)
class Rows(BaseCommand):
    """Print or export rows of a dataset: FEN, move in UCI, result, ratings and clocks."""

    arguments: ClassVar = {"dataset": "DATASET"}
    basic: ClassVar = "split count out"

    dataset: Path
    """Dataset or training set."""
    split: str = ""
    """Split to read: train, val, test or latest; by default all."""
    count: Positive | None = None
    """Maximum number of rows; by default all with --out, otherwise 10."""
    out: Path | None = None
    """Output file, .csv or .parquet; by default the rows are printed."""

    def run(self) -> dict[str, Any]:
        """Write the rows to --out, or return them to print."""
        from pipeline.dataset.fen_rows import fen_rows, write_fen_rows
        from pipeline.storage.tables import format_text_table

        if self.out is None:
            tables = fen_rows(self.dataset, self.split, self.count or NUM_PRINTED_ROWS)
            rows = [row for table in tables for row in table.to_pylist()]
            return {"rows": rows, "text": format_text_table(rows) if rows else "no rows"}
        work = partial(write_fen_rows, self.dataset, self.out)
        num_rows = self.call_with_progress(partial(work, split=self.split, count=self.count or 0))
        return {"out": str(self.out), "rows": num_rows}
