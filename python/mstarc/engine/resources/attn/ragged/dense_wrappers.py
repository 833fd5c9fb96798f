"""Ragged attention through the FA3 kernel, behind the abstract classes' own arguments.

On Hopper GPUs the kernel named "fa3" is taken; on other devices, the CPU among them, the best one
there is. Results agree with those of the other wrappers within rounding.
"""
from __future__ import annotations

from typing import Any

from mstarc._frameworks import device_name
from mstarc.engine.resources.attn.ragged.wrappers import (
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
    _RaggedPrefillBase,
)

__all__ = ["FA3PrefixedPrefillWrapper", "FA3RaggedCrossPrefillWrapper", "FA3RaggedPrefillWrapper"]


class _FA3Base(_RaggedPrefillBase):
    def _default_backend(self, device: Any) -> str:
        return "fa3" if device_name(device).startswith("cuda") else "auto"


class FA3RaggedPrefillWrapper(_FA3Base, RaggedPrefillWrapper):
    """RaggedPrefillWrapper through the FA3 kernel where the device has it."""


class FA3RaggedCrossPrefillWrapper(_FA3Base, RaggedCrossPrefillWrapper):
    """RaggedCrossPrefillWrapper through the FA3 kernel where the device has it."""


class FA3PrefixedPrefillWrapper(_FA3Base, PrefixedPrefillWrapper):
    """PrefixedPrefillWrapper through the FA3 kernel where the device has it."""
