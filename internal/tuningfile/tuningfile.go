// Package tuningfile keeps the file in which "weft tune" writes what it has found on a machine: a JSON
// object whose members belong to packages ep and collective. Each changes its own, and keeps the others.
//
// It also names kinds of machines, the profiles, and reads the tables that those packages embed, one for each profile.
package tuningfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weftgo/weft"
)

// Variable names a file, or has the value None.
const (
	Variable = "WEFT_TUNING"
	None     = "none"
)

// Path is the path of the file: the one that the variable names, or else weft/tuning.json in the user's cache
// directory. It is empty if there is to be none.
func Path() (string, error) {
	switch path := os.Getenv(Variable); path {
	case None:
		return "", nil
	case "":
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", nil // a user without a home directory has no file
		}
		return filepath.Join(dir, "weft", "tuning.json"), nil
	default:
		return filepath.Abs(path)
	}
}

// Read reads the members of a file. One that is missing has none.
func Read(path string) (members map[string]json.RawMessage, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tuning: %w", err)
	}
	return Parse(path, b)
}

// Parse is Read of a file whose text is at hand.
func Parse(path string, text []byte) (members map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, Broken(path, err)
	}
	if members == nil {
		return nil, Broken(path, errors.New("it is null"))
	}
	for name, text := range members {
		if string(text) == "null" {
			return nil, Broken(path, fmt.Errorf("%s is null", name))
		}
	}
	return members, nil
}

// Broken is the error of a file with something else in it.
func Broken(path string, err error) error {
	return weft.Invalidf("tuning: %s is no table (%v): remove it, and write another with \"weft tune\"", path, err)
}

// Missing is an error if there is no such file, and a variable or an option names it.
func Missing(path, namedBy string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || namedBy == "" {
		return nil
	}
	return weft.Invalidf("%s names %s, which does not exist: write it with \"weft tune collectives\" or "+
		"\"weft tune ep\", or leave the name empty", namedBy, path)
}

// NamedBy is the variable, if it names the file.
func NamedBy() string {
	if os.Getenv(Variable) == "" {
		return ""
	}
	return Variable
}

// NoTables says whether the variable wants none.
func NoTables() bool { return os.Getenv(Variable) == None }

// Write replaces members of the file in one step, so that readers see a whole one. It follows links.
func Write(path string, changed map[string]any) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	members, err := Read(path)
	if err != nil {
		return err
	}
	all := map[string]any{}
	for name, m := range members {
		all[name] = m
	}
	for name, m := range changed {
		all[name] = m
	}
	b, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("tuning: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tuning-*")
	if err != nil {
		return fmt.Errorf("tuning: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("tuning: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
