#!/usr/bin/env python3
"""What the Python package adds to a call of the C library: microseconds of plan and run.

    python bench/python_overhead.py --library build/release/libmstar.so

The layout is so small (four segments of one token, one head of 8) that the call itself is all there
is to see. The C call is timed through ctypes with arguments that were made before, less what ctypes
takes to hand the same arguments to a function that does nothing; one thread inside, so that no other is woken. Needs the
package and numpy; torch's tensors are timed where torch is there. Prints a Markdown table of medians.
"""
import argparse
import ctypes
import os
import statistics
import time
import types

os.environ.setdefault("MSTAR_NUM_THREADS", "1")

import numpy as np  # noqa: E402

from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper  # noqa: E402

SEGMENTS, HEADS, DIM = 4, 1, 8
OFFSETS = list(range(SEGMENTS + 1))


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("kind", ctypes.c_int),
                ("index", ctypes.c_int32), ("rank", ctypes.c_int32), ("shape", ctypes.c_int64 * 8),
                ("strides", ctypes.c_int64 * 8)]


def median_us(call, repeats):
    """Median over groups of calls of one call's microseconds."""
    groups = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        for _ in range(100):
            call()
        groups.append((time.perf_counter_ns() - begin) / 1e5)
    return statistics.median(groups)


def tensor_of(array):
    shape, strides = (ctypes.c_int64 * 8)(), (ctypes.c_int64 * 8)()
    shape[:array.ndim] = array.shape
    strides[:array.ndim] = [stride // array.itemsize for stride in array.strides]
    return Tensor(array.ctypes.data, 0, 1, 0, array.ndim, shape, strides)


class Library:
    """plan and run of the C library, arguments made once."""

    def __init__(self, path, arrays, out):
        lib = self.lib = ctypes.CDLL(path)
        device, self.wrapper = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(lib.mstar_device_open(b"cpu", None, ctypes.byref(device)))
        desc = (ctypes.c_byte * 1024)()
        lib.mstar_ragged_prefill_desc_init(desc)
        fields = ctypes.cast(desc, ctypes.POINTER(ctypes.c_int32))
        fields[1], fields[2], fields[3] = HEADS, HEADS, DIM
        fields[11] = 0  # q_data_type f32; accelerator_graph stands before it
        self.check(lib.mstar_ragged_prefill_create(device, desc, None, ctypes.c_size_t(0),
                                                   ctypes.byref(self.wrapper)))
        self.offsets = (ctypes.c_int32 * len(OFFSETS))(*OFFSETS)
        self.segments = ctypes.c_int64(SEGMENTS)
        self.tensors = [tensor_of(array) for array in (*arrays, out)]
        self.arguments = [ctypes.byref(tensor) for tensor in self.tensors]
        self.zero = ctypes.c_int(0)
        self.plan_arguments = (self.wrapper, None, self.offsets, self.segments, self.zero)
        self.run_arguments = (self.wrapper, None, *self.arguments, None)

    def check(self, status):
        if status:
            self.lib.mstar_last_error.restype = ctypes.c_char_p
            raise SystemExit(self.lib.mstar_last_error().decode())

    def plan(self):
        return self.lib.mstar_ragged_prefill_plan(*self.plan_arguments)

    def run(self):
        return self.lib.mstar_ragged_prefill_run(*self.run_arguments)

    def time(self, call, arguments, repeats):
        """A call less the same arguments handed to a function that reads none of them but one int."""
        nothing = self.lib.mstar_status_http
        return median_us(call, repeats) - median_us(lambda: nothing(self.zero, *arguments), repeats)


def measure(name, call, base, repeats):
    took = median_us(call, repeats)
    print(f"| {name} | {took:.2f} | {took - base:.2f} |")


def main():
    parser = argparse.ArgumentParser(description="what the Python package adds to a call")
    parser.add_argument("--library", default="build/release/libmstar.so", help="the C library alone")
    parser.add_argument("--repeats", type=int, default=200, help="groups of 100 calls (default 200)")
    given = parser.parse_args()
    arrays = [np.ones((SEGMENTS, HEADS, DIM), np.float32) for _ in range(3)]
    out = np.zeros_like(arrays[0])
    library = Library(given.library, arrays, out)
    library.check(library.plan())
    library.check(library.run())
    assert (out == 1).all()

    wrapper = RaggedPrefillWrapper(HEADS, HEADS, DIM, device="cpu", q_data_type="float32")
    print("| call | us | over C |\n|---|---|---|")
    plan = library.time(library.plan, library.plan_arguments, given.repeats)
    print(f"| plan in C | {plan:.2f} | |")
    for name, offsets in [("list", OFFSETS), ("numpy int32", np.array(OFFSETS, np.int32)),
                          ("numpy int64", np.array(OFFSETS))]:
        measure(f"plan, {name}", lambda: wrapper.plan(offsets), plan, given.repeats)
    run = library.time(library.run, library.run_arguments, given.repeats)
    print(f"| run in C | {run:.2f} | |")
    measure("run, numpy", lambda: wrapper.run(*arrays), run, given.repeats)
    try:
        import torch
    except ImportError:
        return
    tensors = [torch.from_numpy(array) for array in arrays]
    measure("run, torch", lambda: wrapper.run(*tensors), run, given.repeats)
    methods = [types.SimpleNamespace(__dlpack__=tensor.__dlpack__,
                                     __dlpack_device__=tensor.__dlpack_device__)
               for tensor in tensors]
    measure("run, torch, `__dlpack__` alone", lambda: wrapper.run(*methods), run, given.repeats)
    offsets = torch.tensor(OFFSETS)
    measure("plan, torch int64", lambda: wrapper.plan(offsets), plan, given.repeats)


if __name__ == "__main__":
    main()
