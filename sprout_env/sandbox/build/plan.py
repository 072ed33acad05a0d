"""What a stage of a Dockerfile does, worked out before anything runs: steps and a configuration.

Variables are substituted and context files chosen here, so that a stage has a digest, and what
was built before is found, without starting anything.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sprout_env.disks.images.builders import file_digest
from sprout_env.disks.images.dockerfile import (
    Dockerfile,
    Instruction,
    Stage,
    json_form,
    pairs,
    substitute,
    words,
)
from sprout_env.disks.images.dockerignore import go_pattern
from sprout_env.disks.store import Base, ImageConfig
from sprout_env.errors import ImageError
from sprout_env.tasks.task import Healthcheck

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = ("/bin/sh", "-c")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "riscv64": "riscv64"}
_PLAIN_HEREDOC = re.compile(r"<<-?\s*['\"]?[A-Za-z0-9_.]+['\"]?")


@dataclass(frozen=True)
class Run:
    """RUN: a command in a sandbox on the disk."""

    line: int
    text: str
    argv: tuple[str, ...]
    stdin: str | None
    env: Mapping[str, str]
    user: str
    workdir: str
    network: bool


@dataclass(frozen=True)
class Copy:
    """COPY or ADD: files onto the disk."""

    line: int
    text: str
    sources: tuple[str, ...]
    """Paths: in the context they are there and resolved; of a stage they may hold wildcards."""
    names: tuple[str, ...]
    """What each source is called at the target; empty for a stage."""
    target: str
    origin: str | None
    """A stage or an image; None: the context."""
    files: tuple[tuple[str, bytes], ...] = ()
    """Files whose content stands in the Dockerfile."""
    chown: str = ""
    mode: int | None = None
    unpack: bool = False


@dataclass(frozen=True)
class Folder:
    """WORKDIR: a folder that must be there."""

    line: int
    text: str
    path: str


Step = Run | Copy | Folder


@dataclass
class Plan:
    """The steps of one stage and what its image says at the end."""

    steps: list[Step] = field(default_factory=list)
    config: ImageConfig = ImageConfig()


def platform_arguments() -> dict[str, str]:
    """Return what BuildKit defines by itself (for those who declare it)."""
    cpu = _MACHINES.get(platform.machine(), platform.machine())
    found: dict[str, str] = {}
    for side in ("TARGET", "BUILD"):
        found |= {f"{side}OS": "linux", f"{side}ARCH": cpu, f"{side}VARIANT": ""}
        found[f"{side}PLATFORM"] = f"linux/{cpu}"
    return found


def global_arguments(parsed: Dockerfile, label: object) -> dict[str, str]:
    """Return the ARGs before the first FROM."""
    known = platform_arguments()
    for one in parsed.arguments:
        for word in words(one.rest, parsed.escape):
            name, equals, value = word.partition("=")
            if equals:
                known[name] = substitute(value, known, parsed.escape)
            elif not re.fullmatch(r"\w+", name):
                raise ImageError(label, f"line {one.line}: cannot read ARG {word!r}")
    return known


class Planner:
    """Goes through a stage's instructions as Docker would, without running any."""

    def __init__(
        self,
        parsed: Dockerfile,
        stage: Stage,
        parent: Base,
        context: Path,
        files: frozenset[str],
        label: object,
    ) -> None:
        self.parsed, self.stage, self.context, self.files = parsed, stage, context, files
        self.label = label
        self.globals = global_arguments(parsed, label)
        self.config = parent.config.model_dump()
        self.env: dict[str, str] = {"PATH": DEFAULT_PATH, **parent.config.env}
        self.arguments: dict[str, str] = {}
        self.steps: list[Step] = []
        self.cmd_is_ours = False

    def plan(self) -> Plan:
        """Return the stage's plan.

        Raises:
            ImageError: An instruction cannot be read, or asks for what we refuse.
        """
        for one in self.stage.instructions:
            try:
                getattr(self, f"_{one.name.lower()}")(one)
            except ImageError as error:
                if str(error.facts[0]) != "Dockerfile":
                    raise
                raise self._error(one, str(error.facts[1])) from error
        return Plan(self.steps, ImageConfig.model_validate(self.config | {"env": self.env}))

    def _error(self, one: Instruction, what: str) -> ImageError:
        return ImageError(self.label, f"line {one.line}: {one.text.splitlines()[0]}: {what}")

    def _fill(self, text: str, *, quotes: bool = True) -> str:
        known = {**self.arguments, **self.env}
        return substitute(text, known, self.parsed.escape, quotes=quotes)

    def _only(self, one: Instruction, *allowed: str) -> None:
        for flag in one.flags:
            if flag not in allowed:
                raise self._error(one, f"--{flag} is not supported")

    def _words(self, one: Instruction) -> list[str]:
        form = json_form(one.rest)
        split = list(form) if form is not None else words(one.rest, self.parsed.escape)
        return [self._fill(word, quotes=form is None) for word in split]

    def _command(self, one: Instruction) -> tuple[str, ...]:
        form = json_form(one.rest)
        return form if form is not None else (*self._shell_words(), one.rest)

    def _shell_words(self) -> tuple[str, ...]:
        return tuple(self.config["shell"]) or _SHELL

    # Instructions that only say how the image is run.

    def _arg(self, one: Instruction) -> None:
        for word in words(one.rest, self.parsed.escape):
            name, equals, value = word.partition("=")
            if equals:
                self.arguments[name] = self._fill(value)
            elif name in self.globals:
                self.arguments[name] = self.globals[name]

    def _env(self, one: Instruction) -> None:
        found = pairs(one, self.label, self.parsed.escape)
        self.env |= {self._fill(key): self._fill(value) for key, value in found}

    def _label(self, one: Instruction) -> None:
        found = pairs(one, self.label, self.parsed.escape)
        labels = {self._fill(key): self._fill(value) for key, value in found}
        self.config["labels"] = self.config["labels"] | labels

    def _user(self, one: Instruction) -> None:
        self.config["user"] = self._fill(one.rest)

    def _shell(self, one: Instruction) -> None:
        form = json_form(one.rest)
        if not form:
            raise self._error(one, "SHELL takes a JSON list")
        self.config["shell"] = form

    def _entrypoint(self, one: Instruction) -> None:
        self.config["entrypoint"] = self._command(one)
        if not self.cmd_is_ours:
            self.config["cmd"] = ()

    def _cmd(self, one: Instruction) -> None:
        self.config["cmd"] = self._command(one)
        self.cmd_is_ours = True

    def _volume(self, one: Instruction) -> None:
        # What is in a volume stays on the disk here: a snapshot then holds it.
        volumes = {*self.config["volumes"], *self._words(one)}
        self.config["volumes"] = tuple(sorted(volumes))

    def _nothing(self, one: Instruction) -> None:
        """Instructions that a base's configuration has no field for, and no step needs."""

    _expose = _stopsignal = _maintainer = _nothing

    def _healthcheck(self, one: Instruction) -> None:
        kind, _, rest = one.rest.partition(" ")
        if kind.upper() == "NONE":
            self.config["healthcheck"] = None
            return
        if kind.upper() != "CMD" or not rest.strip():
            raise self._error(one, "HEALTHCHECK takes NONE, or CMD and a command")
        self._only(one, "interval", "timeout", "start-period", "start-interval", "retries")
        form = json_form(rest.strip())
        times = {
            f"{name.replace('-', '_')}_s": self._seconds(one, one.flags[name])
            for name in ("interval", "timeout", "start-period", "start-interval")
            if name in one.flags
        }
        # Docker takes a shell form through the image's SHELL.
        shell = self._shell_words()
        plain = rest.strip() if shell == _SHELL else shlex.join((*shell, rest.strip()))
        command = shlex.join(form) if form is not None else plain
        retries = one.flags.get("retries", "3")
        if not retries.isdigit():
            raise self._error(one, f"--retries={retries} is no number")
        self.config["healthcheck"] = Healthcheck.model_validate(
            {"interval_s": 30.0, **times, "command": command, "retries": int(retries) or 3}
        ).model_dump()

    def _seconds(self, one: Instruction, text: str) -> float:
        """Read a duration as Go writes it: ``1m30s``, ``500ms``."""
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)", text)
        if not parts or "".join(f"{n}{unit}" for n, unit in parts) != text:
            raise self._error(one, f"{text} is no duration such as 30s or 1m30s")
        each = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
        return float(sum(float(number) * each[unit] for number, unit in parts))

    # Instructions that change the disk.

    def _workdir(self, one: Instruction) -> None:
        path = os.path.normpath(PurePosixPath(self.config["workdir"] or "/") / self._fill(one.rest))
        self.config["workdir"] = path
        self.steps.append(Folder(one.line, one.text, path))

    def _run(self, one: Instruction) -> None:
        self._only(one, "network")
        network = one.flags.get("network", "default")
        if network not in ("default", "host", "none"):
            raise self._error(one, f"--network={network} is not supported")
        argv, stdin = self._command(one), None
        if one.heredocs and _PLAIN_HEREDOC.fullmatch(one.rest):
            body = one.heredocs[0].body
            if body.startswith("#!"):
                # The body is a program of its own: it goes through a file, as with BuildKit.
                script = 'f=$(mktemp) && cat > "$f" && chmod 700 "$f" || exit 125; '
                script += '"$f" < /dev/null; s=$?; rm -f "$f"; exit $s'
                argv, stdin = (*_SHELL, script), body
            else:
                argv = (*self._shell_words(), body)
        elif one.heredocs:
            argv = (*self._shell_words(), one.script)
        env = {**self.arguments, **self.env}
        config = self.config
        step = Run(
            one.line, one.text, argv, stdin, env, config["user"], config["workdir"] or "/",
            network != "none",
        )  # fmt: skip
        self.steps.append(step)

    def _copy(self, one: Instruction) -> None:
        self._only(one, "from", "chown", "chmod", "link")
        self._files(one)

    def _add(self, one: Instruction) -> None:
        self._only(one, "chown", "chmod", "link")
        self._files(one)

    def _files(self, one: Instruction) -> None:
        listed = self._words(one)
        inline = {match[0]: doc for match, doc in zip(
            _PLAIN_HEREDOC.finditer(one.rest), one.heredocs, strict=False)}  # fmt: skip
        if len(listed) < 2:
            raise self._error(one, "needs a source and a target")
        *given, target = listed
        files = []
        for word in given.copy():
            doc = next((doc for key, doc in inline.items() if self._fill(key) == word), None)
            if doc is not None:
                given.remove(word)
                body = self._fill(doc.body, quotes=False) if doc.expand else doc.body
                files.append((doc.name, body.encode()))
        for word in given:
            if re.match(r"[a-z]+://|git@", word):
                raise self._error(one, f"{word}: adding from a URL is not supported")
        mode = one.flags.get("chmod")
        if mode is not None and not re.fullmatch(r"0?[0-7]{3,4}", mode := self._fill(mode)):
            raise self._error(one, f"--chmod={mode} is not supported; give octal digits")
        origin = self._fill(one.flags["from"]) if "from" in one.flags else None
        sources: list[str] = []
        names: list[str] = []
        if origin is None:
            for word in given:
                for path, name in self._in_context(one, word):
                    sources.append(path)
                    names.append(name)
        else:
            sources = given
        several = len(sources) + len(files) > 1
        if several and not target.endswith("/") and target not in (".", ".."):
            raise self._error(one, "copies several sources, so its target must end with /")
        there = str(PurePosixPath(self.config["workdir"] or "/") / target)
        slash = "/" if target.endswith(("/", "/.")) or target in (".", "..") else ""
        step = Copy(
            one.line, one.text, tuple(sources), tuple(names), os.path.normpath(there) + slash,
            origin, tuple(files), self._fill(one.flags.get("chown", "")),
            None if mode is None else int(mode, 8), one.name == "ADD",
        )  # fmt: skip
        self.steps.append(step)

    def _in_context(self, one: Instruction, word: str) -> list[tuple[str, str]]:
        """Return (path, name) of the context's entries that a source means."""
        wanted = os.path.normpath("/" + word).lstrip("/")
        if not wanted:
            return [("", "")]
        if re.search(r"[*?\[]", wanted):
            pattern = re.compile(go_pattern(wanted), re.DOTALL)
            found = sorted(name for name in self.files if pattern.fullmatch(name))
        else:
            below = wanted + "/"
            there = wanted in self.files or any(name.startswith(below) for name in self.files)
            found = [wanted] if there else []
        if not found:
            raise self._error(one, f"{word} is not in the build context")
        resolved = []
        for name in found:
            path = (self.context / name).resolve()
            if not path.is_relative_to(self.context.resolve()) or not path.exists():
                raise self._error(one, f"{name} leads out of the build context or nowhere")
            inside = str(path.relative_to(self.context.resolve()))
            resolved.append(("" if inside == "." else inside, PurePosixPath(name).name))
        return resolved


def step_facts(step: Step, context: Path, files: frozenset[str]) -> object:
    """Return what a step is made from, for the digest of its stage; line numbers are not."""
    if isinstance(step, Folder):
        return ("folder", step.path)
    if isinstance(step, Run):
        return ("run", step.argv, step.stdin, sorted(step.env.items()), step.user, step.workdir,
                step.network)  # fmt: skip
    chosen: list[object] = []
    if step.origin is None:
        for source, name in zip(step.sources, step.names, strict=True):
            below = f"{source}/" if source else ""
            inside = [f for f in files if f == source or f.startswith(below)]
            if source and source not in inside:
                inside.append(source)
            chosen += [
                (name, path[len(source) :], file_digest(context / path)) for path in sorted(inside)
            ]
    else:
        chosen = list(step.sources)
    return ("copy", chosen, step.target, step.files, step.chown, step.mode, step.unpack)
