package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

var update = flag.Bool("update", false, "writes the descriptors")

// definitions are the services that a node describes by reflection.
var definitions = []string{
	"epicepoch/v1/oracle.proto",
	"api/v1/api.proto",
	"grpc/health/v1/health.proto",
	"grpc/reflection/v1/reflection.proto",
}

// A node has the descriptors as bytes, so that its build needs no compiler of definitions.
//
//	go test -run Descriptors . -update      after a change of a definition
func TestDescriptorsAreThoseOfTheDefinitions(t *testing.T) {
	root := filepath.Join("..", "..", "..", "crates", "wire", "proto")
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{ImportPaths: []string{root}}}
	files, err := compiler.Compile(context.Background(), definitions...)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		compiled, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(file))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, strings.TrimSuffix(file.Path(), ".proto")+".binpb")
		if *update {
			if err := os.WriteFile(path, compiled, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if stored, err := os.ReadFile(path); err != nil || !bytes.Equal(stored, compiled) {
			t.Errorf("%s is not what %s says (%v): run the test with -update", path, file.Path(), err)
		}
	}
}
