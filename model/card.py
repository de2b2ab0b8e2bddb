"""What a checkpoint's card and an exported network's metadata say, as schemas; either may come from anybody."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

CARD = "checkpoint.json"
ONNX = "model.onnx"
"""Name of the exported network in a checkpoint's folder."""

Count = Annotated[int, Field(ge=0, lt=10**15)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]


class Schema(BaseModel):
    """A JSON object: no value is turned into another type, and fields besides are let through."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Dump(Schema):
    """A dump of a dataset that a network was trained on."""

    name: str | None = None
    sha256: str | None = None


class Seen(Schema):
    """A dataset that a network was trained on; the first cards said less."""

    name: Name
    manifest_sha256: str | None = None
    converted_from: str | None = None
    """Manifest of the dataset that it is another form of."""
    sources: list[Dump] = []
    positions: dict[str, Count] = {}


class Data(Schema):
    """What a network was trained on, and what the checkpoint was that it began with."""

    datasets: list[Seen] = []
    start: "Start | None" = None


class Start(Schema):
    """The checkpoint that a run began with."""

    data: Data


class Preset(Schema):
    """The network's row; `model.network.preset` checks the rest."""

    name: Name


class Card(Schema):
    """checkpoint.json, whose versions are looked at beside."""

    format_version: int
    encoding_version: int
    moves_hash: Annotated[str, Field(max_length=64)]
    facts_version: int = 1
    preset: Preset
    parameters: Count
    step: Count
    positions: Count
    seconds: Annotated[float, Field(ge=0.0, lt=1e15)]
    validation_seconds: Annotated[float, Field(ge=0.0, lt=1e15)] = 0.0
    finished: bool
    metrics: dict[str, Number]
    config: dict[str, Any]
    data: Data
    files: dict[str, Any]


class FileEntry(Schema):
    """The entry of a file beside the card: its tensors, or the exported network."""

    name: str
    bytes: Count = 0
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Exported(Schema):
    """What an exported network says of itself in its metadata."""

    encoding_version: int
    moves_hash: str
    facts_version: int = 0
    columns: dict[str, Annotated[int, Field(ge=0, le=65535)]]
    weights_sha256: str
