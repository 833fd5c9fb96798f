"""Graph capture configs: values, callbacks, and what is refused."""
import collections
import copy
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mstarc
from mstarc.engine.accelerator_graph_config import (
    AcceleratorGraphConfigType,
    BatchedAcceleratorGraphConfig,
    PackedAcceleratorGraphConfig,
    PiecewiseBatchedConfig,
    PiecewiseCallInputs,
    PiecewiseCaptureShape,
    PiecewiseConfigType,
    PiecewisePackedConfig,
    check_compile_mode,
    decode_rows_then_prompt,
    distribute_tokens,
)
from mstarc.model.submodule_base import NodeInputs


@pytest.mark.parametrize("total, bs, want", [
    (10, 3, [4, 3, 3]), (7, 4, [4, 1, 1, 1]), (3, 4, [3, 0, 0, 0]), (0, 3, [0, 0, 0]),
    (512, 8, [64] * 8), (5, 1, [5]), (11, 4, [5, 2, 2, 2])])
def test_distribute_tokens(total, bs, want):
    assert distribute_tokens(total, bs) == want


@pytest.mark.parametrize("total, bs, want", [
    (10, 3, [1, 1, 8]), (4, 4, [1, 1, 1, 1]), (3, 4, [3, 0, 0, 0]), (5, 1, [5]), (0, 1, [0]),
    (0, 4, [0, 0, 0, 0]), (1, 1, [1]), (2, 2, [1, 1]), (1, 2, [1, 0])])
def test_decode_rows_then_prompt(total, bs, want):
    assert decode_rows_then_prompt(total, bs) == want


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_layouts_sum(total, bs):
    for layout in (distribute_tokens, decode_rows_then_prompt):
        lengths = layout(total, bs)
        assert len(lengths) == bs and sum(lengths) == total and min(lengths) >= 0


def test_layouts_refuse():
    with pytest.raises(ZeroDivisionError):
        distribute_tokens(5, 0)
    for layout, total, bs in [(distribute_tokens, -1, 2), (distribute_tokens, 4, -2),
                              (decode_rows_then_prompt, 4, 0), (decode_rows_then_prompt, -1, 1),
                              (decode_rows_then_prompt, 4, -1)]:
        with pytest.raises(ValueError, match="-1|-2|bs is 0"):
            layout(total, bs)
    for layout in (distribute_tokens, decode_rows_then_prompt):
        for total, bs in [(1, 70000), (2**31, 1), (10**30, 2), (3, 10**30)]:
            with pytest.raises(ValueError, match=str(max(total, bs))):
                layout(total, bs)
        with pytest.raises(TypeError):
            layout(3.0, 2)


def test_compile_modes(monkeypatch):
    for mode in (None, "default", "max-autotune-no-cudagraphs"):
        assert check_compile_mode(mode) is mode
    for mode in ("reduce-overhead", "max-autotune", "", "Default", 3):
        with pytest.raises(ValueError, match="compile_mode is .*default.*max-autotune-no-cudagraphs"):
            check_compile_mode(mode)
        with pytest.raises(ValueError):
            BatchedAcceleratorGraphConfig("decode", NodeInputs(), compile_mode=mode)
        with pytest.raises(ValueError):
            PackedAcceleratorGraphConfig("p", [4], NodeInputs, compile_mode=mode)
        with pytest.raises(ValueError):
            PiecewiseBatchedConfig(capture_fn=None, make_static_inputs=None, seq_len=1,
                                   compile_mode=mode)
    monkeypatch.setenv("MSTAR_GRAPH_COMPILE_MODE", "reduce-overhead")
    with pytest.raises(ValueError, match="MSTAR_GRAPH_COMPILE_MODE.*reduce-overhead"):
        BatchedAcceleratorGraphConfig("decode", NodeInputs())
    assert check_compile_mode("default") == "default"


# ---- whole forwards -------------------------------------------------------------------------------

@dataclasses.dataclass
class Tokens(NodeInputs):
    ids: object = None
    nested: object = None


Pair = collections.namedtuple("Pair", "left right")


def test_batched():
    config = BatchedAcceleratorGraphConfig("decode", NodeInputs(input_seq_len=1),
                                           total_tokens_multiplier=2)
    assert config.get_config_type() is AcceleratorGraphConfigType.BASIC_BATCHED
    assert config.get_total_tokens(4) == [8] and config.get_total_tokens(0) == [0]
    assert config.replay_graph_walks == ["decode"] and config.capture_batch_sizes is None
    assert [row.input_seq_len for row in config.get_node_inputs(3, 999)] == [1, 1, 1]
    assert config.get_node_inputs(0, 0) == []
    assert BatchedAcceleratorGraphConfig("a", NodeInputs()).get_total_tokens(64) == [0]
    assert BatchedAcceleratorGraphConfig("a", NodeInputs(), ["b"]).replay_graph_walks == ["b"]
    assert BatchedAcceleratorGraphConfig("a", NodeInputs(), []).replay_graph_walks == ["a"]


