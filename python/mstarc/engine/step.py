"""What a step will touch, said before it runs: segments of requests under labels, by resource.

A model declares (SubmoduleStep), the engine executes: resources admit and plan the step, the forward
reads what they planned.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelInputsFromEngine", "ResourceStep", "Segment", "SubmoduleStep"]


@dataclass(frozen=True)
class Segment:
    """span tokens of one request under a label; span 0 takes part without adding any."""

    request_id: str
    span: int
    label: str = "main"


@dataclass(frozen=True)
class ResourceStep:
    """What a step asks of one resource.

    Attributes:
        segments: its own; None takes the step's default ones.
        pairs: (query label, key label) for cross and prefixed attention.
        causal: for attention. The default is True: encoders say False.
    """

    segments: Sequence[Segment] | None = None
    pairs: Sequence[tuple[str, str]] = ()
    causal: bool = True


@dataclass(frozen=True)
class SubmoduleStep:
    """A declaration: what each resource is asked for, by its key.

    Attributes:
        resources: key to ResourceStep.
        segments: for every resource without segments of its own.
    """

    resources: dict[str, ResourceStep] = field(default_factory=dict)
    segments: Sequence[Segment] = ()

    @classmethod
    def of_lengths(
        cls, key: str, request_ids: Sequence[str], lengths: Sequence[int], *, causal: bool = False,
    ) -> SubmoduleStep:
        """One resource, one segment a length: the step of a self-attention tower.

        Lengths may be more than requests: those past the last request are its own.
        """
        last = len(request_ids) - 1
        return cls({key: ResourceStep(causal=causal)},
                   [Segment(request_ids[min(i, last)], length) for i, length in enumerate(lengths)])

    def lower(self, handle: Callable[[str], int], key_info: str | None = None) -> tuple[Any, ...]:
        """The step as the extension takes it."""
        def segments(given: Sequence[Segment]) -> tuple[tuple[int, str, int], ...]:
            return tuple((handle(one.request_id), one.label, one.span) for one in given)

        return (tuple((key, int(asked.causal),
                       None if asked.segments is None else segments(asked.segments),
                       tuple((q, kv) for q, kv in asked.pairs))
                      for key, asked in self.resources.items()),
                segments(self.segments), key_info)


@dataclass
class ModelInputsFromEngine:
    """A batch as a network sees it.

    Attributes:
        request_ids: the real requests.
        padded_request_ids: those, then the rows that pad the batch to its bucket; equal to
            request_ids in an eager step. One entry for each input.
        resources: the node's managers by key.
        walk: the graph walk of the step; None in a region.
        slot: which of the bucket's buffers.
        capturing: the forward is being recorded: its host code runs this once.
        region_leases: labels of the regions that hold their lease already.
    """

    request_ids: list[str]
    padded_request_ids: list[str]
    resources: dict[str, Any] = field(default_factory=dict)
    walk: str | None = None
    slot: int = 0
    capturing: bool = False
    region_leases: tuple[str, ...] = ()
