-- What a vendor wants back with the calls of a step while its turn goes on, such as signed reasoning; and what was changed
-- in the request of a step for its vendor.
alter table generation_steps add column vendor_parts jsonb, add column notes jsonb;
