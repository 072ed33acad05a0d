#!/usr/bin/env bash
# The main job, end to end: SPROUT on the bundled suite, then one rescued task in detail.
# The actor is a simulation with fixed seed and skill; everything around it is real.
#
#   TASKS=all make demo     also the two longest tasks (65 and 207 steps), which take a minute more
source "$(dirname "$0")/common.sh"

RUN=${RUN:-runs/demo}
JOBS=${JOBS:-$(($(nproc) * 2))}
SHORT="build-cache-repair certificate-rotation git-history-rescue service-config-handover
    shop-schema-migration tenant-split"
sprout() { "$VENV/bin/python" -m sprout_env "$@"; }

chosen=()
if [ "${TASKS:-}" != all ]; then
    for task in ${TASKS:-$SHORT}; do chosen+=(--task "$task"); done
fi

phase "task images" sprout image build --suite seedbed

# A run's folder resumes what it holds; the demo starts anew.
rm -rf "$RUN"
say
sprout run seedbed --method sprout "${chosen[@]}" \
    --actor simulated:skill=0.7,accuracy=0.9 --seed 7 \
    --roots 2 --rounds 2 --branches 2 --jobs "$JOBS" --out "$RUN"

say
say "Why did a root fail, and which turn did the reviewer choose? As a page: $VENV/bin/sprout view $RUN"
say
say "One rescued task (sprout show $RUN --rescued --limit 1):"
say
sprout show "$RUN" --rescued --limit 1
