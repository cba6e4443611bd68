"""Images: decoding, and what happens to their pixels on the way to the model."""
