// Command training-operator is Kubeflow's training operator for an API server of the testbed: its controllers and its
// webhooks, with its defaults.
//
// The program of the release waits for a certificate at one path of the machine, which all its processes share, and
// writes its own certificates into a Secret. Here the certificate is the testbed's. MPIJobs are left to the MPI
// operator, as Kubeflow recommends for their newer version.
package main

import (
	"flag"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	schedulerplugins "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllers "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/webhooks"
)

var kinds = []string{
	kubeflow.JAXJobKind,
	kubeflow.PaddleJobKind,
	kubeflow.PyTorchJobKind,
	kubeflow.TFJobKind,
	kubeflow.XGBoostJobKind,
}

func main() {
	probes := flag.String("health-probe-bind-address", "", "address of the probes")
	port := flag.Int("webhook-server-port", 0, "port of the webhooks")
	certificates := flag.String("certificates", "", "folder with tls.crt and tls.key of the webhooks")
	flag.Parse() // controller-runtime has the flag kubeconfig

	ctrl.SetLogger(zap.New())
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kubeflow.AddToScheme, volcano.AddToScheme, schedulerplugins.AddToScheme,
	} {
		must(add(scheme))
	}
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metrics.Options{BindAddress: "0"},
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certificates}),
		HealthProbeBindAddress: *probes,
	})
	must(err)
	must(manager.AddHealthzCheck("healthz", healthz.Ping))
	must(manager.AddReadyzCheck("readyz", manager.GetWebhookServer().StartedChecker()))
	for _, kind := range kinds {
		must(controllers.SupportedSchemeReconciler[kind](manager, common.GenNonGangSchedulerSetupFunc(), 1))
		must(webhooks.SupportedSchemeWebhook[kind](manager))
	}
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
