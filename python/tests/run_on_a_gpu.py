"""The package's torch tests on cuda:0, with the extension of a build: what `make check-gpu` runs.

    python run_on_a_gpu.py BUILD

Where they cannot run (no torch, no pytest, no card, no CUDA in the library) it says NOT RUN and why,
and answers 0, so that the tests in C before it count. Once they run, a skipped test is a failure.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
PROBE = """
import importlib.util, sys
for name in ("torch", "pytest", "numpy", "hypothesis"):
    if importlib.util.find_spec(name) is None:
        sys.exit(f"no module {name} in {sys.executable}")
import torch, mstarc
if not torch.cuda.is_available():
    sys.exit("torch finds no GPU")
mstarc.device_info("cuda:0")
"""


def main(build):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(SOURCE / "mstarc", folder / "mstarc",
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        extension = pathlib.Path(build) / "python" / "_core.abi3.so"
        if not extension.exists():
            print(f"python on cuda:0: NOT RUN: {extension} is not built")
            return 0
        shutil.copy(extension, folder / "mstarc")
        path = os.pathsep.join([str(folder), str(SOURCE / "tests")])
        environment = dict(os.environ, PYTHONPATH=path, MSTAR_TEST_NO_SKIPS="1",
                           PYTHONDONTWRITEBYTECODE="1")
        probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True,
                               text=True)
        if probe.returncode != 0:
            why = probe.stderr.strip().splitlines()[-1:] or ["no reason given"]
            print(f"python on cuda:0: NOT RUN: {why[0]}")
            return 0
        return subprocess.run([sys.executable, "-m", "pytest", "-q", SOURCE / "tests" / "with_torch"],
                              env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
