"""Real networks with random weights: `planner plan examples.networks:googlenet`, or call the factory.

A factory takes the batch, and its own options after it, and returns the module in eval mode with example inputs whose
first dimension is the batch. Two calls give the same weights and inputs. For the shapes of a network too large for
memory call it inside `with torch.device("meta")`.
"""

from examples.networks.caffe import alexnet, googlenet, nin
from examples.networks.factory import Factory, Network
from examples.networks.inception import inception_v3
from examples.networks.resnet import resnet50, resnet152
from examples.networks.seq2seq import lstm_seq2seq
from examples.networks.small import cifar10, mlp, mnist
from examples.networks.transformer import bert_base, gpt2, llama, mixtral, t5, two_tower, vit_b16, whisper
from examples.networks.vgg import vgg16, vgg19

NETWORKS: dict[str, Factory] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "mlp": mlp,
    "alexnet": alexnet,
    "nin": nin,
    "googlenet": googlenet,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "resnet50": resnet50,
    "resnet152": resnet152,
    "inception_v3": inception_v3,
    "lstm_seq2seq": lstm_seq2seq,
    "bert_base": bert_base,
    "two_tower": two_tower,
    "gpt2": gpt2,
    "vit_b16": vit_b16,
    "llama": llama,
    "mixtral": mixtral,
    "t5": t5,
    "whisper": whisper,
}
"""Every network of this package by the name of its factory."""

__all__ = [
    "NETWORKS",
    "Factory",
    "Network",
    "alexnet",
    "bert_base",
    "cifar10",
    "googlenet",
    "gpt2",
    "inception_v3",
    "llama",
    "lstm_seq2seq",
    "mixtral",
    "mlp",
    "mnist",
    "nin",
    "resnet50",
    "resnet152",
    "t5",
    "two_tower",
    "vgg16",
    "vgg19",
    "vit_b16",
    "whisper",
]
