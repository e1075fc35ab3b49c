"""What each table says of its rows, and what it says between them."""

from __future__ import annotations

import math

import pytest

from skep.perf.interference import TABLE_1, packing_max
from skep_lab.traces.generators.gandiva import KINDS
from skep_lab.workloads import deepshare, dl2, elasticflow, gavel, pollux, salus
from skep_lab.workloads.figures import LOADS, LOCALITY, NETWORK, Figures, printed
from skep_lab.workloads.models import ORDER, TURNS, Models
from skep_lab.workloads.names import gpu_type, normalised
from skep_lab.workloads.situation import Steady
from skep_lab.workloads.table import Place, Work, between, fewest, nearest, scaled, together
from tests import needs
from tests.workload_kit import GAVEL, PAIRS, PLACEMENTS, SCALABILITY, at, job, small, small_tables


@pytest.mark.parametrize(
    "text, model, batch",
    [
        ("ResNet-50 (batch size 64)", "resnet50", 64),
        ("resnet50", "resnet50", 0),
        ("res50", "resnet50", 0),
        ("Inception-v3", "inception3", 0),
        ("inception_v3", "inception3", 0),
        ("MoE,8,4", "moe", 0),
        ("cnn-text-classification", "ctc", 0),
        ("CTC", "ctc", 0),
        ("", "", 0),
    ],
)
def test_models_are_known_however_they_are_written(text: str, model: str, batch: int) -> None:
    assert normalised(text) == (model, batch)


def test_types_of_gpus_are_known_however_they_are_written() -> None:
    assert gpu_type("NVIDIA Tesla V100-SXM2") == "v100"
    assert gpu_type("T4") == "t4"
    assert gpu_type("K800") == "k800"
    assert gpu_type("") == ""


def test_gaps_are_filled_in_logarithms_and_ends_are_kept() -> None:
    points = {1: 1.0, 4: 4.0, 8: 4.0}
    assert [between(points, gpus) for gpus in (1, 2, 4, 6, 8, 16)] == pytest.approx(
        [1, 2, 4, 4, 4, 4]
    )
    assert scaled({1: 1.0, 2: 1.5}, 4) == pytest.approx(2.25)
    assert scaled({1: 1.0, 2: 3.0}, 4) == pytest.approx(6.0)  # No more than double.
    assert scaled({1: 1.0, 2: 0.5}, 4) == pytest.approx(0.5)  # No less than nothing.
    assert nearest((16, 64, 256), 100) == 64
    assert nearest((16, 64, 256), 0) == 64
    assert fewest(20, 8) == (8, 8, 4)
    assert together([0.5, 0.5]) == pytest.approx(1 / 3)
    assert together([0.5, 0.0]) == 0.0
    assert together([]) == 1.0


def test_gavel_knows_types_numbers_and_two_placements() -> None:
    models = small()
    resnet = job("ResNet-50 (batch size 64)", 4, gpu_type="v100")
    assert models.speed(resnet, at(4, gpu_type="v100")) == 1
    assert models.speed(resnet, at(2, 2, gpu_type="v100")) == pytest.approx(3 / 12)
    assert models.speed(resnet, at(4, gpu_type="k80")) == pytest.approx(4 / 12)
    assert models.speed(resnet, at(2, gpu_type="k80")) == pytest.approx(2 / 12)
    assert models.speed(resnet, at(1, 1, gpu_type="v100")) == pytest.approx(6 / 12)
    # Of the K80 nothing is known apart, so the V100's loss is taken.
    assert models.speed(resnet, at(1, 1, gpu_type="k80")) == pytest.approx(2 / 12 * 6 / 8)
    assert models.mini_batch_s(resnet, at(4, gpu_type="k80")) == pytest.approx(1 / 4)
    # It does not fit on eight of them, which is what the file's zero says.
    assert models.speed(job(resnet.model, 8, gpu_type="v100"), at(8, gpu_type="k80")) == 0


