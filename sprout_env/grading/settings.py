"""Where and as whom a task's verifier and its reference solution run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from sprout_env.disks.store import Base, Disk, DiskStore, ImageConfig
from sprout_env.errors import TaskUnsupported
from sprout_env.sandbox import start
from sprout_env.sandbox.boot import boot
from sprout_env.sandbox.network import NetworkConfig
from sprout_env.sandbox.sandbox import PATH, Sandbox, SandboxConfig, ShellState
from sprout_env.tasks.task import Healthcheck, Limits, NetworkPolicy, Task
from sprout_env.tasks.templates import resolve_env, secrets_of

ROOT = "0"
"""Root by number: the agent may have renamed accounts."""


@dataclass(frozen=True)
class Setting:
    """How a task's commands are run on one image, free of what the agent's shell left behind.

    PATH is the image's, whatever the agent exported or wrote into its home folder.
    """

    task: Task
    image: ImageConfig
    environ: Mapping[str, str]
    """The host's variables; each role draws its own from them, when it needs them."""

    def over(self, base: Base) -> Setting:
        """Return the same task on another image: its folder, user and variables."""
        return replace(self, image=base.config)

    @property
    def cwd(self) -> str:
        """Where commands start."""
        return self.task.workdir or self.image.workdir or "/"

    @property
    def agent_state(self) -> ShellState:
        """Folder and variables of the agent's first command, and of collect hooks.

        Raises:
            ConfigError: A variable that the environment takes from the host is not set.
        """
        own = resolve_env(self.task.env, self.environ)
        env = {"PATH": PATH, **self.image.env, **own}
        return ShellState(self.cwd, {**self._network_env(self.task.network), **env}, is_first=True)

    @property
    def state(self) -> ShellState:
        """Folder and variables of the verifier; nobody else may see them.

        Raises:
            ConfigError: A variable that it takes from the host is not set.
        """
        own = resolve_env(self.task.verifier.env, self.environ)
        env = {**self._network_env(self.verifier_network), **self.agent_state.env, **own}
        return ShellState(self.cwd, env, is_first=True)

    @property
    def verifier_network(self) -> NetworkPolicy:
        """What the verifier may reach."""
        return self.task.verifier.network or self.task.network

    def _network_env(self, network: NetworkPolicy) -> dict[str, str]:
        if network.mode == "none":
            return {}
        return NetworkConfig.here().variables(self.image.env)

    @property
    def image_user(self) -> str:
        """Whom commands run as where the task does not say."""
        return self.image.user or ROOT

    @property
    def user(self) -> str:
        """Whom the verifier runs as."""
        return self.task.verifier.user or self.image_user

    @property
    def script(self) -> str:
        """Where the verifier's script is inside a sandbox."""
        return str(PurePosixPath("/tests") / self.task.verifier.script)

    def redact(self, text: str) -> str:
        """Return a text without the values that the task takes from the host."""
        for secret in secrets_of({**self.task.env, **self.task.verifier.env}, self.environ):
            text = text.replace(secret, "****")
        return text


def start_agents(store: DiskStore, disk: Disk, setting: Setting, config: SandboxConfig) -> Sandbox:
    """Start the agent's sandbox on a new disk: the entrypoint runs, health checks pass.

    Raises:
        SandboxStartFailed: It cannot be started, or is not healthy in time.
    """
    task = setting.task
    return _booted(store, disk, setting, config, setting.agent_state, task.healthcheck, task.setup)


def start_verifiers(store: DiskStore, disk: Disk, setting: Setting) -> Sandbox:
    """Start a sandbox on a new disk over the verifier's own image.

    Raises:
        SandboxStartFailed: It cannot be started, or is not healthy in time.
    """
    return _booted(store, disk, setting, verifier_config(setting), setting.state, None)


def _booted(
    store: DiskStore,
    disk: Disk,
    setting: Setting,
    config: SandboxConfig,
    state: ShellState,
    healthcheck: Healthcheck | None,
    setup: str = "",
) -> Sandbox:
    sandbox = start(store, disk, config, fresh=True)
    try:
        boot(
            sandbox,
            setting.image,
            state=state,
            user=setting.image_user,
            healthcheck=healthcheck,
            setup=setup,
        )
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def refuse_unsupported(task: Task) -> None:
    """Refuse a task that needs what this package does not do.

    Raises:
        TaskUnsupported: It does; the features are named.
    """
    if task.unsupported:
        raise TaskUnsupported(task.name, ", ".join(task.unsupported))


def needs_live(task: Task, base: Base) -> bool:
    """Whether the live verdict counts: declared, or the entrypoint may have started a service.

    A separate verifier sees files only.
    """
    own_service = bool(base.config.entrypoint) and task.verifier.mode == "shared"
    return task.verifier.live or own_service


def setting_of(task: Task, base: Base, environ: Mapping[str, str]) -> Setting:
    """Return how a task's commands run on disks over ``base``; nothing is resolved yet."""
    return Setting(task=task, image=base.config, environ=environ)


def verifier_config(setting: Setting) -> SandboxConfig:
    """Return the configuration of a sandbox in which nothing but the verifier runs.

    Raises:
        ConfigError: A variable that the task takes from the host is not set.
    """
    task = setting.task
    limits = task.verifier.limits if task.verifier.mode == "separate" else task.limits
    return _config(setting, limits, setting.verifier_network, setting.user, setting.state)


def agent_config(setting: Setting) -> SandboxConfig:
    """Return the configuration of the agent's sandbox, also for reference solutions and hooks.

    Raises:
        ConfigError: A variable that the environment takes from the host is not set.
    """
    task = setting.task
    user = task.user or setting.image_user
    return _config(setting, task.limits, task.network, user, setting.agent_state)


def _config(
    setting: Setting, limits: Limits, network: NetworkPolicy, user: str, state: ShellState
) -> SandboxConfig:
    usual = SandboxConfig()
    return SandboxConfig(
        user=user,
        workdir=state.cwd,
        env=dict(state.env),
        memory_mb=limits.memory_mb or usual.memory_mb,
        pids=limits.pids or usual.pids,
        cpus=limits.cpus,
        network=network,
        ca_bundle=(
            None if network.mode == "none" else NetworkConfig.here().bundle_for(setting.image.env)
        ),
    )
