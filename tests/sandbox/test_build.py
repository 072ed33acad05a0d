"""Dockerfiles built in our own sandbox, on real disks, and seen from a sandbox over the result."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sprout_env.disks import images, open_store
from sprout_env.disks.images.bases import list_bases
from sprout_env.disks.images.sources import SUBSTITUTED
from sprout_env.disks.store import Base, DiskStore
from sprout_env.errors import ImageError
from sprout_env.sandbox import SandboxConfig, start
from sprout_env.sandbox.build import base_for
from sprout_env.tasks.task import DockerfileImage, FolderImage
from tests.processes import running

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, debian_base: Path) -> Iterator[DiskStore]:
    path = tmp_path_factory.mktemp("build") / "store"
    opened = open_store(path)
    images.alias(path, "our/debian", FolderImage(path=debian_base))
    yield opened
    left = list((path / "families").glob("*")) if (path / "families").exists() else []
    opened.close()
    assert not left, f"builds left families: {left}"
    shutil.rmtree(path)


class Context:
    """A build context in the making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __call__(self, dockerfile: str, **files: str) -> DockerfileImage:
        (self.folder / "Dockerfile").write_text(dockerfile)
        for name, text in files.items():
            self.file(name.replace("__", "/"), text)
        return DockerfileImage(context=self.folder)

    def file(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path / "context")


def look(store: DiskStore, base: Base, command: str) -> str:
    """What a command prints in a sandbox over a base."""
    family = store.family("ab" * 32, base)
    disk = store.create(family)
    config = SandboxConfig(workdir=base.config.workdir, env=base.config.env)
    sandbox = start(store, disk, config, fresh=True)
    try:
        result = sandbox.run(command, timeout_s=60)
        assert result.exit_code == 0, result.stderr.decode()
        return result.stdout.decode()
    finally:
        sandbox.close()
        store.drop(disk.id)
        store.drop_family(family.id)


def test_run_changes_the_whole_disk(store: DiskStore, context: Context) -> None:
    image = context(
        """\
FROM our/debian
RUN useradd --create-home --shell /bin/bash agent && echo one > /usr/local/one \\
    # a comment inside
    && rm -rf /usr/share/doc && mkdir /usr/share/doc && echo new > /usr/share/doc/new
RUN ["/bin/sh", "-c", "echo 'exec form' > /exec && chmod 4755 /exec"]
RUN setcap cap_net_raw+ep /usr/bin/file
RUN mv /usr/bin/less /usr/bin/renamed && rm /etc/motd || true
"""
    )
    base = base_for(store, image)
    assert len(base.layers) == 2
    layer = base.layers[0]
    assert os.getxattr(layer / "usr/share/doc", "trusted.overlay.opaque") == b"y"
    gone = (layer / "usr/bin/less").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    said = look(
        store,
        base,
        "cat /usr/local/one /exec; ls /usr/share/doc; stat -c %a /exec; id -un agent;"
        "test ! -e /usr/bin/less; test -x /usr/bin/renamed; getcap /usr/bin/file",
    )
    assert said == "one\nexec form\nnew\n4755\nagent\n/usr/bin/file cap_net_raw=ep\n"
    for name in ("hosts", "hostname", "resolv.conf"):
        assert not (layer / "etc" / name).exists(), "the sandbox's own files are not the image's"


