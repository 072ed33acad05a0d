"""The files of the memory double: paths, links and folders over a map."""

from __future__ import annotations

import os
import posixpath

from sprout_env.disks.memory import Node, Tree

_MOST_LINKS = 40


class Trouble(Exception):
    """What a command cannot do with a path; the text is what a shell would print."""


class Files:
    """A tree of nodes.

    Args:
        tree: The disk's map, changed in place.
        read_only: Refuse to change it.
    """

    def __init__(self, tree: Tree, *, read_only: bool) -> None:
        self.tree = tree
        self._read_only = read_only

    def real(self, path: str, *, follow_last: bool = True) -> str:
        """Return a path with ``.``, ``..`` and links resolved; it need not exist.

        Raises:
            Trouble: Links lead in a circle.
        """
        links = 0
        done: list[str] = []
        todo = [part for part in path.split("/") if part][::-1]
        while todo:
            part = todo.pop()
            if part in (".", ".."):
                done = done[:-1] if part == ".." else done
                continue
            node = self.tree.get("/" + "/".join([*done, part]))
            if node is None or node.kind != "symlink" or not (todo or follow_last):
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise Trouble(f"{path}: Too many levels of symbolic links")
            text = os.fsdecode(node.data)
            done = [] if text.startswith("/") else done
            todo += [piece for piece in text.split("/") if piece][::-1]
        return "/" + "/".join(done)

    def get(self, path: str) -> Node | None:
        """Return what is at a path, links followed."""
        return self.tree.get(self.real(path))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        start = self.real(folder).rstrip("/") + "/"
        inside = (path[len(start) :] for path in self.tree if path.startswith(start))
        return sorted(name for name in inside if name and "/" not in name)

    def below(self, path: str) -> list[tuple[str, Node]]:
        """Return a path and all beneath it, as relative paths (itself as ""), parents first."""
        start = path.rstrip("/") + "/"
        found = [("", self.tree[path])] if path in self.tree else []
        return found + sorted(
            (other[len(start) :], node)
            for other, node in self.tree.items()
            if other.startswith(start) and other != path
        )

    def read(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            Trouble: It is not a file.
        """
        node = self.get(path)
        if node is None:
            raise Trouble(f"{path}: No such file or directory")
        if node.kind == "directory":
            raise Trouble(f"{path}: Is a directory")
        return node.data

    def write(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Write a file, links followed.

        Raises:
            Trouble: Its folder is missing, or it is a folder.
        """
        place = self.real(path)
        old = self.tree.get(place)
        if old is not None and old.kind == "directory":
            raise Trouble(f"{path}: Is a directory")
        before = old.data if old is not None and append else b""
        self.set(place, Node("file", before + data, old.mode if old else 0o644), path)

    def set(self, place: str, node: Node, said: str = "") -> None:
        """Put a node at a real path whose folder exists."""
        if self._read_only:
            raise Trouble(f"{said or place}: Read-only file system")
        parent = self.tree.get(posixpath.dirname(place))
        if parent is None or parent.kind != "directory":
            raise Trouble(f"{said or place}: No such file or directory")
        self.tree[place] = node

    def remove(self, place: str) -> None:
        """Remove what is at a real path, with all beneath it."""
        if self._read_only:
            raise Trouble(f"{place}: Read-only file system")
        for path, _ in self.below(place):
            del self.tree[f"{place.rstrip('/')}/{path}" if path else place]

    def make_folders(self, path: str) -> None:
        """Make a folder and those above it; links are followed, what exists stays."""
        place = self.real(path)
        parts = [part for part in place.split("/") if part]
        for depth in range(1, len(parts) + 1):
            folder = "/" + "/".join(parts[:depth])
            if folder not in self.tree:
                self.set(folder, Node("directory", mode=0o755), path)
            elif self.tree[folder].kind != "directory":
                raise Trouble(f"{path}: Not a directory")

    def keep_folder(self, path: str, mode: int) -> None:
        """Make sure that a folder, not a link to one, is at a path."""
        place = self.real(path, follow_last=False)
        old = self.tree.get(place)
        if old is not None and old.kind != "directory":
            self.remove(place)
        self.set(place, Node("directory", mode=mode), path)

    def replace(self, path: str, node: Node) -> None:
        """Put a node in the place of whatever is there, link or folder."""
        place = self.real(path, follow_last=False)
        self.remove(place)
        self.set(place, node, path)
