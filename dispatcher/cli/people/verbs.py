"""`hold`, `release`, `priority`, `cancel`, `wait`, `submit` and `logs`: what a user does to AppWrappers.

Everything is written to the AppWrapper itself, with the caller's own rights; a kubeconfig is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from dispatcher import errors
from dispatcher.cli.command_line import (
    LEAST_PRIORITY,
    MOST_PRIORITY,
    WholeNumber,
    Word,
    duration,
    epilog,
)
from dispatcher.cli.options import (
    Goal,
    HubOptions,
    files_option,
    hub_namespace_option,
    hub_options,
    kinds_option,
    wrap_options,
)
from dispatcher.cli.people.appwrapper_names import find_appwrapper, names_on_hub, parts
from dispatcher.cli.query import explained, note, on_hub
from dispatcher.cli.screens.output import put, say
from dispatcher.text import one_line

if TYPE_CHECKING:
    from dispatcher.cli.hub import Found, Hub
    from dispatcher.core.intake.wrapping import WrapOptions

commands = click.Group()

_CODES: Final = {
    0: "done, or already so",
    1: "failed for one name or more",
    2: "wrong usage: nothing was changed",
    3: "the hub did not answer",
}
_WAIT_CODES: Final = {
    0: "reached by all, with --any by one; for done: they completed",
    1: "one failed or was deleted, with --any all, or the command failed",
    2: "wrong usage",
    3: "the hub did not answer",
    124: "--timeout is over",
}
_SUBMIT_CODES: Final = {
    0: "submitted, also if one waits; with --wait: all completed",
    1: "the hub refused one, or one failed or was deleted",
    2: "wrong usage, or a wrong file: nothing was created",
    3: "the hub did not answer",
    4: "--fail-if-never: one can never run as it is; it stays queued",
    124: "--timeout is over, and none failed",
}
_LOG_CODES: Final = {
    0: "printed",
    1: "there is no log, or it may not be read",
    2: "wrong usage",
    3: "the hub did not answer",
}


def _checked_names(
    context: click.Context, _parameter: click.Parameter, names: Sequence[str]
) -> Sequence[str]:
    """The names; raises `NoSuchOption` for a word that begins like an option.

    `priority` takes a misspelt option for a name, because it takes a negative number for one.
    """
    options = [option for each in context.command.params for option in each.opts if option.startswith("--")]
    for name in names:
        if name.startswith("-"):
            from difflib import get_close_matches  # only an error needs it

            raise click.NoSuchOption(name, possibilities=get_close_matches(name, options), ctx=context)
    return names


names_argument = click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="NAME...",
    help="AppWrappers, each as NAME or NAMESPACE/NAME.",
    callback=_checked_names,
    shell_complete=names_on_hub,
)
name_argument = click.argument(
    "name", metavar="NAME", help="AppWrapper, as NAME or NAMESPACE/NAME.", shell_complete=names_on_hub
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Have the hub check the change without making it."
)


def _checked_timeout(_context: click.Context, _parameter: click.Parameter, written: str) -> str:
    with explained():
        if written:
            duration(written)
    return written


timeout_option = click.option(
    "--timeout",
    default="",
    callback=_checked_timeout,
    metavar="DURATION",
    help="Longest time to wait, such as 90s or 1h30m.  [default: without a bound]",
)


@commands.command(
    epilog=epilog("kubectl aw hold train-7", "kubectl aw hold train-7 team-b/sweep --dry-run", codes=_CODES)
)
@names_argument
@click.option(
    "--evict", is_flag=True, help="Also hold gangs that are dispatched, which deletes their objects."
)
@dry_run_option
@hub_namespace_option
@hub_options
def hold(names: Sequence[str], evict: bool, dry_run: bool, namespace: str, at: HubOptions) -> None:
    """Take AppWrappers out of the queue until they are released. This sets spec.suspend.

    A gang that is dispatched is held only with --evict, because its objects are deleted.
    """

    def act(hub: Hub, found: Found) -> str:
        if _is_suspended(found):
            return "is already held"
        if _holds_objects(found) and not evict:
            raise errors.CommandFailed(
                f"{found.key} is dispatched to {found.raw['status']['cluster']}, and to hold it deletes its objects. "
                "Nothing was changed; --evict does it"
            )
        hub.change(found, {"suspend": True})
        return "held"

    _each(names, act, namespace, at, is_dry=dry_run)


@commands.command(
    epilog=epilog("kubectl aw release train-7", "kubectl aw release -n team-a train-7 train-8", codes=_CODES)
)
@names_argument
@dry_run_option
@hub_namespace_option
@hub_options
def release(names: Sequence[str], dry_run: bool, namespace: str, at: HubOptions) -> None:
    """Queue held AppWrappers again, by the age that they had. This clears spec.suspend."""

    def act(hub: Hub, found: Found) -> str:
        if not _is_suspended(found):
            return "is not held"
        hub.change(found, {"suspend": False})
        return "released"

    _each(names, act, namespace, at, is_dry=dry_run)


@commands.command(
    epilog=epilog(
        "kubectl aw priority 10 train-7", "kubectl aw priority -5 team-b/sweep team-b/sweep-2", codes=_CODES
    ),
    context_settings={"ignore_unknown_options": True},  # a negative number is no option
)
@click.argument(
    "number",
    type=WholeNumber(min=LEAST_PRIORITY, max=MOST_PRIORITY),
    metavar="NUMBER",
    help="Higher goes first.",
)
@names_argument
@dry_run_option
@hub_namespace_option
@hub_options
def priority(number: int, names: Sequence[str], dry_run: bool, namespace: str, at: HubOptions) -> None:
    """Set the priority of AppWrappers; this writes spec.priority. The ceiling of the namespace still counts."""

    def act(hub: Hub, found: Found) -> str:
        before = (found.raw.get("spec") or {}).get("priority", 0)
        if before == number:
            return f"has priority {number} already"
        hub.change(found, {"priority": number})
        return f"has priority {number}, before {before}"

    _each(names, act, namespace, at, is_dry=dry_run)


@commands.command(
    epilog=epilog(
        "kubectl aw cancel train-7", "kubectl aw cancel team-a/train-7 team-b/sweep --dry-run", codes=_CODES
    )
)
@names_argument
@dry_run_option
@hub_namespace_option
@hub_options
def cancel(names: Sequence[str], dry_run: bool, namespace: str, at: HubOptions) -> None:
    """Delete AppWrappers, and with them everything that they created. Their history stays."""

    def act(hub: Hub, found: Found) -> str:
        hub.delete(found.path, found.raw)
        return "deleted"

    _each(names, act, namespace, at, is_dry=dry_run)


@commands.command(
    epilog=epilog(
        "kubectl aw wait train-7 --for done",
        "kubectl aw wait team-a/train-7 --for running --timeout 1h30m",
        "kubectl aw wait train-7 train-8 sweep --for done --any",
        codes=_WAIT_CODES,
    )
)
@names_argument
@click.option(
    "goal",
    "--for",
    type=Word(Goal),
    required=True,
    help="running: its pods run, or have run. done: it completed.",
)
@click.option(
    "any_is_enough",
    "--any/--all",
    help="Of several: end once one of them is there, or once all are.  [default: --all]",
)
@timeout_option
@hub_namespace_option
@hub_options
def wait(
    names: Sequence[str], goal: Goal, any_is_enough: bool, timeout: str, namespace: str, at: HubOptions
) -> None:
    """Wait until AppWrappers run or are done. Each change of their states is printed. The hub is watched, not polled.

    With several names the exit code is that of the worst end: 1 if one failed or was deleted, else 124 if one is not
    there in time. With --any it is 0 once one is there, whatever became of the others.
    """
    from dispatcher.cli.people.following import follow

    wanted = [parts(name, namespace) for name in dict.fromkeys(names)]
    with on_hub(at) as hub:
        found = {
            each.key: each
            for where, last in wanted
            for each in [find_appwrapper(hub, where or hub.namespace, last)]
        }
        follow(hub.client, list(found.values()), goal, timeout, any_is_enough=any_is_enough)


@commands.command(
    epilog=epilog(
        "kubectl aw submit ray-job.yaml",
        "kubectl aw submit sweep.yaml --each --queue vision --expected 4h",
        "kubectl aw submit ray-job.yaml --notify team-slack=Ended",
        "kubectl aw submit jobs/ --fail-if-never || exit",
        "kubectl kustomize overlays/night | kubectl aw submit -",
        "kubectl aw submit train.yaml --wait && kubectl aw logs train-7",
        codes=_SUBMIT_CODES,
    )
)
@files_option("any objects")
@wrap_options
@kinds_option
@click.option(
    "until_done", "--wait", is_flag=True, help="Wait until all are done, and print each change of state."
)
@timeout_option
@click.option(
    "fails_if_never", "--fail-if-never", is_flag=True, help="Exit with 4 if one can never run as it is."
)
@dry_run_option
@hub_namespace_option
@hub_options
def submit(
    files: Sequence[str],
    options: WrapOptions,
    kinds: str,
    until_done: bool,
    timeout: str,
    fails_if_never: bool,
    dry_run: bool,
    namespace: str,
    at: HubOptions,
) -> None:
    """Queue what is in files. Nothing is created if one object is malformed.

    AppWrappers are created as they are. All other objects of a file become one gang in an AppWrapper, such as a RayJob
    with its ConfigMap and its Service; with --each each object that makes pods becomes one. kubectl aw wrap prints the
    same. Objects that no gang has, such as a ClusterRole, a Secret or a claim of a volume, are listed and not created,
    and no gang waits for them. Create them with kubectl apply before you submit; --dry-run lists them and creates
    nothing.

    The first decision about each is printed: where it was dispatched, or why it waits. It is waited for up to 3 s.

    With --wait all gangs are followed at once, and the exit code is that of the worst end: 0 if all complete, 1 if one
    fails or is deleted, else 124 if one is not done in time.
    """
    if timeout and not until_done:
        raise click.BadParameter("--timeout bounds --wait: give --wait, too")
    for is_given, flag in ((until_done, "--wait"), (fails_if_never, "--fail-if-never")):
        if is_given and dry_run:
            raise click.BadParameter(f"--dry-run creates nothing to wait for: leave out {flag} or --dry-run")
    from dispatcher.cli.files.documents import read_kinds, read_objects
    from dispatcher.cli.files.submission import submissions
    from dispatcher.cli.people.following import follow
    from dispatcher.cli.people.submitting import check_fields, create, say_decisions

    given, known = read_objects(files), read_kinds(kinds)
    with on_hub(at, is_dry=dry_run) as hub:
        written = submissions(given, namespace, hub.namespace, options, known)
        check_fields(hub, written.appwrappers)
        for other in written.beside:
            put(f"{other} not created: it {other.why}; create it with kubectl apply {_WHEN[dry_run]}", None)
        submitted = [create(hub, each, _DRY * dry_run) for each in written.appwrappers]
        if fails_if_never or not (until_done or dry_run):
            say_decisions(hub, submitted, fails_if_never=fails_if_never)
        if until_done:
            follow(hub.client, submitted, Goal.DONE, timeout)


_WHEN: Final = {True: "before you submit", False: "now: no gang waits for it"}
"""When to create an object that is left beside, after a dry run and after a submission."""


@commands.command(
    epilog=epilog(
        "kubectl aw logs train-7",
        "kubectl aw logs train-7 -f",
        "kubectl aw logs train-7 --pod train-7-x5k2p -c main --previous",
        "kubectl aw logs train-7 --commands",
        codes=_LOG_CODES,
    )
)
@name_argument
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the pod ends.")
@click.option(
    "--pod", default="", metavar="POD", help="A pod of the gang.  [default: the first of --commands]"
)
@click.option(
    "--container",
    "-c",
    default="",
    metavar="CONTAINER",
    help="A container of the pod.  [default: as kubectl logs]",
)
@click.option("--previous", "-p", is_flag=True, help="The log of the container before its last restart.")
@click.option(
    "only_commands", "--commands", is_flag=True, help="Print the kubectl command for each pod instead."
)
@hub_namespace_option
@hub_options
def logs(
    name: str,
    follow: bool,
    pod: str,
    container: str,
    previous: bool,
    only_commands: bool,
    namespace: str,
    at: HubOptions,
) -> None:
    """Print the log of a gang's first pod. With --commands, print kubectl commands for the logs of all its pods.

    First comes the pod that submits a RayJob, which prints what the job prints; then the pod that KubeRay marks as
    head; then the oldest pod. Pods are found by their controllers, so those without labels of the AppWrapper are among
    them. If the kubeconfig does not lead to the gang's cluster, the commands are printed.
    """
    from dispatcher.cli.people.gang_logs import commands_for, find_pods, log_of, pod_named

    if follow and previous:
        raise click.BadParameter("--previous prints the log of a run that has ended: leave --follow out")
    if follow and only_commands:
        raise click.BadParameter("--follow prints a log, and --commands prints none: leave one of them out")
    where, last = parts(name, namespace)
    with on_hub(at) as hub:
        found = find_appwrapper(hub, where or hub.namespace, last)
        cluster = (found.raw.get("status") or {}).get("cluster") or ""
        if not cluster:
            raise errors.CommandFailed(f"{found.key} has not been dispatched: it has no pods, so no logs")
        client = hub.reach(cluster)
        pods = find_pods(client, found.raw) if client else []
        if pods and pod:
            pods = [pod_named(pods, pod, found.key)]
        if client is None or only_commands:
            for line in commands_for(found.raw, cluster, pods, container=container, previous=previous):
                say(line)
            return
        if not pods:
            raise errors.CommandFailed(f"{found.key} has no pods in {cluster} now")
        for chunk in log_of(client, pods[0], follow=follow, container=container, previous=previous):
            click.echo(chunk, nl=False)


_DRY: Final = " (dry run)"


def _each(
    names: Sequence[str],
    act: Callable[[Hub, Found], str],
    namespace: str,
    at: HubOptions,
    *,
    is_dry: bool,
) -> None:
    """Act on each AppWrapper and say what became of it; exits with 1 if that failed for any.

    A name that no AppWrapper can have ends the command before the first write.
    """
    from dispatcher.cli.hub import Hub, asking

    wanted = [parts(name, namespace) for name in names]
    failed = False
    with Hub(at, is_dry=is_dry) as hub:
        for name, (where, last) in zip(names, wanted, strict=True):
            try:
                with asking():
                    found = find_appwrapper(hub, where or hub.namespace, last)
                    put(one_line(f"{found.key} {act(hub, found)}{_DRY * is_dry}"), None)
            except errors.TryAgain:
                raise  # the others would not be answered either
            except errors.CommandFailed as error:
                failed = True
                note(f"{name}: {error}")
    if failed:
        raise click.exceptions.Exit(1)


def _holds_objects(found: Found) -> bool:
    """True for a gang that has been dispatched and has not ended: to suspend it deletes its objects."""
    status = found.raw.get("status") or {}
    return bool(status.get("cluster")) and status.get("state") not in {"Completed", "Failed"}


def _is_suspended(found: Found) -> bool:
    return bool((found.raw.get("spec") or {}).get("suspend"))
