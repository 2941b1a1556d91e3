package nvrtc

import "github.com/weftgo/weft/internal/dl"

type (
	result  int32
	program uintptr
)

// table has the library's functions.
type table struct {
	version   func(major, minor *int32) result
	archCount func(count *int32) result
	archs     func(first *int32) result
	create    func(p *program, source, name *byte, headers int32, texts, names **byte) result
	addName   func(p program, name *byte) result
	compile   func(p program, options int32, texts **byte) result
	destroy   func(p *program) result
	cubinSize func(p program, size *uint64) result
	cubin     func(p program, out *byte) result
	ptxSize   func(p program, size *uint64) result
	ptx       func(p program, out *byte) result
	logSize   func(p program, size *uint64) result
	log       func(p program, out *byte) result
	lowered   func(p program, name *byte, out **byte) result
}

// bind fills in the table. The error names the first symbol that the library does not have.
func (t *table) bind(library *dl.Library) (err error) {
	find := func(symbol string) dl.Func {
		f, missing := library.Lookup(symbol)
		if err == nil {
			err = missing
		}
		return f
	}
	size := func(symbol string) func(program, *uint64) result {
		return dl.Bind2[program, *uint64, result](find(symbol))
	}
	read := func(symbol string) func(program, *byte) result { return dl.Bind2[program, *byte, result](find(symbol)) }
	t.version = dl.Bind2[*int32, *int32, result](find("nvrtcVersion"))
	t.archCount = dl.Bind1[*int32, result](find("nvrtcGetNumSupportedArchs"))
	t.archs = dl.Bind1[*int32, result](find("nvrtcGetSupportedArchs"))
	t.create = dl.Bind6[*program, *byte, *byte, int32, **byte, **byte, result](find("nvrtcCreateProgram"))
	t.addName = read("nvrtcAddNameExpression")
	t.compile = dl.Bind3[program, int32, **byte, result](find("nvrtcCompileProgram"))
	t.destroy = dl.Bind1[*program, result](find("nvrtcDestroyProgram"))
	t.cubinSize, t.cubin = size("nvrtcGetCUBINSize"), read("nvrtcGetCUBIN")
	t.ptxSize, t.ptx = size("nvrtcGetPTXSize"), read("nvrtcGetPTX")
	t.logSize, t.log = size("nvrtcGetProgramLogSize"), read("nvrtcGetProgramLog")
	t.lowered = dl.Bind3[program, *byte, **byte, result](find("nvrtcGetLoweredName"))
	return err
}
