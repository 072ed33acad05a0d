"""What a task is, free of where it came from: frozen models that loaders fill; nothing runs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sprout_env.transcript import Frozen


class NamedImage(Frozen):
    """An image known by name: an alias in the store, else a Docker reference."""

    kind: Literal["named"] = "named"
    name: str
    build: DockerfileImage | None = None
    """What it is built from where it can neither be found under its name nor pulled."""


class DockerfileImage(Frozen):
    """An image built from a Dockerfile and its context."""

    kind: Literal["dockerfile"] = "dockerfile"
    context: Path
    """The build context, a folder."""
    dockerfile: str = "Dockerfile"
    """The Dockerfile's path inside the context."""
    known: tuple[NamedImage, ...] = ()
    """Images that its FROM lines may name and that can be built."""


class ArchiveImage(Frozen):
    """A tar of a root, a ``docker save`` tar or an OCI archive."""

    kind: Literal["archive"] = "archive"
    path: Path


class FolderImage(Frozen):
    """A folder that holds a root."""

    kind: Literal["folder"] = "folder"
    path: Path


class DebianImage(Frozen):
    """A Debian root made on this machine by mmdebstrap or debootstrap: no Docker, no registry."""

    kind: Literal["debian"] = "debian"
    release: str = "bookworm"
    packages: tuple[str, ...] = ()


ImageSource = Annotated[
    NamedImage | DockerfileImage | ArchiveImage | FolderImage | DebianImage,
    Field(discriminator="kind"),
]


class NetworkPolicy(Frozen):
    """What a phase may reach. Loopback inside the sandbox always works.

    A mode alone may stand for it: ``"none"``, ``"public"``, ``"host"``.
    """

    mode: Literal["none", "allowlist", "public", "host"] = "none"
    """``public``: whatever this machine reaches, but not the machine itself, from a network of its
    own by an HTTP proxy. ``host``: the machine's own network, its local services included, shared
    with everything else on it."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, ``*.suffix``, addresses or CIDR ranges; only with ``allowlist``."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"mode": data} if isinstance(data, str) else data

    def __str__(self) -> str:
        """Short form for people."""
        return ": ".join(filter(None, (self.mode, ", ".join(self.allowed_hosts))))


class Limits(Frozen):
    """Resource and time limits of a task; None means our default, never "unlimited by accident"."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    pids: int | None = None
    agent_timeout_s: float | None = None
    """Wall time of all the agent's commands together, in seconds of recorded durations."""
    command_timeout_s: float = 600.0
    """Wall time of one command, in seconds."""
    max_turns: int | None = None


class Healthcheck(Frozen):
    """A command that must succeed before the agent starts, by Docker's rules."""

    command: str
    """A shell's line."""
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    """Failures in it are not counted."""
    start_interval_s: float = 5.0
    """Between two tries in the start period."""
    retries: int = 3
    """How many failures in a row mean that it is not healthy."""


class CollectHook(Frozen):
    """A command run in the agent's sandbox after its last turn, before artifacts are taken."""

    command: str
    timeout_s: float = 60.0
    user: str | None = None


class Artifact(Frozen):
    """A path that crosses from the agent's sandbox to a separate verifier."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()


LogKind = Literal[
    "pytest", "pytest-options", "r2e", "unittest", "sympy", "go", "cargo", "js", "java", "c", "tap",
    "failures",
]  # fmt: skip
"""The kinds of test logs that can be read; what a family calls them stands in ``dialects``."""


class Judge(Frozen):
    """How the status of each test becomes a score, where the script writes no reward."""

    parser: LogKind | Literal["json"] = "pytest"
    """What the log is; ``json`` reads ``/logs/verifier/parsed.json`` instead."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    expected: dict[str, str] | None = None
    """Every test's status; then the two lists mean nothing."""
    f2p_ok: frozenset[str] = frozenset({"PASSED", "XFAIL"})
    p2p_ok: frozenset[str] = frozenset({"PASSED", "XFAIL"})
    missing_is_ok: bool = False
    """Logs that name failures only: a test that is not named has passed."""


