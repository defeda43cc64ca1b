"""Which sentence is nearest to the first one: `python embed.py MODEL TOKENIZER SENTENCE…`."""

import json
import sys

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[2])
tokenizer.no_truncation()
tokenizer.enable_padding()
session = onnxruntime.InferenceSession(sys.argv[1], providers=onnxruntime.get_available_providers())
wanted = {value.name for value in session.get_inputs()}


def embedded(sentences):
    tokens = tokenizer.encode_batch(sentences)
    feed = {
        "input_ids": np.array([one.ids for one in tokens], np.int64),
        "attention_mask": np.array([one.attention_mask for one in tokens], np.int64),
        "token_type_ids": np.array([one.type_ids for one in tokens], np.int64),
    }
    hidden = session.run(None, {name: feed[name] for name in wanted})[0]
    mask = feed["attention_mask"][:, :, None].astype(np.float32)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


vectors = embedded(sys.argv[3:])
alone = embedded(sys.argv[3:4])[0]  # another batch, another length
likeness = (vectors[1:] @ alone).tolist()
print(json.dumps({"nearest": int(np.argmax(likeness)), "scores": likeness}))
