"""What people see: the terminal (rich) and, later, pages."""
