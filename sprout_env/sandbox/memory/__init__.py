"""The double: a sandbox without processes or privileges, on a disk in memory."""

from sprout_env.sandbox.memory.sandbox import MemorySandbox

__all__ = ["MemorySandbox"]
