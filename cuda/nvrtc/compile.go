package nvrtc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftgo/weft/internal/dl"
)

// Program is a program and how to compile it. It is data: Compile changes none of it.
type Program struct {
	// Name stands for the source's file name in messages.
	Name   string
	Source string
	// Headers are the headers for #include, by name.
	Headers map[string]string
	// Architecture is the target: sm_90a gives a cubin for that device, compute_90 gives PTX for it
	// and later ones.
	Architecture string
	// Options are NVRTC's own, as --std=c++17, -DHIDDEN=7168 or -lineinfo, but not the
	// architecture's.
	Options []string
	// Kernels are C++ names of kernels, such as scale<float> or layer::scale; [Binary].Symbols has
	// their symbols. Those that are extern "C" need none: their names are their symbols.
	Kernels []string
}

// Binary is the output for a program.
type Binary struct {
	// Image is the code that a driver loads: a cubin, or PTX text for a compute_ architecture.
	Image []byte
	// PTX says that Image is PTX.
	PTX bool
	// Log has the compiler's warnings.
	Log string
	// Symbols are the driver's names of the program's Kernels, in their order.
	Symbols []string
}

// Compile compiles a program. An error in the program's text or options is a [*CompileError].
func (c *Compiler) Compile(ctx context.Context, p Program) (*Binary, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done(): // select takes any that is ready
		return nil, fmt.Errorf("compile %s: %w", p.Name, context.Cause(ctx))
	default:
	}
	select {
	case c.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("compile %s: %w", p.Name, context.Cause(ctx))
	}
	defer func() { <-c.turns }()
	return c.compile(p)
}

func (p Program) check() error {
	if !strings.HasPrefix(p.Architecture, "sm_") && !strings.HasPrefix(p.Architecture, "compute_") {
		return fmt.Errorf("compile %s: architecture %q: want one as sm_90a or compute_90", p.Name, p.Architecture)
	}
	texts := slices.Concat([]string{p.Name, p.Source, p.Architecture}, p.Options, p.Kernels)
	for name, text := range p.Headers {
		texts = append(texts, name, text)
	}
	for _, text := range texts {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("compile %s: a NUL in its text, headers, options or kernels", p.Name)
		}
	}
	return nil
}

func (c *Compiler) compile(p Program) (b *Binary, err error) {
	handle := new(program)
	names := slices.Sorted(maps.Keys(p.Headers))
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = p.Headers[name]
	}
	err = check("nvrtcCreateProgram", c.table.create(handle, text(p.Source), text(p.Name), int32(len(names)),
		list(texts), list(names)))
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	defer func() {
		if destroyed := check("nvrtcDestroyProgram", c.table.destroy(handle)); destroyed != nil {
			err = errors.Join(err, destroyed)
		}
	}()

	for _, name := range p.Kernels {
		if err := check("nvrtcAddNameExpression", c.table.addName(*handle, text(name))); err != nil {
			return nil, fmt.Errorf("compile %s: kernel %s: %w", p.Name, name, err)
		}
	}
	options := append([]string{"--gpu-architecture=" + p.Architecture}, p.Options...)
	r := c.table.compile(*handle, int32(len(options)), list(options))
	log, err := c.read("nvrtcGetProgramLog", *handle, c.table.logSize, c.table.log)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	b = &Binary{Log: strings.TrimRight(string(log), "\x00\n"), PTX: strings.HasPrefix(p.Architecture, "compute_")}
	switch {
	case r == errorCompilation || r == errorOption:
		return nil, &CompileError{Program: p.Name, Architecture: p.Architecture, Log: b.Log}
	case r != success:
		return nil, fmt.Errorf("compile %s: %w", p.Name, check("nvrtcCompileProgram", r))
	}
	for _, name := range p.Kernels {
		symbol := new(*byte) // the program's
		if err := check("nvrtcGetLoweredName", c.table.lowered(*handle, text(name), symbol)); err != nil {
			return nil, fmt.Errorf("compile %s: kernel %s: %w", p.Name, name, err)
		}
		b.Symbols = append(b.Symbols, dl.GoString(*symbol))
	}
	if b.PTX {
		b.Image, err = c.read("nvrtcGetPTX", *handle, c.table.ptxSize, c.table.ptx)
	} else {
		b.Image, err = c.read("nvrtcGetCUBIN", *handle, c.table.cubinSize, c.table.cubin)
	}
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	return b, nil
}

// read gets one of the texts that NVRTC keeps with a program.
func (c *Compiler) read(call string, p program, size func(program, *uint64) result,
	get func(program, *byte) result,
) ([]byte, error) {
	n := new(uint64)
	if err := check(call+"Size", size(p, n)); err != nil {
		return nil, err
	}
	if *n == 0 {
		return nil, nil
	}
	out := make([]byte, *n)
	return out, check(call, get(p, &out[0]))
}

// text is s as C reads it.
func text(s string) *byte { return &append([]byte(s), 0)[0] }

// list is an array of texts as C reads it; an empty one is a null pointer.
func list(texts []string) **byte {
	if len(texts) == 0 {
		return nil
	}
	array := make([]*byte, len(texts))
	for i, s := range texts {
		array[i] = text(s)
	}
	return &array[0]
}
