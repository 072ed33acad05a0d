"""The ``docker`` of a captured session: a program of its own, which imports nothing of ours.

What it knows is done as docker does it; all else is refused with 125, docker's own code for that.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from typing import Any, NoReturn

ADDRESS = "SPROUT_CAPTURE_ADDRESS"
"""The variable that holds the session's address; a command line could be read by anybody."""
KNOWN = (
    "a captured session's docker knows `run -d [--name N] [-w DIR] [-e A=B] IMAGE [sleep N]`, "
    "`exec [-i] [-w DIR] [-e A=B] NAME COMMAND`, `stop` and `rm`: its one container is the "
    "attempt's sandbox"
)
_MOST = 1 << 20
"""Bytes of standard input that a command takes: they are part of the record."""
_STDIN_S = 60
_IDLE = ("sleep", "tail")


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"docker: {why}\n")
    sys.exit(125)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(f"{self.prog}: {message}; {KNOWN}")


def _parsed(verb: str, words: list[str]) -> argparse.Namespace:
    parser = _Parser(verb, add_help=False, allow_abbrev=False)
    parser.add_argument("-w", "--workdir", default="")
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("-i", "--interactive", action="store_true")
    parser.add_argument("-t", "--tty", action="store_true")
    if verb == "run":
        parser.add_argument("-d", "--detach", action="store_true")
        for flag in ("--rm", "--init"):
            parser.add_argument(flag, action="store_true")
        for option in ("--name", "--platform", "--pull"):
            parser.add_argument(option)
    parser.add_argument("name")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def _idles(words: list[str]) -> bool:
    """Whether a container's own command only keeps it up: whatever else it did would be lost."""
    if not words or words[0] in _IDLE:
        return True
    if words[0].rpartition("/")[2] not in ("bash", "sh", "cat"):
        return False
    return len(words) == 1 or any(f"{word} " in words[-1] for word in _IDLE)


def _stdin() -> bytes:
    def late(*_: object) -> None:
        _refuse(
            f"exec -i: standard input did not end within {_STDIN_S} s; a captured session reads "
            "all of it before it runs the command"
        )

    signal.signal(signal.SIGALRM, late)
    signal.alarm(_STDIN_S)
    data = sys.stdin.buffer.read(_MOST + 1)
    signal.alarm(0)
    if len(data) > _MOST:
        _refuse(f"exec -i: more than {_MOST} bytes of standard input, the most that is recorded")
    return data


def _asked(verb: str, words: list[str]) -> dict[str, Any]:
    told = _parsed(verb, words)
    if verb == "run" and not told.detach:
        _refuse(f"run without -d is not known, nothing was run; {KNOWN}")
    if verb == "run" and not _idles(told.words):
        _refuse(f"run -d of `{' '.join(told.words)}` is not known, nothing was run; {KNOWN}")
    if verb == "exec" and not told.words:
        _refuse(f"exec needs a command; {KNOWN}")
    variables = {}
    for word in told.env:
        name, given, value = word.partition("=")
        if given or name in os.environ:
            variables[name] = value if given else os.environ[name]
    asked = {"words": told.words, "cwd": told.workdir, "variables": variables}
    if verb == "exec" and told.interactive and sys.stdin is not None and not sys.stdin.isatty():
        asked["stdin"] = base64.b64encode(_stdin()).decode()
    return asked


def main() -> None:
    """Do what the command line says, in the session."""
    words = sys.argv[1:]
    if words[:1] == ["container"]:
        words.pop(0)
    verb = words.pop(0) if words else ""
    if verb in ("--version", "-v", "version"):
        sys.stdout.write(f"{KNOWN}\n")
        return
    if verb not in ("run", "exec", "stop", "rm"):
        _refuse(f"`{verb}` is not known: {KNOWN}")
    asked = _asked(verb, words) if verb in ("run", "exec") else {}
    url = f"{os.environ[ADDRESS]}/{verb}"
    try:
        request = urllib.request.Request(url, json.dumps(asked).encode(), method="POST")
        with urllib.request.urlopen(request) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        _refuse(str(json.load(error)["error"]["message"]))
    except urllib.error.URLError as error:
        _refuse(f"the captured session is gone: {error.reason}")
    sys.stdout.write(said["output"])
    sys.exit(said["exit_code"])


if __name__ == "__main__":
    main()
