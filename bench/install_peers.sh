#!/usr/bin/env bash
# install_peers.sh - make build/bench-venv and bring it to bench/peer_requirements.txt.
#
# One package after another: a peer that cannot be installed is named and left out here, and its
# row of the comparison says so. What is there already is not fetched again. llama.cpp is compiled
# with the instructions of this machine; JOBS says with how many processes.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
exec 9>build/.bench-venv.lock
flock 9

python=build/bench-venv/bin/python
if ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "making build/bench-venv with $(python3 --version)"
    rm -rf build/bench-venv
    python3 -m venv build/bench-venv
fi

export CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF"
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
have=$("$python" -m pip freeze --all --disable-pip-version-check | tr '[:upper:]_' '[:lower:]-')
while read -r wanted; do
    case $wanted in '' | '#'*) continue ;; esac
    if grep -qxF "$wanted" <<<"$have"; then
        continue
    fi
    echo "installing $wanted"
    "$python" -m pip install --quiet --disable-pip-version-check "$wanted" ||
        echo "install_peers.sh: $wanted could not be installed; its rows will say so" >&2
done <bench/peer_requirements.txt
