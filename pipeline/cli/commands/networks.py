"""Commands on networks: presets, export, calibrate."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from model.settings import Positive, settings
from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import next_command
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import CHECKPOINT, KINDS, is_of
from pipeline.storage.preflight import require_folder


@settings(ConfigError)
class Presets(Common):
    """List the networks with their parameters and FLOP per position."""

    def run(self) -> dict[str, Any]:
        """Return the list."""
        from model.costs import size
        from model.network.presets import presets
        from pipeline.storage.tables import text_table

        rows = [
            {"preset": row.name, "view": row.view, "moves": row.moves} | size(row)
            for row in presets().values()
        ]
        return {"presets": rows, "text": text_table(rows)}


@settings(ConfigError)
class Export(Common):
    """Export a checkpoint to ONNX and compare its outputs with torch on 1,000 positions."""

    basic: ClassVar = "checkpoint out positions int8"

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """Output file; by default model.onnx in the checkpoint's directory, where players look for
    it."""
    positions: Path | None = None
    """Dataset whose test positions are used to compare; by default positions of random games."""
    int8: bool = False
    """Quantize convolutions and attention to 8-bit integers, about twice as fast on a CPU. Expected
    scores change by one or two percentage points. With --positions, its train positions calibrate
    the activations."""

    def run(self) -> dict[str, Any]:
        """Export, and return the file and its differences from torch."""
        from pipeline.training.export import export_checkpoint

        if self.out is not None:
            _require_onnx_name(self.out)
        require_folder((self.out or self.checkpoint / "model.onnx").parent)
        with bar("export") as progress:
            written = export_checkpoint(
                self.checkpoint,
                self.out,
                positions=self.positions,
                int8=self.int8,
                progress=progress,
            )
        if self.int8:
            policy = f"{written['policy_divergence']:.1e} nats of mean policy divergence"
            value = f"{written['score_difference']:.1e} of expected score, root mean square"
        else:
            policy = f"{written['largest_policy_difference']:.1e} nats of a move's log-probability"
            value = f"{written['largest_value_difference']:.1e} of a chance of win, draw or loss, "
            value += "at most"
        text = (
            f"{written['out']}: {written['bytes'] / 1e6:.1f} MB; on {written['positions']} "
            f"positions it differs by {policy} and {value}"
        )
        following = next_command("uci", "--checkpoint", self.checkpoint)
        return written | {"text": f"{text}\n{following}"}


@settings(ConfigError)
class Calibrate(Common):
    """Fit how much a search corrects a network's human moves at each rating, and store the result.

    Players with a rating use the result (`uci`, `arena`, Python). `report --simulations`
    measures it on other games.
    """

    basic: ClassVar = "checkpoint positions split rows simulations"

    checkpoint: Path
    """Directory of the checkpoint."""
    positions: str
    """Dataset or training set: a folder or an address."""
    split: Literal["val", "test", "train", "latest"] = "val"
    """Split to fit on; use one that neither training nor `report` uses."""
    rows: Positive = 8192
    """Number of random positions to search; 8192 take about two minutes with the embedded
    network."""
    simulations: Positive = 64
    """Simulations per position; use the number that players will use."""

    def run(self) -> dict[str, Any]:
        """Fit, store and return the weights."""
        from pipeline.evaluation.calibrate import calibrate
        from pipeline.storage.stores import place
        from pipeline.storage.tables import text_table

        with bar("calibrate") as progress:
            found = calibrate(
                self.checkpoint,
                place(self.positions),
                split=self.split,
                rows=self.rows,
                simulations=self.simulations,
                progress=progress,
                stop=Interrupt(),
            )
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
        measured = ("--checkpoint", self.checkpoint, "--positions", self.positions)
        following = next_command("report", *measured, "--simulations", self.simulations)
        return found | {"text": "\n".join([text_table(weights), fitted, following])}


def _require_onnx_name(out: Path) -> None:
    """Raise ConfigError unless `out` ends in .onnx and its folder has no other kind of output."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out}: the name of an ONNX file must end in .onnx")
    for kind in KINDS:
        if kind is not CHECKPOINT and is_of(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")
