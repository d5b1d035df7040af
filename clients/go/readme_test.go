package epicepoch

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unindented returns the text without the white space at the ends of its lines.
func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for at := range lines {
		lines[at] = strings.TrimSpace(lines[at])
	}
	return strings.Join(lines, "\n")
}

func blocks(t *testing.T, language string) []string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, one := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		found = append(found, one[1])
	}
	return found
}

// The compiler checks the examples, and this test compares the README with them.
func TestTheCodeOfTheReadmeIsThatOfTheExamples(t *testing.T) {
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := blocks(t, "go")
	if len(code) != 4 {
		t.Errorf("%d blocks of code", len(code))
	}
	for _, block := range code {
		if !strings.Contains(unindented(string(examples)), unindented(block)) {
			t.Errorf("in no example:\n%s", block)
		}
	}
}

// A program in another module depends on the client as the README says. Nothing is downloaded.
func TestAnotherModuleDependsOnTheClientAsTheReadmeSays(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	program := `package main

import (
	"fmt"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

func main() { fmt.Println(epicepoch.Timestamp{Epoch: 1, Index: 2}) }
`
	commands := strings.ReplaceAll(blocks(t, "sh")[0], "/path/to/epicepoch/clients/go", "'"+here+"'")
	for _, manner := range []string{
		commands + "go run .",
		commands + "go mod vendor\ngo run -mod=vendor .",
		"go work init .\ngo work use '" + here + "'\ngo run .",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		shell := exec.Command("sh", "-euc", "go mod init example.com/program\n"+manner)
		shell.Dir = dir
		shell.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=")
		said, err := shell.CombinedOutput()
		if err != nil || !strings.HasSuffix(string(said), "00000000000000010000000000000002\n") {
			t.Errorf("%s: %v\n%s", manner, err, said)
		}
	}
}
