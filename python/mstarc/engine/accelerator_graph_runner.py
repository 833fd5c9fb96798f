"""Captures served: whole forwards, and regions of a forward.

    AcceleratorGraphRunner           pads a step to the smallest bucket that holds it and replays;
                                     a step without a bucket runs eager, and the reason is counted
    PiecewiseAcceleratorGraphRunner  the same for one region that a network calls itself

On the CPU what is recorded are the operations of mstarc.ops and the managers and graph-mode wrappers
of attention; on a GPU the stream itself is captured, and with it whatever torch and cupy give it. Host
code of a forward runs at capture only: what it read is baked. The results of a step have the same bits
replayed, eager, and request by request, as far as the forward is made of the operations of this package.

Captures that fail are logged (logger "mstarc") and their buckets served eager;
MSTAR_REQUIRE_ACCELERATOR_GRAPHS=1, or any text but 0, makes that a RuntimeError, whose cause is what
the callback raised. In a step, what a callback raises reaches the caller unchanged, and the runner stays usable.
"""
from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mstarc import _core
from mstarc.engine._runner import CaptureFailure, Result, Runner, as_dict, is_tensor, once
from mstarc.engine.accelerator_graph_config import (
    _DEFAULT_BATCH_SIZES,
    AcceleratorGraphConfig,
    BatchedAcceleratorGraphConfig,
    PackedAcceleratorGraphConfig,
    PiecewiseAcceleratorGraphConfig,
    PiecewiseCallInputs,
    PiecewiseCaptureShape,
    PiecewiseConfigType,
)
from mstarc.engine.resources.attn.ragged.managers import NodeResources
from mstarc.engine.step import ModelInputsFromEngine, SubmoduleStep
from mstarc.model.submodule_base import NodeInputs

__all__ = [
    "AcceleratorGraphRunner", "CaptureFailure", "GraphResult", "PiecewiseAcceleratorGraphRunner",
    "PiecewiseResult",
]

# ---- whole forwards ------------------------------------------------------------------------------

class GraphResult(Result):
    """The results of one step by name: result[name] is a copy of the batch's rows, view an alias.

    Attributes:
        miss: "none" for a replay, else why the step ran eager: "walk", "key_info", "batch_size",
            "tokens", "waste", "not_captured", "disabled"; "empty" without requests.
        slot: which of the bucket's buffers.
        bs, bucket_tokens: the bucket; in an eager step the step's own size.
        num_requests, num_tokens: of the step itself, rows that pad it left out. num_tokens counts
            the tokens of the plan: input_seq_len times the config's multiplier.
    """

    def __init__(self, outputs: dict[str, Any], miss: str, slot: int, bs: int, bucket_tokens: int,
                 num_tokens: int, num_requests: int) -> None:
        super().__init__(outputs)
        self.miss = miss
        self.slot = slot
        self.bs = bs
        self.bucket_tokens = bucket_tokens
        self.num_tokens = num_tokens
        self.num_requests = num_requests

    @property
    def replayed(self) -> bool:
        """True when a capture served the step."""
        return self.miss == "none"

    def __repr__(self) -> str:
        how = "replayed" if self.replayed else f"eager ({self.miss})"
        return (f"GraphResult({list(self)}, {self.num_requests} requests, {self.num_tokens} tokens, "
                f"{how})")


