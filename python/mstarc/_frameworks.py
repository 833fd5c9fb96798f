"""What the package knows about other frameworks: dtypes, devices, and how each makes an array.

Nothing here imports a framework that the caller has not imported already, except to make an output
for an array that came from it. The extension calls the functions at the end for what is rare.
"""
from __future__ import annotations

import re
import sys
from typing import Any

__all__ = ["bfloat16", "device", "dtype", "float16", "float32"]

_ALIASES = {
    "float32": "float32", "f32": "float32", "float": "float32", "single": "float32",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float16": "float16", "f16": "float16", "half": "float16",
}
_FP8 = re.compile(r"(float8|f8|fp8)")
_JAX = ("jax", "jaxlib")
_IN_STREAM_ORDER = ("torch", "cupy")  # they work, and free memory, in the order of a current stream


class dtype:
    """A dtype of this package: mstarc.float32, mstarc.bfloat16, mstarc.float16.

    Equal to torch's dtype, numpy's dtype and the name of the same type. `to_torch()` gives torch's.
    The hash is that of the name, so in a dict keyed by torch's dtypes look up `to_torch()`.
    """

    __slots__ = ("name", "itemsize")

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize

    def __eq__(self, other: object) -> bool:
        try:
            return stored_dtype_name(other) == self.name
        except (TypeError, ValueError, NotImplementedError):
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"mstarc.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return own_dtype, (self.name,)

    def to_torch(self) -> Any:
        """torch's dtype of this name; imports torch."""
        import torch
        return getattr(torch, self.name)


float32 = dtype("float32", 4)
bfloat16 = dtype("bfloat16", 2)
float16 = dtype("float16", 2)
_OWN = {"float32": float32, "bfloat16": bfloat16, "float16": float16}
_STORED = {name: dtype(name, size) for name, size in (
    ("float64", 8), ("int64", 8), ("int32", 4), ("int16", 2), ("int8", 1), ("uint8", 1), ("bool", 1))}


class device:
    """A device by name: mstarc.device("cpu"), mstarc.device("cuda:1").

    Equal to torch's device, or a text, that names the same one. `to_torch()` gives torch's.
    "cuda" without a number is the current device.
    """

    __slots__ = ("type", "index")

    def __init__(self, name: object) -> None:
        kind, _, index = _device_text(name).partition(":")
        self.type = kind
        self.index = int(index) if index else None

    def __eq__(self, other: object) -> bool:
        try:
            return _device_text(other) == str(self)
        except (TypeError, ValueError):
            return False

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"mstarc.device('{self}')"

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (str(self),)

    def to_torch(self) -> Any:
        """torch's device of this name; imports torch."""
        import torch
        return torch.device(str(self))


def dtype_name(value: object) -> str:
    """"float32", "bfloat16" or "float16" of a torch dtype, a numpy dtype or class, or a name.

    Raises NotImplementedError for fp8, ValueError for another dtype, TypeError for what is none.
    """
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):  # numpy.float32 is a class, torch's dtypes have only a text
        name = getattr(value, "__name__", None) or str(value)
    short = name.rpartition(".")[2].lower()
    if short in _ALIASES:
        return _ALIASES[short]
    if _FP8.match(short):
        raise NotImplementedError(f"dtype {value!r}: fp8 is not there yet; accepted are "
                                  "'float32', 'bfloat16' and 'float16'")
    raise ValueError(f"dtype {value!r} is none of 'float32', 'bfloat16' and 'float16'")


def _device_text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        raise TypeError(f"device is {value!r}; expected a name such as 'cpu' or 'cuda:0'")
    if isinstance(value, int):
        return f"cuda:{value}"
    text = str(value).strip()
    found = re.fullmatch(r"<CUDA Device (\d+)>", text)  # cupy
    if found:
        return f"cuda:{found.group(1)}"
    if re.fullmatch(r"TFRT_CPU_\d+", text) or text in ("cpu:0", "CpuDevice(id=0)"):  # jax
        return "cpu"
    if not re.fullmatch(r"[a-z]+(:\d{1,4})?", text):
        raise ValueError(f"device is {text[:60]!r}; expected a name such as 'cpu' or 'cuda:0'")
    kind, _, index = text.partition(":")
    return f"{kind}:{int(index)}" if index else kind


def device_name(value: object) -> str:
    """The library's name of a device: "cuda" becomes the current one, "cuda:N"."""
    text = _device_text(value)
    if text != "cuda":
        return text
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cuda:0"


