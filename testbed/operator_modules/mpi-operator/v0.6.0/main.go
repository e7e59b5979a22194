// Command mpi-operator is the MPI operator for an API server of the testbed: its controller, without leader election.
//
// The program of the release answers probes at one port of the machine, which only one of its processes can have.
package main

import (
	"flag"
	"log"
	"net/http"
	"os"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	mpijobs "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	mpijobscheme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	mpijobinformers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
)

func main() {
	probes := flag.String("health-probe-bind-address", "", "address of the probes")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(err)
	config.QPS, config.Burst = 50, 100
	must(mpijobscheme.AddToScheme(scheme.Scheme)) // for Events
	client, mpiJobClient := kubernetes.NewForConfigOrDie(config), mpijobs.NewForConfigOrDie(config)
	factory := informers.NewSharedInformerFactory(client, 0)
	mpiJobFactory := mpijobinformers.NewSharedInformerFactory(mpiJobClient, 0)
	core := factory.Core().V1()
	found, err := controller.NewMPIJobController(
		client, mpiJobClient, nil, nil,
		core.ConfigMaps(), core.Secrets(), core.Services(), factory.Batch().V1().Jobs(), core.Pods(),
		factory.Scheduling().V1().PriorityClasses(), mpiJobFactory.Kubeflow().V2beta1().MPIJobs(),
		"", "",
	)
	must(err)
	forever := make(chan struct{})
	factory.Start(forever)
	mpiJobFactory.Start(forever)
	go func() {
		http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
		log.Fatal(http.ListenAndServe(*probes, nil))
	}()
	must(found.Run(2, forever))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
