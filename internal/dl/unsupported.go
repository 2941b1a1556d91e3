//go:build !darwin && !(linux && (amd64 || arm64))

package dl

func openHandle(string, Visibility) (uintptr, error) { return 0, ErrUnsupported }

func lookup(uintptr, string) (uintptr, error) { return 0, ErrUnsupported }

// No Func exists where no library opens.
func (f Func) call(Func, uintptr, []uintptr) uintptr { panic("dl: " + ErrUnsupported.Error()) }

// CallStruct is for libraries that this platform does not have.
func (f Func) CallStruct(uintptr, []uint64, uintptr) uintptr { panic("dl: " + ErrUnsupported.Error()) }
