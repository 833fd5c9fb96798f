"""Where data goes wrong: full disks, closed pipes, signals, and files that must stay what they were."""
import fcntl
import io
import os
import resource
import select
import signal
import stat
import struct
import subprocess
import termios

import numpy as np

from cli_support import (CANNOT_CREATE, IO_FAILED, OK, PROGRAM, ProgramTest, check_sane,
                         environment, jsonl, main, run, start)

BUSY = "the cat runs\n" * 20000  # some megabytes of output in any format


class FullDisk(ProgramTest):
    def test_full_device(self):
        text = self.write("in.txt", "the cat\n" * 100)
        for fmt in ("jsonl", "npy", "f32", "csv"):
            self.fails(IO_FAILED, "embed", "-m", self.model, "-f", fmt, "-o", "/dev/full", text,
                       words=["/dev/full", "No space left"])
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, "embed", "-m", self.model, "-f", fmt, text],
                                      stdout=full, stderr=subprocess.PIPE, env=environment(),
                                      check=False)
            check_sane(done.returncode, done.stderr)
            self.assertEqual(done.returncode, IO_FAILED)
            self.assertEqual(done.stderr.count(b"\n"), 1)
        for command in (["version"], ["info"], ["help"], ["embed", "--help"], ["help", "--man"],
                        ["tokenize", "-m", self.model, text],
                        ["similar", "-m", self.model, "--query", "a", text]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, *command], stdout=full, stderr=subprocess.PIPE,
                                      env=environment(), check=False)
            self.assertEqual(done.returncode, IO_FAILED, command)
            self.assertIn(b"No space left", done.stderr)

    def test_a_file_that_may_not_grow(self):
        """As a disk that fills up midway: the limit makes write fail, SIGXFSZ would kill."""
        self.write("out", "former")
        text = self.write("in.txt", BUSY)
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        for fmt in ("jsonl", "npy", "f32"):
            self.fails(IO_FAILED, "embed", "-m", self.model, "-f", fmt, "-o", self.path("out"),
                       text, words=["cannot write", "out"], preexec_fn=limit)
            self.assertEqual(self.read("out"), b"former")
            self.assert_no_leftovers()
        code, out, err = run("embed", "-m", self.model, "-f", "npy", text, preexec_fn=limit)
        self.assertEqual((code, out), (IO_FAILED, b""), err)  # the rows that wait did not fit


