"""A Harbor task folder, old spelling or new, read into a ``Task``.

Nothing is run, built or resolved here. What a task asks for and this package does not do is kept
in ``Task.unsupported`` and refused by name when the task is run, never skipped in silence.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sprout_env.errors import TaskBroken
from sprout_env.tasks.folder import check_inputs, content_digest, strip_canary
from sprout_env.tasks.task import (
    Artifact,
    CollectHook,
    DockerfileImage,
    Healthcheck,
    ImageSource,
    Limits,
    NamedImage,
    NetworkPolicy,
    SolutionSpec,
    Step,
    Task,
    VerifierSpec,
)
from sprout_env.tasks.task_toml import (
    EnvironmentSection,
    HealthcheckSection,
    NetworkSection,
    SproutSection,
    StepSection,
    TaskToml,
    unknown_keys,
)

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


def load_task(folder: Path | str, suite: str = "") -> Task:
    """Read a Harbor task folder.

    The slug is the folder's name; ``[task].name`` is kept in ``metadata["harbor"]["name"]``.

    Network: as in Harbor it is public where ``task.toml`` says nothing, for agent and verifier
    alike; a phase's own word wins over the environment's. Whoever runs a task can override what
    its agent may reach.

    Our own settings, for which Harbor has no field, stand in ``[metadata.sprout]``: ``max_turns``,
    ``command_timeout_s``, ``pids``, ``live``, ``reward_key``, ``pass_threshold``.

    Args:
        folder: The folder that holds ``task.toml``.
        suite: Name of the suite that it belongs to.

    Raises:
        TaskBroken: The folder cannot be read as a task; the message names the file.
    """
    folder = Path(folder).absolute()
    check_inputs(folder)
    config, sprout = _read_toml(folder / "task.toml")
    environment = config.environment
    unsupported = _unsupported(folder, config)
    steps = _steps(folder, config, sprout)
    verifier = steps[0].verifier if steps else _verifier(folder, config, sprout)
    warnings = [f"task.toml: unknown key {key}" for key in unknown_keys(config)]
    warnings += [f"task.toml: unknown key metadata.sprout.{key}" for key in unknown_keys(sprout)]
    if (folder / "tests/rewards.json").exists():
        warnings.append("tests/rewards.json: the verifier's file is called reward.json")
    return Task(
        name=folder.name,
        suite=suite,
        instruction=steps[0].instruction if steps else _instruction(folder / "instruction.md"),
        image=_image(folder, environment),
        workdir=environment.workdir,
        env=environment.env,
        user=config.agent.user,
        limits=Limits(
            cpus=environment.cpus,
            memory_mb=environment.memory_mb,
            storage_mb=environment.storage_mb,
            pids=sprout.pids,
            agent_timeout_s=config.agent.timeout_sec,
            command_timeout_s=sprout.command_timeout_s,
            max_turns=sprout.max_turns,
        ),
        network=_network(config.agent, environment),
        healthcheck=_healthcheck(environment.healthcheck),
        verifier=verifier,
        solution=steps[0].solution if steps else _solution(folder / "solution", config),
        steps=steps,
        step_rewards=config.multi_step_reward_strategy or "mean",
        folder=folder,
        digest=content_digest(folder),
        metadata={**_described(config), "harbor": _remaining(config)},
        warnings=tuple(warnings),
        unsupported=tuple(unsupported),
    )


def _read_toml(path: Path) -> tuple[TaskToml, SproutSection]:
    try:
        config = TaskToml.model_validate(tomllib.loads(path.read_text("utf-8")))
        return config, SproutSection.model_validate(config.metadata.get("sprout", {}))
    except FileNotFoundError as error:
        raise TaskBroken(path, "missing") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskBroken(path, f"cannot be read ({error})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TaskBroken(path, f"{where}: {first['msg']}" if where else first["msg"]) from error


def _instruction(path: Path) -> str:
    try:
        text = strip_canary(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise TaskBroken(path, "missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskBroken(path, f"cannot be read ({error})") from error
    if not text.strip():
        raise TaskBroken(path, "empty")
    return text


def _healthcheck(check: HealthcheckSection | None) -> Healthcheck | None:
    if check is None:
        return None
    return Healthcheck(
        command=check.command,
        interval_s=check.interval_sec,
        timeout_s=check.timeout_sec,
        start_period_s=check.start_period_sec,
        start_interval_s=check.start_interval_sec,
        retries=check.retries,
    )


def _has_compose(folder: Path) -> bool:
    return any((folder / name).exists() for name in _COMPOSE)


def _image(folder: Path, environment: EnvironmentSection) -> ImageSource:
    context = folder / "environment"
    has_dockerfile = (context / "Dockerfile").is_file()
    if environment.docker_image:
        build = DockerfileImage(context=context) if has_dockerfile else None
        return NamedImage(name=environment.docker_image, build=build)
    if has_dockerfile or _has_compose(context):
        return DockerfileImage(context=context)
    raise TaskBroken(
        context / "Dockerfile", "missing, and task.toml names no environment.docker_image"
    )


def _network(phase: NetworkSection, environment: EnvironmentSection) -> NetworkPolicy:
    """Return a phase's policy: its own word, else that of the environment it runs in."""
    said = phase if phase.network_mode else environment
    mode = said.network_mode or environment.baseline
    return NetworkPolicy(
        mode="none" if mode == "no-network" else mode, allowed_hosts=said.allowed_hosts or ()
    )