def test_gavel_knows_pairs_on_one_gpu() -> None:
    models = small()
    resnet = job("ResNet-50 (batch size 64)", 1)
    assert models.speed(resnet, at(1, partners=("A3C",))) == pytest.approx(3 / 4)
    two = models.speed(resnet, at(1, partners=("A3C", "A3C")))
    assert two == pytest.approx(1 / (1 + 2 / 3))
    assert models.speed(job("resnet50", batch_size=16), at(1, partners=("A3C",))) == 0
    assert models.mini_batch_s(job("resnet50", batch_size=16), at(1, partners=("A3C",))) == 0
    # Several GPUs: as on one. The zeros of the file are pairs that nobody measured.
    gang = job("ResNet-50 (batch size 64)", 2)
    assert models.speed(gang, at(2, partners=(gang.model,))) == pytest.approx(1 / 2)
    assert models.speed(resnet, at(1, partners=("what nobody knows",))) == TURNS


def test_the_fastest_type_is_that_of_the_cluster() -> None:
    resnet = job("resnet50", 2, batch_size=128)
    assert small().speed(resnet, at(2, gpu_type="k80")) == 1
    mixed = small(types=("k80", "v100"))
    assert mixed.speed(resnet, at(2, gpu_type="v100")) == 1
    assert mixed.speed(resnet, at(2, gpu_type="k80")) == pytest.approx(1 / 4)
    assert small(types=("k80",)).speed(resnet, at(2, gpu_type="k80")) == 1


def test_pollux_knows_every_split_and_batch_size() -> None:
    models = small()
    bert = job("BERT", 4, batch_size=32)
    assert models.speed(bert, at(4)) == 1
    assert models.speed(bert, at(2, 2)) == pytest.approx(1.2 / 3.0)
    assert models.speed(bert, at(2, 1, 1)) == pytest.approx(1.2 / 2.9)  # The mean of two orders.
    half = job("BERT", 4, batch_size=48)
    assert models.speed(half, at(2, 2)) == pytest.approx(1.45 / 3.25)
    # Twice as many GPUs have half as much to do each; one GPU does it in steps.
    assert models.speed(job("bert", 2, batch_size=32), at(4)) == pytest.approx(1.6 / 1.2)
    assert models.speed(bert, at(1)) == pytest.approx(1.2 / 3.0)
    assert models.utilisation(bert, at(2, 2)) == pytest.approx(1 / 3)


def test_a_gpu_takes_no_more_at_once_than_in_pollux_experiments() -> None:
    """YOLOv3 was measured with up to 16 samples a GPU, and trains with 8 at most."""
    sizes = "\n".join(f"1,{size},{step_s},0.0" for size, step_s in ((4, 1.0), (8, 1.5), (16, 2.0)))
    rows = f"placement,local_bsz,step_time,sync_time\n{sizes}\n".splitlines()
    table = pollux.parse({"yolov3": rows, "bert": rows}, {})
    assert table.step(Work("bert", 16, 1), (1,)).step_s == 2.0
    assert table.step(Work("yolov3", 16, 1), (1,)).step_s == 3.0


def test_pollux_gains_by_going_apart_only_where_that_was_seen() -> None:
    table = pollux.parse({"bert": PLACEMENTS.splitlines()}, {"bert": SCALABILITY.splitlines()})
    measured = table.applications["bert"]
    assert (2, 2, 1, 1, 1, 1) in measured
    models = small()
    bert = job("bert", 8, batch_size=64)
    seen = models.speed(bert, at(4, 4))
    # 6 nodes are faster than 2, and were measured; 5 and 3 were not, so they are not faster than 2.
    assert models.speed(bert, at(2, 2, 1, 1, 1, 1)) > seen
    assert models.speed(bert, at(2, 2, 2, 1, 1)) <= seen
    assert models.speed(bert, at(3, 3, 2)) <= seen
    assert models.speed(bert, at(2, 1, 1, 1, 1, 1, 1)) <= models.speed(bert, at(2, 2, 1, 1, 1, 1))


