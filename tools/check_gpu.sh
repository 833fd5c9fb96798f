#!/usr/bin/env bash
# check_gpu.sh TEST... - all that a machine with a card can say, in one go: the tests on cuda:0, the soaks, the tests of
# the Python package, tests under compute-sanitizer where there is one, then the benches. Each part runs whatever became
# of the one before; the last lines sum up, and the exit code is that of the worst. A part that answers 77 says itself
# why it did not run, and is not counted as passed. DEVICE, TOOLS, BENCH_FLAGS, GPU_PYTHON as in `make gpu`.
#
# SOAKS       NAME:COUNT of each soak program
# TOOL_TESTS  the tests that run under the tools (all that are named), TOOL_PART: of their random cases one in so many,
#             TOOL_SECONDS: of one test under one tool; what needs longer has failed
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
device=${DEVICE:-cuda:0}
tool_part=${TOOL_PART:-20}
tool_seconds=${TOOL_SECONDS:-120}
summary=()
worst=0

part() { # NAME COMMAND...
    local name=$1 begin=$SECONDS code=0
    shift
    echo "==== $name"
    "$@" || code=$?
    case $code in
        0) summary+=("ok: $name, $((SECONDS - begin)) s") ;;
        77) summary+=("NOT RUN: $name") ;;
        *) worst=1 && summary+=("FAILED ($code): $name, $((SECONDS - begin)) s") ;;
    esac
}

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for test in "$@"; do
    part "$test" "build/cuda/tests/test_$test" "$device"
done
for soak in ${SOAKS-}; do
    part "soak of $soak" "build/cuda/soak/soak_${soak%:*}" "${soak#*:}" 1 "$device"
done
part "the Python package (NOT RUN only without torch)" "${GPU_PYTHON:-python3}" python/tests/run_on_a_gpu.py build/cuda
for tool in ${TOOLS-memcheck racecheck initcheck}; do
    if [ -z "$sanitizer" ]; then
        summary+=("NOT RUN: $tool, there is no compute-sanitizer")
        continue
    fi
    echo "==== $tool: one in $tool_part of the random cases, at most $tool_seconds s a test"
    for test in ${TOOL_TESTS-"$@"}; do
        part "$tool of $test" env MSTAR_TEST_PART="$tool_part" timeout "$tool_seconds" \
            "$sanitizer" --tool "$tool" --error-exitcode 9 "build/cuda/tests/test_$test" "$device"
    done
done
# shellcheck disable=SC2086 # flags are several words
part "benches" python3 bench/run_gpu.py --device "$device" --check-goals ${BENCH_FLAGS:-}
printf '%s\n' "==== summary" "${summary[@]}"
exit $worst
