"""The networks of the zoo: a row each, with what builds it, what it reads, and its kind.

Weights are random, of the seed that `vermilion export` sets, so that nothing is downloaded. `Conf`
rows are classes of `transformers` at the sizes of published models; the others are modules of
`zoo_vision.py`, `zoo_maps.py` and `zoo_signals.py`. A row is a factory of this module by its name:
`vermilion export bench/zoo_networks.py:NAME`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

IMAGE = ("1x3x224x224",)
TOKENS = ("1x128:int64",)
AUDIO = ("1x16000",)  # a second


@dataclass(frozen=True)
class Conf:
    """A class of `transformers`, `MODULE:CLASS` where its top does not have it, and its numbers."""

    model: str
    config: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """One network: its kind, what builds it, its inputs as `vermilion export` reads them."""

    kind: str
    build: str | Conf
    inputs: Sequence[str] = IMAGE

    def inputs_of(self, batch: int) -> list[str]:
        """Return the inputs at another batch."""
        return [_batched(text, batch) for text in self.inputs]


def _batched(text: str, batch: int) -> str:
    words = text.split(":")
    at = 0 if words[0][0].isdigit() else 1
    words[at] = "x".join([str(batch), *words[at].split("x")[1:]])
    return ":".join(words)


_SMALL_BERT = {"num_hidden_layers": 4, "vocab_size": 4000}
_SMALL_SPEECH = {
    "num_hidden_layers": 4, "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6,
}  # fmt: skip
_SMALL_VIT = {
    "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6,
}  # fmt: skip


def _vision(name: str, **numbers: Any) -> Network:
    return Network("vision", Conf(f"{name}Model", f"{name}Config", numbers))


def _text(name: str, **numbers: Any) -> Network:
    return Network(
        "text", Conf(f"{name}Model", f"{name}Config", {**_SMALL_BERT, **numbers}), TOKENS
    )


def _speech(name: str, **numbers: Any) -> Network:
    return Network(
        "speech", Conf(f"{name}Model", f"{name}Config", {**_SMALL_SPEECH, **numbers}), AUDIO
    )


NETWORKS: Mapping[str, Network] = {
    # Pictures, convolutions.
    **{
        name: Network("vision", name)
        for name in (
            "resnet50", "resnext50", "wide_resnet50", "se_resnet50", "regnet_x", "regnet_y",
            "mobilenet_v3", "efficientnet_b0", "vgg16", "squeezenet", "googlenet", "densenet121",
            "shufflenet_v2", "large_kernels", "conv_mixer", "xception", "mlp_mixer",
        )
    },
    "convnext": _vision("ConvNext"),
    "mobilenet_v1": _vision("MobileNetV1"),
    "mobilenet_v2": _vision("MobileNetV2"),
    "big_transfer": _vision("Bit"),
    "focalnet": _vision("FocalNet"),
    # Pictures, attention.
    "vit": _vision("ViT", **_SMALL_VIT),
    "beit": _vision("Beit", **_SMALL_VIT),
    "dinov2": _vision("Dinov2", num_hidden_layers=6, hidden_size=384, num_attention_heads=6),
    "swin": _vision("Swin"),
    "swinv2": _vision("Swinv2", image_size=256, window_size=8, depths=[2, 2, 2, 2]),
    "mobilevit": _vision("MobileViT"),
    "mobilevitv2": _vision("MobileViTV2"),
    "levit": _vision("Levit"),
    "pvt": _vision("Pvt"),
    "cvt": Network("vision", Conf("CvtModel", "CvtConfig", {"depth": [1, 2, 4]})),
    "poolformer": _vision("PoolFormer"),
    "swiftformer": _vision("SwiftFormer"),
    # Pictures to maps: segmentation, depth, detection, pose.
    **{
        name: Network("map", name, ("1x3x320x320",))
        for name in ("deeplab_mobilenet", "unet", "yolo")
    },
    "deeplab_resnet50": Network("map", "deeplab_resnet50", ("1x3x256x256",)),
    "pose": Network("map", "pose", ("1x3x256x192",)),
    "segformer": Network(
        "map", Conf("SegformerForSemanticSegmentation", "SegformerConfig"), ("1x3x256x256",)
    ),
    "glpn": Network("map", Conf("GLPNForDepthEstimation", "GLPNConfig"), ("1x3x256x256",)),
    "yolos": Network(
        "map",
        Conf("YolosForObjectDetection", "YolosConfig", {**_SMALL_VIT, "image_size": [256, 256]}),
        ("1x3x256x256",),
    ),
    # Pictures to pictures.
    "super_resolution": Network("generation", "super_resolution", ("1x3x96x96",)),
    "small_super_resolution": Network("generation", "small_super_resolution", ("1x1x224x224",)),
    "swin2sr": Network(
        "generation",
        Conf("Swin2SRForImageSuperResolution", "Swin2SRConfig",
             {"depths": [2, 2], "num_heads": [6, 6], "embed_dim": 60}),
        ("1x3x64x64",),
    ),
    "generator": Network("generation", "generator", ("1x100x1x1",)),
    "autoencoder_decoder": Network("generation", "autoencoder_decoder", ("1x4x32x32",)),
    "style_transfer": Network("generation", "style_transfer"),
    # Text.
    "bert": _text("Bert"),
    "distilbert": Network(
        "text", Conf("DistilBertModel", "DistilBertConfig", {"n_layers": 3, "vocab_size": 4000}),
        TOKENS,
    ),
    "albert": _text("Albert", hidden_size=768, intermediate_size=3072, num_attention_heads=12),
    "electra": _text("Electra"),
    "mobilebert": _text("MobileBert", num_hidden_layers=6),
    "squeezebert": _text("SqueezeBert"),
    "fnet": _text("FNet"),
    "deberta": _text("DebertaV2", hidden_size=384, intermediate_size=1536, num_attention_heads=6),
    "modernbert": _text(
        "ModernBert", hidden_size=384, intermediate_size=576, num_attention_heads=6, pad_token_id=0
    ),
    "t5_encoder": Network(
        "text", Conf("T5EncoderModel", "T5Config", {"num_layers": 4, "vocab_size": 4000}), TOKENS
    ),
    "gpt2": Network(
        "text",
        Conf("GPT2Model", "GPT2Config", {"n_layer": 3, "vocab_size": 4000, "use_cache": False}),
        TOKENS,
    ),
    "mamba": Network(
        "text",
        Conf("MambaModel", "MambaConfig",
             {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 4000, "use_cache": False}),
        ("1x64:int64",),
    ),
    "lstm_tagger": Network("recurrent", "lstm_tagger", TOKENS),
    "gru_tagger": Network("recurrent", "gru_tagger", TOKENS),
    "text_recognizer": Network("recurrent", "text_recognizer", ("1x1x32x160",)),
    # Sound and other signals.
    "whisper_encoder": Network(
        "speech",
        Conf("models.whisper.modeling_whisper:WhisperEncoder", "WhisperConfig",
             {"encoder_layers": 4, "d_model": 384, "encoder_attention_heads": 6,
              "encoder_ffn_dim": 1536}),
        ("1x80x3000",),
    ),
    "wav2vec2": _speech("Wav2Vec2"),
    "hubert": _speech("Hubert"),
    "wavlm": _speech("WavLM"),
    "sew": _speech("SEW"),
    "audio_spectrogram": Network(
        "speech", Conf("ASTModel", "ASTConfig", {**_SMALL_VIT, "max_length": 256}), ("1x256x128",)
    ),
    "keyword_spotter": Network("speech", "keyword_spotter", ("1x1x16000",)),
    "wavenet": Network("speech", "wavenet", ("1x1x4000",)),
    "separator": Network("speech", "separator", ("1x1x16000",)),
    "vocoder": Network("speech", "vocoder", ("1x80x64",)),
    "heart_signals": Network("speech", "heart_signals", ("1x12x1024",)),
    # Rows of numbers.
    "tabular": Network("table", "tabular", ("1x64",)),
    "recommender": Network("table", "recommender", ("numbers:1x13", "places:1x16:int64")),
    "patchtst": Network(
        "table",
        Conf("PatchTSTModel", "PatchTSTConfig",
             {"num_input_channels": 7, "context_length": 336, "patch_length": 16,
              "patch_stride": 8}),
        ("1x336x7",),
    ),
}  # fmt: skip


def build(name: str) -> nn.Module:
    """Return the module of a row, its weights random."""
    network = NETWORKS[name]
    if isinstance(network.build, Conf):
        return _of_transformers(network.build)
    import zoo_maps
    import zoo_signals
    import zoo_vision

    homes = (zoo_vision, zoo_maps, zoo_signals)
    home = next(home for home in homes if hasattr(home, network.build))
    module: nn.Module = getattr(home, network.build)()
    return module


def _of_transformers(conf: Conf) -> nn.Module:
    """Return a module of one tensor to one: the first that the model's answer has."""
    import transformers
    from torch import Tensor, nn

    config = getattr(transformers, conf.config)(**conf.numbers)
    home, _, name = conf.model.rpartition(":")
    source = importlib.import_module(f"transformers.{home}") if home else transformers
    model = getattr(source, name)(config)

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            answer = self.model(x, return_dict=False)
            first: Tensor = answer[0] if isinstance(answer, (tuple, list)) else answer
            return first

    return First()


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Return the factory of a row: what `vermilion export` looks up."""
    if name not in NETWORKS:
        raise AttributeError(name)
    return functools.partial(build, name)
