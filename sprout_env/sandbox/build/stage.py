"""One stage of a Dockerfile, executed: each RUN in a sandbox, each COPY from the host's side.

Both work on the same throw-away disk over the stage's parent, one after the other; what the disk
holds above its base at the end is the stage's layer.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from sprout_env.disks.images.bases import digest_of
from sprout_env.disks.images.dockerignore import go_pattern
from sprout_env.disks.images.logged import Progress
from sprout_env.disks.images.unpack import Unpacker, compression, tar_headers
from sprout_env.disks.store import Base, Disk, DiskStore
from sprout_env.errors import ImageError, StoreError
from sprout_env.sandbox.build.plan import Copy, Folder, Plan, Run, Step
from sprout_env.sandbox.build.sources import SourceServer
from sprout_env.sandbox.network import NetworkConfig, forget_bundle
from sprout_env.sandbox.rooted import (
    Looks,
    Rooted,
    copy_contents,
    copy_file,
    dress,
    identity_userns,
    write_file,
)
from sprout_env.sandbox.sandbox import SandboxConfig, ShellState
from sprout_env.sandbox.start import start
from sprout_env.tasks.task import NetworkPolicy

_TAIL_BYTES = 3000
_BUILD_MB = 64 << 10
"""What a build may write: its author is trusted, as with ``docker build``."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HOST_FILES = ("hosts", "hostname", "resolv.conf")
"""In /etc, written into the disk for the sandbox; not part of the image, as with Docker."""


