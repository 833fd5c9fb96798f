"""What is read in place and what is copied, and that other threads run meanwhile."""
import contextlib
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest
from tiny_encoder import make_encoder

import mstarc
from mstarc import ops
from mstarc.engine.resources.attn.ragged.wrappers import RaggedCrossPrefillWrapper, RaggedPrefillWrapper

KEYS, DIM = 60_000, 64


def cross(dtype="float32"):
    wrapper = RaggedCrossPrefillWrapper(1, 1, DIM, device="cpu", q_data_type=dtype)
    wrapper.plan([0, 1], [0, KEYS])
    return wrapper


def arrays(dtype="float32"):
    """One row of queries, so that k and v are all the memory there is; views of one array."""
    fused = np.ones((KEYS, 2, DIM), dtype)
    return fused[:1, :1], fused[:, :1], fused[:, 1:]


def copied_bytes(call):
    """Memory of the interpreter's and of the library's that a call takes beyond what it gives back."""
    call()
    before = mstarc.memory_info()["peak_bytes"]
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] + mstarc.memory_info()["peak_bytes"] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_views_are_read_in_place(dtype):
    q, k, v = arrays(dtype)
    assert copied_bytes(lambda: cross(dtype).run(q, k, v)) < k.nbytes / 8
    for x in (q, k, v):
        x.flags.writeable = False
    assert copied_bytes(lambda: cross(dtype).run(q, k, v)) < k.nbytes / 8


def test_what_is_cast_is_copied():
    """That the measure above sees a copy."""
    q, k, v = arrays("float64")
    assert copied_bytes(lambda: cross().run(q, k, v)) > k.nbytes / 2


@contextlib.contextmanager
def another_thread():
    """Gives a count of the turns that another thread had: it has one whenever this one lets go of the
    interpreter, which nobody makes it do."""
    turns, over, interval = [0], threading.Event(), sys.getswitchinterval()

    def take_turns():
        while not over.is_set():
            turns[0] += 1
            time.sleep(1e-5)

    thread = threading.Thread(target=take_turns)
    sys.setswitchinterval(1000)
    thread.start()
    try:
        yield lambda: turns[0]
    finally:
        over.set()
        sys.setswitchinterval(interval)
        thread.join()


def lets_others_run(call):
    with another_thread() as turns:
        for _ in range(50):
            before = turns()
            call()
            if turns() > before:
                return True
    return False


def test_a_call_that_keeps_the_interpreter():
    """That the measure below sees one."""
    numbers = list(range(200_000))
    assert not lets_others_run(lambda: sorted(numbers))


def test_other_threads_run_meanwhile(tmp_path):
    q, k, v = arrays()
    wrapper = cross()
    assert lets_others_run(lambda: wrapper.run(q, k, v))
    offsets = np.arange(300_001)
    planned = RaggedPrefillWrapper(1, 1, DIM, device="cpu")
    assert lets_others_run(lambda: planned.plan(offsets))
    embedder = mstarc.Embedder(make_encoder(tmp_path))
    texts = ["the cat sleep " * 10] * 200
    assert lets_others_run(lambda: embedder.encode(texts))
    linear, x = ops.Linear(np.ones((512, 512), "float32")), np.ones((512, 512), "float32")
    assert lets_others_run(lambda: linear(x))