class AcceleratorGraphRunner(Runner):
    """Serves the steps of one network, a submodule, from captures of its whole forward.

    A submodule has these methods (mstarc.model.submodule_base.Submodule says more):
        preprocess(engine_inputs, inputs) -> dict: the step's host work. Tensors are copied to
            buffers that the captures read; what is no tensor is baked.
        forward_batched(engine_inputs, tensors) -> dict of tensors, or one tensor, named "x". A
            config may name another method.
        declare_step(engine_inputs, inputs) -> SubmoduleStep or None, where there are resources.
        request_outputs: names of results that have one row a request; others have one a token. Rows
            stand in the order of requests: those that pad come last and are not handed out.

    Args:
        submodule: the network.
        configs: BatchedAcceleratorGraphConfig and PackedAcceleratorGraphConfig, in any mix. Sizes
            that a config lists twice are captured once.
        resources: the node's managers; None: it has none.
        node: the name in messages.
        num_slots: buffers of each bucket; None: 1, or MSTAR_NUM_SLOTS (2) where resources want two.
        num_warmups: forwards before a capture.
        max_waste: a bucket's tokens are at most so many times the step's; None: no bound.
        device: where captures run, a name or a torch device; None: the resources' own, else the CPU.
        free_bytes: memory that captures may take, resources and the memory of forwards included; a
            bucket that would need more is "unaffordable" and its steps run eager. None: no bound, on a
            GPU its free memory.
        floor_bytes: of it to be left over.

    On a GPU preprocess and forward_batched work on the capture's stream, or on the caller's in a step
    that is served; torch records no gradients there. Tensors are those of the framework that preprocess
    made them with, and results those of the framework that forward_batched did: torch's or cupy's
    arrays stay theirs, anything else becomes a mstarc.Tensor. Numbers are sent to the device; integers
    stay in host memory, where mstarc.ops reads ids and offsets, unless they were given on the device.

    Raises:
        ValueError: configs that cannot be. What their callables raise comes through unchanged.

    Calls from several threads wait for each other, but for pre_plan and info; a result is to be
    copied before the next step of another thread. Memory that the captures work in is a pool,
    taken as the first (largest) captures run, and shared by all.
    """

    def __init__(
        self,
        submodule: Any,
        configs: Sequence[AcceleratorGraphConfig],
        resources: NodeResources | None = None,
        *,
        node: str = "node",
        num_slots: int | None = None,
        num_warmups: int = 2,
        max_waste: float | None = None,
        device: Any = None,
        free_bytes: int | None = None,
        floor_bytes: int = 0,
    ) -> None:
        super().__init__(device, resources)
        self.submodule = submodule
        self.configs = list(configs)
        self.resources = resources
        self._who = node
        self._key_infos: dict[Hashable, str] = {}
        self._baked: dict[str, Any] = {}
        self._plan_turn = threading.Lock()
        self._core = _core.Runner(
            self, None if resources is None else resources._core,
            tuple(self._lower_config(config) for config in self.configs), node,
            -1 if num_slots is None else num_slots, num_warmups,
            math.nan if max_waste is None else max_waste, self._device,
            -1 if free_bytes is None else free_bytes, floor_bytes)

    def _lower_config(self, config: AcceleratorGraphConfig) -> tuple[Any, ...]:
        kind = config.get_config_type()
        tokens: tuple[int, ...] = ()
        template = make = layout = None
        if isinstance(config, PackedAcceleratorGraphConfig):
            tokens = once(config.capture_token_lengths)
            make, layout = config.make_node_input, config.token_layout
        elif isinstance(config, BatchedAcceleratorGraphConfig):
            template = _Template(config.single_request_inputs)
        else:
            raise TypeError(f"{type(config)!r} ({kind}) is neither a batched nor a packed config")
        info = config.additional_key_info
        if info is not None:
            self._key_infos.setdefault(info, str(len(self._key_infos)))
        return (template is None, config.capture_graph_walk, tuple(config.replay_graph_walks),
                None if info is None else self._key_infos[info], config.compile,
                config.compile_mode,
                once(config.capture_batch_sizes) or _DEFAULT_BATCH_SIZES,
                config.capture_forward_method, tuple((config.input_seq_dims or {}).items()),
                config.total_tokens_multiplier, config.caps_eager_batch_size,
                template, tokens, make, layout)

    # ---- steps -----------------------------------------------------------------------------------

    def run(
        self,
        walk: str,
        request_ids: Sequence[str],
        inputs: Sequence[NodeInputs],
        *,
        additional_key_info: Hashable = None,
        region_leases: Sequence[str] = (),
        eager: bool = False,
    ) -> GraphResult:
        """Serves one step: inputs has one entry a request.

        Args:
            walk: the graph walk; a capture serves the walks that its config lists.
            additional_key_info: equal to that of the configs that may serve the step.
            region_leases: labels of the regions that hold their lease: declare_step leaves out
                what they plan themselves.
            eager: no replay, whatever is captured.

        Raises:
            ValueError: an id that is there twice, or other than one input a request.
            RuntimeError: a resource does not admit the step.
            What the submodule raises comes through unchanged.
        """
        ids, given = list(request_ids), list(inputs)
        with self._alone(self._turn) as hand:
            hand.key_info = self._info_text(additional_key_info)
            hand.regions = tuple(region_leases)
            miss, slot, bs, bucket, tokens, requests, outputs = self._core.step(
                walk, hand.key_info, self._names.handles(ids), given, eager)
            self._names.forget_all_but(ids)
        per_request = getattr(self.submodule, "request_outputs", ())
        rows = {name: requests if name in per_request else tokens for name in outputs}
        outputs = self._work.hand_out(outputs)
        return GraphResult({name: made[:rows[name]] for name, made in outputs.items()}, miss, slot,
                           bs, bucket, tokens, requests)

    def pre_plan(
        self, walk: str, request_ids: Sequence[str], inputs: Sequence[NodeInputs] | None = None, *,
        additional_key_info: Hashable = None,
    ) -> str:
        """Plans the step that comes next while one is running, from a second thread.

        The step, when it comes with the same walk and requests, finds its resources planned. inputs
        may be None where they are not built yet: then a batched capture is meant.

        Returns "none", or why the step will not be replayed and nothing was planned.

        Raises:
            RuntimeError: no resources, or one slot.
        """
        ids, given = list(request_ids), None if inputs is None else list(inputs)
        with self._alone(self._plan_turn) as hand:
            hand.key_info = self._info_text(additional_key_info)
            miss: str = self._core.pre_plan(
                walk, hand.key_info, self._names.plan_ahead(ids), given, False)
        return miss

    def _info_text(self, info: Hashable) -> str | None:
        return None if info is None else self._key_infos.get(info, "none of the configs'")

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """Every bucket in the order of capture: config_index, bs, num_tokens, its state ("captured",
        "failed", "unaffordable"), the reason where it is not captured, and counters."""
        return self._core.buckets()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        info = self.info
        return (f"AcceleratorGraphRunner({self._who!r}, {info['num_captured']} of "
                f"{info['num_buckets']} buckets captured)")

    # ---- called by the extension -----------------------------------------------------------------

    def _engine_inputs(self, context: tuple[Any, ...]) -> ModelInputsFromEngine:
        walk, slot, capturing, real, padded, _, _ = context
        name = self._names.name
        return ModelInputsFromEngine(
            [name(handle) for handle in real], [name(handle) for handle in padded],
            dict(self.resources or {}), walk, slot, bool(capturing), self._hand.regions)

    def _declare(self, context: tuple[Any, ...], inputs: list[Any]) -> tuple[Any, ...]:
        lease = context[5]
        step = self.submodule.declare_step(self._engine_inputs(context), _unwrap(inputs))
        return (step or SubmoduleStep()).lower(self._names.handle,
                                               self._hand.key_info if lease is None else lease[3])

    def _preprocess(self, context: tuple[Any, ...], inputs: list[Any]) -> dict[str, Any]:
        with self._work.on(context[6]):
            made = self.submodule.preprocess(self._engine_inputs(context), _unwrap(inputs))
        if not isinstance(made, Mapping):
            raise TypeError(f"preprocess gave a {type(made)!r}; expected a dict")
        self._baked = {name: value for name, value in made.items() if not is_tensor(value)}
        tensors = {name: value for name, value in made.items() if is_tensor(value)}
        self._work.note_inputs(tensors)
        return tensors

    def _forward(self, context: tuple[Any, ...], capturing: int, bs: int, num_tokens: int,
                 tensors: dict[str, Any]) -> dict[str, Any]:
        engine_inputs = self._engine_inputs(context)
        engine_inputs.capturing = bool(capturing)
        method = getattr(self.submodule, self._method(context))
        with self._work.on(context[6], own_memory=context[5] is not None,
                           capturing=engine_inputs.capturing):
            outputs = as_dict(method(engine_inputs, {**self._baked, **self._work.hand_in(tensors)}))
        self._work.note_outputs(outputs)
        per_request = getattr(self.submodule, "request_outputs", ())
        for name, made in outputs.items():
            rows = bs if name in per_request else num_tokens
            if len(made.shape) < 1 or made.shape[0] != rows:
                kind = "a request" if name in per_request else "a token"
                raise ValueError(f"result {name!r} has shape {tuple(made.shape)}; one row {kind} is "
                                 f"{rows} (request_outputs names those with one a request)")
        return outputs

    def _method(self, context: tuple[Any, ...]) -> str:
        """Of the config whose capture it is; of a step without one, of the first for its walk."""
        lease = context[5]
        for config in self.configs:
            info = self._info_text(config.additional_key_info)
            if lease is None:
                found = context[0] in config.replay_graph_walks and info == self._hand.key_info
            else:
                bs, tokens, walk, key_info = lease
                sizes = config.capture_batch_sizes or _DEFAULT_BATCH_SIZES
                found = (walk == config.capture_graph_walk and info == key_info and bs in sizes
                         and tokens in config.get_total_tokens(bs))
            if found:
                return config.capture_forward_method
        return "forward_batched"