def caller_dtype(value: object) -> object:
    """A dtype as the caller will want to read it back: theirs, or torch's once torch is loaded."""
    if isinstance(value, (str, dtype)):
        own = _OWN[dtype_name(value)]
        return own.to_torch() if "torch" in sys.modules else own
    return value


def caller_device(value: object) -> object:
    """The same for devices."""
    if isinstance(value, (str, int, device)):
        own = device(value)
        return own.to_torch() if "torch" in sys.modules else own
    return value


# ---- called by the extension ----------------------------------------------------------------------

def own_dtype(name: str) -> dtype:
    """The package's dtype object of a name."""
    return _OWN[name] if name in _OWN else _STORED[name]


def stored_dtype_name(value: object) -> str:
    """The name of a dtype that a Tensor may have, integers included, as dtype_name reads them."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):
        name = getattr(value, "__name__", None) or str(value)
    short = name.rpartition(".")[2].lower()
    return short if short in _STORED else dtype_name(value)


def own_device(name: str) -> device:
    """The package's device object of a name."""
    return device(name)


def _package_of(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def framework_of(array: object) -> str:
    """The package that an array's class is from: "torch", "numpy", "mstarc"."""
    return _package_of(type(array))


def as_framework(framework: str, made: Any) -> Any:
    """A Tensor of this package as torch's or cupy's array on the same memory; itself for others."""
    if framework in ("torch", "cupy"):
        return sys.modules[framework].from_dlpack(made)
    return made


def place_name(array: Any) -> str:
    """Where an array lies: "cpu" or "cuda:N"."""
    told = getattr(array, "__dlpack_device__", None)
    kind, index = (1, 0) if told is None else told()
    return f"cuda:{int(index)}" if int(kind) in (2, 13) else "cpu"


def bfloat16_bits(array: Any) -> Any:
    """numpy's bfloat16 arrays (of ml_dtypes) as uint16 on the same memory; None for others."""
    if framework_of(array) == "numpy" and getattr(array.dtype, "name", "") == "bfloat16":
        return array.view("uint16")
    return None


def to_host(array: Any) -> Any:
    """A copy in host memory of an array on a device; waits for the device."""
    array = array.detach() if hasattr(array, "detach") else array  # torch's parameters
    for method in ("cpu", "get"):  # torch, cupy
        if hasattr(array, method):
            return getattr(array, method)()
    import numpy
    return numpy.asarray(array)  # jax


def work_stream(array: Any, index: int) -> int:
    """The stream of device "cuda:index" that the caller's framework works on now, as an address.

    array tells the framework; where that has no stream to ask for (jax; None, a plan) it is torch's
    where torch has used a GPU, else cupy's, else the default one. The library has that device.
    """
    name = framework_of(array)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and name != "cupy" and torch.cuda.is_initialized():
        tell = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)  # the sooner
        return int(torch.cuda.current_stream(index).cuda_stream if tell is None else tell(index))
    if cupy is not None:
        return int(cupy.cuda.get_current_stream(index).ptr)
    return 0


_FREES_AT_ONCE, _NEVER_CHANGES = 1, 2


def _habits(kind: type) -> int:
    """What a class's framework does with memory that it has handed out.

    1: it may give it away while streams of ours still read it. 2: its arrays never change, whatever
    their capsules say, so nothing is written to them.
    """
    framework = _package_of(kind)
    return (0 if framework in _IN_STREAM_ORDER else _FREES_AT_ONCE) | \
        (_NEVER_CHANGES if framework in _JAX else 0)


_OTHER, _NUMPY, _TORCH, _CUPY = range(4)
_OWN_CLASSES = {"numpy": ("ndarray", _NUMPY), "torch": ("Tensor", _TORCH), "cupy": ("ndarray", _CUPY)}


def kind_of(kind: type) -> tuple[int, int, Any]:
    """What the extension remembers of a class of arrays: which framework's own class it is, its habits,
    and a function that looks at an array sooner than `__dlpack__` does, or None."""
    name = _package_of(kind)
    attribute, own = _OWN_CLASSES.get(name, ("", _OTHER))
    if kind is not getattr(sys.modules.get(name), attribute, None):
        own = _OTHER
    look = _look_at_cupy if own == _CUPY else _look_of_torch(kind)
    return own, _habits(kind), look


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of DLPack


def _look_at_cupy(array: Any) -> tuple[Any, ...] | None:
    """Address, device, shape, strides in bytes, DLPack type code, bytes of an element."""
    data, dtype = array.data, array.dtype
    code = _CODES.get(dtype.kind)
    if code is None:
        return None
    return data.ptr, data.device_id, array.shape, array.strides, code, dtype.itemsize


