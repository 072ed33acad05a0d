"""verifiers: our suites as a taskset, and groups as episodes that its own agents play.

Each attempt is one run of verifiers' ``Agent`` in a borrowed runtime of ours, and one ``Trace``:
a branch's trace begins with what its parent had seen and done, not sampled, and its task's data
say where it came from. Reviews go straight to the model's server and are in no trace.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sprout_env.integrations.groups  # noqa: F401  (registers the method `group`)
from sprout_env.branching import sandbox_on
from sprout_env.env import SproutEnv
from sprout_env.errors import SandboxError
from sprout_env.integrations import pins
from sprout_env.records.attempt import Attempt
from sprout_env.sandbox.sandbox import Sandbox, ShellState
from sprout_env.search.attempts import AttemptJob, ThreadExecutor, run_attempt
from sprout_env.search.budget import Stop
from sprout_env.search.events import OnEvent
from sprout_env.search.runs import RunConfig, run
from sprout_env.tasks.suites import find_suite

T = TypeVar("T")

COMMAND_S = 600.0
"""Wall time of one command that a task's own reward runs in a finished attempt, in seconds."""


class Plugins(NamedTuple):
    """What a module of yours exports, so that verifiers finds it by that module's name."""

    taskset: type[Any]
    harness: type[Any]
    env: type[Any]


