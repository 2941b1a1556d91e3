// Package layout holds the structs of kernels to those of the host: it writes static assertions for
// the compiler of the kernels.
package layout

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Of asserts that a struct of C++ has the size of one of Go, and every field that is named at its
// offset and of its size. Names are the same but for their style: turnBytes is turn_bytes. Those
// that are not are in names, by Go's.
func Of(name string, of reflect.Type, names map[string]string) string {
	var b strings.Builder
	b.WriteString(offset)
	fmt.Fprintf(&b, "static_assert(sizeof(%s) == %d, \"%s: size\");\n", name, of.Size(), name)
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Name == "_" {
			continue
		}
		field := names[f.Name]
		if field == "" {
			field = snake(f.Name)
		}
		fmt.Fprintf(&b, "static_assert(WEFT_OFFSET(%s, %s) == %d, \"%s.%s: offset\");\n", name, field, f.Offset, name, field)
		fmt.Fprintf(&b, "static_assert(sizeof(((%s *)0)->%s) == %d, \"%s.%s: size\");\n", name, field,
			f.Type.Size(), name, field)
	}
	return b.String()
}

// offset is an expression that both NVRTC, which lacks offsetof, and the host's compiler accept.
const offset = `#ifndef WEFT_OFFSET
#ifdef __CUDACC_RTC__
#define WEFT_OFFSET(type, field) __INTADDR__(&((type *)0)->field)
#else
#define WEFT_OFFSET(type, field) __builtin_offsetof(type, field)
#endif
#endif
`

// Constants asserts that constants of C++ have these values.
func Constants(values map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "static_assert(%s == %d, \"%s: value\");\n", name, values[name], name)
	}
	return b.String()
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
