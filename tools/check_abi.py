#!/usr/bin/env python3
"""Compare the binary interface of the public headers with the recorded one, tests/abi/mstar.abi.

A line of the record for each function and callback (with the types of its parameters), struct (its
size; offset, size and name of each field), enumerator and integer macro (the version apart), as a
compiler sees them on a 64-bit machine. Anything that differs is told with a verdict:

  breaks  what a program compiled before relies on is gone or has moved
  adds    something new; programs compiled before do not see it

and the exit code is 1 until the change is meant and recorded: tools/check_abi.py --record. With
--allow-additions what only adds is told and passes: make check runs so, CI does not. With --library
the exported symbols are compared with the declared ones too, and the soname is looked for.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = "tests/abi/mstar.abi"
MARK = "__mstar_api__"


def compiler():
    return shlex.split(os.environ.get("CC", "cc"))


def compile_text(root, text, *flags):
    command = [*compiler(), "-std=c17", "-I", str(root / "include"), *flags]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_abi: {' '.join(command)}:\n{done.stderr}")
    return done.stdout


def headers(root):
    names = sorted(path.name for path in (root / "include/mstar").glob("*.h"))
    return "#include <stddef.h>\n" + "".join(f'#include "mstar/{name}"\n' for name in names)


def preprocess(root):
    """The headers' text with macros expanded and MSTAR_API marked."""
    text = compile_text(root, headers(root), "-x", "c", "-E", "-P", "-")
    text = re.sub(r'__attribute__\(\(visibility\("default"\)\)\)', MARK, text)
    return re.sub(r"\s+", " ", text)


def split(text, mark):
    """Parts between marks that stand outside of all brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += char in "([{"
        depth -= char in ")]}"
        if char == mark and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def without_name(parameter):
    if "(" in parameter or " " not in parameter and "*" not in parameter:
        return parameter
    return re.sub(r"([\s*])\w+((?:\[\d*\])*)$", r"\1\2", parameter).strip()


def functions(text):
    lines = {}
    for declaration in re.findall(rf"{MARK}\s+([^;{{}}]+);", text):
        found = re.match(r"(.*?[\s*])(mstar_\w+)\s*\((.*)\)$", declaration.strip())
        if not found:
            sys.exit(f"check_abi: cannot read the declaration: {declaration}")
        kind, name, parameters = found.groups()
        types = ", ".join(without_name(p) for p in split(parameters, ","))
        lines[name] = f"function {name}: {kind.strip()} ({types})"
    return lines


def callbacks(text):
    for kind, name, parameters in re.findall(
            r"typedef ([\w ]+[\s*])\(\*(mstar_\w+)\)\s*\(([^;]*)\);", text):
        types = ", ".join(without_name(p) for p in split(parameters, ","))
        yield f"callback {name}: {kind.strip()} ({types})"


def field_names(body):
    for statement in split(body, ";"):
        for place, part in enumerate(split(statement, ",")):
            if place == 0 and "(" in part:
                yield re.search(r"\(\s*\*\s*(\w+)\s*\)", part).group(1)
            else:
                yield re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part).group(1)


def structs(text):
    for found in re.finditer(r"typedef struct(?: \w+)? \{", text):
        depth, at = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        name = re.match(r"\s*(\w+)\s*;", text[at:])
        if name and name.group(1).startswith(("mstar_", "DL")):
            yield name.group(1), list(field_names(text[found.end():at - 1]))


def enumerators(text):
    for body in re.findall(r"\benum(?: \w+)? \{([^}]*)\}", text):
        for part in split(body, ","):
            name = part.split("=")[0].strip()
            if name.startswith(("MSTAR_", "kDL")):
                yield name


def macros(root):
    listed = compile_text(root, headers(root), "-x", "c", "-E", "-dM", "-")
    found = set(re.findall(r"^#define (MSTAR_\w+) \(?-?(?:0x)?[0-9A-Fa-f]+[uUlL]*\)?$", listed, re.M))
    return sorted(name for name in found if not name.startswith("MSTAR_VERSION_"))


def measure(root, text):
    """Sizes, offsets and values, printed by a program."""
    body = []
    for name, fields in structs(text):
        body.append(f'printf("struct %s: %zu bytes\\n", "{name}", sizeof({name}));')
        for field in fields:
            body.append(f'printf("field {name}.{field}: at %zu, %zu bytes\\n", '
                        f"offsetof({name}, {field}), sizeof((({name} *)0)->{field}));")
    for name in enumerators(text):
        body.append(f'printf("enumerator {name}: %lld\\n", (long long)({name}));')
    for name in macros(root):
        body.append(f'printf("macro {name}: %lld\\n", (long long)({name}));')
    source = (headers(root) + "#include <stdio.h>\nint main(void)\n{\n" + "\n".join(body) +
              "\nreturn 0;\n}\n")
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "measure")
        compile_text(root, source, "-x", "c", "-", "-o", program)
        done = subprocess.run([program], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def key(line):
    return line.split(":")[0]


def compare(recorded, present):
    """(verdict, text) of each difference."""
    before, now = ({key(line): line for line in lines} for lines in (recorded, present))
    for name, line in before.items():
        if name not in now:
            yield "breaks", f"gone: {line}"
        elif now[name] != line:
            grew = name.startswith("struct ") and all(
                now.get(other) == text for other, text in before.items()
                if other.startswith(f"field {name[len('struct '):]}."))
            # a struct with a struct_size may grow at its end
            sized = f"field {name[len('struct '):]}.struct_size" in before
            yield ("adds" if grew and sized else "breaks",
                   f"{line}  ->  {now[name].split(':', 1)[1].strip()}")
    for name, line in now.items():
        if name not in before:
            yield "adds", f"new: {line}"


def check_library(library, present):
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True,
                            text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    exported = {name for name in exported if not name.startswith("_")}  # a sanitizer's own
    declared = {key(line).split()[1] for line in present if line.startswith("function ")}
    for name in sorted(declared - exported):
        yield f"{name} is declared and not exported"
    for name in sorted(exported - declared):
        yield f"{name} is exported and not declared"
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True)
    if not re.search(r"SONAME.*\[libmstar\.so\.\d+\]", dynamic.stdout):
        yield f"{library} has no soname libmstar.so.N"


def main():
    parser = argparse.ArgumentParser(description="compare the binary interface with the record")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--record", action="store_true", help="write the record anew")
    parser.add_argument("--allow-additions", action="store_true")
    parser.add_argument("--library", help="a built libmstar.so to compare too")
    options = parser.parse_args()
    root = options.root.resolve()
    text = preprocess(root)
    present = sorted(functions(text).values()) + sorted(callbacks(text)) + measure(root, text)
    path = root / RECORD
    if options.record:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(present) + "\n", encoding="utf-8")
        print(f"check_abi: {len(present)} lines recorded in {RECORD}")
        return 0
    recorded = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    differences = list(compare(recorded, present))
    if options.allow_additions and recorded:
        for what in [what for verdict, what in differences if verdict == "adds"]:
            print(f"not recorded yet: {what}")
        differences = [pair for pair in differences if pair[0] != "adds"]
    faults = [f"{verdict}  {what}" for verdict, what in differences]
    if options.library:
        faults += list(check_library(options.library, present))
    for fault in faults:
        print(fault)
    if faults:
        print(f"check_abi: {len(faults)} differences; where they are meant: "
              "tools/check_abi.py --record")
        return 1
    print(f"check_abi: {len(present)} lines as recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