def _look_of_torch(kind: type) -> Any:
    """For torch's tensors, parameters included: the capsule that their `__dlpack__` makes in the end."""
    torch = sys.modules.get("torch")
    base, private = getattr(torch, "Tensor", None), getattr(torch, "_C", None)
    if torch is None or not isinstance(base, type) or not issubclass(kind, base):
        return None
    make, off = (getattr(private, name, None)
                 for name in ("_to_dlpack", "_disabled_torch_function_impl"))
    plain = kind is base or (off is not None and kind.__torch_function__ is off)
    if make is None or not plain or kind.__dlpack__ is not base.__dlpack__:
        return None
    strided = torch.strided

    def look(tensor: Any) -> Any:
        if tensor.requires_grad or tensor.is_conj() or tensor.layout is not strided \
                or not (tensor.is_cpu or tensor.is_cuda):
            return None  # __dlpack__ says why not
        return make(tensor)

    return look


def torch_makers() -> tuple[Any, ...]:
    """torch's functions of (shape, strides, dtype) that make memory on the CPU and on the GPU in use, what
    tells that one's number, each None where there is none, and torch's float32, bfloat16 and float16."""
    torch = sys.modules["torch"]
    private = getattr(torch, "_C", None)
    makers = getattr(getattr(private, "_dynamo", None), "guards", None)
    current = getattr(private, "_cuda_getDevice", None)
    on_gpu = None if current is None else getattr(makers, "_empty_strided_cuda", None)
    return (getattr(makers, "_empty_strided_cpu", None), on_gpu,
            current, torch.float32, torch.bfloat16, torch.float16)


def cast(array: Any, name: str) -> Any:
    """A contiguous array of another dtype, made by its own framework where it lies."""
    if framework_of(array) == "torch":
        import torch
        return array.to(getattr(torch, name)).contiguous()
    if framework_of(array) == "mstarc":
        return array.to(name)
    if framework_of(array) == "cupy":
        import cupy
        return cupy.ascontiguousarray(array.astype(_namespace_dtype(cupy, name)))
    if hasattr(array, "__array_namespace__"):
        space = array.__array_namespace__()
        return space.astype(array, _namespace_dtype(space, name))
    raise TypeError(f"{type(array)!r} cannot be cast to {name} by this package; cast it first")


def _namespace_dtype(space: Any, name: str) -> Any:
    found = getattr(space, name, None)
    if found is None:
        raise TypeError(f"{space.__name__} has no {name}; pass q_data_type that it has")
    return found


def _make(array: Any, shape: tuple[int, ...], name: str, maker: str) -> Any:
    framework = framework_of(array)
    if framework == "torch":
        import torch
        return getattr(array, "new_" + maker)(shape, dtype=getattr(torch, name))
    if framework == "numpy":
        import numpy
        if name != "bfloat16":
            return getattr(numpy, maker)(shape, dtype=name)
        return getattr(numpy, maker)(shape, dtype=array.dtype) if array.dtype.name == name else None
    if framework == "cupy":
        return _make_of_cupy(array, shape, name, maker)
    return None


def _make_of_cupy(array: Any, shape: tuple[int, ...], name: str, maker: str) -> Any:
    cupy = sys.modules["cupy"]
    dtype, index = _namespace_dtype(cupy, name), array.data.device_id
    make = cupy.ndarray if maker == "empty" else cupy.zeros
    if index == cupy.cuda.runtime.getDevice():
        return make(shape, dtype)
    with cupy.cuda.Device(index):
        return make(shape, dtype)


def empty_like(array: Any, shape: tuple[int, ...], name: str) -> Any:
    """A writable contiguous array of array's framework and device; None where there is none."""
    return _make(array, shape, name, "empty")


def zeros_like(array: Any, shape: tuple[int, ...], name: str) -> Any:
    """The same, of zeros."""
    return _make(array, shape, name, "zeros")


def adopt(array: Any, made: Any) -> Any:
    """made, a Tensor of this package, as an array of array's framework where one takes it."""
    if framework_of(array) in _JAX:
        import jax
        return jax.dlpack.from_dlpack(made)
    if hasattr(array, "__array_namespace__"):
        space = array.__array_namespace__()
        if hasattr(space, "from_dlpack") and framework_of(array) != "numpy":
            return space.from_dlpack(made)
    return made
