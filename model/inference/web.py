"""Export a network as one web page that plays it offline, in plain JavaScript.

The page with the network has less than 2 MB; the smallest build of onnxruntime-web alone would have
14 MB. The weights are 16-bit integers, with one scale for each tensor, and the batch norms are
folded into the convolutions. The page plays by the policy at a rating, without a search and without
an imitation's opening book.

Axes of tensors: T taps of a 3x3 convolution, I inputs, O outputs.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from model.checkpoint import load, write_atomically
from model.inference.export import ExportError
from model.network.network import Network
from model.network.preset import Preset

WEB_FOLDER = Path(__file__).parent / "web"
PLAYABLE_SETTINGS = {
    "view": "marro13+last8+attacks",
    "moves": "marro4096",
    "block": "post",
    "towers": 1,
    "activation": "relu",
    "gate": "none",
    "policy": "planes",
    "policy_width": 0,
    "condition": "ratings",
}
"""Values of fields that a preset must have for the page to play it; its sizes may vary."""
DEFAULT_RATING = 1500
MAX_INT16 = 32767


def export_page(directory: Path, out: Path) -> dict[str, Any]:
    """Write a checkpoint as a web page to `out`; return the path and the size in bytes.

    Raises CheckpointError, and ExportError for a network of another kind than fianchetto-human.
    """
    network, card = load(directory)
    _require_playable(network.preset)
    weights, tensors = [], []
    for name, tensor in _list_tensors(network):
        scale = max(float(np.abs(tensor).max()), 1e-30) / MAX_INT16
        weights.append(np.rint(tensor / scale).astype("<i2").tobytes())
        tensors.append({"name": name, "shape": tensor.shape, "scale": scale})
    player = card["data"].get("player") or {"names": [directory.resolve().name], "rating": 0}
    header = {
        "name": " or ".join(player["names"]),
        "rating": player["rating"] or DEFAULT_RATING,
        "config": {"width": network.preset.width, "blocks": network.preset.blocks},
        "tensors": tensors,
    }
    page, *scripts = (
        (WEB_FOLDER / name).read_text(encoding="utf-8")
        for name in ("page.html", "player.js", "page.js")
    )
    page = page.replace("SCRIPT", "".join(scripts))
    page = page.replace("WEIGHTS", base64.b64encode(b"".join(weights)).decode())
    # inside a script element, only "<" could end the JSON
    page = page.replace("HEADER", json.dumps(header).replace("<", "\\u003c"), 1)
    write_atomically(out, page.encode())
    return {"out": str(out), "bytes": len(page.encode())}


def _require_playable(preset: Preset) -> None:
    for field, value in PLAYABLE_SETTINGS.items():
        if getattr(preset, field) != value:
            raise ExportError(
                f"the web page can only play networks like fianchetto-human, with {field} "
                f"{value!r}: {preset.name} has {getattr(preset, field)!r}"
            )
    if not preset.move_features_width:
        raise ExportError(
            f"the web page can only play networks like fianchetto-human: {preset.name} has no "
            "move features"
        )


def _list_tensors(network: Network) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the tensors of player.js with their names: matrices [I, O], convolutions [T, I, O]."""
    modules: Mapping[str, Any] = dict(network.named_modules())
    yield from _fold_norms("stem.w", "stem.b", modules["stem.0"], modules["stem.1"])
    for index in range(network.preset.blocks):
        block = modules[f"blocks.{index}"]
        yield from _fold_norms(f"{index}.w1", f"{index}.b1", block.conv1, block.norm1)
        yield from _fold_norms(f"{index}.w2", f"{index}.b2", block.conv2, block.norm2)
    head = modules["move_head"]
    yield "added.kinds", _to_array(modules["move_feature_stem"].kinds.weight)
    yield "head.kinds", _to_array(head.kinds.weight)
    layers = {
        "policy": modules["policy.0"].layer,
        "film0": modules["condition.layers.0"],
        "film1": modules["condition.layers.2"],
        "added": modules["move_feature_stem"].move_features,
        "head": head.move_features,
        "score": head.weight.layer,
        "own": head.compare.own,
        "others": head.compare.others,
        "last": head.compare.weight.layer,
    }
    for name, layer in layers.items():
        yield f"{name}.w", _to_array(layer.weight.flatten(1).T)
        if layer.bias is not None:
            yield f"{name}.b", _to_array(layer.bias)
    yield "head.from", _to_array(head.sources.weight.flatten(1).T)
    yield "head.to", _to_array(head.targets.weight.flatten(1).T)


def _fold_norms(
    weight: str, bias: str, convolution: nn.Conv2d, norm: nn.BatchNorm2d
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield a convolution with its batch norm: weights [T, I, O] and bias [O]."""
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale_O = norm.weight / (norm.running_var + norm.eps).sqrt()
    weight_OIYX = convolution.weight * scale_O[:, None, None, None]
    yield weight, _to_array(weight_OIYX.permute(2, 3, 1, 0).flatten(0, 1))
    yield bias, _to_array(norm.bias - norm.running_mean * scale_O)


def _to_array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()