def test_environment_arguments_and_directories(store: DiskStore, context: Context) -> None:
    image = context(
        """\
ARG BASE=our/debian
FROM ${BASE}
ARG WHO=world
ARG UNSET
ENV GREETING="hello ${WHO}" OTHER='$WHO' PATH=/opt/bin:$PATH
ENV OLD style of env
WORKDIR /srv
WORKDIR app/${WHO}
RUN echo "$GREETING|$OTHER|$OLD|$WHO|${UNSET-none}|$HOME|$(pwd)" > said
RUN echo $PATH > path
USER nobody
RUN id -u > /tmp/uid; echo $HOME >> /tmp/uid
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN [[ -n $BASH_VERSION ]] && shopt -o pipefail > /tmp/shell
ENTRYPOINT ["/bin/entry"]
CMD echo hi
LABEL a=1 "b c"="d e"
VOLUME /data
EXPOSE 80
HEALTHCHECK --interval=5s CMD true
STOPSIGNAL SIGTERM
"""
    )
    base = base_for(store, image)
    assert base.config.env["GREETING"] == "hello world"
    assert base.config.env["OTHER"] == "$WHO"
    assert "WHO" not in base.config.env, "an ARG is no ENV"
    assert base.config.workdir == "/srv/app/world"
    assert base.config.user == "nobody"
    assert base.config.entrypoint == ("/bin/entry",)
    assert base.config.cmd == ("/bin/bash", "-o", "pipefail", "-c", "echo hi")
    assert base.config.shell == ("/bin/bash", "-o", "pipefail", "-c")
    own = {k: v for k, v in base.config.labels.items() if k != SUBSTITUTED}
    assert own == {"a": "1", "b c": "d e"}
    assert base.config.volumes == ("/data",)
    said = look(store, base, "cat said path /tmp/uid /tmp/shell")
    assert said.splitlines() == [
        "hello world|$WHO|style of env|world|none|/root|/srv/app/world",
        "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "65534",
        "/nonexistent",
        "pipefail       \ton",
    ]


def test_heredocs(store: DiskStore, context: Context) -> None:
    image = context(
        """\
FROM our/debian
ENV WHO=world
RUN <<EOF
echo "first $WHO" > /one
cd /tmp
pwd >> /one
EOF
RUN python3 - <<'END' > /two
print("from python")
END
RUN <<-SCRIPT
\t#!/usr/bin/env python3
\timport sys
\tprint(sys.executable, file=open("/three", "w"))
\tSCRIPT
COPY --chmod=750 <<PLAIN <<"QUOTED" /made/
hello $WHO
PLAIN
hello $WHO
QUOTED
"""
    )
    base = base_for(store, image)
    said = look(store, base, "cat /one /two /three /made/*; stat -c %a /made/PLAIN")
    assert said.splitlines() == [
        "first world", "/tmp", "from python", "/usr/bin/python3", "hello world", "hello $WHO",
        "750",
    ]  # fmt: skip


def test_copy_as_docker_does(store: DiskStore, context: Context) -> None:
    context.file("script.sh", "#!/bin/sh\n", 0o755)
    context.file("tree/a.txt", "a")
    context.file("tree/deep/b.txt", "b")
    context.file("tree/deep/skip.log", "no")
    context.file("tree/keep.log", "yes")
    context.file("secret/key", "no")
    (context.folder / "tree/link").symlink_to("/etc/hostname")
    context.file(".dockerignore", "**/*.log\n!tree/keep.log\nsecret\n# comment\n")
    os.chown(context.folder / "tree/a.txt", 1234, 1234)
    image = context(
        """\
FROM our/debian
RUN ln -s /srv /lnk && ln -s /nowhere/at/all /dangling && useradd -u 777 app
WORKDIR /w
COPY . everything/
COPY script.sh renamed
COPY script.sh /lnk/into/
COPY tree/*.txt tree/keep.log wild/
COPY --chown=app:daemon --chmod=0700 tree owned
COPY ["script.sh", "with space"]
COPY --chown=55 script.sh /w/55
"""
    )
    base = base_for(store, image)
    said = look(
        store,
        base,
        "find . /srv -mindepth 1 -printf '%p %U:%G %m %l\\n' | sort",
    )
    assert said.splitlines() == sorted(
        [
            "./everything 0:0 755 ",
            "./everything/.dockerignore 0:0 644 ",
            "./everything/Dockerfile 0:0 644 ",
            "./everything/script.sh 0:0 755 ",
            "./everything/tree 0:0 755 ",
            "./everything/tree/a.txt 0:0 644 ",
            "./everything/tree/deep 0:0 755 ",
            "./everything/tree/deep/b.txt 0:0 644 ",
            "./everything/tree/keep.log 0:0 644 ",
            "./everything/tree/link 0:0 777 /etc/hostname",
            "./renamed 0:0 755 ",
            "./wild 0:0 755 ",
            "./wild/a.txt 0:0 644 ",
            "./wild/keep.log 0:0 644 ",
            "./owned 777:1 700 ",
            "./owned/a.txt 777:1 700 ",
            "./owned/deep 777:1 700 ",
            "./owned/deep/b.txt 777:1 700 ",
            "./owned/keep.log 777:1 700 ",
            "./owned/link 777:1 777 /etc/hostname",
            "./with space 0:0 755 ",
            "./55 55:55 755 ",
            "/srv/into 0:0 755 ",
            "/srv/into/script.sh 0:0 755 ",
        ]
    )


