"""Train a small network on the digits of scikit-learn, and print the accuracy after each pass."""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--passes", type=int, default=8)
options = parser.parse_args()

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(images / 16.0, labels, test_size=0.25, random_state=7)
network = MLPClassifier(hidden_layer_sizes=(options.hidden,), random_state=7)
began = time.perf_counter()
for number in range(1, options.passes + 1):
    network.partial_fit(train_x, train_y, classes=range(10))
    accuracy = network.score(test_x, test_y)
    print(f"pass {number:2d}: loss {network.loss_:.3f}, accuracy {accuracy:.3f}", flush=True)
    time.sleep(0.3)
print(f"done in {time.perf_counter() - began:.1f} s on {len(train_x)} images", flush=True)
