"""The runner of whole forwards: replayed, eager and one by one give the same bits; what callbacks
raise comes through."""
import gc
import logging
import threading
import weakref

import numpy as np
import pytest
from runner_network import DIM, HEADS, WIDTH, Boom, Network, make, packed, raw, resources, rows, run, text

import mstarc
from mstarc import ops
from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig, decode_rows_then_prompt
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper
from mstarc.model.submodule_base import NodeInputs, Submodule

# ---- whole forwards ------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("slots", [1, 2])
def test_replayed_eager_and_alone(dtype, slots):
    network = Network(dtype)
    runner = AcceleratorGraphRunner(network, [packed()], resources(dtype), num_slots=slots)
    runner.capture()
    assert runner.info["num_captured"] == 6 and not runner.failures
    assert {b["state"] for b in runner.buckets} == {"captured"}
    forwards = network.forwards
    for lengths in ([8, 8, 8], [3], [5, 0, 4], [1], [24], [2, 2, 2, 2], [3], [7, 9, 1]):
        replayed = run(runner, lengths)
        assert replayed.replayed and replayed.num_tokens == sum(lengths)
        assert replayed.num_requests == len(lengths) and list(replayed) == ["tokens", "vectors"]
        assert replayed["tokens"].shape == (sum(lengths), WIDTH)
        assert replayed["vectors"].shape == (len(lengths), WIDTH)
        kept = {name: raw(replayed, name) for name in replayed}
        eager = run(runner, lengths, eager=True)
        assert eager.miss == "disabled" and {name: raw(eager, name) for name in eager} == kept
        begin = 0
        for i, n in enumerate(lengths):
            alone = runner.run("encode", ["x"], [text(n, i)])
            whole = kept["tokens"]
            row = len(whole) // max(sum(lengths), 1)
            assert raw(alone, "tokens") == whole[begin * row:(begin + n) * row]
            begin += n
    assert network.forwards > forwards  # the eager ones
    info = runner.info
    assert info["misses"]["disabled"] == 8 == info["eager_steps"]
    assert info["replays"] == 8 + 3 + 1 + 3 + 1 + 1 + 4 + 1 + 3  # one a list, one a request


def test_a_replay_runs_no_host_code():
    calls = []
    runner = make(Network(hook=lambda where, _: calls.append(where)))
    calls.clear()
    run(runner, [4, 4])
    assert calls == ["declare_step", "preprocess"]
    run(runner, [4, 4], eager=True)
    assert calls[2:] == ["declare_step", "preprocess", "forward"]


def test_results_are_copies_and_views_alias():
    runner = make(num_slots=1)
    first = run(runner, [5])
    kept, alias = first["vectors"], first.view("vectors")
    before = kept.tolist()
    assert alias.tolist() == before
    run(runner, [6])
    assert kept.tolist() == before and alias.tolist() != before
    assert first.get("absent") is None and first.get("absent", 3) == 3
    with pytest.raises(KeyError):
        first["absent"]
    with pytest.raises(KeyError):
        first.view("absent")
    view = run(runner, [30], eager=True).view("tokens")
    before = view.tolist()
    del runner
    gc.collect()
    assert view.tolist() == before  # its memory stays as long as it does


def test_misses_have_reasons():
    runner = make()
    assert run(runner, [25]).miss == "tokens"
    assert run(runner, [1] * 5).miss == "batch_size"
    assert run(runner, []).miss == "empty" and len(run(runner, [])) == 0
    assert runner.run("other", ["a"], [text(2)]).miss == "walk"
    assert run(runner, [2], additional_key_info="guided").miss == "key_info"
    assert run(make(capture=False), [3]).miss == "not_captured"
    assert make(max_waste=1.5).run("encode", ["a"], [text(2)]).miss == "waste"


