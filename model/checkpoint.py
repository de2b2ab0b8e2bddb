"""A checkpoint on disk: safetensors and a JSON card, so that loading one runs no code.

checkpoint.json                     the card: network, training, and the files' hashes
weights-<step>-<hash>.safetensors   averaged weights and buffers, for use
training-<step>-<hash>.safetensors  raw weights, buffers and optimizer state; none in a finished run
metrics.jsonl                       written by the trainer
model.onnx                          written by `fianchetto export`; a new save drops it from the
card
.lock                               held while a trainer or an export writes

Stability: FORMAT_VERSION 2. A tensor file's name carries its content's hash (older names do not),
so that a save never changes a file that the card names. New files appear, then the card is
replaced, then old files are deleted: a process killed at any point leaves a checkpoint that loads.
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
from engine.evaluation.move_features import FEATURES_VERSION
from engine.json_files import check, read_json, shown
from engine.temporaries import abandoned, new_file, sync_directory
from model.card import CARD as CARD
from model.card import ONNX, TENSORS, Card, FileEntry, HumanSearch
from model.network.memory import memory_errors
from model.network.network import Network, build
from model.network.preset import Preset, preset_from_row

FORMAT_VERSION = 2
LARGEST_CARD = 4 << 20
LARGEST_HEADER = 1 << 20
"""Largest header of a tensor file in bytes; the networks here have less than 40 kB."""
LARGEST_TRAINING = 6
"""Largest training file in multiples of the weights: raw, best, and two moments."""


class CheckpointError(UserError):
    """A checkpoint cannot be used or written."""


class NoCheckpointError(CheckpointError):
    """The directory has no card."""


class CardError(CheckpointError):
    """The card is not JSON, or does not fit the schema."""


class EncodingMismatchError(CheckpointError):
    """The network was trained on other planes or labels than those of this version."""


class DamagedFileError(CheckpointError):
    """A tensor file is missing, is not safetensors, or is not the file that the card describes."""


class TensorMismatchError(CheckpointError):
    """The tensors are not those of the preset's network."""


class CheckpointBusyError(CheckpointError):
    """Another process is writing the checkpoint."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file by an atomic rename, or leave the old one."""
    try:
        with new_file(path) as file:
            file.write(data)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}; what was saved before is still there"
        ) from error
    sync_directory(path.parent)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Make a checkpoint's directory and hold its lock, or raise CheckpointBusyError at once."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be made into a directory: {error.strerror}"
        ) from error
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
    """Save tensors by kind, then the card that names them, and return the card as written."""
    versions = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "move_features_version": FEATURES_VERSION,
    }
    groups = (
        (kind, {name: value.detach().cpu().contiguous() for name, value in group.items()})
        for kind, group in tensors.items()
    )
    files = ((kind, safetensors.torch.save(group)) for kind, group in groups)
    return save_files(directory, versions | {**card}, files)


def save_files(
    directory: Path, card: Mapping[str, Any], files: Iterable[tuple[str, bytes]]
) -> dict[str, Any]:
    """Write tensor files by kind, then their card, then delete older files; return the card."""
    former = _read_names(directory)
    entries: dict[str, Any] = {}
    for kind, data in files:
        digest = hashlib.sha256(data).hexdigest()
        name = f"{kind}-{card['step']}-{digest[:16]}.safetensors"
        write_atomically(directory / name, data)
        entries[kind] = {"name": name, "bytes": len(data), "sha256": digest}
    written = {**card, "files": entries}
    _write_card(directory, written)
    delete_superseded(directory, written, former)
    return written


def delete_superseded(directory: Path, card: Mapping[str, Any], former: Iterable[str] = ()) -> None:
    """Delete the tensor files of other saves than a card's, and abandoned temporary files.

    May be repeated after a killed save. A name without its content's hash may be a user's copy, and
    goes only if it is one of `former`, the names in the card before.
    """
    kept = {entry.get("name") for entry in card["files"].values() if isinstance(entry, dict)}
    for path in directory.glob("*.safetensors"):
        found = TENSORS.fullmatch(path.name)
        if found and path.name not in kept and (found[3] or path.name in former):
            path.unlink(missing_ok=True)
    for path in abandoned(directory):
        path.unlink(missing_ok=True)


