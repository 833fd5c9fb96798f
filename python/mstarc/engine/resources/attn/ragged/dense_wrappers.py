"""Ragged attention through the FA3 kernel, behind the abstract classes' own arguments.

On Hopper GPUs the kernel named "fa3" is taken (docs/gpu.md says for which head dims, and which
of its kernels have yet to run on a card); on other devices, the CPU among them, the best one there
is, and info["kernel_reason"] says why. Results agree with those of the other wrappers within
rounding.
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
    _why_not_fa3: str | None = None

    def _make_core(self, arguments: Any, backend: str, workspace: Any) -> Any:
        """The kernel by its name where the device has it, else the best one there is."""
        try:
            return super()._make_core(arguments, backend, workspace)
        except NotImplementedError as error:
            self._why_not_fa3 = str(error)
            return super()._make_core(arguments, "auto", workspace)

    @property
    def info(self) -> dict[str, Any]:
        """As of the other wrappers; kernel_reason tells where the kernel is not FA3's."""
        info = super().info
        if self._why_not_fa3 is not None:
            info["kernel_reason"] += f"; not fa3: {self._why_not_fa3}"
        return info


class FA3RaggedPrefillWrapper(_FA3Base, RaggedPrefillWrapper):
    """RaggedPrefillWrapper through the FA3 kernel where the device has it."""


class FA3RaggedCrossPrefillWrapper(_FA3Base, RaggedCrossPrefillWrapper):
    """RaggedCrossPrefillWrapper through the FA3 kernel where the device has it."""


class FA3PrefixedPrefillWrapper(_FA3Base, PrefixedPrefillWrapper):
    """PrefixedPrefillWrapper through the FA3 kernel where the device has it."""
