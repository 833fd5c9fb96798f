"""Runners over the same managers, and what is told while one of them captures."""
import gc
import threading
import time

import pytest
from runner_network import Boom, Network, make, packed, raw, run

from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner


@pytest.mark.parametrize("fails", [False, True])
def test_runners_share_resources(fails):
    """Buckets of equal keys share wrappers, which stay while one of the runners is there."""
    def hook(where, engine_inputs):
        if hook.fails and where == "forward":
            raise Boom(where)

    hook.fails = False
    network = Network(hook=hook)
    first = make(network)
    want = {n: raw(run(first, [n], eager=True), "vectors") for n in (3, 9, 20)}
    wrappers = first.resources["self"].info["graph_wrappers"]
    second = AcceleratorGraphRunner(network, [packed()], first.resources, node="second")
    hook.fails = fails
    second.capture()
    hook.fails = False
    assert second.info["num_captured"] == (0 if fails else 6)
    for runner in (first, second) * 2:
        for n, vectors in want.items():
            assert raw(run(runner, [n]), "vectors") == vectors
    del second, runner
    gc.collect()
    assert first.resources["self"].info["graph_wrappers"] == wrappers
    for n in (20, 3, 9) * 2:
        result = run(first, [n])
        assert result.replayed and raw(result, "vectors") == want[n]
    kept = first.resources
    del first, result
    gc.collect()
    assert kept["self"].info["graph_wrappers"] == 0


def test_a_query_waits_for_captures():
    """What runner.info and buckets tell meanwhile, from another thread, is of one moment."""
    told, threads = [], []

    def hook(where, engine_inputs):
        assert len(runner.buckets) == runner.info["num_buckets"] == 6  # inside: of the moment
        threads.append(threading.Thread(target=lambda: told.append(
            (runner.info["num_captured"], {one["state"] for one in runner.buckets}))))
        threads[-1].start()
        time.sleep(0.001)  # time enough for an answer, were there one

    network = Network(hook=lambda where, engine_inputs: None)
    runner = make(network, capture=False)
    runner.prepare()
    network.hook = hook
    runner.capture()
    network.hook = lambda where, engine_inputs: None
    for thread in threads:
        thread.join()
    assert told and all(one == (6, {"captured"}) for one in told)
