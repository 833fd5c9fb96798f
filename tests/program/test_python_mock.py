"""The Python package on cuda:0 over the mock driver: python/tests/on_cuda with the extension that the
build made for it.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(os.environ["MSTAR_TEST_BUILD"])
SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])


def main():
    extension = BUILD / "tests" / "python_mock" / "_core.abi3.so"
    if not extension.exists():
        sys.exit(f"{extension} is not there")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(SOURCE / "python" / "mstarc", folder / "mstarc",
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copy(extension, folder / "mstarc")
        path = os.pathsep.join([str(folder), str(SOURCE / "python" / "tests")])
        environment = dict(os.environ, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1",
                           PYTHONFAULTHANDLER="1", MSTAR_TEST_NO_SKIPS="1")
        return subprocess.run([sys.executable, "-m", "pytest", "-q", "--tb=short",
                               SOURCE / "python" / "tests" / "on_cuda"], env=environment,
                              cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
