package kernel

import "strings"

// Cubin is compiled code and where it came from. It is an immutable value: copies share the code.
type Cubin struct {
	Key Key
	// Name is of the spec that was compiled; another spec of the same key may have another name.
	Name string
	Arch string
	// Library is the [LibraryVersion] that had it compiled.
	Library string
	// Compiler is the compiler's version, in its own words.
	Compiler string
	// Log has the compiler's remarks.
	Log string

	symbols, image string
}

// Image is the code that a driver loads. It is a copy, the caller's own.
func (c Cubin) Image() []byte { return []byte(c.image) }

// Symbol is the driver's name of a kernel that the spec's Kernels name. Any other name is that of
// an extern "C" kernel, and a symbol itself.
func (c Cubin) Symbol(kernel string) string {
	for line := range strings.Lines(c.symbols) {
		if symbol, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); name == kernel {
			return symbol
		}
	}
	return kernel
}

// symbolTable has a line for each kernel: its symbol, a tab, its name.
func symbolTable(kernels, symbols []string) string {
	var table strings.Builder
	for i, kernel := range kernels {
		table.WriteString(symbols[i] + "\t" + kernel + "\n")
	}
	return table.String()
}

// Size is the image's, in bytes.
func (c Cubin) Size() int { return len(c.image) }
