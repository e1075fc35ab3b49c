"""Ends badly on the GPU, by what the first argument names: `memory`, `access`."""

import sys

import torch

GIB = 2**30


class Beyond:
    """Says that an array of one TiB begins where a tensor of some bytes does."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (1024 * GIB,),
            "typestr": "|u1",
            "version": 2,
        }


print("begins", flush=True)
if not torch.cuda.is_available():
    print({"memory": "torch.OutOfMemoryError", "access": "illegal memory access"}[sys.argv[1]])
    sys.exit(1)
small = torch.zeros(1024, dtype=torch.uint8, device="cuda")
if sys.argv[1] == "memory":
    torch.empty(1024 * GIB, dtype=torch.uint8, device="cuda")
torch.as_tensor(Beyond(small), device="cuda")[-1024:].add_(1)
torch.cuda.synchronize()
