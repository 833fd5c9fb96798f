#!/usr/bin/env bash
# run_valgrind.sh BUILD PATTERN JOBS - the unit tests of BUILD whose names match, under valgrind: no read
# of memory that was never written, none outside a block, nothing lost.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export here
build=$1 pattern=$2 jobs=$3

run_one() {
    local log
    log=$(mktemp)
    if valgrind -q --suppressions="$here/valgrind.supp" --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
        "$1" >"$log" 2>&1; then
        echo "clean   $(basename "$1")"
        rm -f "$log"
        return 0
    fi
    echo "FAILED  $(basename "$1")"
    cat "$log"
    rm -f "$log"
    return 1
}
export -f run_one

mapfile -t programs < <(find "$build/tests" -maxdepth 1 -type f -executable | grep -E "/$pattern" | sort)
if [ ${#programs[@]} -eq 0 ]; then
    echo "run_valgrind.sh: no test of $build matches $pattern" >&2
    exit 1
fi
printf '%s\0' "${programs[@]}" | xargs -0 -P "$jobs" -n 1 bash -c 'run_one "$0" || exit 255'
echo "run_valgrind.sh: ${#programs[@]} programs are clean"
