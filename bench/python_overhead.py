#!/usr/bin/env python3
"""What the Python package adds to a call of the C library: microseconds of plan and run.

    python bench/python_overhead.py --library build/release/libmstar.so
    python bench/python_overhead.py --library build/cuda/libmstar.so --device cuda:0

The layout is so small (four segments of one token, one head of 8) that the call itself is all there
is to see. The C call is timed through ctypes with arguments that were made before, less what ctypes
takes to hand the same arguments to a function that does nothing; one thread inside, so that no other is
woken. Needs the package and numpy; torch's tensors are timed where torch is there. On cuda:N the tensors are
torch's, and cupy's where it is there; a call gives its work to the device, which is waited for between the
groups of calls. Prints a Markdown table of medians.
"""
import argparse
import ctypes
import importlib
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("MSTAR_NUM_THREADS", "1")

import numpy as np  # noqa: E402

from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper  # noqa: E402

SEGMENTS, HEADS, DIM = 4, 1, 8
OFFSETS = list(range(SEGMENTS + 1))


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("kind", ctypes.c_int),
                ("index", ctypes.c_int32), ("rank", ctypes.c_int32), ("shape", ctypes.c_int64 * 8),
                ("strides", ctypes.c_int64 * 8)]


def nothing():
    """What there is to wait for on a processor."""


def median_us(call, repeats, wait=nothing):
    """Median over groups of calls of one call's microseconds."""
    groups = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter_ns()
        for _ in range(100):
            call()
        groups.append((time.perf_counter_ns() - begin) / 1e5)
    return statistics.median(groups)


def tensor_of(array):
    """A compact array of numpy's, or torch's on a GPU, of float32."""
    shape, strides = (ctypes.c_int64 * 8)(), (ctypes.c_int64 * 8)()
    shape[:array.ndim] = array.shape
    strides[:array.ndim] = [DIM * HEADS, DIM, 1]
    if isinstance(array, np.ndarray):
        return Tensor(array.ctypes.data, 0, 1, 0, array.ndim, shape, strides)
    return Tensor(array.data_ptr(), 0, 2, array.device.index, array.ndim, shape, strides)


class Library:
    """plan and run of the C library, arguments made once."""

    def __init__(self, path, name, arrays, out, wait):
        lib = self.lib = ctypes.CDLL(path)
        self.wait = wait
        device, self.wrapper, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.check(lib.mstar_device_open(name.encode(), None, ctypes.byref(device)))
        if name != "cpu":  # torch's current stream is the default one
            self.check(lib.mstar_stream_wrap(device, None, ctypes.byref(stream)))
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
        self.plan_arguments = (self.wrapper, stream, self.offsets, self.segments, self.zero)
        self.run_arguments = (self.wrapper, stream, *self.arguments, None)

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
        unread = self.lib.mstar_status_http
        return median_us(call, repeats, self.wait) - \
            median_us(lambda: unread(self.zero, *arguments), repeats)


class Bench:
    """Rows of the table: calls of the package beside those of the library."""

    def __init__(self, device, library, repeats, wait, quiet):
        self.wrapper = RaggedPrefillWrapper(HEADS, HEADS, DIM, device=device, q_data_type="float32")
        self.repeats, self.wait = repeats, wait
        self.base = {"plan": library.time(library.plan, library.plan_arguments, repeats),
                     "run": library.time(library.run, library.run_arguments, repeats)}
        if not quiet:
            print("| call | us | over C |\n|---|---|---|")
            for name, took in self.base.items():
                print(f"| {name} in C | {took:.2f} | |")

    def _measure(self, name, what, call):
        call()
        took = median_us(call, self.repeats, self.wait)
        print(f"| {name}, {what} | {took:.2f} | {took - self.base[name]:.2f} |", flush=True)

    def plan(self, what, offsets):
        self._measure("plan", what, lambda: self.wrapper.plan(offsets))

    def run(self, what, arrays):
        self._measure("run", what, lambda: self.wrapper.run(*arrays))


def drop_table(torch):
    """Makes torch one without the table of C functions."""
    for kind in torch.Tensor.__mro__:
        if "__dlpack_c_exchange_api__" in vars(kind):
            del kind.__dlpack_c_exchange_api__


def import_or_none(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def main():
    parser = argparse.ArgumentParser(description="what the Python package adds to a call")
    parser.add_argument("--library", default="build/release/libmstar.so", help="the C library alone")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default cpu)")
    parser.add_argument("--repeats", type=int, default=200, help="groups of 100 calls (default 200)")
    parser.add_argument("--without-table", action="store_true",
                        help="only the row of a torch without the table of C functions")
    given = parser.parse_args()
    on_cpu = given.device == "cpu"
    torch, cupy = import_or_none("torch"), None if on_cpu else import_or_none("cupy")
    if given.without_table:
        drop_table(torch)
    arrays = [np.ones((SEGMENTS, HEADS, DIM), np.float32) for _ in range(3)]
    tensors = None if torch is None else [torch.from_numpy(array).to(given.device) for array in arrays]
    out = np.zeros_like(arrays[0]) if on_cpu else torch.zeros_like(tensors[0])
    wait = nothing if on_cpu else torch.cuda.synchronize
    library = Library(given.library, given.device, arrays if on_cpu else tensors, out, wait)
    library.check(library.plan())
    library.check(library.run())
    wait()
    assert (out == 1).all()

    bench = Bench(given.device, library, given.repeats, wait, quiet=given.without_table)
    if given.without_table:
        bench.wrapper.plan(OFFSETS)
        bench.run("torch without the table", tensors)
        return
    bench.plan("list", OFFSETS)
    bench.plan("numpy int32", np.array(OFFSETS, np.int32))
    bench.plan("numpy int64", np.array(OFFSETS))
    if torch is not None:
        bench.plan("torch int64", torch.tensor(OFFSETS))
    if on_cpu:
        bench.run("numpy", arrays)
    if torch is not None:
        bench.run("torch", tensors)
        subprocess.run([sys.executable, *sys.argv, "--without-table"], check=True)
    if cupy is not None:
        bench.run("cupy", [cupy.asarray(array) for array in arrays])


if __name__ == "__main__":
    main()
