module github.com/epicepoch/epicepoch/examples/bank

go 1.24
