"""What `evergreen plan` refuses, and checks of a model before it is registered."""