def test_keys_walks_and_methods():
    class Guided(Network):
        def forward_guided(self, engine_inputs, tensors):
            return {"x": ops.activate(self.forward_batched(engine_inputs, tensors)["tokens"], "relu")}

    configs = [packed((8,), (2,)), packed((8,), (2,), additional_key_info=("guided", 2.5),
                                          capture_forward_method="forward_guided",
                                          replay_graph_walks=["encode", "again"])]
    runner = make(Guided(), configs)
    assert set(run(runner, [3])) == {"tokens", "vectors"}
    for eager in (False, True):
        assert set(run(runner, [3], additional_key_info=("guided", 2.5), eager=eager)) == {"x"}
    assert runner.run("again", ["a"], [text(3)], additional_key_info=("guided", 2.5)).replayed
    assert runner.run("again", ["a"], [text(3)]).miss == "key_info"


def test_sizes_that_are_listed_twice():
    """The configs keep them as they were given; each bucket is captured once."""
    config = packed((8, 16, 8), (2, 1, 2))
    assert config.capture_batch_sizes == [2, 1, 2] and config.get_total_tokens(1) == [8, 16, 8]
    runner = make(configs=[config])
    assert sorted((b["bs"], b["num_tokens"]) for b in runner.buckets) == \
        [(1, 8), (1, 16), (2, 8), (2, 16)]


def test_order_of_captures():
    """Largest first: requests, then tokens."""
    seen = [(b["bs"], b["num_tokens"]) for b in make().buckets]
    assert seen == sorted(seen, reverse=True)


def test_strided_static_inputs():
    """The varying dimension may be any; the forward sees the original layout."""
    class Columns(Submodule):
        def preprocess(self, engine_inputs, inputs):
            length = sum(one.input_seq_len for one in inputs)
            return {"x": np.arange(3 * length, dtype="float32").reshape(3, length)}

        def forward_batched(self, engine_inputs, tensors):
            return {"x": ops.embedding(self.words, self.ids[:tensors["x"].shape[1]]),
                    "shape": self.ids[:tensors["x"].shape[1]]}

        ids = mstarc.tensor(np.arange(8, dtype="int32") % 3)
        words = np.arange(6, dtype="float32").reshape(3, 2)

    runner = AcceleratorGraphRunner(Columns(), [packed((8, 4), (1,), input_seq_dims={"x": 1})])
    runner.capture()
    assert runner.info["num_captured"] == 2 and run(runner, [3]).replayed


