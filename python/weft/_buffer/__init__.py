"""What the buffers of DeepEP and of MSCCL++ have in common, over tensors of PyTorch's: the wheels that
install their names build upon it."""
