"""The command line itself: help, the manual page, usage errors, environment, exit codes."""
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import unittest

from cli_support import (BAD_CONFIG, CANNOT_CREATE, NO_INPUT, OK, USAGE, ProgramTest, environment,
                         main, run)

CACHES = list(pathlib.Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"))
COMMANDS = ("embed", "similar", "tokenize", "info", "bench", "graphs", "version", "help")


def long_options(text):
    return set(re.findall(r"^  (?:-\w, |    )--([a-z0-9-]+)", text, re.M))


class Help(ProgramTest):
    def test_overview_names_every_command_and_exit_code(self):
        for arguments in (["--help"], ["help"]):
            out, _ = self.ok(*arguments)
            for command in COMMANDS:
                self.assertRegex(out.decode(), rf"(?m)^  {command} ")
            for code in (0, 1, 2, 66, 69, 70, 73, 74, 78, 130, 143):
                self.assertRegex(out.decode(), rf"(?m)^ +{code}  ")
        short, _ = self.ok("-h")
        for command in COMMANDS:
            self.assertIn(command, short.decode())

    def test_full_help_says_everything(self):
        for command in COMMANDS:
            out, err = self.ok(command, "--help")
            text = out.decode()
            self.assertEqual(err, "")
            self.assertEqual(self.ok("help", command)[0], out)
            self.assertTrue(text.startswith(f"Usage: mstar {command} "), text)
            self.assertEqual(len(re.findall(r"^  # ", text, re.M)), 2, text)
            self.assertGreaterEqual(len(re.findall(r"^  .*\bmstar ", text, re.M)), 2)
            short, _ = self.ok(command, "-h")
            self.assertEqual(long_options(text), long_options(short.decode()))

    def test_wanted_options_are_there(self):
        wanted = {
            "embed": "model input-format format output dtype pooling no-normalize prompt-name "
                     "max-tokens truncate threads batch-tokens quiet progress",
            "similar": "model query pairs top json dtype threads",
            "tokenize": "model input-format format no-special max-tokens truncate output",
            "info": "model json threads dtype",
            "graphs": "graphs lengths max-buckets budget batch-size max-tokens model json svg output",
            "version": "json",
            "help": "man output",
        }
        for command, names in wanted.items():
            text = self.ok(command, "--help")[0].decode()
            self.assertLessEqual(set(names.split()) | {"help", "version"}, long_options(text))

    def test_defaults_ranges_and_environment_are_shown(self):
        text = " ".join(self.ok("embed", "--help")[0].decode().split())
        for part in ("[default: jsonl]", "[one of: jsonl|npy|f32|csv]", "[range: 1..1024]",
                     "[env: MSTAR_NUM_THREADS=]", "[env: MSTAR_MODEL=]"):
            self.assertIn(part, text)
        env = environment(MSTAR_MODEL="/some/where")
        text = " ".join(self.ok("embed", "--help", env=env)[0].decode().split())
        self.assertIn("[env: MSTAR_MODEL=/some/where]", text)

    def test_every_listed_option_is_taken_and_wants_its_value(self):
        for command in COMMANDS:
            text = self.ok(command, "--help")[0].decode()
            for name, value in re.findall(r"^  (?:-\w, |    )--([a-z0-9-]+)( [A-Z]+)?$", text,
                                          re.M):
                if value:
                    self.fails(USAGE, command, f"--{name}", words=[f"--{name}", "needs a value"])
                else:
                    self.fails(USAGE, command, f"--{name}=1", words=[f"--{name}", "no value"])

    def test_manual_page(self):
        page, _ = self.ok("help", "--man")
        text = page.decode().replace("\\-", "-")
        self.assertTrue(text.startswith(".TH MSTAR 1"))
        for command in COMMANDS:
            self.assertIn(f'.SS "mstar {command} ', text)
            for name in long_options(self.ok(command, "--help")[0].decode()):
                self.assertIn(f"--{name}", text)
            for example in re.findall(r"^  # .*\n  (.*)$",
                                      self.ok(command, "--help")[0].decode(), re.M):
                self.assertIn("\n.B " + example.replace('"', "\\(dq") + "\n", text)
        for part in (".SH ENVIRONMENT", "MSTAR_NUM_THREADS", ".SH EXIT STATUS", "NO_COLOR"):
            self.assertIn(part, text)
        self.ok("help", "--man", "-o", self.path("mstar.1"))
        self.assertEqual(self.read("mstar.1"), page)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8"], input=page,
                                  stderr=subprocess.PIPE, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""))


