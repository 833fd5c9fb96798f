"""What a row of a result says about where it came from, and how its numbers are written."""
import contextlib
import datetime
import fcntl
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def add_options(parser):
    """What both benches take."""
    parser.add_argument("--name", default="", help="what the machine is called in results and their "
                        "files; default: as its processor calls itself, which virtual machines do "
                        "alike for several generations")
    parser.add_argument("--lock", default=[], type=lambda text: text.split(","), help="lock files "
                        "with commas, held while something is measured: for machines whose users "
                        "agree on such files")


@contextlib.contextmanager
def alone(given):
    """Holds the lock files of --lock, in their order, while something is measured."""
    with contextlib.ExitStack() as stack:
        for path in given.lock:
            file = stack.enter_context(open(path, "a", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def slug(model, isa):
    """Names of result files: the machine's name and the level, since virtual machines give one
    name to processors of different levels."""
    text = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", model.lower())
    return re.sub(r"[^a-z0-9]+", "-", f"{text} {isa}").strip("-")


def commit():
    """Short hash of the tree that is measured; '+changes' where tracked files differ from it, results and
    documents apart."""
    def git(*words):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    short = git("rev-parse", "--short=10", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results",
                  ":!docs")
    return short + "+changes" * bool(changed) if short else "unknown"


def today():
    return datetime.date.today().isoformat()


def plain(value):
    """Four significant digits without an exponent: more would be noise."""
    return f"{float(f'{value:.4g}'):.10g}"