def test_multi_stage_and_scratch(store: DiskStore, context: Context) -> None:
    image = context(
        """\
FROM our/debian AS build
RUN mkdir -p /out/sub && echo built > /out/sub/file && chown -R 33:33 /out \\
    && cp /usr/bin/file /out/capable && setcap cap_net_raw+ep /out/capable \\
    && ln -s /out/sub/file /result && ln -s /etc/passwd /out/link
FROM our/debian AS unused
RUN exit 1
FROM scratch AS empty
COPY --from=build /result /only
FROM empty
COPY --from=build --chown=5:6 /out/sub /sub
COPY --from=0 /out /o*t/sub/f* /all/
COPY hello /
""",
        hello="hi",
    )
    base = base_for(store, image)
    assert len(base.layers) == 3
    final, middle, empty = base.layers
    assert sorted(path.name for path in middle.iterdir()) == ["only"]
    assert (middle / "only").read_text() == "built\n", "a source that is a link is followed"
    assert not list(empty.iterdir())
    assert (final / "hello").read_text() == "hi"
    owner = (final / "sub/file").stat()
    assert (owner.st_uid, owner.st_gid) == (5, 6)
    kept = (final / "all/sub/file").stat()
    assert (kept.st_uid, kept.st_gid) == (33, 33), "without --chown a stage's owners are kept"
    assert (final / "all/file").read_text() == "built\n"
    assert (final / "all/link").readlink() == Path("/etc/passwd")
    assert os.getxattr(final / "all/capable", "security.capability")


def test_add_unpacks_local_archives(store: DiskStore, context: Context, tmp_path: Path) -> None:
    (tmp_path / "in/d").mkdir(parents=True)
    (tmp_path / "in/d/f").write_text("packed")
    os.chown(tmp_path / "in/d/f", 12, 13)
    image = context("FROM our/debian\nADD pack.tar.gz plain.txt /add/\n", plain__txt="")
    context.file("plain.txt", "plain")
    pack = ["tar", "-C", str(tmp_path / "in"), "-czf", str(context.folder / "pack.tar.gz"), "d"]
    subprocess.run(pack, check=True)
    base = base_for(store, image)
    said = look(store, base, "cat /add/d/f /add/plain.txt; stat -c %u:%g /add/d/f")
    assert said == "packedplain12:13\n"


def test_the_same_build_never_runs_twice(store: DiskStore, context: Context) -> None:
    context.file("input", "one")
    context.file("unused", "x")
    image = context("FROM our/debian\nCOPY input /i\nRUN date +%N > /stamp\n")
    lines: list[str] = []
    first = base_for(store, image, progress=lines.append)
    assert any("RUN date" in line for line in lines)
    lines.clear()
    os.utime(context.folder / "input")
    context.file("unused", "changed")
    assert base_for(store, image, progress=lines.append) == first
    assert lines == []
    context.file("input", "two")
    assert base_for(store, image).digest != first.digest
    context.file("input", "one")
    context.file("input", "one", 0o755)
    assert base_for(store, image).digest != first.digest, "a mode is part of the content"


