-- breaking: false, transaction: none

call partition_by_month('events', 'evt');
