module github.com/retrip/retrip/examples/breaker

go 1.26.0

replace github.com/retrip/retrip => ../..

require (
	github.com/retrip/retrip v0.0.0
	github.com/sony/gobreaker/v2 v2.4.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/time v0.16.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
