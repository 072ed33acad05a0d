"""How a task's image becomes a base: Dockerfiles without Docker, each RUN in a sandbox of ours."""

from sprout_env.sandbox.build.base import base_for, substitutions

__all__ = ["base_for", "substitutions"]
