"""What a row of a result needs to say about where it came from."""
import datetime
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cpu_model():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", text, re.M)
    return found.group(1).strip() if found else "unknown"


def slug(model, isa):
    """Names of result files: the processor as it calls itself, and the level, since virtual
    machines give one name to processors of different levels."""
    text = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", f"{model} {isa}".lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


def commit():
    """Short hash of the tree that is measured; '+changes' where tracked files differ from it."""
    def git(*words):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    short = git("rev-parse", "--short=10", "HEAD")
    return short + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "") \
        if short else "unknown"


def today():
    return datetime.date.today().isoformat()
