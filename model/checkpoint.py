"""Read and write checkpoints: safetensors and a JSON card, so loading one runs no code.

checkpoint.json                     the card: network, training, and the files' hashes
weights-<step>-<hash>.safetensors   averaged weights and buffers, for inference
training-<step>-<hash>.safetensors  raw weights, buffers, optimizer state; absent once finished
metrics.jsonl                       written by the trainer
model.onnx                          written by `fianchetto export`; a new save removes its entry
.lock                               held while a trainer or an export writes

Stability: FORMAT_VERSION 2. The name of a tensor file contains a hash of its content, except in
older checkpoints, so a save never overwrites a file that the card lists. New files are written
first, then the card is replaced, then old files are deleted. A process killed at any point leaves a
checkpoint that loads.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.errors import UserError
from engine.evaluation.move_features import MOVE_FEATURES_VERSION
from engine.json_files import read_json, safe_text, validate_content
from engine.temporaries import list_abandoned, replace_file, sync_directory
from model.card import CARD_FILE as CARD_FILE
from model.card import ONNX_FILE, TENSOR_FILE_NAME, Card, FileEntry, HumanSearch
from model.network.device import convert_memory_errors
from model.network.network import Network, build
from model.network.preset import Preset, preset_from_dict

FORMAT_VERSION = 2
MAX_CARD_BYTES = 4 << 20
MAX_HEADER_BYTES = 1 << 20
"""Maximum size of a tensor file's header in bytes; real headers are below 40 kB."""
MAX_TRAINING_RATIO = 6
"""Maximum size of the training file, as a multiple of the weights. It has the raw weights, the best
weights and two moments."""


class CheckpointError(UserError):
    """A checkpoint cannot be used or written."""


class NoCheckpointError(CheckpointError):
    """The directory has no checkpoint.json."""


class CardError(CheckpointError):
    """The card cannot be read, has another format version, or does not match the schema."""


class EncodingMismatchError(CheckpointError):
    """The network was trained with different planes, labels or move features."""


class DamagedFileError(CheckpointError):
    """A tensor file is missing or too large, differs from the card, or has NaN or infinity."""


class TensorMismatchError(CheckpointError):
    """The tensors do not match the preset's network."""


