package kernel

// Cubin is compiled code and where it came from. It is a value: copies share the code, and nobody can change it.
type Cubin struct {
	Key Key
	// Name is of the spec that was compiled; another spec of the same key may have another name.
	Name string
	Arch string
	// Library is the [LibraryVersion] that had it compiled.
	Library string
	// Compiler is the compiler's version, in its own words.
	Compiler string
	// Log has what the compiler remarked.
	Log string

	image string
}

// Image is what a driver loads. It is a copy, the caller's own.
func (c Cubin) Image() []byte { return []byte(c.image) }

// Size is the image's, in bytes.
func (c Cubin) Size() int { return len(c.image) }