def _verifier(
    folder: Path, config: TaskToml, sprout: SproutSection, step: StepSection | None = None
) -> VerifierSpec:
    """Read ``[verifier]``, or a step's with what it inherits (everything but the time-out).

    In separate mode an image of its own may already hold the tests.
    """
    own = step.verifier if step is not None else config.verifier
    mode = own.mode if own.says_mode else config.verifier.mode
    tests = folder / "tests"
    over = folder / "steps" / step.name / "tests" if step is not None else None
    environment = config.environment
    image: ImageSource | None = None
    if mode == "separate":
        environment = own.environment or config.verifier.environment or config.environment
        image = _verifiers_image(folder, config, step)
    scripts = [place / "test.sh" for place in (over, tests) if place is not None]
    if image is None and not any(script.is_file() for script in scripts):
        if config.environment.os != "windows":
            raise TaskBroken(scripts[0], "missing")
    folders = [] if image is not None else [p for p in (tests, over) if p and p.is_dir()]
    said = own if own.network_mode else config.verifier
    sections = (config,) if step is None else (config, step)
    return VerifierSpec(
        mode=mode,
        tests=folders[0] if folders else None,
        tests_over=folders[1] if len(folders) > 1 else None,
        image=image,
        timeout_s=own.timeout_sec,
        user=own.user or config.verifier.user,
        env={**config.verifier.env, **own.env},
        network=_network(said, environment),
        limits=Limits(
            cpus=environment.cpus,
            memory_mb=environment.memory_mb,
            storage_mb=environment.storage_mb,
            pids=sprout.pids,
        ),
        collect=tuple(
            CollectHook(command=hook.command, timeout_s=hook.timeout_sec, user=hook.user)
            for section in sections
            for hook in section.verifier.collect
            if hook.service == "main"
        ),
        artifacts=tuple(
            Artifact(source=entry.source, destination=entry.destination, exclude=entry.exclude)
            for section in sections
            for entry in section.artifacts
            if entry.service in (None, "main")
        ),
        live=sprout.live,
        reward_key=sprout.reward_key,
        pass_threshold=sprout.pass_threshold,
    )


def _verifiers_image(
    folder: Path, config: TaskToml, step: StepSection | None
) -> ImageSource | None:
    """Return the image of a separate verifier: the step's, the task's, or None for a fresh copy."""
    places = [(config.verifier, folder / "tests")]
    if step is not None:
        places.insert(0, (step.verifier, folder / "steps" / step.name / "tests"))
    for section, context in places:
        if section.environment is not None and section.environment.docker_image:
            return NamedImage(name=section.environment.docker_image)
        if (context / "Dockerfile").is_file():
            agents = _image(folder, config.environment)
            # It may be FROM the agent's image, whose name no registry here may know.
            known = (agents,) if isinstance(agents, NamedImage) and agents.build else ()
            return DockerfileImage(context=context, known=known)
    return None


