"""What a site's network needs of images: its certificates, and variables of its own.

Behind a proxy that ends TLS, pip, npm, curl and git need the proxy's certificate. Bases that this
package makes hold it; for any other image it is written into the disk, and six variables name it,
while it is built and whenever a sandbox over it has a network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pydantic import Field

from sprout_env.disks.images.debian import CA_BUNDLE, CA_VARIABLES, custom_ca_bundle
from sprout_env.transcript import Frozen


class NetworkConfig(Frozen):
    """What is added to sandboxes that have a network."""

    ca_bundle: Path | None = None
    """A file of certificates on this machine; None: the images' own do."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables, such as those of an index of packages; an image's own win."""

    @classmethod
    def here(cls) -> NetworkConfig:
        """Return this machine's, read now.

        The certificates are those of ``$SPROUT_CA_BUNDLE``, else the host's where it has more than
        its distribution's; ``$SPROUT_NETWORK_ENV`` names variables to hand on, comma-separated.
        """
        told = os.environ.get("SPROUT_CA_BUNDLE")
        names = os.environ.get("SPROUT_NETWORK_ENV", "").split(",")
        return cls(
            ca_bundle=Path(told) if told else custom_ca_bundle(),
            env={name: os.environ[name] for name in names if name in os.environ},
        )

    def bundle_for(self, have: Mapping[str, str]) -> Path | None:
        """Return the bundle, unless an image with these variables brings its own."""
        return None if any(name in have for name in CA_VARIABLES) else self.ca_bundle

    def variables(self, have: Mapping[str, str]) -> dict[str, str]:
        """Return what is to be added to an image's own variables."""
        added = {name: value for name, value in self.env.items() if name not in have}
        if self.bundle_for(have) is not None:
            added |= dict.fromkeys(CA_VARIABLES, CA_BUNDLE)
        return added


def forget_bundle(root: Path) -> None:
    """Take the bundle out of a built layer; no link of the image's is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    path = PurePosixPath(CA_BUNDLE)
    at = os.open(root, flags)
    try:
        for part in path.parent.parts[1:-1]:
            below = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = below
        folder = os.open(path.parent.name, flags, dir_fd=at)
        try:
            os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)
        with suppress(OSError):
            os.rmdir(path.parent.name, dir_fd=at)
    except OSError:
        return
    finally:
        os.close(at)
