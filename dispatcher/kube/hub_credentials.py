"""The credentials of the dispatcher itself on its hub: a kubeconfig, or the ServiceAccount of the pod this runs in."""

from __future__ import annotations

import yaml

from dispatcher import errors
from dispatcher.kube.library import ConfigException, Configuration, config

_UNVERIFIED = (
    "its user has an auth-provider, to which the library would send the refresh token without verifying TLS: "
    "use a token, a certificate or an exec plugin"
)


async def load_configuration(kubeconfig: str) -> Configuration:
    """The library's configuration of a kubeconfig, else of the pod; raises `SettingsError` if there is none to use.

    Several files may be named, as in `KUBECONFIG`. A token that a plugin renews is written back, as kubectl does.
    """
    configuration = Configuration()
    try:
        if kubeconfig:
            await _load_kubeconfig(kubeconfig, configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, KeyError, ValueError) as error:
        where = kubeconfig or "the pod's own ServiceAccount"
        raise errors.SettingsError(
            f"no Kubernetes credentials from {where}: {error}; set KUBECONFIG or run inside a cluster"
        ) from error
    except (TypeError, AttributeError, yaml.YAMLError) as error:
        # The library assumes a well-formed kubeconfig; YAML's own message quotes the file.
        raise errors.SettingsError(
            f"no Kubernetes credentials from {kubeconfig}: it is no kubeconfig"
        ) from error
    return configuration


async def _load_kubeconfig(kubeconfig: str, configuration: Configuration) -> None:
    files = config.kube_config.KubeConfigMerger(kubeconfig)
    loader = config.kube_config.KubeConfigLoader(
        config_dict=files.config, config_base_path=None, config_persister=files.save_changes
    )
    if loader.provider:
        raise ConfigException(_UNVERIFIED)
    await loader.load_and_set(configuration)
