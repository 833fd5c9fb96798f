"""What a row of a result says about where it came from, and how its numbers are written."""
import datetime
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def slug(model, isa):
    """Names of result files: the processor as it calls itself, and the level, since virtual
    machines give one name to processors of different levels."""
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
