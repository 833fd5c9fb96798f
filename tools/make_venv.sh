#!/usr/bin/env bash
# make_venv.sh [REQUIREMENTS] - make build/venv, and bring it to REQUIREMENTS.
#
# Made with whatever python3 comes first. Where everything is there already nothing is fetched. One
# run at a time: a second one waits.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
exec 9>build/.venv.lock
flock 9

python=build/venv/bin/python
if ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "making build/venv with $(python3 --version)"
    rm -rf build/venv
    python3 -m venv build/venv
fi
if [ $# -gt 0 ]; then
    for try in 1 2 3; do
        if "$python" -m pip install --quiet --disable-pip-version-check --retries 5 -r "$1"; then
            exit 0
        fi
        echo "make_venv.sh: try $try of 3 failed" >&2
        sleep $((try * 5))
    done
    exit 1
fi
