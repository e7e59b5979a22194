"""Reads the declaration of a provisioning class: `provisioning` of a MemberCluster, or the setting of the hub."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from dispatcher.api.provisioning import (
    ACCEPT_WITHIN,
    LONGEST_PARAMETER,
    LONGEST_PAUSE,
    MOST_PARAMETERS,
    MOST_RETRIES,
    ProvisioningClass,
    RetryRule,
)
from dispatcher.api.schema import ResourceName, Written, read_setting
from dispatcher.api.syntax import LONGEST_SUBDOMAIN

ParameterText = Annotated[str, Field(max_length=LONGEST_PARAMETER)]


class WrittenRetry(Written):
    """``provisioning.retry``."""

    limit: int = Field(3, ge=0, le=MOST_RETRIES)
    base: int = Field(60, alias="baseSeconds", ge=1, le=LONGEST_PAUSE)
    longest: int = Field(1800, alias="maxSeconds", ge=1, le=LONGEST_PAUSE)


class WrittenProvisioning(Written):
    """``provisioning``."""

    class_name: str = Field(
        alias="className",
        min_length=1,
        max_length=LONGEST_SUBDOMAIN,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    )
    managed: list[ResourceName] = Field([], alias="managedResources", max_length=64)
    parameters: dict[ParameterText, ParameterText] = Field({}, max_length=MOST_PARAMETERS)
    author_parameters: list[ParameterText] = Field([], alias="authorParameters", max_length=MOST_PARAMETERS)
    accept_within: int = Field(
        int(ACCEPT_WITHIN.total_seconds()), alias="acceptWithinSeconds", ge=1, le=LONGEST_PAUSE
    )
    retry: WrittenRetry = WrittenRetry.model_construct()


def provisioning_class(written: WrittenProvisioning) -> ProvisioningClass:
    """The class that a declaration describes."""
    retry = written.retry
    return ProvisioningClass(
        name=written.class_name,
        managed=frozenset(written.managed),
        parameters=tuple(sorted(written.parameters.items())),
        retry=RetryRule(retry.limit, timedelta(seconds=retry.base), timedelta(seconds=retry.longest)),
        accept_within=timedelta(seconds=written.accept_within),
        author_parameters=frozenset(written.author_parameters),
    )


def parse_provisioning(text: str) -> ProvisioningClass | None:
    """The class that a setting describes in JSON; None for an empty text. Raises `ValueError` with the field."""
    return provisioning_class(read_setting(WrittenProvisioning, text)) if text else None
