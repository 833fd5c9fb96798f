"""The package as a whole: imports, texts for readers, names."""
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import mstarc

BARE = """
import sys
import mstarc
from mstarc.engine.accelerator_graph_config import *
from mstarc.engine.resources.attn.ragged.dense_wrappers import *
from mstarc.engine.resources.attn.ragged.wrappers import *
from array import array
wrapper = RaggedPrefillWrapper(1, 1, 2, device="cpu", q_data_type="float32")
wrapper.plan([0, 2])
x = memoryview(array("f", [1, 2, 1, 2])).cast("B").cast("f", [2, 1, 2])
assert wrapper.run(x, x, x).tolist() == [[[1.0, 2.0]], [[1.0, 2.0]]]
loaded = [name for name in ("numpy", "torch", "jax", "cupy") if name in sys.modules]
assert not loaded, loaded
"""


def test_nothing_is_needed_to_import():
    """Not numpy, not torch: a run on a memoryview works without either."""
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ELSEWHERE = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = '''
try:
    import mstarc
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    raise AssertionError("imported")
'''
failed = interpreters.run_string(interpreters.create(), code)
assert failed is None, failed
"""


def test_subinterpreters_are_refused():
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def modules():
    for found in pkgutil.walk_packages(mstarc.__path__, "mstarc."):
        if not found.name.endswith("_core"):
            yield __import__(found.name, fromlist=["x"])


def public(module):
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                for part, value in vars(thing).items():
                    if not part.startswith("_") and (inspect.isfunction(value)
                                                     or isinstance(value, property)):
                        yield f"{module.__name__}.{name}.{part}", value


def test_everything_public_has_a_text():
    silent = [name for module in [mstarc, *modules()] for name, thing in public(module)
              if not inspect.getdoc(thing)]
    silent += [module.__name__ for module in modules() if not module.__doc__]
    assert not silent


def test_help_reads_well():
    done = subprocess.run(
        [sys.executable, "-c", "import mstarc.engine.resources.attn.ragged.wrappers as w; help(w)"],
        capture_output=True, text=True)
    assert done.returncode == 0
    for text in ("plan(self, cu_seqlens", "= mstarc.bfloat16",
                 "= mstarc.device('cuda')", "Raises:"):
        assert text in done.stdout
    assert max(map(len, inspect.getsource(mstarc).split("\n"))) <= 110


def test_versions():
    assert re.fullmatch(r"\d+\.\d+\.\d+", mstarc.__version__)
    assert mstarc.build_info().startswith(f"mstar {mstarc.__version__} ")
    info = mstarc.device_info()
    assert info["name"] == "cpu" and info["num_threads"] >= 1
    with pytest.raises(ValueError, match="tpu"):
        mstarc.device_info("tpu")
    assert set(mstarc.memory_info()) == {"live_bytes", "live_allocations", "peak_bytes"}


def test_typed():
    folder = pathlib.Path(mstarc.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists()


def test_stub_names_what_the_core_has():
    """Each public name of the extension stands in its stub, and the other way round."""
    import ast

    from mstarc import _core
    tree = ast.parse(pathlib.Path(mstarc.__file__).with_name("_core.pyi").read_text())
    stub = {node.name: node for node in tree.body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(stub) == {name for name in vars(_core) if not name.startswith("_")}
    for name, node in stub.items():
        if isinstance(node, ast.ClassDef):
            named = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            have = {part for part in vars(getattr(_core, name)) if not part.startswith("__")}
            assert {part for part in named if not part.startswith("__")} == have, name
