"""Commands that train and measure networks: train, report, imitate."""

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from model.settings import Count, settings
from model.training.config import DEFAULT_PRESET, TrainConfig
from pipeline.cli.commands.base import BaseCommand, require_output
from pipeline.cli.endings import describe_checkpoint, describe_report, suggest_command
from pipeline.errors import ConfigError, Stopped
from pipeline.evaluation.report import PositionFilter
from pipeline.ingest.filters import NAMES_HOLD_COMMAS
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.job_folder import REPORT_KIND


@settings(ConfigError)
class Train(BaseCommand):
    """Train a network on datasets. Run the same command again to continue.

    A finished run continues if its length is increased. Under torchrun, several processes share
    each batch. Processes on other machines need --positions, --out and --start in a shared folder;
    --positions may also be in an object store.
    """

    basic: ClassVar = (
        "positions shares out preset start minutes steps epochs batch_size optimizer learning_rate "
        "device"
    )
    one_of: ClassVar = ("train.minutes", "train.steps", "train.epochs")

    positions: tuple[str, ...]
    """Datasets or training sets to train on: folders, or URLs such as s3://bucket/prefix."""
    out: Path
    """Directory of the checkpoint."""
    preset: str | None = None
    """Preset of the network (`fianchetto presets` lists them); by default that of the run in --out
    or of --start, otherwise fianchetto-human."""
    start: Path | None = None
    """Checkpoint whose weights a new run starts from; by default the weights are random."""
    train: TrainConfig
    """Batches, optimizer and losses."""
    shares: tuple[float, ...] = ()
    """Share of each dataset in a batch, in the order of --positions, such as 0.5,0.5; by default in
    proportion to their rows."""

    def run(self) -> dict[str, Any]:
        """Train and return the main entries of the card; under torchrun, {} except in process 0."""
        from model.training.distributed import read_world
        from pipeline.storage.stores import parse_path
        from pipeline.training.train import train_on_datasets

        positions = [parse_path(name) for name in self.positions]
        preset = self.preset or self._default_preset()
        work = partial(train_on_datasets, positions, preset, self.train, self.out)
        card = self.call_with_progress(partial(work, start=self.start, shares=self.shares))
        if not card["finished"]:
            raise Stopped(
                f"stopped at step {card['step']} and saved; run the same command to continue"
            )
        if not read_world().is_first:
            return {}
        shown = ("preset", "parameters", "step", "positions", "seconds", "metrics", "message")
        text = describe_checkpoint(card, self.out, self.positions)
        return {"out": str(self.out)} | {name: card[name] for name in shown} | {"text": text}

    def _default_preset(self) -> str:
        """Return the preset of the run in --out, or of the --start checkpoint, or the default."""
        from model.checkpoint import CARD_FILE, read_card

        start = self.out if (self.out / CARD_FILE).exists() else self.start
        return DEFAULT_PRESET if start is None else str(read_card(start)["preset"]["name"])


@settings(ConfigError)
class Report(BaseCommand):
    """Report how often a checkpoint's first choice is the human move, on games it has not seen.

    Several checkpoints are measured on the same positions and compared with the first, or with the
    embedded network if it is among them.
    """

    basic: ClassVar = (
        "checkpoint positions split pgn out min_ply limit players against rating_rows simulations"
    )

    checkpoint: tuple[Path, ...]
    """Directories of the checkpoints."""
    positions: str | None = None
    """Dataset or training set to measure on: a folder or a URL."""
    out: Path | None = None
    """Directory for the report: one HTML page, text and JSON."""
    split: Literal["test", "val", "train", "latest"] = "test"
    """Split to measure on; `latest` is the newest games, which a training set holds out."""
    rule: PositionFilter = field(default_factory=PositionFilter)
    """Positions of the split to measure."""
    pgn: Path | None = None
    """PGN file to measure on, instead of a dataset."""
    players: bool = True
    """Give the players' ratings and clocks to networks that use them."""
    against: tuple[Path, ...] = ()
    """Also report the accuracy without positions that occur in the train split of these datasets;
    by default those of --positions, unless --split is train."""
    rating_rows: Count = 0
    """Number of positions per rating band to evaluate at 11 ratings, at the players' own and at
    unknown ratings, for a network that uses ratings; 0 skips this."""
    simulations: Count = 0
    """Simulations per position of a search that predicts human moves, to compare it with the policy
    alone; 0 skips this."""

    def run(self) -> dict[str, Any]:
        """Measure the checkpoints, and write the report to --out if given."""
        from pipeline.evaluation.render import write_report
        from pipeline.evaluation.report import reports
        from pipeline.storage.stores import parse_path

        checkpoints = self.checkpoint
        positions = None if self.positions is None else parse_path(self.positions)
        inputs = checkpoints if positions is None else (*checkpoints, positions)
        require_output(self.out, REPORT_KIND, inputs)
        work = partial(
            reports,
            checkpoints,
            positions=positions,
            split=self.split,
            pgn=self.pgn,
            against=self.against,
            rule=self.rule,
            players=self.players,
            rating_rows=self.rating_rows,
            simulations=self.simulations,
        )
        found = self.call_with_progress(work)
        result = found if found["differences"] else found["reports"][0]
        if self.out is not None:
            write_report(result, self.out)
        return {**result, "text": describe_report(found, checkpoints, self.out)}


@settings(ConfigError)
class Imitate(BaseCommand):
    """Train a network to play like one player, on that player's games.

    The report uses the newest tenth of the games, which is held out of training. Other held-out
    games decide how far the weights move away from the starting network. OUT is a checkpoint, and
    OUT/report/report.html has the result. Run the same command again to continue.
    """

    arguments: ClassVar = {"sources": "GAMES..."}
    basic: ClassVar = "player out base stranger"

    sources: tuple[str, ...]
    """PGN files (plain, .zst, .bz2, .gz, .zip) or URLs; games of other players are skipped."""
    player: tuple[str, ...] = field(metadata=NAMES_HOLD_COMMAS)
    """The player's name, exactly as in the tags White and Black; repeat it for other accounts."""
    out: Path
    """Directory of the checkpoint."""
    base: Path | None = None
    """Checkpoint to start from; by default the embedded network."""
    stranger: Path | None = None
    """Checkpoint that imitates another player, measured on the same games for comparison."""

    def run(self) -> dict[str, Any]:
        """Train, and return the report without its openings and boards."""
        from pipeline.imitation.imitate import imitate
        from pipeline.imitation.page import format_imitation

        work = partial(
            imitate, self.sources, self.player, self.out, base=self.base or EMBEDDED_CHECKPOINT
        )
        result = self.call_with_progress(partial(work, stranger=self.stranger))
        page = f"report: {self.out}/report/report.html (also as text and JSON)"
        suggestion = suggest_command("play", "--checkpoint", self.out)
        text = "\n".join([format_imitation(result), page, suggestion])
        boards = ("openings", "boards")
        shown = {name: value for name, value in result.items() if name not in boards}
        return {"out": str(self.out), **shown, "text": text}
