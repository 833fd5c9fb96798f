"""What is made and dropped on cuda:0 leaves no memory behind, the library's or the device's."""
import gc

import numpy as np
import pytest
from gpu_mark import needs_a_gpu

torch = pytest.importorskip("torch")

import mstarc  # noqa: E402
from mstarc import ops  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import (  # noqa: E402
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
)

pytestmark = needs_a_gpu("torch", torch.cuda.is_available())

GPU = "cuda:0"
SLACK = 4 << 20  # the driver takes memory in pieces of 2 MiB


def held():
    """Bytes that the library holds, and that are taken on the device beside torch's pool."""
    gc.collect()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return mstarc.memory_info()["live_bytes"], total - free - torch.cuda.memory_reserved()


def repeated(make, times):
    """What leaks grows each time; other processes on the card may take memory once."""
    for _ in range(20):
        make()
    for _ in range(3):
        ours, device = held()
        for _ in range(times):
            make()
        now = held()
        assert now[0] == ours
        if now[1] <= device + SLACK:
            return
    raise AssertionError(f"{times} times take {now[1] - device} bytes of the device")


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("cls", [RaggedPrefillWrapper, RaggedCrossPrefillWrapper, PrefixedPrefillWrapper])
def test_wrappers(cls, graph):
    more = {"max_num_segments": 8, "max_total_tokens": 64, "accelerator_graph": True} if graph else {}
    q, k, v = (torch.randn(64, heads, 64, device=GPU, dtype=torch.bfloat16) for heads in (4, 2, 2))
    offsets = [[0, 30, 64]] * (1 if cls is RaggedPrefillWrapper else 2)

    def make():
        wrapper = cls(4, 2, 64, **more)
        wrapper.plan(*offsets)
        wrapper.run(q, k, v)

    repeated(make, 1000)


def test_refusals():
    """What goes wrong lets go of what it has taken."""
    wrapper = RaggedPrefillWrapper(4, 2, 64)
    wrapper.plan([0, 9])
    q, k, v = (torch.randn(9, heads, 64, device=GPU) for heads in (4, 2, 2))

    def make():
        for given in ((q, k, v.cpu()), (q, k, v[:, :1]), (q[:8], k, v), (q, k, None)):
            with pytest.raises((ValueError, TypeError)):
                wrapper.run(*given)
        with pytest.raises(ValueError):
            RaggedPrefillWrapper(3, 2, 64)
        with pytest.raises(ValueError):
            wrapper.plan(torch.tensor([0, 9, 3], device=GPU))

    repeated(make, 200)


def test_tensors_and_operations():
    weight = np.ones((64, 64), "float32")

    def make():
        linear = ops.Linear(weight, device=GPU)
        x = mstarc.tensor(weight, "bfloat16", device=GPU)
        made = ops.normalize(linear(x))
        torch.from_dlpack(made)
        made[1:].clone().cpu()

    repeated(make, 300)
