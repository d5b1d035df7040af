module github.com/epicepoch/epicepoch/clients/go

go 1.24