class OutputFile(ProgramTest):
    def test_replaced_only_at_the_end_with_the_right_mode(self):
        text = self.write("in.txt", "the cat\n")
        mask = os.umask(0o027)
        try:
            self.ok("embed", "-m", self.model, "-o", self.path("fresh"), text)
            self.assertEqual(stat.S_IMODE(os.stat(self.path("fresh")).st_mode), 0o640)
            self.write("old", "former")
            os.chmod(self.path("old"), 0o604)
            self.ok("embed", "-m", self.model, "-o", self.path("old"), text)
            self.assertEqual(stat.S_IMODE(os.stat(self.path("old")).st_mode), 0o604)
        finally:
            os.umask(mask)
        self.assertEqual(self.read("old"), self.read("fresh"))
        self.assert_no_leftovers()

    def test_input_and_output_may_be_one_file(self):
        path = self.write("both", "the cat\na\n")
        self.ok("tokenize", "-m", self.model, "-f", "tokens", "-o", path, path)
        self.assertEqual(self.read("both"), b"[CLS] the cat [SEP]\n[CLS] a [SEP]\n")

    def test_links_and_names(self):
        self.write("target", "former")
        os.symlink("target", self.path("link"))
        self.ok("tokenize", "-m", self.model, "-f", "ids", "-o", self.path("link"), stdin="a\n")
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertNotEqual(self.read("target"), b"former")
        name = "n" * 255  # no room for a longer temporary name
        self.ok("tokenize", "-m", self.model, "-f", "ids", "-o", name, stdin="a\n",
                cwd=self.folder)
        self.assertEqual(self.read(name), self.read("target"))
        self.assert_no_leftovers()

    def test_links_to_nothing_stay(self):
        os.symlink("nothing", self.path("dangling"))
        os.symlink("loop2", self.path("loop1"))
        os.symlink("loop1", self.path("loop2"))
        for name, word in (("dangling", "symbolic link to nothing"), ("loop1", "levels")):
            self.fails(CANNOT_CREATE, "tokenize", "-m", self.model, "-o", self.path(name),
                       stdin="a\n", words=[name, word])
            self.assertTrue(os.path.islink(self.path(name)))
        self.fails(CANNOT_CREATE, "tokenize", "-m", self.model, "-o",
                   self.write("file", "x") + "/y", stdin="a\n", words=["Not a directory"])
        self.assert_no_leftovers()

    def test_devices_and_pipes_are_written_in_place(self):
        self.ok("embed", "-m", self.model, "-o", "/dev/null", stdin="a\n")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        os.mkfifo(self.path("fifo"))
        child = start("embed", "-m", self.model, "-f", "npy", "-o", self.path("fifo"))
        child.stdin.write(b"a\nb\n")
        child.stdin.close()
        with open(self.path("fifo"), "rb") as fifo:
            data = fifo.read()
        self.assertEqual(child.wait(60), OK)
        child.stdout.close()
        child.stderr.close()
        self.assertEqual(np.load(io.BytesIO(data)).shape, (2, self.dims))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("fifo")).st_mode))

    def test_a_dash_is_standard_output(self):
        out, _ = self.ok("tokenize", "-m", self.model, "-f", "ids", "-o", "-", stdin="a\n")
        self.assertTrue(out)
        self.assertFalse(os.path.exists("-"))

    def test_rows_that_wait_need_a_folder(self):
        self.fails(CANNOT_CREATE, "embed", "-m", self.model, "-f", "npy", stdin="a\n",
                   env=environment(TMPDIR="/nowhere"), words=["/nowhere"])

    def test_closed_standard_descriptors(self):
        def closed(*fds):
            return lambda: [os.close(fd) for fd in fds]
        for arguments in (["version"], ["embed", "-m", self.model, self.write("c", "a\n")]):
            done = subprocess.run([PROGRAM, *arguments], stderr=subprocess.PIPE, env=environment(),
                                  preexec_fn=closed(1), check=False)
            check_sane(done.returncode, done.stderr)
            self.assertEqual(done.returncode, IO_FAILED)
        done = subprocess.run([PROGRAM, "embed", "-m", self.model], stderr=subprocess.PIPE,
                              stdout=subprocess.PIPE, env=environment(), preexec_fn=closed(0),
                              check=False)
        self.assertEqual(done.returncode, IO_FAILED)
        # nothing may end up in the file that would have taken the place of descriptor 1 or 2
        done = subprocess.run([PROGRAM, "embed", "-m", self.model, "-o", self.path("clean"),
                               self.write("d", "\n")], env=environment(),
                              preexec_fn=closed(0, 1, 2), check=False)
        self.assertEqual(done.returncode, OK)
        self.assertEqual(len(jsonl(self.read("clean"))), 1)


class ClosedPipe(ProgramTest):
    def test_a_reader_that_leaves(self):
        text = self.write("in.txt", BUSY)
        for arguments in (["embed", "-f", "jsonl"], ["embed", "-f", "f32"], ["embed", "-f", "npy"],
                          ["tokenize"]):
            child = start(*arguments, "-m", self.model, text, stdin=subprocess.DEVNULL)
            self.assertEqual(len(child.stdout.read(10)), 10)
            child.stdout.close()
            err = child.stderr.read()
            child.stderr.close()
            code = child.wait(120)
            check_sane(code, err)
            self.assertEqual(code, IO_FAILED, err)
            self.assertLessEqual(err.count(b"\n"), 1, err)  # no storm of messages

    def test_head(self):
        text = self.write("in.txt", BUSY)
        done = subprocess.run(f'"{PROGRAM}" embed -m "{self.model}" "{text}" | head -c 10',
                              shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=environment(), check=False)
        self.assertEqual(done.stdout, b'{"index":0')
        self.assertLessEqual(done.stderr.count(b"\n"), 1, done.stderr)


