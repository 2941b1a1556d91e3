package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strings"
)

const module = "github.com/weftgo/weft"

// packages are those that users import, the likeliest first.
var packages = []string{
	"", "ep", "collective", "plan", "bootstrap", "channel", "cuda", "fabric", "port", "port/service",
	"trace",
}

func goTables(root string) (string, error) {
	var t table
	t.WriteString("# Go's interface\n")
	t.prose("On linux/amd64. `go doc` of each package has the rest. [The guide](../guides/go.md) has a program.")
	for _, name := range packages {
		p, err := load(filepath.Join(root, name), path.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&t, "\n## %s\n", p.Name)
		t.prose(p.Synopsis(p.Doc))
		if len(p.Funcs) > 0 {
			t.head("functions")
			t.functions(p, "", p.Funcs)
		}
		t.head("types")
		for _, of := range p.Types {
			t.row(of.Name, strings.TrimSuffix(p.Synopsis(of.Doc), "."))
			t.functions(p, "", of.Funcs)
			t.functions(p, of.Name+".", of.Methods)
		}
		if names := values(p); len(names) > 0 {
			t.prose("Errors and other variables: " + strings.Join(names, ", ") + ".")
		}
	}
	return t.String(), nil
}

func (t *table) functions(p *doc.Package, prefix string, all []*doc.Func) {
	for _, f := range all {
		if f.Level == 0 && f.Doc != "" { // what only serves an interface has no words
			t.row(prefix+f.Name, strings.TrimSuffix(p.Synopsis(f.Doc), "."))
		}
	}
}

// values are the names of a package's variables.
func values(p *doc.Package) []string {
	var names []string
	for _, v := range p.Vars {
		for _, name := range v.Names {
			if ast.IsExported(name) {
				names = append(names, "`"+name+"`")
			}
		}
	}
	return names
}

// load reads a package as it is on one platform, wherever this runs.
func load(folder, importPath string) (*doc.Package, error) {
	target := build.Default
	target.GOOS, target.GOARCH, target.CgoEnabled = "linux", "amd64", false
	found, err := target.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range found.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(folder, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return doc.NewFromFiles(fset, files, importPath)
}