def test_many_threads():
    """Steps wait for each other; whoever shares a runner copies before the next step."""
    runner, wrong, lock = make(), [], threading.Lock()
    want = {n: raw(run(runner, [n]), "vectors") for n in range(1, 9)}

    def work(n):
        for i in range(20):
            if i % 2:
                with lock:
                    got = raw(runner.run("encode", [f"t{n}"], [text(n)]), "vectors")
                wrong.extend([n] if got != want[n] else [])
            else:  # an eager step's results are its own
                got = raw(runner.run("encode", [f"t{n}"], [text(n)], eager=True), "vectors")
                wrong.extend([n] if got != want[n] else [])

    threads = [threading.Thread(target=work, args=(n,)) for n in want]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_with_keys_of_their_own():
    """Which method an eager step takes is that step's, whatever another thread asks meanwhile."""
    class Two(Submodule):
        def preprocess(self, engine_inputs, inputs):
            return {"x": rows(3)}

        def forward_batched(self, engine_inputs, tensors):
            return {"plain": ops.activate(tensors["x"], "relu")}

        def forward_guided(self, engine_inputs, tensors):
            return {"guided": ops.activate(tensors["x"], "tanh")}

    configs = [packed((8,), (1,)), packed((8,), (1,), additional_key_info="guided",
                                          capture_forward_method="forward_guided")]
    runner, wrong = AcceleratorGraphRunner(Two(), configs), []

    def work(info):
        for i in range(60):
            got = runner.run("encode", [f"{info} {i}"], [text(3)], additional_key_info=info, eager=True)
            wrong.extend([info] if list(got) != [info or "plain"] else [])

    threads = [threading.Thread(target=work, args=(info,)) for info in (None, "guided") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_ahead():
    runner = make(num_slots=2)
    names, inputs = ["a", "b"], [text(3), text(4, 1)]
    want = raw(runner.run("encode", names, inputs, eager=True), "tokens")
    before = runner.resources["self"].info["promoted"]
    answer = []
    thread = threading.Thread(target=lambda: answer.append(runner.pre_plan("encode", names, inputs)))
    thread.start()
    thread.join()
    assert answer == ["none"]
    assert raw(runner.run("encode", names, inputs), "tokens") == want
    assert runner.resources["self"].info["promoted"] == before + 1
    assert runner.pre_plan("other", names, inputs) == "walk"
    with pytest.raises(RuntimeError, match="two slots"):
        make(num_slots=1).pre_plan("encode", names, inputs)


def test_steps_that_end_leave_a_plan_its_names():
    class Late:  # other steps run when its length is asked for, with all names known already
        tensor_inputs = text(3).tensor_inputs
        ended = [["a", "b"], ["c"]]

        @property
        def input_seq_len(self):
            while self.ended:
                names = self.ended.pop(0)
                thread = threading.Thread(target=runner.run,
                                          args=("encode", names, [text(3)] * len(names)))
                thread.start()
                thread.join()
            return 3

    declared = []
    runner = make(Network(hook=lambda place, engine_inputs: declared.append(
        (place, engine_inputs.request_ids))), num_slots=2)
    assert runner.pre_plan("encode", ["a", "b"], [Late(), text(4)]) == "none"
    assert declared[-1] == ("declare_step", ["a", "b"])


def test_a_plan_has_no_leases_of_the_step_that_runs():
    leases = {}

    def hook(place, engine_inputs):
        leases.setdefault(threading.current_thread().name, set()).add(engine_inputs.region_leases)
        if place == "forward" and hook.armed:
            thread = threading.Thread(name="ahead", target=lambda: answer.append(CALLS["pre_plan"](runner)))
            thread.start()
            thread.join()

    hook.armed, answer = False, []
    runner = make(Network(hook=hook), num_slots=2)
    leases.clear()
    hook.armed = True
    run(runner, [3], eager=True, region_leases=["tower"])
    assert answer == ["none"]
    assert leases == {threading.current_thread().name: {("tower",)}, "ahead": {()}}


# ---- what goes wrong -----------------------------------------------------------------------------

@pytest.mark.parametrize("where", ["declare_step", "preprocess", "forward"])
@pytest.mark.parametrize("eager", [False, True])
def test_exceptions_of_a_step_come_through(where, eager):
    raised = Boom("as it was")

    def hook(place, engine_inputs):
        if place == where and hook.armed:
            raise raised

    hook.armed = False
    runner = make(Network(hook=hook))
    want = raw(run(runner, [3, 4], eager=eager), "tokens")
    hook.armed = True
    if where == "forward" and not eager:
        assert raw(run(runner, [3, 4]), "tokens") == want  # a replay runs no forward
        return
    with pytest.raises(Boom) as caught:
        run(runner, [3, 4], eager=eager)
    assert caught.value is raised and caught.traceback[-1].name == "hook"
    hook.armed = False
    assert raw(run(runner, [3, 4], eager=eager), "tokens") == want


@pytest.mark.parametrize("where", ["declare_step", "preprocess", "forward"])
def test_a_failed_capture_drops_its_bucket(where, caplog):
    raised = Boom("no room for eight")

    def hook(place, engine_inputs):
        if place == where and len(engine_inputs.padded_request_ids) == 4 and hook.armed:
            raise raised

    hook.armed = True
    with caplog.at_level(logging.ERROR, "mstarc"):
        runner = make(Network(hook=hook))
    assert runner.info["num_captured"] == 3
    for bucket in runner.buckets:
        assert bucket["state"] == ("failed" if bucket["bs"] == 4 else "captured")
        assert ("Boom: no room for eight" in bucket["reason"]) == (bucket["bs"] == 4)
    assert runner.failures and all(f.exception is raised and f.bs == 4 for f in runner.failures)
    assert "served eager" in caplog.text and "no room for eight" in caplog.text
    hook.armed = False
    assert run(runner, [3, 3, 2]).miss == "not_captured"
    assert run(runner, [3]).replayed


def test_every_bucket_may_be_required(monkeypatch):
    monkeypatch.setenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS", "1")
    raised = Boom("never")

    def hook(place, engine_inputs):
        if place == "forward":
            raise raised

    with pytest.raises(RuntimeError, match="captured 0 of 6") as caught:
        make(Network(hook=hook))
    assert caught.value.__cause__ is raised
    with pytest.raises(RuntimeError, match="captured already") as caught:
        runner = make()
        assert runner.info["num_captured"] == 6
        runner.capture()
    assert caught.value.__cause__ is None


def test_buckets_share_the_pool():
    """A bucket more takes its results alone; what a forward works in is used again."""
    bytes_of = {sizes: make(configs=[packed(sizes, (4,))], num_slots=1).info["pool_bytes"]
                for sizes in ((24,), (24, 16, 8))}
    results = sum(4 * WIDTH * (n + 4) for n in (16, 8)) + 4 * 512
    assert 0 < bytes_of[24,] <= bytes_of[24, 16, 8] <= bytes_of[24,] + results + 16 * 256


def test_buckets_that_memory_does_not_hold():
    configs = [packed(sizes=(4,))]
    whole = make(configs=configs)
    info = whole.info
    assert info["num_unaffordable"] == 0 and info["total_bytes"] > info["pool_bytes"] > 0
    need = info["total_bytes"] + info["resource_bytes"]
    captured = []
    for share in (0, 0.5, 0.75, 0.9, 2):
        runner = make(configs=configs, free_bytes=int(share * need))
        states = [bucket["state"] for bucket in runner.buckets]
        captured.append(states.count("captured"))
        assert set(states) <= {"captured", "unaffordable"} and not runner.failures
        assert runner.info["num_unaffordable"] == 3 - captured[-1]
        for lengths in ([24], [8, 8, 8], [3], [2, 2, 2, 2], [1]):
            result = run(runner, lengths)
            for name in result:
                assert raw(result, name) == raw(run(whole, lengths), name)
    assert captured[0] == 0 and captured[-1] == 3 and sorted(captured) == captured
    assert len(set(captured)) >= 3
    small = make(configs=[packed(tokens=(8,), sizes=(4,))]).info
    bound = small["total_bytes"] + small["resource_bytes"]
    runner = make(configs=configs, free_bytes=bound)  # what larger buckets took has been given back
    assert [bucket["state"] for bucket in runner.buckets] == ["unaffordable"] * 2 + ["captured"]
    assert runner.info["pool_bytes"] == small["pool_bytes"] > 0
    assert make(configs=configs, free_bytes=bound - small["pool_bytes"]).info["num_captured"] == 0
    assert make(configs=configs, free_bytes=2 * need, floor_bytes=2 * need).info["num_captured"] == 0


def test_interrupts_end_a_capture():
    def hook(place, engine_inputs):
        if place == "forward":
            raise KeyboardInterrupt

    runner = make(Network(hook=hook), capture=False)
    with pytest.raises(KeyboardInterrupt):
        runner.capture()
    runner.submodule.hook = lambda *_: None
    assert not run(runner, [3]).replayed


def test_exceptions_of_configs_come_through():
    def layout(total, bs):
        if layout.armed:
            raise Boom("layout")
        return decode_rows_then_prompt(total, bs)

    def node_input(length):
        if length == 0:
            raise Boom("nothing")
        return text(length)

    layout.armed = False
    config = packed(token_layout=layout)
    layout.armed = True
    with pytest.raises(Boom, match="layout"):
        AcceleratorGraphRunner(Network(), [config], resources())
    with pytest.raises(Boom, match="nothing"):  # length 0 is how a step is padded
        AcceleratorGraphRunner(
            Network(), [PackedAcceleratorGraphConfig("encode", [8], node_input,
                                                     capture_batch_sizes=[2])], resources())


CALLS = {
    "run": lambda runner: run(runner, [3]),
    "eager": lambda runner: run(runner, [3], eager=True),
    "pre_plan": lambda runner: runner.pre_plan("encode", ["r0"], [text(3)]),
    "prepare": lambda runner: runner.prepare(),
    "capture": lambda runner: runner.capture(),
}


@pytest.mark.parametrize("inner", list(CALLS))
@pytest.mark.parametrize("outer, places", [
    ("run", {"declare_step", "preprocess"}), ("eager", {"declare_step", "preprocess", "forward"}),
    ("pre_plan", {"declare_step"}), ("prepare", {"declare_step", "preprocess", "forward"}),
    ("capture", {"declare_step", "preprocess", "forward"}),
])
def test_a_runner_is_not_entered_twice(outer, places, inner):
    """A call from inside of one would wait for itself."""
    def hook(place, engine_inputs):
        if hook.runner is not None:
            with pytest.raises(RuntimeError, match="inside of one of its own callbacks"):
                CALLS[inner](hook.runner)
            refused.add(place)

    hook.runner, refused = None, set()
    runner = make(Network(hook=hook), capture=outer not in ("prepare", "capture"), num_slots=2)
    hook.runner = runner
    CALLS[outer](runner)
    hook.runner = None
    assert refused == places
    if outer == "prepare":
        runner.capture()
    assert run(runner, [3]).replayed


@pytest.mark.parametrize("shift", ["", "x"])
def test_texts_that_are_cut_stay_texts(shift):
    """Reasons and messages have an end, which may come within a character."""
    def hook(place, engine_inputs):
        if place == "forward":
            raise Boom(shift + "\u00e9" * 400)

    runner = make(Network(hook=hook))
    assert all("Boom: " + shift + "\u00e9\u00e9" in bucket["reason"] for bucket in runner.buckets)
    runner = make(node=shift + "\u00e9" * 600, num_slots=1)
    with pytest.raises(RuntimeError, match="\u00e9\u00e9"):
        runner.pre_plan("encode", ["a"], [text(3)])


@pytest.mark.parametrize("spoil, error, message", [
    (lambda out: None, TypeError, "NoneType"),
    (lambda out: [1], TypeError, "list"),
    (lambda out: {"tokens": out["vectors"]}, ValueError, "'tokens' has shape .*one row a token"),
    (lambda out: {"vectors": out["tokens"]}, ValueError, "'vectors' has shape .*one row a request"),
    (lambda out: {"tokens": "text"}, (TypeError, AttributeError), "shape|str"),
    (lambda out: {3: out["tokens"]}, TypeError, "named 3"),
])
def test_results_that_are_none(spoil, error, message):
    class Spoilt(Network):
        def forward_batched(self, engine_inputs, tensors):
            return spoil(super().forward_batched(engine_inputs, tensors))

    runner = make(Spoilt())
    assert runner.info["num_captured"] == 0
    assert all(isinstance(failure.exception, error) for failure in runner.failures)
    with pytest.raises(error, match=message):
        run(runner, [3, 4])


def test_a_capture_refuses_copies_and_foreign_work():
    reasons = {
        "cast": lambda n, t: ops.normalize(np.zeros((t["ids"].shape[0], 4))),
        "ids": lambda n, t: ops.embedding(n.words, np.zeros(t["ids"].shape[0], "int64")),
        "columns": lambda n, t: ops.normalize(np.zeros((t["ids"].shape[0], 8), "float32")[:, ::2]),
        "eager wrapper": lambda n, t: n.eager.run(*[np.zeros((t["ids"].shape[0], 2, 4), "float32")] * 3),
    }
    for what, work in reasons.items():
        class Bad(Network):
            def forward_batched(self, engine_inputs, tensors, work=work):
                made = work(self, tensors)
                return made.reshape(tensors["ids"].shape[0], -1)

        network = Bad()
        network.eager = RaggedPrefillWrapper(2, 2, 4, device="cpu", q_data_type="float32")
        network.eager.plan([0])
        runner = make(network)
        assert runner.info["num_captured"] == 0, what
        assert runner.failures, what


@pytest.mark.parametrize("call, error, message", [
    (lambda r: r.run("encode", ["a"], []), ValueError, "1 request ids and 0 inputs"),
    (lambda r: r.run("encode", ["a", "a"], [text(1)] * 2), ValueError, "twice"),
    (lambda r: r.run("encode", ["a"], [object()]), AttributeError, "input_seq_len"),
    (lambda r: r.run("encode", ["a"], [NodeInputs(input_seq_len=-4)]), ValueError, "input_seq_len is -4"),
    (lambda r: r.run(None, ["a"], [text(1)]), TypeError, "str"),
    (lambda r: r.capture(), RuntimeError, "captured already"),
    (lambda r: r.prepare(), RuntimeError, "prepared already"),
    (lambda r: r.resources["self"].run(*[np.zeros((1, HEADS, DIM), "float32")] * 3), RuntimeError,
     "inside the forward"),
    (lambda r: ops.rows_of_requests().__enter__(), RuntimeError, "inside the forward"),
])
def test_refused_calls(call, error, message):
    runner = make()
    with pytest.raises(error, match=message):
        call(runner)
    assert run(runner, [3]).replayed


@pytest.mark.parametrize("kwargs, error, message", [
    ({"num_slots": 65}, ValueError, "num_slots"), ({"num_warmups": -1}, ValueError, "num_warmups"),
    ({"configs": ["x"]}, AttributeError, "get_config_type"), ({"num_slots": 0}, ValueError, "num_slots"),
])
def test_refused_runners(kwargs, error, message):
    with pytest.raises(error, match=message):
        make(**kwargs)


def test_nothing_leaks():
    gc.collect()
    before = mstarc.memory_info()["live_bytes"]
    gone = []
    for _ in range(3):
        network = Network()
        runner = make(network)
        network.runner = runner  # a circle through the submodule
        network.stash = run(runner, [3]).view("tokens")  # and one through its memory
        gone.append(weakref.ref(network))
        del network, runner
    gc.collect()
    assert all(one() is None for one in gone)
    assert mstarc.memory_info()["live_bytes"] <= before


# ---- wrappers under a capture --------------------------------------------------------------------

def test_graph_mode_wrappers_are_recorded():
    """A wrapper of the author's own, planned in preprocess."""
    wrapper = RaggedPrefillWrapper(1, 1, 4, 4, 32, device="cpu", accelerator_graph=True,
                                   q_data_type="float32")

    class Planned(Submodule):
        def preprocess(self, engine_inputs, inputs):
            lengths = [one.input_seq_len for one in inputs]
            wrapper.plan(np.cumsum([0, *lengths]))
            return {"x": rows(sum(lengths)).reshape(-1, 1, 4)}

        def forward_batched(self, engine_inputs, tensors):
            return wrapper.run(tensors["x"], tensors["x"], tensors["x"])

    runner = AcceleratorGraphRunner(Planned(), [packed((8, 16), (4,))])
    runner.capture()
    assert runner.info["num_captured"] == 2
    plain = RaggedPrefillWrapper(1, 1, 4, device="cpu", q_data_type="float32")
    for lengths in ([3, 4], [16], [1, 1, 1, 1]):
        result = run(runner, lengths)
        plain.plan(np.cumsum([0, *lengths]))
        x = rows(sum(lengths)).reshape(-1, 1, 4)
        assert result.replayed and raw(result, "x") == plain.run(x, x, x).tobytes()
