#!/usr/bin/env bash
# install_deps.sh GROUP... - install the Debian packages that are missing for the given groups.
#
#   build   compile the library and the program
#   venv    a Python that can make virtual environments (fetching the model, tests)
#   test    the C test library
#   python  the headers that the Python package's extension is compiled against
#   clang   the second compiler of CI
#   format  clang-format
#   analyze clang-tidy
#   valgrind
#   cross   the aarch64 compiler and the user-mode emulator of CI
#
# Asks dpkg first: when everything is there it changes nothing and needs neither root nor a network.
set -euo pipefail

needed=()
need() { # PACKAGE...: those that dpkg does not hold as installed
    local package
    for package in "$@"; do
        if ! dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii'; then
            needed+=("$package")
        fi
    done
}

if [ $# -eq 0 ]; then
    echo "usage: install_deps.sh build|venv|test|python|clang|format|analyze|valgrind|cross..." >&2
    exit 2
fi
if ! command -v dpkg-query >/dev/null; then
    echo "install_deps.sh: this is not a Debian system; install by hand: a C17 and C++17 compiler," \
        "cmake 3.25, ninja, pkg-config, jansson, utf8proc, cmocka, python3 with venv and headers" >&2
    exit 0
fi

for group in "$@"; do
    case $group in
    build) need build-essential cmake ninja-build pkg-config libjansson-dev libutf8proc-dev ;;
    venv) python3 -c 'import ensurepip, venv' 2>/dev/null || need python3 python3-venv ;;
    test) need libcmocka-dev ;;
    python)
        python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' \
            2>/dev/null || need python3-dev
        ;;
    clang) command -v clang >/dev/null || need clang ;;
    format) command -v clang-format >/dev/null || need clang-format ;;
    analyze) command -v clang-tidy >/dev/null || need clang-tidy ;;
    valgrind) need valgrind ;;
    cross) need gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user ;;
    *)
        echo "install_deps.sh: group '$group' is none of build, venv, test, python, clang, format," \
            "analyze, valgrind, cross" >&2
        exit 2
        ;;
    esac
done

if [ ${#needed[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "install_deps.sh: missing packages; run as root: apt-get install ${needed[*]}" >&2
    exit 1
fi

echo "installing: ${needed[*]}"
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
for try in 1 2 3; do
    if "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${needed[@]}"; then
        exit 0
    fi
    echo "install_deps.sh: try $try of 3 failed" >&2
    sleep $((try * 5))
done
exit 1
