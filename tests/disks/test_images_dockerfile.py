"""Dockerfiles as data, and what of a context counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sprout_env.disks.images.aliases import SEEDBED_PACKAGES
from sprout_env.disks.images.builders import builder_name
from sprout_env.disks.images.dockerfile import json_form, pairs, parse, substitute, words
from sprout_env.disks.images.dockerignore import context_files, go_pattern, is_ignored, read_rules
from sprout_env.errors import ImageError


def test_stages_flags_and_continuations() -> None:
    parsed = parse(
        "# syntax=docker/dockerfile:1\n"
        "# a comment\n"
        "ARG TAG=1\n"
        "FROM --platform=$BUILDPLATFORM base:${TAG} AS Build\n"
        "run echo a && \\\n"
        "    # inside\n"
        "\n"
        "    echo b \\\n"
        "  && echo c\n"
        "COPY --chown=1:2 --from=x a \\\n b\n"
        "FROM scratch\n",
        "D",
    )
    assert [stage.name for stage in parsed.stages] == ["build", ""]
    assert parsed.stages[0].platform == "$BUILDPLATFORM"
    run, copy = parsed.stages[0].instructions
    assert run.name == "RUN"
    assert run.line == 5
    assert run.rest == "echo a &&     echo b   && echo c"
    assert copy.flags == {"chown": "1:2", "from": "x"}
    assert copy.rest == "a  b"
    assert parsed.arguments[0].rest == "TAG=1"


def test_escape_directive() -> None:
    parsed = parse("# escape=`\nFROM x\nRUN dir C:\\\\ `\n  && ver\n", "D")
    assert parsed.escape == "`"
    assert parsed.stages[0].instructions[0].rest == "dir C:\\\\   && ver"


def test_heredocs() -> None:
    parsed = parse(
        "FROM x\nRUN cat <<A <<-'B' && echo <<<no\none\nA\n\ttwo\n\tB\nCMD [\"a\"]\n", "D"
    )
    run, cmd = parsed.stages[0].instructions
    assert [(doc.name, doc.body, doc.expand) for doc in run.heredocs] == [
        ("A", "one\n", True),
        ("B", "two\n", False),
    ]
    assert cmd.name == "CMD"
    assert cmd.line == 7
    assert parsed.has_heredocs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no FROM"),
        ("RUN x\nFROM y\n", "RUN stands before the first FROM"),
        ("FROM a b\n", "line 1: cannot read"),
        ("FROM a\nRUN <<X\nnever ends\n", "heredoc X has no end"),
        ("FROM a\nRUN\n", "RUN without arguments"),
        ("FROM a\nCOPY --from=x --from=y a b\n", "--from given twice"),
        ("FROM a\nONBUILD COPY a b\n", "ONBUILD"),
        ("FROM a\nINCLUDE b\n", "unknown instruction INCLUDE"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        parse(text, "D")


KNOWN = {"A": "1", "EMPTY": "", "LONG_name2": "x y"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$A${A}b$Ab", "11b"),
        ("${LONG_name2}-$LONG_name2.", "x y-x y."),
        ("'$A' \"$A\"", "$A 1"),
        ("\\$A \\\\ \\a", "$A \\ a"),
        ('"\\$A \\n"', "$A \\n"),
        ("${NONE:-d} ${EMPTY:-d} ${EMPTY-d} ${A:-d}", "d d  1"),
        ("${NONE:+d}|${A:+d}|${EMPTY:+d}|${EMPTY+d}", "|d||d"),
        ("${NONE:-${A}x$A}", "1x1"),
        ("cost $ 5 $", "cost $ 5 $"),
        ("it's", "its"),
    ],
)
def test_substitution(text: str, result: str) -> None:
    assert substitute(text, KNOWN) == result


def test_substitution_refuses_what_it_does_not_know() -> None:
    for text in ("${A%%x}", "${A/x/y}", "${A", "${}"):
        with pytest.raises(ImageError, match="not supported"):
            substitute(text, KNOWN)
    with pytest.raises(ImageError, match="NONE: say so"):
        substitute("${NONE:?say so}", KNOWN)
    assert substitute("\"$A\" 'x' \\$A", KNOWN, quotes=False) == "\"1\" 'x' $A"


def test_words_and_pairs() -> None:
    assert words(r"a='b c' d\ e \"f g\"".replace('\\"', '"')) == ["a='b c'", r"d\ e", '"f g"']
    one = parse("FROM x\nENV a=1 b='2 3' c=\nENV old the rest\n", "D").stages[0].instructions
    assert pairs(one[0], "D") == [("a", "1"), ("b", "'2 3'"), ("c", "")]
    assert pairs(one[1], "D") == [("old", "the rest")]
    with pytest.raises(ImageError, match="has no value"):
        pairs(parse("FROM x\nENV lonely\n", "D").stages[0].instructions[0], "D")


def test_exec_form() -> None:
    assert json_form('["a", "b c"]') == ("a", "b c")
    assert json_form("[ -f x ] && y") is None
    assert json_form("a b") is None


def test_dockerignore() -> None:
    rules = read_rules(
        "# comment\n*.log\n**/*.pyc\n/build/\n!build/keep\ndoc?\n[a-c]x\n!*.md\nREADME.md\n"
    )
    ignored = {
        "x.log", "a/b.pyc", "b.pyc", "build", "build/x", "docs", "docs/a", "bx", "README.md",
    }  # fmt: skip
    kept = {"a/x.log", "build/keep", "build/keep/y", "doc", "dx", "other.md"}
    for name in ignored:
        assert is_ignored(name, rules), name
    for name in kept:
        assert not is_ignored(name, rules), name


def test_go_patterns_stay_in_one_folder() -> None:
    import re

    assert re.fullmatch(go_pattern("a/*.py"), "a/b.py")
    assert not re.fullmatch(go_pattern("a/*.py"), "a/b/c.py")
    assert re.fullmatch(go_pattern("[!a]\\*"), "[!a]*") is None
    assert re.fullmatch(go_pattern("[^a]\\*"), "b*")


def test_context_lists_what_is_kept_in_an_ignored_folder(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    for name in ("Dockerfile", "d/no", "d/e/yes", "d/e/no"):
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / ".dockerignore").write_text("d\n!d/e/yes\n")
    assert context_files(tmp_path) == (".dockerignore", "Dockerfile", "d/e/yes", "loop")
    (tmp_path / "Dockerfile.dockerignore").write_text("loop\nd\n")
    assert "loop" not in context_files(tmp_path)
    with pytest.raises(ImageError, match="not a folder"):
        context_files(tmp_path / "none")


def test_the_seedbed_dockerfile_lists_the_same_packages() -> None:
    import sprout_env.tasks.seedbed as seedbed

    folder = Path(next(iter(seedbed.__path__))) / "base"
    text = (folder / "Dockerfile").read_text()
    run = parse(text, "seedbed").stages[0].instructions[0].rest
    listed = run.partition("--no-install-recommends")[2].partition("&&")[0].split()
    assert tuple(listed) == SEEDBED_PACKAGES


@pytest.mark.parametrize(
    ("client", "buildx", "buildah", "engine", "expected"),
    [
        ("28.2.2", True, True, True, "buildx"),
        ("20.10.24", False, True, True, "buildkit"),
        ("28.2.2", False, True, True, "classic"),
        ("17.09.0", False, False, True, "classic"),
        ("28.2.2", True, True, False, "buildah"),
        ("", False, True, True, "buildah"),
        ("28.2.2", True, False, False, None),
    ],
)
def test_the_order_of_builders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, buildx: bool, buildah: bool,
    engine: bool, expected: str | None,
) -> None:  # fmt: skip
    """Decided by what the tools on PATH say of themselves; each really builds in other tests."""
    said = f'[ "$1" = buildx ] && exit {int(not buildx)}; echo {client}'
    for name, script in (("docker", said if client else ""), ("buildah", "true" * buildah)):
        if script:
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert builder_name(docker=engine) == expected