def _steps(folder: Path, config: TaskToml, sprout: SproutSection) -> tuple[Step, ...]:
    found = []
    for step in config.steps:
        place = folder / "steps" / step.name
        solution = place / "solution"
        if not (solution / "solve.sh").is_file():
            solution = folder / "solution"
        found.append(
            Step(
                name=step.name,
                instruction=_instruction(place / "instruction.md"),
                verifier=_verifier(folder, config, sprout, step),
                solution=_solution(solution, config),
                workdir=place / "workdir" if (place / "workdir").is_dir() else None,
                healthcheck=_healthcheck(step.healthcheck),
                agent_timeout_s=step.agent.timeout_sec or config.agent.timeout_sec,
                min_reward=step.thresholds,
            )
        )
    return tuple(found)


def _solution(solution: Path, config: TaskToml) -> SolutionSpec | None:
    if not (solution / "solve.sh").is_file():
        return None
    return SolutionSpec(folder=solution, env=config.solution.env)


def _unsupported(folder: Path, config: TaskToml) -> list[str]:
    """Name the features that are refused when the task is run."""
    environment, own = config.environment, config.verifier.environment
    found = []
    parts: tuple[TaskToml | StepSection, ...] = (config, *config.steps)
    services = {hook.service for part in parts for hook in part.verifier.collect}
    services |= {entry.service for part in parts for entry in part.artifacts if entry.service}
    if _has_compose(folder / "environment") or services - {"main"}:
        found.append("Docker Compose services")
    if config.verifier.mode == "separate" and _has_compose(folder / "tests"):
        found.append("Docker Compose services for the verifier")
    users = {step.agent.user or config.agent.user for step in config.steps}
    network = _network(config.agent, environment)
    others = [step.agent for step in config.steps if step.agent.network_mode]
    if len(users) > 1:
        found.append("a user of its own for each step")
    if any(_network(section, environment) != network for section in others):
        found.append("a network of its own for each step")
    found += [
        f"a trajectory that step {step.name} starts from"
        for step in config.steps
        if (folder / "steps" / step.name / "trajectory.json").exists()
    ]
    owned = [(step.verifier.environment, " for the verifier") for step in config.steps]
    for section, whose in ((environment, ""), (own, " for the verifier"), *owned):
        if section is None:
            continue
        if section.gpus or section.gpu_types:
            found.append(f"GPUs{whose}")
        if section.tpu:
            found.append(f"TPUs{whose}")
        if section.os == "windows":
            found.append(f"Windows{whose}")
        if section.mcp_servers:
            found.append(f"MCP servers{whose}")
    context = folder / "environment"
    prebuilt = environment.docker_image and not (context / "Dockerfile").exists()
    if prebuilt and context.is_dir() and any(context.iterdir()):
        found.append("files of environment/ added to a prebuilt image")
    if (folder / "trajectory.json").exists():
        found.append("a trajectory that the agent starts from")
    return found


def _described(config: TaskToml) -> dict[str, Any]:
    """Return ``[metadata]``, with the package's description where it has none of its own."""
    described = config.task.description if config.task else ""
    return ({"description": described} if described else {}) | config.metadata


def _remaining(config: TaskToml) -> dict[str, Any]:
    """Return what ``Task`` has no field for, as plain JSON values."""
    environment = config.environment
    facts = {
        "name": config.task.name if config.task else None,
        "keywords": list(config.task.keywords) if config.task else None,
        "schema_version": config.schema_version,
        "source": config.source,
        "build_timeout_s": environment.build_timeout_sec,
        "docker_image": environment.docker_image,
        "skills_dir": environment.skills_dir,
    }
    return {key: value for key, value in facts.items() if value is not None}
