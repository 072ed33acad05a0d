#!/usr/bin/env bash
# Ruff, mypy and every test, then a look at what was left behind. Ends with one line that counts.
#
#   PYTEST_ARGS="-k snapshots" scripts/test.sh     hand more arguments to pytest
source "$(dirname "$0")/common.sh"

PYTHON="$VENV/bin/python"
# Notebooks and documentation are executed with the tests; a demo needs neither.
scripts/setup.sh --more notebooks docs
scripts/setup.sh --browser
SPROUT_TEST_BASE=$("$PYTHON" -m sprout_env image path sprout/seedbed-base)
export SPROUT_TEST_BASE
WORKERS=${WORKERS:-$(nproc)}
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/sprout-test.XXXXXX")
failed=0

cleanup() {
    finish
    rm -rf --one-file-system "$SCRATCH"
}
trap cleanup EXIT

suite() { # suite NAME ARGUMENTS...: run pytest, keep its counts
    local name=$1
    shift
    say
    say "== $name"
    # shellcheck disable=SC2086 — PYTEST_ARGS is a list of words
    "$PYTHON" -m pytest -q --basetemp="$SCRATCH/$name" --junitxml="$LOGS/junit-$name.xml" \
        "$@" ${PYTEST_ARGS:-} || { local rc=$?; [ "$rc" = 5 ] || failed=1; }
}

say "== style"
"$VENV/bin/ruff" check . || failed=1
"$VENV/bin/ruff" format --check . || failed=1

# Types are checked while tests run; what it says is shown when they are done.
"$VENV/bin/mypy" >"$LOGS/mypy" 2>&1 &
mypy=$!

scripts/leftovers.sh list "$SCRATCH" >"$LOGS/before"
PARALLEL=(-n "$WORKERS" --dist loadfile)

# Layers of an overlay are given by descriptor where the kernel can, else by path; both are tested.
mode=$("$PYTHON" -m sprout_env doctor --overlay-mode)
suite everything "${PARALLEL[@]}" tests
if [ "$mode" = fd ]; then
    SPROUT_OVERLAY=path suite overlay-by-path "${PARALLEL[@]}" -m root \
        tests/disks tests/sandbox tests/test_env.py tests/test_snapshots.py
else
    say "overlay layers by descriptor are not tested: this kernel cannot (6.13 can)"
fi

say
say "== types"
wait "$mypy" || failed=1
cat "$LOGS/mypy"

say
say "== left behind"
rm -rf --one-file-system "$SCRATCH"/* || failed=1
# What tests left that kill their own processes is cleared as any next start would do it.
"$PYTHON" -m sprout_env sweep
scripts/leftovers.sh list "$SCRATCH" >"$LOGS/after"
if left=$(comm -13 "$LOGS/before" "$LOGS/after") && [ -n "$left" ]; then
    say "$left"
    failed=1
else
    say "nothing"
fi

say
"$PYTHON" scripts/count.py "$LOGS"/junit-*.xml
exit "$failed"
