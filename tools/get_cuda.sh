#!/usr/bin/env bash
# get_cuda.sh - nvcc into build/nvcc, where cmake/cuda.cmake finds it. It comes as Python packages, about 300 MB
# installed; nothing of it is linked. Where a toolkit is there already (nvcc 12 or newer on the PATH) nothing is done.
set -euo pipefail
cd "$(dirname "$0")/.."
version=13.0
venv=build/nvcc-venv
[ -x build/nvcc/bin/nvcc ] && exit 0
release=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p') || true
[ "${release:-0}" -ge 12 ] && exit 0
[ -x $venv/bin/pip ] || python3 -m venv $venv
$venv/bin/pip install -q --disable-pip-version-check --no-deps \
    "nvidia-cuda-nvcc==$version.*" "nvidia-cuda-crt==$version.*" "nvidia-cuda-runtime==$version.*" \
    "nvidia-nvvm==$version.*"
nvcc=$(find $venv -path '*/bin/nvcc' | head -1)
[ -n "$nvcc" ] || { echo "get_cuda.sh: the packages hold no nvcc" >&2; exit 1; }
ln -sfn "$(cd "$(dirname "$nvcc")/.." && pwd)" build/nvcc
build/nvcc/bin/nvcc --version | tail -2
