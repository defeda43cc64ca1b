"""The names of `onnxruntime_genai`, on our own engines: `import vermilion.genai as og`."""

from vermilion.genai.generator import Generator, GeneratorParams, Tensor
from vermilion.genai.model import Config, Model
from vermilion.genai.tokenizer import Tokenizer, TokenizerStream

__all__ = [
    "Config",
    "Generator",
    "GeneratorParams",
    "Model",
    "Tensor",
    "Tokenizer",
    "TokenizerStream",
]