def test_chronus_knows_nodes() -> None:
    models = small()
    assert models.speed(job("VGG-16", 4), at(2, 2)) == pytest.approx(0.6)
    assert models.speed(job("vgg16", 4), at(2, 1, 1)) == pytest.approx(
        between({1: 1.0, 2: 0.6, 4: 0.3}, 3)
    )
    assert models.speed(job("vgg16", 6), at(2, 2, 1, 1)) == pytest.approx(0.3 / 0.5)  # (4, 2).
    assert models.speed(job("vgg16", 1), at(1)) == 1
    # It says nothing about numbers of GPUs; without a table, twice as many are twice as fast.
    assert models.speed(job("vgg16", 2), at(4)) == pytest.approx(2)


def test_dl2_knows_workers_and_servers() -> None:
    models = small()
    job_ = job("Seq2Seq", 4, workers=4, servers=4)
    assert models.speed(job_, at(4, servers=4)) == 1
    assert models.speed(job_, at(4, servers=1)) == pytest.approx(160 / 640)
    assert models.speed(job_, at(1, servers=4)) == pytest.approx(200 / 640)
    assert models.speed(job_, at(4, servers=2)) == pytest.approx(math.sqrt(160 * 640) / 640)
    assert models.mini_batch_s(job_, at(4, servers=4)) == pytest.approx(64 / 640)


def test_elasticflow_knows_numbers_at_a_fixed_batch_size() -> None:
    models = small(node_gpus=8)
    gpt = job("gpt2", 1, batch_size=128, gpu_type="a100")
    assert models.speed(gpt, at(4, gpu_type="a100")) == pytest.approx(2)
    assert models.speed(gpt, at(8, 8, gpu_type="a100")) == pytest.approx(18 / 8 * 18 / 16)
    assert models.mini_batch_s(gpt, at(2, gpu_type="a100")) == pytest.approx(1 / 12)
    other = job("gpt2", 1, batch_size=64, gpu_type="a100")
    assert models.mini_batch_s(other, at(1, gpu_type="a100")) == pytest.approx(1 / 16)


def test_deepshare_knows_neighbours() -> None:
    models = small()
    moe = job("MoE", 2)
    assert models.speed(moe, at(1, 1)) == 1
    assert models.speed(moe, at(1, 1, neighbours=("MoE",))) == pytest.approx(0.6)
    assert models.speed(moe, at(1, 1, neighbours=("DLRM",))) == 1
    assert models.speed(moe, at(1, 1, neighbours=("nobody",))) == 1
    assert models.speed(job("MoE", 4), at(1, 1, 1, 1)) == pytest.approx(12 / 16)
    # Above 1 in the file is noise: a neighbour never helps.
    assert models.speed(job("DLRM", 2), at(1, 1, neighbours=("DLRM",))) == 1


def test_synergy_and_salus_know_times_penalties_and_memory() -> None:
    models = small()
    assert models.speed(job("m5", 2), at(1, 1)) == pytest.approx(0.5)
    assert models.speed(job("gnmt", 2), at(1, 1)) == 1
    assert models.mini_batch_s(job("gnmt"), at(1)) == pytest.approx(0.12)
    assert models.memory(job("resnet50", batch_size=25)) == 2_120_000_000
    assert models.memory(job("resnet50", 2, batch_size=100)) == 4_120_000_000
    assert models.memory(job("resnet50", batch_size=10_000)) == 6_120_000_000
    assert models.memory(job("ResNet-50 (batch size 75)", 8)) == 6_120_000_000
    assert models.memory(job("nobody")) == 0


