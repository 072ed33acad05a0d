"""A task folder to begin with: small, complete, and provable as it stands; then it is changed."""

from __future__ import annotations

import re
from pathlib import Path

from sprout_env.errors import ConfigError

_FILES = {
    "task.toml": """\
schema_version = "1.3"

[task]
name = "my-tasks/{slug}"
description = "Say in one sentence what is to be done."
keywords = ["example"]

[environment]
network_mode = "no-network"
cpus = 1
memory_mb = 512

[agent]
timeout_sec = 900.0
network_mode = "no-network"

[verifier]
timeout_sec = 60.0
network_mode = "no-network"

[metadata.sprout]
max_turns = 40
""",
    "instruction.md": """\
The shop keeps its orders in `/srv/shop/orders.csv` (columns: id, customer, amount in cents).

Write the total amount of each customer to `/srv/shop/totals.csv`, with the header
`customer,total`, sorted by customer. Leave `orders.csv` as it is, owned by `nobody`.

Submit when you are done.
""",
    "environment/Dockerfile": """\
# The base of the bundled tasks: Debian 12 with python3, pytest, git, make, sqlite3.
FROM sprout/seedbed-base

COPY files/orders.csv /srv/shop/orders.csv
RUN chown nobody /srv/shop/orders.csv
WORKDIR /srv/shop
""",
    "environment/files/orders.csv": """\
id,customer,amount
1,ada,1250
2,berta,300
3,ada,950
4,clara,4100
5,berta,700
""",
    "solution/solve.sh": """\
#!/bin/bash
# What the gate runs to prove that the task can be solved. An agent never sees it.
set -e
cd /srv/shop
python3 - <<'EOF'
import collections
import csv

totals = collections.Counter()
with open("orders.csv") as file:
    for row in csv.DictReader(file):
        totals[row["customer"]] += int(row["amount"])
with open("totals.csv", "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\\n")
    writer.writerow(["customer", "total"])
    writer.writerows(sorted(totals.items()))
EOF
""",
    "tests/test.sh": """\
#!/bin/bash
# Judges the end: a junit report says which test failed, the reward file decides (1 or 0).
mkdir -p /logs/verifier
cd /tests || exit 1
if python3 -P -m pytest -q -p no:cacheprovider --rootdir=/tests -c /dev/null \\
    --junitxml=/logs/verifier/junit.xml /tests/test_outputs.py; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
""",
    "tests/test_outputs.py": '''\
"""What must hold at the end. Small tests: the reviewer is told which of them failed."""

from pathlib import Path

SHOP = Path("/srv/shop")


def test_totals():
    lines = (SHOP / "totals.csv").read_text().splitlines()
    assert lines[0] == "customer,total"
    assert dict(line.split(",") for line in lines[1:]) == {{
        "ada": "2200",
        "berta": "1000",
        "clara": "4100",
    }}


def test_sorted():
    names = [line.split(",")[0] for line in (SHOP / "totals.csv").read_text().splitlines()[1:]]
    assert names == sorted(names)


def test_orders_untouched():
    # It holds from the start: alone it must not earn the reward.
    assert (SHOP / "orders.csv").owner() == "nobody"
    assert len((SHOP / "orders.csv").read_text().splitlines()) == 6
''',
    "playbook.toml": '''\
# Only the simulated actor reads this: right steps, and errors that an agent might make. With it the
# task can be tried whole without a model: sprout run harbor --path .. --actor simulated:skill=0.5

[[steps]]
id = "look"
message = "See what is there."
command = "ls -l && cat orders.csv"
expect = "id,customer,amount"

[[steps]]
id = "sort"
message = "Put the orders of each customer together, in a copy."
command = "tail -n +2 orders.csv | sort -t, -k2,2 > /tmp/orders && cat /tmp/orders"

[[steps.wrong]]
message = "Sort the orders where they are, and keep a copy."
command = """
tail -n +2 orders.csv | sort -t, -k2,2 > /tmp/orders
{ head -n 1 orders.csv; cat /tmp/orders; } > /tmp/new && mv /tmp/new orders.csv && ls -l"""
shows_in = ["test_orders_untouched"]

[[steps]]
id = "add"
message = "Add them up, below a header."
command = """
awk -F, '{t[$2] += $3} END {for (c in t) print c "," t[c]}' /tmp/orders | sort > /tmp/sums
{ echo customer,total; cat /tmp/sums; } > totals.csv && cat totals.csv"""

[[steps.wrong]]
message = "Add them up."
command = """
awk -F, '{t[$2] += $3} END {for (c in t) print c "," t[c]}' /tmp/orders | sort > totals.csv
cat totals.csv"""
shows_in = ["test_totals"]
''',
}
_SCRIPTS = ("solution/solve.sh", "tests/test.sh")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def write_skeleton(folder: Path) -> tuple[Path, ...]:
    """Write a complete small task; return its files.

    Args:
        folder: The task's folder, new or empty; its name is the task's slug.

    Raises:
        ConfigError: The folder holds something, or its name is no slug.
    """
    folder = folder.absolute()
    if not _SLUG.fullmatch(folder.name):
        raise ConfigError(f"{folder.name!r} is no task name: letters, digits, dots and dashes")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty")
    written = []
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = name in ("task.toml", "tests/test_outputs.py")
        path.write_text(text.format(slug=folder.name) if plain else text, encoding="utf-8")
        path.chmod(0o755 if name in _SCRIPTS else 0o644)
        written.append(path)
    return tuple(written)
