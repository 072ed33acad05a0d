"""A task's image becomes a base: the one call is ``base_for``.

A Dockerfile needs Docker only to be built by Docker. Where there is none, its instructions are
executed here: each RUN in a sandbox of ours on a disk over the FROM base, with the host's network
(as ``docker build`` has it), each COPY from the host's side. What the disk then holds above its
base is kept as one more layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sprout_env.disks import images
from sprout_env.disks.images.aliases import SEEDBED_BASE, resolve
from sprout_env.disks.images.bases import digest_of, keep_base
from sprout_env.disks.images.builders import builder_name, dockerfile_text, knows_heredocs
from sprout_env.disks.images.dockerfile import Dockerfile, Stage, parse, substitute
from sprout_env.disks.images.dockerignore import context_files
from sprout_env.disks.images.logged import Progress
from sprout_env.disks.images.sources import concerned, marked, source_aliases, substituted
from sprout_env.disks.store import Base, DiskStore, ImageConfig
from sprout_env.errors import ImageError
from sprout_env.sandbox.build.plan import Copy, Planner, Run, global_arguments, step_facts
from sprout_env.sandbox.build.stage import StageBuild
from sprout_env.tasks.task import DockerfileImage, ImageSource, NamedImage

RECIPE = 1
"""Raise it when the same Dockerfile would be built differently."""


def base_for(
    store: DiskStore,
    image: ImageSource,
    *,
    progress: Progress | None = None,
    run_timeout_s: float = 3600.0,
) -> Base:
    """Return the base of a task's image, made on first use.

    Args:
        store: Where it is kept.
        image: A Dockerfile is built by Docker or buildah where one is usable and no alias of
            the store names its bases, else in our own sandbox; the rest is the store's business.
        progress: Gets lines of what takes long.
        run_timeout_s: Wall time of one RUN in our own sandbox, in seconds.

    Raises:
        ImageError: It cannot be found or built; with the tail of the log and where the log is.
    """
    if store.kind == "memory":
        return store.base(image)
    if isinstance(image, NamedImage) and image.build is not None:
        if not _is_had(store.path, image):
            return base_for(store, image.build, progress=progress, run_timeout_s=run_timeout_s)
    if not isinstance(image, DockerfileImage):
        return images.base(store.path, image, progress=progress)
    label = image.context / image.dockerfile
    text = dockerfile_text(image)
    parsed = parse(text, label)
    if not image.known and _is_for_a_builder(store.path, parsed, label, text):
        return images.base(store.path, image, progress=progress)
    return _Build(store, image, parsed, progress, run_timeout_s).stage(len(parsed.stages) - 1)


def substitutions(store: DiskStore, image: ImageSource, base: Base | None) -> tuple[str, ...]:
    """Return the names and addresses that aliases of the store filled in for an image.

    Args:
        store: Where the image's base is.
        image: The image.
        base: Its base; None: it is looked up.
    """
    found = set(substituted((base or base_for(store, image)).config))
    if store.kind != "memory" and isinstance(image, NamedImage):
        if _is_aliased(store.path, image.name):
            found.add(image.name)
    return tuple(sorted(found))


def _is_aliased(store_path: Path, name: str) -> bool:
    """Whether a site supplies this image itself. The bundled suite's base is nobody else's."""
    return name != SEEDBED_BASE and resolve(store_path, name) != NamedImage(name=name)


def _is_had(store_path: Path, image: NamedImage) -> bool:
    """Whether an image that could be built is there under its name, or can be pulled."""
    if _is_aliased(store_path, image.name):
        return True
    if images.docker_why_not() is not None:
        return False
    try:
        images.base(store_path, NamedImage(name=image.name))
    except ImageError:
        return False
    return True


def _is_for_a_builder(store_path: Path, parsed: Dockerfile, label: object, text: str) -> bool:
    """Whether Docker or buildah builds this: they know neither our aliases nor our bases."""
    if concerned(source_aliases(store_path), text):
        return False
    known = global_arguments(parsed, label)
    copies = (one for stage in parsed.stages for one in stage.instructions if "from" in one.flags)
    for told in (*(s.image for s in parsed.stages), *(one.flags["from"] for one in copies)):
        name = substitute(told, known, parsed.escape)
        if name == SEEDBED_BASE or resolve(store_path, name) != NamedImage(name=name):
            return False
    builder = builder_name(docker=images.docker_why_not() is None)
    return builder is not None and (knows_heredocs(builder) or not parsed.has_heredocs)


@dataclass
class _Build:
    """One Dockerfile's build; a stage is built when it is asked for."""

    store: DiskStore
    image: DockerfileImage
    parsed: Dockerfile
    progress: Progress | None
    run_timeout_s: float
    files: frozenset[str] = field(init=False)
    made: dict[int, Base] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = frozenset(context_files(self.image.context, self.image.dockerfile))
        self.label = self.image.context / self.image.dockerfile
        self.globals = global_arguments(self.parsed, self.label)

    def stage(self, number: int) -> Base:
        """Return the base of a stage."""
        if number not in self.made:
            self.made[number] = self._stage(self.parsed.stages[number], number)
        return self.made[number]

    def _stage(self, stage: Stage, number: int) -> Base:
        if stage.platform:
            wanted = substitute(stage.platform, self.globals, self.parsed.escape)
            if wanted != self.globals["TARGETPLATFORM"]:
                raise ImageError(self.label, f"line {stage.line}: cannot build for {wanted}")
        name = substitute(stage.image, self.globals, self.parsed.escape)
        parent = self._origin(name, number)
        context = self.image.context
        planner = Planner(self.parsed, stage, parent, context, self.files, self.label)
        plan = planner.plan()
        names = [name, *(s.origin for s in plan.steps if isinstance(s, Copy) and s.origin)]
        plan.config = marked(plan.config, [n for n in names if self._is_substituted(n, number)])
        origins = {
            step.origin: self._origin(step.origin, number)
            for step in plan.steps
            if isinstance(step, Copy) and step.origin is not None
        }
        facts = [step_facts(step, context, self.files) for step in plan.steps]
        used = sorted((name, base.digest) for name, base in origins.items())
        config = plan.config.model_dump(mode="json", exclude_none=True)
        sources = source_aliases(self.store.path)
        told = "\n".join(
            "\n".join((s.text, *s.env.values())) for s in plan.steps if isinstance(s, Run)
        )
        taken = sorted((p, str(folder)) for p, folder in concerned(sources, told).items())
        more = (taken,) if taken else ()
        digest = digest_of("dockerfile", RECIPE, parent.digest, facts, used, config, *more)

        def fill(root: Path, lock_fd: int) -> ImageConfig:
            with StageBuild(
                self.store,
                context,
                self.label,
                plan,
                parent,
                origins,
                digest,
                files=self.files,
                progress=self.progress,
                run_timeout_s=self.run_timeout_s,
                sources=sources,
            ) as work:
                work.run_all()
                work.keep(root)
                return marked(plan.config, work.sources.used)

        called = f" (stage {stage.name or number})" if number < len(self.parsed.stages) - 1 else ""
        parents = [layer.parent.name for layer in parent.layers]
        source = f"dockerfile {self.label}{called}"
        return keep_base(self.store.path, digest, fill, source=source, parents=parents)

    def _origin(self, name: str, number: int) -> Base:
        """Return the base of an earlier stage, of ``scratch``, or of an image by name."""
        for earlier in range(number):
            if self.parsed.stages[earlier].name == name.lower() or name == str(earlier):
                return self.stage(earlier)
        if name == "scratch":
            source = "scratch"
            return keep_base(
                self.store.path, digest_of("scratch"), lambda *_: ImageConfig(), source=source
            )
        if not name:
            raise ImageError(self.label, "FROM an empty name: an ARG of it has no value")
        image = next((known for known in self.image.known if known.name == name), None)
        return base_for(
            self.store,
            image or NamedImage(name=name),
            progress=self.progress,
            run_timeout_s=self.run_timeout_s,
        )

    def _is_substituted(self, name: str, number: int) -> bool:
        stages = [s.name for s in self.parsed.stages[:number]]
        if name == "scratch" or name.lower() in stages or name.isdigit():
            return False
        return _is_aliased(self.store.path, name)
