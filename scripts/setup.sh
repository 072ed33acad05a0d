#!/usr/bin/env bash
# Everything that a demo or a test needs: system packages, virtual environment, store, base image.
# Each part is skipped where it is already there, so that this may be run at any time.
#
#   scripts/setup.sh            all of it (root)
#   scripts/setup.sh --python   the virtual environment alone (no root, if the tools are there)
#   scripts/setup.sh --more EXTRA...   what further extras of setup.cfg need (notebooks, docs)
#   scripts/setup.sh --browser  a Chromium without a window, to look at the pages of runs
#   scripts/setup.sh --remove   take the virtual environment and the store away again
source "$(dirname "$0")/common.sh"

EXTRAS=btrfs,docker,llm,cli,plots,notebooks,test

# What provides what, in two steps: the first lets the base and the virtual environment begin.
FIRST=(mmdebstrap python3-venv ca-certificates)
SECOND=(btrfs-progs libbtrfsutil-dev gcc libc6-dev python3-dev iproute2 xz-utils
    zstd)

find_python() {
    local each
    for each in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
        if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$each"
            return
        fi
    done
    return 1
}

have_first() {
    command -v mmdebstrap && "$(find_python)" -c 'import ensurepip, venv'
} >/dev/null 2>&1

have_second() {
    command -v mkfs.btrfs && command -v cc && command -v ip && command -v xz && command -v zstd &&
        [ -e /usr/include/btrfsutil.h ] &&
        [ -e "$(cc -print-file-name=libc.a)" ] && "$(find_python)" -c '
import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())'
} >/dev/null 2>&1

need_apt() { # need_apt PACKAGES...: stop with a clear sentence where apt cannot do it
    command -v apt-get >/dev/null ||
        die "this machine has no apt" "install what Debian calls: $*; then run this again"
    [ "$(id -u)" = 0 ] ||
        die "system packages are missing and installing them needs root" \
            "run it as root, or: sudo apt-get install $*"
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y \
        --no-install-recommends "$@"
}

stamp() { # what the virtual environment was made from
    { "$VENV/bin/python" -V && cat setup.cfg setup.py pyproject.toml; } 2>/dev/null | sha256sum
}

venv_ready() {
    [ -x "$VENV/bin/python" ] && [ "$(stamp)" = "$(cat "$VENV/.sprout-ready" 2>/dev/null)" ]
}

pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

requirements() { # requirements EXTRA...: what setup.cfg asks for, one a line
    "$VENV/bin/python" - "$@" <<'PY'
import configparser, sys
config = configparser.ConfigParser()
config.read("setup.cfg")
texts = [config["options"]["install_requires"]]
texts += [config["options.extras_require"].get(extra, "") for extra in sys.argv[1:]]
print("\n".join(line for text in texts for line in text.split("\n") if line.strip()))
PY
}

make_venv() {
    [ -x "$VENV/bin/python" ] || "$(find_python)" -m venv "$VENV"
    # Only what needs no compiler: that may still be on its way.
    # shellcheck disable=SC2086 — a list of words
    requirements $(tr , ' ' <<<"${EXTRAS/btrfs,/}") >"$LOGS/requirements"
    pip install -r "$LOGS/requirements"
}

install_package() {
    pip install --no-build-isolation -e ".[$EXTRAS]"
    "$VENV/bin/python" -c "from sprout_env.sandbox.native.init_binary import init_binary as b; b()"
    stamp >"$VENV/.sprout-ready"
}

STORE=${SPROUT_STORE:-/var/lib/sprout}

base_ready() { # the base of the bundled suite is in the store
    "$VENV/bin/python" - "$STORE" <<'PY'
import sys
from pathlib import Path
from sprout_env.disks.images.aliases import SEEDBED_BASE, resolve
from sprout_env.disks.images.bases import digest_of, find_base
from sprout_env.disks.images.debian import debian_facts
target = resolve(Path(sys.argv[1]), SEEDBED_BASE)
digest = target if isinstance(target, str) else digest_of(*debian_facts(target))
sys.exit(find_base(Path(sys.argv[1]), digest) is None)
PY
}