def _build(store_path: Path, context: Path) -> None:
    opened = open_store(store_path)
    try:
        base_for(opened, DockerfileImage(context=context))
    finally:
        opened.close()


def test_two_processes_build_once(store: DiskStore, context: Context) -> None:
    context("FROM our/debian\nRUN sleep 1; date +%N > /stamp\n")
    before = {info.digest for info in list_bases(store.path)}
    spawn = multiprocessing.get_context("spawn")
    builders = [spawn.Process(target=_build, args=(store.path, context.folder)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(100)
        assert builder.exitcode == 0
    made = [info for info in list_bases(store.path) if info.digest not in before]
    assert len([info for info in made if "Dockerfile" in info.source]) == 1


def test_a_failing_run_says_where_and_why(store: DiskStore, context: Context) -> None:
    image = context("FROM our/debian\n\nRUN echo the last words >&2; exit 7\nRUN touch /never\n")
    before = list_bases(store.path)
    with pytest.raises(ImageError) as caught:
        base_for(store, image)
    said = str(caught.value)
    assert "line 3: RUN echo the last words" in said
    assert "exit code 7" in said
    assert "the last words" in said.split("exit code 7")[1]
    log = Path(said.rpartition("log: ")[2])
    assert log.parent == store.path / "logs"
    assert "the last words" in log.read_text()
    digests = {info.digest for info in before}
    assert [
        i for i in list_bases(store.path) if i.digest not in digests and "our" in i.source
    ] == []
    assert not list((store.path / "bases").glob(".making-*"))


def test_a_run_has_a_time_limit_and_leaves_no_process(store: DiskStore, context: Context) -> None:
    image = context("FROM our/debian\nRUN sleep 987 & sleep 987\n")
    with pytest.raises(ImageError, match="ran longer than 1 s"):
        base_for(store, image, run_timeout_s=1.0)
    assert running("sleep 987") == []


def test_network_of_a_run(store: DiskStore, context: Context) -> None:
    image = context(
        """\
FROM our/debian
RUN ls /sys/class/net | wc -w > /host; ip=$(cat /proc/net/route | wc -l); echo $ip > /routes
RUN --network=none cat /proc/net/route | wc -l > /none
"""
    )
    base = base_for(store, image)
    host, none = look(store, base, "cat /routes /none").split()
    assert int(host) == len(Path("/proc/net/route").read_text().splitlines())
    assert int(none) <= 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM our/debian\nCOPY missing /x\n", "line 2: COPY missing /x: missing is not in the"),
        (
            "FROM our/debian\nCOPY ../Dockerfile /x\nCOPY leak /y\n",
            "leads out of the build context",
        ),
        ("FROM our/debian\nADD https://example.org/x /x\n", "adding from a URL is not supported"),
        ("FROM our/debian\nONBUILD RUN true\n", "ONBUILD is not supported"),
        ("FROM our/debian\nFOO bar\n", "unknown instruction FOO"),
        ("FROM our/debian\nRUN --mount=type=cache,target=/c true\n", "--mount is not supported"),
        ("FROM our/debian\nCOPY --parents Dockerfile /x\n", "--parents is not supported"),
        ("FROM our/debian\nCOPY --from=nowhere /a /b\n", "has no alias in this store"),
        ("FROM our/debian AS b\nFROM our/debian\nCOPY --from=b /missing /x\n", "no such file"),
        ("FROM our/debian\nUSER ghost\nRUN true\n", "no such user"),
        ("FROM --platform=plan9/mips our/debian\n", "cannot build for plan9/mips"),
        (
            "FROM our/debian\nCOPY Dockerfile /usr\nCOPY Dockerfile /etc/passwd/x\n",
            "Not a directory",
        ),
    ],
)
def test_what_is_refused_is_named(store: DiskStore, context: Context, text: str, said: str) -> None:
    (context.folder / "leak").symlink_to("/etc/passwd")
    with pytest.raises(ImageError, match="(?s)" + said):
        base_for(store, context(text))


