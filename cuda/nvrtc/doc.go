// Package nvrtc compiles CUDA C++ at run time with NVIDIA's NVRTC. It needs neither a GPU nor
// CUDA's headers nor nvcc.
//
//	compiler, err := nvrtc.Open()
//	binary, err := compiler.Compile(ctx, nvrtc.Program{Name: "scale.cu", Source: source, Architecture: "sm_90a"})
//	module, err := context.LoadModule(binary.Image)
//
// # Where NVRTC is found
//
// The driver does not bring it. [Open] takes the first that loads of:
//
//  1. WEFT_NVRTC, if set: the library itself or the folder that it is in. Nothing else is tried
//     then.
//  2. The libraries that the system's loader finds as libnvrtc.so.13, libnvrtc.so.12 or
//     libnvrtc.so.
//  3. CUDA toolkits: /usr/local/cuda*/lib64 and /usr/local/cuda*/targets/*/lib, newest first.
//  4. Python packages (of pip install nvidia-cuda-nvrtc, and PyTorch's): nvidia/*/lib and torch/lib
//     under site-packages and dist-packages. The folders are those of VIRTUAL_ENV and CONDA_PREFIX,
//     of the python3 or python on PATH (beside it and where it links to; it is not started), of
//     ~/.local, /usr and /usr/local.
//
// The library keeps a part of itself in a second file, libnvrtc-builtins, which it looks for where
// the loader does, not beside itself. So a library that was found by its path has the second one of
// its folder loaded before it.
//
// # Threads, time, memory
//
// A [Compiler] may be used by any number of goroutines. As many compilations run at once as there
// are processors; the others wait for their turn or the end of their context. One that has begun is
// not interrupted: a small kernel takes tens of milliseconds.
//
// Nothing is kept: a cache goes around Compile, keyed by the whole [Program], as package
// cuda/kernel does.
package nvrtc
