"""The configurations of other tools, taken apart key by key: what nobody read is told.

Source of the keys and of what they are by themselves: AMD Quark for ONNX 0.13 (`QuantizationConfig`
and its `extra_options`, `QTensorConfig`, `AlgoConfig`); ONNX Runtime 1.32 (`extra_options` of
`StaticQuantConfig`); Olive 0.11, the options of its passes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from vermilion.errors import OptionError
from vermilion.files import shown

# What may be said of a key without changing the model that is made here: None stands for anything.
# Every other key, and every other value, is told.
_HARMLESS: Mapping[str, tuple[object, ...] | None] = {
    # How it runs, what it prints, where data come from: the command says that.
    **dict.fromkeys(
        (
            *("execution_providers", "calibration_providers", "optimize_model", "OptimizeModel"),
            *("use_external_data_format", "convert_fp16_to_fp32", "debug_mode", "crypto_mode"),
            *("print_summary", "ignore_warnings", "log_severity_level", "TmpDir", "NumWorkers"),
            *("CalibDataSize", "UseRandomData", "CalibMaxIntermediateOutputs", "quant_preprocess"),
            *("data_config", "user_script", "script_dir", "data_dir", "batch_size", "host"),
            *("dataloader_func", "save_as_external_data", "all_tensors_to_one_file", "evaluator"),
            *("external_data_name", "size_threshold", "convert_attribute", "disable_search"),
            *("disable_shape_infer", "name", "type"),
        )
    ),
    # How the same numbers are written down.
    **dict.fromkeys(
        (
            *("DedicatedQDQPair", "DedicateDQNode", "AddQDQPairToWeight", "UseQDQContribOps"),
            *("QDQKeepRemovableActivations", "ForceQuantizeNoInputCheck", "QuantizeAllOpTypes"),
            *("EnableSubgraph", "extra.Sigmoid.nnapi"),
        ),
        (True, False),
    ),
    # What is done here anyway, as the presets ask for it.
    "quant_format": ("QDQ",),
    "FoldRelu": (True,),
    "AlignConcat": (True,),
    "AlignEltwiseQuantType": (True,),
    "QuantizeBias": (True,),
    "MinMSEModePof2Scale": ("All",),
    "BFPAttributes": (
        {"bfp_method": "to_bfp", "axis": 1, "bit_width": 16, "block_size": 8, "rounding_mode": 2},
    ),
    # What is not done, and not asked for.
    **dict.fromkeys(
        (
            *("reduce_range", "include_rotation", "enable_npu_transformer", "EnableNPUTransformer"),
            *("specific_tensor_precision", "AlignSlice", "MatMulConstBOnly", "CalibMovingAverage"),
            *("CalibTensorRangeSymmetric", "ActivationRestrictedAsymmetric", "act_order", "mse"),
            *("QDQDisableWeightAdjustForInt32Bias", "cle_scale_use_threshold"),
        ),
        (False,),
    ),
    "extra_op_types_to_quantize": ([],),
    "OpTypesToExcludeOutputQuantization": ([],),
    "TensorQuantOverrides": ({},),
    "QDQOpTypePerChannelSupportToAxis": ({},),
    "qnn_extra_options": ({},),
    "accuracy_level": (0,),
    "axis": (0,),
    # How far other tools go in what is done otherwise here, which is told where it is read.
    **dict.fromkeys(
        (
            *("num_iterations", "learning_rate", "data_size", "fixed_seed", "early_stop"),
            *("optim_algorithm", "optim_device", "infer_device", "cle_steps", "CLESteps"),
            *("cle_balance_method", "cle_weight_threshold", "cle_scale_append_bias"),
            *("cle_total_layer_diff_threshold", "CLEScaleAppendBias", "perc_damp"),
            *("CLETotalLayerDiffThreshold", "CalibMovingAverageConstant", "SmoothQuantFolding"),
        )
    ),
}

# What would give another model than the file asks for, and what to do instead.
_REFUSED = {
    **dict.fromkeys(
        (
            *("nodes_to_quantize", "subgraphs_to_exclude", "input_nodes", "output_nodes"),
            "nodes_to_include",
        ),
        "name what is left out in `nodes_to_exclude`",
    ),
    "convert_nchw_to_nhwc": "convert the model first",
    "WeightsOnly": "take a scheme of weights alone: `--scheme int4`",
    "prepare_qnn_config": "leave it out: no file for QNN is made here",
}


class Keys:
    """One object of a configuration; null stands for a key that is not there."""

    def __init__(self, found: object, notes: list[str], where: str = "") -> None:
        self._where = where
        self.notes = notes
        if not isinstance(found, Mapping):
            raise OptionError(
                f"`{where or 'the recipe'}` is {shown(found)}", hint="it takes an object"
            )
        self._left = {str(name): value for name, value in found.items() if value is not None}
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def value(self, name: str) -> Any:
        """Take whatever is there."""
        self._known.append(name)
        return self._left.pop(name, None)

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        """Take true or false."""
        found = self.value(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.error(name, found, "true or false")
        return found

    def word(self, name: str, default: str = "") -> str:
        """Take a word."""
        found = self.value(name)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self.error(name, found, "a word")
        return found

    def number(self, name: str, default: float) -> float:
        """Take a number."""
        found = self.value(name)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.error(name, found, "a number")
        return found

    def names(self, name: str) -> list[str]:
        """Take a list of names."""
        found = self.value(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.error(name, found, "a list of names")
        return found

    def rows(self, name: str) -> list[Any]:
        """Take a list of whatever."""
        found = self.value(name)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.error(name, found, "a list")
        return found

    def inner(self, name: str) -> Keys:
        """Take an object; an empty one where there is none."""
        found = self.value(name)
        return Keys({} if found is None else found, self.notes, self._path(name))

    def put(self, name: str, value: object) -> None:
        """Say what a tool assumes where its file says nothing."""
        self._left.setdefault(name, value)

    def error(self, name: str, found: object, takes: str) -> OptionError:
        """Return the error of a value that cannot be read."""
        return OptionError(f"`{self._path(name)}` is {shown(found)}", hint=f"it takes {takes}")

    def finish(self) -> None:
        """Refuse what would give another model; note all else that was not read."""
        for name, found in self._left.items():
            if name in _REFUSED and found not in (False, [], {}):
                raise OptionError(
                    f"`{self._path(name)}` is not done by a recipe", hint=_REFUSED[name]
                )
            if name not in _REFUSED and not self._is_harmless(name, found):
                self.notes.append(self._unread(name))

    def _is_harmless(self, name: str, found: object) -> bool:
        if name not in _HARMLESS:
            return False
        allowed = _HARMLESS[name]
        if allowed is None:
            return True
        if all(isinstance(one, bool) for one in allowed) and not isinstance(found, bool):
            raise self.error(name, found, "true or false")
        plain = found.rpartition(".")[2] if isinstance(found, str) else found
        return any(type(one) is type(plain) and one == plain for one in allowed)

    def _unread(self, name: str) -> str:
        near = difflib.get_close_matches(name, [*self._known, *_HARMLESS], n=1, cutoff=0.8)
        meant = f"; is `{near[0]}` meant?" if near and name not in _HARMLESS else ""
        return f"`{self._path(name)[:80]}` is not read{meant}"

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name
