// Package pythons finds the environments of Python, whose packages bring shared libraries.
package pythons

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Search is where environments are looked for.
type Search struct {
	Root  string   // of the file system: "/" but in tests
	Home  string   // of the user
	Named []string // environments that variables name
	Path  []string // folders of PATH
}

// FromEnvironment is a Search by the program and the variables of this process.
func FromEnvironment() Search {
	s := Search{Root: "/", Path: filepath.SplitList(os.Getenv("PATH"))}
	s.Home, _ = os.UserHomeDir() // without one there is nothing to look for there
	s.Named = Own()
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if prefix := os.Getenv(name); prefix != "" {
			s.Named = append(s.Named, prefix)
		}
	}
	return s
}

// Own is the environment that this program is installed in, if that is one of its own: a program that is started by its
// path says so by nothing else. Of an interpreter only the name that it was started by leads there.
func Own() (prefixes []string) {
	program, err := os.Executable()
	if err != nil {
		program = ""
	}
	for _, program := range []string{argument0(), program} {
		prefix := filepath.Dir(filepath.Dir(program))
		for _, mark := range []string{"pyvenv.cfg", "conda-meta"} {
			if _, err := os.Stat(filepath.Join(prefix, mark)); err == nil && filepath.IsAbs(program) {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	return prefixes
}

// argument0 is the name that the process was started by. A library may not know.
func argument0() string {
	if len(os.Args) == 0 {
		return ""
	}
	return os.Args[0]
}

// Prefixes are the environments, each once, in the order of preference. They need not exist.
func (s Search) Prefixes() (prefixes []string) {
	prefixes = slices.Clone(s.Named)
	for _, name := range []string{"python3", "python"} {
		for _, folder := range s.Path {
			program := filepath.Join(folder, name)
			if _, err := exec.LookPath(program); err != nil {
				continue
			}
			prefixes = append(prefixes, filepath.Dir(folder)) // a virtual environment is where the link is
			if target, err := filepath.EvalSymlinks(program); err == nil {
				prefixes = append(prefixes, filepath.Dir(filepath.Dir(target)))
			}
			break
		}
	}
	if s.Home != "" {
		prefixes = append(prefixes, filepath.Join(s.Home, ".local"))
	}
	prefixes = append(prefixes, filepath.Join(s.Root, "usr/local"), filepath.Join(s.Root, "usr"))
	kept := prefixes[:0]
	for _, prefix := range prefixes {
		if !slices.Contains(kept, prefix) {
			kept = append(kept, prefix)
		}
	}
	return kept
}
