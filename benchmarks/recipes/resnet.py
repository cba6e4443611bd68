"""ResNet-18 for grey images, built as in the guides; without augmentation, so that other programs can do the same."""

from evergreen import IdxFiles, Recipe
from training.recipes.mnist import resnet18

recipe = Recipe("bench-resnet", "ResNet-18 on images of a benchmark", IdxFiles("MNIST"), build_model=resnet18)
