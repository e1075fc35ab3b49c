"""Small tables in the form of the published ones, and the folder of those where there is one."""

from __future__ import annotations

from skep.units import Duration
from skep_lab.traces.job import TraceJob
from skep_lab.workloads import chronus, deepshare, dl2, elasticflow, gavel, pollux, salus, synergy
from skep_lab.workloads.models import Models
from skep_lab.workloads.situation import Situation

GAVEL = """gpu_type,placement,job_type,num_gpus,iters_per_s
v100,consolidated,"ResNet-50 (batch size 64)",1,4
v100,consolidated,"ResNet-50 (batch size 64)",2,8
v100,consolidated,"ResNet-50 (batch size 64)",4,12
v100,unconsolidated,"ResNet-50 (batch size 64)",1,4
v100,unconsolidated,"ResNet-50 (batch size 64)",2,6
v100,unconsolidated,"ResNet-50 (batch size 64)",4,3
v100,consolidated,"ResNet-50 (batch size 16)",1,9
v100,consolidated,A3C,1,7
k80,consolidated,"ResNet-50 (batch size 64)",1,1
k80,consolidated,"ResNet-50 (batch size 64)",2,2
k80,consolidated,"ResNet-50 (batch size 64)",4,4
k80,consolidated,"ResNet-50 (batch size 64)",8,0
"""
PAIRS = """gpu_type,placement,job_a,num_gpus_a,job_b,num_gpus_b,iters_per_s_a,iters_per_s_b
v100,consolidated,"ResNet-50 (batch size 64)",1,A3C,1,3,3.5
v100,consolidated,"ResNet-50 (batch size 64)",1,"ResNet-50 (batch size 64)",1,2,2
v100,consolidated,"ResNet-50 (batch size 16)",1,A3C,1,0,0
v100,consolidated,"ResNet-50 (batch size 64)",2,"ResNet-50 (batch size 64)",2,0,0
"""
PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,1.0,0.0
1,16,1.5,0.0
2,8,1.1,0.1
2,16,1.6,0.1
4,8,1.2,0.2
4,16,1.7,0.2
11,8,2.0,1.0
11,16,2.5,1.0
22,8,3.0,2.0
22,16,3.5,2.0
112,8,2.8,1.6
112,16,3.2,1.6
121,8,3.0,1.8
121,16,3.4,1.8
1111,8,2.6,1.5
1111,16,3.0,1.5
44,8,4.0,3.0
44,16,4.5,3.0
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
6,8,8,3.0,2.2
6,8,16,3.5,2.2
"""
CHRONUS = """{"vgg16": {"2": {"1": 1.0, "2": 0.9}, "4": {"1": 1.0, "2": 0.6, "4": 0.3},
                        "6": {"1": 1.0, "2": 0.5}}}"""
DL2 = """model,sync_mode,total_batch,num_ps,num_worker,sum_speed
seq2seq,dist_sync,64,1,1,100
seq2seq,dist_sync,64,4,1,200
seq2seq,dist_sync,64,1,4,160
seq2seq,dist_sync,64,4,4,640
"""
ELASTICFLOW = """global_batch_size,1,2,4,8
128,8,12,16,18
256,4,7,12,nan
512,0,0,0,0
"""
ISOLATED = """,isol_thp
"MoE,2,2",10
"MoE,4,2",16
"MoE,4,4",12
"DLRM,2,2",100
"""
SHARED = ""","MoE,2,2","MoE,4,2","DLRM,2,2"
"MoE,2,2",0.5,0.7,1.0
"MoE,4,2",0.4,0.4,0.9
"DLRM,2,2",0.9,0.8,1.1
"""
SYNERGY = """{"models": {
  "gnmt_1": {"iter_time": 0.12, "batch": 128, "placement_penalty": 1},
  "gnmt_2": {"iter_time": 0.12, "batch": 128, "placement_penalty": 4},
  "m5_1": {"iter_time": 0.6, "batch": 512, "placement_penalty": 2}}, "models-4": {}}"""
SALUS = """resnet50_25_1min,79.0,2116,100,python
resnet50_25_5min,320.4,2120,500,python
resnet50_75_1min,82.1,6120,100,python
other,1,2,3,python
"""


def small_tables() -> list[
    gavel.Gavel
    | pollux.Pollux
    | chronus.Chronus
    | dl2.Dl2
    | elasticflow.ElasticFlow
    | deepshare.DeepShare
    | synergy.Synergy
    | salus.Salus
]:
    return [
        gavel.parse(GAVEL.splitlines(), PAIRS.splitlines()),
        pollux.parse({"bert": PLACEMENTS.splitlines()}, {"bert": SCALABILITY.splitlines()}),
        chronus.parse(CHRONUS),
        dl2.parse(DL2.splitlines()),
        elasticflow.parse({("a100", "gpt2"): ELASTICFLOW.splitlines()}),
        deepshare.parse(ISOLATED.splitlines(), SHARED.splitlines()),
        synergy.parse(SYNERGY),
        salus.parse(SALUS.splitlines()),
    ]


def small(node_gpus: int = 4, types: tuple[str, ...] = ()) -> Models:
    return Models(small_tables(), node_gpus=node_gpus, types=types)


def job(
    model: str,
    gpus: int = 1,
    *,
    workers: int = 0,
    servers: int = 0,
    batch_size: int = 0,
    gpu_type: str = "",
    mini_batches: int = 0,
) -> TraceJob:
    return TraceJob(
        id="j1",
        at=Duration(0),
        run_time=Duration(1000 * 10**9),
        gpus=gpus,
        model=model,
        workers=workers,
        servers=servers,
        batch_size=batch_size,
        gpu_type=gpu_type,
        mini_batches=mini_batches,
    )


def at(
    *spread: int,
    gpu_type: str = "",
    workers: int = 0,
    servers: int = 0,
    partners: tuple[str, ...] = (),
    neighbours: tuple[str, ...] = (),
) -> Situation:
    return Situation(gpu_type, spread, workers or sum(spread), servers, partners, neighbours)
