"""Each read, write and other call to the system that the program makes, failed once.

fault_shim.c, loaded before the C library, fails the n-th call of one kind; n runs until the command
makes no n-th call. Whatever fails, the program ends by itself with a documented exit code: either 0
and the very output that it gives without a fault, or one line on stderr that says why, the output
file as it was, whole lines on standard output, and nothing left behind. Interrupted and short calls
must not be seen at all.

Failed allocations are swept here over the whole process, jansson's included (without a sanitizer,
whose allocator the shim would hide); the first ones all, the others by steps, or all of them with
MSTAR_TEST_ALL=1 in the environment.
"""
import errno
import os
import signal
import subprocess
import unittest

from cli_support import (BAD_CONFIG, CANNOT_CREATE, FAILED, IO_FAILED, NO_INPUT, OK, PROGRAM,
                         ProgramTest, check_sane, environment, jsonl, main, start)

SHIM = os.path.join(os.environ["MSTAR_TEST_BUILD"], "tests", "mst_fault_shim.so")
SANITIZED = bool(os.environ.get("MSTAR_TEST_SANITIZE"))
DOCUMENTED = {OK, FAILED, NO_INPUT, CANNOT_CREATE, IO_FAILED, BAD_CONFIG}

# call -> faults that must be told, faults that must not be seen
CALLS = {
    "read": ([errno.EIO], [errno.EINTR, "short"]),
    "write": ([errno.ENOSPC, errno.EPIPE], [errno.EINTR, "short"]),
    "pwrite": ([errno.ENOSPC], [errno.EINTR, "short"]),
    "poll": ([], [errno.EINTR]),
    "lseek": ([errno.ESPIPE], []),
    "open": ([errno.EACCES, errno.EMFILE], []),
    "close": ([errno.EIO], []),
    "fsync": ([errno.EIO], []),
    "rename": ([errno.EACCES], []),
    "mkstemp": ([errno.ENOSPC], []),
    "realpath": ([errno.ENOMEM], []),
    "access": ([errno.EACCES], []),
    "stat": ([errno.EIO], []),
    "fstat": ([errno.EIO], []),
    "mmap": ([errno.ENOMEM], []),
    "fchmod": ([], [errno.EPERM]),          # file systems without modes have none to set
    "pipe": ([], [errno.EMFILE]),           # signals then end the program at once
    "pthread_create": ([], [errno.EAGAIN]), # fewer threads, the same results
}