class VerifierSpec(Frozen):
    """How the end is judged: Harbor's protocol (a script that writes a reward file)."""

    mode: Literal["shared", "separate"] = "shared"
    tests: Path | None = None
    """The folder that is copied to ``/tests`` only when the agent's turn is over."""
    tests_over: Path | None = None
    """A folder laid over it: a step's own tests over those that all steps share."""
    files: dict[str, str] = Field(default_factory=dict)
    """Tests that lie in no folder: path inside ``/tests`` to text."""
    held_back: tuple[str, ...] = ()
    """Paths of the image that the agent never sees: removed by the task's setup before it begins,
    put back from the image to judge."""
    judge: Judge | None = None
    """None: the reward file decides."""
    script: str = "test.sh"
    """The script's path inside ``tests``."""
    image: ImageSource | None = None
    """The verifier's own image in separate mode; None: a fresh copy of the task's image."""
    timeout_s: float = 600.0
    user: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    """May hold ``${VAR}`` and ``${VAR:-default}``, resolved when the verifier runs."""
    network: NetworkPolicy | None = None
    """None: the environment's policy."""
    limits: Limits = Limits()
    collect: tuple[CollectHook, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    live: bool = False
    """The task declares that its verifier needs the agent's processes alive."""
    reward_key: str = "reward"
    """Which key of a ``reward.json`` is the score."""
    pass_threshold: float = 1.0
    """The least score that counts as passed."""


class SolutionSpec(Frozen):
    """The reference solution, seen by the oracle only."""

    folder: Path | None = None
    files: dict[str, str] = Field(default_factory=dict)
    """Where there is no folder: path to text."""
    script: str = "solve.sh"
    env: dict[str, str] = Field(default_factory=dict)


class Step(Frozen):
    """One of several instructions that an agent follows in the same sandbox, in their order."""

    name: str
    instruction: str
    verifier: VerifierSpec
    solution: SolutionSpec | None = None
    workdir: Path | None = None
    """Files copied into the working directory when the step begins; ``setup.sh`` is run."""
    healthcheck: Healthcheck | None = None
    """Waited for after that."""
    agent_timeout_s: float | None = None
    min_reward: dict[str, float] = Field(default_factory=dict)
    """The least of each reward with which the next step is begun."""


class Task(Frozen):
    """One coding task."""

    name: str
    """The slug that people type; unique in its suite."""
    suite: str = ""
    instruction: str
    image: ImageSource
    workdir: str | None = None
    """Where commands start; None: the image's own working directory."""
    env: dict[str, str] = Field(default_factory=dict)
    """May hold ``${VAR}`` templates, resolved when the sandbox starts."""
    user: str | None = None
    """The agent's user; None: the image's."""
    limits: Limits = Limits()
    network: NetworkPolicy = NetworkPolicy()
    setup: str = ""
    """A script that root runs in a new sandbox before all else, in the working directory."""
    healthcheck: Healthcheck | None = None
    """Waited for when an episode begins, after the image's own."""
    verifier: VerifierSpec
    solution: SolutionSpec | None = None
    steps: tuple[Step, ...] = ()
    """Empty for most; else instruction, verifier and solution above are the first step's."""
    step_rewards: Literal["mean", "final"] = "mean"
    """How the steps' rewards become the task's."""
    folder: Path | None = None
    """Where the task lies on the host; never visible in a sandbox of the agent."""
    digest: str
    """Content digest of the task (Harbor's rule for Harbor folders)."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """What the loader did not understand and left alone."""
    unsupported: tuple[str, ...] = ()
    """Features that are refused by name when the task is run."""

    def stage(self, index: int) -> Task:
        """Return what is to be done at one step, as a task of its own; else the task itself."""
        if not self.steps:
            return self
        step = self.steps[index]
        limits = self.limits.model_copy(update={"agent_timeout_s": step.agent_timeout_s})
        return self.model_copy(
            update={
                "instruction": step.instruction,
                "verifier": step.verifier,
                "solution": step.solution,
                "limits": limits,
                "steps": (),
            }
        )

    def with_network(self, policy: NetworkPolicy | None) -> Task:
        """Return the task with another network for its agent; verifiers keep what they had.

        Args:
            policy: What the agent may reach; None: the task's own word.
        """
        if policy is None:
            return self

        def kept(verifier: VerifierSpec) -> VerifierSpec:
            return verifier.model_copy(update={"network": verifier.network or self.network})

        steps = tuple(
            step.model_copy(update={"verifier": kept(step.verifier)}) for step in self.steps
        )
        return self.model_copy(
            update={"network": policy, "verifier": kept(self.verifier), "steps": steps}
        )

    @property
    def family_digest(self) -> str:
        """What names the disks of this task in a store."""
        return self.digest

    @property
    def start_dir(self) -> str:
        """The working directory of the first command when neither task nor image names one."""
        return str(PurePosixPath(self.workdir or "/"))
