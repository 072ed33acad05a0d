"""One run of the memory double's shell: its commands."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Callable
from typing import Protocol

from sprout_env.disks.memory import Node
from sprout_env.sandbox.memory.files import Files, Trouble
from sprout_env.sandbox.memory.minishell import Redirection, ShellSyntaxError, Simple, expand, parse
from sprout_env.sandbox.sandbox import ProcessInfo, ShellState

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_UNARY: dict[str, Callable[[Node | None], bool]] = {
    "-e": lambda node: node is not None,
    "-f": lambda node: node is not None and node.kind == "file",
    "-d": lambda node: node is not None and node.kind == "directory",
    "-s": lambda node: node is not None and bool(node.data),
}


class Host(Protocol):
    """What a run needs of its sandbox."""

    def spawn(self, argv: tuple[str, ...], cwd: str) -> int: ...  # noqa: D102
    def end(self, pid: int) -> bool: ...  # noqa: D102
    def wait(self, seconds: float) -> None: ...  # noqa: D102
    @property
    def _processes(self) -> dict[int, ProcessInfo]: ...


class _Exit(Exception):
    def __init__(self, code: int, *, keeps_state: bool = True) -> None:
        super().__init__(code)
        self.code = code
        self.keeps_state = keeps_state


class Run:
    """Interprets one script.

    Args:
        host: The sandbox.
        files: Its files.
        state: Where the shell starts.
        stdin: What ``cat`` without arguments reads.
        deadline: When it is out of time, on the monotonic clock.
    """

    def __init__(
        self, host: Host, files: Files, state: ShellState, stdin: bytes, deadline: float
    ) -> None:
        self._host = host
        self._files = files
        self._cwd = state.cwd
        self._exported = dict(state.env)
        self._local: dict[str, str] = {}
        self._stdin = stdin
        self._deadline = deadline
        self._code = 0
        self._keeps_state = True
        self.timed_out = False
        """Whether the deadline ended it."""
        self.out = bytearray()
        """Standard output."""
        self.err = bytearray()
        """Standard error."""

    def state(self) -> ShellState | None:
        """Return the shell's state at its end, or None if it was lost."""
        if self.timed_out or not self._keeps_state:
            return None
        return ShellState(self._cwd, dict(self._exported))

    def script(self, text: str) -> int:
        """Run a whole script and return its exit code."""
        try:
            commands = parse(text)
            if self._files.get(self._cwd) is None:
                self.err += f"sprout: cannot enter {self._cwd}; started in /\n".encode()
                self._cwd = "/"
            for command in commands:
                if (command.joined == "&&" and self._code) or (
                    command.joined == "||" and not self._code
                ):
                    continue
                self._code = self._simple(command)
        except ShellSyntaxError as error:
            self.err += f"sh: syntax error: {error}\n".encode()
            return 2
        except _Exit as end:
            self._keeps_state = end.keeps_state
            return end.code
        return self._code

    def _simple(self, command: Simple) -> int:
        out, err = bytearray(), bytearray()
        stdin = self._stdin
        code = 0
        words = [self._expand(word) for word in command.words]
        try:
            for redirection in command.redirections:
                if redirection.operator == "<":
                    stdin = self._files.read(self._path(self._expand(redirection.target)))
                elif redirection.operator in (">", "2>"):
                    self._files.write(self._path(self._expand(redirection.target)), b"")
            while words and (match := _ASSIGNMENT.fullmatch(words[0])):
                self._assign(match[1], match[2])
                words.pop(0)
            if words and command.background:
                self._host.spawn(tuple(words), self._cwd)
            elif words:
                code = self._call(words, stdin, out)
        except Trouble as trouble:
            err += f"{words[0] if words else 'sh'}: {trouble}\n".encode()
            code = 1
        finally:
            self._redirect(command.redirections, out, err)
        return code

    def _redirect(self, redirections: list[Redirection], out: bytearray, err: bytearray) -> None:
        out_to: str | None = None
        err_to: str | None = None
        for redirection in redirections:
            if redirection.operator == "2>&1":
                out, err, err_to = out + err, bytearray(), None
            elif redirection.operator.startswith("2"):
                err_to = self._path(self._expand(redirection.target))
            elif redirection.operator != "<":
                out_to = self._path(self._expand(redirection.target))
        for data, place, stream in ((out, out_to, self.out), (err, err_to, self.err)):
            if place is None:
                stream += data
            elif data:
                self._files.write(place, bytes(data), append=True)

    def _expand(self, word: str) -> str:
        return expand(word, {**self._exported, **self._local, "?": str(self._code)})

    def _assign(self, name: str, value: str) -> None:
        (self._exported if name in self._exported else self._local)[name] = value

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._cwd, path))

    def _call(self, words: list[str], stdin: bytes, out: bytearray) -> int:
        name, *arguments = words
        method: Callable[[list[str], bytes, bytearray], int] | None = getattr(
            self, f"_do_{ {'[': 'bracket', ':': 'true'}.get(name, name) }", None
        )
        if method is None:
            self.err += f"sh: {name}: command not found\n".encode()
            return 127
        return method(arguments, stdin, out)

    def _do_cd(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        wanted = arguments[0] if arguments else self._exported.get("HOME", "/")
        target = self._exported.get("OLDPWD", self._cwd) if wanted == "-" else self._path(wanted)
        node = self._files.get(target)
        if node is None or node.kind != "directory":
            raise Trouble(f"{wanted}: No such file or directory")
        if wanted == "-":
            out += f"{target}\n".encode()
        self._exported["OLDPWD"], self._cwd = self._cwd, target
        return 0

    def _do_pwd(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        out += f"{self._cwd}\n".encode()
        return 0

    def _do_export(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            before = self._local.pop(name, self._exported.get(name, ""))
            self._exported[name] = value if equals else before
        return 0

    def _do_unset(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for name in arguments:
            self._exported.pop(name, None)
            self._local.pop(name, None)
        return 0

    def _do_env(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for name, value in {**self._exported, "PWD": self._cwd}.items():
            out += os.fsencode(f"{name}={value}\n")
        return 0

    def _do_echo(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        end = b"\n"
        if arguments[:1] == ["-n"]:
            end, arguments = b"", arguments[1:]
        out += os.fsencode(" ".join(arguments)) + end
        return 0

    def _do_printf(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        template, *values = arguments
        text = template.replace("\\n", "\n").replace("\\t", "\t")
        rounds = max(1, -(-len(values) // max(1, text.count("%s")))) if "%s" in text else 1
        for _ in range(rounds):
            filled = re.sub("%s", lambda _: values.pop(0) if values else "", text)
            out += os.fsencode(filled.replace("%%", "%"))
        return 0

    def _do_cat(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        if not arguments:
            out += stdin
        for argument in arguments:
            out += self._files.read(self._path(argument))
        return 0

    def _do_ls(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        paths = [argument for argument in arguments if not argument.startswith("-")] or ["."]
        everything = any("a" in a or "A" in a for a in arguments if a.startswith("-"))
        for path in paths:
            node = self._files.get(self._path(path))
            if node is None:
                raise Trouble(f"cannot access '{path}': No such file or directory")
            names = self._files.names(self._path(path)) if node.kind == "directory" else [path]
            for name in names:
                if everything or not name.startswith("."):
                    out += os.fsencode(f"{name}\n")
        return 0

    def _do_rm(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        flags = "".join(argument for argument in arguments if argument.startswith("-"))
        for argument in (a for a in arguments if not a.startswith("-")):
            place = self._files.real(self._path(argument), follow_last=False)
            node = self._files.tree.get(place)
            if node is None and "f" not in flags:
                raise Trouble(f"cannot remove '{argument}': No such file or directory")
            if node is not None and node.kind == "directory" and "r" not in flags.lower():
                raise Trouble(f"cannot remove '{argument}': Is a directory")
            if place == "/":
                raise Trouble("it is dangerous to operate recursively on '/'")
            self._files.remove(place)
        return 0

    def _do_mkdir(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for argument in (a for a in arguments if not a.startswith("-")):
            path = self._path(argument)
            if "-p" in arguments:
                self._files.make_folders(path)
            elif self._files.get(path) is not None:
                raise Trouble(f"cannot create directory '{argument}': File exists")
            else:
                self._files.set(self._files.real(path), Node("directory", mode=0o755), argument)
        return 0

    def _do_touch(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for argument in arguments:
            if self._files.get(self._path(argument)) is None:
                self._files.write(self._path(argument), b"")
        return 0

    def _do_ln(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        if len(arguments) != 3 or arguments[0] != "-s":
            raise Trouble("only 'ln -s TARGET NAME' is known here")
        node = Node("symlink", os.fsencode(arguments[1]))
        self._files.set(self._files.real(self._path(arguments[2]), follow_last=False), node)
        return 0

    def _do_mv(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        return self._copy(arguments, move=True)

    def _do_cp(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        return self._copy(arguments, move=False)

    def _copy(self, arguments: list[str], *, move: bool) -> int:
        *sources, target = [a for a in arguments if not a.startswith("-")]
        recursive = move or any(a.startswith("-") for a in arguments)
        for source in sources:
            start = self._files.real(self._path(source), follow_last=not move)
            found = self._files.below(start)
            if not found:
                raise Trouble(f"cannot stat '{source}': No such file or directory")
            if found[0][1].kind == "directory" and not recursive:
                raise Trouble(f"-r not specified; omitting directory '{source}'")
            place = self._files.real(self._path(target))
            into = self._files.tree.get(place)
            if into is not None and into.kind == "directory":
                place = f"{place.rstrip('/')}/{posixpath.basename(start)}"
            if f"{place}/".startswith(f"{start}/"):
                raise Trouble(f"cannot copy '{source}' into itself")
            for path, node in found:
                self._files.set(f"{place}/{path}" if path else place, node, target)
            if move:
                self._files.remove(start)
        return 0

    def _do_bracket(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        if arguments[-1:] != ["]"]:
            raise Trouble("missing ]")
        return self._do_test(arguments[:-1], stdin, out)

    def _do_test(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        if arguments[:1] == ["!"]:
            return 1 - self._do_test(arguments[1:], stdin, out)
        match arguments:
            case []:
                holds = False
            case [text]:
                holds = bool(text)
            case ["-n" | "-z" as flag, text]:
                holds = bool(text) == (flag == "-n")
            case [flag, path] if flag in _UNARY:
                holds = _UNARY[flag](self._files.get(self._path(path)))
            case [left, "=" | "==", right]:
                holds = left == right
            case [left, "!=", right]:
                holds = left != right
            case _:
                raise Trouble(f"not understood: {' '.join(arguments)}")
        return 0 if holds else 1

    def _do_true(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        return 0

    def _do_false(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        return 1

    def _do_exit(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        raise _Exit(int(arguments[0]) & 0xFF if arguments else self._code)

    def _do_exec(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        raise _Exit(self._call(arguments, stdin, out), keeps_state=False)

    def _do_sleep(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        left = self._deadline - time.monotonic()
        self._host.wait(min(float(arguments[0]), max(left, 0.0)))
        if float(arguments[0]) > left:
            self.timed_out = True
            raise _Exit(124, keeps_state=False)
        return 0

    def _do_kill(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for word in (a for a in arguments if not a.startswith("-")):
            if not word.isdecimal() or not self._host.end(int(word)):
                raise Trouble(f"({word}) - No such process")
        return 0

    def _do_ps(self, arguments: list[str], stdin: bytes, out: bytearray) -> int:
        for process in self._host._processes.values():
            out += f"{process.pid} {' '.join(process.argv)}\n".encode()
        return 0
