"""Recipes that a launcher makes: constants, configuration functions and YAML under scripts/performance.

What such a recipe really trains with is decided in stages: the configuration function or the YAML, then the launcher's
own overrides with the command line's defaults. So the launcher's ``main`` is evaluated, from the command line of one cell
to the configuration that it hands to training. A cell is a function or YAML file x GPU x precision (x variant).
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Any, Iterator, Optional

import yaml

from bisect_recompute.differ.recipes.state import Imprecise, Raised
from bisect_recompute.differ.recipes.values import MISSING, ADict, External, Func, Obj, Unknown
from bisect_recompute.differ.recipes.world import World, module_name

BASE = "scripts/performance/"
_MAIN = f"{BASE}run_script.py"
_PARSER = f"{BASE}argument_parser.py"
_CONFIG_FILE = re.compile(rf"^{BASE}configs/(?P<family>[^/]+)/[^/]+\.(?P<kind>py|yaml)$")
_FUNCTION = re.compile(r"(?P<recipe>.+)_(?P<task>pretrain|finetune|sft|lora|peft)_config_(?P<gpu>[a-z]+\d+)$")
_OLD_FUNCTION = re.compile(r"(?P<name>[a-z0-9]+)_(?P<size>.+)_(?P<gpu>[a-z]+\d+)_(?P<number>\d+)gpus_config$")
_MIDDLE_FUNCTION = re.compile(r"(?P<model>.+)_(?P<gpu>(?:gb|vr|b|h|r)\d{3})(?:_(?P<task>sft|lora|finetune))?_config$")
_PRECISIONS = ("bf16", "fp8_cs", "fp8_mx", "fp8_sc", "fp8_ds", "nvfp4")
_VARIANTS = ("v1", "v2")
_KEY = "config"


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_literal = lru_cache(maxsize=4096)(ast.literal_eval)


def is_config_file(path: str) -> bool:
    return _CONFIG_FILE.match(path) is not None


def launched_cells(world: World, path: str) -> Iterator[tuple[str, str, tuple]]:
    """(key, function name or "", command line) of the cells of a configuration file."""
    found = _CONFIG_FILE.match(path)
    if found["kind"] == "yaml":
        yield from _yaml_cells(world, path)
        return
    file = world.file(path)
    if file is None or file.broken:
        return
    for name, parameters in file.parameters.items():
        if name.startswith("_") or "precision" not in parameters or name not in file.entries:
            continue
        base = f"scripts.performance.{module_name(path)}:{name}"
        variants = _VARIANTS if "config_variant" in parameters else ("",)
        for precision in _PRECISIONS:
            for variant in variants:
                line = _command_line(found["family"], name, precision, "fp8_recipe" in parameters)
                if line is not None:
                    if variant:
                        line["config_variant"] = variant
                    cell = ",".join(filter(None, (precision, variant)))
                    yield f"{base}[{cell}]", name, tuple(sorted(line.items()))


def _command_line(family: str, name: str, precision: str, split_precision: bool) -> Optional[dict]:
    kind, _, scaling = precision.partition("_")
    line: dict[str, Any] = {"compute_dtype": precision, "data": "mock", "domain": "llm"}
    if split_precision:
        line.update(compute_dtype=kind, fp8_recipe=scaling or None)
    new, old, middle = _FUNCTION.match(name), _OLD_FUNCTION.match(name), _MIDDLE_FUNCTION.match(name)
    if new:
        line.update(model_family_name=family, model_recipe_name=new["recipe"], task=new["task"], gpu=new["gpu"])
    elif old:
        line.update(model_name=family, model_size=name[len(family) + 1 :].rpartition(f"_{old['gpu']}_")[0], gpu=old["gpu"],
                    num_gpus=int(old["number"]))
    elif middle:
        line.update(model_name=family, model_size=middle["model"].removeprefix(family).lstrip("_"), gpu=middle["gpu"],
                    task=middle["task"] or "pretrain")
    else:
        return None
    return line


def _yaml_cells(world: World, path: str) -> Iterator[tuple[str, str, tuple]]:
    try:
        content = yaml.load(world.text(path) or b"", _Loader)
        matrix = content.get("perf_matrix", {})
        stem = path.rpartition("/")[2].removesuffix(".yaml")
        model, _, size = stem.partition("_")
        size = size.removesuffix("_llm_pretrain")
        for gpu, by_number in matrix.items():
            for number, by_precision in by_number.items():
                for precision in by_precision:
                    kind, _, scaling = precision.partition("_")
                    count = number.removeprefix("num_gpus_")
                    if precision == "common" or not count.isdigit():
                        continue
                    line = {"model_name": model, "model_size": size, "gpu": gpu, "num_gpus": int(count), "compute_dtype": kind,
                            "fp8_recipe": scaling or None, "config_file": path}
                    module = "scripts.performance." + module_name(path.removesuffix(".yaml"))
                    yield f"{module}:{model}_{size}_{gpu}_{count}gpus_config[{precision}]", "", tuple(sorted(line.items()))
    except (yaml.YAMLError, AttributeError, ValueError, TypeError, RecursionError):
        return


class Launcher:
    """Part of the interpreter: the command line, OmegaConf, and the call that starts training."""

    def launch(self, path: str, name: str, command_line: tuple) -> Any:
        """The configuration that training is started with."""
        self.command_line = dict(command_line)
        self.launched: dict = {}
        self.depend("file", path) if path.endswith(".yaml") else self.depend("name", path, name)
        try:
            slot = self.symbol(_MAIN, "main")
            if slot is MISSING or not isinstance(slot[0], Func):
                raise Imprecise("there is no launcher")
            if "num_gpus" not in self.command_line:
                self.command_line["num_gpus"] = self._usual_number()
            self._enter(slot[0], [], {})
            if _KEY not in self.launched:
                raise Raised(SystemExit, "the launcher does not start training")
            return self.launched[_KEY][0]
        finally:
            self.command_line = None

    def _usual_number(self) -> Any:
        """GPUs that the cell is made for: with another number the launcher scales the batch."""
        slot = self.symbol(f"{BASE}utils/utils.py", "get_workload_base_config")
        if slot is not MISSING and isinstance(slot[0], Func):
            names = self.world.file(slot[0].path).parameters.get(slot[0].name, ())
            line = self.command_line
            recipe = line.get("model_recipe_name")
            task = "pretrain" if line.get("task") == "pretrain" else "finetune"
            # The function took a recipe's name with and without its suffix, and raises for what it does not know.
            for name in (recipe, f"{recipe}_{task}_config") if recipe else (None,):
                given = {n: (v, None) for n, v in {**line, "model_recipe_name": name}.items() if n in names}
                try:
                    found = self.call(slot[0], [], given)
                except Raised:
                    continue
                number = found.attrs.get("num_gpus") if isinstance(found, Obj) else None
                if number is not None:
                    return number[0]
        return Unknown("--num_gpus")

    def namespace(self) -> Obj:
        """The parsed command line: the cell's arguments; the others are read from the parser when asked for."""
        made = Obj(External("argparse.Namespace"), self.next_serial(), "a command-line argument", False, True)
        for name, value in self.command_line.items():
            made.attrs[name] = (value if isinstance(value, Unknown) else self.from_python(value), None, False)
        return made

    def argument(self, owner: Obj, name: str) -> Any:
        """Value of an argument that the cell's command line does not give, or MISSING."""
        found = self.depend("argument", _PARSER, name)
        if found is None:
            return MISSING
        value = self._default_argument(name, found)
        self.put(owner.attrs, name, (value, None, False))
        return value

    def all_arguments(self, owner: Obj) -> dict:
        self.depend("file", _PARSER)
        for name, text in self.world.parser_defaults(_PARSER).items():
            if name and name not in owner.attrs:
                self.put(owner.attrs, name, (self._default_argument(name, text), None, False))
        return {name: slot[0] for name, slot in owner.attrs.items()}

    def _default_argument(self, name: str, text: str) -> Any:
        return self.from_python(_literal(text)) if text != "?" else Unknown(f"the default of --{name}")

    def parse_arguments(self, both: bool) -> Any:
        if self.command_line is None:
            return Unknown("the command line")
        self.one_off = True
        parsed = self.namespace()
        return (parsed, self.new_list([])) if both else parsed

    def hook(self, func: Func, args: list, kwargs: dict) -> Any:
        """A stand-in for a function of the framework whose code goes through reflection; MISSING for others."""
        if func.name in ("pretrain", "finetune") and func.path.endswith(f"training/{func.name}.py"):
            if self.command_line is not None:
                config = kwargs.get("config") or (args[0] if args else None)
                if config is not None:
                    self.one_off = True
                    self.put(self.launched, _KEY, (config[0], None, False))
            return None
        if func.name == "parse_cli_args" and func.path == _PARSER and self.command_line is not None:
            returned = self.depend("argument", _PARSER, "")
            if returned != "parser":
                return self.parse_arguments(returned == "parse_known_args")
            return Obj(External("argparse.ArgumentParser"), self.next_serial(), "a parser", True, True)
        if func.path.endswith("utils/omegaconf_utils.py"):
            if func.name == "create_omegaconf_dict_config":
                # Only overrides matter: what is not overridden is written back as it was.
                return (self.new_dict({}), self.new_dict({}))
            if func.name == "parse_hydra_overrides" and len(args) == 2 and self.iterate(args[1][0]) == []:
                return args[0][0]
            if func.name == "apply_overrides" and args:
                self._override(args[0][0], args[1][0])
                return None
        return MISSING

    def _override(self, target: Any, values: Any) -> None:
        if not isinstance(values, ADict) or isinstance(values.items, Unknown) or not isinstance(target, Obj):
            self.havoc(target, "unknown overrides")
            return
        for name, value in values.items.items():
            slot = target.attrs.get(name)
            if isinstance(value, ADict) and not isinstance(value.items, Unknown):
                if "_target_" in value.items:
                    self.set_attribute(target, name, Unknown("an object that is made from a dict", True), None)
                    continue
                inner = slot[0] if slot is not None else self.get_attribute(target, name)
                if isinstance(inner, Obj):
                    self._override(inner, value)
                    continue
            self.set_attribute(target, name, value, self.yaml_origins.get((id(values), name)) or (None, None, 0))

    def lib_omegaconf__OmegaConf__load(self, args, kwargs):
        path = args[0][0]
        if not isinstance(path, str) or path not in self.world.tree:
            return Unknown("a file that is not in the repository")
        self.depend("file", path)
        try:
            blob = self.world.tree[path]
            if blob not in self.yaml_nodes:
                self.yaml_nodes[blob] = yaml.compose(self.world.text(path) or b"", _Loader)
            return self._from_yaml(self.yaml_nodes[blob], path)
        except (yaml.YAMLError, RecursionError):
            return Unknown(f"{path} is no YAML")

    def _from_yaml(self, node: Any, path: str) -> Any:
        if isinstance(node, yaml.MappingNode):
            made = self.new_dict({})
            for key, value in node.value:
                made.items[key.value] = self._from_yaml(value, path)
                self.yaml_origins[id(made), key.value] = (path, None, key.start_mark.line + 1)
            self.kept_alive.append(made)
            return made
        if isinstance(node, yaml.SequenceNode):
            return self.new_list([self._from_yaml(each, path) for each in node.value])
        return None if node is None else self.from_python(yaml.constructor.SafeConstructor().construct_object(node))

    def lib_omegaconf__OmegaConf__merge(self, args, kwargs):
        merged: Any = self.new_dict({})
        for value, _ in args:
            if not isinstance(value, ADict) or isinstance(value.items, Unknown):
                return Unknown("a merge with an unknown configuration")
            self._merge(merged, value)
        return merged

    def _merge(self, into: ADict, other: ADict) -> None:
        self.kept_alive.append(into)
        for name, value in other.items.items():
            old = into.items.get(name)
            if isinstance(value, ADict) and not isinstance(value.items, Unknown):
                inner = self.new_dict({})
                if isinstance(old, ADict):
                    self._merge(inner, old)
                self._merge(inner, value)
                value = inner
            into.items[name] = value
            origin = self.yaml_origins.get((id(other), name))
            if origin is not None:
                self.yaml_origins[id(into), name] = origin

    def lib_omegaconf__OmegaConf__create(self, args, kwargs):
        return args[0][0] if args else self.new_dict({})

    def lib_omegaconf__OmegaConf__to_container(self, args, kwargs):
        return args[0][0]

    def lib_omegaconf__OmegaConf__is_dict(self, args, kwargs):
        return isinstance(args[0][0], ADict)

    def lib_sys__exit(self, args, kwargs):
        raise Raised(SystemExit)

    def lib_argparse__ArgumentParser(self, args, kwargs):
        return Obj(External("argparse.ArgumentParser"), self.next_serial(), "a parser", True, True)
