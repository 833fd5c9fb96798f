"""A small DLPack producer: tensors that live nowhere but in capsules, and lie when told to."""
import ctypes

import numpy as np

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CODES = {"f": 2, "i": 0, "u": 1, "b": 6}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Producer:
    """array, as a tensor of another framework.

    versioned: speaks DLPack 1.x, else the older struct and no max_version. change(struct) may spoil
    what is handed out. `handed` and `deleted` count.
    """

    def __init__(self, array, *, versioned=True, compact=False, code=None, device=(1, 0), version=(1, 1),
                 name=None, change=None, flags=0):
        self.array = array
        self.versioned = versioned
        self.device = device
        self.name = name or (b"dltensor_versioned" if versioned else b"dltensor")
        self.handed = self.deleted = 0
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self.deleter = _Deleter(self._delete)
        tensor = Tensor(array.ctypes.data, *device, array.ndim,
                        CODES[array.dtype.kind] if code is None else code, array.itemsize * 8, 1,
                        self.shape, None if compact else self.strides, 0)
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        self.struct = Versioned(*version, None, deleter, flags, tensor) if versioned else \
            Legacy(tensor, None, deleter)
        if change:
            change(self.struct)

    def _delete(self, pointer):
        assert pointer == ctypes.addressof(self.struct)
        self.deleted += 1

    def _capsule(self):
        self.handed += 1
        return _api.PyCapsule_New(ctypes.addressof(self.struct), self.name, None)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        if not self.versioned and "max_version" in keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        assert keywords.get("max_version", (1, 1)) >= (1, 0)
        return self._capsule()


def bfloat16(values):
    """A producer of bfloat16, which numpy has not."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16
    return Producer(bits.astype(np.uint16), code=4)


# ---- the table of C functions ---------------------------------------------------------------------

_FromObject = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tensor))
_WorkStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
                ("unused", ctypes.c_void_p * 3), ("tensor_from_object", _FromObject),
                ("current_work_stream", _WorkStream)]


def exchanging(array, major=1, device=(1, 0), stream=None):
    """An instance of a class that carries the table, and a list of what was asked. stream: the address
    that it tells as the one it works on."""
    asked = []
    producer = Producer(array, device=device)

    @_FromObject
    def fill(pointer, tensor):
        asked.append(pointer)
        tensor[0] = producer.struct.tensor
        return 0

    @_WorkStream
    def work_stream(kind, index, told):
        asked.append((kind, index))
        told[0] = stream
        return 0

    table = Table(major, 2, None, (ctypes.c_void_p * 3)(), fill,
                  _WorkStream() if stream is None else work_stream)

    class Exchanging:
        __dlpack_c_exchange_api__ = _api.PyCapsule_New(ctypes.addressof(table), b"dlpack_exchange_api",
                                                       None)
        kept = (fill, work_stream, table)
        __dlpack__ = producer.__dlpack__
        __dlpack_device__ = producer.__dlpack_device__

    return Exchanging(), asked, producer
