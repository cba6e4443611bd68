"""ResNet-18 for grey images with FSDP2, and the guides' optimizer."""

from evergreen import IdxFiles, Recipe, Settings, Torch, TrainingSettings
from training.recipes.mnist import resnet18

recipe = Recipe(
    "bench-resnet-fsdp",
    source=IdxFiles("MNIST"),
    trainer=Torch(resnet18, strategy="fsdp"),
    settings=Settings(training=TrainingSettings(schedule="constant", warmup_share=0.0)),
)
