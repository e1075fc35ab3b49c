"""Scripts for `fit` of Keras 3 on torch, with Skep's line: `keras_fit.py NAME`."""

from __future__ import annotations

import sys

import keras
import numpy as np
import torch
from digest import tell
from torch.utils.data import DataLoader, TensorDataset

from skep_job.keras_callback import SkepCallback

keras.utils.set_random_seed(0)
rows = np.random.default_rng(0).normal(size=(240, 32)).astype("float32")
classes = np.arange(240) % 3
if sys.argv[1] == "sequential":
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(1e-3, 120)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    model.fit(rows, classes, batch_size=4, epochs=2, verbose=2, callbacks=[SkepCallback()])
else:
    given = keras.Input((32,))
    inner = keras.layers.BatchNormalization()(keras.layers.Dense(32)(given))
    model = keras.Model(given, keras.layers.Dense(3)(keras.layers.Dropout(0.2)(inner)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    data = TensorDataset(torch.from_numpy(rows), torch.from_numpy(classes))
    model.fit(
        DataLoader(data, batch_size=4, shuffle=True),
        epochs=2,
        verbose=2,
        validation_data=(rows[:16], classes[:16]),
        callbacks=[SkepCallback()],
    )
tell(torch.as_tensor(keras.ops.convert_to_numpy(each)) for each in model.weights)
