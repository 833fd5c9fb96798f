"""What to capture as a graph, and for which batch shapes.

    BatchedAcceleratorGraphConfig  whole forward; tokens follow from the number of requests
    PackedAcceleratorGraphConfig   whole forward; tokens are a property of the requests
    PiecewiseBatchedConfig         a region inside an eager forward; inputs [bs, seq_len, D]
    PiecewisePackedConfig          a region inside an eager forward; inputs [total_tokens, D]

Faults show when a config is built, never at capture, where they would only show as a slow bucket.
Callables are the author's own: what they raise reaches the caller unchanged.
"""
from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mstarc import _core
from mstarc.model.submodule_base import NodeInputs, clone_record

__all__ = [
    "AcceleratorGraphConfig", "AcceleratorGraphConfigType", "BatchedAcceleratorGraphConfig",
    "PackedAcceleratorGraphConfig", "PiecewiseAcceleratorGraphConfig", "PiecewiseBatchedConfig",
    "PiecewiseCallInputs", "PiecewiseCaptureShape", "PiecewiseConfigType", "PiecewisePackedConfig",
    "check_compile_mode", "decode_rows_then_prompt", "distribute_tokens",
]

Tensor = Any  # of any framework
SubmoduleStep = Any  # a step of the engine's protocol
ModelInputsFromEngine = Any  # request ids, per-request info, resources

_DEFAULT_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


class AcceleratorGraphConfigType(Enum):
    """How a whole-forward config's token counts come about."""

    BASIC_BATCHED = "basic_batched"
    FLASH_INFER_PACKED = "flash_infer_packed"


class PiecewiseConfigType(Enum):
    """How a region's static inputs lie: [bs, seq_len, D], or packed [total_tokens, D]."""

    BATCHED = "batched"
    PACKED = "packed"


# ---- token layouts and compile modes -------------------------------------------------------------

def distribute_tokens(total_tokens: int, bs: int) -> list[int]:
    """total_tokens over bs requests: an equal share each, the whole remainder to the first.

    (7, 4) gives [4, 1, 1, 1]. Raises ZeroDivisionError for bs 0, ValueError for a negative argument
    and for a bs over 65536.
    """
    if bs == 0:
        raise ZeroDivisionError(f"{total_tokens} tokens cannot be split over bs 0")
    return _core.distribute_tokens(total_tokens, bs)


def decode_rows_then_prompt(total_tokens: int, bs: int) -> list[int]:
    """bs - 1 requests of one token, then one of the rest: the layout of a mixed step.

    For kernels that treat rows by their span: a capture laid out so records both kinds. (10, 3)
    gives [1, 1, 8]. With fewer tokens than requests the result is that of distribute_tokens. Raises
    ValueError for bs outside 1 to 65536 or a negative total.
    """
    return _core.decode_rows_then_prompt(total_tokens, bs)


def check_compile_mode(mode: str | None) -> str | None:
    """The mode, when a capture can honour it: None, "default" or "max-autotune-no-cudagraphs".

    "reduce-overhead" and "max-autotune" would capture a graph inside the capture. They are refused
    here, when the config is built, since a fault at capture would leave the bucket eager.

    Raises ValueError naming the mode and the accepted ones.
    """
    if mode is None:
        return None
    return _core.check_compile_mode(mode if isinstance(mode, str) else repr(mode))


def _check_compile_modes(mode: str | None) -> None:
    """The config's mode and, since it overrides every config's, MSTAR_GRAPH_COMPILE_MODE."""
    _core.effective_compile_mode(check_compile_mode(mode))


# ---- whole-forward configs ------------------------------------------------------------------------