def _read_names(directory: Path) -> set[str]:
    """Return the files that a card which is about to be replaced names, if it can be read."""
    try:
        files = json.loads((directory / CARD).read_bytes())["files"]
        return {str(entry["name"]) for entry in files.values()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return set()


def _write_card(directory: Path, card: Mapping[str, Any]) -> None:
    write_atomically(
        directory / CARD, (json.dumps(card, indent=2, allow_nan=False) + "\n").encode()
    )


def save_export(directory: Path, weights_sha256: str, data: bytes) -> None:
    """Write the exported network beside the card and record its hash there; CheckpointError when
    the weights are others now.

    The old entry goes first, so that a process killed in between leaves a card without an export.
    """
    with _hold_card(directory, weights_sha256, "export") as card:
        if card["files"].pop("onnx", None) is not None:
            _write_card(directory, card)
        write_atomically(directory / ONNX, data)
        entry = {"name": ONNX, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _write_card(directory, {**card, "files": {**card["files"], "onnx": entry}})


def save_human_search(directory: Path, weights_sha256: str, entry: Mapping[str, Any]) -> None:
    """Store corrections by search in a card; CheckpointError when the weights are others now."""
    check(directory / CARD, dict(entry), HumanSearch, CardError)
    with _hold_card(directory, weights_sha256, "calibrate") as card:
        _write_card(directory, {**card, "human_search": dict(entry)})


@contextmanager
def _hold_card(directory: Path, weights_sha256: str, work: str) -> Iterator[dict[str, Any]]:
    """Hold a checkpoint's lock and yield its card, if it still names these weights."""
    with lock_directory(directory):
        card = read_card(directory)
        if card["files"]["weights"]["sha256"] != weights_sha256:
            raise CheckpointError(
                f"{directory} was saved anew, and this is of its former weights: {work} it again"
            )
        yield card


def read_card(directory: Path) -> dict[str, Any]:
    """Read and check a card. Raises NoCheckpointError, CardError, EncodingMismatchError."""
    path = directory / CARD
    if not directory.is_dir() or not path.exists():
        raise NoCheckpointError(f"{directory} holds no checkpoint: there is no {CARD} in it")
    card = read_json(path, CardError, largest=LARGEST_CARD)
    _check_card(path, card)
    check(path, _find_entry(directory, card, "weights"), FileEntry, DamagedFileError)
    return card  # type: ignore[no-any-return]


def _find_entry(directory: Path, card: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a card's entry of its `weights` or `training` file, or raise DamagedFileError."""
    entry = card["files"].get(kind)
    found = TENSORS.fullmatch(str(entry.get("name"))) if isinstance(entry, dict) else None
    if found is None or found[1] != kind:
        raise DamagedFileError(f"{directory}: the card names no {kind} file")
    return dict(entry)


def _check_card(path: Path, card: object) -> None:
    if not isinstance(card, dict):
        raise CardError(f"{path} is not a checkpoint's card: it is not a JSON object")
    if "format_version" in card and card["format_version"] != FORMAT_VERSION:
        raise CardError(
            f"{path} has format version {shown(card['format_version'])}, and this version reads "
            f"{FORMAT_VERSION}"
        )
    check(path, card, Card, CardError, hint=": this is not a checkpoint's card")
    if (card["encoding_version"], card["moves_hash"]) != (ENCODING_VERSION, moves_hash()):
        raise EncodingMismatchError(
            f"{path.parent} was trained on encoding {card['encoding_version']} "
            f"({shown(card['moves_hash'], quote=False)}), and this is {ENCODING_VERSION} "
            f"({moves_hash()}): its planes or labels mean something else; train it again"
        )
    version = card["move_features_version"]
    if card["preset"].get("move_features_width") and version != FEATURES_VERSION:
        raise EncodingMismatchError(
            f"{path.parent} was trained on version {version} of the move features, and this is "
            f"{FEATURES_VERSION}: train it again"
        )


def read_tensors(
    directory: Path, card: Mapping[str, Any], kind: str, largest: int
) -> dict[str, Tensor]:
    """Read a card's `weights` or `training` file of at most `largest` bytes, or raise
    DamagedFileError.

    The file's size and hash are compared before anything of it is used.
    """
    entry = _find_entry(directory, card, kind)
    path = directory / entry["name"]
    try:
        if path.stat().st_size > largest:
            raise DamagedFileError(f"{path} is too large for its preset: over {largest:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise DamagedFileError(
            f"{path} is not the file that the card describes (its hash differs): copy the "
            f"checkpoint again"
        )
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, struct.error, KeyError) as error:
        raise DamagedFileError(
            f"{path} is not a safetensors file: {shown(str(error), 200, quote=False)}"
        ) from error


def copy_tensors(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor], what: str) -> None:
    """Copy tensors into those of a network or optimizer, in place, or raise TensorMismatchError by
    name.

    Meta tensors are compared only.
    """
    strange = sorted(target.keys() ^ tensors.keys())
    if strange:
        raise TensorMismatchError(
            f"{what}: tensors missing or unknown: "
            f"{shown(', '.join(strange[:5]), 200, quote=False)} ({len(strange)} in all)"
        )
    for name, tensor in target.items():
        found = tensors[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise TensorMismatchError(
                f"{what}: {name} is {found.dtype} {shown(list(found.shape))}, and must be "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
    with torch.no_grad():
        for name, tensor in target.items():
            if not tensor.is_meta:
                tensor.copy_(tensors[name])


class _Uninitialised(TorchFunctionMode):
    """Skip `torch.nn.init`, whose `normal_` imports torch's compiler for a second on `meta`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor as it is where an initializer is called."""
        kwargs = kwargs or {}
        is_initializer = getattr(func, "__module__", "") == "torch.nn.init"
        return kwargs["tensor"] if is_initializer else func(*args, **kwargs)


def read_weights(directory: Path, card: Mapping[str, Any]) -> tuple[Preset, dict[str, Tensor]]:
    """Read a card's preset and weights, and check that they fit the preset's network and are
    finite.

    Shapes are compared on the meta device before a network is built, so that false sizes in a card
    cost no memory. Raises CardError, DamagedFileError, TensorMismatchError.
    """
    try:
        preset = preset_from_row(card["preset"])
    except UserError as error:  # of a field, of a view or of a vocabulary
        raise CardError(f"{directory / CARD}: {error}") from error
    with torch.device("meta"), _Uninitialised():
        wanted = Network(preset).state_dict()
    largest = LARGEST_HEADER + sum(tensor.nbytes for tensor in wanted.values())
    tensors = read_tensors(directory, card, "weights", largest)
    copy_tensors(wanted, tensors, str(directory))
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DamagedFileError(
                f"{directory}: {name} holds NaN or infinity: its training diverged, or it is "
                f"damaged"
            )
    return preset, tensors


def load(directory: Path) -> tuple[Network, dict[str, Any]]:
    """Load a checkpoint: the averaged network in eval mode on the CPU, and its card."""
    card = read_card(directory)
    preset, tensors = read_weights(directory, card)
    with memory_errors(f"the network of {directory}", "free some"):
        network = build(preset, seed=0)
    copy_tensors(network.state_dict(), tensors, str(directory))
    return network.eval(), card