class Usage(ProgramTest):
    def test_no_command(self):
        self.fails(USAGE, words=["no command", "mstar --help"])

    def test_unknown_command_names_the_nearest(self):
        self.fails(USAGE, "emebd", words=["'emebd'", "'embed'"])
        self.fails(USAGE, "tokenise", words=["'tokenise'", "'tokenize'"])
        self.fails(USAGE, "help", "embde", words=["'embde'", "'embed'"])
        err = self.fails(USAGE, "zzzzzz", words=["'zzzzzz'"])
        self.assertNotIn("did you mean", err)

    def test_unknown_option_names_the_nearest(self):
        self.fails(USAGE, "embed", "--modle", "x",
                   words=["'--modle'", "'--model'", "mstar embed --help"])
        self.fails(USAGE, "embed", "--treads=4", words=["'--treads=4'", "'--threads'"])
        self.fails(USAGE, "similar", "--max-token", "1", words=["'--max-tokens'"])
        self.fails(USAGE, "embed", "-Z", words=["'-Z'"])
        self.fails(USAGE, "embed", "--" + "x" * 500, words=["unknown option"])
        self.fails(USAGE, "info", "--query", "x", words=["'--query'"])  # another command's

    def test_ranges_name_value_and_bounds(self):
        for option, low, high in (("--threads", 1, 1024), ("--batch-tokens", 1, 16777216),
                                  ("--max-tokens", 1, 1000000)):
            for value in (0, -1, high + 1, 10 ** 30):
                self.fails(USAGE, "embed", "-m", self.model, option, value,
                           words=[option, str(value), f"from {low} to {high}"])
            for value in ("", "x", "1x", "0x10", " 1", "1.5", "+1", "-"):
                self.fails(USAGE, "embed", "-m", self.model, f"{option}={value}",
                           words=[option, f"'{value}'", f"from {low} to {high}"])
        self.fails(USAGE, "similar", "-m", self.model, "--top", 0, words=["from 1 to 10000"])

    def test_choices_are_listed(self):
        self.fails(USAGE, "embed", "--format", "xml", words=["'xml'", "jsonl|npy|f32|csv"])
        self.fails(USAGE, "embed", "--format", "json", words=["'json'"])  # a start is not enough
        self.fails(USAGE, "embed", "--format", "jsonl|npy", words=["jsonl|npy|f32|csv"])
        self.fails(USAGE, "embed", "--format", "", words=["''"])
        self.fails(USAGE, "tokenize", "--format", "npy", words=["jsonl|ids|tokens"])
        self.fails(USAGE, "embed", "--pooling", "median", words=["'median'", "mean"])

    def test_missing_parts(self):
        self.fails(USAGE, "embed", words=["--model", "MSTAR_MODEL"])
        self.fails(USAGE, "similar", "-m", self.model, words=["--query", "--pairs"])
        self.fails(USAGE, "similar", "-m", self.model, "--pairs", "--query", "x",
                   words=["only one"])
        self.fails(USAGE, "embed", "-m", self.model, "a", "b", words=["'b'", "too many"])
        self.fails(USAGE, "info", "a", words=["'a'"])

    def test_forms_of_options(self):
        text = self.write("one.txt", "the cat\n")
        want, _ = self.ok("embed", "--model", self.model, "--format", "csv", text)
        for arguments in ([f"--model={self.model}", "--format=csv", text],
                          ["-m", self.model, "-f", "csv", text],
                          [f"-m{self.model}", "-fcsv", text],
                          [text, "-qm", self.model, "-fcsv"],
                          ["-m", self.model, "-f", "npy", "-f", "csv", text],  # the last one wins
                          ["-m", self.model, "-f", "csv", "--", text]):
            self.assertEqual(self.ok("embed", *arguments)[0], want)
        for arguments in ([], ["-"], ["--", "-"]):
            self.assertEqual(self.ok("embed", "-m", self.model, "-fcsv", *arguments,
                                     stdin="the cat\n")[0], want)

    def test_a_file_whose_name_starts_with_a_dash(self):
        self.write("-q", "the cat\n")
        out, _ = self.ok("tokenize", "-m", self.model, "--format", "tokens", "--", "-q",
                         cwd=self.folder)
        self.assertEqual(out, b"[CLS] the cat [SEP]\n")

    def test_hostile_names_stay_one_line(self):
        err = self.fails(NO_INPUT, "embed", "-m", self.model, "no\n\x1b[31mfile")
        self.assertNotIn("\x1b", err)


