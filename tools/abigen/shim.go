package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// exports are the functions that Go exports to C, and whether they take, at the end, how long they
// may wait.
func exports(folder string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			for _, c := range f.Doc.List {
				if name, ok := strings.CutPrefix(c.Text, "//export "); ok {
					found[name] = timed(f.Type.Params.List)
				}
			}
		}
	}
	return found, nil
}

// timed says whether the last parameter is ms.
func timed(params []*ast.Field) bool {
	if len(params) == 0 {
		return false
	}
	names := params[len(params)-1].Names
	return len(names) > 0 && names[len(names)-1].Name == "ms"
}

// shim is shim.c. What Go does not export is C's own.
func (h *header) shim(exported map[string]bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, `// %s

//go:build cgo && linux

// The functions of weft.h that need Go. Each looks whether this process is a child of fork, where Go
// must not be entered, and calls its namesake in Go, which the linker keeps inside the library.
// Handles cross as the numbers that they are.

#include "_cgo_export.h"
#include "internal.h"

#define ID(handle) ((uint64_t)(uintptr_t)(handle))
#define CALL(call) (weft_status)(__builtin_expect(libweft_forked, 0) ? libweft_refuse_child() : (call))

`, notice)
	for _, f := range h.functions {
		waits, ok := exported["go"+f.name]
		if !ok {
			continue
		}
		var params, arguments []string
		for _, v := range f.params {
			argument := v.name
			switch {
			case h.types[v.base] == handle && v.pointers == 0:
				argument = "ID(" + v.name + ")"
			case v.constant && v.pointers > 0: // cgo knows no const
				argument = "(" + spell(variable{base: v.base, pointers: v.pointers}) + ")" + v.name
			}
			params, arguments = append(params, spell(v)), append(arguments, argument)
		}
		if waits {
			arguments = append(arguments, "libweft_timeout")
		}
		if params == nil {
			params = []string{"void"}
		}
		b.WriteString(list(spell(f.result)+f.name+"(", params, ") {\n"))
		b.WriteString(list("\treturn CALL(go"+f.name+"(", arguments, "));\n}\n\n"))
	}
	b.WriteString("const char *weft_status_name(int status) {\n\tswitch (status) {\n")
	for _, e := range h.enums {
		if e.name == "weft_status" {
			for _, m := range e.members {
				fmt.Fprintf(&b, "\tcase %s:\n\t\treturn %q;\n", m.name, m.name)
			}
		}
	}
	b.WriteString("\t}\n\treturn \"no status of weft\";\n}\n")
	return b.String()
}

// spell is a variable as C declares it.
func spell(v variable) string {
	text := v.base + " " + strings.Repeat("*", v.pointers) + v.name
	if v.constant {
		text = "const " + text
	}
	return text
}

// list puts things between a beginning and an end, in lines of 100 characters.
func list(begin string, things []string, end string) string {
	line := begin
	var b strings.Builder
	for i, thing := range things {
		if i < len(things)-1 {
			thing += ", "
		}
		if len(line)+len(thing)+len(strings.TrimSpace(end)) > 100 {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = "\t\t"
		}
		line += thing
	}
	return b.String() + line + end
}
