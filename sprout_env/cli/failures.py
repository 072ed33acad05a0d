"""What a failing command prints and how it exits: one clear line and a code; no traceback.

Exit codes: 0 done · 1 done, and the answer is no (a gate refused, doctor found something missing)
· 2 wrong usage or setting · 3 task · 4 image · 5 store · 6 sandbox · 7 snapshot · 8 grading ·
9 actor · 10 budget · 70 a bug of ours · 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import sys
from typing import NoReturn

from sprout_env import errors
from sprout_env.grading.plain import plain

CODES: dict[type[errors.SproutError], int] = {
    errors.ConfigError: 2,
    errors.TaskError: 3,
    errors.ImageError: 4,
    errors.StoreError: 5,
    errors.SandboxError: 6,
    errors.SnapshotError: 7,
    errors.EpisodeError: 70,
    errors.GradingError: 8,
    errors.ActorError: 9,
    errors.BudgetExhausted: 10,
}
PLACES = (errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC)
"""What the system says of a path that somebody gave."""
SCARCE = (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What it says of itself: an output that takes no more, a limit of this process."""
REMEDIES = {
    errno.EMFILE: "; allow more, `ulimit -n 65536`, or work on less at a time, `--jobs 1`",
    errno.ENFILE: "; allow more, `sysctl fs.file-max`",
}
BUG = 70
INTERRUPTED = 130


class Stopped(BaseException):
    """Raised in place of KeyboardInterrupt, which typer would end without a word."""


def exit_code(error: errors.SproutError) -> int:
    """Return the code of an error's branch of the tree."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), BUG)


def fail(sentence: str, code: int) -> NoReturn:
    """Print one line on standard error and exit."""
    sys.stderr.write(f"error: {' '.join(plain(sentence).split())}\n")
    raise SystemExit(code)


def run(arguments: list[str]) -> NoReturn:
    """Run the commands; turn what goes wrong into a line and a code, unless ``--debug``."""
    # Accepted anywhere before `--`, for it is typed after something went wrong.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if debug:
        arguments = [a for i, a in enumerate(arguments) if a != "--debug" or i >= len(own)]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever its encoding
    try:
        from sprout_env.cli.app import app  # here, for it takes a second

        app(arguments, prog_name="sprout")
    except errors.SproutError as error:
        if debug:
            raise
        fail(str(error), exit_code(error))
    except (Stopped, KeyboardInterrupt):
        if debug:
            raise
        fail("stopped; what ran was ended, what was finished is recorded", INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and (
            error.errno in SCARCE or (error.errno in PLACES and error.filename is not None)
        ):
            said = f"{error.filename or 'this process'}: {error.strerror}"
            fail(said + REMEDIES.get(error.errno or 0, ""), 2)
        name = type(error).__name__
        fail(f"{name}: {error} (a bug? the same with --debug shows where)", BUG)
    raise SystemExit(0)
