import pytest

from vermilion.errors import OptionError
from vermilion.hardware.targets.find import CPU, all_targets, find_target, resolve_cpu
from vermilion.hardware.targets.gpu import runs_on
from vermilion.hardware.targets.x86 import X86_64_V3, ZEN2, ZEN3, ZEN4, ZEN5


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("strix", "strix"),
        ("STX", "strix"),
        ("strix_halo", "strix"),
        ("phx", "phoenix"),
        ("hpt", "phoenix"),
        ("hawk-point", "phoenix"),
        ("krk", "krackan"),
        ("ve2-xc2ve3858", "ve2"),
        ("znver4", "zen4"),
        ("x86_64_v3", "x86-64-v3"),
        ("gfx942", "gfx942"),
        ("gfx90a:sramecc+:xnack-", "gfx90a"),
        ("gfx942, GFX1100,gfx942", "gfx942,gfx1100"),
        ("gfx942,gfx942", "gfx942"),
    ],
)
def test_names_and_aliases(written, name):
    assert find_target(written).name == name


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("strixx", "`strix`"),
        ("zen44", "`zen4`"),
        ("tpu-v5e", "`phoenix`"),
        ("gfx906", "`gfx90a`"),
        ("gfx940", "`gfx942`"),
        ("gfx1010", "`gfx1030`"),
        ("gfx1154", "`gfx1153`"),
    ],
)
def test_unknown_name_gives_the_nearest(written, hint):
    with pytest.raises(OptionError) as caught:
        find_target(written)
    assert written in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("written", ["gfx1100,", ",gfx1100", "gfx942,,gfx1100", ",", "strix, "])
def test_a_comma_without_a_name_is_said(written):
    with pytest.raises(OptionError, match="a name is missing beside a comma"):
        find_target(written)


def test_only_gpus_stand_beside_each_other():
    with pytest.raises(OptionError, match="`strix` cannot stand beside"):
        find_target("gfx942,strix")
    assert find_target("gfx942,gfx1100").architectures == ("gfx942", "gfx1100")
    assert find_target("gfx942").architectures == ("gfx942",)
    assert find_target("zen4").architectures == ()


def test_no_name_stands_for_two_targets():
    names = [name for target in all_targets() for name in (target.name, *target.aliases)]
    assert len(names) == len(set(names))


def test_every_target_says_where_its_facts_come_from():
    for target in all_targets():
        assert target.title, target.name
        assert len(target.source) > 20, target.name


@pytest.mark.parametrize(
    ("features", "name"),
    [
        (ZEN5, "zen5"),
        (ZEN4, "zen4"),
        (ZEN3, "zen3"),
        (ZEN2, "zen2"),
        (X86_64_V3, "x86-64-v3"),
        # What is left where a hypervisor hides bf16, and what other vendors have.
        (ZEN4 - {"avx512bf16"}, "x86-64-v4"),
        (ZEN4 - {"sse4a", "avx512bf16"}, "x86-64-v4"),
        (ZEN4 - {"sse4a"}, "x86-64-v4-bf16"),
        (ZEN4 - {"avx512bf16", "avx512vnni"}, "x86-64-v4-base"),
        (ZEN4 - {"avx512bw"}, "zen3"),
        (X86_64_V3 - {"avx2"}, "cpu"),
        (frozenset(), "cpu"),
    ],
)
def test_resolve_cpu_by_features(features, name):
    assert resolve_cpu(features).name == name


def test_cpu_is_resolved_when_asked_for():
    assert find_target("cpu") == resolve_cpu()
    assert CPU in all_targets()


def test_zen_features_grow():
    assert X86_64_V3 < ZEN2 < ZEN3 < ZEN4 < ZEN5


def test_gpu_facts():
    assert find_target("gfx942").gpu.wave_size == 64
    assert find_target("gfx1151").gpu.wave_size == 32
    assert find_target("gfx1201").gpu.matrix_instructions == "wmma"
    assert "f8" in find_target("gfx942").gpu.matrix_inputs
    assert "f32" not in find_target("gfx1100").gpu.matrix_inputs
    assert find_target("strix").gpu is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("mi300x", "gfx942"),
        ("MI325X", "gfx942"),
        ("rx7900xtx", "gfx1100"),
        ("cdna3", "gfx942"),
        ("rdna3", "gfx11-generic"),
        ("gfx1030", "gfx1030"),
        ("gfx1102", "gfx1102"),
        ("gfx1152", "gfx1152"),
        ("gfx11_generic", "gfx11-generic"),
    ],
)
def test_gpus_by_other_names(written, name):
    assert find_target(written).name == name


def test_a_family_runs_on_its_members_alone():
    assert runs_on("gfx11-generic", "gfx1103")
    assert runs_on("gfx1103", "gfx1103")
    assert not runs_on("gfx11-generic", "gfx1201")
    assert not runs_on("gfx1103", "gfx1102")
    for target in all_targets():
        if target.gpu is not None:
            others = [find_target(name) for name in target.gpu.members]
            assert {other.gpu.wave_size for other in others} <= {target.gpu.wave_size}
