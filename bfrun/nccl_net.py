"""``--enable-net``: makes the ranks' NCCL use bluecomm's network plugin."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from bfrun.addresses import Address, choose_interfaces
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError

# The first variable is the plugin's path. The second makes NCCL fail if it cannot load
# the plugin.
PATH_NAME = "NCCL_NET_PLUGIN"
CHOICE_NAME = "NCCL_NET"
_CHOICE = "BlueComm"
# NCCL 2.27.3 to 2.29.7 forget the plugin once the last communicator has ended, unless
# this is 1.
REF_COUNT_NAME = "NCCL_NET_PLUGIN_REF_COUNT"
# The plugin's secret, by which connections prove that they belong to the job.
KEY_NAME = "BLUECOMM_NET_KEY"
# The interfaces that NCCL takes, the plugin's rails.
INTERFACES_NAME = "NCCL_SOCKET_IFNAME"
_FILE = Path("nccl_net", "libnccl-net-bluecomm.so")
_MAX_PATH = 254  # NCCL's limit. It takes several paths, separated by commas.


def new_key() -> str:
    """Return a new random value for ``BLUECOMM_NET_KEY``."""
    return secrets.token_hex(32)


def with_nccl_net(config: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig:
    """Return the settings with the plugin's variables, which ``-x`` overrides.

    The job gets a new key and ``NCCL_NET_PLUGIN_REF_COUNT=1``, unless the user has set
    these variables.

    Args:
        config: The settings.
        environ: The environment, which is forwarded to the ranks.

    Raises:
        LaunchError: The plugin does not exist, or NCCL does not accept its path.
    """
    if not config.enable_net:
        return config
    path = str(_plugin_path())
    if "," in path or len(os.fsencode(path)) > _MAX_PATH:
        raise LaunchError(
            "--enable-net: NCCL accepts no path that contains a comma or is longer "
            f"than {_MAX_PATH} bytes: {path}; install bluecomm in another folder"
        )
    variables = {PATH_NAME: path, CHOICE_NAME: _CHOICE}
    for name, value in ((REF_COUNT_NAME, "1"), (KEY_NAME, new_key())):
        if name not in environ:
            variables[name] = value
    return replace(config, environment=(*variables.items(), *config.environment))


def rails_of_host(config: LaunchConfig, addresses: Sequence[Address]) -> dict[str, str]:
    """Return the variable by which NCCL takes the interfaces that the user chose.

    Args:
        config: The settings. The caller prefers the variable if the user sets it.
        addresses: All addresses of a host, without loopback and link-local ones.

    Returns:
        ``NCCL_SOCKET_IFNAME`` with the names of the interfaces on this host that
        ``--network-interface`` allows; nothing without ``--enable-net`` or
        ``--network-interface``, or if there is no such interface.

    Raises:
        LaunchError: ``--network-interface`` is not well formed.
    """
    if not config.enable_net or config.network_interface is None:
        return {}
    chosen = choose_interfaces(addresses, config.network_interface)
    names = dict.fromkeys(address.interface for address in chosen)
    return {INTERFACES_NAME: "=" + ",".join(names)} if names else {}


def needed_files(config: LaunchConfig) -> list[str]:
    """Return the files that must exist on every host."""
    path = dict(config.environment).get(PATH_NAME, "")
    return [path] if config.enable_net and path.startswith("/") else []


def describe_nccl_net(environment: Mapping[str, str]) -> str | None:
    """Describe the network that NCCL will use with these variables, if they set one."""
    path = environment.get(PATH_NAME)
    if path is None:
        return None
    return f"{environment.get(CHOICE_NAME, 'its first choice')} from {path}"


def _plugin_path() -> Path:
    # Finds the package without importing it, because that needs torch.
    spec = find_spec("bluecomm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder).resolve() / _FILE
        if path.is_file():
            return path
        raise LaunchError(
            f"--enable-net: {path} does not exist; build bluecomm again (pip install, "
            "or make build)"
        )
    raise LaunchError(
        "--enable-net: bluecomm is not installed for this interpreter; install it, or "
        "set NCCL_NET_PLUGIN with -x"
    )
