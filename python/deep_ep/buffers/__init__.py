"""The buffers, under DeepEP's names of their modules."""