class StageBuild:
    """The disk of one stage while its steps are executed."""

    def __init__(
        self,
        store: DiskStore,
        context: Path,
        label: Path,
        plan: Plan,
        parent: Base,
        origins: Mapping[str, Base],
        digest: str,
        *,
        files: frozenset[str],
        progress: Progress | None,
        run_timeout_s: float,
        sources: Mapping[str, Path],
    ) -> None:
        """Take what a stage needs; the disk is made on entering.

        Args:
            store: Where disks are made.
            context: The build context.
            label: The Dockerfile, for errors.
            plan: The stage's steps.
            parent: What FROM names.
            origins: What ``COPY --from`` names.
            digest: The stage's digest: it names the disk's family and the log.
            files: Paths of the context that are not ignored.
            progress: Gets a line for each step.
            run_timeout_s: Wall time of one RUN, in seconds.
            sources: Source aliases.
        """
        self.store, self.context, self.label = store, context, label
        self.plan, self.parent, self.origins, self.digest = plan, parent, origins, digest
        self.files, self.progress, self.run_timeout_s = files, progress, run_timeout_s
        networked = any(isinstance(step, Run) and step.network for step in plan.steps)
        self.sources = SourceServer(sources if networked else {}, label)
        self.network = NetworkConfig.here()
        self.log_path = store.path / "logs" / f"build-{digest[:12]}.log"
        self._undo = ExitStack()
        self._copied: set[str] = set()
        self._bundled = False
        self._sandboxes = 0

    def __enter__(self) -> StageBuild:
        with self._undo as undo:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            self.log = undo.enter_context(self.log_path.open("wb"))
            self.userns = undo.enter_context(identity_userns())
            undo.enter_context(self.sources)
            self.disk = undo.enter_context(self._disk(f"build {self.digest}", self.parent))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @contextmanager
    def _disk(self, purpose: str, base: Base) -> Iterator[Disk]:
        """Give a throw-away disk over a base."""
        family = self.store.family(digest_of(purpose), base, _BUILD_MB)
        disk = self.store.create(family)
        try:
            yield disk
        finally:
            self.store.drop(disk.id)
            # Somebody else's lease on it only means that its own user drops it later.
            with suppress(StoreError):
                self.store.drop_family(family.id)

    @contextmanager
    def _root(self, disk: Disk) -> Iterator[Rooted]:
        fd = self.store.mount(disk, self.userns, 0)
        try:
            yield Rooted(fd)
        finally:
            os.close(fd)

    def run_all(self) -> None:
        """Execute the steps in order."""
        total = len(self.plan.steps)
        for number, step in enumerate(self.plan.steps, 1):
            self._say(f"[{number}/{total}] {step.text.splitlines()[0]}")
            try:
                if isinstance(step, Run):
                    self._run(step)
                elif isinstance(step, Copy):
                    self._copy(step)
                else:
                    self._folder(step)
            except OSError as error:
                raise self._failed(step, str(error)) from error
            except ImageError as error:
                if error.facts[0] == self.label:
                    raise
                raise self._failed(step, f"{error.facts[0]}: {error.facts[1]}") from error

    def keep(self, root: Path) -> None:
        """Copy what the disk holds above its base into ``root``, an empty folder."""
        self.store.export_upper(self.disk, root)
        if self._bundled:
            forget_bundle(root)
        try:
            # By descriptor: the image may have made /etc a link, to the host's for all we know.
            etc = os.open(root / "etc", _FOLDER | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            for name in _HOST_FILES:
                if name not in self._copied and self._sandboxes:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=etc)
        finally:
            os.close(etc)

    def _say(self, line: str) -> None:
        self.log.write(f"{line}\n".encode("utf-8", "surrogateescape"))
        self.log.flush()
        if self.progress:
            self.progress(line)

    def _failed(self, step: Step, what: str, tail: str = "") -> ImageError:
        where = f"line {step.line}: {step.text.splitlines()[0]}"
        return ImageError(self.label, f"{where}: {what}\n{tail}\nlog: {self.log_path}")

    def _folder(self, step: Folder) -> None:
        with self._root(self.disk) as root:
            os.close(root.folder(step.path))

    def _run(self, step: Run) -> None:
        with self._root(self.disk) as root:
            os.close(root.folder(step.workdir))
            home = root.account(step.user.partition(":")[0] or "root")[2]
        env = {"HOME": home, **step.env}
        if step.network:
            env |= {**self.network.variables(step.env), **self.sources.env}
        config = SandboxConfig(
            hostname="buildkitsandbox",
            user=step.user,
            workdir=step.workdir,
            env=env,
            memory_mb=8192,
            pids=4096,
            network=NetworkPolicy(mode="host" if step.network else "none"),
            ca_bundle=self.network.bundle_for(step.env) if step.network else None,
        )
        self._bundled |= config.ca_bundle is not None
        stdin = None if step.stdin is None else step.stdin.encode("utf-8", "surrogateescape")
        began = time.monotonic()
        with ExitStack() as undo:
            sandbox = start(self.store, self.disk, config, fresh=not self._sandboxes)
            self._sandboxes += 1
            undo.callback(sandbox.close)
            result = sandbox.run(
                f"exec {shlex.join(step.argv)}",
                timeout_s=self.run_timeout_s,
                state=ShellState(step.workdir, env),
                stdin=stdin,
            )
        for stream in (result.stdout, result.stderr):
            self.log.write(stream)
        self._say(f"exit code {result.exit_code} after {time.monotonic() - began:.1f} s")
        if result.timed_out:
            raise self._failed(step, f"ran longer than {self.run_timeout_s:g} s")
        if result.exit_code != 0:
            tail = (result.stdout + result.stderr)[-_TAIL_BYTES:].decode("utf-8", "replace")
            raise self._failed(step, f"exit code {result.exit_code}", tail.strip())

    def _copy(self, step: Copy) -> None:
        with ExitStack() as undo:
            root = undo.enter_context(self._root(self.disk))
            owner = None if step.origin is not None else (0, 0)
            if step.chown:
                user, _, group = step.chown.partition(":")
                owner = root.user(user, group)
            looks = Looks(owner, step.mode)
            if step.origin is None:
                fd = os.open(self.context, _FOLDER)
                undo.callback(os.close, fd)
                source, files = Rooted(fd), self.files
                found = list(zip(step.sources, step.names, strict=True))
            else:
                base = self.origins[step.origin]
                disk = undo.enter_context(self._disk(f"read {self.digest}", base))
                source, files = undo.enter_context(self._root(disk)), None
                found = [pair for path in step.sources for pair in _matches(source, path)]
            for path, name in found:
                if step.unpack and self._unpack(path, root, step, looks):
                    continue
                self._copy_one(source, path, name, root, step, looks, files)
            for name, data in step.files:
                folder, new = _place(root, step.target, name, looks)
                try:
                    write_file(data, folder, new, Looks(looks.owner or (0, 0), looks.mode))
                finally:
                    os.close(folder)
        self._copied |= {path for path in _HOST_FILES if _covers(step, path)}

    def _copy_one(
        self,
        source: Rooted,
        path: str,
        name: str,
        root: Rooted,
        step: Copy,
        looks: Looks,
        files: frozenset[str] | None,
    ) -> None:
        def wanted(entry: str) -> bool:
            return files is None or entry in files

        # A source itself is followed if it is a link; links below it are copied as links.
        fd = source.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            facts = os.fstat(fd)
            if stat.S_ISDIR(facts.st_mode):
                is_new = root.kind(step.target) is None
                target = root.folder(step.target, looks.owner or (0, 0))
                try:
                    copy_contents(fd, target, looks, wanted, path.strip("/"))
                    if is_new:
                        dress(fd, target, looks, facts)
                finally:
                    os.close(target)
            elif stat.S_ISREG(facts.st_mode):
                folder, new = _place(root, step.target, name, looks)
                try:
                    copy_file(fd, folder, new, looks)
                finally:
                    os.close(folder)
            else:
                raise ImageError(path, "is neither a file nor a folder")
        finally:
            os.close(fd)

    def _unpack(self, path: str, root: Rooted, step: Copy, looks: Looks) -> bool:
        """Unpack a local tar, as ADD does; false if it is none."""
        archive = self.context / path
        if not archive.is_file() or not _is_tar(archive):
            return False
        with tempfile.TemporaryDirectory(dir=self.store.path / "bases", prefix=".making-add-") as t:
            staging = Path(t) / "root"
            staging.mkdir(mode=0o755)
            with open(os.devnull) as nothing:
                unpacker = Unpacker(staging, nothing.fileno(), archive)
                unpacker.layer(archive, whiteouts=False)
                unpacker.finish()
            fd = os.open(staging, _FOLDER)
            target = root.folder(step.target, looks.owner or (0, 0))
            try:
                owner = looks.owner if step.chown else None
                copy_contents(fd, target, Looks(owner, looks.mode), lambda _: True, "")
            finally:
                os.close(fd)
                os.close(target)
        return True


