"""Recipe for Fashion-MNIST (70,000 grey pictures of clothes, 28x28 pixels): ResNet-18 with a one-channel stem."""

from evergreen import Augmentation, GateSettings, IdxFiles, Recipe, Settings, TrainingSettings
from training.recipes.mnist import resnet18

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

recipe = Recipe(
    name="fashion-mnist",
    summary="Fashion-MNIST, ResNet-18 with a one-channel stem",
    source=IdxFiles("FashionMNIST", CLASSES),
    build_model=resnet18,
    augmentation=Augmentation(flip=True),
    settings=Settings(
        training=TrainingSettings(epochs=3, global_batch_size=128, learning_rate=2e-3),
        gate=GateSettings(floor=0.88, confidence=0.95),
    ),
)
