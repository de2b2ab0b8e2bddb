"""Commands that share results: push, pull."""

from pathlib import Path
from typing import Any, ClassVar

from model.settings import settings
from pipeline.cli.commands.base import Common
from pipeline.cli.endings import next_command
from pipeline.errors import ConfigError


@settings(ConfigError)
class Push(Common):
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
    """License of the files, by its name on the hub. A network that started from the embedded one
    needs gpl-3.0."""
    report: Path | None = None
    """Report to quote in a checkpoint's card; by default FOLDER/report."""
    public: bool = False
    """Make a new repository public."""

    def run(self) -> dict[str, Any]:
        """Upload, and return the address and files."""
        from pipeline.sharing import DATASETS, push

        done = push(self.folder, self.repo, self.license, public=self.public, report=self.report)
        prefix = DATASETS if done["kind"] == "dataset" else ""
        following = next_command("pull", f"{prefix}{done['repo']}", "--out", "DIR")
        return done | {"text": f"{done['url']}: {len(done['files'])} files\n{following}"}


@settings(ConfigError)
class Pull(Common):
    """Download a checkpoint or dataset from the Hugging Face hub, and check it.

    Only weights, tables and JSON are downloaded; sizes, hashes and contents are checked as for any
    checkpoint or dataset. Run the same command again to continue a stopped download.
    """

    arguments: ClassVar = {"repo": "OWNER/NAME"}
    basic: ClassVar = "out revision"

    repo: str
    """Repository on the hub; for a dataset, datasets/OWNER/NAME."""
    out: Path
    """New directory for the files."""
    revision: str | None = None
    """Branch, tag or commit; by default the newest."""

    def run(self) -> dict[str, Any]:
        """Download, and return the directory."""
        from pipeline.sharing import pull
        from pipeline.storage.preflight import require_writable_folder

        require_writable_folder(self.out.parent)
        done = pull(self.repo, self.out, revision=self.revision)
        following = next_command("play", "--checkpoint", self.out)
        if done["kind"] == "dataset":
            following = next_command("train", "--positions", self.out, "--out", "DIR")
        return done | {"text": f"{self.out}: {done['kind']} {done['repo']}\n{following}"}
