#!/usr/bin/env bash
# What a run of tests may have left: mounts, loop devices, control groups and processes of ours.
#
#   scripts/leftovers.sh list FOLDER     one sorted line each; only loops and mounts below FOLDER
set -euo pipefail

folder=$(realpath "$2")
{
    awk -v f="$folder" 'index($5 "/", f "/") == 1 {print "mount " $5}' /proc/self/mountinfo
    for each in /sys/block/loop*/loop/backing_file; do
        [ -e "$each" ] || continue
        backing=$(cat "$each" 2>/dev/null || true)
        case "$backing/" in "$folder/"*) echo "loop device of $backing" ;; esac
    done
    # A control group's name tells its owner's pid; tests that kill an owner sweep what it left.
    for each in /sys/fs/cgroup/sprout/*-*-*-* /sys/fs/cgroup/*/sprout/*-*-*-*; do
        [ -d "$each" ] || continue
        IFS=- read -r _ pid _ <<<"${each##*/}"
        [ -e "/proc/$pid" ] || echo "control group $each"
    done
    # An init whose owner is gone has no reason to be there.
    for each in /proc/[0-9]*/stat; do
        # It may have ended since it was listed.
        { read -r line <"$each"; } 2>/dev/null || continue
        case "$line" in
        *"(sprout-init)"*)
            rest=${line##*) }
            set -- $rest
            [ "$2" != 1 ] || echo "orphaned sandbox ${line%% *}"
            ;;
        esac
    done
} | sort