class AcceleratorGraphConfig(ABC):
    """One family of captures of a whole forward, which the engine drives.

    Every argument is kept as an attribute under its own name.

    Args:
        capture_graph_walk: the walk that is captured, which is also the walk of the bucket key.
        replay_graph_walks: walks that may replay the capture; None or [] is the capture's own.
        additional_key_info: a further, hashable part of the bucket key, such as guidance on or off.
        compile: specialise the forward before it is captured.
        compile_mode: see check_compile_mode; None is "default". The environment variable
            MSTAR_GRAPH_COMPILE_MODE overrides it.
        capture_batch_sizes: batch sizes to capture; None or [] is [1, 2, 4, 8, 16, 32, 64].
        capture_forward_method: the submodule's method that is captured.
        caps_eager_batch_size: the largest captured size also bounds eager batches of the walk.
        input_seq_dims: name of a static input to the dimension that varies with the bucket. Without
            an entry that is the first whose size is the bucket's token count, else dimension 0.

    Raises:
        ValueError: a compile mode that cannot be honoured.
    """

    def __init__(
        self,
        capture_graph_walk: str,
        replay_graph_walks: list[str] | None = None,
        additional_key_info: Any | None = None,
        compile: bool = True,
        compile_mode: str | None = None,
        capture_batch_sizes: list[int] | None = None,
        capture_forward_method: str = "forward_batched",
        caps_eager_batch_size: bool = True,
        input_seq_dims: dict[str, int] | None = None,
    ) -> None:
        _check_compile_modes(compile_mode)
        self.capture_graph_walk = capture_graph_walk
        self.replay_graph_walks = replay_graph_walks or [capture_graph_walk]
        self.additional_key_info = additional_key_info
        self.compile = compile
        self.compile_mode = compile_mode
        self.capture_batch_sizes = capture_batch_sizes
        self.capture_forward_method = capture_forward_method
        self.caps_eager_batch_size = caps_eager_batch_size
        self.input_seq_dims = input_seq_dims

    @abstractmethod
    def get_config_type(self) -> AcceleratorGraphConfigType:
        """The kind of config."""

    @abstractmethod
    def get_total_tokens(self, bs: int) -> list[int]:
        """Token counts to capture at bs requests."""

    @abstractmethod
    def get_node_inputs(self, bs: int, num_tokens: int) -> list[NodeInputs]:
        """bs dummy inputs, one a request, of num_tokens tokens in all."""


def _check_multiplier(multiplier: int) -> int:
    multiplier = operator.index(multiplier)
    if multiplier < 1:
        raise ValueError(f"total_tokens_multiplier is {multiplier}; it is at least 1")
    return multiplier


class BatchedAcceleratorGraphConfig(AcceleratorGraphConfig):
    """Captures whose token count follows from the number of requests, such as decoding.

    Args (the others are AcceleratorGraphConfig's):
        single_request_inputs: the template of one request; captures and padding use clones.
        total_tokens_multiplier: tokens of the static buffers for each input token, at least 1. For
            requests that put tokens under several labels into one plan.

    Raises:
        ValueError: a compile mode that cannot be honoured, or a multiplier below 1.
    """

    def __init__(
        self,
        capture_graph_walk: str,
        single_request_inputs: NodeInputs,
        replay_graph_walks: list[str] | None = None,
        additional_key_info: Any | None = None,
        compile: bool = True,
        capture_batch_sizes: list[int] | None = None,
        capture_forward_method: str = "forward_batched",
        caps_eager_batch_size: bool = True,
        total_tokens_multiplier: int = 1,
        compile_mode: str | None = None,
        input_seq_dims: dict[str, int] | None = None,
    ) -> None:
        super().__init__(
            capture_graph_walk, replay_graph_walks, additional_key_info, compile, compile_mode,
            capture_batch_sizes, capture_forward_method, caps_eager_batch_size, input_seq_dims)
        self.single_request_inputs = single_request_inputs
        self.total_tokens_multiplier = _check_multiplier(total_tokens_multiplier)

    def get_config_type(self) -> AcceleratorGraphConfigType:
        """AcceleratorGraphConfigType.BASIC_BATCHED."""
        return AcceleratorGraphConfigType.BASIC_BATCHED

    def get_total_tokens(self, bs: int) -> list[int]:
        """One count: the template's input_seq_len * bs * total_tokens_multiplier."""
        return [self.single_request_inputs.input_seq_len * bs * self.total_tokens_multiplier]

    def get_node_inputs(self, bs: int, num_tokens: int) -> list[NodeInputs]:
        """bs clones of the template, tensors copied; num_tokens is not read.

        A padding row so keeps the template's full span: it computes, and its result is dropped.
        """
        template = self.single_request_inputs
        clone = getattr(template, "clone", None)
        return [clone_record(template) if clone is None else clone() for _ in range(bs)]


