"""The policy about devices is off by default, and knows a gang's pods by the dispatcher's own label."""

from pathlib import Path

import yaml

from dispatcher.api.names import UID_LABEL

CHECKOUT = Path(__file__).parents[3]
POLICY, BINDING = yaml.safe_load_all((CHECKOUT / "manifests" / "policies" / "gpu-policy.yaml").read_text())
VARIABLES = {each["name"]: each["expression"] for each in POLICY["spec"]["variables"]}


def test_policy_is_enforced_in_labelled_namespaces_only() -> None:
    selector = BINDING["spec"]["matchResources"]["namespaceSelector"]
    assert (POLICY["spec"]["failurePolicy"], BINDING["spec"]["validationActions"]) == ("Fail", ["Deny"])
    assert BINDING["spec"]["policyName"] == POLICY["metadata"]["name"]
    assert selector["matchLabels"] == {"dispatcher.codeflare.dev/devices": "queued"}
    [listed] = selector["matchExpressions"]
    assert (listed["operator"], "kube-system" in listed["values"]) == ("NotIn", True)


def test_pod_of_a_gang_is_known_by_the_label_that_the_dispatcher_writes() -> None:
    assert VARIABLES["isLabelled"].startswith(f"'{UID_LABEL}' in ")


def test_policy_sees_creations_and_changes_of_what_makes_pods() -> None:
    rules = POLICY["spec"]["matchConstraints"]["resourceRules"]
    seen = {resource: rule["operations"] for rule in rules for resource in rule["resources"]}
    makers = (
        *("jobs", "cronjobs", "deployments", "statefulsets", "replicasets", "replicationcontrollers"),
        "daemonsets",
    )
    assert seen == {"pods": ["CREATE"], **{each: ["CREATE", "UPDATE"] for each in makers}}


def test_labels_and_owners_count_from_trusted_accounts_only() -> None:
    [validation] = POLICY["spec"]["validations"]
    without_devices, as_before, trusted = validation["expression"].split(" || ", 2)
    assert as_before == "variables.isAsBefore"
    assert "isLabelled" not in without_devices
    assert "isSeenElsewhere" not in without_devices
    assert trusted.startswith("(variables.isTrusted && (")


def test_right_to_make_daemonsets_gives_no_service_account_one_with_devices() -> None:
    [validation] = POLICY["spec"]["validations"]
    assert "!variables.isLabelled && !variables.isServiceAccount" in validation["expression"]
    [listed] = [each for each in POLICY["spec"]["matchConditions"] if each["name"] == "not-of-an-operator"]
    assert "'system:serviceaccounts:gpu-operator'" in listed["expression"]


def test_user_of_a_namespace_changes_no_pods_of_a_daemonset_with_devices() -> None:
    as_before, trusted = VARIABLES["isDaemonSetAsBefore"].split(" || ")
    assert as_before == "variables.template == variables.before"
    assert trusted.startswith(
        "(variables.isTrusted && ['nodeName', 'nodeSelector', 'affinity', 'tolerations'].all("
    )
    assert "!= 'daemonsets' || variables.isDaemonSetAsBefore)" in VARIABLES["isAsBefore"]


def test_refusal_says_how_to_submit() -> None:
    [validation] = POLICY["spec"]["validations"]
    assert validation["messageExpression"].endswith("+ variables.remedy")
    assert "kubectl aw submit FILE" in VARIABLES["remedy"]
