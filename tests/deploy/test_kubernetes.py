"""deploy/kubernetes says of the worker what the worker, its images and its catalogue say of themselves.

The schemas of Kubernetes' own kinds are those that kubernetes-validate publishes. Those of KEDA, KServe, the Gateway
API and the Prometheus Operator come with their releases; docs/kubernetes.md says what was compared with them by hand.
"""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.config.given import parse
from tests.deploy.manifests import (
    KUBERNETES,
    Kustomization,
    Object,
    every_object,
    kustomizations,
    objects_in,
    pod_of,
    the,
)
from worker.config.settings import options
from worker.models.downloads.catalog import WheelSource, load_catalog
from worker.server.web.middleware import OPEN_PATHS

ROOT = KUBERNETES.parents[1]
DOCKERFILE = (ROOT / "Dockerfile.cpu").read_text()
OWN_IMAGES = "llorch-worker:"
CORE_GROUPS = {"v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"}
LABEL = "app.kubernetes.io/name"
OBJECTS = every_object()
PODS = [(one["metadata"]["name"], pod) for one in OBJECTS if (pod := pod_of(one)) is not None]
CONTAINERS = [(name, pod, container) for name, pod in PODS for container in pod["containers"]]


def title(value: object) -> str | None:
    if isinstance(value, Kustomization):
        return value.folder.name
    return f"{value['kind']}-{value['metadata']['name']}" if isinstance(value, dict) and "kind" in value else None


def identity(one: Object) -> tuple[str, str, str]:
    return one["apiVersion"], one["kind"], one["metadata"]["name"]


def environment(container: Object) -> dict[str, str]:
    """The variables with values of their own, after those of the settings that it takes whole."""
    taken = [source["configMapRef"]["name"] for source in container.get("envFrom", ())]
    given = [the("ConfigMap", name)["data"] for name in taken]
    own = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return {name: value for values in (*given, own) for name, value in values.items()}


# ── the files hang together ──────────────────────────────────────────────────────────────────────


def test_every_file_belongs_to_a_kustomization_and_every_one_that_is_named_is_there() -> None:
    named = {path for each in kustomizations() for path in (*each.resources, *each.patches)}
    assert {path for path in named if not path.exists()} == set()
    files = {path for path in KUBERNETES.glob("*/*.yaml") if path.name != "kustomization.yaml"}
    assert {path for path in named if path.is_file()} == files


@pytest.mark.parametrize("kustomization", kustomizations(), ids=title)
def test_no_object_is_there_twice_and_every_patch_has_its_target(kustomization: Kustomization) -> None:
    there = [identity(one) for one in kustomization.objects()]
    assert len(set(there)) == len(there)
    for patch in (one for path in kustomization.patches for one in objects_in(path)):
        assert identity(patch) in there
        (target,) = [one for one in kustomization.objects() if identity(one) == identity(patch)]
        names = [{each["name"] for each in pod["containers"]} for one in (patch, target) if (pod := pod_of(one))]
        assert names[0] <= names[1], "a patch adds no container"


