"""Problems: what is learned, and how two models are compared."""
