"""The package's tests on cuda:0, with the extension of a build: what `make check-gpu` runs.

    python run_on_a_gpu.py BUILD

Builds the extension in BUILD, a folder that cmake has configured with CUDA, and runs tests/with_torch,
tests/on_cuda and, where this Python has cupy and a jax for GPUs, tests/with_cupy and tests/with_jax on
it; a line says where it has not. Answers 0 where every test ran and passed, and NOT_RUN where this Python
has no torch, after a line that says so: only that may be left out. Anything else that keeps the tests
from running (the extension does not build, another module or the card is missing) is a failure, and so is
a skipped test.
"""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

NOT_RUN = 77
SOURCE = pathlib.Path(__file__).resolve().parents[1]
PROBE = """
import importlib.util, sys
for name in ("pytest", "numpy", "hypothesis"):
    if importlib.util.find_spec(name) is None:
        sys.exit(f"no module {name} in {sys.executable}")
import torch, mstarc
if not torch.cuda.is_available():
    sys.exit("torch finds no GPU")
mstarc.device_info("cuda:0")
"""


FRAMEWORKS = {  # that may be missing: the folder of their tests, and what shows that they work there
    "cupy": ("with_cupy", "import cupy; assert cupy.cuda.is_available()"),
    "jax": ("with_jax", "import jax; jax.devices('gpu')"),
}


def failed(why):
    print(f"python on cuda:0: FAILED: {why}")
    return 1


def build_extension(build):
    """The extension's path; None where it does not build, after what the tools said."""
    for command in (["cmake", "-DMSTAR_PYTHON=ON", build],
                    ["cmake", "--build", build, "-j", str(os.cpu_count() or 1), "--target",
                     "mstarc_core"]):
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if answer.returncode != 0:
            print("\n".join(answer.stdout.splitlines()[-20:]))
            return None
    extension = pathlib.Path(build) / "python" / "_core.abi3.so"
    return extension if extension.exists() else None


def main(build):
    if importlib.util.find_spec("torch") is None:
        print(f"python on cuda:0: NOT RUN: torch is not installed for {sys.executable}")
        return NOT_RUN
    extension = build_extension(build)
    if extension is None:
        return failed(f"the extension does not build in {build}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(SOURCE / "mstarc", folder / "mstarc",
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copy(extension, folder / "mstarc")
        path = os.pathsep.join([str(folder), str(SOURCE / "tests")])
        environment = dict(os.environ, PYTHONPATH=path, MSTAR_TEST_NO_SKIPS="1",
                           PYTHONDONTWRITEBYTECODE="1")
        probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True,
                               text=True)
        if probe.returncode != 0:
            why = probe.stderr.strip().splitlines()[-1:] or ["no reason given"]
            return failed(why[0])
        folders = ["with_torch", "on_cuda"]
        for framework, (tests, works) in FRAMEWORKS.items():
            if subprocess.run([sys.executable, "-c", works], capture_output=True).returncode == 0:
                folders.append(tests)
            else:
                print(f"python on cuda:0: {framework} finds no GPU, or is not installed, for "
                      f"{sys.executable}: its tests are NOT RUN")
        return subprocess.run([sys.executable, "-m", "pytest", "-q",
                               *(SOURCE / "tests" / folder for folder in folders)],
                              env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
