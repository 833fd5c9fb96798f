#!/usr/bin/env python3
"""Check the layer order and the rules of the tree.

    base < device < {attn, ops} < step < graph < model < engine < programs, examples, python

A file may include its own area and the areas below it; attn and ops do not include each other.
cpu/ and cuda/ hang under device/: they include base/ and device/ only, and nobody else includes
them, since they are reached through device/backend.h. From another area a file takes that area's
one header (base/base.h, device/backend.h, attn/attn.h, ...). Programs, examples and the Python
extension include public headers only, and public headers include only each other and standard headers.

Further rules: file names are unique outside include/ (a public header may share its name with an
area's header); a file stays under 600 lines, kernels apart; the library allocates, prints, exits
and reads the environment nowhere but in the one file for it.

Prints one line a fault and exits 1, else prints one line. `--root` names another tree.
"""
import argparse
import pathlib
import re
import sys

RANK = {"base": 0, "device": 1, "attn": 2, "ops": 2, "step": 3, "graph": 4, "model": 5, "engine": 6}
BACKENDS = {"cpu", "cuda"}
AREA_HEADER = {"device": "backend.h"}  # else <area>.h
MAX_LINES = 600
STANDARD_C = {
    "assert.h", "complex.h", "ctype.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h",
    "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "time.h",
}

# name -> the files under src/ that may use it
FORBIDDEN_CALLS = {
    **{name: {"base/alloc.c"} for name in (
        "malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "strdup",
        "strndup", "asprintf", "vasprintf", "getline", "alloca")},
    "getenv": {"base/env.c"},
    "secure_getenv": {"base/env.c"},
    **{name: set() for name in (
        "printf", "fprintf", "vprintf", "vfprintf", "dprintf", "puts", "fputs", "putchar", "putc",
        "fputc", "perror", "abort", "exit", "_exit", "_Exit", "quick_exit", "assert", "raise",
        "system", "sprintf", "vsprintf", "strcpy", "strcat", "gets", "strtok", "setlocale")},
}
FORBIDDEN_WORDS = {"stdout": set(), "stderr": set()}

TREE = ("src", "include", "programs", "examples", "tests", "tools", "bench", "python")
SHARED_NAMES = {"CMakeLists.txt", "README.md", "__init__.py"}
SOURCES = {".c", ".h", ".cu", ".cuh", ".def", ".py", ".sh"}


def strip(text):
    """C text with comments and the insides of literals blanked, line numbers kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: "\n" * m.group().count("\n") or " ", text)


def includes(text):
    """(line, path, quoted) of each #include outside comments."""
    bare = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    for number, line in enumerate(bare.split("\n"), 1):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if found:
            yield number, found.group(2), found.group(1) == '"'


class Check:
    def __init__(self, root):
        self.root = root
        self.faults = []
        self.files = sorted(
            path.relative_to(root) for top in TREE for path in (root / top).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts)

    def fault(self, path, line, text):
        self.faults.append(f"{path}:{line}: {text}")

    def check_source_include(self, path, line, name):
        area = path.parts[1]
        target = name.split("/")[0]
        known = set(RANK) | BACKENDS
        if target == "mstar" or name == "mstar.h" or "/" not in name and \
                not (self.root / path.parent / name).exists():
            return  # a public or a system header
        if "/" not in name:
            self.fault(path, line, f'"{name}" is included without its area; write "{area}/{name}"')
            return
        if target not in known or target == area:
            return
        header = AREA_HEADER.get(target, target + ".h")
        if area in BACKENDS:
            if target not in ("base", "device"):
                self.fault(path, line, f"a backend includes {name}; it stands on base and device only")
                return
        elif target in BACKENDS:
            self.fault(path, line, f"{name} is included; backends are reached through device/backend.h")
            return
        elif RANK[target] >= RANK[area]:
            self.fault(path, line, f"{area} includes {name}, which does not lie below it")
            return
        if name != f"{target}/{header}":
            self.fault(path, line, f"{name} is included from {area}; take {target}/{header}")

    def check_user_include(self, path, line, name):
        """Programs and examples: public headers and their own folder's headers."""
        if name == "mstar.h" or name.startswith("mstar/"):
            return
        if name.split("/")[0] in set(RANK) | BACKENDS and "/" in name:
            self.fault(path, line, f"{name} is internal; only public headers may be included here")

    def check_public_include(self, path, line, name, quoted):
        if not (name.startswith("mstar/") if quoted else name in STANDARD_C):
            self.fault(path, line, f"{name} is neither a public header in quotes nor a standard one")

    def check_includes(self, path, text):
        for line, name, quoted in includes(text):
            top = path.parts[0]
            if top == "src":
                if len(path.parts) < 3:
                    self.fault(path, line, "a source file lies outside an area")
                elif path.parts[1] not in set(RANK) | BACKENDS:
                    self.fault(path, line, f"area {path.parts[1]} is not in the layer order")
                else:
                    self.check_source_include(path, line, name)
            elif top in ("programs", "examples", "python"):
                self.check_user_include(path, line, name)
            elif top == "include":
                self.check_public_include(path, line, name, quoted)

    def check_calls(self, path, text):
        inside = "/".join(path.parts[1:])
        for number, line in enumerate(strip(text).split("\n"), 1):
            for name in re.findall(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(", line):
                if name in FORBIDDEN_CALLS and inside not in FORBIDDEN_CALLS[name]:
                    self.fault(path, number, f"{name}() is called; the library does not, "
                               f"except in {', '.join(FORBIDDEN_CALLS[name]) or 'no file'}")
            for name in re.findall(r"[A-Za-z_]\w*", line):
                if name in FORBIDDEN_WORDS and inside not in FORBIDDEN_WORDS[name]:
                    self.fault(path, number, f"{name} is used; the library never prints")

    def check_names(self):
        seen = {}
        for path in self.files:
            if path.name in SHARED_NAMES or path.parts[0] == "include":
                continue
            if path.name in seen:
                self.fault(path, 1, f"its name is that of {seen[path.name]}")
            seen[path.name] = path

    def check_depth(self, path):
        deepest = 4 if path.parts[:3] == ("src", "cpu", "simd") else 3
        if path.parts[0] == "src" and len(path.parts) > deepest:
            self.fault(path, 1, "src/<area>/<file> is as deep as the tree goes (src/cpu/simd/ apart)")

    def run(self):
        for path in self.files:
            if path.suffix not in SOURCES:
                continue
            text = (self.root / path).read_text(encoding="utf-8")
            lines = text.count("\n")
            kernel = path.name.startswith("body_") or "simd" in path.parts or \
                path.suffix in (".cu", ".cuh")
            if lines > MAX_LINES and not kernel:
                self.fault(path, lines, f"{lines} lines; a file stays under {MAX_LINES}")
            self.check_depth(path)
            if path.suffix in (".c", ".h", ".def", ".cu", ".cuh"):
                self.check_includes(path, text)
                if path.parts[0] == "src":
                    self.check_calls(path, text)
        self.check_names()
        return self.faults


def main():
    parser = argparse.ArgumentParser(description="check the layer order and the rules of the tree")
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    check = Check(parser.parse_args().root.resolve())
    faults = check.run()
    for fault in faults:
        print(fault)
    if faults:
        print(f"check_layers: {len(faults)} faults")
        return 1
    if not check.files:
        print("check_layers: no files found")
        return 1
    print(f"check_layers: {len(check.files)} files keep the order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
