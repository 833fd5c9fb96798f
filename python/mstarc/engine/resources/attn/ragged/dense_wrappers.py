"""Ragged attention through the FA3 kernel, behind the abstract classes' own arguments.

On Hopper GPUs the kernel named "fa3" is taken; on other devices, the CPU among them, the best one
there is. Results agree with those of the other wrappers within rounding.
"""
from __future__ import annotations

from typing import Any

from mstarc.engine.resources.attn.ragged.wrappers import (
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
    _RaggedPrefillBase,
)

__all__ = ["FA3PrefixedPrefillWrapper", "FA3RaggedCrossPrefillWrapper", "FA3RaggedPrefillWrapper"]


class _FA3Base(_RaggedPrefillBase):
    _backend = "fa3"

    def _make_core(self, arguments: Any, backend: str, workspace: Any) -> Any:
        """The kernel by its name where the device has it, else the best one there is."""
        try:
            return super()._make_core(arguments, backend, workspace)
        except NotImplementedError:
            return super()._make_core(arguments, "auto", workspace)


class FA3RaggedPrefillWrapper(_FA3Base, RaggedPrefillWrapper):
    """RaggedPrefillWrapper through the FA3 kernel where the device has it."""


class FA3RaggedCrossPrefillWrapper(_FA3Base, RaggedCrossPrefillWrapper):
    """RaggedCrossPrefillWrapper through the FA3 kernel where the device has it."""


class FA3PrefixedPrefillWrapper(_FA3Base, PrefixedPrefillWrapper):
    """PrefixedPrefillWrapper through the FA3 kernel where the device has it."""
