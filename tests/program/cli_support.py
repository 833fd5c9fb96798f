"""What the tests of the program share: running it, and a tiny model made on the spot.

The tiny model is a whole sentence-transformers folder (two layers, 32 wide, random weights), so that
these tests need no download and stay fast under the sanitizers.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

PROGRAM = os.environ["MSTAR_TEST_PROGRAM"]
REAL_MODEL = os.environ.get("MSTAR_TEST_MODEL", "")

OK, FAILED, USAGE, NO_INPUT, CANNOT_CREATE, IO_FAILED, BAD_CONFIG = 0, 1, 2, 66, 73, 74, 78

WORDS = ("the a cat dog sun moon rain river bread query passage sleep runs shines old new "
         "hello world").split()


def environment(**more):
    """Ours, less the variables that the program reads."""
    drop = ("MSTAR_", "OMP_", "NO_COLOR", "CLICOLOR", "TERM")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env.update(more)
    return env


def check_sane(code, stderr):
    """No signal ended it and no sanitizer spoke (whose exit code could pass for one of ours)."""
    text = stderr.decode("utf-8", "replace")
    assert code >= 0, f"ended by signal {-code}: {text}"
    assert "Sanitizer" not in text and "runtime error:" not in text, text


def run(*arguments, stdin=b"", env=None, timeout=300, **more):
    """Runs the program; stdin is bytes or text. Returns (exit code, stdout bytes, stderr text)."""
    if isinstance(stdin, str):
        stdin = stdin.encode("utf-8")
    done = subprocess.run([PROGRAM, *map(str, arguments)], input=stdin, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=env if env is not None else environment(), **more)
    check_sane(done.returncode, done.stderr)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def start(*arguments, env=None, **more):
    more.setdefault("stdin", subprocess.PIPE)
    more.setdefault("stdout", subprocess.PIPE)
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE,
                            env=env if env is not None else environment(), **more)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def make_vocabulary():
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    return (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS +
            [c for c in letters if c not in WORDS] + ["##" + c for c in letters])


def write_tokenizer(path, vocabulary):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(path)


def make_model(folder, width=32, layers=2, heads=4, inner=64, positions=64, max_tokens=32):
    """Writes the folder and returns its path."""
    os.makedirs(os.path.join(folder, "1_Pooling"))
    os.makedirs(os.path.join(folder, "2_Normalize"))
    vocabulary = make_vocabulary()
    rng = np.random.default_rng(7)

    def matrix(*shape):
        return rng.normal(0, 0.2, shape)

    tensors = {"embeddings.word_embeddings.weight": matrix(len(vocabulary), width),
               "embeddings.position_embeddings.weight": matrix(positions, width),
               "embeddings.token_type_embeddings.weight": matrix(2, width),
               "embeddings.LayerNorm.weight": 1 + matrix(width),
               "embeddings.LayerNorm.bias": matrix(width)}
    for i in range(layers):
        at = f"encoder.layer.{i}."
        for name, rows, columns in (("attention.self.query", width, width),
                                    ("attention.self.key", width, width),
                                    ("attention.self.value", width, width),
                                    ("attention.output.dense", width, width),
                                    ("intermediate.dense", inner, width),
                                    ("output.dense", width, inner)):
            tensors[at + name + ".weight"] = matrix(rows, columns)
            tensors[at + name + ".bias"] = matrix(rows)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors[at + name + ".weight"] = 1 + matrix(width)
            tensors[at + name + ".bias"] = matrix(width)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    write_tokenizer(os.path.join(folder, "tokenizer.json"), vocabulary)
    files = {
        "config.json": {"model_type": "bert", "architectures": ["BertModel"],
                        "hidden_size": width, "num_hidden_layers": layers,
                        "num_attention_heads": heads, "intermediate_size": inner,
                        "hidden_act": "gelu", "layer_norm_eps": 1e-12,
                        "max_position_embeddings": positions, "type_vocab_size": 2,
                        "vocab_size": len(vocabulary), "pad_token_id": 0,
                        "position_embedding_type": "absolute"},
        "tokenizer_config.json": {"do_lower_case": True, "model_max_length": 512},
        "sentence_bert_config.json": {"max_seq_length": max_tokens, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "query: ",
                                                          "passage": "passage: "},
                                              "default_prompt_name": None},
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling",
             "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize",
             "type": "sentence_transformers.models.Normalize"}],
        "1_Pooling/config.json": {"word_embedding_dimension": width,
                                  "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": True,
                                  "pooling_mode_max_tokens": False,
                                  "pooling_mode_mean_sqrt_len_tokens": False},
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    return folder


class ProgramTest(unittest.TestCase):
    """A temporary folder and the tiny model for each class."""

    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="mstar-test-")
        cls.folder = cls._folder.name
        cls.model = make_model(os.path.join(cls.folder, "model"))
        cls.dims = 32

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        if isinstance(content, str):
            content = content.encode("utf-8")
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def ok(self, *arguments, **more):
        """Runs and wants exit 0; returns stdout and stderr."""
        code, out, err = run(*arguments, **more)
        self.assertEqual(code, OK, err)
        return out, err

    def fails(self, code, *arguments, words=(), **more):
        """Wants this exit code, one line on stderr with these words, nothing on stdout."""
        got, out, err = run(*arguments, **more)
        self.assertEqual(got, code, err)
        self.assertEqual(out, b"")
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("mstar"), err)
        for word in words:
            self.assertIn(word, err)
        return err

    def assert_no_leftovers(self):
        hidden = [n for n in os.listdir(self.folder) if n.startswith(".mstar-")]
        self.assertEqual(hidden, [])


def jsonl(data):
    text = data.decode("utf-8")
    assert text == "" or text.endswith("\n"), "half a line at the end"
    return [json.loads(line) for line in text.splitlines()]


def vectors(data):
    return np.array([row["embedding"] for row in jsonl(data)], dtype=np.float32)


def main():
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:], verbosity=1)
