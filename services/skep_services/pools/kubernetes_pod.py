"""The pod of one node of a pool, and what of it may be said in a file (`--pod FILE`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

HOME, JOIN, TOKEN = "/var/lib/skep/state", "/join", "token"
CHECKPOINTS = "/var/lib/skep/checkpoints"
ACCOUNT = 10001
"""The account of Skep's image (`compose/Dockerfile`)."""
GPUS = "nvidia.com/gpu"
POOL = "skep/pool"
LABELS = {"app.kubernetes.io/name": "skep-node", "app.kubernetes.io/managed-by": "skep"}
STOP_SHARE = 0.75
"""Of the time a pod has to end, jobs may leave in this share; the rest is for those that stay."""

OF_THE_POD = (
    "affinity",
    "annotations",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
)
OF_THE_CONTAINER = ("env", "imagePullPolicy", "resources", "volumeMounts")
LISTS = (
    "env",
    "hostAliases",
    "imagePullSecrets",
    "tolerations",
    "topologySpreadConstraints",
    "volumeMounts",
    "volumes",
)
TEXTS = ("imagePullPolicy", "priorityClassName", "runtimeClassName", "schedulerName")
NAMES = {list: "a list", str: "a text", dict: "an object"}
TAKEN = ("state", "tmp", "join", "shm", "checkpoints")
"""Names of volumes that the pod has by itself."""


class PodError(Exception):
    """The file says what it may not; the text is one line."""


class Wanted(NamedTuple):
    """What pods of a pool are to be. `claim` is of a volume that all see; empty: none."""

    pool: str
    image: str
    device: str
    gpus: int
    gpu_type: str
    grace_s: int
    claim: str
    extra: Mapping[str, Any]


def check(extra: object) -> dict[str, Any]:
    """Return what a file says about pods.

    Raises:
        PodError: It says what it may not.
    """
    if not isinstance(extra, dict):
        text = "an object with keys of a pod, such as nodeSelector and tolerations"
        raise PodError(text)
    for key, value in extra.items():
        if key not in (*OF_THE_POD, *OF_THE_CONTAINER):
            known = ", ".join(sorted((*OF_THE_POD, *OF_THE_CONTAINER)))
            text = f"{str(key)[:60]!r} cannot be said here (there are: {known})"
            raise PodError(text)
        wanted = list if key in LISTS else str if key in TEXTS else dict
        if not isinstance(value, wanted):
            text = f"{key}: it is {NAMES[wanted]}"
            raise PodError(text)
    for key in ("volumes", "volumeMounts"):
        for one in extra.get(key, ()):
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or name in TAKEN:
                text = f"{key}: each has a name, and none of {', '.join(TAKEN)}"
                raise PodError(text)
    limits = extra.get("resources", {}).get("limits", {})
    if not isinstance(limits, dict) or GPUS in limits:
        text = f"resources.limits: an object without {GPUS}, which follows from --gpus"
        raise PodError(text)
    return extra


def pod(name: str, wanted: Wanted) -> dict[str, Any]:
    """Return the manifest of one pod.

    Its token is in a secret of its own name, without which it does not begin. It has no account of
    Kubernetes.

    Args:
        name: Of the pod, and of its node.
        wanted: What it is to be.
    """
    extra = dict(wanted.extra)
    annotations = extra.pop("annotations", {})
    resources = dict(extra.pop("resources", {}))
    if wanted.device == "cuda":
        resources["limits"] = {**resources.get("limits", {}), GPUS: wanted.gpus}
    mounts = {"state": "/var/lib/skep", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108
    volumes: list[dict[str, Any]] = [
        {"name": "state", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        # Workers of PyTorch's data loaders exchange batches here; the usual 64 MiB are too little.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "join", "secret": {"secretName": name, "defaultMode": 0o440}},
    ]
    if wanted.claim:
        mounts["checkpoints"] = CHECKPOINTS
        volumes.append(
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": wanted.claim}}
        )
    own_mounts: list[dict[str, Any]] = [
        {"name": each, "mountPath": mounts[each]} for each in mounts
    ]
    own_mounts.append({"name": "join", "mountPath": JOIN, "readOnly": True})
    python = ["python", "-m", "skep_services.pools.kubernetes_node", "--home", HOME]
    command = [*python, "--name", name, "--token", f"{JOIN}/{TOKEN}"]
    command += ["--device", wanted.device, "--gpus", str(wanted.gpus)]
    command += ["--gpu-type", wanted.gpu_type] if wanted.gpu_type else []
    command += ["--checkpoints", CHECKPOINTS] if wanted.claim else []
    until_idle = [*python, "--until-idle", str(int(wanted.grace_s * STOP_SHARE))]
    container = {
        "name": "agent",
        "image": wanted.image,
        "command": command,
        "lifecycle": {"preStop": {"exec": {"command": until_idle}}},
        # What ended it, as it was told, is then in the status of the pod.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [*own_mounts, *extra.pop("volumeMounts", [])],
        "resources": resources,
    }
    container |= {each: extra.pop(each) for each in OF_THE_CONTAINER if each in extra}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**LABELS, POOL: wanted.pool},
            "annotations": annotations,
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": wanted.grace_s,
            "securityContext": {
                "runAsUser": ACCOUNT,
                "runAsNonRoot": True,
                "fsGroup": ACCOUNT,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [*volumes, *extra.pop("volumes", [])],
            **extra,
        },
    }


def secret(name: str, uid: str, wanted: Wanted, invitation: str) -> dict[str, Any]:
    """Return the secret that a pod's token is in; Kubernetes removes it with the pod."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {**LABELS, POOL: wanted.pool},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN: invitation},
    }


def selector(pool: str) -> str:
    """Return what chooses the pods of a pool."""
    return ",".join(f"{key}={value}" for key, value in {**LABELS, POOL: pool}.items())
