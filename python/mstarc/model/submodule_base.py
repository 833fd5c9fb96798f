"""What one request brings to one step of a model's node, and the node's network."""
from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mstarc.engine.step import ModelInputsFromEngine, SubmoduleStep

__all__ = ["NodeInputs", "Submodule"]

_T = TypeVar("_T")


@dataclass
class NodeInputs:
    """The inputs of one request.

    Subclass it for what a model needs beyond: clones keep the subclass. Configs and runners ask for
    no more than `input_seq_len` and `clone`, so any class with these two serves as well.

    Attributes:
        tensor_inputs: tensors by name.
        kwargs: whatever is no tensor.
        resource_step_info: what a step's declaration needs to know, for example about guidance.
        input_seq_len: tokens of this request; 0 for a node without tokens.
    """

    tensor_inputs: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)
    resource_step_info: Any = None
    input_seq_len: int = 0

    def clone(self: _T) -> _T:
        """A copy of the same class whose tensors are copies too, nested ones included."""
        return clone_record(self)


class Submodule(ABC):
    """The network of a node, for mstarc.engine.accelerator_graph_runner.AcceleratorGraphRunner.

    Any class with these methods serves as well. engine_inputs says which requests there are; lists
    of inputs have one entry for each of engine_inputs.padded_request_ids. Under a capture inputs
    are a config's dummies, and rows that pad a step have no tokens (packed) or the template's
    (batched).

    Attributes:
        request_outputs: names of the results that have one row a request. Others have one row a
            token of the plan.
    """

    request_outputs: Collection[str] = ()

    def declare_step(
        self, engine_inputs: ModelInputsFromEngine, inputs: list[Any],
    ) -> SubmoduleStep | None:
        """What the step needs of the node's resources; None: nothing. Pure, since it is also asked
        about requests that no resource knows."""
        return None

    @abstractmethod
    def preprocess(
        self, engine_inputs: ModelInputsFromEngine, inputs: list[Any],
    ) -> dict[str, Any]:
        """The step's host work: the tensors that the forward reads, by name, in host memory.

        Before a replay they are copied to the buffers that the capture reads. Ids, positions and
        offsets are int32. What is no tensor is handed on to an eager forward, and baked by a
        capture.
        """

    @abstractmethod
    def forward_batched(
        self, engine_inputs: ModelInputsFromEngine, tensors: dict[str, Any],
    ) -> dict[str, Any] | Any:
        """Results by name, or one tensor, of preprocess' tensors. Made of mstarc.ops and of the
        managers in engine_inputs.resources; its host code runs at capture only."""


def clone_value(value: Any) -> Any:
    """Tensors copied, also inside dicts, lists and tuples; everything else as it is."""
    if isinstance(value, dict):
        return _like(value, {key: clone_value(item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple
        return value._make(clone_value(item) for item in value)
    if isinstance(value, (list, tuple)):
        return type(value)(clone_value(item) for item in value)
    if hasattr(value, "__dlpack__"):
        return value.clone() if hasattr(value, "clone") else copy.copy(value)
    return value


def _like(value: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(value) is dict:
        return items
    made = copy.copy(value)  # a subclass keeps its class and what else it holds
    made.clear()
    made.update(items)
    return made


def clone_record(record: _T) -> _T:
    """A shallow copy of an object whose attributes are clone_value's."""
    made = copy.copy(record)
    names = list(getattr(record, "__dict__", ()))
    for part in type(record).__mro__:
        slots = part.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    for name in names:
        if name not in ("__dict__", "__weakref__") and hasattr(record, name):
            object.__setattr__(made, name, clone_value(getattr(record, name)))  # frozen ones too
    return made
