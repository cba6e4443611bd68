"""Images: decoding files to pixels, and normalisation and augmentation of pixels for the model."""
