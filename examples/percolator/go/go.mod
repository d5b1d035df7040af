module github.com/epicepoch/epicepoch/examples/percolator/go

go 1.24

require github.com/epicepoch/epicepoch/clients/go v0.0.0

replace github.com/epicepoch/epicepoch/clients/go => ../../../clients/go
