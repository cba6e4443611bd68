"""ResNet-18 for grey images with DeepSpeed's ZeRO 2, and the guides' optimizer."""

from evergreen import IdxFiles, Recipe, Settings, Torch, TrainingSettings
from training.recipes.mnist import resnet18

recipe = Recipe(
    "bench-resnet-deepspeed",
    source=IdxFiles("MNIST"),
    trainer=Torch(resnet18, strategy="deepspeed"),
    settings=Settings(training=TrainingSettings(schedule="constant", warmup_share=0.0)),
)