class _Template:
    """The request that a batched config clones, whose class need not have a clone of its own."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs
        self.input_seq_len = inputs.input_seq_len

    def clone(self) -> _Template:
        from mstarc.model.submodule_base import clone_record
        clone = getattr(self.inputs, "clone", None)
        return _Template(clone_record(self.inputs) if clone is None else clone())


def _unwrap(inputs: list[Any]) -> list[Any]:
    return [one.inputs if isinstance(one, _Template) else one for one in inputs]


# ---- regions -------------------------------------------------------------------------------------

class PiecewiseResult(Result):
    """The results of one run by name: result[name] is a copy of the batch's rows, view an alias.

    Attributes:
        real_len: rows: the batch's tokens (packed) or requests (batched).
        slot, bs, total_tokens: the capture that served it.
    """

    def __init__(self, outputs: dict[str, Any], slot: int, bs: int, total_tokens: int,
                 real_len: int) -> None:
        super().__init__(outputs)
        self.slot = slot
        self.bs = bs
        self.total_tokens = total_tokens
        self.real_len = real_len

    def __repr__(self) -> str:
        return f"PiecewiseResult({list(self)}, {self.real_len} rows)"


class PiecewiseAcceleratorGraphRunner(Runner):
    """Serves one region of a network, which asks can_run and then runs it or its own eager code.

    Args:
        config: PiecewiseBatchedConfig or PiecewisePackedConfig. Sizes that it lists twice are
            captured once.
        resources: the node's managers; needed by a config with declare_step.
        label: the region's name in the node.
        node: the node's, in messages.
        num_slots: buffers of each shape; None: 1, or 2 where the declared step wants two.
        num_warmups: runs before a capture.
        device: where captures run, a name or a torch device; None: the resources' own, else the CPU.
        free_bytes: memory that results, graphs and the resources may take; a shape that would need more
            is dropped. What make_static_inputs gives and what the region works in are not counted.
            None: no bound.
        floor_bytes: of it to be left over.

    capture_fn gets PiecewiseCallInputs, whose static_inputs are mstarc.Tensors on the memory that
    make_static_inputs gave (on copies, where that is not contiguous or cannot be written). On a GPU
    torch's and cupy's arrays stay theirs, here and in results; numbers in host memory are copied to the
    device. The region runs between what the caller's stream has before and after the call.

    Raises:
        ValueError: a config that cannot be.

    Calls from several threads wait for each other; a result is to be copied before the next run of
    another thread.
    """

    def __init__(
        self,
        config: PiecewiseAcceleratorGraphConfig,
        resources: NodeResources | None = None,
        *,
        label: str = "region",
        node: str = "node",
        num_slots: int | None = None,
        num_warmups: int = 2,
        device: Any = None,
        free_bytes: int | None = None,
        floor_bytes: int = 0,
    ) -> None:
        super().__init__(device, resources)
        self.config = config
        self.resources = resources
        self.label = label
        self._who = f"{node}_{label}"
        packed = config.get_config_type() is PiecewiseConfigType.PACKED
        lowered = (packed, once(config.capture_batch_sizes) or _DEFAULT_BATCH_SIZES,
                   -1 if packed else config.seq_len,  # type: ignore[attr-defined]
                   once(config.total_tokens) if packed else (),  # type: ignore[attr-defined]
                   config.compile, config.compile_mode, config.declare_step is not None,
                   config.lease_before_step,
                   config.lease_before_step and config.can_lease is not None)
        self._core = _core.Region(
            self, None if resources is None else resources._core, lowered, node, label,
            -1 if num_slots is None else num_slots, num_warmups, self._device,
            -1 if free_bytes is None else free_bytes, floor_bytes)

    def can_run(self, bs: int, num_tokens: int | None = None) -> bool:
        """True when a capture serves bs requests of num_tokens tokens in all (None: not known)."""
        return self.why_not(bs, num_tokens) is None

    def why_not(self, bs: int, num_tokens: int | None = None) -> str | None:
        """None when a capture serves the batch, else the reason: "batch_size", "tokens",
        "not_captured", "not_built" (tokens are not known and have to be)."""
        miss: str = self._core.can_run(bs, -1 if num_tokens is None else num_tokens)
        return None if miss == "none" else miss

    def can_lease(self, inputs: Sequence[NodeInputs]) -> bool:
        """True when the region's lease is to be taken before the outer step is declared: the config
        says so, its can_lease agrees, and a capture serves the batch. What can_lease raises comes
        through unchanged."""
        return bool(self._core.can_lease(list(inputs)))

    def run(
        self,
        static_inputs: Mapping[str, Any],
        request_ids: Sequence[str] | None = None,
        seq_lens: Sequence[int] | None = None,
        real_bs: int | None = None,
    ) -> PiecewiseResult:
        """Replays the capture that serves the batch.

        Args:
            static_inputs: tensors by name, copied to the start of the region's buffers, whose rest
                is zeroed. Names that the region lacks and what is no tensor are ignored; buffers
                that are not named keep their contents.
            request_ids: with them the region's resources are declared, planned and committed.
            seq_lens: tokens of the segments; one request may bring several. A packed region needs
                them.
            real_bs: requests of the batch; None: as many as ids, else as many as lengths.

        Raises:
            RuntimeError: no capture serves the batch (ask can_run first), or a resource does not
                admit it. ValueError: a tensor that does not fit its buffer; nothing says how many
                requests there are.
        """
        arrays = {name: value for name, value in static_inputs.items() if is_tensor(value)}
        ids = None if request_ids is None else list(request_ids)
        lengths = None if seq_lens is None else tuple(seq_lens)
        with self._alone(self._turn):
            slot, bs, total, real_len, outputs = self._core.run(
                arrays, None if ids is None else self._names.handles(ids), lengths,
                -1 if real_bs is None else real_bs)
            if ids is not None:
                self._names.forget_all_but(ids)
        return PiecewiseResult(self._work.hand_out(outputs), slot, bs, total, real_len)

    def __repr__(self) -> str:
        info = self.info
        return (f"PiecewiseAcceleratorGraphRunner({self._who!r}, {info['num_captured']} of "
                f"{info['num_shapes']} shapes captured)")

    # ---- called by the extension -----------------------------------------------------------------

    def _capture(self, context: tuple[Any, ...], capturing: int,
                 inputs: dict[str, Any]) -> dict[str, Any]:
        _, slot, _, real, padded, _, stream = context
        name = self._names.name
        engine_inputs = ModelInputsFromEngine(
            [name(handle) for handle in real], [name(handle) for handle in padded],
            dict(self.resources or {}), None, slot, bool(capturing))
        with self._work.on(stream, own_memory=True, capturing=bool(capturing)):
            call = PiecewiseCallInputs(self._work.hand_in(inputs), engine_inputs,
                                       self.config.forward_kwargs)
            outputs = as_dict(self.config.capture_fn(call))
        self._work.note_outputs(outputs)
        return outputs

    def _make_inputs(self, bs: int, seq_lens: tuple[int, ...], total: int) -> dict[str, Any]:
        made = self.config.make_static_inputs(PiecewiseCaptureShape(bs, list(seq_lens), total))
        self._work.note_inputs(made)
        return dict(made)

    def _declare(self, handles: tuple[int, ...], lengths: tuple[int, ...]) -> Any:
        assert self.config.declare_step is not None
        step = self.config.declare_step([self._names.name(handle) for handle in handles],
                                        list(lengths))
        return None if step is None else step.lower(self._names.handle)

    def _can_lease(self, inputs: list[Any]) -> bool:
        assert self.config.can_lease is not None
        return bool(self.config.can_lease(inputs))
