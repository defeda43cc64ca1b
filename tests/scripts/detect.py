"""Where text stands in a picture: `python detect.py MODEL PICTURE`."""

import json
import sys

import numpy as np
import onnxruntime as rt
from PIL import Image

THRESHOLD = 0.3


def boxes(is_text):
    """Return the corners of connected regions, row by row."""
    left = is_text.copy()
    found = []
    while left.any():
        stack = [tuple(int(at) for at in np.argwhere(left)[0])]
        left[stack[0]] = False
        ys, xs = [], []
        while stack:
            y, x = stack.pop()
            ys.append(y)
            xs.append(x)
            for at in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                inside = 0 <= at[0] < left.shape[0] and 0 <= at[1] < left.shape[1]
                if inside and left[at]:
                    left[at] = False
                    stack.append(at)
        found.append([min(xs), min(ys), max(xs), max(ys)])
    return found


with open(sys.argv[1], "rb") as file:
    session = rt.InferenceSession(file.read(), None, ["CPUExecutionProvider"])
picture = Image.open(sys.argv[2]).convert("RGB")
pixels = np.asarray(picture, np.float32) / 255
planes = ((pixels - 0.5) / 0.5).transpose(2, 0, 1)[None]
value = rt.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(planes))
binding = session.io_binding()
binding.bind_ortvalue_input(session.get_inputs()[0].name, value)
binding.bind_output(session.get_outputs()[0].name)
session.run_with_iobinding(binding)
(scores,) = binding.copy_outputs_to_cpu()
print(json.dumps({"boxes": boxes(scores[0, 0] > THRESHOLD), "scores": scores.ravel().tolist()}))