@pytest.mark.parametrize("kubernetes", ["1.30", "1.37"])
@pytest.mark.parametrize("one", [one for one in OBJECTS if one["apiVersion"] in CORE_GROUPS], ids=title)
def test_kubernetes_own_kinds_satisfy_the_published_schemas(one: Object, kubernetes: str) -> None:
    """1.30 is the first in which a container may sleep before it is stopped."""
    kubernetes_validate.validate(one, kubernetes, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    one = the("Deployment", "llorch-worker")
    one["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, "1.37", strict=True)


def test_what_one_object_says_of_another_is_so() -> None:
    pods = {one["spec"]["template"]["metadata"]["labels"][LABEL]: one for one in OBJECTS if one["kind"] == "Deployment"}
    for one in OBJECTS:
        spec, kind = one.get("spec", {}), one["kind"]
        if kind in {"Deployment", "PodDisruptionBudget", "InferencePool", "PodMonitor"}:
            assert spec["selector"]["matchLabels"][LABEL] in pods, identity(one)
        if kind == "Service":
            container = pod_of(pods[spec["selector"][LABEL]])["containers"][0]  # type: ignore[index]  # a Deployment's
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for port in spec["ports"]:
                assert port.get("targetPort", port["port"]) in {*ports, *ports.values()}
    worker = the("Deployment", "llorch-worker")
    assert the("ScaledObject", "llorch-worker")["spec"]["scaleTargetRef"] == {"name": worker["metadata"]["name"]}
    pool = the("InferencePool", "llorch-worker")["spec"]
    assert [port["number"] for port in pool["targetPorts"]] == [exposed_port()]
    picker = the("Service", pool["endpointPickerRef"]["name"])
    assert pool["endpointPickerRef"]["port"]["number"] in [port["port"] for port in picker["spec"]["ports"]]
    (backend,) = the("HTTPRoute", "llorch-worker")["spec"]["rules"][0]["backendRefs"]
    assert backend["name"] == "llorch-worker"
    assert the("InferenceService", "qwen3")["spec"]["predictor"]["model"]["runtime"] == "llorch-worker"
    for _, pod in PODS:
        for volume in pod.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                the("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])


def test_the_picker_has_a_mapping_for_the_engine_that_the_workers_say_they_are() -> None:
    config = yaml.safe_load(the("ConfigMap", "llorch-endpoint-picker")["data"]["config.yaml"])
    plugins: dict[str, Any] = {each["type"]: each.get("parameters", {}) for each in config["plugins"]}
    labels = the("Deployment", "llorch-worker")["spec"]["template"]["metadata"]["labels"]
    extractor = plugins["core-metrics-extractor"]
    assert extractor["defaultEngine"] == labels["llm-d.ai/engine-type"]
    assert extractor["defaultEngine"] in [engine["name"] for engine in extractor["engineConfigs"]]
    used = {each["pluginRef"] for profile in config["schedulingProfiles"] for each in profile["plugins"]}
    assert used <= set(plugins)


# ── they are the images' and the worker's own ────────────────────────────────────────────────────


def exposed_port() -> int:
    match = re.search(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert match is not None
    return int(match[1])


def test_the_images_are_ours_their_port_is_the_one_they_expose_and_their_user_is_theirs() -> None:
    user = re.search(r"^USER (\d+):", DOCKERFILE, re.MULTILINE)
    assert user is not None
    ours = [each for each in CONTAINERS if each[2]["image"].startswith(OWN_IMAGES)]
    assert {name for name, _, _ in ours} == {"llorch-worker", "llorch-models"}
    tags = {container["image"].removeprefix(OWN_IMAGES) for _, _, container in ours}
    for tag in tags.union(*(each.tags for each in kustomizations())):
        assert (ROOT / f"Dockerfile.{tag}").is_file()
    for _, pod, container in ours:
        assert {port["containerPort"] for port in container.get("ports", ())} <= {exposed_port()}
        assert pod.get("securityContext", container["securityContext"])["runAsUser"] == int(user[1])


@pytest.mark.parametrize(
    ("name", "pod", "container"), CONTAINERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_container_may_do_more_than_compute(name: str, pod: Object, container: Object) -> None:
    """The restricted pod security standard, and nothing to write but the models' volume for the download."""
    context = pod.get("securityContext", {}) | container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    written = [
        mount for mount in container.get("volumeMounts", ()) if mount["name"] == "models" and not mount.get("readOnly")
    ]
    assert bool(written) == (name == "llorch-models")


@pytest.mark.parametrize(
    ("name", "pod", "container"), CONTAINERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_variable_is_a_setting_and_its_value_one_that_the_worker_takes(
    name: str, pod: Object, container: Object
) -> None:
    if container["image"].startswith(OWN_IMAGES):
        given = {name: value for name, value in environment(container).items() if name.startswith("LLORCH_")}
        settings = {str(option.envvar) for option in options()}
        patched = {each["name"] for path in KUBERNETES.glob("*/resources.yaml") for each in patched_variables(path)}
        assert given.keys() | patched <= settings
        parse(["--model", "x"], given | dict.fromkeys(patched, "true"))


def patched_variables(path: Path) -> list[Object]:
    return [
        each
        for one in objects_in(path)
        for container in one["spec"]["template"]["spec"]["containers"]
        for each in container.get("env", ())
    ]


def test_the_probes_ask_what_needs_no_token_and_only_readiness_may_end_while_the_worker_lives() -> None:
    for one in (the("Deployment", "llorch-worker"), the("ServingRuntime", "llorch-worker")):
        (container,) = (pod_of(one) or {})["containers"]
        paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
        assert set(paths.values()) <= OPEN_PATHS


def test_a_pod_is_killed_later_than_its_worker_gives_up_its_jobs() -> None:
    runtime = the("ServingRuntime", "llorch-worker")["spec"]
    predictor = the("InferenceService", "qwen3")["spec"]["predictor"]
    deployed = the("Deployment", "llorch-worker")["spec"]["template"]["spec"]
    for pod, grace_s in (
        (deployed, deployed["terminationGracePeriodSeconds"]),
        (runtime, predictor["terminationGracePeriodSeconds"]),
    ):
        (container,) = pod["containers"]
        drain_s = float(environment(container)["LLORCH_SHUTDOWN_TIMEOUT_SEC"])
        assert grace_s >= container["lifecycle"]["preStop"]["sleep"]["seconds"] + drain_s + 10


def test_the_models_are_in_the_catalogue_and_can_be_fetched_by_an_image_without_pip() -> None:
    name = the("ConfigMap", "llorch-worker")["data"]["LLORCH_MODEL"]
    (entry,) = [entry for entry in load_catalog(None).entries if entry.name == name]
    assert not any(isinstance(source, WheelSource) for source in entry.sources)
    (variable,) = the("InferenceService", "qwen3")["spec"]["predictor"]["model"]["env"]
    assert variable == {"name": "LLORCH_MODEL", "value": entry.file}
    assert the("Job", "llorch-models")["spec"]["template"]["spec"]["containers"][0]["args"] == [
        *("models", "pull", "$(LLORCH_MODEL)")
    ]
    (storage,) = [the("InferenceService", "qwen3")["spec"]["predictor"]["model"]["storageUri"]]
    assert storage == f"pvc://{the('PersistentVolumeClaim', 'llorch-models')['metadata']['name']}"


def test_the_page_names_every_kustomization() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [each.folder.name for each in kustomizations() if f"`{each.folder.name}`" not in page] == []
