"""The M* multimodal inference engine in C, from Python.

    mstarc.engine.resources.attn.ragged.wrappers        ragged attention: plan once a step, run once a layer
    mstarc.engine.resources.attn.ragged.dense_wrappers  the same through the FA3 kernel
    mstarc.engine.accelerator_graph_config              what to capture, and for which batch shapes
    mstarc.engine.accelerator_graph_runner              captures served: whole forwards and regions
    mstarc.ops                                          the operations that a network is made of
    mstarc.Embedder                                     texts to vectors

Attention and configs have the names, signatures and defaults of the M* engine's own modules: a program
written for `mstar` changes the prefix of its imports. Importing needs neither numpy nor torch;
tensors of numpy, torch, jax, cupy, or anything that speaks DLPack or the buffer protocol go in
without a copy, and results come back from the framework that q came from.
"""
from mstarc import _core
from mstarc._core import Tensor
from mstarc._frameworks import (
    bfloat16,
    device,
    device_name,
    dtype,
    float16,
    float32,
    stored_dtype_name,
)
from mstarc.embedder import Embedder

__version__: str = _core.version()
__all__ = [
    "Embedder", "Tensor", "__version__", "bfloat16", "build_info", "device", "device_info", "dtype",
    "float16", "float32", "memory_info", "tensor", "zeros",
]


def tensor(array: object, dtype: object = None, device: object = "cpu") -> Tensor:
    """A Tensor with a copy of an array of any framework, rounded to dtype where one is given.

    array may be strided and lie on the CPU or on a GPU. dtype: float32, bfloat16 or float16, as an
    object of any framework or a name; None keeps the array's. device: where the copy lies.
    """
    return _core.tensor(array, None if dtype is None else stored_dtype_name(dtype),
                        device_name(device))


def zeros(*shape: int, dtype: object = "float32", device: object = "cpu") -> Tensor:
    """A Tensor of zeros on a device.

    dtype: a floating one, or "int64", "int32", "int16", "int8", "uint8", "bool".

    Raises RuntimeError inside a forward that is recorded: a replay would not clear them.
    """
    return _core.zeros(shape, stored_dtype_name(dtype), device_name(device))


def build_info() -> str:
    """One line: version, commit, compiler, instruction sets and backends of the library inside."""
    return _core.build_info()


def device_info(device: object = "cpu") -> dict[str, object]:
    """What the library found on a device.

    Returns name, num_threads (MSTAR_NUM_THREADS, else OMP_NUM_THREADS, else the usable cores),
    model (the processor's own name), isa (the level in use), isa_best and isa_reason.

    Raises ValueError for a name that is none, RuntimeError for a device that is not there.
    """
    return _core.device_info(device_name(device))


def memory_info() -> dict[str, int]:
    """What the library holds now: live_bytes, live_allocations, and peak_bytes of the process."""
    return _core.memory_info()
