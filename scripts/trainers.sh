#!/usr/bin/env bash
# The tests of each trainer, in that trainer's own environment (see trainer_env.sh).
#
#   scripts/trainers.sh [NAME...]     all of them, or those named
source "$(dirname "$0")/common.sh"

SPROUT_TEST_BASE=${SPROUT_TEST_BASE:-$("$VENV/bin/python" -m sprout_env image path sprout/seedbed-base)}
export SPROUT_TEST_BASE HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 OMP_WAIT_POLICY=PASSIVE
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/sprout-trainers.XXXXXX")
failed=0

cleanup() {
    finish
    rm -rf --one-file-system "$SCRATCH"
}
trap cleanup EXIT

mapfile -t known < <(scripts/trainer_env.sh --list)
for name in "${@:-${known[@]}}"; do
    say
    say "== $name"
    file=tests/integrations/test_${name//-/_}
    [ -e "$file.py" ] || { say "no test"; continue; }
    if ! python=$(scripts/trainer_env.sh "$name"); then
        say "skipped: its environment cannot be had here"
        continue
    fi
    # One name may have several files (test_trl.py, test_trl_sync.py); of those that are for all,
    # what needs another trainer is skipped.
    "$python" -m pytest -q -p no:cacheprovider --basetemp="$SCRATCH/$name" "$file"*.py \
        tests/integrations/test_recipes.py tests/integrations/test_bad_input.py \
        ${PYTEST_ARGS:-} || failed=1
done
exit "$failed"
