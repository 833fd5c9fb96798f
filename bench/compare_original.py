#!/usr/bin/env python3
"""Our capture configs and head dims beside those of the original, where both have the behaviour.

    pip install --no-deps mstar-ai==0.2.1      # and torch
    python bench/compare_original.py

That release is one revision older than the specification: its names say Cuda, and it has no cross
and prefixed wrappers, compile modes, token layouts or early leases. The map below pairs the names.
What the original imports and this machine does not have is replaced by empty modules, since none of
it takes part. Prints a line for each comparison; exits 1 when one differs.
"""
import importlib
import sys
from unittest import mock

from mstarc.engine import accelerator_graph_config as ours
from mstarc.engine.resources.attn.ragged import wrappers as our_wrappers
from mstarc.model import submodule_base as our_base

NAMES = {
    "CudaGraphConfigType": "AcceleratorGraphConfigType",
    "BatchedCudaGraphConfig": "BatchedAcceleratorGraphConfig",
    "PackedCudaGraphConfig": "PackedAcceleratorGraphConfig",
    "PiecewiseConfigType": "PiecewiseConfigType",
    "PiecewiseCaptureShape": "PiecewiseCaptureShape",
    "PiecewiseCallInputs": "PiecewiseCallInputs",
    "PiecewiseBatchedConfig": "PiecewiseBatchedConfig",
    "PiecewisePackedConfig": "PiecewisePackedConfig",
    "distribute_tokens": "distribute_tokens",
}


def load(name):
    """Imports a module of the original, with empty ones for what is missing."""
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] in ("mstar", "torch"):
                raise SystemExit(f"{error}: install mstar-ai 0.2.1 and torch first")
            sys.modules[error.name] = mock.MagicMock(name=error.name, __path__=[], __spec__=None)


class Both:
    """The original's name and ours, called alike."""

    def __init__(self, theirs, mine):
        self.pair = (theirs, mine)

    def __getattr__(self, name):
        theirs = getattr(self.pair[0], name)
        mine = getattr(self.pair[1], NAMES.get(name, name))
        return Both(theirs, mine)

    def __call__(self, *arguments, **keywords):
        return Both(*(self._call(call, place, arguments, keywords)
                      for place, call in enumerate(self.pair)))

    @staticmethod
    def _call(call, place, arguments, keywords):
        def own(value):
            return value.pair[place] if isinstance(value, Both) else value
        try:
            return call(*map(own, arguments), **{name: own(value) for name, value in keywords.items()})
        except Exception as error:  # an exception is a result like another
            return type(error)


def plain(value):
    """Values of both sides in terms that can be compared."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "value") and hasattr(value, "name"):
        return value.name, value.value
    if hasattr(value, "total_tokens") and hasattr(value, "bs"):
        return value.bs, value.seq_lens, value.total_tokens
    if hasattr(value, "input_seq_len"):
        return type(value).__name__, value.input_seq_len, {
            name: tensor.tolist() for name, tensor in value.tensor_inputs.items()}
    return value


def comparisons(graph, base, wrappers):
    """Yields (what, the two results)."""
    for dim in (-3, 0, 1, 32, 64, 65, 72, 96, 128, 129, 192, 256, 257, 1000):
        yield f"padded_head_dim({dim})", wrappers.padded_head_dim(dim)
    for total, bs in ((10, 3), (7, 4), (3, 4), (0, 3), (512, 8), (5, 1), (5, 0)):
        yield f"distribute_tokens({total}, {bs})", graph.distribute_tokens(total, bs)
    import torch
    template = base.NodeInputs({"x": torch.arange(3)}, {"flag": True}, None, 2)
    for walks in (None, [], ["a", "b"]):
        config = graph.BatchedCudaGraphConfig("decode", template, walks, total_tokens_multiplier=3)
        yield f"batched, walks {walks}", config.replay_graph_walks
        yield "batched, type", config.get_config_type()
        for bs in (0, 1, 7):
            yield f"batched, tokens of {bs}", config.get_total_tokens(bs)
            yield f"batched, inputs of {bs}", config.get_node_inputs(bs, 99)
    packed = graph.PackedCudaGraphConfig("prefill", [256, 1024], lambda n: n)
    for bs in (1, 3, 8):
        yield f"packed, tokens of {bs}", packed.get_total_tokens(bs)
        for total in (0, 2, 256, 1000):
            yield f"packed, inputs of {bs}, {total}", packed.get_node_inputs(bs, total)
    shape = graph.PiecewiseCaptureShape(4, [4, 1, 1, 1], 7)
    for name, more in (("Batched", {"seq_len": 5}), ("Packed", {"total_tokens": [512, 9]})):
        config = getattr(graph, f"Piecewise{name}Config")(capture_fn=len, make_static_inputs=dict, **more)
        yield f"piecewise {name}, type", config.get_config_type()
        yield f"piecewise {name}, compile", config.compile
        yield f"piecewise {name}, shapes", config.get_capture_shapes([4, 1, 2])
        for lengths, bs in ((None, 1), ([3], 1), ([3, 4, 5, 6, 7], 1), ([3, 4], 2), ([3], 9)):
            yield f"piecewise {name}, replay {lengths}, {bs}", config.replay_seq_lens(shape, lengths, bs)
        yield f"piecewise {name}, without its field", getattr(graph, f"Piecewise{name}Config")(
            capture_fn=len, make_static_inputs=dict)
    yield "shapes compare", Both(*(side == type(side)(4, [4, 1, 1, 1], 7) for side in shape.pair))


def main():
    graph = Both(load("mstar.engine.cuda_graph_config"), ours)
    base = Both(load("mstar.model.submodule_base"), our_base)
    wrappers = Both(load("mstar.engine.resources.attn.ragged.wrappers"), our_wrappers)
    count = differing = 0
    for what, result in comparisons(graph, base, wrappers):
        theirs, mine = (plain(side) for side in result.pair)
        count += 1
        differing += theirs != mine
        print(f"{'same  ' if theirs == mine else 'DIFFER'} {what}: {mine}"
              + ("" if theirs == mine else f", the original has {theirs}"))
    print(f"{count} compared, {differing} differ")
    return 1 if differing or not count else 0


if __name__ == "__main__":
    sys.exit(main())
