package weft_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	// readVariable matches what reads a variable of the environment, or names one that is read.
	readVariable = regexp.MustCompile(`(?:[gG]etenv|LookupEnv)\(\s*"(\w+)"\)|os\.environ(?:\.get\(|\[)"(\w+)"|` +
		`"(\w+)" in os\.environ|\bv\.(?:has|text|number|numberOr)\("(\w+)"|` +
		`(?:Variable|Env|env\w+)\s*=\s*"(WEFT_\w+)"|\$\{?(WEFT_\w+)`)
	rows      = regexp.MustCompile("(?m)^\\| (`[A-Z][^|]*) \\|")
	variables = regexp.MustCompile("`([A-Z][A-Z0-9_]+)`")
	// betweenTests matches what tests say to processes that they start.
	betweenTests = regexp.MustCompile(`_TEST_|^WEFT_TEST_(MAIN|PART)$|^WEFT_EMULATED$`)
)

// documented are the variables in the first columns of a page's tables.
func documented(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, row := range rows.FindAllStringSubmatch(string(text), -1) {
		for _, v := range variables.FindAllStringSubmatch(row[1], -1) {
			all[v[1]] = true
		}
	}
	return all
}

// TestEnvironment: each variable that the code reads is on a page, and the code reads what pages have.
func TestEnvironment(t *testing.T) {
	if testing.Short() {
		t.Skip("the whole tree is read")
	}
	var code strings.Builder
	product, tests := map[string]string{}, map[string]string{} // by variable: a file that reads it
	sources(t, func(path, text string) {
		code.WriteString(text)
		into := product
		for _, part := range []string{
			"_test.go", "python/tests/", "cuda/cudatest/", "fabric/fabrictest/", "fabric/verbstest/", "internal/ranktest/",
			"scripts/", "examples/", "python/backend.py",
		} {
			if strings.Contains(path, part) {
				into = tests
			}
		}
		for _, m := range readVariable.FindAllStringSubmatch(text, -1) {
			into[strings.Join(m[1:], "")] = path
		}
	}, ".go", ".py", ".c", ".h", ".sh", "Makefile")

	const page = "docs/guides/troubleshooting.md"
	users, developers := documented(t, page), documented(t, "CONTRIBUTING.md")
	for name, path := range product {
		if !users[name] {
			t.Errorf("%s reads %s, which is not in %s", path, name, page)
		}
	}
	for name, path := range tests {
		if strings.HasPrefix(name, "WEFT_") && name != "WEFT_REQUIRE_" && !users[name] && !developers[name] &&
			!betweenTests.MatchString(name) {
			t.Errorf("%s reads %s, which is not in CONTRIBUTING.md", path, name)
		}
	}
	all := code.String()
	for _, names := range []map[string]bool{users, developers} {
		for name := range names {
			_, reads := product[name]
			_, reading := tests[name]
			whole := strings.Contains(all, `"`+name+`"`) || strings.Contains(all, "prefix+\""+strings.TrimPrefix(name,
				"OMPI_COMM_WORLD_")+`"`)
			required := strings.HasPrefix(name, "WEFT_REQUIRE_") // scripts/parts.sh makes these names
			if !reads && !reading && !whole && !required {
				t.Errorf("nothing reads %s", name)
			}
		}
	}
}
