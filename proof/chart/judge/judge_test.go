// Package judge lets the code of Kubernetes' API server judge the chart: strict decoding, defaults, conversion, and the
// validation of each kind as for a request that creates the object, or changes the StatefulSet; and the pod security
// standard "restricted".
package judge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	security "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"epicepoch/chart/render"
)

// own are the kinds of the API server itself. Others are checked by the operators that define them.
var own = map[string]struct {
	group    schema.GroupVersion
	strategy rest.RESTCreateStrategy
}{
	"StatefulSet":         {schema.GroupVersion{Group: "apps", Version: "v1"}, statefulset.Strategy},
	"Service":             {schema.GroupVersion{Version: "v1"}, service.Strategy},
	"PodDisruptionBudget": {schema.GroupVersion{Group: "policy", Version: "v1"}, poddisruptionbudget.Strategy},
	"CronJob":             {schema.GroupVersion{Group: "batch", Version: "v1"}, cronjob.Strategy},
}

var others = []string{"Certificate", "PrometheusRule", "ServiceMonitor"}

func TestTheAPIServerTakesEachObject(t *testing.T) {
	for name, sets := range render.Variants {
		objects, err := render.Chart(sets...)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, object := range objects {
			if slices.Contains(others, object.Kind) {
				continue
			}
			count++
			if err := judge(object); err != nil {
				t.Errorf("%s: %s %s: %v", name, object.Kind, object.Name, err)
			}
		}
		if count < 5 {
			t.Errorf("%s: only %d objects", name, count)
		}
	}
}

// TestPlantedMistakesAreFound changes one place of an object, and expects an error that names the mistake.
func TestPlantedMistakesAreFound(t *testing.T) {
	node := func(old, new, says string) planted { return planted{"StatefulSet", "epicepoch", old, new, says} }
	for _, it := range []planted{
		node("replicas: 5", "replicaz: 5", `unknown field "spec.replicaz"`),
		node("replicas: 5", `replicas: "5"`, "cannot unmarshal string"),
		node("replicas: 5", "replicas: 5\n  replicas: 5", `"replicas" already set`),
		node("replicas: 5", "replicas: -1", "must be greater than or equal to 0"),
		node("start: 3", "start: -3", "must be greater than or equal to 0"),
		node("podManagementPolicy: Parallel", "podManagementPolicy: Paralel", "podManagementPolicy"),
		node("whenScaled: Retain", "whenScaled: Keep", "whenScaled"),
		node("app.kubernetes.io/component: node\n", "app.kubernetes.io/component: nodes\n", "selector"),
		node("labels['apps.kubernetes.io/pod-index']", "label['pod-index']", "fieldPath: Invalid value"),
		node("path: /ready, port: clients,", "path: /ready,", "readinessProbe.httpGet.port: Invalid value: 0"),
		node("tcpSocket: { port: clients }", "tcpSocket: { port: 99999 }", "startupProbe.tcpSocket.port: Invalid value"),
		node("path: /ready, port: clients, scheme: HTTPS", "path: /ready, port: clients, scheme: TLS", "scheme: Unsupported"),
		node("path: /ready, port: clients", "path: ready, port: 99999", "readinessProbe.httpGet.port: Invalid value"),
		node("name: data\n              mountPath", "name: dates\n              mountPath", `name: Not found: "dates"`),
		node("mountPath: /etc/epicepoch/clients", "mountPath: /etc/epicepoch/operators", "must be unique"),
		node("containerPort: 60001", "containerPort: 600010", "containerPort: Invalid value"),
		node("secretName: epicepoch-tls", "secretName: \"\"", "secretName: Required value"),
		node("topologyKey: kubernetes.io/hostname", "topologyKey: \"\"", "topologyKey"),
		node("whenUnsatisfiable: ScheduleAnyway", "whenUnsatisfiable: Ever", "whenUnsatisfiable: Unsupported value"),
		node("storage: 1Gi", "storage: 0", "storage"),
		node("[ReadWriteOncePod]", "[ReadWriteOncePod, ReadWriteOnce]", "ReadWriteOncePod"),
		node("memory: 1Gi", "memory: 51Mi", "must be less than or equal to memory limit"),
		node("terminationGracePeriodSeconds: 66", "terminationGracePeriodSeconds: 66s", "cannot unmarshal string"),
		node("runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot != true"),
		node("runAsUser: 65532", "runAsUser: 0", "runAsUser=0"),
		node("type: RuntimeDefault", "type: Unconfined", "seccompProfile"),
		node("drop: [\"ALL\"]", "drop: []", "unrestricted capabilities"),
		node("drop: [\"ALL\"]", "drop: [\"ALL\"]\n              add: [\"SYS_TIME\"]", `must not include "SYS_TIME"`),
		node("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "allowPrivilegeEscalation != false"),
		node("automountServiceAccountToken: false", "hostNetwork: true", "host namespaces"),
		{"Service", "epicepoch", "port: 8080", "port: 80800", "must be between 1 and 65535"},
		{"Service", "epicepoch", "type: LoadBalancer", "type: Balancer", "type: Unsupported value"},
		{"Service", "epicepoch-nodes", "name: raft", "name: clients", "Duplicate value"},
		{"Service", "epicepoch-nodes", "clusterIP: None", "clusterIP: none", "clusterIP"},
		{"PodDisruptionBudget", "epicepoch", "maxUnavailable: 1", "maxUnavailable: 1\n  minAvailable: 2", "be both set"},
		{"PodDisruptionBudget", "epicepoch", "maxUnavailable: 1", "maxUnavailable: -1", "maxUnavailable"},
		{"CronJob", "epicepoch-backup", "17 3 * * *", "17 3 * *", "expected exactly 5 fields"},
		{"CronJob", "epicepoch-backup", "restartPolicy: Never", "restartPolicy: Always", "restartPolicy"},
		{"CronJob", "epicepoch-backup", "concurrencyPolicy: Forbid", "concurrencyPolicy: No", "concurrencyPolicy"},
		{"CronJob", "epicepoch-backup", "claimName: backups", "claimName: \"\"", "claimName: Required value"},
		{"CronJob", "epicepoch-backup", "runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot != true"},
	} {
		if err := it.judged(); err == nil || !strings.Contains(err.Error(), it.says) {
			t.Errorf("%s %s: %q in place of %q: expected %q, got: %v", it.kind, it.name, it.new, it.old, it.says, err)
		}
	}
}

// TestTheAPIServerTakesChanges of the StatefulSet that the page tells, and refuses one that needs a new object.
func TestTheAPIServerTakesChanges(t *testing.T) {
	founding := []string{render.Plain, render.Secured, render.Founding}
	for _, it := range []struct{ set, says string }{
		{"bootstrap: false", ""},
		{"{ bootstrap: false, image: { tag: 9.8.7 } }", ""},
		{"{ bootstrap: false, replicas: 5 }", ""},
		{"{ bootstrap: false, firstNode: 3 }", ""},
		{"{ bootstrap: false, tls: { peers: accept } }", ""},
		{"{ bootstrap: false, antiAffinity: required, http3: true }", ""},
		{"{ bootstrap: false, storage: { size: 2Gi } }", "spec.volumeClaimTemplates: Invalid value"},
	} {
		err := changed(founding, append(slices.Clone(founding), it.set))
		if it.says == "" && err != nil || it.says != "" && (err == nil || !strings.Contains(err.Error(), it.says)) {
			t.Errorf("%s: expected %q, got: %v", it.set, it.says, err)
		}
	}
	// The way back from a firstNode that was raised too early.
	if err := changed(append(slices.Clone(founding), "{ bootstrap: false, firstNode: 3 }"), founding); err != nil {
		t.Error(err)
	}
}

// changed does what an API server does with a request that changes the StatefulSet.
func changed(from, to []string) error {
	var sets []runtime.Object
	for _, values := range [][]string{from, to} {
		objects, err := render.Chart(values...)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(objects, func(object render.Object) bool { return object.Kind == "StatefulSet" })
		set, err := internal(objects[at])
		if err != nil {
			return err
		}
		set.(meta.Object).SetResourceVersion("1")
		sets = append(sets, set)
	}
	return rest.BeforeUpdate(statefulset.Strategy, asked("update", "StatefulSet"), sets[1], sets[0])
}

type planted struct{ kind, name, old, new, says string }

func (it planted) judged() error {
	objects, err := render.Chart(render.Variants["full"]...)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.Kind != it.kind || object.Name != it.name {
			continue
		}
		changed := strings.Replace(object.YAML+"\n", it.old, it.new, 1)
		if changed == object.YAML+"\n" {
			return fmt.Errorf("there is no %q", it.old)
		}
		return judge(render.Object{Kind: object.Kind, Name: object.Name, YAML: changed})
	}
	return fmt.Errorf("there is no such object")
}

