"""Builds the image and runs the compose cluster without Docker.

For machines without a Docker daemon. It executes each instruction of Dockerfile.cpu in
a Debian root folder made by debootstrap, then each service of compose.yaml in its own
namespaces (network, host name, mounts, 64 MB of /dev/shm), as Docker would. It does not
cover layers, caches and the seccomp profile, which are Docker's own.

    docker/check.py [--folder DIR] [--bind PATH]... [--env NAME=VALUE]...
        [--build-arg NAME=VALUE]... [--again]

Needs root, debootstrap, iproute2 and PyYAML. The folder keeps the roots, so that a
second run can skip the build (--again). --bind shows a folder of this machine to the
instructions, such as one with wheels or certificates. They can write to it, so it must
contain nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
MIRROR = "http://deb.debian.org/debian"
SUBNET = "10.213.7"
# As in Docker's Debian images.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    """Return the instructions of a Dockerfile, each with its arguments."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.M)
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), " ".join(rest.split())


class Stage:
    """One stage of the build, with its root folder, variables and working directory."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self.root = root
        self.environ = {"PATH": PATH, "HOME": "/root"}
        self.cwd = "/"
        self.arguments = dict(pair.split("=", 1) for pair in options.build_arg)
        self._options = options

    def expand(self, text: str) -> str:
        """Replace the variables in an instruction by their values."""
        values = {**self.environ, **self.arguments}
        return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ""), text)

    def run(self, command: str) -> None:
        """Execute a shell command in the root folder, as RUN does."""
        print(f"--- RUN {command}", flush=True)
        environ = {**self.environ, **self.arguments}
        environ.update(pair.split("=", 1) for pair in self._options.env)
        words = enter(self.root, self._options.bind, self.cwd, ["sh", "-c", command])
        subprocess.run(words, env=environ, check=True, stdin=subprocess.DEVNULL)

    def copy(self, words: list[str], stages: dict[str, Stage]) -> None:
        """Copy files of the repository, or of another stage."""
        source = REPOSITORY
        if words[0].startswith("--from="):
            source = stages[words.pop(0).partition("=")[2]].root
        *names, target = words
        place = self.root / os.path.join(self.cwd, target).lstrip("/")
        for name in names:
            origin = source / name.lstrip("/")
            into = place / origin.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(origin, into, dirs_exist_ok=True, ignore=ignored)
            else:
                shutil.copy2(origin, into)


def enter(root: Path, binds: list[str], cwd: str, command: list[str]) -> list[str]:
    """Return the command line that runs a command inside a root folder."""
    at = shlex.quote(str(root))
    lines = [
        "set -e",
        f"mount -t proc proc {at}/proc",
        f"mount --rbind /dev {at}/dev",
        f"mount -t tmpfs -o size=64m tmpfs {at}/dev/shm",
    ]
    for path in ["/etc/resolv.conf", *binds]:
        inside = f"{at}{shlex.quote(path)}"
        make = f"mkdir -p {inside}" if os.path.isdir(path) else f"touch {inside}"
        lines += [f"mkdir -p $(dirname {inside})", make]
        lines.append(f"mount --bind {shlex.quote(path)} {inside}")
    inner = f"cd {shlex.quote(cwd)} && exec {shlex.join(command)}"
    lines.append(f"exec chroot {at} /bin/sh -c {shlex.quote(inner)}")
    unshare = ["unshare", "--mount", "--propagation", "private"]
    return [*unshare, "sh", "-c", "\n".join(lines)]


def build(options: argparse.Namespace) -> Stage:
    """Execute the Dockerfile, and return its last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for word, rest in instructions(REPOSITORY / "docker/Dockerfile.cpu"):
        if word == "FROM":
            _, _, name = rest.partition(" AS ")
            root = options.folder / (name or "image")
            if not options.again:
                make_root(options.folder, root)
            stage = stages[name or "image"] = Stage(root, options)
            continue
        assert stage is not None, "an instruction before FROM"
        if word == "ARG":
            name, _, value = rest.partition("=")
            stage.arguments.setdefault(name, value)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.environ[name] = stage.expand(value)
        elif word == "WORKDIR":
            stage.cwd = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif options.again:
            continue
        elif word == "RUN":
            stage.run(rest)
        elif word == "COPY":
            print(f"--- COPY {rest}", flush=True)
            stage.copy(rest.split(), stages)
        elif word != "CMD":
            raise SystemExit(f"docker/check.py does not know {word}")
    assert stage is not None, "no FROM"
    return stage


