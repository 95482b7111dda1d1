-- breaking: false, transaction: none

call partition_by_month('audit_entries', 'audit');