def test_links_in_the_image_lead_nowhere_on_the_host(
    store: DiskStore, context: Context, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "etc").mkdir()
    (outside / "hosts").write_text("the host's")
    image = context(
        f"""\
FROM our/debian
RUN ln -s {outside} /out && mkdir -p {outside.parent} && ln -s {"../" * 20}{outside} /dots
COPY mine /out/
COPY mine /dots/
RUN rm -rf /etc && ln -s {outside} /etc
""",
        mine="mine",
    )
    with pytest.raises(ImageError):
        # /out leads to a path that is not in the image: a folder cannot be made through it.
        base_for(store, image)
    assert sorted(path.name for path in outside.iterdir()) == ["etc", "hosts"]
    last = f"FROM our/debian\nRUN rm -rf /etc && ln -s {outside} /etc\n"
    base_for(store, context(last))
    assert (outside / "hosts").read_text() == "the host's"


def test_a_built_image_is_a_base_for_others(store: DiskStore, context: Context) -> None:
    first = base_for(
        store, context("FROM our/debian\nRUN rm -r /usr/share/doc /usr/bin/less && mkdir /opt/a\n")
    )
    images.alias(store.path, "our/first", first.digest)
    second = base_for(
        store,
        context(
            "FROM our/first\nRUN mkdir -p /usr/share/doc/new && rmdir /opt/a && mv /srv /opt/a\n"
        ),
    )
    assert second.layers == (second.layers[0], *first.layers)
    said = look(
        store, second, "echo /usr/share/doc/* /opt/*; ls -d /srv /usr/bin/less 2>&1 || true"
    )
    assert said.startswith("/usr/share/doc/new /opt/a\n")
    assert said.count("No such file") == 2
    with pytest.raises(ImageError, match="is a layer of"):
        images.drop_base(store.path, first.digest)


def test_a_directory_store_builds_too(
    tmp_path: Path, store: DiskStore, context: Context, debian_base: Path
) -> None:
    opened = open_store(tmp_path / "directory", kind="directory")
    try:
        images.alias(opened.path, "our/debian", FolderImage(path=debian_base))
        text = "FROM our/debian\nRUN rm -r /usr/share/doc && mkdir /usr/share/doc && echo x > /x\n"
        base = base_for(opened, context(text))
        assert look(opened, base, "cat /x; ls /usr/share/doc") == "x\n"
    finally:
        opened.close()


def test_a_killed_builder_leaves_what_a_sweep_removes(store: DiskStore, context: Context) -> None:
    image = context("FROM our/debian\nRUN echo begun && sleep 654\n")
    spawn = multiprocessing.get_context("spawn")
    builder = spawn.Process(target=_build, args=(store.path, context.folder))
    builder.start()
    deadline = time.monotonic() + 110
    while not running("^sleep 654"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    builder.kill()
    builder.join(30)
    deadline = time.monotonic() + 10
    while running("^sleep 654"):
        assert time.monotonic() < deadline, "its sandbox lives on"
        time.sleep(0.05)
    swept = store.sweep()
    assert any("unfinished base" in line for line in swept)
    assert any("dropped disk" in line for line in swept)
    assert not list((store.path / "bases").glob(".making-*"))
    with pytest.raises(ImageError, match="ran longer"):
        base_for(store, image, run_timeout_s=1.0)


def test_a_memory_store_does_not_build(context: Context) -> None:
    opened = open_store(kind="memory")
    assert base_for(opened, context("FROM nowhere\nRUN exit 1\n")).layers == ()
