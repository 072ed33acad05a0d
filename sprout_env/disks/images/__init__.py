"""How an image becomes a base: from Docker, a Dockerfile, an archive, a folder or Debian.

An image's root is copied or unpacked once into the store, read-only from then on, and found
again by the digest of what it was made from.
"""

from sprout_env.disks.images.aliases import (
    SEEDBED_BASE,
    SEEDBED_PACKAGES,
    alias,
    aliases,
    resolve,
    unalias,
)
from sprout_env.disks.images.bases import BaseInfo, drop_base, list_bases, sweep_bases
from sprout_env.disks.images.docker import docker_why_not
from sprout_env.disks.images.make import base

__all__ = [
    "SEEDBED_BASE",
    "SEEDBED_PACKAGES",
    "BaseInfo",
    "alias",
    "aliases",
    "base",
    "docker_why_not",
    "drop_base",
    "list_bases",
    "resolve",
    "sweep_bases",
    "unalias",
]