def test_attributes_keep_what_was_given():
    given_values = dict(
        replay_graph_walks=["x", "y"], additional_key_info=("cfg", 1), compile=False,
        capture_batch_sizes=[8, 1], capture_forward_method="velocity", caps_eager_batch_size=False,
        total_tokens_multiplier=3, compile_mode="default", input_seq_dims={"ids": 1})
    config = BatchedAcceleratorGraphConfig("w", NodeInputs(), **given_values)
    for name, value in given_values.items():
        assert getattr(config, name) == value
    positional = PackedAcceleratorGraphConfig("w", [4], NodeInputs, ["x"], "info", False, [2], "m",
                                              False, 2, "default", {"q": 0}, distribute_tokens)
    assert (positional.capture_batch_sizes, positional.total_tokens_multiplier,
            positional.compile_mode, positional.input_seq_dims, positional.token_layout) == (
                [2], 2, "default", {"q": 0}, distribute_tokens)


def test_clones_share_no_tensor():
    ids, inner = np.arange(4), np.ones(2)
    template = Tokens({"x": np.zeros(3)}, {"flag": [1]}, {"info": inner}, 4, ids,
                      Pair([inner], (inner, {"deep": inner})))
    config = BatchedAcceleratorGraphConfig("decode", template)
    first, second = config.get_node_inputs(2, 0)
    assert type(first) is Tokens and first.input_seq_len == 4
    first.ids[:] = -1
    first.tensor_inputs["x"][:] = 5
    first.nested.right[1]["deep"][:] = 7
    first.resource_step_info["info"][:] = 9
    for untouched in (template, second):
        assert (untouched.ids == np.arange(4)).all() and (untouched.tensor_inputs["x"] == 0).all()
        assert (untouched.nested.right[1]["deep"] == 1).all()
        assert (untouched.resource_step_info["info"] == 1).all()
    assert type(second.nested) is Pair and type(second.nested.left) is list


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object
    input_seq_len: int = 2


def test_templates_of_any_class():
    row = BatchedAcceleratorGraphConfig("d", Frozen(np.zeros(2))).get_node_inputs(1, 0)[0]
    row.x[:] = 1
    assert type(row) is Frozen and row.input_seq_len == 2
    assert copy.copy(NodeInputs().clone()) == NodeInputs()
    tensor = wide_tensor()
    kept = BatchedAcceleratorGraphConfig("d", NodeInputs({"t": tensor})).get_node_inputs(1, 0)[0]
    assert isinstance(kept.tensor_inputs["t"], mstarc.Tensor) and kept.tensor_inputs["t"] is not tensor


def wide_tensor():
    from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper
    wrapper = RaggedPrefillWrapper(1, 1, 8, device="cpu")
    wrapper.plan([0, 2])
    x = np.ones((2, 1, 8), np.float32)
    return wrapper.run(x, x, x)


def test_packed():
    made = []
    config = PackedAcceleratorGraphConfig("prefill", [256, 1024], lambda n: made.append(n) or n,
                                          total_tokens_multiplier=2)
    assert config.get_config_type() is AcceleratorGraphConfigType.FLASH_INFER_PACKED
    assert config.get_total_tokens(1) == config.get_total_tokens(9) == [512, 2048]
    assert config.get_node_inputs(3, 20) == [4, 3, 3] and made == [4, 3, 3]
    assert config.get_node_inputs(4, 0) == [0, 0, 0, 0]
    lengths = [4, 2]
    assert PackedAcceleratorGraphConfig("p", lengths, int).get_total_tokens(1) is lengths
    mixed = PackedAcceleratorGraphConfig("p", [10], int, token_layout=decode_rows_then_prompt)
    assert mixed.get_node_inputs(3, 10) == [1, 1, 8] and mixed.get_node_inputs(3, 0) == [0, 0, 0]


def test_multiplier_is_refused():
    for multiplier in (0, -1):
        with pytest.raises(ValueError, match=f"total_tokens_multiplier is {multiplier}"):
            BatchedAcceleratorGraphConfig("d", NodeInputs(), total_tokens_multiplier=multiplier)
        with pytest.raises(ValueError, match=f"total_tokens_multiplier is {multiplier}"):
            PackedAcceleratorGraphConfig("d", [1], int, total_tokens_multiplier=multiplier)
    with pytest.raises(TypeError):
        BatchedAcceleratorGraphConfig("d", NodeInputs(), total_tokens_multiplier=1.5)


