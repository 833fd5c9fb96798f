"""The shared library exports what the public headers declare, and nothing else."""
import os
import pathlib
import re
import subprocess

SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
LIBRARY = os.environ["MSTAR_TEST_LIBRARY"]


def declared():
    names = set()
    for header in (SOURCE / "include").rglob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for declaration in re.findall(r"^MSTAR_API\s+([^;]*);", text, re.M):
            names.add(re.search(r"(mstar_\w+)\s*\(", declaration).group(1))
    return names


def exported():
    listed = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True,
                            capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    return {name for name in names if not name.startswith("_")}  # a sanitizer's own


def main():
    want, have = declared(), exported()
    assert len(want) > 50, f"only {len(want)} declarations were found"
    assert not want - have, f"declared and not exported: {sorted(want - have)}"
    assert not have - want, f"exported and not declared: {sorted(have - want)}"
    needed = subprocess.run(["readelf", "-d", LIBRARY], check=True, capture_output=True, text=True)
    soname = re.search(r"SONAME.*\[(libmstar\.so\.\d+)\]", needed.stdout)
    assert soname, "the library has no soname"
    libraries = re.findall(r"NEEDED.*\[(\S+)\]", needed.stdout)
    assert not [name for name in libraries if "cuda" in name or "cublas" in name], libraries
    print(f"{len(want)} functions, {soname.group(1)}, needs {' '.join(libraries)}")


if __name__ == "__main__":
    main()
