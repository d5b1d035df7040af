package chart

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"

	"epicepoch/chart/render"
)

// TestTheComposeFileIsWhatItSays reads deploy/compose.yaml with the code of Docker Compose.
func TestTheComposeFileIsWhatItSays(t *testing.T) {
	directory := filepath.Join(render.Root(), "deploy")
	text, err := os.ReadFile(filepath.Join(directory, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := compose(directory, string(text))
	if err != nil {
		t.Fatal(err)
	}
	files := certificates(t, pod)
	for _, name := range []string{"n1", "n2", "n3"} {
		node := project.Services[name]
		if !node.ReadOnly || !slices.Equal(node.CapDrop, []string{"ALL"}) {
			t.Errorf("%s has a root that can be written, or capabilities", name)
		}
		variables := map[string]string{}
		for variable, value := range node.Environment {
			variables[variable] = *value
		}
		report, code := check(t, files, variables)
		if code == 2 {
			t.Errorf("%s: %v", name, report.Problems)
		}
		for variable := range variables {
			if report.Sources[variable] == "" {
				t.Errorf("%s: %s is no setting of the program", name, variable)
			}
		}
	}
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s mounts a file that does not exist: %v", name, err)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s can be reached from other machines at port %s", name, port.Published)
			}
		}
	}
	provisioned(t, directory, project)
	mistakes := map[string]string{
		"read_only:": "readonly:", "[epicepoch]": "[epicepochs]", "[n1, n2, n3]": "[n1, n4]", "<<: *node": "<<: *nodes",
	}
	for old, new := range mistakes {
		changed := strings.Replace(string(text), old, new, 1)
		if _, err := compose(directory, changed); err == nil || changed == string(text) {
			t.Errorf("%s in place of %s is not refused", new, old)
		}
	}
}

// provisioned checks that the files for Grafana name a service and a mounted directory.
func provisioned(t *testing.T, directory string, project *types.Project) {
	t.Helper()
	var sources struct{ Datasources []struct{ URL string } }
	var dashboards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	for name, into := range map[string]any{"datasource.yaml": &sources, "dashboards.yaml": &dashboards} {
		text, err := os.ReadFile(filepath.Join(directory, "compose", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	source, err := url.Parse(sources.Datasources[0].URL)
	if err != nil || project.Services[source.Hostname()].Name == "" {
		t.Errorf("no service for Grafana's data source: %v", sources)
	}
	path, mounts := dashboards.Providers[0].Options.Path, 0
	for _, volume := range project.Services["grafana"].Volumes {
		if filepath.Dir(volume.Target) == path && strings.HasSuffix(volume.Source, "grafana/epicepoch.json") {
			mounts++
		}
	}
	if mounts != 1 {
		t.Errorf("Grafana looks for dashboards in %s, where none is mounted", path)
	}
}

func compose(directory, text string) (*types.Project, error) {
	details := types.ConfigDetails{
		WorkingDir:  directory,
		Environment: types.Mapping{},
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(directory, "compose.yaml"), Content: []byte(text)}},
	}
	return loader.LoadWithContext(context.Background(), details)
}