def test_without_tables_the_papers_speak() -> None:
    models = Models()
    for model, times in LOCALITY.items():
        assert models.speed(job(model, 4), at(2, 2)) == pytest.approx(1 / times)
    for model, slowdown in NETWORK.items():
        there, three = at(1, 1), at(1, 1, neighbours=(model,) * 3)
        left = models.speed(job(model, 2), three) / models.speed(job(model, 2), there)
        assert left == pytest.approx(1 - slowdown)
    assert models.speed(job("LM"), at(1, neighbours=("LM",))) == pytest.approx(0.81)
    assert models.speed(job("LSTM"), at(1, neighbours=("LM",))) == 1
    assert models.utilisation(job("LSTM"), at(1)) == pytest.approx(0.872)
    assert models.utilisation(job("Inception3"), at(1)) == 1
    assert models.mini_batch_s(job("VAE"), at(1)) == pytest.approx(1 / 81.8)
    assert models.mini_batch_s(job("resnet50", 4, gpu_type="k80"), at(4, gpu_type="k80")) == 1.5
    assert models.memory(job("resnet50")) == 5_750_000_000
    assert models.speed(job("A3C"), at(1, partners=("CycleGAN",))) < 1  # By the fitted loads.


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1_is_given_back_to_the_digit(name: str) -> None:
    _, sliced, packed = TABLE_1[name]
    model = normalised(name).model
    assert packing_max(LOADS[model]) == pytest.approx(packed / sliced)
    alone = job(name)
    together_ = [n * Models().speed(alone, at(1, partners=(name,) * (n - 1))) for n in range(2, 9)]
    assert max(together_) == pytest.approx(packed / sliced)


def test_every_printed_number_says_where_it_stands() -> None:
    rows = printed()
    assert {row.where.split(",")[0] for row in rows} == {"Gandiva", "SCHED²", "DL²"}
    assert all(row.where.split(", ")[1].startswith(("Figure", "Table")) for row in rows)
    assert sum(row.where == "Gandiva, Table 1" for row in rows) == 24
    assert [row.model for row in rows if not row.used] == ["vgg16", "resnet50", "seq2seq", "vgg16"]


def test_unknown_models_are_counted_and_run_as_in_the_trace() -> None:
    models = small()
    jobs = (job("nothing"), job("Nothing"), job("nothing"), job("bert"), job(""), job("vgg19"))
    assert models.unknown(jobs) == {"Nothing": 1, "nothing": 2, "vgg19": 1}
    anywhere = at(1, 1, partners=("bert",), neighbours=("bert",))
    assert models.speed(job("nothing", 4), anywhere) == 1
    assert models.speed(job("", 4), anywhere) == 1
    assert models.utilisation(job("nothing"), at(1)) == 1
    assert models.mini_batch_s(job("nothing"), at(1)) == 0
    assert models.mini_batch_s(job("nothing", mini_batches=500), at(1)) == pytest.approx(2)


def test_tables_are_asked_in_the_stated_order() -> None:
    models = small()
    assert tuple(table.name for table in models.tables) == ORDER
    assert models.sources_of("Res50") == ("gavel", "salus", "figures")
    assert models.sources_of("imagenet") == models.sources_of("resnet50")
    assert models.sources()["bert"] == ("pollux",)
    (part,) = models.parts(job("vgg16", 4), at(2, 2))
    assert (part.what, part.table) == ("locality", "chronus")


def test_a_table_says_nothing_of_a_model_that_it_does_not_know() -> None:
    stranger, place = Work("nobody"), Place("", (1, 1), 2, servers=1)
    for table in (*small_tables(), Figures()):
        assert "nobody" not in table.models()
        answers = (
            table.rate(stranger, place),
            table.locality(stranger, place, (2,)),
            table.packed(stranger, stranger, place),
            table.beside(stranger, stranger, place),
            table.utilisation(stranger, place),
            table.memory(stranger),
            table.seconds(stranger, place),
        )
        assert answers == (None,) * 7, table.name
    # A3C was measured on one GPU only, and Pollux's BERT and ElasticFlow's GPT-2 on one type.
    assert small_tables()[0].rate(Work("a3c"), Place("v100", (2,), 2)) is None
    assert small_tables()[1].rate(Work("bert"), Place("k80", (2,), 2)) is None
    assert small_tables()[4].rate(Work("gpt2"), Place("k80", (2,), 2)) is None


