"""The base of the buffers of DeepEP and of MSCCL++, over tensors of PyTorch's: the wheels that install their
names build upon it."""
