"""An installed tree serves C programs through pkg-config and through find_package.

Installs the build into a folder, moves that folder (both package files must find their prefix from
where they lie), then builds one small program against it in four ways and runs each.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(os.environ["MSTAR_TEST_BUILD"])
SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
SANITIZE = os.environ.get("MSTAR_TEST_SANITIZE", "")
SANITIZE_FLAGS = [f"-fsanitize={SANITIZE}"] if SANITIZE else []

# Opens a device and asks for a tokenizer that is not there, so that the link needs all areas.
PROGRAM = r"""
#include <mstar.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    mstar_device *device = NULL;
    mstar_tokenizer *tokenizer = NULL;
    if (mstar_device_open("cpu", NULL, &device) != MSTAR_OK)
        return 1;
    if (mstar_tokenizer_load("/nowhere/at/all", &tokenizer) != MSTAR_NOT_FOUND)
        return 2;
    if (strstr(mstar_last_error(), "/nowhere/at/all") == NULL)
        return 3;
    printf("%s %s\n", mstar_version(), mstar_status_name(MSTAR_NOT_FOUND));
    return mstar_device_close(device) == MSTAR_OK ? 0 : 4;
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(mstar {version} REQUIRED)
add_executable(with_shared user.c)
target_link_libraries(with_shared PRIVATE mstar::mstar)
add_executable(with_static user.c)
target_link_libraries(with_static PRIVATE mstar::mstar_static)
"""


def run(*command, cwd=None, env=None, ok=True):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL)
    if ok and done.returncode != 0:
        sys.exit(f"{command} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def check_output(done, how):
    version = (SOURCE / "VERSION").read_text().strip()
    assert done.stdout == f"{version} NOT_FOUND\n", (how, done.stdout, done.stderr)
    print(f"{how}: ok")


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        run("cmake", "--install", BUILD, "--prefix", work / "first")
        prefix = work / "moved here"  # a space in the path as well
        shutil.move(work / "first", prefix)
        library = next(prefix.glob("lib*/**/libmstar.so")).parent
        (work / "user.c").write_text(PROGRAM)
        version = (SOURCE / "VERSION").read_text().strip()

        # pkg-config, shared and static. Its output is meant for a shell, so a shell gets it.
        env = {"PKG_CONFIG_PATH": str(library / "pkgconfig")}
        assert run("pkg-config", "--modversion", "mstar", env=env).stdout.strip() == version
        build = "eval \"cc -std=c11 -Wall -Werror {flags} user.c -o user_{kind} " \
                     "$(pkg-config --cflags {static} --libs mstar{swap})\""
        for kind, static, swap in (("shared", "", ""),
                                   ("static", "--static", " | sed 's/-lmstar/-l:libmstar.a/'")):
            run("sh", "-c", build.format(flags=" ".join(SANITIZE_FLAGS), kind=kind,
                                              static=static, swap=swap), cwd=work, env=env)
            done = run(work / f"user_{kind}", env={"LD_LIBRARY_PATH": str(library)})
            check_output(done, f"pkg-config, {kind}")

        # find_package
        (work / "CMakeLists.txt").write_text(CMAKE.format(version=version))
        flags = " ".join(SANITIZE_FLAGS)
        run("cmake", "-S", work, "-B", work / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_C_FLAGS={flags}")
        run("cmake", "--build", work / "build")
        for kind in ("shared", "static"):
            check_output(run(work / "build" / f"with_{kind}"), f"find_package, {kind}")

        # another major version is refused
        (work / "CMakeLists.txt").write_text(CMAKE.format(version=f"{int(version.split('.')[0]) + 1}.0"))
        refused = run("cmake", "-S", work, "-B", work / "refused", f"-DCMAKE_PREFIX_PATH={prefix}",
                      ok=False)
        assert refused.returncode != 0 and "mstar" in refused.stderr, refused.stderr

        # the program and its man page
        said = run(prefix / "bin" / "mstar", "version").stdout
        assert version in said, said
        page = next(prefix.glob("**/man1/mstar.1")).read_text()
        assert page.startswith(".TH"), page[:80]
        for name in ("embed", "similar", "tokenize", "info"):
            assert name in page, f"the man page lacks {name}"
        print("program and man page: ok")


if __name__ == "__main__":
    main()
