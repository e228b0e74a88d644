"""The contents of deploy/kubernetes: kustomizations, and the objects of the files that they name."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

Object = dict[str, Any]


def objects_in(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


@dataclass(frozen=True, slots=True)
class Kustomization:
    """A folder that `kubectl apply -k` takes."""

    folder: Path

    @property
    def _body(self) -> Object:
        (body,) = objects_in(self.folder / "kustomization.yaml")
        return body

    @property
    def resources(self) -> list[Path]:
        """Files of objects and folders of other kustomizations."""
        return [(self.folder / name).resolve() for name in self._body["resources"]]

    @property
    def patches(self) -> list[Path]:
        return [(self.folder / patch["path"]).resolve() for patch in self._body.get("patches", ())]

    @property
    def tags(self) -> list[str]:
        """The images' tags that it sets."""
        return [image["newTag"] for image in self._body.get("images", ())]

    def objects(self) -> Iterator[Object]:
        """The objects of this one and of those that it names, before its patches."""
        for path in self.resources:
            yield from Kustomization(path).objects() if path.is_dir() else objects_in(path)


def kustomizations() -> list[Kustomization]:
    return [Kustomization(path.parent) for path in sorted(KUBERNETES.glob("*/kustomization.yaml"))]


def every_object() -> list[Object]:
    """Each object of each file once, whichever kustomization names it; no patches."""
    paths = {path for each in kustomizations() for path in each.resources if path.is_file()}
    return [one for path in sorted(paths) for one in objects_in(path)]


def the(kind: str, name: str) -> Object:
    (found,) = [one for one in every_object() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def pod_of(one: Object) -> Object | None:
    """The spec of the pods that an object makes; None where it makes none."""
    match one["kind"]:
        case "Deployment" | "Job":
            pod: Object = one["spec"]["template"]["spec"]
            return pod
        case "ServingRuntime":
            return one["spec"]  # type: ignore[no-any-return]  # YAML
        case _:
            return None
