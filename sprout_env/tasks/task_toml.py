"""``task.toml`` of a Harbor task, in its old and new spellings, as models.

Harbor reads every field whatever ``schema_version`` says, and ignores what it does not know; so
do these models, which keep the unknown keys apart so that the loader can report them.
"""

from __future__ import annotations

import ipaddress
import math
import re
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_PACKAGE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"([0-9.]+)\s*([KMG])", re.IGNORECASE)
_MB_PER_UNIT = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NetworkMode = Literal["no-network", "public", "allowlist"]


class Section(BaseModel):
    """A table whose unknown keys are kept, to be reported."""

    model_config = ConfigDict(extra="allow", frozen=True)


def unknown_keys(model: BaseModel, prefix: str = "") -> list[str]:
    """Return the dotted names of keys that nobody here understands."""
    found = [f"{prefix}{key}" for key in model.model_extra or {}]
    for name in type(model).model_fields:
        value = getattr(model, name)
        for at, item in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(item, BaseModel):
                mark = f"[{at}]" if isinstance(value, tuple) else ""
                found += unknown_keys(item, f"{prefix}{name}{mark}.")
    return found


def _user(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value or None


def _host(value: str) -> str:
    host = value.strip().lower().rstrip(".")
    if "/" in host or ":" in host:
        try:
            return (
                ipaddress.ip_network(host, strict=True).with_prefixlen
                if "/" in host
                else (ipaddress.IPv6Address(host).compressed)
            )
        except ValueError:
            raise ValueError(f"{value!r} is no host name, address or CIDR range") from None
    bare = host.removeprefix("*.")
    if not all(_LABEL.fullmatch(label) for label in bare.split(".")):
        raise ValueError(f"{value!r} is no host name, address or CIDR range")
    return host


def _step_name(value: str) -> str:
    """Refuse what is not one folder's name on every system."""
    odd = not value.strip() or value in (".", "..") or value.endswith((".", " "))
    if odd or re.search(r'[<>:"/\\|?*\x00-\x1f\x7f]', value) or len(value.encode()) > 255:
        raise ValueError(f"step name {value!r} is no portable folder name")
    return value


def _package_name(value: str) -> str:
    if not _PACKAGE_NAME.fullmatch(value) or ".." in value:
        raise ValueError(f"{value!r} is not of the form org/name")
    return value


def _source(value: str) -> str:
    if not value or ".." in value.split("/"):
        raise ValueError(f"artifact source {value!r} is empty or has '..' in it")
    return value


def _destination(value: str | None) -> str | None:
    if not value:
        return None
    parts = [part for part in value.split("/") if part not in ("", ".")]
    if value.startswith("/") or "\\" in value or ".." in parts or not parts:
        raise ValueError(f"artifact destination {value!r} is not a path below the artifacts")
    if parts == ["manifest.json"]:
        raise ValueError("artifact destination manifest.json is reserved")
    return value


User = Annotated[str | None, BeforeValidator(_user)]
Host = Annotated[str, AfterValidator(_host)]


class NetworkSection(Section):
    """The network keys that several tables share."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[Host, ...] | None = None

    @model_validator(mode="after")
    def _hosts_need_a_list(self) -> NetworkSection:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self


class AgentSection(NetworkSection):
    """``[agent]``."""

    timeout_sec: Seconds | None = None
    user: User = None


class HealthcheckSection(Section):
    """``[environment.healthcheck]``."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class EnvironmentSection(NetworkSection):
    """``[environment]`` and ``[verifier.environment]``."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Annotated[
        Literal["linux", "windows"],
        BeforeValidator(lambda v: v.lower() if isinstance(v, str) else v),
    ] = "linux"
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    storage_mb: Annotated[int, Field(gt=0)] | None = None
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: tuple[dict[str, Any], ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: HealthcheckSection | None = None
    workdir: str | None = None
    allow_internet: bool | None = None
    """The older spelling of ``network_mode``; it counts only without the newer."""

    @property
    def baseline(self) -> NetworkMode:
        """The network where a phase says nothing of its own; Harbor's default is public."""
        return self.network_mode or ("no-network" if self.allow_internet is False else "public")

    @model_validator(mode="before")
    @classmethod
    def _old_sizes(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old not in data or not isinstance(data[old], str):
                continue
            text = data.pop(old)
            match = _SIZE.fullmatch(text.strip())
            if match is None:
                raise ValueError(f"{old} = {text!r} is not a size such as '512M' or '4G'")
            size = math.floor(float(match.group(1)) * _MB_PER_UNIT[match.group(2).upper()])
            if data.setdefault(new, size) != size:
                raise ValueError(f"{old} = {text!r} contradicts {new} = {data[new]}")
        return data


class CollectSection(Section):
    """``[[verifier.collect]]``."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User = None


class ArtifactSection(Section):
    """One entry of ``artifacts``."""

    source: Annotated[str, AfterValidator(_source)]
    destination: Annotated[str | None, AfterValidator(_destination)] = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data


class VerifierSection(NetworkSection):
    """``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: tuple[CollectSection, ...] = ()

    @model_validator(mode="after")
    def _mode_and_environment_agree(self) -> VerifierSection:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' contradicts [verifier.environment]")
        return self

    @property
    def says_mode(self) -> bool:
        """Whether the mode is said here, rather than taken for granted."""
        return self.environment_mode is not None or self.environment is not None

    @property
    def mode(self) -> Literal["shared", "separate"]:
        """Where the verifier runs; a table of its own means ``separate`` unless said otherwise."""
        if self.environment_mode is not None:
            return self.environment_mode
        return "shared" if self.environment is None else "separate"


class StepSection(Section):
    """``[[steps]]``."""

    name: Annotated[str, AfterValidator(_step_name)]
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    min_reward: float | dict[str, float] | None = None
    healthcheck: HealthcheckSection | None = None
    artifacts: tuple[ArtifactSection, ...] = ()

    @property
    def thresholds(self) -> dict[str, float]:
        """The least rewards by key; a bare number is about ``reward``."""
        if self.min_reward is None:
            return {}
        return self.min_reward if isinstance(self.min_reward, dict) else {"reward": self.min_reward}


class PackageSection(Section):
    """``[task]``."""

    name: Annotated[str, AfterValidator(_package_name)]
    version: str | None = None
    description: str = ""
    authors: tuple[dict[str, Any], ...] = ()
    keywords: tuple[str, ...] = ()


class SolutionSection(Section):
    """``[solution]``."""

    env: dict[str, str] = Field(default_factory=dict)


class SproutSection(Section):
    """``[metadata.sprout]``: what Harbor's format has no field for, where Harbor looks away."""

    max_turns: Annotated[int, Field(gt=0)] | None = None
    command_timeout_s: Seconds = 600.0
    pids: Annotated[int, Field(gt=0)] | None = None
    live: bool = False
    reward_key: str = "reward"
    pass_threshold: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class TaskToml(Section):
    """The whole file."""

    schema_version: str = "1.4"
    source: str | None = None
    task: PackageSection | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    solution: SolutionSection = SolutionSection()
    artifacts: tuple[ArtifactSection, ...] = ()
    steps: tuple[StepSection, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] | None = None

    @model_validator(mode="after")
    def _steps_have_names_of_their_own(self) -> TaskToml:
        names = [unicodedata.normalize("NFC", step.name).casefold() for step in self.steps]
        twice = [step.name for step, key in zip(self.steps, names, strict=True)
                 if names.count(key) > 1]  # fmt: skip
        if twice:
            raise ValueError(f"steps {' and '.join(map(repr, twice))} have the same name")
        return self

    @model_validator(mode="before")
    @classmethod
    def _old_version(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            version = data.pop("version")
            data.setdefault("schema_version", version)
        return data