def _place(root: Rooted, target: str, name: str, looks: Looks) -> tuple[int, str]:
    """Return the folder that a file goes to and its name there."""
    owner = looks.owner or (0, 0)
    if target.endswith("/") or root.kind(target) == stat.S_IFDIR:
        return root.folder(target, owner), name
    path = PurePosixPath(target)
    return root.folder(str(path.parent), owner), path.name


def _matches(root: Rooted, pattern: str) -> list[tuple[str, str]]:
    """Return (path, name) of what a source of another stage means.

    Raises:
        ImageError: Nothing.
    """
    found = [""]
    for part in PurePosixPath("/" + pattern).parts[1:]:
        if not re.search(r"[*?\[]", part):
            found = [f"{path}/{part}" for path in found]
            continue
        shape = re.compile(go_pattern(part), re.DOTALL)
        found = [f"{path}/{name}" for path in found for name in _names(root, path)
                 if shape.fullmatch(name)]  # fmt: skip
    found = [path for path in found if root.kind(path or "/") is not None]
    if not found:
        raise ImageError(pattern, "there is no such file")
    return [(path or "/", PurePosixPath(path).name) for path in found]


def _names(root: Rooted, path: str) -> list[str]:
    try:
        fd = root.open(path or "/", _FOLDER)
    except OSError:
        return []
    try:
        with os.scandir(fd) as entries:
            return sorted(entry.name for entry in entries)
    finally:
        os.close(fd)


def _covers(step: Copy, name: str) -> bool:
    """Whether a COPY may have put /etc/``name`` there."""
    target = step.target.rstrip("/")
    return f"/etc/{name}" == target or f"/etc/{name}".startswith(f"{target}/")


def _is_tar(path: Path) -> bool:
    if compression(path) == "zstd":
        return False  # Docker does not unpack it either
    try:
        with tar_headers(path) as headers:
            return next(headers, None) is not None
    except ImageError:
        return False