async def _in_thread(work: Callable[[], T]) -> T:
    """Run work that waits for this event loop: never in its own few threads."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="sprout-verifiers")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    finally:
        pool.shutdown(wait=False)


@cache
def plugins() -> Plugins:
    """Return taskset, harness and env for verifiers.

    Raises:
        TrainerUnsupported: verifiers is of a series that this was not written for.
    """
    pins.check("verifiers")
    import verifiers.v1 as vf
    from verifiers.v1.runtimes import SubprocessRuntimeInfo

    class SproutRuntime(vf.Runtime):  # type: ignore[misc]
        """A box for one attempt; commands of a task's own rewards see a clone of its end."""

        is_local = True

        def __init__(self, job: AttemptJob, on_event: OnEvent, stop: Stop) -> None:
            super().__init__(f"sprout:{job.id}")
            # verifiers reads traces by a closed list of kinds; this one says "on this machine".
            self.config = vf.SubprocessConfig()
            self.info = SubprocessRuntimeInfo(id=self.name, borrowed=True)
            self.job = job
            self.attempt: Attempt | None = None
            self.trouble: BaseException | None = None
            self._on_event, self._stop_signal = on_event, Stop(stop)
            self._env = SproutEnv(**job.env_arguments())
            self._clone = ExitStack()
            self._opened: tuple[Sandbox, ShellState] | None = None

        async def start(self) -> None:
            """Do nothing: the attempt begins its own sandbox."""

        def play(self, actor: dict[str, Any]) -> Attempt:
            """Run the attempt to its end by an actor."""
            job = self.job.model_copy(update={"actor": actor})
            try:
                attempt = run_attempt(
                    job, on_event=self._on_event, stop=self._stop_signal, env=self._env
                )
            except BaseException as error:
                self.trouble = error
                raise
            self.attempt = attempt
            return attempt

        def abandon(self) -> None:
            """End the attempt now, from any thread."""
            self._stop_signal.cancel()

        def _end(self) -> tuple[Sandbox, ShellState]:
            if self._opened is None:
                kept = self.attempt.boundaries if self.attempt is not None else ()
                last = next((b.snapshot for b in reversed(kept) if b.snapshot), None)
                if last is None:
                    raise SandboxError("no attempt was judged in this runtime yet")
                self._opened = self._clone.enter_context(sandbox_on(self._env.tree, last))
            return self._opened

        def _run(self, argv: list[str], env: dict[str, str]) -> Any:
            sandbox, state = self._end()
            state = ShellState(state.cwd, {**state.env, **self.process_env(env)})
            done = sandbox.run(shlex.join(argv), timeout_s=COMMAND_S, state=state)
            return vf.ProgramResult(
                exit_code=done.exit_code,
                stdout=done.stdout.decode(errors="replace"),
                stderr=done.stderr.decode(errors="replace"),
            )

        async def run(self, argv: list[str], env: dict[str, str]) -> Any:
            """Run a command on a clone of the attempt's end."""
            return await _in_thread(lambda: self._run(argv, env))

        async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
            if max_bytes is not None:
                whole: bytes = await super()._read(path, max_bytes)
                return whole
            return await _in_thread(lambda: self._end()[0].read_file(path))

        async def write(self, path: str, data: bytes) -> None:
            """Write a file into the clone of the attempt's end."""

            def put() -> None:
                with tempfile.NamedTemporaryFile() as file:
                    file.write(data)
                    file.flush()
                    self._end()[0].put(Path(file.name), path)

            await _in_thread(put)

        def cleanup(self) -> None:
            """Give everything back. Idempotent."""
            self.abandon()
            self._clone.close()
            self._opened = None
            self._env.close()

    class SproutState(vf.State):  # type: ignore[misc]
        """What the verifier said."""

        reward: float | None = None

    class SproutTaskData(vf.TaskData):  # type: ignore[misc]
        """A task of a suite, and which attempt at it this is."""

        attempt: str = ""
        kind: str = "root"
        parent: str | None = None
        boundary: int | None = None
        """Turns of the parent that a branch keeps."""
        snapshot: str | None = None
        round: int = 0

    class SproutTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
        """Which suite, and where disks live."""

        suite: str = "seedbed"
        tasks_path: str | None = None
        dataset: str | None = None
        store: str | None = None

    class SproutTask(vf.Task[SproutTaskData, SproutState]):  # type: ignore[misc]
        """A task whose reward is its verifier's."""

        @vf.reward  # type: ignore[untyped-decorator]
        async def verdict(self, trace: Any) -> float:
            """Return the verifier's reward; the harness has failed already where there is none."""
            reward: float = trace.state.reward
            return reward

    class SproutTaskset(vf.Taskset[SproutTask, SproutTasksetConfig]):  # type: ignore[misc]
        """The tasks of one suite."""

        def load(self) -> Any:
            """Yield them in the suite's order."""
            told = self.config
            for task in find_suite(told.suite, told.tasks_path, told.dataset):
                data = SproutTaskData(id=task.name, name=task.name, prompt=task.instruction)
                yield SproutTask(data, told.task)

    class SproutHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
        """No settings."""

    class SproutHarness(vf.Harness[SproutHarnessConfig]):  # type: ignore[misc]
        """The loop of our search, in this process: model calls by verifiers, commands by us."""

        NEEDS_CONTAINER = False
        # No command of it runs in a runtime that verifiers made, the host's least of all.
        EXECUTES_CODE = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
        ) -> Any:
            """Play one attempt in a borrowed runtime of ours."""
            if not isinstance(runtime, SproutRuntime):
                raise SandboxError(f"{runtime.name} is no runtime of SproutEnv's")
            key = f"SPROUT_VERIFIERS_{trace.id}"
            actor = {
                "kind": "openai",
                "model": ctx.model,
                "base_url": endpoint,
                "api_key_env": key,
            }
            os.environ[key] = secret
            try:
                attempt = await _in_thread(lambda: runtime.play(actor))
            except asyncio.CancelledError:
                runtime.abandon()
                raise
            finally:
                del os.environ[key]
            trace.info["sprout"] = {
                "attempt": attempt.id,
                "status": attempt.status,
                "outcome": attempt.verdict.outcome if attempt.verdict is not None else None,
                "snapshots": [b.snapshot for b in attempt.boundaries],
            }
            if attempt.reward is None:
                why = attempt.verdict.reason if attempt.verdict is not None else attempt.error
                raise vf.HarnessError(
                    f"attempt {attempt.id} has no reward: {why or attempt.status}"
                )
            trace.state.reward = attempt.reward
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    class SproutEnvConfig(vf.EnvConfig):  # type: ignore[misc]
        """Which method makes the group."""

        agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
        method: str = "group:size=8,roots=4,branches=2"
        """As for ``sprout run --method``."""
        seed: int = 0
        max_turns: int | None = None
        max_concurrent_agents: int | None = 2
        """Attempts of one episode at a time."""

    class SproutGroupEnv(vf.Env[SproutEnvConfig]):  # type: ignore[misc]
        """One episode is one group: roots, and branches that reviews planned."""

        async def run(self, task: Any, agents: Any) -> None:
            """Collect a group; each attempt is a run of the one agent."""
            told, agent = self.config.taskset, agents.agent
            client = agent.ctx.client
            config = RunConfig.make(
                told.suite,
                actor={
                    "kind": "openai",
                    "model": agent.ctx.model,
                    "base_url": client.base_url,
                    "api_key_env": client.api_key_var,
                },
                method=self.config.method,
                tasks=(task.data.name,),
                tasks_path=told.tasks_path,
                dataset=told.dataset,
                store=told.store,
                seed=self.config.seed,
                limits={"max_turns": self.config.max_turns},
            )
            loop = asyncio.get_running_loop()
            boxes: set[Any] = set()

            async def one(job: AttemptJob, on_event: OnEvent, stop: Stop) -> Attempt:
                box = SproutRuntime(job, on_event, stop)
                boxes.add(box)
                try:
                    played = task.with_data(
                        attempt=job.id,
                        kind=job.kind,
                        parent=job.plan.attempt if job.plan is not None else None,
                        boundary=job.plan.boundary if job.plan is not None else None,
                        snapshot=job.snapshot,
                        round=job.round,
                    )
                    trace = await agent.run(played, runtime=box)
                finally:
                    boxes.discard(box)
                    await box.stop()
                if box.trouble is not None:
                    raise box.trouble
                if box.attempt is not None:
                    return box.attempt
                why = trace.last_error.message if trace.last_error is not None else "did not run"
                fields = {"id": job.id, "task": job.task, "kind": job.kind, "plan": job.plan}
                return Attempt(**fields, status="infra_error", error=why)

            def attempt(job: AttemptJob, *, on_event: OnEvent, stop: Stop) -> Attempt:
                if stop.reason:
                    raise CancelledError
                return asyncio.run_coroutine_threadsafe(one(job, on_event, stop), loop).result()

            workers = self.config.max_concurrent_agents or 8
            executor = ThreadExecutor(workers, run=attempt)
            try:
                await _in_thread(lambda: run(config, executor=executor, workers=workers))
            finally:
                for box in tuple(boxes):
                    box.abandon()
                await _in_thread(executor.close)

        def complete(self, episode: Any) -> bool:
            """Whether an episode counts: it ended, and something of it was judged."""
            return not episode.errors and any(trace.ok for trace in episode.traces)

    return Plugins(SproutTaskset, SproutHarness, SproutGroupEnv)