def test_token_layout_is_checked_when_built():
    asked = []

    def good(total, bs):
        asked.append((total, bs))
        return distribute_tokens(total, bs)

    PackedAcceleratorGraphConfig("p", [6, 3], int, capture_batch_sizes=[2, 5], token_layout=good)
    assert sorted(asked) == [(0, 2), (0, 5), (3, 2), (3, 5), (6, 2), (6, 5)]
    for layout, message in [(lambda t, b: [t], "gave 1 lengths; expected 2"),
                            (lambda t, b: [t + 1, -1], "gave -1 at 1"),
                            (lambda t, b: [t, 1], "sum 7; expected 6"),
                            (lambda t, b: [max(t, 1), 0], r"\(0, 2\) gave lengths of sum 1")]:
        with pytest.raises(ValueError, match=message):
            PackedAcceleratorGraphConfig("p", [6], int, capture_batch_sizes=[2], token_layout=layout)


def test_callbacks_raise_unchanged():
    class Mine(Exception):
        pass

    def fail(*arguments):
        raise Mine("from the author")

    with pytest.raises(Mine, match="from the author"):
        PackedAcceleratorGraphConfig("p", [6], int, token_layout=fail)
    config = PackedAcceleratorGraphConfig("p", [6], fail)
    with pytest.raises(Mine):
        config.get_node_inputs(2, 6)
    config.make_node_input = int
    assert config.get_node_inputs(2, 6) == [3, 3]  # usable after all


# ---- regions --------------------------------------------------------------------------------------

def region(cls, **more):
    return cls(capture_fn=len, make_static_inputs=dict, **more)


def test_piecewise_batched():
    config = region(PiecewiseBatchedConfig, seq_len=3)
    assert config.get_config_type() is PiecewiseConfigType.BATCHED
    assert config.get_capture_shapes([4, 1]) == [PiecewiseCaptureShape(4, [3] * 4, 12),
                                                 PiecewiseCaptureShape(1, [3], 3)]
    shape = PiecewiseCaptureShape(2, [3, 3], 6)
    replay = config.replay_seq_lens(shape, None, 1)
    assert replay == [3, 3] and replay is not shape.seq_lens
    assert (config.compile, config.lease_before_step, config.can_lease, config.declare_step) == (
        False, False, None, None)


def test_piecewise_packed():
    config = region(PiecewisePackedConfig, total_tokens=[10, 4])
    assert config.get_config_type() is PiecewiseConfigType.PACKED
    assert config.get_capture_shapes([3, 1]) == [
        PiecewiseCaptureShape(3, [4, 3, 3], 10), PiecewiseCaptureShape(3, [2, 1, 1], 4),
        PiecewiseCaptureShape(1, [10], 10), PiecewiseCaptureShape(1, [4], 4)]
    shape = PiecewiseCaptureShape(4, [4, 1, 1, 1], 7)
    assert config.replay_seq_lens(shape, [5, 2], 2) == [5, 2, 0, 0]
    assert config.replay_seq_lens(shape, [5, 2, 9, 9, 9], 1) == [5, 2, 9, 9, 9, 0, 0, 0]
    assert config.replay_seq_lens(shape, (5,), 6) == [5]
    with pytest.raises(ValueError, match="seq_lens is None"):
        config.replay_seq_lens(shape, None, 2)


def test_piecewise_records():
    with pytest.raises(TypeError):
        PiecewiseBatchedConfig(capture_fn=len, make_static_inputs=dict)
    with pytest.raises(TypeError):
        PiecewiseBatchedConfig(len, dict, seq_len=1)
    first, second = (region(PiecewiseBatchedConfig, seq_len=3) for _ in range(2))
    assert first == second and first.forward_kwargs is not second.forward_kwargs
    assert first != region(PiecewiseBatchedConfig, seq_len=4)
    assert PiecewiseCaptureShape(1, [2], 2) == PiecewiseCaptureShape(1, [2], 2)
    assert PiecewiseCaptureShape(1, [2], 2) != PiecewiseCaptureShape(1, [3], 2)
    with pytest.raises(TypeError):
        hash(PiecewiseCaptureShape(1, [2], 2))

    class Engine:
        resources = {"attn": 1}

    inputs = PiecewiseCallInputs({}, Engine())
    assert inputs.resources is Engine.resources and inputs.kwargs == {}
    assert PiecewiseCallInputs({}, None).kwargs is not inputs.kwargs
