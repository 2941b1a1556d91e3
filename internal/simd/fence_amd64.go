package simd

// StoreFence orders the streaming stores before it with every later store (SFENCE).
func StoreFence()
