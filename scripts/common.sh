# Shared by the scripts beside it: where we are, what we print, how a phase is timed.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
LOGS=$(mktemp -d "${TMPDIR:-/tmp}/sprout-logs.XXXXXX")
finish() {
    # What still runs beside us has lost its purpose.
    jobs -p | xargs -r kill 2>/dev/null || true
    rm -rf "$LOGS"
}
trap finish EXIT

say() { printf '%s\n' "$*"; }

die() { # die SENTENCE [REMEDY]
    printf 'error: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf '  what to do: %s\n' "$2" >&2
    exit 1
}

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# phase NAME COMMAND...: say that it begins, run it quietly, print its time; its output only if it
# fails.
phase() {
    local name=$1 start log rc=0
    shift
    start=$(now_ms)
    printf '     ...    %s\n' "$name"
    log="$LOGS/${name//[^a-z0-9]/-}"
    "$@" >"$log" 2>&1 || rc=$?
    local ms=$(($(now_ms) - start))
    if [ "$rc" -ne 0 ]; then
        printf '  failed after %d.%d s: %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$name" >&2
        tail -n 40 "$log" | sed 's/^/    | /' >&2
        return "$rc"
    fi
    printf '  %4d.%d s  %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$name"
}
