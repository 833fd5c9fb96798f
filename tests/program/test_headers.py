"""Each public header compiles alone as C11, C17 and C++17, with every compiler that is here."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-fsyntax-only"]
COMPILERS = [("gcc", "c", ["c11", "c17"]), ("clang", "c", ["c11", "c17"]),
             ("g++", "c++", ["c++17"]), ("clang++", "c++", ["c++17"])]


def main():
    include = SOURCE / "include"
    headers = sorted(path.relative_to(include) for path in include.rglob("*.h"))
    assert pathlib.Path("mstar.h") in headers and len(headers) >= 7, headers
    count = 0
    languages = set()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "user.c"
        for header in headers:
            # twice: the guards must hold
            source.write_text(f'#include "{header}"\n#include "{header}"\nint user;\n')
            for compiler, language, standards in COMPILERS:
                if shutil.which(compiler) is None:
                    continue
                for standard in standards:
                    done = subprocess.run(
                        [compiler, "-x", language, f"-std={standard}", *WARNINGS,
                         f"-I{include}", source], capture_output=True, text=True)
                    if done.returncode != 0:
                        sys.exit(f"{header} as {standard} with {compiler}:\n{done.stderr}")
                    count += 1
                    languages.add(language)
    assert languages == {"c", "c++"}, f"compilers were there for {languages} only"
    print(f"{len(headers)} headers, {count} compilations")


if __name__ == "__main__":
    main()
