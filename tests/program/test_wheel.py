"""The Python package as a user gets it: built, looked into, installed alone, tested.

Builds the wheel from python/ with the build backend of the tests' own environment (nothing is
fetched), checks its name, contents and symbols, installs it into a new virtual environment that has
nothing else, imports it there, and then runs python/tests and python/examples in it. Under the
address sanitizer the extension of the build is tested in place of a wheel.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

BUILD = pathlib.Path(os.environ["MSTAR_TEST_BUILD"])
SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
SANITIZE = os.environ.get("MSTAR_TEST_SANITIZE", "")
MODEL = pathlib.Path(os.environ.get("MSTAR_TEST_MODEL", ""))
VERSION = (SOURCE / "VERSION").read_text().strip()


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{command} failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build(folder):
    """The build folder is kept, so that a second run compiles what changed."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
        "--no-build-isolation", "--no-deps", "--no-index", "-C", f"build-dir={BUILD / 'wheel-build'}",
        "-w", folder, SOURCE / "python")
    wheels = list(folder.glob("*.whl"))
    assert len(wheels) == 1, wheels
    return wheels[0]


def check_name_and_contents(wheel):
    assert re.fullmatch(rf"mstarc-{re.escape(VERSION)}-cp311-abi3-linux_\w+\.whl", wheel.name), wheel
    names = zipfile.ZipFile(wheel).namelist()
    package = SOURCE / "python" / "mstarc"
    for path in package.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".pyi", ".typed"):
            assert str(path.relative_to(SOURCE / "python")) in names, path
    assert "mstarc/_core.abi3.so" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for name in names:  # no script, no header, no test, no stray library
        assert re.match(rf"mstarc(/|-{re.escape(VERSION)}\.dist-info/)", name), name
        assert "test" not in name and not name.endswith("entry_points.txt"), name
    return [name for name in names if name.endswith(".so") or ".so." in name]


def check_symbols(extension):
    """The library is inside and hidden: hosts that have another libmstar do not meet ours."""
    defined = [line.split()[-1] for line in run("nm", "-D", "--defined-only", extension).splitlines()]
    assert defined == ["PyInit__core"], defined
    dynamic = run("readelf", "-d", extension)
    needed = re.findall(r"NEEDED.*\[([^\]]+)\]", dynamic)
    system = re.compile(r"lib(c|m|pthread)\.so\.\d+|ld-linux.*|libgcc_s\.so\.1")
    carried = {path.name for path in (extension.parent / "_libs").iterdir()}
    assert {name for name in needed if not system.fullmatch(name)} == carried, (needed, carried)
    assert re.search(r"R(UN)?PATH.*\[\$ORIGIN/_libs\]", dynamic), dynamic
    for line in run("ldd", extension).splitlines():
        name = line.split()[0]
        assert name not in carried or str(extension.parent / "_libs") in line, line


def new_environment(folder, wheel):
    """A virtual environment with the wheel and nothing else, not even pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install",
        "--quiet", "--no-deps", "--no-index", wheel)
    bare = run(python, "-c", "import mstarc, importlib.util as u; "
               "print(mstarc.__file__, u.find_spec('numpy'), u.find_spec('torch'))", cwd=folder)
    assert str(folder) in bare and bare.split()[1:] == ["None", "None"], bare
    return python


def site_packages(python):
    return pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def test_environment():
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONFAULTHANDLER="1")
    if (MODEL / "config.json").is_file() and (BUILD / "mstar").exists():
        environment["MSTAR_TEST_NO_SKIPS"] = "1"
    return environment


def run_tests(python, environment, cwd):
    done = run(python, "-m", "pytest", "-q", "--tb=short", "--ignore", SOURCE / "python/tests/with_torch",
               "--ignore", SOURCE / "python/tests/with_jax", "--ignore", SOURCE / "python/tests/with_cupy",
               "--ignore", SOURCE / "python/tests/on_cuda",
               SOURCE / "python" / "tests", env=environment, cwd=cwd)
    summary = done.strip().splitlines()[-1]
    passed = re.search(r"(\d+) passed", summary)
    assert passed and int(passed.group(1)) > 400, summary
    print(summary)


def run_examples(python, environment, cwd):
    for example in sorted((SOURCE / "python" / "examples").glob("*.py")):
        arguments = [MODEL] if "embed" in example.name else []
        if arguments and not (MODEL / "config.json").is_file():
            continue
        print(run(python, example, *arguments, env=environment, cwd=cwd))


def sanitized(folder):
    """The build's own extension beside the package's sources."""
    shutil.copytree(SOURCE / "python" / "mstarc", folder / "mstarc",
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(BUILD / "python" / "_core.abi3.so", folder / "mstarc")
    preload = [run("gcc", f"-print-file-name={name}").strip() for name in ("libasan.so", "libubsan.so")]
    return dict(test_environment(), LD_PRELOAD=":".join(preload), PYTHONPATH=str(folder),
                ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1", PYTHONMALLOC="malloc",
                MSTAR_TEST_EXAMPLES="30")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        if SANITIZE:
            run_tests(sys.executable, sanitized(folder), folder)
            return
        wheel = build(folder)
        check_name_and_contents(wheel)
        python = new_environment(folder / "environment", wheel)
        check_symbols(site_packages(python) / "mstarc" / "_core.abi3.so")
        # the tests' own packages, from the environment that runs this
        (site_packages(python) / "tests.pth").write_text(f"{site_packages(sys.executable)}\n")
        environment = test_environment()
        run_examples(python, environment, folder)
        run_tests(python, environment, folder)


if __name__ == "__main__":
    main()
