#!/usr/bin/env bash
# check_gpu.sh TEST... - all that a machine with a card can say, in one go: the tests on cuda:0, the soaks, the tests of
# the Python package, tests under compute-sanitizer where there is one, then the benches. Parts run beside each other,
# Python's and the benches alone, each whatever becomes of the others; what a part that failed has said is shown, and
# what another has left out. The last line sums up, and the exit code is 1 where a part failed. A part that answers 77
# says itself why it did not run, and is not counted as passed. DEVICE, TOOLS, BENCH_FLAGS, GPU_PYTHON as in `make gpu`.
#
# PARTS       of tests, tools and benches those to run (all)
# GPU_JOBS    parts at once (8): each is a process with memory of its own on the card
# SOAKS       NAME:COUNT of each soak program
# TOOL_TESTS  the tests that run under the tools (all that are named), TOOL_PART: of their random cases one in so many,
#             TOOL_SECONDS: of one test under one tool; what needs longer has failed
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
device=${DEVICE:-cuda:0}
at_once=$((${GPU_JOBS:-8} > 0 ? ${GPU_JOBS:-8} : 1))
parts=" ${PARTS:-tests tools benches} "
tool_part=${TOOL_PART:-20}
tool_seconds=${TOOL_SECONDS:-300}
logs=$(mktemp -d) || exit 2
trap 'rm -rf "$logs"' EXIT
: >"$logs/summary"

run() { # NAME COMMAND...
    local name=$1 begin=$SECONDS code=0 log line
    log=$(mktemp "$logs/XXXXXX")
    shift
    "$@" >"$log" 2>&1 || code=$?
    case $code in
        0) line="ok: $name, $((SECONDS - begin)) s" ;;
        77) line="NOT RUN: $name" ;;
        *) line="FAILED ($code): $name, $((SECONDS - begin)) s" ;;
    esac
    {
        flock 9
        if [ "$code" = 0 ]; then
            grep -a 'NOT RUN' "$log" # what a part that passed has left out
        else
            echo "==== $name"
            cat "$log"
        fi
        echo "$line" | tee -a "$logs/summary"
    } 9>"$logs/lock"
    rm -f "$log"
}

part() { # NAME COMMAND...
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
        wait -n
    done
    run "$@" &
}

if [[ $parts == *" tests "* ]]; then
    for soak in ${SOAKS-}; do
        part "soak of $soak" "build/cuda/soak/soak_${soak%:*}" "${soak#*:}" 1 "$device"
    done
    for test in "$@"; do
        part "$test" "build/cuda/tests/test_$test" "$device"
    done
    wait
    # some of these watch the card's free memory
    run "the Python package (NOT RUN only without torch)" "${GPU_PYTHON:-python3}" python/tests/run_on_a_gpu.py \
        build/cuda
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [[ $parts == *" tools "* ]]; then
    for tool in ${TOOLS-memcheck racecheck initcheck}; do
        if [ -z "$sanitizer" ]; then
            run "$tool" sh -c 'echo "there is no compute-sanitizer"; exit 77'
            continue
        fi
        for test in ${TOOL_TESTS-"$@"}; do
            part "$tool of $test, one in $tool_part of the random cases" env MSTAR_TEST_PART="$tool_part" \
                timeout "$tool_seconds" "$sanitizer" --tool "$tool" --error-exitcode 9 "build/cuda/tests/test_$test" \
                "$device"
        done
    done
fi
wait

if [[ $parts == *" benches "* ]]; then
    # shellcheck disable=SC2086 # flags are several words
    run "benches" python3 bench/run_gpu.py --device "$device" --check-goals ${BENCH_FLAGS:-}
fi

failed=$(sed -n 's/^FAILED ([0-9]*): \(.*\), [0-9]* s$/\1/p' "$logs/summary" | paste -sd, | sed 's/,/, /g')
echo "$(grep -c '^ok: ' "$logs/summary") parts passed, $(grep -c '^NOT RUN: ' "$logs/summary") not run," \
    "$(grep -c '^FAILED ' "$logs/summary") failed${failed:+: $failed}"
[ -z "$failed" ]