class CheckpointBusyError(CheckpointError):
    """Another process is writing the checkpoint."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file and rename it into place; on CheckpointError, the old file is unchanged."""
    try:
        with replace_file(path) as file:
            file.write(data)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}; the previous version is unchanged"
        ) from error
    sync_directory(path.parent)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Create a checkpoint's directory and hold its lock.

    Raises CheckpointBusyError, without waiting, if another process holds the lock, and
    CheckpointError if the directory is not writable.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be created: {error.strerror}") from error
    lock = FileLock(directory / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise CheckpointBusyError(
            f"another process is writing {directory}: wait for it, or choose a new directory"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def save(
    directory: Path, card: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    """Save tensors by kind (`weights`, `training`), then the card; return the written card."""
    versions = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "move_features_version": MOVE_FEATURES_VERSION,
    }

    def encode(group: Mapping[str, Tensor]) -> bytes:
        on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in group.items()}
        return safetensors.torch.save(on_cpu)

    files = ((kind, encode(group)) for kind, group in tensors.items())
    return save_files(directory, versions | {**card}, files)


def save_files(
    directory: Path, card: Mapping[str, Any], files: Iterable[tuple[str, bytes]]
) -> dict[str, Any]:
    """Write files given as (kind, bytes), then the card; delete old files and return the card."""
    entries: dict[str, Any] = {}
    for kind, data in files:
        digest = hashlib.sha256(data).hexdigest()
        name = f"{kind}-{card['step']}-{digest[:16]}.safetensors"
        write_atomically(directory / name, data)
        entries[kind] = {"name": name, "bytes": len(data), "sha256": digest}
    written = {**card, "files": entries}
    _write_card(directory, written)
    delete_superseded(directory, written)
    return written


def delete_superseded(directory: Path, card: Mapping[str, Any]) -> None:
    """Delete tensor files that the card does not list, and abandoned temporary files.

    This may be repeated after a killed save. A file without a hash in its name is kept, since it
    may be a user's copy.
    """
    listed = {entry.get("name") for entry in card["files"].values() if isinstance(entry, dict)}
    for path in directory.glob("*.safetensors"):
        match = TENSOR_FILE_NAME.fullmatch(path.name)
        if match and match[3] and path.name not in listed:
            path.unlink(missing_ok=True)
    for path in list_abandoned(directory):
        path.unlink(missing_ok=True)


def _write_card(directory: Path, card: Mapping[str, Any]) -> None:
    write_atomically(
        directory / CARD_FILE, (json.dumps(card, indent=2, allow_nan=False) + "\n").encode()
    )


def save_export(directory: Path, weights_sha256: str, data: bytes) -> None:
    """Write the exported network and record its hash in the card.

    The card's old entry is removed first, so that a killed process leaves a card without an export.
    Raises CheckpointError if the weights have changed since the export.
    """
    with _hold_card(directory, weights_sha256, "export") as card:
        if card["files"].pop("onnx", None) is not None:
            _write_card(directory, card)
        write_atomically(directory / ONNX_FILE, data)
        entry = {"name": ONNX_FILE, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _write_card(directory, {**card, "files": {**card["files"], "onnx": entry}})


def save_human_search(directory: Path, weights_sha256: str, entry: Mapping[str, Any]) -> None:
    """Store search corrections, fitted to the weights with this hash, in the card.

    Raises CheckpointError if the weights have changed since, or the corrections are invalid.
    """
    validate_content(directory / CARD_FILE, dict(entry), HumanSearch, CardError)
    with _hold_card(directory, weights_sha256, "calibrate") as card:
        _write_card(directory, {**card, "human_search": dict(entry)})


@contextmanager
def _hold_card(directory: Path, weights_sha256: str, command: str) -> Iterator[dict[str, Any]]:
    """Lock a checkpoint and yield its card; raise CheckpointError if its weights have changed."""
    with lock_directory(directory):
        card = read_card(directory)
        if card["files"]["weights"]["sha256"] != weights_sha256:
            raise CheckpointError(
                f"{directory} has new weights, and the result is for its old ones: run "
                f"`fianchetto {command}` again"
            )
        yield card


def read_card(directory: Path) -> dict[str, Any]:
    """Read and check a card; raise a CheckpointError if it is missing or cannot be used."""
    path = directory / CARD_FILE
    if not directory.is_dir() or not path.exists():
        raise NoCheckpointError(f"{directory} holds no checkpoint: it has no {CARD_FILE}")
    card = read_json(path, CardError, max_bytes=MAX_CARD_BYTES)
    _check_card(path, card)
    validate_content(path, _find_entry(directory, card, "weights"), FileEntry, DamagedFileError)
    return card  # type: ignore[no-any-return]


def _find_entry(directory: Path, card: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the card's entry for its `weights` or `training` file, or raise DamagedFileError."""
    entry = card["files"].get(kind)
    name = str(entry.get("name")) if isinstance(entry, dict) else ""
    match = TENSOR_FILE_NAME.fullmatch(name)
    if match is None or match[1] != kind:
        raise DamagedFileError(
            f"{directory}: {CARD_FILE} lists no {kind} file: copy the checkpoint again"
        )
    return dict(entry)


def _check_card(path: Path, card: object) -> None:
    if not isinstance(card, dict):
        raise CardError(f"{path} is not a checkpoint's card: it must be a JSON object")
    if "format_version" in card and card["format_version"] != FORMAT_VERSION:
        raise CardError(
            f"{path} has format version {safe_text(card['format_version'])}, but this version of "
            f"Fianchetto reads {FORMAT_VERSION}"
        )
    validate_content(path, card, Card, CardError, hint=": this is not a checkpoint's card")
    if (card["encoding_version"], card["moves_hash"]) != (ENCODING_VERSION, moves_hash()):
        raise EncodingMismatchError(
            f"{path.parent} was trained with encoding {card['encoding_version']} "
            f"({safe_text(card['moves_hash'], quote=False)}), but this version uses "
            f"{ENCODING_VERSION} ({moves_hash()}), with different planes or labels: train it again"
        )
    version = card["move_features_version"]
    if card["preset"].get("move_features_width") and version != MOVE_FEATURES_VERSION:
        raise EncodingMismatchError(
            f"{path.parent} was trained with version {version} of the move features, but this "
            f"version of Fianchetto computes {MOVE_FEATURES_VERSION}: train it again"
        )


def read_tensors(
    directory: Path, card: Mapping[str, Any], kind: str, max_bytes: int
) -> dict[str, Tensor]:
    """Read the `weights` or `training` file that a card lists, of at most `max_bytes`.

    The hash is checked before the content is parsed. Raises DamagedFileError if a check fails.
    """
    entry = _find_entry(directory, card, kind)
    path = directory / entry["name"]
    try:
        if path.stat().st_size > max_bytes:
            raise DamagedFileError(
                f"{path} is too large for its preset: more than {max_bytes:,} bytes"
            )
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise DamagedFileError(
            f"{path} does not match its hash in the card: copy the checkpoint again"
        )
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, struct.error, KeyError) as error:
        raise DamagedFileError(
            f"{path} is not a safetensors file: {safe_text(str(error), 200, quote=False)}"
        ) from error


def copy_tensors(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy the tensors of `source` into those of a network or optimizer, in place.

    Tensors on the meta device are only compared. Raises TensorMismatchError, which names the
    tensor.
    """
    unmatched = sorted(target.keys() ^ tensors.keys())
    if unmatched:
        raise TensorMismatchError(
            f"{source}: missing or unknown tensors ({len(unmatched)} in total): "
            f"{safe_text(', '.join(unmatched[:5]), 200, quote=False)}"
        )
    for name, tensor in target.items():
        given = tensors[name]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise TensorMismatchError(
                f"{source}: {name} is {given.dtype} {safe_text(list(given.shape))}, but must be "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
    with torch.no_grad():
        for name, tensor in target.items():
            if not tensor.is_meta:
                tensor.copy_(tensors[name])


class _SkipInit(TorchFunctionMode):
    """Skip `torch.nn.init`: on the meta device, `normal_` takes a second to import the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_initializer = getattr(func, "__module__", "") == "torch.nn.init"
        return kwargs["tensor"] if is_initializer else func(*args, **kwargs)


def read_weights(directory: Path, card: Mapping[str, Any]) -> tuple[Preset, dict[str, Tensor]]:
    """Read a card's preset and its weights; check that the weights fit the preset and are finite.

    Shapes are compared on the meta device before a network is built, so that wrong sizes in a card
    allocate no memory. Raises CardError, DamagedFileError or TensorMismatchError.
    """
    try:
        preset = preset_from_dict(card["preset"])
    except UserError as error:  # an invalid field, view or vocabulary
        raise CardError(f"{directory / CARD_FILE}: {error}") from error
    with torch.device("meta"), _SkipInit():
        expected = Network(preset).state_dict()
    max_bytes = MAX_HEADER_BYTES + sum(tensor.nbytes for tensor in expected.values())
    tensors = read_tensors(directory, card, "weights", max_bytes)
    copy_tensors(expected, tensors, str(directory))
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DamagedFileError(
                f"{directory}: {name} contains NaN or infinity: training diverged, or the file is "
                "damaged; train it or copy it again"
            )
    return preset, tensors


def load(directory: Path) -> tuple[Network, dict[str, Any]]:
    """Return a checkpoint's network, with averaged weights, in eval mode on the CPU, and its card.

    Raises CheckpointError, and OutOfMemoryError if there is not enough memory for the network.
    """
    card = read_card(directory)
    preset, tensors = read_weights(directory, card)
    with convert_memory_errors(f"the network of {directory}", "free some memory"):
        network = build(preset, seed=0)
    copy_tensors(network.state_dict(), tensors, str(directory))
    return network.eval(), card
