#!/usr/bin/env bash
# check_gpu.sh TEST... - all that a machine with a card can say, in one go: the tests on cuda:0, the same under
# compute-sanitizer where there is one, then the benches. Each part runs whatever became of the one before; the last
# lines sum up, and the exit code is that of the worst. DEVICE, TOOLS, BENCH_FLAGS as in `make gpu`.
set -uo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda:0}
summary=()
worst=0

part() { # NAME COMMAND...
    local name=$1 begin=$SECONDS code=0
    shift
    echo "==== $name"
    "$@" || code=$?
    [ $code = 0 ] || worst=1
    summary+=("$([ $code = 0 ] && echo ok || echo "FAILED ($code)"): $name, $((SECONDS - begin)) s")
}

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for test in "$@"; do
    part "$test" "build/cuda/tests/test_$test" "$device"
done
for tool in ${TOOLS-memcheck racecheck initcheck}; do
    if [ -z "$sanitizer" ]; then
        summary+=("NOT RUN: $tool, there is no compute-sanitizer")
        continue
    fi
    for test in "$@"; do
        part "$tool of $test" "$sanitizer" --tool "$tool" --error-exitcode 9 "build/cuda/tests/test_$test" "$device"
    done
done
# shellcheck disable=SC2086 # flags are several words
part "benches" python3 bench/run_gpu.py --device "$device" --check-goals ${BENCH_FLAGS:-}
printf '%s\n' "==== summary" "${summary[@]}"
exit $worst
