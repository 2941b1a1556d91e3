package naming_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weftgo/weft/clib/internal/naming"
)

const root = "../../.."

// packages are those whose errors reach C, and whose exported names C does not have.
var packages = []string{
	".", "bootstrap", "channel", "collective", "collective/internal", "collective/spec", "collective/tuning", "device",
	"engine", "ep", "ep/internal", "ep/spec", "internal/control", "internal/relay", "internal/rankset", "plan/executor",
}

// common are words that are also names of Go's.
var common = map[string]bool{"GPU": true, "GPUs": true, "CUDA": true, "Weft": true, "Open": true, "Refused": true}

// TestInC reads every string of the packages that may be part of an error, and finds no name of Go's in what C
// says instead.
func TestInC(t *testing.T) {
	exported, texts := map[string]bool{}, map[string]token.Position{}
	files := token.NewFileSet()
	for _, name := range packages {
		read(t, files, filepath.Join(root, name), func(f *ast.File) {
			for _, d := range f.Decls {
				collect(d, exported)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
					if text, err := strconv.Unquote(s.Value); err == nil && strings.Contains(text, " ") {
						texts[text] = files.Position(s.Pos())
					}
				}
				return true
			})
		})
	}
	word := regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)
	for text, at := range texts {
		for _, name := range word.FindAllString(naming.InC(text), -1) {
			if exported[name] && !common[name] {
				t.Errorf("%v: %q says %s", at, naming.InC(text), name)
			}
		}
	}
}

func collect(d ast.Decl, names map[string]bool) {
	add := func(n *ast.Ident) {
		if n.IsExported() {
			names[n.Name] = true
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		add(d.Name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					add(n)
				}
			case *ast.TypeSpec:
				add(s.Name)
				if fields, ok := s.Type.(*ast.StructType); ok {
					for _, f := range fields.Fields.List {
						for _, n := range f.Names {
							add(n)
						}
					}
				}
			}
		}
	}
}

// read calls with for every file of a folder that is no test's.
func read(t *testing.T, files *token.FileSet, folder string, with func(*ast.File)) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != folder && (filepath.Base(folder) != "internal" || d.Name() == "supportdoc"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, 0)
		if err == nil {
			with(f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