def make_root(folder: Path, root: Path) -> None:
    """Make a Debian root folder by copying one of debootstrap."""
    base = folder / "debian"
    if not base.exists():
        command = ["debootstrap", "--variant=minbase", "bookworm", str(base), MIRROR]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", str(root)], check=True)
    subprocess.run(["cp", "-a", str(base), str(root)], check=True)


@contextlib.contextmanager
def network(names: list[str]) -> Iterator[dict[str, str]]:
    """Make a namespace on one bridge for each name, and return their addresses."""

    def ip(*words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], check=check, stderr=None if check else -3)

    addresses = {name: f"{SUBNET}.{i}" for i, name in enumerate(names, start=1)}
    try:
        ip("link", "add", "bcdocker", "type", "bridge")
        ip("link", "set", "bcdocker", "up")
        for number, (name, address) in enumerate(addresses.items(), start=1):
            space, port = f"bcdocker-{name}", f"bcdocker{number}"
            ip("netns", "add", space)
            peer = ["type", "veth", "peer", "name", "eth0", "netns", space]
            ip("link", "add", port, *peer)
            ip("link", "set", port, "master", "bcdocker", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space, "link", "set", device, "up")
        yield addresses
    finally:
        for number, name in enumerate(names, start=1):
            ip("link", "del", f"bcdocker{number}", check=False)
            ip("netns", "del", f"bcdocker-{name}", check=False)
        ip("link", "del", "bcdocker", check=False)


def run_cluster(image: Stage, options: argparse.Namespace) -> int:
    """Run the services of compose.yaml, and return the exit code of ``user``."""
    import yaml

    services = yaml.safe_load((REPOSITORY / "docker/compose.yaml").read_text())[
        "services"
    ]
    shared = options.folder / "ssh"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    running: list[subprocess.Popen[bytes]] = []
    with network(list(services)) as addresses:
        hosts = "".join(f"{at} {name}\n" for name, at in addresses.items())
        try:
            for name, service in services.items():
                words = start_words(image, options, name, service["command"], hosts)
                print(f"--- {name}: {json.dumps(service['command'])}", flush=True)
                process = subprocess.Popen(words, env=image.environ)
                running.append(process)
            return running[list(services).index("user")].wait(options.limit_s)
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for name in services:
                end_namespace(f"bcdocker-{name}")
            for process in running:
                process.wait(10)


def start_words(
    image: Stage,
    options: argparse.Namespace,
    name: str,
    command: list[str],
    hosts: str,
) -> list[str]:
    """Return the command line of a service on a copy-on-write view of the image."""
    own = options.folder / "services" / name
    shutil.rmtree(own, ignore_errors=True)
    for part in ("upper", "work", "root"):
        (own / part).mkdir(parents=True)
    layers = f"lowerdir={image.root},upperdir={own}/upper,workdir={own}/work"
    at = own / "root"
    inside = enter(at, [], image.cwd, command)
    script = "\n".join(
        [
            "set -e",
            f"hostname {name}",
            f"mount -t overlay -o {layers} overlay {at}",
            f"mkdir -p {at}/ssh",
            f"mount --bind {options.folder}/ssh {at}/ssh",
            f"printf %s {shlex.quote(hosts)} > {at}/etc/hosts",
            f"exec {shlex.join(inside)}",
        ]
    )
    apart = ["unshare", "--uts", "--mount", "--propagation", "private"]
    return ["ip", "netns", "exec", f"bcdocker-{name}", *apart, "sh", "-c", script]


def end_namespace(space: str) -> None:
    """End every process of a network namespace."""
    for _ in range(50):
        found = subprocess.run(
            ["ip", "netns", "pids", space], capture_output=True, text=True, check=False
        ).stdout.split()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)


def main() -> int:
    """Build, run, and return the exit code of the cluster's user."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/bluecomm-image"))
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument(
        "--again", action="store_true", help="use the roots as they are"
    )
    parser.add_argument("--limit-s", type=float, default=600.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    image = build(options)
    code = run_cluster(image, options)
    print(f"--- the cluster's user ended with exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
