"""Schemas of a checkpoint's card and of an ONNX export's metadata. Neither is trusted."""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import chess
from pydantic import BaseModel, Field, model_validator

from engine.json_files import parse_json

CARD_FILE = "checkpoint.json"
ONNX_FILE = "model.onnx"
"""Name of the exported network in a checkpoint's folder."""
TENSOR_FILE_NAME = re.compile(r"(weights|training)-(\d+)(-[0-9a-f]{16})?\.safetensors")
"""Pattern of a tensor file's name: kind, step and, except in old files, a part of its SHA-256."""

Count = Annotated[int, Field(ge=0, lt=10**15)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]
Rating = Annotated[int, Field(ge=1, le=65535)]


class Schema(BaseModel, strict=True, extra="ignore"):
    """A JSON object. Values must have the right type, and unknown fields are ignored."""


class SourceDump(Schema):
    """A game dump that a training dataset was made from."""

    name: str | None = None
    sha256: str | None = None


class TrainingDataset(Schema):
    """A dataset that a network was trained on."""

    name: Name
    manifest_sha256: str | None = None
    sources: list[SourceDump] = []
    positions: dict[str, Count] = {}


class ImitatedPlayer(Schema):
    """The player that a network imitates (pipeline/imitation)."""

    names: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    rating: Annotated[int, Field(ge=0, le=4000)]
    """Median rating in the player's newest games; 0 if unknown."""
    games: Count


class TrainingData(Schema):
    """The datasets that a network was trained on, and its starting checkpoint."""

    datasets: list[TrainingDataset] = []
    player: ImitatedPlayer | None = None
    start: "StartingCheckpoint | None" = None


class StartingCheckpoint(Schema):
    """The checkpoint that a run started from."""

    data: TrainingData


class PresetEntry(Schema):
    """The network's preset; `model.network.preset` checks the other fields."""

    name: Name


class MonitorState(BaseModel, strict=True, extra="forbid"):
    """State of spike detection and early stopping, saved for resumed runs."""

    lowest: FiniteFloat | None = None
    """Lowest mean loss in any line of metrics, in nats."""
    best: dict[str, FiniteFloat] = {}
    """Metrics of the best validation."""
    best_step: Count = 0
    """Step of the best validation."""
    without: Count = 0
    """Number of validations since the best one."""
    validated_step: Annotated[int, Field(ge=-1, lt=10**15)] = -1
    """Step of the last validation; -1 before the first."""


class CorrectionCurve(BaseModel, strict=True, extra="forbid"):
    """Parameters of `engine.search.human.Correction` by rating."""

    ratings: Annotated[list[Rating], Field(min_length=1, max_length=64)]
    weights: list[Annotated[float, Field(ge=0.0, le=1000.0)]]
    sharpness: list[Annotated[float, Field(ge=0.01, le=100.0)]]

    @model_validator(mode="after")
    def _check_lengths(self) -> "CorrectionCurve":
        if not len(self.ratings) == len(self.weights) == len(self.sharpness):
            raise ValueError("ratings, weights and sharpness must have the same length")
        if any(low >= high for low, high in pairwise(self.ratings)):
            raise ValueError("ratings must be in ascending order")
        return self


class HumanSearch(BaseModel, strict=True, extra="forbid"):
    """Corrections of the policy by a search, as fitted by `fianchetto calibrate`."""

    simulations: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of simulations that the corrections were fitted for."""
    likelihood: CorrectionCurve
    """Fitted to predict the moves of human players."""
    strength: CorrectionCurve
    """Fitted to match the expected score that human players lose per move."""


Epd = Annotated[str, Field(max_length=100)]
Uci = Annotated[str, Field(pattern=r"^[a-h][1-8][a-h][1-8][qrbn]?$")]
Book = dict[Epd, Annotated[dict[Uci, Count], Field(min_length=1)]]
"""Openings that an imitated player always plays: numbers of games by position (EPD) and move."""


class Calibration(Schema):
    """Calibration of a finished run's value head. The saved weights already include it."""

    factor: Annotated[float, Field(ge=0.01, le=100.0)]
    """Factor applied to the value head's logits."""
    value_brier_before: FiniteFloat
    value_brier: FiniteFloat
    """Brier scores on the validation positions, before and after calibration."""


class BookEntry(Schema):
    """The part of a card that holds an imitation's opening book."""

    book: Book | None = None


class Card(BookEntry):
    """The schema of checkpoint.json; `model.checkpoint` checks the versions."""

    format_version: int
    encoding_version: int
    moves_hash: Annotated[str, Field(max_length=64)]
    move_features_version: int
    preset: PresetEntry
    parameters: Count
    step: Count
    positions: Count
    seconds: Annotated[float, Field(ge=0.0, lt=1e15)]
    validation_seconds: Annotated[float, Field(ge=0.0, lt=1e15)] = 0.0
    finished: bool
    metrics: dict[str, FiniteFloat]
    monitor: MonitorState | None = None
    calibration: Calibration | None = None
    config: dict[str, Any]
    data: TrainingData
    files: dict[str, Any]
    human_search: HumanSearch | None = None


class FileEntry(Schema):
    """The card's entry for a tensor file or for the exported network."""

    name: str
    bytes: Count = 0
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ExportMetadata(Schema):
    """The JSON metadata in an exported network's file."""

    encoding_version: int
    moves_hash: str
    move_features_version: int
    columns: dict[str, Annotated[int, Field(ge=0, le=65535)]]
    weights_sha256: str


def read_book(card: Mapping[str, Any]) -> dict[str, chess.Move]:
    """Return the most played move of each position in the book of a checked card, by EPD."""
    book = card.get("book") or {}
    return {epd: chess.Move.from_uci(max(moves, key=moves.get)) for epd, moves in book.items()}


def read_player(directory: Path) -> ImitatedPlayer | None:
    """Return the player that a checkpoint imitates; None without a player or a readable card."""
    try:
        card = parse_json((directory / CARD_FILE).read_bytes())
        return ImitatedPlayer.model_validate(card["data"]["player"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
