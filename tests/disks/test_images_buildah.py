"""Buildah, for real: a Dockerfile becomes a base without a daemon, and nothing else is left."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sprout_env.disks import images
from sprout_env.disks.images.make import base
from sprout_env.tasks.task import DockerfileImage

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed"),
    pytest.mark.skipif(
        images.docker_why_not() is None, reason="Docker's engine is here and comes first"
    ),
]

PROGRAM = '#include <fcntl.h>\nint main(void) { return creat("/made", 0644) < 0; }\n'
DOCKERFILE = """\
FROM scratch
COPY program /program
RUN ["/program"]
ENV A=b
WORKDIR /srv
USER 1000:1000
VOLUME /data
ENTRYPOINT ["/program"]
CMD ["x"]
"""


def kept_by_buildah() -> list[str]:
    told = subprocess.run(["buildah", "images", "-aq"], capture_output=True, text=True, check=True)
    return sorted(told.stdout.split())


def test_a_dockerfile_becomes_a_base(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    subprocess.run(
        ["cc", "-static", "-x", "c", "-", "-o", context / "program"],
        input=PROGRAM.encode(),
        check=True,
    )
    (context / "Dockerfile").write_text(DOCKERFILE)
    before = kept_by_buildah()
    made = base(tmp_path / "store", DockerfileImage(context=context))
    assert (made.layers[0] / "made").exists()
    assert made.config.env["A"] == "b"
    assert made.config.workdir == "/srv"
    assert made.config.user == "1000:1000"
    assert made.config.volumes == ("/data",)
    assert (made.config.entrypoint, made.config.cmd) == (("/program",), ("x",))
    assert kept_by_buildah() == before, "what it built is in the store now, and nowhere else"
