//go:build darwin || (linux && (amd64 || arm64))

package dl

import "github.com/ebitengine/purego"

func openHandle(name string, v Visibility) (uintptr, error) {
	mode := purego.RTLD_NOW | purego.RTLD_LOCAL
	if v == Global {
		mode = purego.RTLD_NOW | purego.RTLD_GLOBAL
	}
	return purego.Dlopen(name, mode)
}

func lookup(handle uintptr, symbol string) (uintptr, error) { return purego.Dlsym(handle, symbol) }