class Environment(ProgramTest):
    def test_flag_wins_over_environment_over_folder(self):
        def max_tokens(*arguments, **env):
            out, _ = self.ok("info", "--json", *arguments, env=environment(**env))
            return json.loads(out)["model"]["max_tokens"]
        self.assertEqual(max_tokens("-m", self.model), 32)
        self.assertEqual(max_tokens(MSTAR_MODEL=self.model), 32)
        self.assertEqual(max_tokens(MSTAR_MODEL=self.model, MSTAR_MAX_TOKENS="16"), 16)
        self.assertEqual(max_tokens("--max-tokens", "8", MSTAR_MODEL=self.model,
                                    MSTAR_MAX_TOKENS="16"), 8)
        self.assertEqual(max_tokens("-m", self.model, MSTAR_MODEL="/nowhere"), 32)
        self.assertEqual(max_tokens("-m", self.model, MSTAR_MAX_TOKENS=""), 32)

    def test_threads(self):
        def threads(*arguments, **env):
            out, _ = self.ok("info", "--json", *arguments, env=environment(**env))
            return json.loads(out)["machine"]["threads"]
        self.assertEqual(threads("--threads", "3"), 3)
        self.assertEqual(threads(MSTAR_NUM_THREADS="2", OMP_NUM_THREADS="3"), 2)
        self.assertEqual(threads(OMP_NUM_THREADS="3"), 3)
        self.assertEqual(threads("-t", "1", MSTAR_NUM_THREADS="2"), 1)

    def test_malformed_variables_are_named(self):
        self.fails(BAD_CONFIG, "info", env=environment(MSTAR_NUM_THREADS="many"),
                   words=["MSTAR_NUM_THREADS", "'many'", "1024"])
        self.fails(BAD_CONFIG, "info", env=environment(MSTAR_NUM_THREADS="0"),
                   words=["MSTAR_NUM_THREADS", "0", "1024"])
        self.fails(BAD_CONFIG, "embed", env=environment(MSTAR_DTYPE="f64"),
                   words=["MSTAR_DTYPE", "'f64'", "f32|bf16"])
        self.fails(BAD_CONFIG, "info", env=environment(MSTAR_MAX_ISA="sse9"),
                   words=["MSTAR_MAX_ISA", "sse9"])
        self.fails(BAD_CONFIG, "info", env=environment(OMP_NUM_THREADS="abc"),
                   words=["OMP_NUM_THREADS", "abc"])
        # a flag makes the variable irrelevant; so does a command that does not take the option
        self.ok("info", "-t", "1", env=environment(MSTAR_NUM_THREADS="many"))
        self.ok("help", env=environment(MSTAR_DTYPE="f64"))


