#!/usr/bin/env python3
"""Check what the documents say against the tree.

  * every ```c snippet of README.md and docs/*.md compiles (-fsyntax-only -Wall -Werror) against
    include/. A snippet without a main is wrapped in a function. Two comments right before a
    snippet's fence steer this:
        <!-- from examples/embed_texts.c -->   the snippet's lines stand one after another in that file,
                                         which is compiled in its place
        <!-- given mstar_device *device; -->   declarations that a fragment builds on
  * every path named in ARCHITECTURE.md exists, and every file of src/, include/, programs/, tools/,
    examples/ and cmake/ has its line there;
  * relative links of all documents lead somewhere, anchors included;
  * the status table of docs/errors.md is that of include/mstar/base.h;
  * the environment variables of docs/cli.md are those of src/base/env.c;
  * with --program, docs/cli.md repeats what each command's --help prints.

Prints one line a fault and exits 1, else prints one line.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^(```+)[ \t]*(\w*)[^\n]*\n(.*?)^\1[ \t]*$", re.S | re.M)
STEER = re.compile(r"<!--\s*(from|given)\s+((?:(?!-->).)*?)\s*-->\s*\Z", re.S)
MENTIONED = ("src", "include", "programs", "tools", "examples", "cmake")
C_FLAGS = ["-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L"]
FRAGMENT_FLAGS = ["-Wno-unused", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]


class Check:
    def __init__(self, root, program, write):
        self.root = root
        self.program = program
        self.write = write
        self.faults = []
        self.snippets = 0
        self.compiled = {}

    def fault(self, path, line, text):
        self.faults.append(f"{path}:{line}: {text}")

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def documents(self):
        found = sorted(self.root.glob("*.md")) + sorted(self.root.glob("docs/*.md"))
        return [path.relative_to(self.root) for path in found]

    # ---- C snippets ----

    def compile(self, source, flags):
        command = [*shlex.split(os.environ.get("CC", "cc")), *C_FLAGS, *flags,
                   "-I", str(self.root / "include"), "-x", "c", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr.strip() or "the compiler failed"

    def compile_text(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "snippet.c"
            if re.search(r"\bint\s+main\s*\(", text):
                source.write_text(text)
                return self.compile(source, [])
            lines = text.split("\n")
            head = [line for line in lines if line.lstrip().startswith("#")]
            body = [line for line in lines if not line.lstrip().startswith("#")]
            source.write_text("\n".join([
                "#include <math.h>", "#include <stdint.h>", "#include <stdio.h>",
                "#include <stdlib.h>", "#include <string.h>", "#include <mstar.h>", *head,
                "int mst_snippet(void);", "int mst_snippet(void)", "{", *body, "return 0;", "}", ""]))
            return self.compile(source, FRAGMENT_FLAGS)

    def check_from(self, document, line, origin, snippet):
        if not (self.root / origin).is_file():
            self.fault(document, line, f"the snippet says that it is from {origin}, which is not there")
            return
        want = [part.strip() for part in snippet.strip("\n").split("\n")]
        have = [part.strip() for part in self.read(origin).split("\n")]
        if not any(have[at:at + len(want)] == want for at in range(len(have))):
            self.fault(document, line, f"the snippet does not stand in {origin} line for line")
        if origin not in self.compiled:
            self.compiled[origin] = self.compile(self.root / origin, [])
            if self.compiled[origin]:
                self.fault(document, line, f"{origin} does not compile: {self.compiled[origin]}")

    def check_snippets(self, document):
        text = self.read(document)
        for fence in FENCE.finditer(text):
            if fence.group(2) != "c":
                continue
            self.snippets += 1
            line = text.count("\n", 0, fence.start()) + 1
            snippet = fence.group(3)
            steer = STEER.search(text[:fence.start()])
            if steer and steer.group(1) == "from":
                self.check_from(document, line, steer.group(2), snippet)
                continue
            if steer:
                snippet = steer.group(2) + "\n" + snippet
            errors = self.compile_text(snippet)
            if errors:
                self.fault(document, line, f"the snippet does not compile:\n{errors}")

    # ---- paths and links ----

    def check_architecture(self):
        document = "ARCHITECTURE.md"
        text = self.read(document)
        tops = {path.name for path in self.root.iterdir() if path.is_dir()} - {"build"}
        plain = FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)
        for number, line in enumerate(plain.split("\n"), 1):
            for name in re.findall(r"`([\w.][\w./-]*)`", line):
                named = name.split("/")[0] in tops and "/" in name or \
                    re.fullmatch(r"[A-Z][\w.-]*\.(md|txt|json)", name)
                if named and not (self.root / name).exists():
                    self.fault(document, number, f"{name} is named and is not there")
        mentioned = set(re.findall(r"[\w.][\w./-]*", plain))
        for top in MENTIONED:
            for path in sorted((self.root / top).rglob("*")):
                name = path.relative_to(self.root)
                if path.is_file() and "__pycache__" not in name.parts and str(name) not in mentioned:
                    self.fault(document, 1, f"{name} has no line here")

    @staticmethod
    def anchors(text):
        plain = FENCE.sub("", text)
        for title in re.findall(r"^#+\s+(.*?)\s*$", plain, re.M):
            yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")

    def check_links(self, document):
        text = self.read(document)
        plain = FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)
        for number, line in enumerate(plain.split("\n"), 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                place = (self.root / document).parent / path if path else self.root / document
                if not place.exists():
                    self.fault(document, number, f"link to {target}: there is no such file")
                elif anchor and anchor not in self.anchors(place.read_text(encoding="utf-8")):
                    self.fault(document, number, f"link to {target}: there is no such heading")

    # ---- tables ----

    def check_statuses(self):
        document = "docs/errors.md"
        header = self.read("include/mstar/base.h")
        body = re.search(r"#define MSTAR_STATUS_LIST\(X\)(.*?)\n\n", header, re.S).group(1)
        want = [tuple(row) for row in re.findall(
            r'X\((\d+), (\w+), "([^"]+)", (\d+), (\w+)\)', body)]
        have = []
        for line in self.read(document).split("\n"):
            cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
            if len(cells) >= 5 and cells[0].isdigit():
                have.append((cells[0], cells[1].removeprefix("MSTAR_"), *cells[2:5]))
        for row in want:
            if row not in have:
                self.fault(document, 1, f"the status table lacks {row} of include/mstar/base.h")
        for row in have:
            if row not in want:
                self.fault(document, 1, f"the status table has {row}; include/mstar/base.h does not")

    def check_environment(self):
        document = "docs/cli.md"
        want = set(re.findall(r'= "(\w+)"', self.read("src/base/env.c")))
        have = set(re.findall(r"`((?:MSTAR|OMP)_\w+)`", self.read(document)))
        for name in sorted(want - have):
            self.fault(document, 1, f"environment variable {name} is read by src/base/env.c; no line")

    def help_of(self, *words):
        env = {name: value for name, value in os.environ.items() if not name.startswith("MSTAR_")}
        done = subprocess.run([self.program, *words], capture_output=True, text=True, env=env,
                              stdin=subprocess.DEVNULL)
        return done.stdout if done.returncode == 0 else None

    def check_commands(self):
        """docs/cli.md repeats the program's help; with --write it is brought up to it."""
        document = "docs/cli.md"
        overview = self.help_of("--help")
        if overview is None:
            self.fault(document, 1, f"{self.program} --help fails")
            return
        commands = re.findall(r"^\s+(?:mstar )?([a-z]+)\s{2,}\S", overview, re.M)
        if not commands:
            self.fault(document, 1, f"{self.program} --help lists no command")
        text = self.read(document)
        seen = set()

        def replace(block):
            words = tuple(block.group(1).split())
            seen.add(words)
            said = self.help_of(*words)
            if said is None:
                self.fault(document, 1, f"mstar {' '.join(words)} fails")
                return block.group()
            if said.strip("\n") != block.group(2).strip("\n") and not self.write:
                line = text.count("\n", 0, block.start()) + 1
                self.fault(document, line, f"not what mstar {' '.join(words)} prints "
                           "(tools/check_docs.py --write brings it up to date)")
            said = said.strip("\n")
            return f"```text\n$ mstar {' '.join(words)}\n{said}\n```"

        fresh = re.sub(r"^```text\n\$ mstar ([^\n]*--help)\n(.*?)^```$", replace, text, flags=re.S | re.M)
        for name in commands:
            if (name, "--help") not in seen:
                self.fault(document, 1, f"mstar {name} --help is not repeated here")
        if self.write and fresh != text:
            (self.root / document).write_text(fresh, encoding="utf-8")

    def run(self):
        for document in self.documents():
            self.check_links(document)
            if document.name == "README.md" or document.parts[0] == "docs":
                self.check_snippets(document)
        for check in (self.check_architecture, self.check_statuses, self.check_environment):
            check()
        if self.program:
            self.check_commands()
        return self.faults


def main():
    parser = argparse.ArgumentParser(description="check what the documents say against the tree")
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--program", help="mstar, whose help docs/cli.md repeats")
    parser.add_argument("--write", action="store_true", help="bring docs/cli.md up to the program")
    given = parser.parse_args()
    check = Check(given.root.resolve(), given.program, given.write)
    faults = check.run()
    for fault in faults:
        print(fault)
    if faults or not check.snippets:
        print(f"check_docs: {len(faults)} faults, {check.snippets} snippets")
        return 1
    print(f"check_docs: {len(check.documents())} documents, {check.snippets} snippets agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
