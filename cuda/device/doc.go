// Package device is what kernels and the host have in common: the device headers, and the layout of what kernels leave in host memory.
package device