# A base needs the store's folder alone, so that it may be made while packages still arrive.
make_base() {
    "$VENV/bin/python" - "$STORE" <<'PY'
import sys
from pathlib import Path
from sprout_env.disks.images import SEEDBED_BASE, base
from sprout_env.tasks.task import NamedImage
base(Path(sys.argv[1]), NamedImage(name=SEEDBED_BASE), progress=print)
PY
}

make_store() { "$VENV/bin/python" -m sprout_env store init --store "$STORE"; }

need_python() {
    find_python >/dev/null ||
        die "no Python 3.11 or newer was found" "install one, or name it: PYTHON=/path/to/python3"
}

setup_python() {
    need_python
    if venv_ready; then return; fi
    have_second || need_apt "${FIRST[@]}" "${SECOND[@]}"
    if ! have_first || ! have_second; then
        phase "package lists" apt-get update
        phase "system packages" apt_install "${FIRST[@]}" "${SECOND[@]}"
    fi
    phase "virtual environment" make_venv
    phase "package, sandbox init and btrfs binding" install_package
}

setup_all() {
    local start apt=0 base=0
    start=$(now_ms)
    [ "$(id -u)" = 0 ] ||
        die "sandboxes, overlay mounts and btrfs need root" \
            "run it as root, or in a virtual machine; without root, make check tests what it can"
    if ! have_first; then
        need_apt "${FIRST[@]}" "${SECOND[@]}"
        phase "package lists" apt-get update
        phase "first system packages" apt_install "${FIRST[@]}"
    fi
    need_python
    # From here up to three things go on at once: packages, virtual environment, base image.
    if ! have_second; then
        need_apt "${SECOND[@]}"
        [ -n "$(ls /var/lib/apt/lists/*Packages* 2>/dev/null)" ] || phase "package lists" apt-get update
        phase "other system packages" apt_install "${SECOND[@]}" &
        apt=$!
    fi
    local ready=1
    venv_ready || ready=0
    if [ "$ready" = 0 ]; then phase "virtual environment" make_venv; fi
    if ! base_ready; then
        phase "base image, in $STORE" make_base &
        base=$!
    fi
    if [ "$apt" != 0 ]; then wait "$apt" || exit 1; fi
    if [ "$ready" = 0 ]; then phase "package, sandbox init and btrfs binding" install_package; fi
    if [ "$base" != 0 ]; then wait "$base" || exit 1; fi
    # Its kind is chosen now that all packages are there.
    [ -e "$STORE/store.json" ] || phase "store, in $STORE" make_store
    if [ "$apt$base$ready" != 001 ]; then
        local ms=$(($(now_ms) - start))
        printf '  %4d.%d s  set-up in all\n' $((ms / 1000)) $((ms % 1000 / 100))
    fi
}

has_browser() { apt-cache show chromium-headless-shell; } >/dev/null 2>&1

# Tests draw the page of a run in it and read what became of it. 160 MB on a bare Debian; Ubuntu has
# a browser as a snap alone.
setup_browser() {
    local each
    for each in chromium chromium-headless-shell chromium-browser google-chrome; do
        if command -v "$each" >/dev/null; then return; fi
    done
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        has_browser || phase "package lists" apt-get update
    fi
    if [ "$(id -u)" = 0 ] && has_browser; then
        phase "browser for the pages of runs" apt_install chromium-headless-shell
    else
        say "no Chromium, and no package of one here: tests that draw pages are skipped"
    fi
}

remove_all() {
    if [ -d "$STORE" ]; then
        [ ! -x "$VENV/bin/python" ] || "$VENV/bin/python" -m sprout_env sweep || true
        # Never past a mount: what still hangs there is in use.
        rm -rf --one-file-system "$STORE"
    fi
    rm -rf "$VENV"
}

case "${1:-}" in
"") setup_all ;;
--python) setup_python ;;
--more)
    shift
    requirements "$@" >"$LOGS/more"
    pip install -r "$LOGS/more"
    ;;
--browser) setup_browser ;;
--remove) remove_all ;;
*) die "unknown option $1" "see the head of $0" ;;
esac
