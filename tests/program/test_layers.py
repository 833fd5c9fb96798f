"""The tree keeps the layer order, and the check that says so sees each kind of fault."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("MSTAR_TEST_SOURCE", pathlib.Path(__file__).parents[2]))
SCRIPT = SOURCE / "tools" / "check_layers.py"


def run(root):
    done = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, text=True)
    return done.returncode, done.stdout


# path -> content, and what the fault's line must say
PLANTED = [
    ("src/base/upward.c", '#include "device/backend.h"\n', "base includes device/backend.h"),
    ("src/attn/sibling.c", '#include "ops/ops.h"\n', "attn includes ops/ops.h"),
    ("src/model/direct.c", '#include "cpu/cpu.h"\n', "reached through device/backend.h"),
    ("src/cpu/above.c", '#include "attn/attn.h"\n', "stands on base and device only"),
    ("src/model/inner.c", '#include "ops/panel.h"\n', "take ops/ops.h"),
    ("src/kitchen/sink.c", '#include "base/base.h"\n', "not in the layer order"),
    ("programs/peek.c", '#include "base/base.h"\n', "is internal"),
    ("examples/peek_too.c", '#include "model/model.h"\n', "is internal"),
    ("include/mstar/extra.h", "#include <jansson.h>\n", "nor a standard one"),
    ("src/base/memory.c", "void *f(void) { return malloc(1); }\n", "malloc() is called"),
    ("src/ops/loud.c", 'void f(void) { printf("x"); }\n', "printf() is called"),
    ("src/ops/louder.c", "void *f = stderr;\n", "stderr is used"),
    ("src/attn/reader.c", 'char *f(void) { return getenv("X"); }\n', "getenv() is called"),
    ("src/attn/checker.c", "void f(int x) { assert(x); }\n", "assert() is called"),
    ("src/base/deep/file.c", "int x;\n", "as deep as the tree goes"),
    ("src/ops/long.c", "int x;\n" * 601, "601 lines"),
    ("tools/long.py", "pass\n" * 601, "601 lines"),
    ("tests/unit/status.c", "int x;\n", "its name is that of"),
]

# what must pass: comments, strings and longer names are not calls
FINE = {
    "src/ops/quiet.c": '/* malloc(1) */ // exit(1)\nconst char *x = "printf(";\nint my_free(int a);\n'
                       "_Static_assert(1, \"\");\n#include <stdio.h>\n",
    "src/cpu/body_long.c": "int x;\n" * 900,
}


def main():
    code, text = run(SOURCE)
    assert code == 0, text

    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("src", "include"):
            shutil.copytree(SOURCE / name, root / name)
        (root / "src/ops").mkdir(exist_ok=True)
        (root / "src/ops/panel.h").write_text("int mst_panel;\n")
        (root / "src/base/base.h").exists() or sys.exit("no src/base/base.h to stand on")
        for path, content in FINE.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        code, text = run(root)
        assert code == 0, text
        for path, content, says in PLANTED:
            place = root / path
            fresh = not place.parent.exists()
            place.parent.mkdir(parents=True, exist_ok=True)
            if path == "tests/unit/status.c":
                assert (root / "src/base/status.c").exists()
            place.write_text(content)
            code, text = run(root)
            assert code == 1 and says in text, (path, code, text)
            place.unlink()
            if fresh:
                shutil.rmtree(place.parent)
        code, text = run(root)
        assert code == 0, text
    print(f"the tree keeps the order; {len(PLANTED)} planted faults were seen")


if __name__ == "__main__":
    main()