class Signals(ProgramTest):
    def open_and_answer(self, *arguments):
        """A child that has answered one text and now waits for more."""
        child = start("embed", "-m", self.model, *arguments)
        child.stdin.write(b"the cat\n")
        child.stdin.flush()
        return child

    def end(self, child):
        err = child.stderr.read()
        code = child.wait(120)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe:
                pipe.close()
        check_sane(code, err)
        return code, err

    def wait_for_temp(self, child):
        """Until the temporary file holds something; the tests' own time limit bounds it."""
        while True:
            self.assertIsNone(child.poll())
            for name in os.listdir(self.folder):
                if name.startswith(".mstar-") and os.path.getsize(self.path(name)) > 0:
                    return

    def test_the_first_signal_leaves_whole_lines(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child = self.open_and_answer()
            first = child.stdout.readline()  # answered before the input has ended
            child.stdin.write(b"half a li")
            child.stdin.flush()
            child.send_signal(number)
            rest = child.stdout.read()
            code, err = self.end(child)
            self.assertEqual(code, 128 + number)
            self.assertEqual(len(jsonl(first + rest)), 1)
            self.assertEqual(err.count(b"\n"), 1, err)
            self.assertIn(b"after 1 texts", err)

    def test_a_signal_leaves_the_output_file_alone(self):
        self.write("out", "former")
        for fmt in ("jsonl", "npy"):
            child = self.open_and_answer("-f", fmt, "-o", self.path("out"))
            self.wait_for_temp(child)
            child.send_signal(signal.SIGTERM)
            code, _ = self.end(child)
            self.assertEqual(code, 143)
            self.assertEqual(self.read("out"), b"former")
            self.assert_no_leftovers()

    def test_a_signal_in_the_middle_of_a_long_embed(self):
        text = self.write("in.txt", BUSY * 5)
        child = start("embed", "-m", self.model, text, stdin=subprocess.DEVNULL)
        data = child.stdout.read(1000)
        child.send_signal(signal.SIGINT)
        data += child.stdout.read()
        code, _ = self.end(child)
        self.assertEqual(code, 130)
        rows = jsonl(data)
        self.assertEqual([row["index"] for row in rows], list(range(len(rows))))
        self.assertLess(len(rows), 100000)

    def test_two_signals_end_at_once_and_take_the_temporary_file_away(self):
        self.write("out", "former")
        child = self.open_and_answer("-t", "1", "-o", self.path("out"))
        self.wait_for_temp(child)
        # Stopped, it gets both before it does anything else: the first sets the flag, the second
        # ends it.
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        code, err = self.end(child)
        self.assertEqual((code, err), (143, b""))
        self.assertEqual(self.read("out"), b"former")
        self.assert_no_leftovers()

    def test_one_signal_ends_the_wait_for_the_other_end_of_a_fifo(self):
        os.mkfifo(self.path("lonely"))
        text = self.write("in.txt", "the cat\n")
        def waits(child):
            """Once the signal's handler is there, which /proc tells."""
            with open(f"/proc/{child.pid}/status", encoding="ascii") as status:
                caught = next(line for line in status if line.startswith("SigCgt:"))
            return int(caught.split()[1], 16) & (1 << (signal.SIGINT - 1))
        for arguments in ([self.path("lonely")], ["-o", self.path("lonely"), text]):
            child = start("embed", "-m", self.model, *arguments, stdin=subprocess.DEVNULL)
            while not waits(child):
                self.assertIsNone(child.poll())
            child.send_signal(signal.SIGINT)
            code, err = self.end(child)
            self.assertEqual(code, 130)
            self.assertIn(b"stopped by signal 2 after 0 texts", err)

    def test_the_second_signal_ends_a_blocked_write(self):
        text = self.write("in.txt", BUSY)
        child = start("embed", "-m", self.model, "-t", "1", text, stdin=subprocess.DEVNULL)
        room = fcntl.fcntl(child.stdout, 1031, 4096)  # F_SETPIPE_SZ: one page, filled by one write
        held = 0
        while held < room:  # nobody reads: it will block
            self.assertIsNone(child.poll())
            held = struct.unpack("i", fcntl.ioctl(child.stdout, termios.FIONREAD, b"\0" * 4))[0]
        child.send_signal(signal.SIGINT)
        while self.has_pending_signal(child.pid):
            pass
        self.assertIsNone(child.poll())
        child.send_signal(signal.SIGTERM)
        if "thread" in os.environ.get("MSTAR_TEST_SANITIZE", ""):
            child.stdout.read()  # that sanitizer holds signals back until the write has returned
        code, _ = self.end(child)
        self.assertEqual(code, 143)

    @staticmethod
    def has_pending_signal(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("SigPnd", "ShdPnd") and int(value, 16) != 0:
                    return True
        return False

    def test_ignored_signals_stay_ignored(self):
        child = start("embed", "-m", self.model,
                      preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        child.stdin.write(b"a\n")
        child.stdin.flush()
        child.stdout.readline()
        child.send_signal(signal.SIGHUP)
        child.stdin.write(b"b\n")
        child.stdin.close()
        rest = child.stdout.read()
        child.stdin = None
        code, err = self.end(child)
        self.assertEqual((code, err), (OK, b""))
        self.assertEqual([row["index"] for row in jsonl(rest)], [1])


class Terminal(ProgramTest):
    def on_a_terminal(self, *arguments, stdin=b"", **env):
        """stderr is a terminal; returns what it showed."""
        master, slave = os.openpty()
        child = subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, stderr=slave,
                                 env=environment(**env))
        os.close(slave)
        child.stdin.write(stdin)
        child.stdin.close()
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(master)
        self.assertEqual(child.wait(120), OK)
        return shown.decode()

    def test_the_bar_is_for_terminals(self):
        text = self.write("in.txt", "the cat\n" * 100)
        command = ["embed", "-m", self.model, "-f", "csv", text]
        self.assertIn("\r\x1b[32m#", self.on_a_terminal(*command, TERM="xterm"))
        plain = self.on_a_terminal(*command, TERM="xterm", NO_COLOR="1")
        self.assertIn("texts", plain)
        self.assertNotIn("\x1b[3", plain)
        for more, env in ((["--quiet"], {}), (["--progress=none"], {}), ([], {"TERM": "dumb"})):
            env = {"TERM": "xterm", **env}
            self.assertEqual(self.on_a_terminal(*command, *more, **env), "")
        _, err = self.ok(*command)
        self.assertEqual(err, "")
        _, err = self.ok(*command, "--progress", "bar")
        self.assertIn("texts", err)
        self.assertNotIn("\x1b[3", err)
        _, err = self.ok(*command, "--progress", "bar", env=environment(CLICOLOR_FORCE="1"))
        self.assertIn("\x1b[32m#", err)


class Streaming(ProgramTest):
    def test_answers_come_before_the_input_ends(self):
        child = start("tokenize", "-m", self.model, "-f", "tokens")
        for word in (b"cat", b"dog", b"sun"):
            child.stdin.write(word + b"\n")
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], 120)
            self.assertTrue(ready)
            self.assertEqual(child.stdout.readline(), b"[CLS] " + word + b" [SEP]\n")
        child.stdin.close()
        self.assertEqual(child.wait(60), OK)
        child.stdout.close()
        child.stderr.close()

    def test_memory_is_bounded(self):
        """A hundred times the texts in the same memory."""
        def peak(count):
            child = start("embed", "-m", self.model, "-f", "f32", "-t", "1",
                          self.write("in.txt", "the cat runs\n" * count),
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            child.stderr.close()
            self.assertEqual(child.returncode, OK)
            return usage.ru_maxrss
        if os.environ.get("MSTAR_TEST_SANITIZE"):
            count = 20000  # the sanitizers keep freed memory; only that it works is looked at
            peak(count)
            return
        few, many = peak(5000), peak(200000)
        # 200000 texts are 2.6 MB and their vectors 25.6 MB; a chunk is below 8 MB
        self.assertLess(many - few, 8 * 1024)


if __name__ == "__main__":
    main()