// judge does what an API server does with a request that creates the object, up to its admission.
func judge(object render.Object) error {
	known, is := own[object.Kind]
	if !is {
		return fmt.Errorf("not a kind of the API server")
	}
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
	versioned, _, err := strict.UniversalDeserializer().Decode([]byte(object.YAML), nil, nil)
	if err != nil {
		return err
	}
	if err := restricted(versioned); err != nil {
		return err
	}
	made, err := internal(object)
	if err != nil {
		return err
	}
	rest.FillObjectMetaSystemFields(made.(meta.Object))
	return rest.BeforeCreate(known.strategy, asked("create", object.Kind), made)
}

// internal decodes an object into the internal version, which sets the defaults first.
func internal(object render.Object) (runtime.Object, error) {
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
	made, err := runtime.Decode(strict.UniversalDecoder(), []byte(object.YAML))
	if err != nil {
		return nil, err
	}
	// The storage of services fills this in before the validation.
	if service, is := made.(*api.Service); is && service.Spec.ClusterIP != "" {
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	}
	made.(meta.Object).SetNamespace(render.Namespace)
	return made, nil
}

// asked is the context of a request.
func asked(verb, kind string) context.Context {
	group := own[kind].group
	ctx := request.WithNamespace(context.Background(), render.Namespace)
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: group.Group, APIVersion: group.Version,
		Namespace: render.Namespace,
	})
}

// restricted evaluates the pods of an object by the pod security standard "restricted".
func restricted(object runtime.Object) error {
	var pod core.PodTemplateSpec
	switch object := object.(type) {
	case *apps.StatefulSet:
		pod = object.Spec.Template
	case *batch.CronJob:
		pod = object.Spec.JobTemplate.Spec.Template
	default:
		return nil
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	level := security.LevelVersion{Level: security.LevelRestricted, Version: security.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
	if !result.Allowed {
		return fmt.Errorf("pod security: %s: %s", result.ForbiddenReason(), result.ForbiddenDetail())
	}
	return nil
}
