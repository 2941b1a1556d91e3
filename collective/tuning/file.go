package tuning

import (
	"encoding/json"

	"github.com/weftgo/weft/internal/tuningfile"
)

// member is that of tables in the file.
const member = "collectives"

// None, in place of a file, is no file: tables are those of this package.
const None = tuningfile.None

// Path is the path of the file that groups read unless they are told another one: see the package
// documentation. It is empty if there is none.
func Path() (string, error) { return tuningfile.Path() }

// Read reads the tables of a file, by profile. A missing file has none. Tables of another version are left
// out.
func Read(path string) (map[string]*Table, error) {
	members, err := tuningfile.Read(path)
	if err != nil || members[member] == nil {
		return nil, err
	}
	var texts map[string]json.RawMessage
	if err := json.Unmarshal(members[member], &texts); err != nil {
		return nil, tuningfile.Broken(path, err)
	}
	all := map[string]*Table{}
	for profile, text := range texts {
		var head struct{ Version int }
		if json.Unmarshal(text, &head) == nil && head.Version != 0 && head.Version != version {
			continue
		}
		if all[profile], err = Parse(profile, text); err != nil {
			return nil, tuningfile.Broken(path, err)
		}
	}
	return all, nil
}

// Write replaces the tables of a file in one step. It keeps what is of others in the file.
func Write(path string, tables map[string]*Table) error {
	for profile, t := range tables {
		t.Version = version
		if err := t.check(profile); err != nil {
			return err
		}
	}
	return tuningfile.Write(path, map[string]any{member: tables})
}

// Find is the table of a profile in the file that a group is told: a path, [None], or empty for the one that
// Path gives. What the file does not say is as in this package's table. found is false if the file has no
// table of the profile.
func Find(file, profile string) (t *Table, found bool, err error) {
	base := Builtin(profile)
	if file == None {
		return base, false, nil
	}
	namedBy := "Options.Tuning"
	if file == "" {
		namedBy = tuningfile.NamedBy()
		if file, err = Path(); file == "" || err != nil {
			return base, false, err
		}
	}
	if err := tuningfile.Missing(file, namedBy); err != nil {
		return nil, false, err
	}
	tables, err := Read(file)
	if err != nil {
		return nil, false, err
	}
	if t = tables[profile]; t == nil {
		return base, false, nil
	}
	return t.Over(base), true, nil
}