def test_middling_sizes_stand_for_those_that_are_not_told() -> None:
    models = small()
    assert models.speed(job("bert", 4), at(2, 2)) == pytest.approx(1.7 / 3.5)  # 16 a GPU.
    assert models.memory(job("resnet50")) == 6_120_000_000
    # Twice the largest batch that a GPU was measured with takes two steps, with one wait.
    large = job("bert", 2, batch_size=64)
    assert models.mini_batch_s(large, at(1, 1)) == pytest.approx(2.5 + 1.5)


def test_steady_jobs_go_as_in_the_trace_everywhere() -> None:
    steady, one = Steady(), job("bert", 4, mini_batches=100)
    where = at(1, 1, partners=("bert",))
    assert (steady.speed(one, where), steady.utilisation(one, where)) == (1, 1)
    assert (steady.mini_batch_s(one, where), steady.mini_batch_s(job("bert"), where)) == (10, 0)
    assert (steady.memory(one), steady.unknown((job("nothing"),))) == (0, {})


def test_other_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="gavel: no rates"):
        gavel.parse(["gpu_type,placement,job_type,num_gpus,iters_per_s"])
    with pytest.raises(KeyError):
        gavel.parse(["a,b", "1,2"])
    with pytest.raises(ValueError, match="could not convert"):
        gavel.parse(GAVEL.replace(",12\n", ",twelve\n").splitlines(), PAIRS.splitlines())
    with pytest.raises(ValueError, match="no placements of bert"):
        pollux.parse({"bert": []}, {})
    with pytest.raises(ValueError, match="dl2: no speeds"):
        dl2.parse([])
    with pytest.raises(ValueError, match="deepshare: no rates"):
        deepshare.parse([",isol_thp"])
    with pytest.raises(ValueError, match="salus: no memory"):
        salus.parse(["", "other,1,2"])
    with pytest.raises(ValueError, match="no rates of gpt2 on a100"):
        elasticflow.parse({("a100", "gpt2"): ["global_batch_size,1,2", "64,0,nan"]})


@pytest.mark.needs("data")
def test_the_published_tables_are_read() -> None:
    from skep_services import workload_tables

    read = workload_tables.read(needs.DATA)
    assert not read.absent
    models = Models(read.tables)
    # Chronus as its README says it: 1.00 / 0.58 / 0.32.
    vgg = job("vgg16", 4)
    assert [round(models.speed(vgg, at(*split)), 2) for split in ((4,), (2, 2), (1, 1, 1, 1))] == [
        1.0,
        0.58,
        0.32,
    ]
    assert models.sources_of("ResNet-50 (batch size 64)")[:2] == ("dl2", "gavel")
    # VGG-16 with 4 servers and 8 workers failed: it is taken from its neighbours.
    vgg = job("vgg16", 8, workers=8, servers=4)
    assert models.speed(vgg, at(8, servers=4)) == 1
    assert 0.5 < models.speed(vgg, at(8, servers=5)) < 2


def test_leaving_measurements_out_says_how_far_off_gaps_are() -> None:
    from tests.system.validate_workloads import validate

    found = validate(tuple(small_tables()))
    assert list(found) == [
        "gavel.gpus",
        "gavel.eight",
        "gavel.batch",
        "gavel.pairs",
        "pollux.splits",
        "pollux.nodes",
        "chronus.nodes",
        "dl2.servers",
        "elasticflow.gpus",
    ]
    # Chronus: 0.6 on two nodes, and between 1 on one and 0.3 on four lies sqrt(0.3).
    off = round((0.6 - math.sqrt(0.3)) / 0.6 * 100, 1)
    assert found["chronus.nodes"]["vgg16"] == {"mean": off, "worst": off, "measured": 1}
    assert found["pollux.splits"]["all"]["measured"] == 14
    assert found["gavel.eight"] == {}


def test_the_generator_of_table_1_draws_the_same_rates() -> None:
    rates = {normalised(kind.model).model: kind.rate for kind in KINDS}
    assert rates == {normalised(name).model: sliced for name, (_, sliced, _) in TABLE_1.items()}