class Files(ProgramTest):
    def test_missing_input(self):
        self.fails(NO_INPUT, "embed", "-m", self.model, self.path("nothing"),
                   words=["nothing", "No such file"])
        self.fails(NO_INPUT, "embed", "-m", self.model, self.folder, words=["folder"])
        self.fails(NO_INPUT, "embed", "-m", self.model, "", words=["No such file"])

    def test_missing_model(self):
        for command, more in (("embed", []), ("tokenize", []), ("info", []),
                              ("similar", ["--query", "x"])):
            self.fails(NO_INPUT, command, "-m", self.path("no-model"), *more, words=["no-model"])

    def test_output_that_cannot_be(self):
        text = self.write("one.txt", "the cat\n")
        self.fails(CANNOT_CREATE, "embed", "-m", self.model, "-o", self.path("no/where"), text,
                   words=["no/where", "No such file"])
        self.fails(CANNOT_CREATE, "embed", "-m", self.model, "-o", self.folder, text,
                   words=["folder"])
        self.fails(CANNOT_CREATE, "embed", "-m", self.model, "-o", "", text)

    def test_damaged_models_end_with_78_and_leave_the_output_alone(self):
        text = self.write("one.txt", "the cat\n")
        self.write("out.npy", "former")

        def damaged(name, change):
            folder = self.path("damaged-" + name.replace("/", "-"))
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.model, folder)
            change(os.path.join(folder, name))
            return folder

        def cut(path):
            os.truncate(path, os.path.getsize(path) // 2)

        def empty(path):
            os.truncate(path, 0)

        def edit(**fields):
            def change(path):
                with open(path, encoding="utf-8") as file:
                    content = json.load(file)
                content.update(fields)
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(content, file)
            return change

        for name, change in (("model.safetensors", cut), ("model.safetensors", empty),
                             ("config.json", cut), ("config.json", empty),
                             ("tokenizer.json", cut), ("modules.json", cut),
                             ("1_Pooling/config.json", cut),
                             ("config.json", edit(model_type="llama")),
                             ("config.json", edit(hidden_size=64)),
                             ("config.json", edit(num_hidden_layers=3)),
                             ("config.json", edit(hidden_act="swish9"))):
            folder = damaged(name, change)
            err = self.fails(BAD_CONFIG, "embed", "-m", folder, "--format", "npy", "-o",
                             self.path("out.npy"), text)
            self.assertTrue(len(err) > len("mstar embed: \n"), err)
            self.assertEqual(self.read("out.npy"), b"former")
            self.assert_no_leftovers()
        for name in ("config.json", "model.safetensors"):
            folder = damaged(name, os.remove)
            self.fails(NO_INPUT, "embed", "-m", folder, text, words=[name])
        self.assertEqual(run("tokenize", "-m", damaged("tokenizer.json", cut), text)[0],
                         BAD_CONFIG)

    def test_options_that_do_not_fit_the_model(self):
        self.fails(USAGE, "info", "-m", self.model, "--max-tokens", "100000",
                   words=["--max-tokens is 100000", "64"])
        self.fails(USAGE, "info", "-m", self.model, "--prompt-name", "nonesuch",
                   words=["--prompt-name", "nonesuch", "query", "passage"])
        self.fails(USAGE, "info", "-m", self.model, "--batch-tokens", "31",
                   words=["--batch-tokens is 31", "32"])
        self.fails(USAGE, "embed", "-m", self.model, "--max-tokens", "1",
                   words=["--max-tokens is 1", "2"])

    def test_an_assumed_pooling_is_told(self):
        folder = self.path("no-modules")
        shutil.copytree(self.model, folder)
        os.remove(os.path.join(folder, "modules.json"))
        out, err = self.ok("embed", "-m", folder, stdin="a\n")
        self.assertIn("warning: ", err)
        self.assertIn("mean pooling is assumed", err)
        self.assertEqual(self.ok("embed", "-q", "-m", folder, stdin="a\n"), (out, ""))
        model = json.loads(self.ok("info", "--json", "-m", folder)[0])["model"]
        self.assertIn("assumed", model["pooling_source"])


class Version(ProgramTest):
    def test_version(self):
        out, _ = self.ok("version")
        for arguments in (["--version"], ["-V"], ["embed", "--version"]):
            self.assertEqual(self.ok(*arguments)[0], out)
        document = json.loads(self.ok("version", "--json")[0])
        self.assertEqual(set(document), {"version", "commit", "build", "isa", "isa_best"})
        self.assertRegex(document["version"], r"^\d+\.\d+\.\d+$")
        for value in document.values():
            self.assertIn(value, out.decode())

    def test_isa_can_be_lowered(self):
        document = json.loads(self.ok("version", "--json",
                                      env=environment(MSTAR_MAX_ISA="scalar"))[0])
        self.assertEqual(document["isa"], "scalar")


class Info(ProgramTest):
    MACHINE = {"device", "processor", "isa", "isa_best", "isa_reason", "threads", "l1d_bytes",
               "l2_bytes", "l3_bytes", "kernels"}
    MODEL = {"folder", "model_type", "activation", "layers", "heads", "head_dim", "hidden",
             "intermediate", "dims", "vocab_size", "parameters", "dtype", "pooling",
             "pooling_source", "normalize", "normalize_source", "prompt", "prompt_source",
             "max_tokens", "max_tokens_source", "max_batch_tokens", "workers", "weight_bytes",
             "arena_bytes"}

    def info(self, *arguments):
        return json.loads(self.ok("info", "--json", *arguments)[0])

    @unittest.skipUnless(CACHES and platform.machine() == "x86_64", "the system lists no caches")
    def test_caches_of_one_core(self):
        """Not of all cores of the package together, which is what the C library tells of some."""
        sizes = {}
        for cache in CACHES:
            level, kind, size = ((cache / name).read_text().strip()
                                 for name in ("level", "type", "size"))
            sizes.setdefault(level + kind, set()).add(int(size.removesuffix("K")) * 1024)
        machine = self.info()["machine"]
        for cache, key in (("1Data", "l1d_bytes"), ("2Unified", "l2_bytes"), ("3Unified", "l3_bytes")):
            if cache in sizes:
                self.assertIn(machine[key], sizes[cache], key)

    def test_machine_part(self):
        document = self.info()
        self.assertEqual(set(document), {"version", "machine", "gpu", "gpu_reason", "graphs", "model"})
        self.assertEqual(document["gpu"] is None, bool(document["gpu_reason"]))
        self.assertIsNone(document["model"])
        self.assertEqual(set(document["machine"]), self.MACHINE)
        kernels = document["machine"]["kernels"]
        self.assertLessEqual({"attention", "linear"}, {k["op"] for k in kernels})
        for kernel in kernels:
            self.assertEqual(set(kernel), {"op", "dtype", "symbol", "reason"})
            self.assertTrue(all(kernel.values()))

    def test_model_part(self):
        model = self.info("-m", self.model)["model"]
        self.assertEqual(set(model), self.MODEL)
        want = {"folder": self.model, "model_type": "bert", "layers": 2, "heads": 4, "head_dim": 8,
                "hidden": 32, "intermediate": 64, "dims": 32, "dtype": "f32", "pooling": ["mean"],
                "normalize": True, "max_tokens": 32, "prompt": ""}
        self.assertEqual({k: model[k] for k in want}, want)
        self.assertIn("1_Pooling", model["pooling_source"])
        self.assertIn("sentence_bert_config", model["max_tokens_source"])
        self.assertGreater(model["weight_bytes"], 4 * model["parameters"] // 2)
        self.assertGreater(model["arena_bytes"], 0)

    def test_options_change_what_is_said(self):
        model = self.info("-m", self.model, "--pooling", "cls", "--no-normalize", "--dtype",
                          "bf16", "--max-tokens", "16", "--prompt-name", "query")["model"]
        want = {"pooling": ["cls"], "normalize": False, "dtype": "bf16", "max_tokens": 16,
                "prompt": "query: "}
        self.assertEqual({k: model[k] for k in want}, want)

    def test_f16_is_for_gpus(self):
        self.fails(USAGE, "info", "-m", self.model, "--dtype", "f16",
                   words=["--dtype is f16", "must be f32 or bf16"])
        self.fails(USAGE, "embed", "-m", self.model, "--dtype", "f8",
                   words=["--dtype", "f32|bf16|f16"])

    def test_text_holds_the_same_values(self):
        text = self.ok("info", "-m", self.model)[0].decode()
        document = self.info("-m", self.model)
        for section in ("machine", "model"):
            self.assertIn(f"\n{section}\n", text)
            for key, value in document[section].items():
                if isinstance(value, (str, int)) and not isinstance(value, bool):
                    self.assertRegex(text, rf"(?m)^  {key.replace('_', ' ')} +"
                                           rf"{re.escape(str(value))}$")


if __name__ == "__main__":
    main()