class Faults(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lines = "".join(f"the cat {i} runs\n" for i in range(300))  # several writes of output
        cls.texts = os.path.join(cls.folder, "texts.txt")
        cls.objects = os.path.join(cls.folder, "texts.jsonl")
        with open(cls.texts, "w", encoding="ascii") as file:
            file.write(cls.lines)
        with open(cls.objects, "w", encoding="ascii") as file:
            file.write("".join('{"id":%d,"text":"the cat"}\n' % i for i in range(900)))
        cls.out = os.path.join(cls.folder, "out")
        cls.mark = os.path.join(cls.folder, "mark")

    def run_with(self, call, number, fault, arguments, stdin):
        """Exit code, stdout, stderr, and whether the call came."""
        if os.path.exists(self.mark):
            os.unlink(self.mark)
        env = environment(MSTAR_FAULT=f"{call}:{number}:{fault}", MSTAR_FAULT_MARK=self.mark,
                          LD_PRELOAD=SHIM, TMPDIR=self.folder)
        if SANITIZED:  # the sanitizer's library wants to be the first and need not be
            env["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        done = subprocess.run([PROGRAM, *arguments], input=stdin, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=env, timeout=300, check=False)
        check_sane(done.returncode, done.stderr)
        return (done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"),
                os.path.exists(self.mark))

    def restore(self):
        with open(self.out, "w", encoding="ascii") as file:
            file.write("former")

    def read_out(self):
        with open(self.out, "rb") as file:
            return file.read()

    def check_end(self, name, wanted, result, fault, must_pass):
        code, out, err, _ = result
        want_out, want_file = wanted
        self.assertIn(code, DOCUMENTED, name)
        if code == OK:
            self.assertEqual(out, want_out, name)
            self.assertEqual(self.read_out(), want_file, name)
        else:
            self.assertFalse(must_pass, f"{name}: {err}")
            self.assertEqual(err.count("\n"), 1, f"{name}: {err}")
            self.assertTrue(err.startswith("mstar"), f"{name}: {err}")
            self.assertIn("closed by its reader" if fault == errno.EPIPE else os.strerror(fault), err,
                          name)
            self.assertEqual(self.read_out(), b"former", name)
            self.assertTrue(want_out.startswith(out), f"{name}: not a beginning of the output")
            if not name.startswith("write"):
                self.assertTrue(out == b"" or out.endswith(b"\n"), f"{name}: half a line")
        self.assertEqual([n for n in os.listdir(self.folder) if ".mstar-" in n or
                          n.startswith("mstar-")], [], f"{name}: left behind")

    def sweep(self, arguments, stdin=b"", calls=None, must_come=()):
        """Every call of every kind; returns how many runs there were."""
        self.restore()
        code, want_out, err, _ = self.run_with("none", 1, 0, arguments, stdin)
        self.assertEqual(code, OK, err)
        wanted = (want_out, self.read_out())
        runs = 0
        for call, (told, unseen) in (calls or CALLS).items():
            came_once = False
            for fault in told + unseen:
                for number in range(1, 1000):
                    self.restore()
                    result = self.run_with(call, number, fault, arguments, stdin)
                    if not result[3]:
                        break
                    came_once = True
                    runs += 1
                    self.check_end(f"{call} {number} {fault}", wanted, result, fault,
                                   fault in unseen)
            self.assertTrue(came_once or call not in must_come, f"{call} never came")
        return runs

    def test_embed_into_a_file(self):
        runs = self.sweep(["embed", "-m", self.model, "-t", "2", "-f", "npy", "-o", self.out,
                           self.texts],
                          must_come=["read", "write", "pwrite", "open", "close", "fsync", "rename",
                                     "mkstemp", "realpath", "access", "stat", "fstat", "mmap",
                                     "fchmod", "pipe", "pthread_create"])
        self.assertGreater(runs, 60)

    def test_embed_to_standard_output(self):
        runs = self.sweep(["embed", "-m", self.model, "-t", "1", self.texts],
                          calls={name: CALLS[name] for name in ("read", "write", "close")},
                          must_come=["read", "write"])
        self.assertGreater(runs, 15)

    def test_rows_that_wait(self):
        self.sweep(["embed", "-m", self.model, "-t", "1", "-f", "npy"], stdin=self.lines.encode(),
                   calls={name: CALLS[name]
                          for name in ("read", "write", "poll", "lseek", "mkstemp")},
                   must_come=["read", "write", "poll", "lseek", "mkstemp"])

    def test_tokenize(self):
        self.sweep(["tokenize", "-m", self.model, "-i", "jsonl", "-o", self.out, self.objects],
                   calls={name: CALLS[name]
                          for name in ("read", "write", "open", "stat", "fstat", "mmap")},
                   must_come=["read", "write", "open", "stat"])

    def test_similar(self):
        self.sweep(["similar", "-m", self.model, "-t", "1", "--pairs", "--json", self.texts],
                   calls={name: CALLS[name] for name in ("read", "write", "open")},
                   must_come=["read", "write", "open"])

    def test_reports(self):
        for arguments in (["info", "-m", self.model, "--json"], ["version"], ["help", "--man"]):
            self.sweep(arguments, calls={name: CALLS[name] for name in ("read", "write", "open")},
                       must_come=["write"])

    @unittest.skipIf(SANITIZED, "the sanitizer has an allocator of its own")
    def test_memory(self):
        """Every malloc of the process: told as such, and 0 only with the right output."""
        every = os.environ.get("MSTAR_TEST_ALL") == "1"
        for arguments, stdin in (
                (["embed", "-m", self.model, "-t", "1", "-o", self.out], b"the cat\nruns\n"),
                (["tokenize", "-m", self.model, "-i", "jsonl", "-o", self.out],
                 b'{"id":1234567890123456,"text":"the cat"}\n' * 2),
                (["info", "--json"], b"")):
            self.restore()
            code, want_out, err, _ = self.run_with("none", 1, 0, arguments, stdin)
            self.assertEqual(code, OK, err)
            wanted = self.read_out()
            number, failed = 1, 0
            while True:
                self.restore()
                code, out, err, came = self.run_with("malloc", number, errno.ENOMEM, arguments,
                                                     stdin)
                if not came:
                    break
                name = f"{arguments[0]}: malloc {number}: {err}"
                if code == OK:
                    self.assertEqual((out, self.read_out()), (want_out, wanted), name)
                else:
                    failed += 1
                    self.assertIn(code, (FAILED, CANNOT_CREATE), name)
                    self.assertEqual(err.count("\n"), 1, name)
                    self.assertRegex(err, "memory|could not be allocated", name)
                    self.assertEqual(self.read_out(), b"former", name)
                    self.assertEqual(out, b"", name)
                self.assert_no_leftovers()
                number += 1 if every or number < 60 else 17
            self.assertGreater(failed, 20)


class LongEmbed(ProgramTest):
    def test_a_signal_in_the_middle(self):
        """Neither signal leaves a half line, or anything under the final name."""
        text = self.write("in.txt", "the cat runs\n" * 100000)
        for number in (signal.SIGINT, signal.SIGTERM):
            for fmt in ("jsonl", "npy"):
                self.write("out", "former")
                child = start("embed", "-m", self.model, "-f", fmt, "-o", self.path("out"), text,
                              stdin=subprocess.DEVNULL)
                while not any(n.startswith(".mstar-") and os.path.getsize(self.path(n)) > 0
                              for n in os.listdir(self.folder)):
                    self.assertIsNone(child.poll(), "it ended before the signal")
                self.end(child, number)
                self.assertEqual(self.read("out"), b"former")
                self.assert_no_leftovers()
            child = start("embed", "-m", self.model, text, stdin=subprocess.DEVNULL)
            head = os.read(child.stdout.fileno(), 100)
            rest = self.end(child, number)
            rows = jsonl(head + rest)
            self.assertEqual([row["index"] for row in rows], list(range(len(rows))))
            self.assertLess(len(rows), 100000)

    def end(self, child, number):
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
        check_sane(child.returncode, err)
        self.assertEqual(child.returncode, 128 + number)
        self.assertEqual(err.count(b"\n"), 1, err)
        return out


if __name__ == "__main__":
    main()
