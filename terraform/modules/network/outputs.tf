output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "subnet_ids" {
  description = "Private subnets, by the keys of azs."
  value       = { for k, s in aws_subnet.private : k => s.id }
}

output "route_table_ids" {
  description = "Their route tables."
  value       = [aws_route_table.private.id]
}