class PackedAcceleratorGraphConfig(AcceleratorGraphConfig):
    """Captures whose token count is a property of the requests, such as prefill.

    Args (the others are AcceleratorGraphConfig's):
        capture_token_lengths: input tokens of the buckets, the same for every batch size.
        make_node_input: length to the dummy input of one request. Length 0 must work: it is how a
            replay is padded.
        total_tokens_multiplier: as in BatchedAcceleratorGraphConfig; a bucket holds a capture
            length times this.
        token_layout: (total, bs) to the bs lengths of a captured batch; None is distribute_tokens.
            Asked here for every bucket and for (0, bs).

    Raises:
        ValueError: a compile mode that cannot be honoured, a multiplier below 1, or a layout of the
            wrong length or sum or with a negative entry. What token_layout raises comes through.
    """

    def __init__(
        self,
        capture_graph_walk: str,
        capture_token_lengths: list[int],
        make_node_input: Callable[[int], NodeInputs],
        replay_graph_walks: list[str] | None = None,
        additional_key_info: Any | None = None,
        compile: bool = True,
        capture_batch_sizes: list[int] | None = None,
        capture_forward_method: str = "forward_batched",
        caps_eager_batch_size: bool = True,
        total_tokens_multiplier: int = 1,
        compile_mode: str | None = None,
        input_seq_dims: dict[str, int] | None = None,
        token_layout: Callable[[int, int], list[int]] | None = None,
    ) -> None:
        super().__init__(
            capture_graph_walk, replay_graph_walks, additional_key_info, compile, compile_mode,
            capture_batch_sizes, capture_forward_method, caps_eager_batch_size, input_seq_dims)
        self.capture_token_lengths = capture_token_lengths
        self.make_node_input = make_node_input
        self.total_tokens_multiplier = _check_multiplier(total_tokens_multiplier)
        self.token_layout = token_layout
        if token_layout is not None:
            for bs in capture_batch_sizes or _DEFAULT_BATCH_SIZES:
                for total in [*capture_token_lengths, 0]:
                    self._lay_out(total, bs)

    def _lay_out(self, total: int, bs: int) -> list[int]:
        if self.token_layout is None:
            return distribute_tokens(total, bs)
        lengths = list(self.token_layout(total, bs))
        if len(lengths) != bs:
            raise ValueError(f"token_layout({total}, {bs}) gave {len(lengths)} lengths; expected {bs}")
        for place, length in enumerate(lengths):
            if length < 0:
                raise ValueError(f"token_layout({total}, {bs}) gave {length} at {place}; lengths are "
                                 "at least 0")
        if sum(lengths) != total:
            raise ValueError(f"token_layout({total}, {bs}) gave lengths of sum {sum(lengths)}; "
                             f"expected {total}")
        return lengths

    def get_config_type(self) -> AcceleratorGraphConfigType:
        """AcceleratorGraphConfigType.FLASH_INFER_PACKED."""
        return AcceleratorGraphConfigType.FLASH_INFER_PACKED

    def get_total_tokens(self, bs: int) -> list[int]:
        """The capture lengths times the multiplier, whatever bs."""
        if self.total_tokens_multiplier == 1:
            return self.capture_token_lengths
        return [length * self.total_tokens_multiplier for length in self.capture_token_lengths]

    def get_node_inputs(self, bs: int, num_tokens: int) -> list[NodeInputs]:
        """bs inputs from make_node_input, in order, laid out by token_layout.

        num_tokens counts tokens of the plan: it is divided by the multiplier first. 0 gives bs
        inputs of no tokens.
        """
        lengths = self._lay_out(num_tokens // self.total_tokens_multiplier, bs)
        return [self.make_node_input(length) for length in lengths]


# ---- regions --------------------------------------------------------------------------------------

@dataclass
class PiecewiseCaptureShape:
    """One bucket of a region: bs requests of seq_lens tokens, total_tokens in all.

    The factory of static inputs and the region's step declaration both receive it.
    """

    bs: int
    seq_lens: list[int]
    total_tokens: int


@dataclass
class PiecewiseCallInputs:
    """All that a captured region is handed, at capture and at replay alike.

    The region's host code runs at capture only; what it reads here is baked. At replay only the
    contents of the static inputs and of the plans change.

    Attributes:
        static_inputs: the runner's buffers by name. Read them: another tensor put into an entry
            would not be the memory that the graph reads.
        engine_inputs: the batch as the region sees it, padded to the captured size, and the node's
            resources.
        kwargs: the config's forward_kwargs, the same object.
    """

    static_inputs: dict[str, Tensor]
    engine_inputs: ModelInputsFromEngine
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def resources(self) -> dict[str, Any]:
        """engine_inputs.resources."""
        resources: dict[str, Any] = self.engine_inputs.resources
        return resources


@dataclass(kw_only=True)
class PiecewiseAcceleratorGraphConfig(ABC):
    """A region that the submodule itself calls, captured alone; what is around it stays eager.

    Attributes:
        capture_fn: the region: takes one PiecewiseCallInputs and returns tensors by name (a bare
            tensor is filed under "x").
        make_static_inputs: shape to the input buffers by name, asked once for each shape and slot.
        declare_step: (request ids, lengths) to the region's own resource work over the padded
            batch, or None for none. Pure: it is also asked about requests that no resource knows.
        lease_before_step: take the region's lease before the outer step is declared, which then
            leaves out the resources that the region plans itself.
        can_lease: asked about the batch's inputs before that lease; None always allows it.
        forward_kwargs: handed to the region unchanged.
        capture_batch_sizes: None or [] is [1, 2, 4, 8, 16, 32, 64].
        compile: specialise the region before it is captured; off, unlike for whole forwards.
        compile_mode: see check_compile_mode.
    """

    capture_fn: Callable[[PiecewiseCallInputs], dict[str, Tensor]]
    make_static_inputs: Callable[[PiecewiseCaptureShape], dict[str, Tensor]]
    declare_step: Callable[[list[str], list[int]], SubmoduleStep | None] | None = None
    lease_before_step: bool = False
    can_lease: Callable[[list[NodeInputs]], bool] | None = None
    forward_kwargs: dict[str, Any] = field(default_factory=dict)
    capture_batch_sizes: list[int] | None = None
    compile: bool = False
    compile_mode: str | None = None

    def __post_init__(self) -> None:
        _check_compile_modes(self.compile_mode)

    @abstractmethod
    def get_config_type(self) -> PiecewiseConfigType:
        """The kind of config."""

    @abstractmethod
    def get_capture_shapes(self, batch_sizes: list[int]) -> list[PiecewiseCaptureShape]:
        """The buckets to capture for these batch sizes, defaults already filled in."""

    @abstractmethod
    def replay_seq_lens(
        self, shape: PiecewiseCaptureShape, seq_lens: list[int] | None, real_bs: int,
    ) -> list[int]:
        """Lengths to declare when real_bs requests are replayed in the bucket of shape."""


@dataclass(kw_only=True)
class PiecewiseBatchedConfig(PiecewiseAcceleratorGraphConfig):
    """A region over requests of equal length: static input [bs, seq_len, D].

    Attributes:
        seq_len: tokens of every request.
    """

    seq_len: int

    def get_config_type(self) -> PiecewiseConfigType:
        """PiecewiseConfigType.BATCHED."""
        return PiecewiseConfigType.BATCHED

    def get_capture_shapes(self, batch_sizes: list[int]) -> list[PiecewiseCaptureShape]:
        """One bucket a batch size, in the order given."""
        return [PiecewiseCaptureShape(bs, [self.seq_len] * bs, self.seq_len * bs)
                for bs in batch_sizes]

    def replay_seq_lens(
        self, shape: PiecewiseCaptureShape, seq_lens: list[int] | None, real_bs: int,
    ) -> list[int]:
        """The bucket's own lengths: padding rows have their full span, as captured."""
        return list(shape.seq_lens)


@dataclass(kw_only=True)
class PiecewisePackedConfig(PiecewiseAcceleratorGraphConfig):
    """A region over packed requests of any length: static input [total_tokens, D].

    Attributes:
        total_tokens: token counts of the buckets; each is captured at every batch size, laid out by
            distribute_tokens.
    """

    total_tokens: list[int]

    def get_config_type(self) -> PiecewiseConfigType:
        """PiecewiseConfigType.PACKED."""
        return PiecewiseConfigType.PACKED

    def get_capture_shapes(self, batch_sizes: list[int]) -> list[PiecewiseCaptureShape]:
        """For each batch size, one bucket a token count."""
        return [PiecewiseCaptureShape(bs, distribute_tokens(total, bs), total)
                for bs in batch_sizes for total in self.total_tokens]

    def replay_seq_lens(
        self, shape: PiecewiseCaptureShape, seq_lens: list[int] | None, real_bs: int,
    ) -> list[int]:
        """The real lengths, then a zero for each request that the bucket has beyond real_bs.

        One request may bring several segments, so lengths need not be as many as requests. Raises
        ValueError without lengths.
        """
        if seq_lens is None:
            raise ValueError("seq_lens is None; a packed region is replayed with its lengths")
        return list(seq_lens) + [0] * (shape.bs - real_bs)
