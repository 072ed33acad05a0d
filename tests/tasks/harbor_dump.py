"""Run by the Python that has ``harbor``: what its own models read in task folders, as JSON."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    """Read folder names from standard input, one a line; write one JSON object a line."""
    warnings.simplefilter("ignore")
    from harbor.models.task.task import Task
    from harbor.models.task.verifier_mode import (
        resolve_effective_verifier_env_config,
        resolve_step_verifier_mode,
        resolve_task_verifier_mode,
    )
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, VerifierConfig
    from harbor.publisher.packager import Packager
    from harbor.trial.network_policy import resolve_trial_network_plan

    def networks(config: Any, step: Any, mode: Any) -> dict[str, Any]:
        of_run = AgentConfig(), EnvironmentConfig(), VerifierConfig()
        plan = resolve_trial_network_plan(config, *of_run, step, verifier_mode=mode)
        phases = {"agent": plan.agent_phase, "verifier": plan.verifier_phase}
        return {phase: policy.model_dump(mode="json") for phase, policy in phases.items()}

    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        try:
            task = Task(folder)
        except Exception as error:
            sys.stdout.write(json.dumps({"folder": str(folder), "error": str(error)[:500]}) + "\n")
            continue
        config = task.config
        steps = []
        for step in config.steps or []:
            environment = resolve_effective_verifier_env_config(config, step)
            mode = resolve_step_verifier_mode(config, step)
            steps.append(
                {
                    "instruction": task.step_instruction(step.name),
                    "mode": mode.value,
                    "networks": networks(config, step, mode),
                    "environment": environment and environment.model_dump(mode="json"),
                }
            )
        environment = resolve_effective_verifier_env_config(config, None)
        mode = resolve_task_verifier_mode(config)
        said = {
            "folder": str(folder),
            "name": task.name,
            "instruction": None if config.steps else task.instruction,
            "digest": Packager.compute_content_hash(folder)[0],
            "mode": mode.value,
            "networks": steps[0]["networks"] if steps else networks(config, None, mode),
            "environment": environment and environment.model_dump(mode="json"),
            "steps": steps,
            "config": config.model_dump(mode="json"),
        }
        sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
