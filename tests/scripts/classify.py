"""What pictures show, one after the other: `python classify.py MODEL PICTURE…`."""

import json
import sys

import numpy as np
import onnxruntime as ort
from PIL import Image

LABELS = ("safe", "not safe")
MEAN_BGR = np.array([104, 117, 123], np.float32)


def prepared(path):
    picture = Image.open(path).convert("RGB").resize((256, 256), Image.BILINEAR)
    pixels = np.asarray(picture.crop((16, 16, 240, 240)), np.float32)
    return pixels[:, :, ::-1] - MEAN_BGR


options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.intra_op_num_threads = 2
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
output = session.get_outputs()[0].name
found = []
for path in sys.argv[2:]:
    (scores,) = session.run([output], {name: prepared(path)[None]})
    best = int(scores[0].argmax())
    found.append({"label": LABELS[best], "scores": scores[0].tolist()})
print(json.dumps(found))
