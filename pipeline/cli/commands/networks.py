"""Commands on networks: presets, export, calibrate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline.cli.commands.base import Common, Interrupt
from pipeline.cli.endings import next_command
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import CHECKPOINT, KINDS, is_of
from pipeline.storage.preflight import require_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets(Common):
    """List the networks: view, move vocabulary, parameters, and FLOP per position (a multiply-add
    counts as two).
    """

    def run(self) -> dict[str, Any]:
        """Return the list."""
        from model.costs import size
        from model.network.presets import presets
        from pipeline.evaluation.render import text_table

        rows = [
            {"preset": row.name, "view": row.view, "moves": row.moves} | size(row)
            for row in presets().values()
        ]
        return {"presets": rows, "text": text_table(rows)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(Common):
    """Export a checkpoint to ONNX, after comparing its answers with torch on 1,000 positions."""

    basic: ClassVar = "checkpoint out positions int8"

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """Output file; by default model.onnx in the checkpoint's directory, where players look for
    it."""
    positions: Path | None = None
    """Dataset whose test positions are compared; by default positions of random games are."""
    int8: bool = False
    """Quantize convolutions to 8-bit integers: about twice as fast on a CPU. Expected scores change
    by one or two percentage points. With --positions, its train positions calibrate the
    activations."""

    def run(self) -> dict[str, Any]:
        """Return the file and the largest differences."""
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
        differ = (
            f"at most {written['largest_policy_difference']:.1e} nats of a move's log-probability"
        )
        differ += f" and {written['largest_value_difference']:.1e} of a chance of win, draw or loss"
        if self.int8:
            differ = (
                f"{written['policy_divergence']:.1e} nats in the policy (mean "
                f"Kullback-Leibler divergence)"
            )
            differ += (
                f" and {written['score_difference']:.1e} in the expected score (root mean square)"
            )
        text = (
            f"{written['out']}: {written['bytes'] / 1e6:.1f} MB; on {written['positions']} "
            f"positions it differs by {differ}"
        )
        following = next_command("uci", "--checkpoint", self.checkpoint)
        return written | {"text": f"{text}\n{following}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrate(Common):
    """Fit how far a search corrects a network's policy at each rating, and store it in the
    checkpoint's card.

    Players at a rating use it (`uci`, `arena`, Python); `report --simulations` measures it on other
    games.
    """

    basic: ClassVar = "checkpoint positions split rows simulations"

    checkpoint: Path
    """Directory of the checkpoint."""
    positions: str
    """Dataset or training set: a folder or an address."""
    split: Literal["val", "test", "train", "latest"] = "val"
    """Split to fit on; use neither the split that the network was trained on nor the one that
    `report` measures."""
    rows: int = 8192
    """Number of random positions to search; 8192 take two minutes with the embedded network."""
    simulations: int = 64
    """Simulations per position, as many as players will use."""

    def run(self) -> dict[str, Any]:
        """Return what was stored."""
        from pipeline.evaluation.calibrate import calibrate
        from pipeline.storage.stores import place

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
        lines = [f"{'rating':>8} {'likelihood':>12} {'strength':>12}"]
        curves = found["likelihood"], found["strength"]
        for rating, *weights in zip(
            curves[0]["ratings"], *(curve["weights"] for curve in curves), strict=True
        ):
            lines.append(f"{rating:>8} {weights[0]:>12.2f} {weights[1]:>12.2f}")
        gain = (
            f"cross-entropy {found['cross_entropy']:.4f} -> "
            f"{found['searched_cross_entropy']:.4f} nats"
        )
        lines.append(
            f"weights of the search's values, fitted on {found['positions']:,} positions: {gain}"
        )
        following = next_command(
            "report", "--checkpoint", self.checkpoint, "--positions", self.positions
        )
        return found | {
            "text": "\n".join([*lines, f"{following} --simulations {self.simulations}"])
        }


def _require_onnx_name(out: Path) -> None:
    """Raise ConfigError unless `out` ends in .onnx and its folder is a checkpoint or holds no other
    product.
    """
    if out.suffix != ".onnx":
        raise ConfigError(f"{out}: the name of an ONNX file must end in .onnx")
    for kind in KINDS:
        if kind is not CHECKPOINT and is_of(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")
