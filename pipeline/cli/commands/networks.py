"""Commands on networks: presets, runs, export, calibrate."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from model.settings import Positive, settings
from pipeline.cli.commands.base import BaseCommand
from pipeline.cli.endings import suggest_command
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import CHECKPOINT_KIND, KINDS, is_of_kind
from pipeline.storage.preflight import require_writable_folder


@settings(ConfigError)
class Presets(BaseCommand):
    """List the networks with their parameters and FLOP per position."""

    def run(self) -> dict[str, Any]:
        """Return a row for each network."""
        from model.costs import count_costs
        from model.network.presets import presets
        from pipeline.storage.tables import format_text_table

        rows = [
            {"preset": row.name, "view": row.view, "moves": row.moves} | count_costs(row)
            for row in presets().values()
        ]
        return {"presets": rows, "text": format_text_table(rows)}


@settings(ConfigError)
class Runs(BaseCommand):
    """List checkpoints, reports and matches, newest first, with their data and results.

    With --out, also draw the training curves of the newest checkpoints in one chart.
    """

    arguments: ClassVar = {"folders": "[FOLDER]..."}
    basic: ClassVar = "out"

    folders: tuple[Path, ...] = (Path("datasets"),)
    """Folders to search, or the checkpoints to compare; by default datasets."""
    out: Path | None = None
    """HTML page to write, with the list and the training curves of the newest checkpoints."""

    def run(self) -> dict[str, Any]:
        """Return the list of runs, and write the page to --out if given."""
        from pipeline.evaluation.runs import list_runs, write_runs
        from pipeline.storage.tables import align_columns

        for folder in self.folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder} is not a directory: give a folder with results")
        runs = list_runs(*self.folders)
        names = ("date", "kind", "path", "data", "length", "headline")
        lines = [align_columns(names, [[run[name] for name in names] for run in runs])]
        if not runs:
            lines = [
                "no checkpoints, reports or matches here: `fianchetto train` makes a checkpoint"
            ]
        if self.out is not None:
            write_runs(runs, self.out)
            lines.append(f"page: {self.out} (open it in a browser)")
        elif any(run["kind"] == "checkpoint" for run in runs):
            lines.append(suggest_command("runs", *self.folders, "--out", "runs.html"))
        return {"runs": runs, "text": "\n".join(lines)}


@settings(ConfigError)
class Export(BaseCommand):
    """Export a checkpoint to ONNX and compare its outputs with torch on 1,000 positions.

    With --web, write a page that plays the network in a browser, offline.
    """

    basic: ClassVar = "checkpoint out positions int8 web"

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """Output file; by default model.onnx in the checkpoint's directory, where players find it."""
    positions: Path | None = None
    """Dataset on whose test positions (train, if it has none) the outputs are compared; by default
    positions of random games."""
    int8: bool = False
    """Quantize convolutions and attention to 8-bit integers, about twice as fast on a CPU. Expected
    scores change by one or two percentage points. Activations are calibrated on train positions of
    --positions, if given."""
    web: bool = False
    """Write one HTML page that plays the policy at a rating, without a search; --out is by default
    play.html in the checkpoint's directory."""

    def run(self) -> dict[str, Any]:
        """Export, and return the file, with its differences from torch unless it is a page."""
        from pipeline.training.export import export_checkpoint

        if self.web:
            return self._export_page()
        if self.out is not None:
            _require_valid_output(self.out, ".onnx", "an ONNX file")
        require_writable_folder((self.out or self.checkpoint / "model.onnx").parent)
        work = partial(export_checkpoint, self.checkpoint, self.out)
        written = self.call_with_progress(partial(work, positions=self.positions, int8=self.int8))
        if self.int8:
            policy = f"{written['policy_divergence']:.1e} nats of mean policy divergence"
            value = f"{written['score_difference']:.1e} of expected score, root mean square"
        else:
            policy = f"{written['largest_policy_difference']:.1e} nats of a move's log-probability"
            value = f"{written['largest_value_difference']:.1e} of the probability of win, draw or "
            value += "loss, at most"
        text = (
            f"{written['out']}: {written['bytes'] / 1e6:.1f} MB; on {written['positions']} "
            f"positions it differs by {policy} and {value}"
        )
        suggestion = suggest_command("uci", "--checkpoint", self.checkpoint)
        return written | {"text": f"{text}\n{suggestion}"}

    def _export_page(self) -> dict[str, Any]:
        from model.inference.web import export_page

        if self.int8 or self.positions:
            raise ConfigError("--web takes neither --int8 nor --positions: leave them out")
        out = self.out or self.checkpoint / "play.html"
        _require_valid_output(out, ".html", "a page")
        require_writable_folder(out.parent)
        written = export_page(self.checkpoint, out)
        text = f"{out}: {written['bytes'] / 1e6:.1f} MB; open it in a browser"
        return written | {"text": text}


@settings(ConfigError)
class Calibrate(BaseCommand):
    """Fit, by rating, how much a search should change a network's prediction of human moves.

    The weights are stored in the checkpoint, and used when it plays at a rating (`uci`, `arena`,
    Python). `report --simulations` measures them on other games.
    """

    basic: ClassVar = "checkpoint positions split rows simulations"

    checkpoint: Path
    """Directory of the checkpoint."""
    positions: str
    """Dataset or training set: a folder or a URL."""
    split: Literal["val", "test", "train", "latest"] = "val"
    """Split to fit on; use one that neither training nor `report` uses."""
    rows: Positive = 8192
    """Number of random positions to search; with the embedded network, 8192 take two minutes."""
    simulations: Positive = 64
    """Simulations per position; use the number that players will use."""

    def run(self) -> dict[str, Any]:
        """Fit, store and return the weights."""
        from pipeline.evaluation.calibrate import calibrate
        from pipeline.storage.stores import parse_path
        from pipeline.storage.tables import format_text_table

        work = partial(calibrate, self.checkpoint, parse_path(self.positions), split=self.split)
        found = self.call_with_progress(partial(work, rows=self.rows, simulations=self.simulations))
        fit, strong = found["likelihood"], found["strength"]
        weights = [
            {"rating": str(rating), "likelihood": likelihood, "strength": strength}
            for rating, likelihood, strength in zip(
                fit["ratings"], fit["weights"], strong["weights"], strict=True
            )
        ]
        fitted = (
            f"weights of the search's values, fitted on {found['positions']:,} positions: "
            f"cross-entropy {found['cross_entropy']:.4f} -> "
            f"{found['searched_cross_entropy']:.4f} nats"
        )
        inputs = ("--checkpoint", self.checkpoint, "--positions", self.positions)
        suggestion = suggest_command("report", *inputs, "--simulations", self.simulations)
        return found | {"text": "\n".join([format_text_table(weights), fitted, suggestion])}


def _require_valid_output(out: Path, suffix: str, file_kind: str) -> None:
    """Raise ConfigError if `out` lacks the suffix or is inside the output of another command."""
    if out.suffix != suffix:
        raise ConfigError(f"{out}: the name of {file_kind} must end in {suffix}")
    for kind in KINDS:
        if kind is not CHECKPOINT_KIND and is_of_kind(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")
