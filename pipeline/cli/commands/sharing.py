"""Commands that share results: push, pull."""

from pathlib import Path
from typing import Any, ClassVar

from model.settings import settings
from pipeline.cli.commands.base import BaseCommand
from pipeline.cli.endings import suggest_command
from pipeline.errors import ConfigError


@settings(ConfigError)
class Push(BaseCommand):
    """Publish a checkpoint or dataset on the Hugging Face hub, with a generated card.

    The card has the license, the data and the figures of its report. The repository is private
    unless --public is given. An imitation's card contains the player's name.
    """

    arguments: ClassVar = {"folder": "FOLDER", "repo": "OWNER/NAME"}
    basic: ClassVar = "license report public"

    folder: Path
    """Directory of the checkpoint or dataset."""
    repo: str
    """Repository on the hub; it is created if it does not exist."""
    license: str
    """License of the files, by its identifier on the hub, such as mit. A network that started from
    the embedded one needs gpl-3.0."""
    report: Path | None = None
    """Directory of the report to quote in a checkpoint's card; by default FOLDER/report."""
    public: bool = False
    """Make the repository public if it is new."""

    def run(self) -> dict[str, Any]:
        """Upload, and return the URL and the files."""
        from pipeline.sharing import DATASET_PREFIX, push

        done = push(self.folder, self.repo, self.license, public=self.public, report=self.report)
        prefix = DATASET_PREFIX if done["kind"] == "dataset" else ""
        suggestion = suggest_command("pull", f"{prefix}{done['repo']}", "--out", "DIR")
        return done | {"text": f"{done['url']}: {len(done['files'])} files\n{suggestion}"}


@settings(ConfigError)
class Pull(BaseCommand):
    """Download a checkpoint or dataset from the Hugging Face hub, and check it.

    Only weights, tables and JSON are downloaded; sizes, hashes and contents are checked as for any
    checkpoint or dataset. Run the same command again to continue a stopped download.
    """

    arguments: ClassVar = {"repo": "OWNER/NAME"}
    basic: ClassVar = "out revision"

    repo: str
    """Repository on the hub; for a dataset, datasets/OWNER/NAME."""
    out: Path
    """Directory for the files, new or empty."""
    revision: str | None = None
    """Branch, tag or commit; by default the newest commit of the main branch."""

    def run(self) -> dict[str, Any]:
        """Download, and return the directory."""
        from pipeline.sharing import pull
        from pipeline.storage.preflight import require_writable_folder

        require_writable_folder(self.out.parent)
        done = pull(self.repo, self.out, revision=self.revision)
        suggestion = suggest_command("play", "--checkpoint", self.out)
        if done["kind"] == "dataset":
            suggestion = suggest_command("train", "--positions", self.out, "--out", "DIR")
        return done | {"text": f"{self.out}: {done['kind']} {done['repo']}\n{suggestion}"}
