from dataclasses import replace

from probe_results import result

from bisect_recompute.measurement.same_code import same_code

MODULES = {"megatron/core/mlp.py": "1" * 40, "megatron/core/__init__.py": "2" * 40}
MEASURED = result(peak=1, modules=MODULES, absent=("megatron/core/extra.py",))


def test_holds_where_every_loaded_module_is_the_same():
    assert same_code(MEASURED, MODULES | {"README.md": "3" * 40, "megatron/training/x.py": "4" * 40})


def test_a_changed_a_missing_and_a_new_module_end_it():
    assert not same_code(MEASURED, MODULES | {"megatron/core/mlp.py": "9" * 40})
    assert not same_code(MEASURED, {"megatron/core/__init__.py": "2" * 40})
    assert not same_code(MEASURED, MODULES | {"megatron/core/extra.py": "5" * 40})


def test_never_from_a_probe_that_failed_or_does_not_say_what_it_loaded():
    assert not same_code(replace(MEASURED, status="failed"), MODULES)
    assert not same_code(result(peak=1), MODULES)
    assert not same_code(result(peak=1, modules={}), MODULES)
